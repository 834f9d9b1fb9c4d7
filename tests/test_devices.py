"""Ranks with a GPU each, in the simulator: they compute what one process computes.

Run by mpiexec this file is the job of its own tests: `python test_devices.py FOLDER`.
"""

import hashlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import SIMULATED, example
from planted import planted

import lstm_kernels as lk
from lstm_kernels.errors import UnavailableError
from lstm_kernels.gpu import device, layout, plans
from lstm_kernels.ranks import devices, launch
from lstm_kernels.ranks.checkpoints import SharedCheckpoint
from lstm_kernels.ranks.layers import TokenParams
from lstm_kernels.ranks.world import World, main
from lstm_kernels.versions.cuda_fused import CudaFused
from lstm_report.measure.comparer import TOLERANCE, MismatchError, compare

LIMIT = 60  # seconds; a job that hangs is a failure
SHAPE = (
    2,
    2,
    5,
    1,
    3,
)  # L, T, B, D, H: five samples are shared by two and by three ranks unevenly
# Networks whose passes and sums take other paths of the kernels: cell, bytes of shared
# memory of a block, whether gradients are computed by all blocks.
NETWORKS = {
    "weights in shared memory": ("lstm", device.SHARED, False),
    "weights in device memory": ("lstm", 650, False),
    "gradients by all blocks": ("gru", device.SHARED, True),
}
WAYS = "pinned staging", "device arrays"
FAULTS = {
    "an unweighted share": ("share = (high - low) / B", "share = 1.0"),
    "shares weighted as equal": (
        "share = (high - low) / B",
        "share = 1 / self.world.size",
    ),
    "no losses of the others": (
        "return sum(self.world.comm.allgather(own))",
        "return own",
    ),
    "a rank that is not added": ("self._add(ranks, rows", "self._add(ranks - 1, rows"),
    "gradients that stay": ("self._packed.copy_to_device(self._zeros)", "pass"),
}
UNSYNCHRONISED = {
    "before the slices go": (
        "device.synchronize()  # MPI does not",
        "pass  # MPI does not",
    ),
    "before the sums go": ("self._add()\n        device.synchronize()", "self._add()"),
}
needs_jobs = pytest.mark.skipif(
    bool(launch.why_unavailable()), reason=f"no jobs here: {launch.why_unavailable()}"
)
simulated = pytest.mark.skipif(not SIMULATED, reason="fakes what a device does")


# What the ranks do.


def steps(net, x, target):
    """Losses of two steps, the second of so few samples that a third rank has none;
    parameters.
    """
    found = {
        f"loss of {b}": np.array(net.step(x[:, :b], target[:b], 0.2)) for b in (5, 2)
    }
    return found | net.params().arrays()


def work(net, x, target):
    """Losses, gradients and parameters of every call that trains, by name."""
    found = steps(net, x, target)
    loss, grads = net.loss_and_grads(x, target)
    names = net.params().arrays()
    found |= {"loss": loss} | {f"gradient of {n}": grads.arrays()[n] for n in names}
    for optimizer, rate in (("sgd", 0.2), ("adam", 0.001)):
        how = {"optimizer": optimizer, "progress": False}
        history = lk.train(net, lk.Dataset(x, target), 1, 3, rate, **how)
        found[f"loss by {optimizer}"] = history.loss[0]
        found |= {
            f"{name} by {optimizer}": a for name, a in net.params().arrays().items()
        }
    return {name: np.array(a) for name, a in found.items()}


class DeviceMemory:
    """A simulated device array as a device's looks to mpi4py; the host can read its
    addresses.
    """

    def __init__(self, array):
        about = array._ary.__array_interface__
        wanted = {name: about[name] for name in ("shape", "typestr", "data")}
        self.__cuda_array_interface__ = wanted | {
            "version": 3,
            "strides": None,
            "stream": None,
        }


class CudaAware:
    """A communicator which takes device arrays, and refuses what a device may not have
    written.
    """

    def __init__(self, comm):
        self._comm, self._running = comm, False
        self._configure, device.Device.configure = (
            device.Device.configure,
            self.configured(comm),
        )
        device.synchronize = self.synchronized

    def configured(self, comm):
        original = device.Device.configure

        def configure(gpu, *grid, **how):
            kernel = original(gpu, *grid, **how)

            def launched(*arguments):
                self._running = True
                return kernel(*arguments)

            return launched

        return configure

    def synchronized(self):
        self._running = False

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def Alltoallv(self, send, recv):
        self._comm.Alltoallv(self.taken(send), self.taken(recv))

    def Allgatherv(self, send, recv):
        self._comm.Allgatherv(self.taken(send), self.taken(recv))

    def taken(self, spec):
        array, *how = spec
        if self._running:
            raise RuntimeError("kernels may still be running")
        return [DeviceMemory(array), *how]


def bits(net):
    flat = np.concatenate([a.ravel() for a in net.params().arrays().values()])
    return hashlib.sha256(flat.tobytes()).hexdigest()


def resumed(nets, file, dataset):
    """Whether two epochs and one with another after it, from a checkpoint, end in the
    same bits.
    """
    whole, first, second = nets
    how = {"batch_size": 3, "learning_rate": 0.1, "progress": False}
    lk.train(whole, dataset, 2, **how)
    lk.train(first, dataset, 1, **how, checkpoint=SharedCheckpoint(file, first))
    saved = SharedCheckpoint(file, second)
    lk.train(second, dataset, 2, **how, checkpoint=saved, resume=True)
    return np.array(bits(second) == bits(whole))


def job(world):
    """Everything that one number of ranks is asked for; rank 0 writes what came out."""
    folder, found = Path(sys.argv[1]), {}
    aware = World(CudaAware(world.comm))

    def replica(params, way, module=devices):
        module.cuda_aware = lambda MPI: True
        net = module.DeviceReplica(params, aware, staged=way == WAYS[0])
        assert net.way == way
        return net

    def keep(name, results):
        found.update({f"{name}/{key}": a for key, a in results.items()})

    for name, (cell, shared, product) in NETWORKS.items():
        kept = device.SHARED, plans.rounds
        device.SHARED, plans.rounds = (
            shared,
            lambda *how, after=int(product): (after, 1 - after),
        )
        for way in WAYS:
            params, x, target = example(SHAPE, cell)
            net = replica(params, way)
            keep(f"{name}/{way}", steps(net, x, target))
            world.agree("bits", bits(net))
            chosen = next(iter(net._passes.values())).plan
            assert (chosen.resident, chosen.product) == (shared == kept[0], product)
        device.SHARED, plans.rounds = kept

    params, x, target = example(SHAPE)
    for way in WAYS:  # everything; then the bytes of a step: sent, fetched, and staged
        net = replica(params, way)
        keep(f"everything/{way}", work(net, x, target))
        world.agree("bits", bits(net))
        before = net._device.sent, net._device.fetched, net.staged
        net.step(x, target, 0.1)
        after = net._device.sent, net._device.fetched, net.staged
        keep("bytes", {way: np.subtract(after, before)})

    if world.size == 2:
        nets = [replica(params, WAYS[1]) for _ in range(3)]
        keep(
            "resumed",
            {"same bits": resumed(nets, folder / "state.npz", lk.Dataset(x, target))},
        )
        for name, (right, wrong) in FAULTS.items():
            net = replica(params, WAYS[1], planted(devices, right, wrong))
            keep(f"{name}/{WAYS[1]}", steps(net, x, target))
        for name, fault in UNSYNCHRONISED.items():
            noticed = ""
            try:
                replica(params, WAYS[1], planted(devices, *fault)).step(x, target, 0.1)
            except RuntimeError as error:
                noticed = str(error)
            keep("noticed", {name: np.array(noticed)})
    if world.rank == 0:
        np.savez(folder / f"{world.size}.npz", **found)


# What comes out.


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A function: what a job of so many ranks wrote, of one run or of another."""
    known = {}

    def run(ranks, turn=0):
        if (ranks, turn) not in known:
            folder = tmp_path_factory.mktemp("job")
            line = [
                launch.mpiexec(),
                "-n",
                str(ranks),
                "--oversubscribe",
                "--bind-to",
                "none",
            ]
            line += [sys.executable, __file__, str(folder)]
            env = launch.environment() | {"NUMBA_ENABLE_CUDASIM": "1"}
            launch._follow(line, env, LIMIT, None)
            with np.load(folder / f"{ranks}.npz") as file:
                known[ranks, turn] = dict(file)
        return known[ranks, turn]

    return run


def part(found, prefix):
    """The entries below a name."""
    start = f"{prefix}/"
    return {
        name.removeprefix(start): a
        for name, a in found.items()
        if name.startswith(start)
    }


def alone(call, cell="lstm"):
    """What one process computes by `steps` or `work`, by the reference in float64."""
    params, x, target = (a.astype(np.float64) for a in example(SHAPE, cell))
    return call(lk.network("numpy", params), x, target)


FLOAT = TOLERANCE[np.dtype(np.float32)]


@needs_jobs
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", ["everything", *NETWORKS])
def test_ranks_with_a_device_each_train_as_one_process_does(results, ranks, name):
    want = alone(steps, NETWORKS[name][0]) if name in NETWORKS else alone(work)
    both = [part(results(ranks), f"{name}/{way}") for way in WAYS]
    for found in both:
        compare(found, want, FLOAT)
    for key, value in both[0].items():  # both ways add in the order of the ranks
        np.testing.assert_array_equal(both[1][key], value, err_msg=key)


@needs_jobs
def test_the_same_bits_each_run(results):
    first, second = results(3), results(3, turn=1)
    assert set(first) == set(second)
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value, err_msg=name)


@needs_jobs
def test_training_goes_on_from_a_checkpoint(results):
    assert part(results(2), "resumed")["same bits"]


@needs_jobs
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_bytes_are_counted_and_device_arrays_stay_on_the_device(results, ranks):
    params, x, target = example(SHAPE)
    size = 4 * layout.packed_size(layout.Sizes.of(params, 1, 1), 4)
    sent, fetched = (
        x.nbytes + target.nbytes + 8 * x.shape[1],
        4,
    )  # and the order; the loss
    found = part(results(ranks), "bytes")
    assert found["device arrays"].tolist() == [sent, fetched, 0]
    hop = size if ranks > 1 else 0
    assert found["pinned staging"].tolist() == [sent + hop, fetched + hop, 2 * hop]


@needs_jobs
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_caught(results, fault):
    found = part(results(2), f"{fault}/{WAYS[1]}")
    with pytest.raises(MismatchError):
        compare(found, alone(steps), FLOAT)


@needs_jobs
@pytest.mark.parametrize("fault", UNSYNCHRONISED)
def test_a_missing_synchronise_is_noticed(results, fault):
    assert part(results(2), "noticed")[fault] == "kernels may still be running"


# Without a job: what fakes say.


class FakeComm:
    """Rank `rank` of a node whose ranks see these GPUs, lists of identifiers."""

    def __init__(self, rank, seen):
        self.rank, self.seen, self.freed = rank, seen, False

    def Split_type(self, kind):
        assert kind == "shared"
        return self

    def Get_rank(self):
        return self.rank

    def allgather(self, mine):
        assert mine == self.seen[self.rank]
        return self.seen

    def Free(self):
        self.freed = True


def chosen(monkeypatch, rank, seen):
    """The device that a rank selects, when the ranks of its node see these."""
    selected, comm = [], FakeComm(rank, seen)
    gpus = [SimpleNamespace(uuid=name) for name in seen[rank]]
    cuda = SimpleNamespace(
        gpus=gpus, is_available=lambda: True, select_device=selected.append
    )

    def why():
        """Opens the first device, unless another was selected before."""
        assert selected or not gpus
        return None if gpus else "there is no CUDA device"

    monkeypatch.setattr(device, "SIMULATED", False)
    monkeypatch.setattr(device, "cuda", cuda)
    monkeypatch.setattr(device, "why_unavailable", why)
    world = SimpleNamespace(comm=comm, MPI=SimpleNamespace(COMM_TYPE_SHARED="shared"))
    number = devices.choose_device(world)
    assert selected == [number]
    assert comm.freed
    return number


def test_every_rank_of_a_node_gets_a_device_of_its_own(monkeypatch):
    seen = [["a", "b", "c"]] * 3
    assert [chosen(monkeypatch, rank, seen) for rank in range(3)] == [0, 1, 2]
    assert chosen(monkeypatch, 0, [["a", "b"]]) == 0
    # A scheduler shows each rank its own, or each in an order of its own.
    assert [chosen(monkeypatch, rank, [["a"], ["b"]]) for rank in range(2)] == [0, 0]
    assert [
        chosen(monkeypatch, rank, [["a", "b"], ["b", "a"]]) for rank in range(2)
    ] == [0, 0]


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        ([["a"]] * 2, "got 2 ranks on a node of 1 GPU, want at most 1"),
        ([["a", "b"]] * 3, "got 3 ranks on a node of 2 GPUs, want at most 2"),
    ],
)
def test_more_ranks_than_devices_are_refused_on_every_rank(monkeypatch, seen, message):
    for rank in range(len(seen)):
        with pytest.raises(ValueError, match=f"^world: {message}"):
            chosen(monkeypatch, rank, seen)


def test_a_node_without_a_device_is_refused_with_the_reason(monkeypatch):
    with pytest.raises(UnavailableError, match="there is no CUDA device"):
        chosen(monkeypatch, 0, [[], []])
    for rank, why in enumerate(
        ("another rank of this node sees no GPU", "no CUDA device")
    ):
        with pytest.raises(UnavailableError, match=why):
            chosen(monkeypatch, rank, [["a"], []])


@simulated
def test_in_the_simulator_one_device_serves_every_rank():
    assert devices.choose_device(None) == 0


def answer(monkeypatch, library, world=None, environment=None):
    """cuda_aware of an MPI whose library, communicator and environment say this."""
    monkeypatch.setattr(device, "SIMULATED", False)
    monkeypatch.setattr(
        devices.ctypes, "CDLL", lambda path: {"mpi4py's": library}[path]
    )

    def info(kinds):
        known = {} if kinds is None else {"mpi_memory_alloc_kinds": kinds}
        return SimpleNamespace(Get=known.get)

    MPI = SimpleNamespace(__file__="mpi4py's", INFO_ENV=info(environment))
    MPI.COMM_WORLD = SimpleNamespace(Get_info=lambda: info(world))
    return devices.cuda_aware(MPI)


@pytest.mark.parametrize("said", [1, 0, -1])
def test_the_library_s_own_answer_counts(monkeypatch, said):
    library = SimpleNamespace(MPIX_Query_cuda_support=lambda: said)
    for kinds in (None, "mpi,system", "cuda"):
        assert answer(monkeypatch, library, kinds) is (said == 1)


@pytest.mark.parametrize(
    ("world", "environment", "want"),
    [
        (None, None, False),
        ("mpi,system", None, False),
        ("mpi,system,cuda", None, True),
        ("system, cuda:device, cuda:host", None, True),
        ("system,cuda:host,rocm:device", None, False),
        ("system,notcuda", None, False),
        ("", "cuda", False),
        (None, "system,cuda:device", True),
        (None, "system,rocm", False),
    ],
)
def test_kinds_of_memory_are_asked_where_the_library_has_no_answer(
    monkeypatch, world, environment, want
):
    assert answer(monkeypatch, SimpleNamespace(), world, environment) is want


@simulated
def test_the_simulator_s_arrays_are_no_device_s():
    assert devices.cuda_aware(None) is False


@simulated
@pytest.mark.parametrize("rank", [0, 1])
def test_device_arrays_are_handed_over_synchronised_and_never_copied(monkeypatch, rank):
    """One of two ranks, with a communicator that knows what the other one has."""
    array, rows = (
        device.cuda.device_array(5, np.float32),
        device.cuda.device_array(12, np.float32),
    )
    own, other = np.float32([1, 2, 3, 4, 5]), np.float32([10, 20, 30, 40, 50])
    array.copy_to_device(own)
    both, events = (own, other) if rank == 0 else (other, own), []
    low, high = (0, 2) if rank == 0 else (2, 5)

    def exchange(send, recv):
        events.append("Alltoallv")
        assert send == [array, ([2, 3], [0, 2]), "FLOAT"]
        assert send[0] is array
        assert recv[0] is rows
        assert recv[1:] == [([high - low] * 2, [low, 6 + low]), "FLOAT"]
        for r in range(2):
            rows[6 * r + low : 6 * r + high] = both[r][low:high]

    def gather(send, recv):
        events.append("Allgatherv")
        assert send[1:] == [high - low, "FLOAT"]
        assert recv[1:] == [([2, 3], [0, 2]), "FLOAT"]
        assert np.shares_memory(send[0]._ary, rows._ary)
        recv[0][:] = own + other
        np.testing.assert_array_equal(send[0]._ary, (own + other)[low:high])

    def add():
        events.append("add")
        rows[:6] = rows._ary[:6] + rows._ary[6:]

    def copied(*arguments, **how):
        raise AssertionError("copied through the host")

    monkeypatch.setattr(device, "synchronize", lambda: events.append("synchronize"))
    monkeypatch.setattr(type(array), "copy_to_host", copied)
    monkeypatch.setattr(type(array), "copy_to_device", copied)
    comm = SimpleNamespace(Alltoallv=exchange, Allgatherv=gather)
    MPI = SimpleNamespace(Datatype=SimpleNamespace(fromcode={"f": "FLOAT"}.get))
    summing = devices.DeviceSum(
        SimpleNamespace(comm=comm, MPI=MPI, rank=rank, size=2), rows, add
    )
    for _ in range(2):
        array[:] = own
        summing.run(array)
        np.testing.assert_array_equal(array._ary, own + other)
    assert (
        events == ["synchronize", "Alltoallv", "add", "synchronize", "Allgatherv"] * 2
    )
    assert summing.staged == 0


class One:
    """A world of one rank, without MPI."""

    rank, size, comm, MPI = 0, 1, SimpleNamespace(allgather=lambda value: [value]), None

    def agree(self, name, value):
        return value

    def share(self, count):
        return 0, count


@simulated
def test_bad_input():
    with pytest.raises(
        ValueError, match="params: got an embedding, want layers and a read-out"
    ):
        devices.DeviceReplica(TokenParams.init(3, 2, 4), One())
    with pytest.raises(ValueError, match="params: got no read-out"):
        devices.DeviceReplica(lk.Params.init(2, 4), One())
    net = devices.DeviceReplica(lk.Params.init(2, 4, output_size=1), One())
    with pytest.raises(
        TypeError, match="belongs to its rank and device, want its params"
    ):
        net.__reduce__()
    with pytest.raises(ValueError, match="learning_rate: got 0"):
        net.step(*example((1, 2, 3, 2, 4), output_size=1)[1:], 0)


@simulated
def test_one_rank_has_the_bits_of_cuda_fused_up_to_rounding():
    params, x, target = example(SHAPE)
    net, other = devices.DeviceReplica(params, One()), CudaFused(params)
    assert [net.step(x, target, 0.1) for _ in range(3)] == pytest.approx(
        [other.step(x, target, 0.1) for _ in range(3)], rel=1e-6
    )
    compare(net.params().arrays(), other.params().arrays(), FLOAT)
    assert net.staged == 0


if __name__ == "__main__":
    assert os.environ["NUMBA_ENABLE_CUDASIM"] == "1"
    main(job)

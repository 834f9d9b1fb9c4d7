"""What tests/test_ranks.py runs on several ranks: `mpiexec -n 2 python rank_programs.py
every`.

A program raises on the rank that finds something wrong, and that ends the job.
"""

import gc
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import lstm_kernels as lk
from lstm_kernels import reference
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu.packing import Layout
from lstm_kernels.cpu.partitions import Partition
from lstm_kernels.gpu import device
from lstm_kernels.ranks import rnn
from lstm_kernels.ranks.parallel import Parallel
from lstm_kernels.ranks.world import CORES, Sum, World, main, take_cores
from lstm_report.experiments import devices, handover, mpi_loops
from lstm_report.measure import results
from lstm_report.measure.comparer import TOLERANCE, MismatchError, compare
from lstm_report.studies import strings

if device.SIMULATED:
    sys.setswitchinterval(1e-4)  # its threads often wait for each other
KERNELS = mpi_loops.steps_by_messages, mpi_loops.steps_by_collective
STEPS = {"epochs": 2, "batch_size": 15, "learning_rate": 0.5, "progress": False}
STRINGS = strings.one_hot(strings.reber(40))


def example(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def reber(layers=2):
    return lk.Params.init(7, 16, num_layers=layers, output_size=7)


def same(named, others):
    for name, array in others.items():
        np.testing.assert_array_equal(named[name], array, err_msg=name)


def sums(world):
    """Sums have the bits of adding the ranks' arrays in their order, whatever their
    size.
    """
    for dtype in (np.float32, np.float64):
        for n in (1, world.size, world.size + 1, 1000, 70_001):
            array = example(n, dtype=dtype, seed=world.rank)
            first, *others = world.comm.allgather(array)
            for other in others:
                first += other
            Sum(world, array).run()
            np.testing.assert_array_equal(array, first)


def units(world):
    """Ranks that share the units of a layer have the bits of one process, by every
    means; an output stays as it is, and so does h of a Pass, which can run again.
    """
    pairs = []
    for cell, dtype in (("rnn", "f"), ("lstm", "d"), ("gru", "f")):
        least = Layout(CELLS[cell], np.dtype(dtype), 1024).units * world.size
        for H in (least - 1, least + 1):
            params = lk.Params.init(5, H, cell=cell, dtype=np.dtype(dtype))
            net = lk.network("numba-fused", params, threads=1)
            shared = rnn.Units(params, world)
            # Shapes in turn: what one call leaves behind would show in the next.
            for T, B in ((4, 1), (7, 3), (1, 1), (4, 1)):
                x = example(T, B, 5, dtype=np.dtype(dtype), seed=T)
                want = net.forward(x)[0]
                pairs.append((shared.forward(x), want))
                for kernel in KERNELS:
                    run = mpi_loops.bound(params, world, x, kernel)
                    run()
                    pairs.append((run.h[1:, :, :H], want))
    run = shared.bound(x)
    for _ in range(3):
        run.h[1:] = np.nan
        world.comm.Barrier()  # before a rank writes, it is NaN for all
        run()
        pairs.append((run.h[1:, :, :H].copy(), want))
        world.comm.Barrier()
    xs = [example(*shape, 5, dtype=x.dtype) for shape in ((6, 3), (6, 3), (9, 20))]
    runs = [shared.bound(x * (1 + k)) for k, x in enumerate(xs)]
    for k in (0, 1, 0, 2, 1):
        runs[k].h[1:] = np.nan
        world.comm.Barrier()
        runs[k]()
    shared.forward(example(60, 40, 5, dtype=x.dtype))
    for k, run in enumerate(runs):
        pairs.append((run.h[1:, :, :H], net.forward(xs[k] * (1 + k))[0]))
    for y, want in pairs:
        np.testing.assert_array_equal(y, want)


def cores(world):
    """Ranks share the cores of their machine out: one each or several; where there are
    too few they take turns.
    """
    if not (count := len(CORES)):  # the system does not tell
        return
    ends = [count * rank // world.size for rank in (world.rank, world.rank + 1)]
    share = CORES[slice(*ends)] if world.size <= count else [CORES[world.rank % count]]
    assert sorted(os.sched_getaffinity(0)) == share
    take_cores()
    assert sorted(os.sched_getaffinity(0)) == CORES
    take_cores(*world.near)


def memory(world):
    """A window begins at a line of the cache, and is the same memory for all, its own
    as long as an array over it is left on any rank; many models, windows and passes in
    turn take no more than one does.
    """
    windows = [world.window(count) for count in (1, 64, 1000, 64)]
    for k, window in enumerate(windows):
        assert window.shape == ((1, 64, 1000, 64)[k],)
        assert window.ctypes.data % 64 == 0
        assert not window.any()
        world.comm.Barrier()
        window[world.rank % len(window)] = 7 + k
    world.comm.Barrier()
    for k, window in enumerate(windows):
        assert (window == 7 + k).sum() == min(world.size, len(window))
    left = windows.pop()[:1] if world.rank == 0 else None
    del windows, window
    world.window(64)[:] = 5
    world.comm.Barrier()
    assert left is None or left[0] == 10
    assert not world.window(64).any()  # whatever was in it
    units = rnn.Units(lk.Params.init(2, 256), world)
    gc.disable()  # which ends what points to itself, on each rank when it likes
    before, rows = shared_bytes(), []
    for count in range(1 << 20, 2 << 20, 1 << 15):
        world.window(count)
        units.forward(example(count >> 14, 8, 2))
        rows.append(Parallel(reber(), world, stages=[3]).row)
    assert all(row is rows[0] for row in rows)  # a communicator
    assert shared_bytes() - before <= 8 << 20
    gc.enable()


def shared_bytes():
    """Bytes of memory that this process shares with others."""
    if not (maps := Path("/proc/self/maps")).exists():
        return 0
    lines = [line.split() for line in maps.read_text().splitlines()]
    ends = [line[0].split("-") for line in lines if line[1].endswith("s")]
    return sum(int(end, 16) - int(start, 16) for start, end in ends)


def refused(world):
    """What the ranks cannot share, and an example that is wrong on one of them, is
    refused on each, with the reason.
    """
    P, rank, last = world.size, world.rank, world.size - 1
    small, read = (lk.Params.init(2, 4, output_size=size) for size in (None, 1))
    large = lk.Params.init(2, 64 * P)
    nan = np.float32(np.nan) * example(3, 4, 2)
    x, target = example(3, 4, 2), example(4, 1 + (rank == 0))
    right = target[:, :1].copy()
    data, shared, model = lk.Dataset(x, right), rnn.Units(large, world), Parallel(read)
    spoilt = model.params()
    spoilt.named["layers.0.b"][:1] = np.nan if rank == last else 0
    for make, words in (
        (
            lambda: rnn.Units(small, world),
            f"got 1 unit block, want one for each of {P}",
        ),
        (lambda: rnn.Units(reber(), world), "params: got 2 layers, want 1"),
        (lambda: rnn.Units(large, world).forward(nan), "x: got nan at index"),
        (lambda: rnn.Units(large, world).bound(x[:0]), "x: got shape (0, 4, 2)"),
        (lambda: shared.bound(x, Partition("one thread")), "partition: got one thread"),
        (lambda: world.window(rank - last), "count: got "),
        (lambda: world.agreed(lambda: 1 // (rank - last)), "modulo by zero"),
        (lambda: Parallel(read, world, stages=[2, 1 - rank % 2]), "stages: got"),
        (lambda: Parallel(read, world, version="cuda-v9"), "name: got 'cuda-v9'"),
        (lambda: model.step(x, target, 0.1), "target: got shape (4, 2"),
        (lambda: model.step(x, right, rank - last), "learning_rate: got "),
        (lambda: model.epoch(data, [rank - last], 1, 0.1), "order: got indices"),
        (lambda: model.assign(spoilt), "layers.0.b: got nan at index [0]"),
    ):
        with pytest.raises((ValueError, ArithmeticError), match=re.escape(words)):
            make()
    same(model.params().arrays(), read.arrays())
    fused = next(v for v in lk.versions() if v.name == "cuda-fused")
    with pytest.MonkeyPatch.context() as patch:
        if rank == last:
            why = staticmethod(lambda: "no device")
            patch.setattr(fused.load(), "why_unavailable", why)
        with pytest.raises(lk.UnavailableError, match="cannot run here: no device"):
            Parallel(read, world, version="cuda-fused")


def compared(world):
    """What the last rank has otherwise than the others is named on each, before
    anything is computed, and all go on; so is a call that only the others make.
    """
    odd = world.rank == world.size - 1
    few, read = lk.Params.init(2, 64 * world.size), lk.Params.init(2, 4, output_size=1)
    few_2, read_2 = few.copy(), read.copy()
    few_2.layers[0].W[-1, -1] += 1
    read_2.V[-1] *= -1
    shared, model, large = rnn.Units(few, world), Parallel(read, world), reber()
    line = Parallel(large, world, stages=[1, 1, 1], loss="symbols")
    x, y, E = example(3, 4, 2), example(4, 1), example(7, 5)
    data, order, doubled = lk.Dataset(x, y), np.arange(4), np.tile(x, (1, 2, 1))
    inner = lk.Params.init(5, 4, output_size=7)
    ways = [Partition("units"), Partition("samples")]
    theta, theta_2 = (Parallel(p, World(world.MPI.COMM_SELF)) for p in (read, read_2))

    def one(usual, other):
        return other if odd else usual

    def embedded(E):
        return Parallel(inner, world, embedding=E, loss="symbols")

    def train(**options):
        return lk.train(line, STRINGS, **STEPS | options)

    for name, call in (
        ("layers.0.W", lambda: rnn.Units(one(few, few_2), world)),
        ("x", lambda: shared.forward(one(x, x[:2]))),
        ("x", lambda: shared.forward(one(x, x[:, :2]))),
        ("x", lambda: shared.bound(one(x, 2 * x))),
        ("partition", lambda: shared.bound(x, one(*ways))),
        ("count", lambda: world.window(one(8, 16))),
        ("array", lambda: Sum(world, np.zeros(one(8, 16)))),
        ("V", lambda: Parallel(one(read, read_2), world)),
        ("E", lambda: embedded(one(E, 2 * E))),
        ("stages", lambda: Parallel(large, world, stages=one([3], [1, 1, 1]))),
        ("micro_batches", lambda: Parallel(read, world, micro_batches=one(1, 2))),
        ("loss", lambda: Parallel(large, world, loss=one("last", "symbols"))),
        ("version", lambda: Parallel(read, world, version=one(*VERSIONS))),
        ("V", lambda: model.assign(one(theta, theta_2).params())),
        ("x", lambda: model.loss_and_grads(one(x, x[1:]), y)),
        ("x", lambda: model.step(one(x, x[:, :2]), one(y, y[:2]), 0.1)),
        ("x", lambda: model.step(one(x, doubled), one(y, np.tile(y, (2, 1))), 0.1)),
        ("target", lambda: model.step(x, one(y, -y), 0.1)),
        ("learning_rate", lambda: model.step(x, y, one(0.1, 0.2))),
        ("x", lambda: model.epoch(lk.Dataset(one(x, -x), y), order, 2, 0.1)),
        ("order", lambda: model.epoch(data, one(order, order[::-1]), 2, 0.1)),
        ("order", lambda: model.epoch(data, one(order, order[:2]), 2, 0.1)),
        ("batch_size", lambda: model.epoch(data, order, one(2, 3), 0.1)),
        ("learning_rate", lambda: model.epoch(data, order, 2, one(0.1, 0.2))),
        ("epochs", lambda: train(epochs=one(2, 3))),
        ("seed", lambda: train(seed=one(0, 1))),
        ("learning_rate", lambda: train(learning_rate=one(1, 2), optimizer="adam")),
        ("checkpoint", lambda: train(checkpoint=one(None, "none.npz"))),
        ("resume", lambda: train(checkpoint="none.npz", resume=one(False, True))),
        ("call", lambda: world.window(8) if odd else model.step(x, y, 0.1)),
    ):
        words = f"{name}: got .* on rank 0, .* on rank {world.size - 1}, want the same"
        with pytest.raises(ValueError, match=words):
            call()
    # What is wrong on one rank is raised on every rank, also after the first epoch.
    for name, call in (
        ("dataset", lambda: lk.train(line, one(STRINGS, None), **STEPS)),
        ("batch_size", lambda: train(batch_size=one(15, 1000))),
        ("seed", lambda: train(seed=one(0, -1))),
        ("on_epoch", lambda: train(on_epoch=one(None, 5))),
        ("validation", lambda: train(validation=one(None, data))),
        ("learning_rate", lambda: train(learning_rate=one(0.1, "x"))),
        (r"learning_rate\(1\)", lambda: train(learning_rate=lambda e: 0.1 - one(0, e))),
        ("invalid literal", lambda: train(on_epoch=lambda *_: int(one("1", "x")))),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^{name}"):
            call()
    same(model.params().arrays(), read.arrays())
    assert not Path("none.npz").exists()
    model.step(x, y, 0.1)


def next_symbol(params, x):
    """The mean cross-entropy of the symbols after the first, of one-hot rows x (T, B,
    S), and its gradients: from the definition and the reference.
    """
    y, _, tapes = reference.forward(params, x[:-1])
    p = np.exp(y @ params.V + params.b_out)
    p /= p.sum(axis=2, keepdims=True)
    count = x[1:].sum()
    dz = (p * x[1:].sum(axis=2, keepdims=True) - x[1:]) / count
    grads = reference.backward(params, tapes, dz @ params.V.T)
    grads.V, grads.b_out = np.einsum("tbh,tbo->ho", y, dz), dz.sum(axis=(0, 1))
    return -np.log(p[x[1:] == 1]).sum() / count, grads.arrays()


def trained_by_definition(params, batch_size):
    """The losses of the epochs and the parameters after STEPS of gradient descent, in
    float64.
    """
    theta, N, losses = params.astype(np.float64), len(STRINGS), []
    for epoch in range(STEPS["epochs"]):
        order = np.random.default_rng([0, epoch]).permutation(N)
        total = 0.0
        for index in np.split(order, range(batch_size, N, batch_size)):
            loss, grads = next_symbol(theta, STRINGS.x[:, index].astype(np.float64))
            named = theta.arrays()
            named = {n: a - STEPS["learning_rate"] * grads[n] for n, a in named.items()}
            theta = lk.Params.from_arrays(named, theta.cell)
            total += loss * len(index) / N
        losses.append(total)
    return losses, theta.arrays()


VERSIONS = "numpy", "cuda-fused"
SMALL = lk.Params.init(2, 3, num_layers=2, output_size=1)  # numbers: 72, 84, 3 and 1
# By the number of ranks: options, and bytes that leave a rank in a step of 4 samples
# and 3 steps. A border of stages has 3 x 4 x 3 numbers of 4 bytes cross it, both ways;
# of two replicas all 160 parameters cross, and their sums.
COMPUTED = {
    2: [
        ({"stages": [1, 2], "micro_batches": 2}, 2 * 3 * 4 * 3 * 4),
        ({}, 2 * 160 * 4),
        ({"micro_batches": 2}, 2 * 160 * 4),
    ],
    4: [({"stages": [1, 2], "micro_batches": 2}, 288 + 1280)],
}


class Counted:
    """A communicator that counts the bytes which leave its rank."""

    def __init__(self, comm):
        self.comm, self.bytes = comm, 0

    def __getattr__(self, name):
        return getattr(self.comm, name)

    def Isend(self, value, to):
        self.bytes += value.nbytes * (to != self.comm.rank)
        return self.comm.Isend(value, to)

    def Alltoallv(self, slices, pieces):
        array, counts = slices
        self.bytes += array.itemsize * (array.size - counts[self.comm.rank])
        self.comm.Alltoallv(slices, pieces)

    def Allgatherv(self, total, slices):
        self.bytes += total.nbytes * (self.comm.size - 1)
        self.comm.Allgatherv(total, slices)


def sent(world, model, x, target):
    """The bytes that leave all ranks in a step."""
    with pytest.MonkeyPatch.context() as patch:
        places = [(model.row, "comm"), (model._sum, "_comm")]
        counted = [Counted(getattr(*place)) for place in places]
        for place, comm in zip(places, counted, strict=True):
            patch.setattr(*place, comm)
        model.step(x, target, 0.1)
    return world.comm.allreduce(sum(comm.bytes for comm in counted))


def versions(world):
    """Whatever version computes the layers of a rank: an epoch is that of a network,
    and as many bytes go from rank to rank.
    """
    data = lk.Dataset(example(3, 7, 2), example(7, 1))
    alone = lk.network("numpy", SMALL)
    steps = STEPS | {"epochs": 1, "batch_size": 4}
    want, theta = lk.train(alone, data, **steps).loss, alone.params().arrays()
    for options, count in COMPUTED[world.size]:
        for version in VERSIONS:
            model = Parallel(SMALL, world, version=version, **options)
            made = [stage.network.name for stage in model.local.values()]
            assert made == [version]
            losses = lk.train(model, data, **steps).loss
            np.testing.assert_allclose(losses, want, rtol=1e-5)
            compare(model.gather(), theta, TOLERANCE[SMALL.dtype])
            assert sent(world, model, *data.batch(range(4))) == count


def gpus(world):
    """Process r takes device r % count, whatever the World of a model is; none for a
    version without one.
    """
    alone = World(world.MPI.COMM_SELF)
    for count in (1, 2, 3):
        with pytest.MonkeyPatch.context() as patch:
            asked = []
            patch.setattr(device.cuda, "gpus", ["a device"] * count)
            patch.setattr(device.cuda, "select_device", asked.append)
            for version in ("numba-fused", "numpy"):
                Parallel(SMALL, world, version=version)
            assert not asked
            for among in (world, alone):
                Parallel(SMALL, among, version="cuda-fused")
            assert asked == [world.rank % count] * 2


# By the number of ranks: what they train with.
MODELS = {
    1: [{}, {"micro_batches": 5}],  # more than the last mini-batch has samples
    2: [
        {},
        {"stages": [1, 1, 1], "micro_batches": 4},
        {"embedding": example(7, 6), "stages": [1, 3]},
    ],
    3: [{"batch_size": 2}, {"stages": [1, 1, 1], "micro_batches": 5}],
    4: [{"stages": [2, 1], "micro_batches": 3}],
}


def trained(params, world, batch_size=15, **options):
    """The losses of the epochs, and all parameters at the end."""
    model = Parallel(params, world, loss="symbols", **options)
    history = lk.train(model, STRINGS, **STEPS | {"batch_size": batch_size})
    return history.loss, model.gather()


def models(world):
    """Ranks train as the definition says, and with the same bits each time."""
    for options in MODELS[world.size]:
        embedding = options.get("embedding")
        inputs = 7 if embedding is None else embedding.shape[1]
        params = lk.Params.init(inputs, 16, num_layers=2, output_size=7)
        losses, named = trained(params, world, **options)
        again, bits = trained(params, world, **options)
        assert losses == again
        if embedding is None:
            want = trained_by_definition(params, options.get("batch_size", 15))
        else:
            single = World(world.MPI.COMM_SELF)
            want = trained(params, single, embedding=embedding)
        np.testing.assert_allclose(losses, want[0], rtol=1e-5)
        assert named.keys() == want[1].keys()
        same(named, bits)
        for name, array in want[1].items():
            near = {"rtol": 1e-4, "atol": 2e-6, "err_msg": name}
            np.testing.assert_allclose(named[name], array, **near)


def diverged(world):
    """A step that is too large is a DivergedError on every rank, and all go on."""
    large = STEPS | {"learning_rate": 3e38}
    for stages, optimizer in ((None, "adam"), ([1, 2], "sgd")):
        model = Parallel(reber(), world, stages=stages, loss="symbols")
        before = model.params().arrays()
        with pytest.raises(lk.DivergedError):
            lk.train(model, STRINGS, **large, optimizer=optimizer)
        same(model.params().arrays(), before)
        lk.train(model, STRINGS, **STEPS)
    # Parameters of the last rank alone overflow.
    params = lk.Params.init(2, 4, output_size=1)
    params.V *= 1e-6
    model, x = Parallel(params, world, stages=[1, 1]), example(3, 4, 2)
    with pytest.raises(lk.DivergedError):
        model.step(x, np.full((4, 1), 1e3, "f"), 3e37)
    # The gradient that goes to the first stage overflows, the loss does not.
    params.V *= 1e28
    for array in vars(params.layers[0]).values():
        array *= 1e-2
    model = Parallel(params, world, stages=[1, 1])
    before = model.params().arrays()
    assert np.isnan(model.step(x, np.zeros((4, 1), "f"), 1e-30))
    same(model.params().arrays(), before)


def checkpoints(world):
    """A path is a checkpoint of all ranks; one of another run is refused with the
    reason, on every rank.
    """

    def train(params=None, model=None, **options):
        model = {"stages": [1, 2], "loss": "symbols"} | (model or {})
        model = Parallel(params or reber(), world, **model)
        lk.train(model, STRINGS, **STEPS | options)
        return model.gather()

    def another(name):
        return rf"checkpoint: .* another run, got {{'{name}': [^:]*}}, want"

    ends = []

    def end(history, _):
        ends.append(history.epochs)
        return world.rank == 0 and history.epochs == 2

    train(epochs=9, on_epoch=end)
    assert ends == [1, 2]  # on every rank
    with tempfile.TemporaryDirectory() as folder:
        file = world.comm.bcast(str(Path(folder, "state.npz")))
        train(epochs=1, checkpoint=file)
        wider = lk.Params.init(7, 8, num_layers=2, output_size=7)
        for changed in ({"params": wider}, {"optimizer": "adam"}):
            with pytest.raises(ValueError, match=r"checkpoint: .*(another|want)"):
                train(**changed, checkpoint=file, resume=True)
        for name, value in (
            ("micro_batches", 2),
            ("stages", [2, 1]),
            ("stages", None),
            ("version", "numpy"),
        ):
            with pytest.raises(ValueError, match=another(name)):
                train(model={name: value}, checkpoint=file, resume=True)
        same(train(checkpoint=file, resume=True), train())
        # The same examples suit either loss: rows of one symbol, all of length 3
        single = lk.Params.init(1, 4, output_size=1)
        data = lk.Dataset(np.ones((3, 20, 1), "f"), np.full((20, 1), 3, "f"))
        for name, first, then in (
            ("ranks", {"world": World(world.MPI.COMM_SELF)}, {"world": world}),
            ("loss", {"loss": "last"}, {"loss": "symbols"}),
        ):
            path = f"{file}.{name}.npz"
            if name == "loss" or world.rank == 0:
                lk.train(Parallel(single, **first), data, **STEPS, checkpoint=path)
            world.comm.Barrier()
            options = STEPS | {"checkpoint": path, "resume": True}
            with pytest.raises(ValueError, match=another(name)):
                lk.train(Parallel(single, **then), data, **options)
        world.comm.Barrier()


def programs(world):
    """What pages 07 and 08 measure are rows of a results file, on rank 0; a way whose
    gradients or bits are wrong is not timed.
    """
    small = {"layers": 3, "hidden": 8, "symbols": 5, "steps": 3, "batch": 8}
    ways = {"partitions": [[1, 4]], "around": [[1] * 5, [2, 1, 2]], "micro_batches": 3}
    text = {"counts": [1, 3], "N": 40, "hidden": 8, "batch": 8, "stages": None}
    parts = [devices.steps(world, repeats=2, **ways, **small)]
    parts.append(devices.buckets(world, repeats=2, **text))
    handed = handover.both(world, few=True)
    if world.rank == 0:
        for rows in parts:
            assert set(rows) <= set(results.COLUMNS)
            assert {"version", "stage", "repeat", "seconds", "ranks"} <= set(rows)
            assert (rows["seconds"] >= 0).all()
        ways = {"line", "message", "window", "messages", "collective", "threads"}
        assert ways | {"one thread", "two halves"} <= set(handed["case"])
        assert (handed["seconds"] > 0).all()
    case = devices.Example(**small)
    inputs, wanted, count = case.data
    made = {"one rank": case.parallel(World(world.MPI.COMM_SELF))}
    made["round"] = case.parallel(world, [1] * 5, 2)
    made["one rank"].descend(inputs, wanted, count, 1.0)
    made["round"].descend(inputs[:, 2:], wanted[:, 2:], count, 1.0)
    with pytest.raises(MismatchError):
        devices._errors(world, made)


def training(world):
    """Train a pipeline for 8 epochs, and go on from a checkpoint that is there; its
    path is a word of the command line.
    """

    def tell(history, _):
        if world.rank == 0:
            print(f"epoch {history.epochs}: loss {history.loss[-1]!r}", flush=True)

    model = Parallel(reber(), world, stages=[1, 2], loss="symbols")
    data = strings.one_hot(strings.reber(200))
    file = sys.argv[2]
    resume = world.comm.bcast(Path(file).exists())
    options = {"checkpoint": file, "resume": resume, "on_epoch": tell}
    lk.train(model, data, 8, 16, 0.01, optimizer="adam", progress=False, **options)


def waiting(world):
    """Rank 0 waits for ever, for units or a message of rank 1, which interrupts it."""
    run = rnn.Units(lk.Params.init(2, 256), world).bound(example(30, 1, 2))
    run()
    pid = world.comm.bcast(os.getpid())
    if world.rank == 1:
        time.sleep(1)
        os.kill(pid, signal.SIGINT)
        time.sleep(60)
    elif sys.argv[2] == "units":
        run()
    else:
        world.comm.recv(source=1)


def sleeping(world):
    """Both ranks are there, until they are ended."""
    world.comm.Barrier()
    print(f"mpiexec {os.getppid()}", flush=True)
    time.sleep(60)


def parting(world):
    """Rank 0 comes to its end, and the others take a step."""
    model = Parallel(SMALL, world)
    if world.rank:
        model.step(example(3, 4, 2), example(4, 1), 0.1)


def every(world):
    """What this number of ranks can do of the above."""
    chosen = {2: [sums, units, cores, refused, compared, memory, diverged, checkpoints]}
    chosen[2] += [programs, versions, gpus]
    chosen[3] = [sums, units, cores, refused, compared]
    chosen[4] = [versions, gpus]
    for program in [models, *chosen.get(world.size, [])]:
        program(world)


if __name__ == "__main__":
    main(globals()[sys.argv[1]])

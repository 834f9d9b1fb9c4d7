"""What tests/test_ranks.py runs on several ranks: a function of their World, which
raises on the rank that finds something wrong, and that ends the job.
"""

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu.packing import Layout
from lstm_kernels.cpu.partitions import Partition
from lstm_kernels.errors import check_int
from lstm_kernels.gpu import device
from lstm_kernels.ranks import rnn
from lstm_kernels.ranks.parallel import Parallel
from lstm_kernels.ranks.world import CORES, Sum, World
from lstm_report.experiments import devices, handover, mpi_loops
from lstm_report.measure import results
from lstm_report.measure.comparer import TOLERANCE, compare
from lstm_report.studies import strings

if device.SIMULATED:
    sys.setswitchinterval(1e-4)  # its threads often wait for each other
STEPS = {"epochs": 2, "batch_size": 4, "learning_rate": 0.5, "progress": False}
STRINGS = strings.one_hot(strings.reber(40))


def example(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def reber(H=16, D=7):
    return lk.Params.init(D, H, num_layers=2, output_size=7)


def same(named, others):
    for name, array in others.items():
        np.testing.assert_array_equal(named[name], array, err_msg=name)


def sums(world):
    """Sums have the bits of adding the ranks' arrays in their order, at any size."""
    for dtype, n in (("f", 1), ("f", 70_001), ("d", world.size + 1)):
        array = example(n, dtype=np.dtype(dtype), seed=world.rank)
        want = sum(world.comm.allgather(array), start=np.zeros(n, dtype))
        Sum(world, array).run()
        np.testing.assert_array_equal(array, want)


def units(world):
    """Ranks that share the units of a layer have the bits of one process, by every
    means; an output stays as it is, and so does h of a Pass, which can run again.
    """
    pairs = []
    for cell, dtype in (("rnn", np.float32), ("lstm", np.float64), ("gru", np.float32)):
        least = Layout(CELLS[cell], np.dtype(dtype), 1024).units * world.size
        for H in (least - 1, least + 1):
            params = lk.Params.init(5, H, cell=cell, dtype=dtype)
            net, runs = lk.network("numba-fused", params, threads=1), []
            shared = rnn.Units(params, world)
            for T, B in ((4, 1), (7, 3), (1, 1), (4, 1)):
                x = example(T, B, 5, dtype=dtype, seed=len(runs))
                want = net.forward(x)[0]
                pairs.append((shared.forward(x), want))
                runs.append((mpi_loops.bound(params, world, x), want))
                runs.append((shared.bound(x), want))
            for run, _ in [*runs, *reversed(runs)]:
                run.h[1:] = np.nan
                world.comm.Barrier()  # before a rank writes, it is NaN for all
                run()
            pairs += [(run.h[1:, :, :H], want) for run, want in runs]
    world.comm.Barrier()
    for y, want in pairs:
        np.testing.assert_array_equal(y, want)


def cores(world):
    """Ranks have equal shares of the cores; where there are too few they take turns."""
    if count := len(CORES):  # else the system does not tell
        low, high = (count * r // world.size for r in (world.rank, world.rank + 1))
        share = CORES[low:high] if world.size <= count else [CORES[world.rank % count]]
        assert sorted(os.sched_getaffinity(0)) == share


def memory(world):
    """A window is zeros from the start of a page, the same for all and its own, as long
    as an array over it is left; many models and passes in turn take no more than one.
    """
    windows, rows = [world.window(count) for count in (1, 64, 1000)], set()
    for k, window in enumerate(windows):
        assert (window.size, window.ctypes.data % 4096) == ((1, 64, 1000)[k], 0)
        assert not window.any()
        world.comm.Barrier()
        window[world.rank % len(window)] = 7 + k
    world.comm.Barrier()
    for k, window in enumerate(windows):
        assert (window == 7 + k).sum() == min(world.size, len(window))
    shared, kept = rnn.Units(lk.Params.init(2, 256), world), windows[1][: world.size]
    del windows, window
    before = mapped()
    for T in range(64, 80):
        world.window(T)[:] = 5
        shared.forward(example(T, 8, 2))
        rows.add(Parallel(reber(), world, stages=[3]).row)
    assert len(rows) == 1  # a communicator
    assert (kept == 8).all()
    assert mapped() - before < 4


def mapped():
    """How many windows this process has, where the system tells."""
    maps = Path("/proc/self/maps")
    return maps.read_text().count("/window") if maps.exists() else 0


def refused(world):
    """What is other or wrong on the last rank is named on every rank before anything is
    computed, and all go on.
    """
    P, odd = world.size, world.rank == world.size - 1
    few, read = lk.Params.init(2, 64 * P), lk.Params.init(2, 4, output_size=1)
    x, y, E = example(3, 4, 2), example(4, 1), example(7, 5)
    few_2, read_2, data = few.copy(), read.copy(), lk.Dataset(x, y)
    few_2.layers[0].W[-1, -1] += 1
    read_2.V[-1] *= -1
    shared, model = rnn.Units(few, world), Parallel(read, world)
    line = Parallel(reber(), world, stages=[1, 1, 1], loss="symbols")
    alone = Parallel(read_2 if odd else read, World(world.MPI.COMM_SELF)).params()
    spoilt, ways = model.params(), (Partition("units"), Partition("samples"))
    spoilt.named["layers.0.b"][:1] = np.nan if odd else 0

    def one(usual, other):
        return other if odd else usual

    def train(data=STRINGS, **options):
        return lk.train(line, data, **STEPS | options)

    def make(params=read, **options):
        return Parallel(params, world, **options)

    def step(x=x, y=y, rate=0.1):
        return model.step(x, y, rate)

    def epoch(order=range(4), size=2):
        return model.epoch(data, order, size, 0.1)

    check = partial(check_int, "an epoch")
    other = f"got .* on rank 0, .* on rank {P - 1}, want the same on every rank"
    for name, words, call in (
        ("layers.0.W", other, lambda: rnn.Units(one(few, few_2), world)),
        ("x", other, lambda: shared.forward(one(x, x[:2]))),
        ("partition", other, lambda: shared.bound(x, one(*ways))),
        ("count", other, lambda: world.window(one(8, 16))),
        ("array", other, lambda: Sum(world, np.zeros(one(8, 16)))),
        ("V", other, lambda: make(one(read, read_2))),
        ("E", other, lambda: make(reber(4, 5), loss="symbols", embedding=one(E, -E))),
        ("stages", other, lambda: make(stages=one([2], [1, 1]))),
        ("V", other, lambda: model.assign(alone)),
        ("x", other, lambda: model.loss_and_grads(one(x, -x), y)),
        ("target", other, lambda: step(y=one(y, -y))),
        ("learning_rate", other, lambda: step(rate=one(0.1, 0.2))),
        ("order", other, lambda: epoch(one([0, 1], [1]))),
        ("batch_size", other, lambda: epoch(size=one(2, 3))),
        ("epochs", other, lambda: train(epochs=one(2, 3))),
        ("seed", other, lambda: train(seed=one(0, 1))),
        ("checkpoint", other, lambda: train(checkpoint=one(None, "none.npz"))),
        ("call", other, lambda: world.window(8) if odd else step()),
        ("params", "got 1 unit block", lambda: rnn.Units(lk.Params.init(2, 4), world)),
        ("params", "got 2 layers", lambda: rnn.Units(reber(), world)),
        ("partition", "got one thr", lambda: shared.bound(x, Partition("one thread"))),
        ("count", "got 0", lambda: world.window(one(1, 0))),
        ("stages", r"got \[2, 1\]", lambda: make(stages=one([1, 1], [2, 1]))),
        ("name", "got 'cuda-v9'", lambda: make(version="cuda-v9")),
        ("target", "got shape", lambda: step(y=one(y, np.tile(y, 2)))),
        ("order", "got indices -1", lambda: epoch(one([0], [-1]))),
        ("layers.0.b", "got nan at index", lambda: model.assign(spoilt)),
        ("dataset", "got", lambda: train(one(STRINGS, None))),
        ("an epoch", "got 0", lambda: train(on_epoch=lambda *_: check(one(1, 0)))),
    ):
        with pytest.raises((TypeError, ValueError), match=f"{name}: {words}"):
            call()
    same(model.params().arrays(), read.arrays())
    assert not Path("none.npz").exists()

    class Two(Exception):  # which pickle cannot make again
        def __init__(self, a, b):
            super().__init__(f"{a} {b}")

    def fails():
        if odd:
            raise Two("the", "cause")

    with pytest.raises(Two if odd else RuntimeError, match="the cause"):
        world.agreed(fails)


class Counted:
    """A communicator that counts the numbers which leave its rank."""

    total = 0

    def __init__(self, comm):
        self.comm = comm

    def __getattr__(self, name):
        return getattr(self.comm, name)

    def Split(self, colour):
        return Counted(self.comm.Split(colour))

    def Isend(self, value, to):
        Counted.total += value.size * (to != self.comm.rank)
        return self.comm.Isend(value, to)

    def Alltoallv(self, slices, pieces):
        Counted.total += slices[0].size - slices[1][self.comm.rank]
        self.comm.Alltoallv(slices, pieces)

    def Allgatherv(self, part, slices):
        Counted.total += part.size * (self.comm.size - 1)
        self.comm.Allgatherv(part, slices)


# By the number of ranks: a cell, how a model is divided, and the numbers that leave all
# ranks in a step of 4 samples of 3 steps. A border of stages has 3 x 4 x 3 cross it, both
# ways; of two replicas all parameters cross, and their sums.
PIPELINE, REPLICAS = {"stages": [1, 2], "micro_batches": 2}, {"micro_batches": 2}
MODELS = {
    2: [
        ("lstm", PIPELINE, 72),
        ("gru", {"stages": [1, 1, 1], "micro_batches": 3}, 144),
        ("rnn", {"version": "numpy"}, 86),
        ("lstm", REPLICAS | {"version": "cuda-fused"}, 320),
        ("lstm", PIPELINE | {"version": "cuda-fused"}, 72),
        ("lstm", PIPELINE | {"loss": "symbols"}, None),
        (
            "rnn",
            {"loss": "symbols", "embedding": example(7, 3), "stages": [1, 3]},
            None,
        ),
        ("gru", {"loss": "symbols", "embedding": example(7, 3)}, None),
    ],
    4: [("lstm", PIPELINE, 72 + 320)],
}


def models(world):
    """Ranks train as one does, whose gradients are those of a network, with the same
    bits each time, whatever version computes their layers; so many numbers are sent.
    """
    counted, single = World(Counted(world.comm)), World(world.MPI.COMM_SELF)
    for cell, options, numbers in MODELS[world.size]:
        form = {k: options[k] for k in ("loss", "embedding") if k in options}
        data = STRINGS if form else lk.Dataset(example(3, 7, 2), example(7, 1))
        D, O = (3 if "embedding" in form else data.x.shape[2]), 7 if form else 1
        params = lk.Params.init(D, 3, num_layers=2, output_size=O, cell=cell)
        alone, runs = Parallel(params, single, version="numpy", **form), []
        want = lk.train(alone, data, **STEPS).loss
        for _ in range(2):
            model = Parallel(params, counted, **options)
            runs.append((lk.train(model, data, **STEPS).loss, model.gather()))
        (losses, named), (again, bits) = runs
        np.testing.assert_allclose(losses, want, rtol=1e-5)
        compare(named, alone.gather(), TOLERANCE[params.dtype])
        assert losses == again
        same(named, bits)
        names = {stage.network.name for stage in model.local.values() if stage.network}
        assert names <= {options.get("version", "numba-fused")}
        Counted.total = 0
        model.step(*data.batch(range(4)), 0.1)
        assert numbers in (None, world.comm.allreduce(Counted.total))


def gpus(world):
    """Process r takes device r % count, whatever the World of a model is; none for a
    version without one.
    """
    params, asked = lk.Params.init(2, 3, output_size=1), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device.cuda, "select_device", asked.append)
        for count in (1, 2, 3):
            patch.setattr(device.cuda, "gpus", ["a device"] * count)
            Parallel(params, world, version="numpy")
            Parallel(params, World(world.MPI.COMM_SELF), version="cuda-fused")
    assert asked == [world.rank % count for count in (1, 2, 3)]


def diverged(world):
    """A step that is too large is a DivergedError on every rank, and all go on."""
    for stages in (None, [1, 2]):
        model = Parallel(reber(), world, stages=stages, loss="symbols")
        before = model.params().arrays()
        with pytest.raises(lk.DivergedError):
            lk.train(model, STRINGS, **STEPS | {"learning_rate": 3e38})
        same(model.params().arrays(), before)
        lk.train(model, STRINGS, **STEPS)
    # Parameters of the last rank alone overflow.
    params, x = lk.Params.init(2, 4, output_size=1), example(3, 4, 2)
    params.V *= 1e-6
    model = Parallel(params, world, stages=[1, 1])
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


def checkpoints(world, folder):
    """A path is a checkpoint of all ranks, which end where one does; one of another run
    is refused with the reason, on every rank.
    """
    ends, options = [], {"checkpoint": Path(folder, "state.npz")}
    form = {"stages": [1, 2], "micro_batches": 1, "loss": "symbols"}

    def end(history, _):
        ends.append(history.epochs)
        return history.epochs == 2

    model, last = Parallel(reber(), world, **form), world.rank == world.size - 1
    options["on_epoch"] = end if last else None
    history = lk.train(model, STRINGS, **STEPS | options | {"epochs": 9})
    assert history.epochs == 2
    assert ends == [1, 2] * last
    for name, value in (
        ("micro_batches", 2),
        ("stages", [2, 1]),
        ("stages", None),
        ("version", "numpy"),
    ):
        model = Parallel(reber(), world, **form | {name: value})
        words = rf"checkpoint: .* another run, got {{'{name}': [^:]*}}, want"
        with pytest.raises(ValueError, match=words):
            lk.train(model, STRINGS, **STEPS | options, resume=True)


def programs(world):
    """What pages 07 and 08 measure are rows of a results file, on rank 0."""
    small = {"layers": 3, "hidden": 8, "symbols": 5, "steps": 3, "batch": 8}
    ways = {"partitions": [[1, 4]], "around": [[1] * 5, [2, 1, 2]], "micro_batches": 3}
    text = {"counts": [1, 3], "sizes": [40], "hidden": 8, "batch": 8, "stages": None}
    parts = [devices.steps(world, repeats=2, **ways, **small)]
    parts.append(devices.buckets(world, repeats=2, **text))
    handed = handover.both(world, few=True)
    if world.rank == 0:
        wanted = {"version", "stage", "repeat", "seconds", "ranks"}
        for rows in parts:
            assert wanted <= set(rows) <= set(results.COLUMNS)
            assert (rows["seconds"] >= 0).all()
        assert parts[0]["max_err"].max() < 1e-3
        ways = {"line", "message", "window", "messages", "threads", "one thread"}
        assert ways <= set(handed["case"])
        assert (handed["seconds"] > 0).all()


def training(world, folder, killed=None):
    """The losses of 8 epochs of a pipeline, which goes on from a checkpoint that is
    there. Rank 1 is killed after epoch `killed`.
    """

    def kill(history, _):
        if world.rank == 1 and history.epochs == killed:
            os.kill(os.getpid(), signal.SIGKILL)

    model = Parallel(reber(), world, stages=[1, 1, 1], loss="symbols")
    file = Path(folder, "state.npz")
    options = {"checkpoint": file, "resume": world.comm.bcast(file.exists())}
    options |= {"progress": False, "on_epoch": kill}
    return lk.train(model, STRINGS, 8, 16, 0.01, **options).loss


def waiting(world, folder=None, waits="message", stops=None):
    """Rank 0 waits for ever, for a message or units of rank 1. Rank 1 sends a signal to
    a rank, `stops`, or raises. The numbers of mpiexec and the ranks go into a folder.
    """
    run = rnn.Units(lk.Params.init(2, 256), world).bound(example(30, 1, 2))
    run()
    pids = world.comm.allgather(os.getpid())
    if folder and world.rank == 0:
        Path(folder, "part").write_text(f"{os.getppid()} {pids[0]} {pids[1]}")
        Path(folder, "part").rename(Path(folder, "pids"))
    if world.rank == 1:
        time.sleep(0.5)
        if stops is None:
            raise RuntimeError("rank 1 alone")
        os.kill(pids[stops[0]], stops[1])
        time.sleep(60)
    elif waits == "units":
        run()
    else:
        world.comm.recv(source=1)


def parting(world):
    """Rank 0 comes to its end, and the others take a step."""
    model = Parallel(lk.Params.init(2, 3, output_size=1), world)
    if world.rank:
        model.step(example(3, 4, 2), example(4, 1), 0.1)


def grid(world):
    """More ranks than some machines have cores."""
    cores(world)
    models(world)


def every(world, folder):
    """All of the above that come to an end."""
    for program in (sums, units, cores, memory, refused, models, gpus):
        program(world)
    diverged(world)
    checkpoints(world, folder)
    programs(world)

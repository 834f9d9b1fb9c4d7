"""What tests/test_ranks.py runs on several ranks: `mpiexec -n 3 python rank_programs.py
parts`.

A program raises on the rank that finds something wrong, and that ends the job.
"""

import inspect
import os
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu.tiles import Tiles
from lstm_kernels.ranks import jobs, rnn
from lstm_kernels.ranks.layers import TokenParams
from lstm_kernels.ranks.world import CORES, Sum, Sums, World, main, take_cores
from lstm_kernels.schedules import PIPELINES
from lstm_kernels.strings import NextSymbol, Reber, one_hot
from lstm_report.experiments import rank_speed as measure
from lstm_report.measure import results

ONE_AND_ONE = PIPELINES[1]


def example(T, B, D, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal((T, B, D)).astype(dtype)


def sums(world):
    """Sums have the bits of adding the ranks' arrays in their order, whatever their
    size.
    """
    for dtype in (np.float32, np.float64):
        for n in (1, world.size - 1, world.size, world.size + 1, 1000, 70_001):
            mine = example(1, 1, max(n, 1), dtype, world.rank)[0, 0]
            every = world.comm.allgather(mine.copy())
            want = every[0].copy()
            for other in every[1:]:
                want += other
            now = mine.copy()
            Sum(world, now).run()
            np.testing.assert_array_equal(now, want)
            later, threads = [mine.copy() for _ in range(3)], Sums(world)
            for name, array in enumerate(later):
                threads.start(array, name)
            assert list(threads.completed()) == [0, 1, 2]
            threads.close()
            for array in later:
                np.testing.assert_array_equal(array, want)


def units(world):
    """Ranks that share the units of a layer have the bits of one process, by every
    means.
    """
    for cell in CELLS:
        for dtype in (np.float32, np.float64):
            least = Tiles(CELLS[cell], np.dtype(dtype), 1024).units * world.size
            for H in (least - 1, least, least + 1):
                params = lk.Params.init(5, H, cell=cell, dtype=dtype)
                net = lk.network("numba-fused", params, threads=1)
                for means in rnn.MEANS:
                    ours = rnn.Units(params, world, means)
                    # Shapes in turn, so that what one call leaves behind would show in
                    # the next.
                    for T, B in ((4, 1), (7, 3), (1, 1), (4, 1)):
                        x = example(T, B, 5, dtype, T)
                        np.testing.assert_array_equal(
                            ours.forward(x), net.forward(x)[0]
                        )


def shares(world):
    """Ranks that share samples or layers have the bits of one process."""
    for H, L in ((17, 4), (33, 5)):
        params = lk.Params.init(3, H, num_layers=L)
        net = lk.network("numba-fused", params, threads=1)
        for T, B in ((5, 1), (6, 2), (7, 9)):
            x = example(T, B, 3, np.float32)
            want, own = net.forward(x)[0], rnn.Samples(params, world).forward(x)
            low, high = world.share(B)
            assert (own is None) == (low == high)
            if own is not None:
                np.testing.assert_array_equal(own, want[:, low:high])
            for chunks in (1, 3, 20):
                y = rnn.Layers(params, world, chunks).forward(x)
                assert (y is None) == (world.rank < world.size - 1)
                if y is not None:
                    np.testing.assert_array_equal(y, want)


def cores(world):
    """Ranks share the cores of their machine out: one each, or several, or they take
    turns.
    """
    if not (count := len(CORES)):  # the system does not tell
        return
    own = sorted(os.sched_getaffinity(0))
    if world.size <= count:
        low, high = world.share(count)
        assert own == CORES[low:high]
    else:
        assert own == [CORES[world.rank % count]]
    take_cores()
    assert sorted(os.sched_getaffinity(0)) == CORES
    take_cores(*world.near)
    assert sorted(os.sched_getaffinity(0)) == own


def windows(world):
    """A window begins at a line of the cache, is zero, and is the same memory for
    all.
    """
    for count in (1, 64, 1000):
        memory, _ = world.window(count)
        assert memory.shape == (count,)
        assert memory.ctypes.data % 64 == 0
        assert not memory.any()
        world.comm.Barrier()
        memory[world.rank % count] = 7
        world.comm.Barrier()
        assert (memory == 7).sum() == min(world.size, count)


def refused(world):
    """What the ranks cannot share is refused on each, with the reason."""
    small, deep = lk.Params.init(2, 4), lk.Params.init(2, 64, num_layers=2)
    for make, message in (
        (
            lambda: rnn.Units(small, world, "window"),
            f"got {world.size} ranks for 1 unit blocks",
        ),
        (lambda: rnn.Units(deep, world, "window"), "params: got 2 layers, want 1"),
        (
            lambda: rnn.Units(small, World(world.MPI.COMM_SELF), "mail"),
            "means: got 'mail'",
        ),
        (lambda: rnn.Layers(small, world, 2), f"got {world.size} ranks for 1 layers"),
        (lambda: world.agree("size", world.rank), "size: got"),
        (
            lambda: measure.speed(world, "data later"),
            "ways: got 'data later', want 'one rank'",
        ),
        (
            lambda: measure.speed(world, "8 fill-drain 2 loops x"),
            "ways: got '8 fill-drain 2 l",
        ),
        (lambda: measure.speed(world, "8 fill-drain 0+5"), "ways: got 0"),
        (
            lambda: measure.costs(world, samples="8,,2"),
            "samples: got '8,,2', want integers",
        ),
        (lambda: measure.partitions(world, cores="0,0,0,0,0"), "want one for each of"),
        (lambda: jobs.training(world, stages="2+1"), "stages: got '2+1'"),
        (lambda: jobs.training(world, buckets=-1), "buckets: got -1"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            make()


def parts(world):
    """All of the above."""
    for program in (sums, units, shares, cores, windows, refused):
        program(world)


# By the number of ranks: what they train with, beside STEPS.
MODELS = {
    1: [{}, {"stages": "1,2", "loops": 2, "micro_batches": 3}],
    2: [
        {},
        {"layers": 3, "stages": "1,1,1,1", "loops": 2, "micro_batches": 3},
        {"stages": "1,2", "micro_batches": 4},
        {"symbols": 6, "stages": "1,3"},
    ],
    3: [
        {"overlap": 0},
        {"batch": 2, "strings": 5},
        {"stages": "1,1,1", "micro_batches": 5, "order": ONE_AND_ONE},
    ],
    4: [
        {"stages": "2,1", "micro_batches": 3},
        {"layers": 3, "stages": "1,1,1,1", "loops": 2, "micro_batches": 2},
        {"symbols": 6, "stages": "1,1,1,1"},
    ],
}
STEPS = {
    "layers": 2,
    "strings": 64,
    "epochs": 2,
    "batch": 15,
    "rate": 0.5,
    "optimizer": "sgd",
}


def trained(world, **options):
    """The losses of the epochs, and all parameters at the end."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "params.npz")
        rows = jobs.training(world, **STEPS | options, save=str(file))
        if world.rank:
            return None, None
        kind = TokenParams if "symbols" in options else lk.Params
        return rows["loss"].tolist(), kind.load(file).arrays()


def of_one_process(strings, epochs, batch, rate, layers, **_):
    """The same training by the network of one process."""
    params = lk.Params.init(7, 16, num_layers=layers, output_size=7, seed=0)
    net = lk.network("numba-fused", params, threads=1)
    dataset = one_hot(Reber().strings(strings, seed=0))
    how = {"optimizer": "sgd", "seed": 0, "progress": False}
    history = lk.train(NextSymbol(net), dataset, epochs, batch, rate, **how)
    return history.loss, net.params().arrays()


def models(world):
    """Ranks train as one process does, and with the same bits each time."""
    alone = World(world.MPI.COMM_SELF)
    for options in MODELS[world.size]:
        got, again = trained(world, **options), trained(world, **options)
        if world.rank == 0:
            assert got[0] == again[0]
            want = of_one_process(**STEPS | options)
            if "symbols" in options:
                want = trained(alone, symbols=options["symbols"])
            np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
            for name, array in want[1].items():
                np.testing.assert_array_equal(
                    got[1][name], again[1][name], err_msg=name
                )
                near = {"rtol": 1e-4, "atol": 2e-6, "err_msg": name}
                np.testing.assert_allclose(got[1][name], array, **near)
        world.comm.Barrier()


def checkpoints(world):
    """A checkpoint of another run is refused with the reason, on every rank."""
    with tempfile.TemporaryDirectory() as folder:
        file = world.comm.bcast(str(Path(folder, "state.npz")))
        how = STEPS | {"epochs": 1, "checkpoint": file}
        jobs.training(world, **how)
        with pytest.raises(FileExistsError, match="want resume=True or another path"):
            jobs.training(world, **how)
        for changed in (
            {"micro_batches": 2},
            {"order": ONE_AND_ONE},
            {
                "stages": "1," * (world.size - 1) + str(4 - world.size),
                "loops": world.size,
            },
            {"overlap": 0},
            {"version": "numpy"},
            {"stages": ",".join("1" * world.size), "layers": world.size - 1},
            {"hidden": 8},
            {"layers": 1},
            {"cell": "gru"},
            {"seed": 1},
            {"batch": 16},
            {"optimizer": "adam"},
            {"strings": 65},
        ):
            with pytest.raises(ValueError, match=r"checkpoint: .*(another|want)"):
                jobs.training(world, **how | changed, resume=1)
        world.comm.Barrier()
        if world.rank == 0:
            with pytest.raises(ValueError, match=r"'ranks': 2.*want .*'ranks': 1"):
                jobs.training(World(world.MPI.COMM_SELF), **how, resume=1)
        world.comm.Barrier()


SMALL = {
    "handover": {"sizes": "8,4096", "turns": 20},
    "sums": {"sizes": "8,4096"},
    "inference": {"hidden": "128", "steps": 4, "batch": 2},
    "speed": {
        "layers": 2,
        "hidden": 8,
        "steps": 3,
        "batch": 16,
        "ways": "data,2 fill-drain 1+2",
    },
    "costs": {"layers": 1, "hidden": 8, "symbols": 5, "steps": 3},
    "partitions": {"layers": 1, "hidden": 8, "symbols": 5, "steps": 3},
    "memory": {"layers": 2, "hidden": 8, "symbols": 5, "steps": 3},
    "bucketing": {"counts": "1,3", "strings": 40, "hidden": 8},
    "training": {"task": "airline", "epochs": 2, "hidden": 4, "checkpoint": ""},
}


def programs(world):
    """Every program returns rows of a results file, on rank 0."""
    for name, program in jobs.PROGRAMS.items():
        few = (
            {"repeats": 2} if "repeats" in inspect.signature(program).parameters else {}
        )
        rows = program(world, **few, **SMALL[name])
        if world.rank == 0:
            assert len(rows), name
            assert set(rows) <= set(results.COLUMNS), name
            assert {"version", "stage", "repeat", "seconds", "ranks"} <= set(rows), name
            assert (rows["seconds"] >= 0).all(), name


def wrong(world):
    """A fault on one rank, which the tests must see."""
    if world.rank == world.size - 1:
        np.testing.assert_array_equal(np.ones(2), np.zeros(2))
    world.comm.Barrier()


if __name__ == "__main__":
    main(globals()[sys.argv[1]])

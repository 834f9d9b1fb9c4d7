"""What each idea of `numba-fused` is worth, one after the other, and the loop it comes down to."""

import ctypes
import timeit
from functools import partial

import numpy as np
import pandas as pd

from ..cells import CELLS
from ..cpu import activations, cost, registers, simd, workspace
from ..cpu.tiles import Tiles
from ..params import Params
from ..versions import numba_fused
from . import assembly, experiments
from .comparer import MismatchError
from .timing import interleaved, summary

B = 64
FLOAT = np.dtype(np.float32)


def _function(tile, lanes, label):
    """A tile as a Python function of integers."""
    address = simd.compiled(tile, FLOAT, lanes, label)
    count = tile.__code__.co_argcount - 1
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * count)(address)


def product(tiles, height, W_row, gate):
    """A tile a += h W of some height: W's rows W_row bytes apart, its gates `gate` bytes."""
    lane = tiles.lanes * FLOAT.itemsize

    def product(m, rows, h, row, H, W, a):
        def tile(first, count):
            at = [a + first * tiles.row + i * tiles.row for i in range(count)]
            sums = [[m.variable(m.load(a_i + g * lane)) for g in range(4)] for a_i in at]
            offsets = [g * gate for g in range(4)]
            tiles.multiply(m, sums, h + first * row, row, FLOAT.itemsize, W, W_row, H, offsets)
            for a_i, sums_i in zip(at, sums, strict=True):
                for g, total in enumerate(sums_i):
                    m.store(a_i + g * lane, m.get(total))

        m.tiles(rows, height, tile)

    return product


def cell_pass(tiles):
    """The cell on pre-activations that were stored."""

    def cell_pass(m, rows, a, row, c_prev, c, h):
        def tile(first, count):
            nothing = [{} for _ in range(count)]
            tiles.apply(m, nothing, False, a + first * tiles.row, row, c_prev, c, h, first)

        m.tiles(rows, 4, tile)

    return cell_pass


def step_forms(H=512, seed=0):
    """The step h W and the cell, of one layer with H units and 64 samples, on one thread.

    Returns functions by name, each adding one idea to the one before, and a function that checks
    that they compute the same.
    """
    tiles = Tiles(CELLS["lstm"], FLOAT, H)
    lane, row, blocks = tiles.lanes * 4, H * 4, tiles.blocks
    new = lambda *shape: workspace.buffer(*shape, dtype=FLOAT)  # noqa: E731
    rng = np.random.default_rng(seed)
    W, packed, a = new(H, 4 * H), new(blocks, H, 4, tiles.lanes), new(blocks, B, 4, tiles.lanes)
    W[:] = rng.uniform(-1, 1, W.shape) / np.sqrt(H)
    packed[:] = W.reshape(H, 4, blocks, tiles.lanes).transpose(2, 0, 1, 3)
    h, c, h_new, c_new = (new(B, H) for _ in range(4))
    h[:], c[:] = rng.uniform(-1, 1, (2, B, H))
    arrays = {"W": W, "packed": packed, "a": a, "h": h, "c": c, "h_new": h_new, "c_new": c_new}
    here = {name: array.ctypes.data for name, array in arrays.items()}
    high, wide = registers.tile_rows(4), 4 * row
    calls = {
        "a row at a time": _function(product(tiles, 1, wide, row), tiles.lanes, f"rows_{H}"),
        "register tile": _function(product(tiles, high, wide, row), tiles.lanes, f"tile_{H}"),
        "packed": _function(product(tiles, high, 4 * lane, lane), tiles.lanes, f"packed_{H}"),
        "cell": _function(cell_pass(tiles), tiles.lanes, f"cell_{H}"),
        "fused": _function(tiles.step(False), tiles.lanes, f"fused_{H}"),
    }

    def form(name, weights, block):
        def run(arrays=arrays):
            arrays["a"][:] = 0
            for j in range(blocks):
                a_j = here["a"] + j * a[0].nbytes
                calls[name](B, here["h"], row, H, here[weights] + j * block, a_j)
            for j in range(blocks):
                a_j, unit = here["a"] + j * a[0].nbytes, j * lane
                out = here["c"] + unit, here["c_new"] + unit, here["h_new"] + unit
                calls["cell"](B, a_j, row, *out)

        return run

    def fused(arrays=arrays):
        arrays["a"][:] = 0
        for j in range(blocks):
            a_j, unit, W_j = here["a"] + j * a[0].nbytes, j * lane, packed[0].nbytes * j
            out = here["c"] + unit, here["c_new"] + unit, here["h_new"] + unit
            calls["fused"](B, here["h"], row, H, here["packed"] + W_j, a_j, *out)

    forms = {
        "a row at a time": form("a row at a time", "W", lane),
        "+ register tile": form("register tile", "W", lane),
        "+ packed weights": form("packed", "packed", packed[0].nbytes),
        "+ cell in the tile": fused,
    }

    def agree():
        seen = []
        for run in forms.values():
            run()
            seen.append(arrays["h_new"].copy())  # and so the arrays live as long as their users
        return all(np.allclose(seen[0], other, atol=1e-5) for other in seen[1:])

    return forms, agree


def peak(H=64, rows=960, calls=400):
    """GFLOP/s of one core in the tile's loop with everything in cache: the best of many calls."""
    tiles = Tiles(CELLS["lstm"], FLOAT, H)
    lane = tiles.lanes * FLOAT.itemsize
    run = _function(
        product(tiles, registers.tile_rows(4), 4 * lane, lane), tiles.lanes, f"peak_{H}"
    )
    h, W, a = (workspace.buffer(n, dtype=FLOAT) for n in (rows * H, H * lane, rows * lane))
    case = partial(run, rows, h.ctypes.data, 4 * H, H, W.ctypes.data, a.ctypes.data)
    return 2 * rows * H * 4 * tiles.lanes / min(timeit.repeat(case, number=1, repeat=calls)) / 1e9


def step_times(repeats, H=512):
    """Median microseconds of a step in every form, and its rate in GFLOP/s (products only)."""
    forms, agree = step_forms(H)
    if not agree():
        raise MismatchError("the forms of a step compute different numbers")
    net = numba_fused.NumbaFused(Params.init(1, H))
    T = 21
    for split in cost.work_splits(net.tiles, T, B, net._threads):
        kind = "samples" if split.shares else "hidden units"
        if split.threads > 1:
            forms[f"+ {split.threads} threads over {kind}"] = _forward(net, T, B, split)
    times = summary(interleaved(forms, repeats=repeats))["median"][list(forms)]
    over = [name for name in forms if "threads" in name]
    times[over] /= T - 1  # the first step has no product
    rate = 2 * B * H * 4 * H / times / 1e9
    return pd.DataFrame({"microseconds": 1e6 * times, "GFLOP/s": rate})


def _forward(net, T, samples, schedule):
    """The forward pass of a network by a schedule, as a function without arguments."""
    space = workspace.Space(net, T, samples, False, schedule)
    x, final = np.zeros((T, samples, net.sizes[0]), FLOAT), np.empty(space.final_shape, FLOAT)
    return partial(net._infer, space, x, space.top, final)  # which keeps the arrays alive


def input_product(repeats, H=512, steps=100):
    """Median milliseconds of x U for all steps: by column panels, and in blocks of rows."""
    tiles = Tiles(CELLS["lstm"], FLOAT, H)
    N, blocks, new = steps * B, tiles.blocks, workspace.buffer
    x, U = new(N, H, dtype=FLOAT), new(blocks, H, 4, tiles.lanes, dtype=FLOAT)
    b, a = new(blocks, 4, tiles.lanes, dtype=FLOAT), new(blocks, N, 4, tiles.lanes, dtype=FLOAT)
    x[:], U[:] = 0.1, 0.1
    inputs = _function(tiles.inputs(), tiles.lanes, f"inputs_{H}")
    at = [array.ctypes.data for array in (x, U, b, a)]

    def part(j, first, count):
        rows = at[0] + first * x[0].nbytes
        there = at[3] + j * a[0].nbytes + first * a[0, 0].nbytes
        inputs(count, rows, x[0].nbytes, H, at[1] + j * U[0].nbytes, at[2] + j * b[0].nbytes, there)

    def panels():
        for j in range(blocks):
            part(j, 0, N)

    def row_blocks():
        for first in range(0, N, cost.INPUT_ROWS):
            for j in range(blocks):
                part(j, first, cost.INPUT_ROWS)

    cases = {"column panel by column panel": panels, "blocks of 64 rows": row_blocks}
    times = summary(interleaved(cases, repeats=repeats))["median"][list(cases)]
    return pd.DataFrame({"milliseconds": 1e3 * times, "GFLOP/s": 8 * N * H * H / times / 1e9})


def hot_loop(cell="lstm", H=512):
    """The assembly of the loop over k in the tallest step tile, and counts of its instructions."""
    tiles = Tiles(CELLS[cell], FLOAT, H)
    loops = assembly.inner_loops(simd.assembly(tiles.step(False), FLOAT, tiles.lanes))
    best = max(loops, key=lambda loop: loop.multiply_adds)
    counts = {
        "multiply-adds": best.multiply_adds,
        "of these with an operand from memory": best.from_memory,
        "vector loads": best.loads,
        "broadcasts": best.broadcasts,
        "reads and writes of the stack": best.stack,
    }
    counts["everything else"] = len(best.lines) - sum(counts.values()) + best.from_memory
    return best.lines, counts


def accuracy(count=200_000):
    """The traced float32 tanh and sigmoid: x, and by name the values (float32) and the true ones.

    x: `count` floats evenly in [-100, 20], and 2000 in each power of two from 2^-30 to 2^6.
    """
    lanes = Tiles(CELLS["lstm"], FLOAT, 1).lanes
    powers = [np.linspace(2.0**k, 2.0 ** (k + 1), 2000) for k in range(-30, 6)]
    x = np.sort(np.concatenate([np.linspace(-100, 20, count), *powers])).astype(np.float32)
    x = np.ascontiguousarray(x[: len(x) // lanes * lanes])
    values = np.empty((2, len(x)), np.float32)

    def curve(m, vectors, source, out, row):
        size = lanes * FLOAT.itemsize

        def both(i):
            for k, function in enumerate(activations.functions(m)):
                m.store(out + row * k + i * size, function(m.load(source + i * size)))

        m.loop(vectors, both)

    run = _function(curve, lanes, "accuracy")
    run(len(x) // lanes, x.ctypes.data, values.ctypes.data, x.nbytes)
    exact = x.astype(np.float64)
    true = np.tanh(exact), 1 / (1 + np.exp(-exact))
    return x, dict(zip(("tanh", "sigmoid"), zip(values, true, strict=True), strict=True))


def work_split_table(shapes, repeats):
    """Predicted and measured microseconds of every schedule for shapes (H, T, B), one layer."""
    rows = []
    for H, T, samples in shapes:
        net = numba_fused.NumbaFused(Params.init(H, H))
        costs = numba_fused.machine_costs(FLOAT, net._threads)
        found = cost.work_splits(net.tiles, T, samples, net._threads)
        runs = {schedule: _forward(net, T, samples, schedule) for schedule in found}
        times = summary(interleaved(runs, repeats=repeats, rest=0.01))["median"]
        guess = [cost.predict(costs, s, net.tiles, net.sizes, T, samples, False) for s in found]
        for schedule, seconds in zip(found, guess, strict=True):
            kind = "one thread" if schedule.threads == 1 else "samples"
            kind = kind if schedule.shares else "hidden units"
            rows.append((H, T, samples, kind, 1e6 * seconds, 1e6 * times[schedule]))
    return pd.DataFrame(rows, columns=["H", "T", "B", "divided by", "predicted", "measured"])


def rates(big, repeats):
    """Inference of every CPU version: name -> (operations per byte of weights, GFLOP/s).

    The slow versions run on the airline network, the others on `big`. A version that reads the
    weights for each sample does two operations per weight of four bytes, others two for each of the
    B samples of a step.
    """
    found = {}
    for work, names in (
        (experiments.AIRLINE, ("sequential", "numpy-sample")),
        (big, ("numpy-naive", "numpy", "numba-sample", "numba-fused")),
    ):
        rows = experiments.forwards(names, work, repeats=repeats)
        for name, seconds in rows.groupby("version")["seconds"].median().items():
            samples = work.B if name in ("numpy-naive", "numpy", "numba-fused") else 1
            found[name] = samples / 2, work.gflop / seconds
    return found

"""Notebook 04's measurements of `numba-fused`: what each idea is worth, switched on and off one
after the other, the loop it comes down to, and its model of costs.
"""

import ctypes
import timeit
from functools import partial

import numpy as np
import pandas as pd

from ..cells import CELLS
from ..cpu import activations, cost, registers, simd, workspace
from ..cpu.tiles import Tiles
from ..cpu.workspace import at
from ..params import Params
from ..versions import numba_fused
from . import assembly, experiments
from .comparer import MismatchError
from .timing import interleaved, summary

B = 64
FLOAT = np.dtype(np.float32)
new = partial(workspace.buffer, dtype=FLOAT)


def lstm_tiles(H):
    return Tiles(CELLS["lstm"], FLOAT, H)


def _function(tile, label):
    """A tile as a Python function of integers."""
    address = simd.compiled(tile, FLOAT, lstm_tiles(1).lanes, label)
    count = tile.__code__.co_argcount - 1
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * count)(address)


def product(tiles, height, W_row, gate):
    """A tile a += h W of some height: W's rows W_row bytes apart, its gates `gate` bytes."""
    offsets = [g * gate for g in range(4)]

    def product(m, rows, h, row, H, W, a):
        def tile(first, count):
            a_rows = [a + first * tiles.row + i * tiles.row for i in range(count)]  # first + i
            sums = [[m.variable(m.load(a_i + o)) for o in tiles.offsets("W")] for a_i in a_rows]
            h_first = h + first * row  # h from row `first` on
            tiles.multiply(m, sums, h_first, row, FLOAT.itemsize, W, W_row, H, offsets)
            for a_i, row_sums in zip(a_rows, sums, strict=True):
                for o, total in zip(tiles.offsets("W"), row_sums, strict=True):
                    m.store(a_i + o, m.get(total))

        m.tiles(rows, height, tile)

    return product


def cell_pass(tiles):
    """The cell on pre-activations that were stored."""

    def cell_pass(m, rows, a, row, c_prev, c, h):
        def tile(first, count):
            a_first = a + first * tiles.row  # pre-activations from row `first` on
            tiles.apply(m, [{}] * count, False, a_first, row, c_prev, c, h, first)

        m.tiles(rows, 4, tile)

    return cell_pass


def step_forms(H=512, seed=0):
    """The step h W and the cell, of one layer with H units and 64 samples, on one thread.

    Returns functions by name, each adding one idea to the one before, and a function that checks
    that they compute the same.
    """
    tiles, rng = lstm_tiles(H), np.random.default_rng(seed)
    row, line, J = (
        H * FLOAT.itemsize,
        tiles.vector_bytes,
        tiles.blocks,
    )  # bytes: of a sample, vector
    W, packed, a = new(H, 4 * H), new(J, H, 4, tiles.lanes), new(J, B, 4, tiles.lanes)
    W[:] = rng.uniform(-1, 1, W.shape) / np.sqrt(H)
    packed[:] = W.reshape(H, 4, J, tiles.lanes).transpose(2, 0, 1, 3)
    h, c, h_new, c_new = new(4, B, H)  # of one array, which lives as long as any of them
    h[:], c[:] = rng.uniform(-1, 1, (2, B, H))
    cell = _function(cell_pass(tiles), f"cell_{H}")
    fused = _function(tiles.forward("step", keep=False), f"fused_{H}")

    # Addresses of each unit block: its pre-activations, its units of c, c_new and h_new.
    a_at = [at(a) + j * a[0].nbytes for j in range(J)]
    units_at = [[at(array) + j * line for array in (c, c_new, h_new)] for j in range(J)]

    def stored(height, weights, W_row, gate, block):
        """The product, and then the cell on what it stored; block: bytes to the next one of W."""
        multiply = _function(product(tiles, height, W_row, gate), f"product_{height}_{gate}_{H}")

        def run():
            a[:] = 0
            for j in range(J):
                multiply(B, at(h), row, H, at(weights) + j * block, a_at[j])
            for j in range(J):
                cell(B, a_at[j], row, *units_at[j])

        return run

    def in_the_tile():
        a[:] = 0
        for j in range(J):
            W_j = at(packed) + j * packed[0].nbytes  # the weights of unit block j
            fused(B, *[0] * 5, a_at[j], at(h), row, H, W_j, *units_at[j])  # no x, U, b

    tallest = registers.tile_rows(4)
    forms = {
        "a row at a time": stored(1, W, 4 * row, row, line),
        "+ register tile": stored(tallest, W, 4 * row, row, line),
        "+ packed weights": stored(tallest, packed, 4 * line, line, packed[0].nbytes),
        "+ cell in the tile": in_the_tile,
    }

    def agree():
        outputs = []
        for run in forms.values():
            run()
            outputs.append(h_new.copy())
        return all(np.allclose(outputs[0], other, atol=1e-5) for other in outputs[1:])

    return forms, agree


def peak(H=64, rows=960, calls=400):
    """GFLOP/s of one core in the tile's loop with everything in cache: the best of many calls."""
    tiles = lstm_tiles(H)
    line = tiles.vector_bytes
    run = _function(product(tiles, registers.tile_rows(4), 4 * line, line), f"peak_{H}")
    h, W, a = new(rows, H), new(H, 4, tiles.lanes), new(rows, 4, tiles.lanes)
    case = partial(run, rows, at(h), h[0].nbytes, H, at(W), at(a))
    return 2 * rows * W.size / min(timeit.repeat(case, number=1, repeat=calls)) / 1e9


def step_times(repeats, H=512):
    """Median microseconds of a step in every form, and its rate in GFLOP/s (products only)."""
    forms, agree = step_forms(H)
    if not agree():
        raise MismatchError("the forms of a step compute different numbers")
    net, T = numba_fused.NumbaFused(Params.init(1, H)), 21
    for split in cost.work_splits(net.tiles, T, B, net._threads):
        if split.threads > 1:
            forms[f"+ {split.threads} threads over {_divided(split)}"] = _forward(net, T, B, split)
    times = summary(interleaved(forms, repeats=repeats))["median"][list(forms)]
    times[times.index.str.contains("threads")] /= T - 1  # the first step has no product
    rate = 2 * B * H * 4 * H / times / 1e9
    return pd.DataFrame({"microseconds": 1e6 * times, "GFLOP/s": rate})


def _divided(split):
    """What the threads of a WorkSplit share, in words."""
    return "samples" if split.shares else "hidden units"


def _forward(net, T, samples, split):
    """The forward pass of a network, its work split so, as a function without arguments."""
    space = workspace.Space(net, T, samples, "inference", split)
    x, final = np.zeros((T, samples, net.sizes[0]), FLOAT), np.empty(space.final_shape, FLOAT)
    return partial(net._infer, space, x, space.top, final)  # which keeps the arrays alive


def input_product(repeats, H=512, steps=100):
    """Median milliseconds of x U for all steps: by column panels, and in blocks of rows."""
    tiles, N = lstm_tiles(H), steps * B
    J, lanes = tiles.blocks, tiles.lanes
    x, U, b, a = new(N, H), new(J, H, 4, lanes), new(J, 4, lanes), new(J, N, 4, lanes)
    x[:], U[:] = 0.1, 0.1
    inputs = _function(tiles.forward("inputs"), f"inputs_{H}")

    def divided(count):
        """So many rows at a time, of each the unit blocks one after the other."""
        for first in range(0, N, count):
            for j in range(J):
                weights = at(U) + j * U[0].nbytes, at(b) + j * b[0].nbytes  # of unit block j
                a_j = at(a) + j * a[0].nbytes + first * a[0, 0].nbytes  # its row `first`
                x_first = at(x) + first * x[0].nbytes
                inputs(count, x_first, x[0].nbytes, H, *weights, a_j, *[0] * 7)  # no h

    cases = {"column panel by column panel": partial(divided, N)}
    cases |= {"blocks of 64 rows": partial(divided, cost.INPUT_ROWS)}
    times = summary(interleaved(cases, repeats=repeats))["median"][list(cases)]
    return pd.DataFrame({"milliseconds": 1e3 * times, "GFLOP/s": 8 * N * H * H / times / 1e9})


def hot_loop(cell="lstm", H=512):
    """The assembly of the loop over k in the tallest step tile, and counts of its instructions."""
    tiles = Tiles(CELLS[cell], FLOAT, H)
    loops = assembly.inner_loops(
        simd.assembly(tiles.forward("step", keep=False), FLOAT, tiles.lanes)
    )
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
    tiles = lstm_tiles(1)
    powers = [np.linspace(2.0**k, 2.0 ** (k + 1), 2000) for k in range(-30, 6)]
    x = np.sort(np.concatenate([np.linspace(-100, 20, count), *powers])).astype(np.float32)
    x = np.ascontiguousarray(x[: len(x) // tiles.lanes * tiles.lanes])
    values = np.empty((2, len(x)), np.float32)

    def curve(m, vectors, source, out, row):
        def both(i):
            for k, function in enumerate(activations.functions(m)):
                place = i * tiles.vector_bytes  # vector i, of x and of a curve
                m.store(out + row * k + place, function(m.load(source + place)))

        m.loop(vectors, both)

    _function(curve, "accuracy")(len(x) // tiles.lanes, at(x), at(values), x.nbytes)
    exact = x.astype(np.float64)
    true = np.tanh(exact), 1 / (1 + np.exp(-exact))
    return x, dict(zip(("tanh", "sigmoid"), zip(values, true, strict=True), strict=True))


def work_split_table(shapes, repeats):
    """Predicted and measured microseconds of every split for shapes (H, T, B), one layer."""
    rows = []
    for H, T, samples in shapes:
        net = numba_fused.NumbaFused(Params.init(H, H))
        costs = numba_fused.machine_costs(FLOAT, net._threads)
        splits = cost.work_splits(net.tiles, T, samples, net._threads)
        runs = {split: _forward(net, T, samples, split) for split in splits}
        times = summary(interleaved(runs, repeats=repeats, rest=0.01))["median"]
        for split in splits:
            kind = _divided(split) if split.threads > 1 else "one thread"
            seconds = cost.predict(costs, split, net.tiles, net.sizes, T, samples, False)
            rows.append((H, T, samples, kind, 1e6 * seconds, 1e6 * times[split]))
    return pd.DataFrame(rows, columns=["H", "T", "B", "divided by", "predicted", "measured"])


def rates(big, repeats):
    """Inference of every CPU version: name -> (operations per byte of weights, GFLOP/s).

    The slow versions run on the airline network, the others on `big`. A version that reads the
    weights for each sample does two operations per weight of four bytes, others two for each of the
    B samples of a step.
    """
    batched = "numpy-naive", "numpy", "numba-fused"
    points = {}
    for work, names in (
        (experiments.AIRLINE, ("sequential", "numpy-sample")),
        (big, (*batched, "numba-sample")),
    ):
        rows = experiments.forwards(names, work, repeats=repeats)
        for name, seconds in rows.groupby("version")["seconds"].median().items():
            samples = work.B if name in batched else 1
            points[name] = samples / 2, work.gflop / seconds
    return points

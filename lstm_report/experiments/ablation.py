"""Notebook 04's measurements of `numba-fused`: what each idea is worth, switched on and
off one after the other, and the loop it comes down to.
"""

import ctypes
import timeit
from functools import partial
from itertools import chain

import numba
import numpy as np
import pandas as pd

from lstm_kernels import Params
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import activations, registers, simd, workspace
from lstm_kernels.cpu.tiles import Tiles
from lstm_kernels.cpu.workspace import at
from lstm_kernels.versions.numba_fused import NumbaFused

from ..measure import runner
from ..measure.comparer import compare
from ..measure.timing import interleaved, settle, summary
from ..measure.workloads import AIRLINE
from . import assembly

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
    """A tile a += h W of some height: W's rows W_row bytes apart, its gates `gate`
    bytes.
    """
    offsets = [g * gate for g in range(4)]

    def product(m, rows, h, row, H, W, a):
        def tile(first, count):
            # Of the sums of row first + i
            places = [
                [a + first * tiles.row + i * tiles.row + o for o in tiles.offsets("W")]
                for i in range(count)
            ]
            sums = [[m.variable(m.load(place)) for place in row] for row in places]
            h_first = h + first * row  # h from row `first` on
            tiles.multiply(m, sums, h_first, row, FLOAT.itemsize, W, W_row, H, offsets)
            for place, total in zip(chain(*places), chain(*sums), strict=True):
                m.store(place, m.get(total))

        m.tiles(rows, height, tile)

    return product


def step_times(repeats, H=512, seed=0):
    """Median microseconds of the product h W of a step, of one layer with H units and B
    samples, on one thread, in forms that each add one idea to the one before; and their
    GFLOP/s.

    Raises MismatchError where one computes other numbers than NumPy does.
    """
    tiles, rng = lstm_tiles(H), np.random.default_rng(seed)
    row = H * FLOAT.itemsize  # bytes of a sample
    line = tiles.vector_bytes
    J, lanes = tiles.blocks, tiles.lanes
    h, W = new(B, H), new(H, 4, J, lanes)
    packed, a = new(J, H, 4, lanes), new(J, B, 4, lanes)
    h[:], W[:] = rng.uniform(-1, 1, h.shape), rng.uniform(-1, 1, W.shape)
    packed[:] = W.transpose(2, 0, 1, 3)
    want = np.einsum("bk,kgjl->jbgl", h, W, optimize=True)

    def form(height, weights, W_row, gate, block):
        """Tiles of some height; block: bytes from the weights of a unit block to the
        next one's.
        """
        tile = product(tiles, height, W_row, gate)
        multiply = _function(tile, f"product_{height}_{gate}_{H}")

        def run():
            a[:] = 0
            for j in range(J):
                weights_j, a_j = at(weights) + j * block, at(a) + j * a[0].nbytes
                multiply(B, at(h), row, H, weights_j, a_j)

        run()
        compare({"h W": a}, {"h W": want}, 1e-5)
        return run

    tallest = registers.tile_rows(4)
    forms = {
        "a row at a time": form(1, W, 4 * row, row, line),
        "+ register tile": form(tallest, W, 4 * row, row, line),
        "+ packed weights": form(tallest, packed, 4 * line, line, packed[0].nbytes),
    }
    times = summary(interleaved(forms, repeats=repeats))["median"][list(forms)]
    rate = 8 * B * H * H / times / 1e9
    return pd.DataFrame({"microseconds": 1e6 * times, "GFLOP/s": rate})


def _best_rate(operations, case, calls=400):
    """GFLOP/s of a case: the best of many calls."""
    return operations / min(timeit.repeat(case, number=1, repeat=calls)) / 1e9


def tile_loop(tiles=None):
    """The loop of a tile of 64 hidden units with everything in cache, as a function
    without arguments, and how many operations it does; tiles None: numba-fused's.
    """
    H, rows = 64, 960
    tiles = tiles or lstm_tiles(H)
    line, words = tiles.vector_bytes, tiles.words(H)
    tile = product(tiles, tiles.tile_rows(4), 4 * line, line)
    run = _function(tile, f"peak_{tiles.name}_{H}")
    h, W, a = new(rows, words), new(words, 4, tiles.lanes), new(rows, 4, tiles.lanes)
    arguments = rows, at(h), h[0].nbytes, words, at(W), at(a)

    def case(arrays=(h, W, a)):  # which live as long as the function does
        run(*arguments)

    return case, 2 * tiles.numbers * rows * W.size


def peak(tiles=None):
    """GFLOP/s of one core in the loop of `tile_loop`, at best."""
    case, operations = tile_loop(tiles)
    return _best_rate(operations, case)


def register_peak(rounds=20_000, dot=False):
    """GFLOP/s of one core in multiply-adds on registers alone: its clock x units x
    lanes. dot: in dot products of pairs, which do two multiply-adds in each of the
    lanes.
    """
    tiles, count = lstm_tiles(1), registers.vector_registers().count - 4
    values = new(count, tiles.lanes)
    values[:] = np.linspace(0.1, 0.4, count)[:, None]

    def multiply_adds(m, rounds, values):
        """sum = x * y + sum: as many sums as registers, enough to hide the latency."""
        places = [values + k * tiles.vector_bytes for k in range(count)]
        x, y, multiply = m.load(places[0]), m.load(places[1]), m.dot if dot else m.fma
        sums = [m.variable(m.load(place)) for place in places]

        def each_sum(_):
            for total in sums:
                m.set(total, multiply(x, y, m.get(total)))

        m.loop(rounds, each_sum)
        for place, total in zip(places, sums, strict=True):
            m.store(place, m.get(total))

    label = "dot_products" if dot else "multiply_adds"
    case = partial(_function(multiply_adds, label), rounds, at(values))
    return _best_rate((4 if dot else 2) * rounds * values.size, case)


def hot_loop(H=512):
    """The assembly of the loop over k in the tallest step tile, and counts of its
    instructions.
    """
    tiles = lstm_tiles(H)
    step = tiles.step(keep=False)
    loops = assembly.inner_loops(simd.assembly(step, FLOAT, tiles.lanes))
    lines = max(loops, key=lambda lines: assembly.counts(lines)["multiply-adds"])
    return lines, assembly.counts(lines)


def accuracy(count=200_000):
    """The traced float32 tanh and sigmoid: x, and by name the values (float32) and the
    true ones.

    x: `count` floats evenly in [-100, 20], and 2000 in each power of two from 2^-30 to
    2^6.
    """
    powers = [np.linspace(2.0**k, 2.0 ** (k + 1), 2000) for k in range(-30, 6)]
    x = np.sort(np.concatenate([np.linspace(-100, 20, count), *powers]))
    x = x.astype(np.float32)
    exact = x.astype(np.float64)

    def traced(function):
        on_number = simd.of_numbers(function, FLOAT)
        return numba.vectorize(["f4(f4)"])(lambda v: on_number(v))(x)

    return x, {
        "tanh": (traced(activations.tanh), np.tanh(exact)),
        "sigmoid": (traced(activations.sigmoid), 1 / (1 + np.exp(-exact))),
    }


def rates(big, repeats):
    """Inference of every CPU version: name -> (operations per byte of weights,
    GFLOP/s).

    The slow versions run on the airline network, the others on `big`. A version that
    reads the weights for each sample does two operations per weight of four bytes,
    others two for each of the B samples of a step.
    """
    batched = "numpy-naive", "numpy", "numba-fused"
    plan = {AIRLINE: ("sequential", "numpy-sample"), big: (*batched, "numba-sample")}
    points = {}
    for work, names in plan.items():
        nets, (x, _) = runner.networks(names, work), work.example()
        calls = {"forward": lambda net, x=x: net.forward(x)}
        rows = runner.measure(nets, work, calls, repeats=repeats)
        for name, seconds in rows.groupby("version")["seconds"].median().items():
            samples = work.B if name in batched else 1
            points[name] = samples / 2, work.gflop / seconds
    return points


def seconds_of(H, B, T, D=1):
    """Seconds of an inference of one layer on one thread, at best; the first step has
    no product with W.
    """
    net = NumbaFused(Params.init(D, H), threads=1)
    call = net.bare_forward(np.zeros((T, B, D), FLOAT))
    settle(call)
    return min(timeit.repeat(call, number=1, repeat=100))


def cell_seconds(B=64):
    """Seconds of the cell on a vector of units, with what is loaded and stored."""
    units = 4 * lstm_tiles(1).lanes
    return seconds_of(units, B, 1) / (4 * B)


def cache_rate(steps=100):
    """GB/s at which one sample's steps read weights from a core's cache, its cells
    included.
    """
    H = 8 * lstm_tiles(1).lanes
    later = seconds_of(H, 1, steps + 1) - seconds_of(H, 1, 1)
    return 16e-9 * H * H * steps / later

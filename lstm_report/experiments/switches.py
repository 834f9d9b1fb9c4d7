"""An LSTM's inference with five optimisations that are switched on and off, each by
itself.

The optimisations are those of the Optim-LSTM project, which follows Appleyard, Kočiský
& Blunsom (arXiv 1604.01946); SWITCHES has them in its order. All 32 combinations are
one code, in which a switch is one seam:

    combine     `_matrices`: four gates and both operands in one matrix, or eight
    concurrent  `_cell`: the products of a cell at the same time, or in turn
    fuse        `_cell`: the cell in one pass of vector code, or NumPy's operations
    pack        `_product`: weights in the order a tile reads them, or as they are
    wavefront   `forward`: the schedule

With none of them on, a cell is eight products of BLAS, each divided among BLAS's own
threads, and a pass over memory for each point-wise operation, a layer after the other.
`concurrent` has nothing to do beside two others, and is run all the same: with
`combine` a cell has one product only, with `wavefront` every thread has a cell of its
own.

The hidden state of (layer l, step t) lies in `z[t + l + 1]`, in the columns of layer l,
and x_t in `z[t]`, in front of them. So the two operands of a cell, h of the layer below
in this step and its own of the step before, are neighbours in one row, and combining
them copies nothing.
"""

import ctypes
import threading
from contextlib import nullcontext
from functools import cache, partial
from itertools import chain, combinations, count, pairwise

import numpy as np

from lstm_kernels.blas import at_once, single_threaded
from lstm_kernels.cells import CELLS
from lstm_kernels.cores import cores
from lstm_kernels.cpu import activations, registers, simd
from lstm_kernels.cpu.tiles import Tiles
from lstm_kernels.cpu.workspace import at, buffer
from lstm_kernels.errors import check_array, check_choice, check_int
from lstm_kernels.params import Params
from lstm_kernels.reference import blocks, sigmoid
from lstm_kernels.schedules import Graph, layer_by_layer, wavefront

SWITCHES = {
    "combine": "one product in place of the eight of a cell",
    "concurrent": "independent products at the same time",
    "fuse": "point-wise operations in one pass",
    "pack": "weights laid out beforehand as they are read",
    "wavefront": "cells of several layers at the same time",
}
COMBINATIONS = [on for count in range(6) for on in combinations(SWITCHES, count)]
BASELINE, EVERY = COMBINATIONS[0], COMBINATIONS[-1]
# Steps in a task: long enough for Python's threads, short for the pipeline to fill.
CHUNK = 2
K = 4  # gates


class Variant:
    """LSTM inference with some of the five optimisations.

    params: lstm_kernels.Params of an LSTM, float32 or float64, copied. on: names of
    SWITCHES, those that are on. threads: how many to use; None is `cores.cores()`. An
    object serves one Python thread at a time. Raises TypeError or ValueError for bad
    params, another cell, an unknown or repeated switch.
    """

    def __init__(self, params, on=(), *, threads=None):
        params = Params.check(params)
        if params.cell != "lstm":
            raise ValueError(f"params: got cell {params.cell!r}, want 'lstm'")
        if isinstance(on, str) or len(set(on)) < len(on):
            raise ValueError(f"on: got {on!r}, want names of switches, each once")
        on = {check_choice("on", name, SWITCHES) for name in on}
        self.on = tuple(name for name in SWITCHES if name in on)
        names = ("combine", "fuse", "pack", "wavefront")
        self.combine, self.fuse, self.pack, self.wavefront = (n in on for n in names)
        # With `combine` there is one product.
        self.concurrent = "concurrent" in on and not self.combine
        self.threads = cores() if threads is None else check_int("threads", threads)
        self._sizes = params.num_layers, params.input_size, params.hidden_size
        self._tiles = tiles = Tiles(CELLS["lstm"], params.dtype, params.hidden_size)
        form = tiles.form("back")  # what compiled code depends on
        self._multiply = code(form, "multiply") if self.pack else None
        operands = "cell_of_one" if self.combine else "cell_of_two"
        self._cell_pass = code(form, operands) if self.fuse else None
        # Columns of x, of h in z.
        self._widths = tiles.pad(params.input_size), tiles.padded
        self._layers = list(map(self._matrices, count(), params.layers))
        self._memory = {}

    def __repr__(self):
        return f"Variant: {' + '.join(self.on) or 'baseline'}"

    def _columns(self, l):
        """The columns of z that hold h of layer l; of layer -1, the input."""
        D, P = self._widths
        return slice(0, D) if l < 0 else slice(D + l * P, D + (l + 1) * P)

    def _matrices(self, l, layer):
        """The products of a layer, pairs of columns of z and the matrix they meet, and
        the bias (K, P). Padding is zero.
        """
        below, layer_h = self._columns(l - 1), self._columns(l)
        P = self._tiles.padded

        def gates(matrix, rows):
            return [_padded(gate, rows, P) for gate in blocks(matrix, K)]

        U, W = gates(layer.U, below.stop - below.start), gates(layer.W, P)
        b = gates(layer.b[None], 1)
        if self.combine:  # the matrix is (D + P, K * P)
            products = [(slice(below.start, layer_h.stop), np.block([[*U], [*W]]))]
        else:
            products = [(below, gate) for gate in U] + [(layer_h, gate) for gate in W]
        if self.pack:
            products = [(columns, self._packed(matrix)) for columns, matrix in products]
        return products, np.vstack(b)

    def _packed(self, matrix):
        """A matrix (rows, N) as (N / wide, rows, wide): a tile reads one stream."""
        wide = self._tiles.wide_units
        packed = buffer(matrix.shape[1] // wide, len(matrix), wide, dtype=matrix.dtype)
        packed[...] = matrix.reshape(len(matrix), -1, wide).swapaxes(0, 1)
        return packed

    def forward(self, x):
        """Outputs from a zero state: x (T, B, D) to y (T, B, H), a view of memory that
        the next call writes over. Raises TypeError or ValueError for bad x.
        """
        L, D, H = self._sizes
        x = check_array("x", x, ("T", "B", D), dtype=self._tiles.dtype)
        T, B, _ = x.shape
        z, c, free = self._memory_for(T, B)
        c[:] = 0
        graph = Graph(L, T)
        plan = layer_by_layer(graph)
        if self.wavefront:  # as many layers as threads: each keeps its layer's weights
            plan = wavefront(graph, self.threads, min(CHUNK, T), together=self.threads)
        threads = max(1, self.threads // plan.employed)  # for a cell

        def perform(task):
            sums = free.pop()
            for t in range(task.start, task.stop):
                if task.layer == 0:
                    z[t, :, :D] = x[t]
                self._cell(task.layer, t, z, c[task.layer], sums, threads)
            free.append(sums)

        # BLAS divides products that are done one after the other; of several each has a
        # thread.
        several = threads == 1 or self.concurrent
        with single_threaded() if several else nullcontext():
            run(plan, perform)
        return z[L:, :, self._columns(L - 1)][:, :, :H]

    def _memory_for(self, T, B):
        """z, c of each layer, and for each thread the sums of a cell."""
        if self._memory.get("shape") != (T, B):
            L, P = self._sizes[0], self._tiles.padded
            new = partial(buffer, dtype=self._tiles.dtype)
            z, c = new(T + L, B, self._columns(L - 1).stop), new(L, B, P)
            shape = (B, K, P) if self.combine else (2, K, B, P)
            free = [new(*shape) for _ in range(self.threads)]
            self._memory = {"shape": (T, B), "arrays": (z, c, free)}
        return self._memory["arrays"]

    def _cell(self, l, t, z, c, sums, threads):
        """Cell (l, t) on so many threads: its products, then what follows them."""
        products, b = self._layers[l]
        out = [sums.reshape(len(c), -1)] if self.combine else sums.reshape(-1, *c.shape)
        parts = [
            self._product(z[t + l, :, columns], matrix, target, threads)
            for (columns, matrix), target in zip(products, out, strict=True)
        ]
        if self.concurrent:
            parts = [[*chain(*parts)]]
        for jobs in parts:
            at_once(jobs, threads)
        point_wise = self._fused if self.fuse else self._unfused
        point_wise(sums, b, c, z[t + l + 1, :, self._columns(l)])

    def _product(self, z, matrix, out, threads):
        """The jobs of out = z matrix, one for each thread that is to take part."""
        if not self.pack:
            return [partial(np.matmul, z, matrix, out)]
        parts = 1 if self.concurrent else min(threads, len(matrix))
        cuts = [len(matrix) * k // parts for k in range(parts + 1)]
        wide = self._tiles.wide_units
        return [
            self._by_tiles(z, matrix[first:last], out[:, first * wide : last * wide])
            for first, last in pairwise(cuts)
        ]

    def _by_tiles(self, z, packed, out):
        """z times some blocks of a packed matrix, as a function without arguments."""
        rows = len(z), at(z), z.strides[0], packed.shape[1]
        places = at(packed), len(packed), packed.strides[0], at(out), out.strides[0]
        return partial(self._multiply, *rows, *places)

    def _unfused(self, sums, b, c, h):
        """The cell, operation by operation."""
        forward, _ = CELLS["lstm"].make(np.tanh, sigmoid)
        if self.combine:
            bars = [sums[:, k] + b[k] for k in range(K)]
        else:
            bars = [sums[0, k] + sums[1, k] + b[k] for k in range(K)]
        *_, h[...], c[...] = forward(*bars, c)

    def _fused(self, sums, b, c, h):
        """The cell in one pass: sums are read once, nothing between is stored."""
        size, P = sums.itemsize, c.shape[1]
        gate, row = (P, K * P) if self.combine else (c.size, P)
        operand = 0 if self.combine else K * c.size
        strides = operand * size, gate * size, row * size, P * size
        vectors, arrays = P // self._tiles.lanes, (at(b), at(c), at(h))
        self._cell_pass(len(c), vectors, at(sums), *strides, *arrays, h.strides[0])


def run(schedule, perform):
    """Run perform(task) for the tasks of a schedule on as many threads as it has
    workers with a task: each thread takes the first that nobody has begun, once what it
    comes after is done.
    """
    done, last, before = [threading.Event() for _ in schedule.tasks], {}, []
    for index, task in enumerate(schedule.tasks):
        before.append((*task.after, *last.get(task.worker, ())))
        last[task.worker] = (index,)
    failed = []

    def begin(index):
        try:
            for other in before[index]:
                done[other].wait()
            if not failed:
                perform(schedule.tasks[index])
        except BaseException:
            failed.append(index)  # nobody shall wait for what never comes
            raise
        finally:
            done[index].set()

    at_once([partial(begin, index) for index in range(len(done))], schedule.employed)


def _padded(matrix, rows, columns):
    """A matrix with zeros to the right and below."""
    return np.pad(matrix, ((0, rows - len(matrix)), (0, columns - matrix.shape[1])))


def tile(tiles, name):
    """The tiles of a Variant, functions of a machine as in `cpu/tiles.py`."""
    size, line, vectors = tiles.dtype.itemsize, tiles.vector_bytes, tiles.wide_vectors

    def multiply(m, rows, z, z_row, count, packed, blocks, block, out, out_row):
        """out = z M for wide blocks of a packed matrix; z_row, out_row, block:
        bytes.
        """
        zero = m.constant(0.0)

        def one_block(j):
            def some_rows(first, height):
                one_row = range(vectors)
                sums = [[m.variable(zero) for _ in one_row] for _ in range(height)]
                z_first = z + first * z_row  # row `first`
                M = packed + j * block  # block j, row 0
                tiles.multiply(m, sums, z_first, z_row, size, M, vectors * line, count)
                for i, row_sums in enumerate(sums):
                    out_i = out + j * (vectors * line) + first * out_row + i * out_row
                    for v, total in enumerate(row_sums):
                        m.store(out_i + v * line, m.get(total))

            m.tiles(rows, registers.tile_rows(vectors), some_rows)

        m.loop(blocks, one_block)

    def cell(m, rows, vectors, sums, operand, gate, row, bias, b, c, h, h_row):
        """h and c from the sums of one or two operands of each gate, and the bias; c
        over c.
        """
        forward, _ = tiles.cell.make(*activations.functions(m))

        def one_row(i):
            def one_vector(v):
                bars, unit = [], v * line  # bytes to vector v
                for k in range(K):
                    a = sums + k * gate + i * row + unit  # gate k, row i, vector v
                    bar = m.load(b + k * bias + unit) + m.load(a)
                    bars.append(
                        bar + m.load(a + operand) if name == "cell_of_two" else bar
                    )
                place = c + i * (vectors * line) + unit  # row i, vector v
                *_, h_new, c_new = forward(*bars, m.load(place))
                m.store(h + i * h_row + unit, h_new)
                m.store(place, c_new)

            m.loop(vectors, one_vector)

        m.loop(rows, one_row)

    function = multiply if name == "multiply" else cell
    function.__name__ = name
    return function


@cache
def code(tiles, name):
    """A tile as a function of integers that Python can call without its lock."""
    function = tile(tiles, name)
    address = simd.compiled(function, tiles.dtype, tiles.lanes, tiles.name)
    arguments = [ctypes.c_int64] * (function.__code__.co_argcount - 1)
    return ctypes.CFUNCTYPE(None, *arguments)(address)

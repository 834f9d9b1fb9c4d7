"""The stages of a pass as Python on NumPy: every view lies inside its array, nothing is
read that was not written, and what comes out is the reference's.

In compiled code a view is not checked, and what a micro-kernel is given is followed
without a look. So here the same functions run with views that check, micro-kernels in
NumPy that check shapes, and arrays that begin as NaN.
"""

import ctypes
from itertools import product
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest
from conftest import example
from numba import njit

import lstm_kernels as lk
from lstm_kernels import kernels
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import scheduler, stages, workspace
from lstm_kernels.cpu.entries import Item
from lstm_kernels.cpu.micro_kernels import MicroKernels
from lstm_kernels.cpu.net import Kernels, Net
from lstm_kernels.cpu.partitions import partitions
from lstm_kernels.reference import sigmoid
from lstm_kernels.schedules import timed
from lstm_kernels.versions.numba_fused import NumbaFused
from lstm_report.measure.comparer import TOLERANCE, compare, compare_to_reference

FORWARD_KEEP, FORWARD_BARE, *_ = range(1, 3)
CODES = {name: 10 + k for k, name in enumerate(Kernels._fields)}
WRITTEN = ("h", "c", "a", "da", "dy", "dx", "dh0", "gradient", "error")  # then read


def view(array, start, shape):
    """`intrinsics.view`, which checks that the part lies inside."""
    missing = array.ndim - len(shape)
    assert len(start) == array.ndim
    for n, first, size in zip(array.shape, start, (1,) * missing + shape, strict=True):
        assert 0 <= first <= first + size <= n, (array.shape, start, shape)
    rest = zip(start[missing:], shape, strict=True)
    return array[(*start[:missing], *(slice(n, n + size) for n, size in rest))]


def in_memory(arguments):
    """The Net that lies in memory as Arguments."""

    def array(like, words):
        address, *sizes = words[4 : 5 + 2 * like.ndim]
        shape, strides = sizes[: like.ndim], sizes[like.ndim :]
        memory = (ctypes.c_byte * max(1, words[2] * words[3])).from_address(address)
        return np.ndarray(shape, like.dtype, memory, strides=strides)

    values = arguments.values._asdict()
    for name, value in values.items():
        words = arguments.words[arguments._places[name] :]
        if isinstance(value, np.ndarray):
            values[name] = array(value, words)
        elif isinstance(value, int):
            values[name] = words[0]
    return Net(**values)


class NumpyKernels:
    """The micro-kernels of a layout, in NumPy."""

    def __init__(self, layout):
        self.layout, self.called = layout, set()
        self.K = len(layout.cell.gates)
        self.cell = layout.cell.make(np.tanh, sigmoid)

    def fed(self, matrix):
        """Which numbers of a row of gates a matrix feeds."""
        gates = np.isin(np.arange(self.K), self.layout.gates[matrix])
        return np.repeat(gates, self.layout.units)

    def matrix(self, code):
        name = next(name for name, number in CODES.items() if number == code)
        self.called.add(name)
        return name[-1]

    def gates(self, a):
        """A row of gates by gate, (K, rows, units)."""
        return a.reshape(len(a), self.K, -1).swapaxes(0, 1)

    def inputs(self, code, x, U, b, a):
        self.matrix(code)
        assert len(x) == len(a)
        assert len(b) == 1
        a[...] = b
        a[:, self.fed("U")] += x @ U[:, self.fed("U")]

    def forward(self, code, begin, x, U, h, W, a, c, c_new, h_new):
        self.called.add("forward")
        assert len({len(z) for z in (x, h, a, c, c_new, h_new)}) == 1
        assert c.strides == c_new.strides == h_new.strides
        bars = np.broadcast_to(begin, a.shape).copy()
        bars[:, self.fed("U")] += x @ U[: x.shape[1], self.fed("U")]
        bars[:, self.fed("W")] += h @ W[: h.shape[1], self.fed("W")]
        *gates, h_new[...], c_t = self.cell[0](*self.gates(bars), c)
        if self.layout.cell.state == ("h", "c"):
            c_new[...] = c_t
        if code == FORWARD_KEEP:
            self.gates(a)[...] = gates

    def product(self, matrix, da, M_T):
        """da M^T over unit blocks."""
        lines = M_T.reshape(-1, da.shape[-1], M_T.shape[1])
        blocks = zip(da, lines, strict=False)
        fed = self.fed(matrix)
        return sum((d[:, fed] @ M[fed] for d, M in blocks), start=np.float32(0))

    def backward(self, code, begin, da_next, W_T, a, da, dc, c, c_new):
        self.matrix(code)
        assert begin.strides == dc.strides == c.strides == c_new.strides
        dh = begin + self.product("W", da_next, W_T)
        wide = [np.concatenate(gates, 1) for gates in zip(*map(self.gates, a))]  # noqa: B905
        *bars, dc_before = self.cell[1](dh, dc, *wide, c, c_new)
        for j, block in enumerate(da):
            units = np.s_[:, j * self.layout.units : (j + 1) * self.layout.units]
            self.gates(block)[...] = [bar[units] for bar in bars]
        dc[...] = dc_before

    def times_transpose(self, code, begin, da, M_T, out):
        out[...] = begin + self.product(self.matrix(code), da, M_T)

    def small_input_gradient(self, code, da, U, out):
        self.matrix(code)
        blocks, fed = U.reshape(len(da), -1, U.shape[1]), self.fed("U")
        assert blocks.shape[1] == out.shape[1]
        out[...] = sum(d[:, fed] @ M[:, fed].T for d, M in zip(da, blocks, strict=True))

    def gradient(self, code, z, da, out, rate):
        assert z.shape == (len(da), len(out))
        fed = self.fed(self.matrix(code))
        out[:, fed] += rate * z.T @ da[:, fed]

    def transpose(self, code, a, out):
        self.matrix(code)
        assert len(a) == out.shape[1] == self.layout.lanes
        out[...] = a.T


def parts_of(scope):
    """The stages and their parts as Python functions. scope: the module's names."""
    functions = [getattr(f, "py_func", f) for f in scope.values()]
    own = (f for f in functions if isinstance(f, FunctionType))
    return [f for f in own if f.__module__ == stages.__name__]


def in_python(functions, micro):
    """These by the names of those that are compiled; micro: what they call."""
    names = {name: getattr(micro, name) for name in dir(stages) if hasattr(micro, name)}
    names |= {"view": view, "load_acquire": lambda words, i: words[i]}
    names["serpentine"] = scheduler.serpentine.py_func
    names["atomic_exchange"] = lambda words, i, value: words.__setitem__(i, value)
    return kernels.fill(functions, names, "python")


class Interpreted(NumbaFused):
    """`numba-fused` whose stages are Python, in one partition."""

    functions = parts_of(vars(stages))

    def __init__(self, params, partition):
        super().__init__(params, threads=2)
        self.micro = NumpyKernels(self.layout)
        self._stages = in_python(self.functions, self.micro)
        self._partition = partition

    def _take(self, *sizes):
        space = super()._take(*sizes)
        for name in WRITTEN:
            array = getattr(space.net, name)
            if array is not self.weights.theta:
                array[:, space.shape.B :] = np.nan
        space.net.h[:, : space.shape.B], space.net.c[:, : space.shape.B] = 0, 0
        if len(space.net.dy):
            space.net.dy[-1] = 0
        return space

    def _partitions(self, T, B):
        return [self._partition]

    def _run(self, space, kind, passes=1):
        schedule = lambda graph: self._schedule(graph, self._partition)  # noqa: E731
        compiled = space.compiled(kind, self._partition, schedule)
        net, number = in_memory(space.arguments), 0
        net.control[scheduler.LAST] = passes
        while number < net.control[scheduler.LAST]:
            for stage in compiled.stages:
                self._run_stage(stage, net, number)
            number += 1

    def _run_stage(self, stage, net, number):
        schedule, kernel = stage.schedule, self._stages[stage.kernel.__name__]
        graph = schedule.graph

        def in_order(start, stop):
            back = graph.steps - stop, graph.steps - start
            return back if graph.backward else (start, stop)

        parts = sorted(timed(schedule, lambda *_: 1.0), key=lambda part: part[1])
        for part, *_ in parts:
            task = schedule.tasks[part.task]
            layer, _, blocks, samples = graph.box(task)
            steps = *in_order(task.start, task.stop), *in_order(part.start, part.stop)
            box = blocks.start, blocks.stop, samples.start, samples.stop
            assert kernel(net, Item(number, layer.start, *steps, *box)) == 0


@pytest.fixture(autouse=True)
def micro_kernels_have_numbers(monkeypatch):
    """In place of addresses."""

    def codes(layout, *names, keep):
        numbers = {name: CODES[name] for name in names}
        return numbers | {"forward": FORWARD_KEEP if keep else FORWARD_BARE}

    monkeypatch.setattr(workspace, "codes", codes)


def compared(kind, partition, params, x, target):
    """Compare a network's passes, and an epoch of some steps, with NumPy's; the
    micro-kernels that it called.
    """
    net, wanted, B = kind(params, partition), lk.network("numpy", params), x.shape[1]
    compare_to_reference(net, params, x)
    dataset = lk.Dataset(np.repeat(x, 2, axis=1), np.repeat(target, 2, axis=0))
    order = np.arange(2 * B)[::-1][:-1]
    losses = wanted.epoch(dataset, order, B, 0.1)
    assert net.epoch(dataset, order, B, 0.1) == pytest.approx(losses, rel=1e-4)
    arrays = net.params().arrays(), wanted.params().arrays()
    compare(*arrays, TOLERANCE[params.dtype])
    return net.micro.called


@pytest.mark.parametrize(
    ("cell", "dtype"), [*((cell, np.float32) for cell in CELLS), ("lstm", np.float64)]
)
def test_every_view_lies_inside_and_nothing_is_read_unwritten(cell, dtype):
    called, dtype = set(), np.dtype(dtype)
    lanes = MicroKernels(CELLS[cell], dtype, 1).lanes
    shapes = [(1, 1, 1, 1, 1), (2, 2, 3, 3, lanes + 1), (1, 2, 2, 5, 2 * lanes + 1)]
    shapes += [(2, 3, 4, lanes + 1, lanes - 1), (2, 5, 40, 3, lanes)]
    # More rows (t, sample), and more steps, than go at once
    shapes += [(1, 25, 4, 5, 3), (2, 100, 1, 1, 2)]
    for shape in shapes:
        example_of = example(shape, cell, dtype)
        blocks = MicroKernels(CELLS[cell], dtype, shape[4]).blocks
        for partition in partitions(*shape[:3], blocks, 2):
            called |= compared(Interpreted, partition, *example_of)
    assert called == {*CODES}


def test_an_epoch_ends_at_a_loss_that_is_not_finite():
    params, x, target = example((1, 2, 4, 1, 33))
    targets = np.tile(target, (5, 1))
    targets[8:12] = 3e38  # the third mini-batch's loss is infinite
    dataset = lk.Dataset(np.tile(x, (1, 5, 1)), targets)
    for partition in partitions(1, 2, 4, 3, 2):
        with np.errstate(all="ignore"):
            losses = Interpreted(params, partition).epoch(
                dataset, np.arange(20), 4, 0.1
            )
        assert np.isfinite(losses).tolist() == [True, True, False]


FAULTS = {  # a line of the stages, and what is wrong with it
    "view(h, (l, n + B, k), (size, units))": "view(h, (l, n + B, k + 1), (size, units))",
    "n, m = t * B + first, (t if": "n, m = t * B + first + 1, (t if",
    "min(i * ROWS + ROWS, N)": "i * ROWS + ROWS",
    "view(da, (l, 0, n + B, 0)": "view(da, (l, 0, n, 0)",
    "net.offsets[l + 1, U_PANEL]": "net.offsets[l + 1, W_PANEL]",
    "gW, net.offsets[l, W_PANEL], j": "gW, net.offsets[l, U_PANEL], j",
    "view(net.dy, (l, n, w * wide), (size, wide))": "view(net.dy, (l, 0, w * wide), (size, wide))",
}


@pytest.mark.parametrize(("right", "wrong"), FAULTS.items())
def test_these_tests_see_a_fault(right, wrong):
    """Planted in the text of the stages."""
    text = Path(stages.__file__).read_text()
    assert text.count(right) == 1
    scope = {**vars(stages)}
    exec(compile(text.replace(right, wrong), stages.__file__, "exec"), scope)
    faulty = type("Faulty", (Interpreted,), {"functions": parts_of(scope)})
    params, x, target = example((2, 100, 2, 5, 17))

    def every():
        for partition in partitions(2, 100, 2, 2, 2):
            compared(faulty, partition, params, x, target)

    with pytest.raises((AssertionError, ValueError)):
        every()


def test_compiled_views_are_these():
    array, view_ = np.arange(120.0).reshape(2, 3, 4, 5), stages.view
    compiled = njit(lambda a, start, shape: view_(a, start, shape).copy())
    for axes, start in product((1, 2, 3), ((0, 0, 0, 0), (1, 2, 1, 3), (1, 0, 2, 0))):
        shape = tuple(min(2, n - i) for n, i in zip(array.shape, start, strict=True))
        shape = shape[4 - axes :]
        want = view(array, start, shape)
        np.testing.assert_array_equal(compiled(array, start, shape), want)

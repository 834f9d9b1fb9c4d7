"""Bad input gets an error that names the argument, what it got and what it wants."""

from functools import partial

import numpy as np
import pytest
from conftest import example

import lstm_kernels as lk
from lstm_kernels import data
from lstm_kernels.cells import CELLS
from lstm_kernels.errors import check_array, check_rate

SHAPE = (2, 4, 3, 2, 5)
REFUSED = TypeError, ValueError


def bad(a, at, value):
    a = a.copy()
    a.flat[at] = value
    return a


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of np.matrix
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[0], r"got 2 axes, .* want shape \(T, B, 2\), time first$"),
        (lambda x: x[:0], r"got shape \(0, 3, 2\), want .*, time first and no empty"),
        (lambda x: x.astype("f8"), r"got .*64, want float32: x.astype\(np.float32"),
        (lambda x: x.astype("i4"), r"got .* int32, want float32: x.astype\(np.float"),
        (lambda x: x.tolist(), "got list, want a NumPy array"),
        (lambda x: bad(x, 5, np.nan), r"got nan at index \[0, 2, 1\], want finite"),
        (np.ma.array, r"got a masked array, .* \(T, B, 2\), time first without a mask"),
        (lambda x: np.asmatrix(x[0]), r"got matrix, want a NumPy array of shape \(T"),
        (lambda x: x * 1j, "got dtype complex64, want float32$"),
        (lambda x: x.astype(object), "got dtype object, want float32"),
        (lambda x: x.astype(">f4"), "got dtype >f4, want float32"),
    ],
)
def test_x(change, message):
    params, x, _ = example(SHAPE)
    with pytest.raises(REFUSED, match=f"^x: {message}"):
        lk.network("numpy", params).forward(change(x))


def test_arguments_of_a_network(version, cell):
    """Of every version, since each may have calls of its own."""
    params, x, target = example(SHAPE, cell)
    net = lk.network(version, params)
    state = tuple(np.zeros((2, 3, 5), np.float32) for _ in CELLS[cell].state)
    dy, nan = np.zeros((4, 3, 5), np.float32), tuple(a * np.nan for a in state)
    net.forward(x, training=True)
    dataset = lk.Dataset(x, target)
    for call, arguments, message in (
        (net.forward, (x[0],), "x: got 2 axes"),
        (net.forward, (x, list(state)), "state: got list, want a tuple"),
        (net.forward, (x, (dy, dy, dy)), "state: got a tuple of 3"),
        (net.forward, (x, tuple(a[:1] for a in state)), r"state.h: got shape \(1, 3"),
        (net.backward, (dy[:, :2],), r"dy: got shape \(4, 2, 5\), want \(4, 3, 5"),
        (net.backward, (dy, nan), "dstate.h: got nan"),
        (net.predict, (x.astype(float),), "x: got dtype float64"),
        (net.loss_and_grads, (bad(x, 0, np.inf), target), "x: got inf at index"),
        (net.loss_and_grads, (x, target[:, :1]), r"target: got shape \(3, 1\), want"),
        (net.step, (x[:, :2], dy[:, 0, :2], 0.1), r"target: got shape \(4, 2\).*first"),
        (net.step, (x[:0], target, 0.1), r"x: got shape \(0, 3, 2\)"),
        (net.step, (x, target, -1), "learning_rate: got -1, want a finite number"),
        (net.step, (x, target, "fast"), "learning_rate: got 'fast'"),
        (net.epoch, (dataset, [0, 3], 2, 0.1), "order: got"),
        (net.epoch, (dataset, [-1], 2, 0.1), "order: got"),
        (net.epoch, (dataset, [0.5], 2, 0.1), "order: got"),
        (net.epoch, (dataset, [[0]], 2, 0.1), "order: got"),
        (net.epoch, (dataset, [0, 1], 0, 0.1), "batch_size: got 0"),
    ):
        with pytest.raises(REFUSED, match=f"^{message}"):
            call(*arguments)
    assert len(net.epoch(dataset, [0, 1, 2], 2, 0.1)) == 2


def test_arguments_that_make_a_network(version):
    params, x, target = example(SHAPE)
    for threads in (0, -1, 1.5, "two"):
        with pytest.raises(REFUSED, match="threads: got"):
            lk.network(version, params, threads=threads)
    for name, change in (
        ("U", lambda a: a[:, :-1]),
        ("W", lambda a: bad(a, 3, np.nan)),
        ("b", lambda a: a.astype(np.float64)),
    ):
        wrong = params.copy()
        layer = wrong.layers[1]
        setattr(layer, name, change(getattr(layer, name)))
        with pytest.raises(REFUSED, match=rf"params.layers\[1\].{name}: got"):
            lk.network(version, wrong)
    params.V = params.b_out = None
    with pytest.raises(ValueError, match="no output layer"):
        lk.network(version, params).step(x, target, 0.1)


@pytest.mark.parametrize(
    "make", [np.asarray, lambda x: x.view(np.recarray), lambda x: x[::-1]]
)
def test_an_array_is_plain_contiguous_and_aligned_and_copied_only_if_it_must_be(make):
    x = make(np.ones((3, 2), np.float32))
    got = check_array("x", x, ("B", 2))
    assert type(got) is np.ndarray
    assert got.flags.c_contiguous
    assert got.flags.aligned
    assert np.shares_memory(got, x) == x.flags.c_contiguous
    assert (got is x) == (make is np.asarray)


@pytest.mark.parametrize("size", [1, 8192, 8193, 20_000])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_found_in_an_array_of_any_size(size, value):
    x = np.full(size, 1e30, np.float32)  # whose square is infinite
    assert check_array("x", x, ("N",)) is x
    for at in {0, size // 2, size - 1}:
        want = rf"x: got {value} at index \[{at}\], want finite"
        with pytest.raises(ValueError, match=want):
            check_array("x", bad(x, at, value), ("N",))


F32, F64 = np.float32, np.float64


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (True, F64, "got True, want a number above zero"),
        ("0.1", F64, "got '0.1', want a number"),
        (np.ones(1), F64, "got .*, want a number above zero"),
        (10**400, F64, "got inf, want a finite number above zero"),
        (-1, F64, "got -1, want a finite number above zero"),
        (np.nan, F32, "got nan, want a finite number above zero"),
        (1e39, F32, "got 1e.39, want a finite number .* in float32 .* to 3.4e"),
        (1e-50, F32, "got 1e-50, .* above zero, in float32 from 1.18e-38"),
    ],
)
def test_rates(value, dtype, message):
    with pytest.raises(REFUSED, match=f"^rate: {message}"):
        check_rate("rate", value, dtype)
    assert check_rate("rate", F32(0.5), dtype) == check_rate("rate", 0.5) == 0.5
    assert check_rate("rate", 1e39) == 1e39


INIT, NETWORK, WINDOWS = lk.Params.init, lk.network, data.windows
PARAMS, X = example(SHAPE)[0], np.zeros((4, 3, 1), np.float32)
WIDE = lk.Params.init(1, 2, dtype=np.float64)
WIDE.layers[0].W[0, 0] = 1e39
TARGET, Y, TWO = X[0], np.arange(12.0), [1, 2, np.nan, 3]
FLOATS = "want float32 or float64"
ASSIGN, OTHER = NETWORK("numpy", PARAMS).assign, INIT(2, 5, output_size=2)


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (NETWORK, ("cudnn", PARAMS), "name: got 'cudnn', want one of 'sequent"),
        (NETWORK, ("numba-fusd", PARAMS), "name: .*; did you mean 'numba-fused'"),
        (NETWORK, ("numpy", {}), "params: got dict, want lstm_kernels.Params"),
        (partial(NETWORK, chunks=2), ("numpy", PARAMS), ".*'chunks', numpy has none"),
        (partial(NETWORK, chunk=2), ("numba-fused", PARAMS), ".* has subnormals$"),
        (partial(NETWORK, subnormals=1), ("numba-tile", PARAMS), "subnormals: got int"),
        (partial(NETWORK, subnormals=True), ("numpy", PARAMS), ".*numpy has none"),
        (partial(NETWORK, threads=4096), ("numba-sample", PARAMS), "threads: got 4096"),
        (ASSIGN, (OTHER,), "params: got LSTM, 1 layer of 5.* want LSTM, 2 layers o"),
        (INIT, (1, 0), "hidden_size: got 0, want an integer of at least 1"),
        (partial(INIT, cell="mamba"), (1, 2), "cell: got .*, want one of 'rnn', 'lst"),
        (partial(INIT, cell=["lstm"]), (1, 2), "cell: got .*, want one of 'rnn', 'ls"),
        (partial(INIT, dtype=np.float16), (1, 2), f"dtype: got float16, {FLOATS}"),
        (partial(INIT, dtype="nonsense"), (1, 2), f"dtype: got .*, {FLOATS}"),
        (partial(INIT, dtype=None), (1, 2), f"dtype: got .*, {FLOATS}"),
        (partial(INIT, dtype=">f8"), (1, 2), f"dtype: got .*, {FLOATS}"),
        (partial(WINDOWS, dtype=int), (Y, 3), f"dtype: got int64, {FLOATS}"),
        (WIDE.astype, ("f4",), r"params.layers\[0\].W: got inf at index \[0, 0\]"),
        (WIDE.astype, (int,), f"dtype: got int64, {FLOATS}"),
        (WINDOWS, (Y, 12), "length: got 12, want .* 1 to 11"),
        (WINDOWS, (TWO, 2), r"series: got nan at index \[2\]"),
        (WINDOWS, (10.0 ** np.arange(35, 42), 3), "series as float32: got inf"),
        (lk.Dataset, (np.ma.array(X), TARGET), "x: got a masked array"),
        (lk.Dataset, (X, np.ma.array(TARGET)), "target: got a masked array"),
        (lk.Dataset, (X, TARGET.astype(float)), "target: got dtype float64, want"),
        (lk.Dataset, (X, TARGET[:2]), r"target: got shape \(2, 1\), want \(3, O\)$"),
        (lk.Dataset, (X, X[:, 0]), r".* \(3, O\); x seems batch first.*from_batch_f"),
        (lk.Dataset, (X[:, :2], X[0, :, 0]), r"target: got 1 axes, shape \(3,\), want"),
        (lk.Dataset, (X[:, :0], TARGET[:0]), r"x: got shape \(4, 0, 1\), want"),
    ],
)
def test_calls(call, arguments, message):
    with pytest.raises(REFUSED, match=f"^{message}"):
        call(*arguments)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("W", None, r"layers\[0\].W: got NoneType, want .* shape \(H, 4\*H\)"),
        ("W", np.ones(4), r"layers\[0\].W: got 1 axes, .* shape \(H, 4\*H\)"),
        ("W", np.ones((5, 20), int), r"layers\[0\].W: got dtype int64, want float32"),
        ("W", np.ones((0, 0)), r"layers\[0\].W: got shape .*\(H, 4\*H\) and no empty"),
        ("U", np.ma.ones((2, 20)), r"layers\[0\].U: got a masked array, want"),
        ("b", "b", r"layers\[0\].b: got str, want a NumPy array of shape \(20,\)"),
        ("cell", ["lstm"], r"cell: got \['lstm'\], want one of"),
        ("layers", [], r"layers: got \[\], want a list of at least one Layer"),
        ("layers", [3], r"layers\[0\]: got int, want lstm_kernels.Layer"),
        ("V", None, "got b_out without V, want both or neither"),
        ("b_out", None, "got V without b_out, want both or neither"),
    ],
)
def test_parts_of_parameters_that_cannot_be(part, value, message):
    params = example(SHAPE)[0]
    setattr(params.layers[0] if part in "UWb" else params, part, value)
    for call in (params.check, lambda: lk.network("numpy", params)):
        with pytest.raises(REFUSED, match=f"^params[.:] ?{message}"):
            call()

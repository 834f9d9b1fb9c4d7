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


def bad(a, at, value):
    a = a.copy()
    a.flat[at] = value
    return a


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of np.matrix
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[0], r"got 2 axes, .* want shape \(T, B, 2\), time first$"),
        (lambda x: x[..., :1], r"got shape \(4, 3, 1\), want \(T, B, 2\), time first$"),
        (
            lambda x: x[:0],
            r"got shape \(0, 3, 2\), want \(T, B, 2\), time first and no empty",
        ),
        (
            lambda x: x.astype(np.float64),
            r"got .*64, want float32: x.astype\(np.float32",
        ),
        (
            lambda x: x.astype(np.int32),
            r"got .* int32, want float32: x.astype\(np.float",
        ),
        (lambda x: x.tolist(), "got list, want a NumPy array"),
        (lambda x: bad(x, 5, np.nan), r"got nan at index \[0, 2, 1\], want finite"),
        (lambda x: bad(x, 0, np.inf), r"got inf at index \[0, 0, 0\]"),
        (np.ma.array, r"got a masked array, .* \(T, B, 2\), time first without a mask"),
        (lambda x: np.asmatrix(x[0]), r"got matrix, want a NumPy array of shape \(T"),
        (lambda x: x * 1j, "got dtype complex64, want float32$"),
        (lambda x: x.astype("M8[s]"), "got dtype datetime64"),
        (lambda x: x.astype(object), "got dtype object, want float32"),
        (lambda x: x.astype(">f4"), "got dtype >f4, want float32"),
        (lambda x: None, "got NoneType, want a NumPy array of shape"),
    ],
)
def test_x(version, change, message):
    params, x, target = example(SHAPE)
    net = lk.network(version, params)
    for call in (
        lambda x: net.forward(x),
        lambda x: net.loss_and_grads(x, target),
        lambda x: net.step(x, target, 0.1),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^x: {message}"):
            call(change(x))


class Sub(np.ndarray):
    """A subclass that adds nothing."""


@pytest.mark.parametrize(
    "kind", ["subclass", "recarray", "memmap", "unaligned", "strided", "view"]
)
def test_arrays_of_every_harmless_kind_give_plain_results(version, kind, tmp_path):
    params, x, _ = example(SHAPE)
    np.save(tmp_path / "x.npy", x)
    other = {
        "subclass": lambda: x.view(Sub),
        "recarray": lambda: x.view(np.recarray),
        "memmap": lambda: np.load(tmp_path / "x.npy", mmap_mode="r"),
        "unaligned": lambda: np.frombuffer(
            b"\0" + x.tobytes(), x.dtype, offset=1
        ).reshape(x.shape),
        "strided": lambda: np.repeat(x, 2, axis=2)[..., ::2],
        "view": lambda: np.broadcast_to(x, (1, *x.shape))[0],
    }[kind]()
    np.testing.assert_array_equal(other, x)
    net = lk.network(version, params)
    y, _ = net.forward(x, training=True)
    grads = net.backward(np.ones_like(y))
    again, state = net.forward(other, training=True)
    ones = np.ones_like(y).view(Sub)
    others = net.backward(ones)
    for name, a in others.arrays().items():
        np.testing.assert_array_equal(a, grads.arrays()[name], err_msg=name)
    for a in (again, *state, *others.arrays().values()):
        assert type(a) is np.ndarray


@pytest.mark.parametrize("make", [np.asarray, lambda x: x.view(Sub), lambda x: x[::-1]])
def test_an_array_is_plain_contiguous_and_aligned_and_copied_only_if_it_must_be(make):
    x = make(np.ones((3, 2), np.float32))
    got = check_array("x", x, ("B", 2))
    assert type(got) is np.ndarray
    assert got.flags.c_contiguous
    assert got.flags.aligned
    assert np.shares_memory(got, x) == x.flags.c_contiguous
    assert (got is x) == (make is np.asarray)


@pytest.mark.parametrize("size", [1, 4096, 8192, 8193, 20_000])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_found_in_an_array_of_any_size(size, value):
    x = np.full(size, 1e30, np.float32)  # whose square is infinite
    assert check_array("x", x, ("N",)) is x
    for at in {0, size // 2, size - 1}:
        with pytest.raises(
            ValueError, match=rf"x: got {value} at index \[{at}\], want finite"
        ):
            check_array("x", bad(x, at, value), ("N",))


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (True, np.float64, "got True, want a number above zero"),
        ("0.1", np.float64, "got '0.1', want a number"),
        (None, np.float64, "got None, want a number"),
        (0.1 + 0j, np.float64, "got .*, want a number above zero"),
        (np.ones(1), np.float64, "got .*, want a number above zero"),
        (10**400, np.float64, "got inf, want a finite number above zero"),
        (-1, np.float64, "got -1, want a finite number above zero"),
        (np.nan, np.float32, "got nan, want a finite number above zero"),
        (1e39, np.float32, "got 1e.39, want a finite number .* in float32 .* to 3.4e"),
        (1e-50, np.float32, "got 1e-50, .* above zero, in float32 from 1.18e-38"),
    ],
)
def test_rates(value, dtype, message):
    with pytest.raises((TypeError, ValueError), match=f"^rate: {message}"):
        check_rate("rate", value, dtype)
    assert check_rate("rate", np.float32(0.5), dtype) == check_rate("rate", 0.5) == 0.5
    assert check_rate("rate", 1e39) == 1e39


@pytest.mark.parametrize("value", [True, np.True_, 1.0, np.float32(1), "1", None, [1]])
def test_what_is_no_integer(value):
    for call in (
        lambda: lk.Params.init(3, value),
        lambda: lk.Params.init(3, 2, seed=value),
        lambda: lk.network("numpy", example(SHAPE)[0], threads=value or [None]),
        lambda: data.windows(np.arange(9.0), value),
    ):
        with pytest.raises(TypeError, match=r": got .*, want an integer "):
            call()


def test_state_dy_and_target(version, cell):
    params, x, target = example(SHAPE, cell)
    net = lk.network(version, params)
    state = tuple(np.zeros((2, 3, 5), np.float32) for _ in CELLS[cell].state)
    dy = np.zeros((4, 3, 5), np.float32)
    with pytest.raises(RuntimeError, match=r"want forward\(x, training=True\)"):
        net.backward(dy)
    net.forward(x, training=True)
    for call, message in (
        (lambda: net.backward(dy[:, :2]), r"dy: got shape \(4, 2, 5\), want \(4, 3, 5"),
        (
            lambda: net.backward(dy, tuple(a * np.nan for a in state)),
            "dstate.h: got nan",
        ),
        (lambda: net.forward(x, list(state)), "state: got list, want a tuple"),
        (lambda: net.forward(x, (dy, dy, dy)), "state: got a tuple of 3"),
        (
            lambda: net.forward(x, tuple(a[:1] for a in state)),
            r"state.h: got shape \(1, 3, 5\), want \(2, 3, 5\)",
        ),
        (
            lambda: net.loss_and_grads(x, target[:, :1]),
            r"target: got shape \(3, 1\), want \(3, 2\)",
        ),
        (
            lambda: net.step(x, target, -1),
            "learning_rate: got -1, want a finite number",
        ),
        (lambda: net.step(x, target, "fast"), "learning_rate: got 'fast'"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^{message}"):
            call()


def test_backward_does_not_use_the_tape_of_old_parameters(version):
    params, x, target = example(SHAPE)
    net = lk.network(version, params)
    y, _ = net.forward(x, training=True)
    net.step(x, target, 0.1)
    with pytest.raises(RuntimeError, match="training=True"):
        net.backward(np.zeros_like(y))


def test_a_network_without_read_out_has_no_loss(version):
    params, x, target = example(SHAPE, output_size=None)
    with pytest.raises(ValueError, match="no read-out"):
        lk.network(version, params).step(x, target, 0.1)


def test_names_and_sizes():
    params, _, _ = example(SHAPE)
    net, init = lk.network("numpy", params), lk.Params.init
    series, cells = data.windows([1, 2, 3], 1), "want one of 'rnn', 'lstm', 'gru'"
    calls = [
        (
            lambda: lk.network("cudnn", params),
            "name: got 'cudnn', want one of 'sequent",
        ),
        (lambda: lk.network("numba-fusd", params), ".*; did you mean 'numba-fused'"),
        (lambda: lk.network("Numpy", params), ".*; did you mean 'numpy'"),
        (
            lambda: lk.train(net, series, 1, 1, 1.0, optimizer="Adam"),
            "optimizer: got 'Adam', want .*; did you mean 'adam'",
        ),
        (
            lambda: lk.network("numba-chunks", params, tolerence=0),
            "network: got option 'tolerence', numba-chunks has chunks, run_up, "
            "tolerance, sweeps; did you mean 'tolerance'",
        ),
        (
            lambda: lk.network("numba-newton", params, warmth=True),
            "network: got option 'warmth', numba-newton has warm_start, chunks, run_up",
        ),
        (
            lambda: lk.network("numpy", params, chunks=2),
            "network: got option 'chunks', numpy has none$",
        ),
        (lambda: lk.network("numpy", {}), "params: got dict, want lstm_kernels.Params"),
        (lambda: init(1, 0), "hidden_size: got 0, want an integer of at least 1"),
        (lambda: init(1.5, 2), "input_size: got 1.5, want an integer"),
    ]
    for cell in ("mamba", ["lstm"], None, np.array(["lstm", "gru"]), {"lstm"}):
        calls.append((lambda c=cell: init(1, 2, cell=c), f"cell: got .*, {cells}"))
    for dtype in (np.float16, "nonsense", None, ">f8"):
        for call in (
            lambda d=dtype: init(1, 2, dtype=d),
            partial(params.astype, dtype),
        ):
            calls.append((call, "dtype: got .*, want float32 or float64"))
    for call, message in calls:
        with pytest.raises((TypeError, ValueError), match=f"^{message}"):
            call()


@pytest.mark.parametrize("threads", [0, -1, 1.5, "two"])
def test_threads(version, threads):
    with pytest.raises((ValueError, TypeError), match="threads: got"):
        lk.network(version, example(SHAPE)[0], threads=threads)


def test_more_threads_than_numba_started_with():
    with pytest.raises(ValueError, match="threads: got 4096, want at most"):
        lk.network("numba-sample", example(SHAPE)[0], threads=4096)


def test_params_of_the_wrong_shape_are_refused(version):
    for name, change in (
        ("U", lambda a: a[:, :-1]),
        ("W", lambda a: a.T.copy()),
        ("b", lambda a: a[:-1]),
        ("W", lambda a: bad(a, 3, np.nan)),
        ("b", lambda a: a.astype(np.float64)),
    ):
        params = example(SHAPE)[0].copy()
        setattr(params.layers[1], name, change(getattr(params.layers[1], name)))
        with pytest.raises(
            (ValueError, TypeError), match=rf"params.layers\[\d\].{name}: got"
        ):
            lk.network(version, params)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of np.matrix
@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("W", None, r"layers\[0\].W: got NoneType, want .* shape \(H, 4\*H\)"),
        ("W", [[1.0] * 4], r"layers\[0\].W: got list, want .* shape \(H, 4\*H\)"),
        ("W", np.ones(4), r"layers\[0\].W: got 1 axes, .* shape \(H, 4\*H\)"),
        ("W", np.matrix, r"layers\[0\].W: got matrix"),
        (
            "W",
            np.ones((5, 20), int),
            r"layers\[0\].W: got dtype int64, want float32 or",
        ),
        ("W", np.ones((0, 0)), r"layers\[0\].W: got shape .*\(H, 4\*H\) and no empty"),
        ("U", np.ma.ones((2, 20)), r"layers\[0\].U: got a masked array, want"),
        ("b", "b", r"layers\[0\].b: got str, want a NumPy array of shape \(20,\)"),
        ("cell", ["lstm"], r"cell: got \['lstm'\], want one of"),
        ("layers", 3, "layers: got 3, want a list of at least one Layer"),
        ("layers", [3], r"layers\[0\]: got int, want lstm_kernels.Layer"),
        ("V", None, "got b_out without V, want both or neither"),
        ("b_out", None, "got V without b_out, want both or neither"),
    ],
)
def test_parts_of_parameters_that_cannot_be(part, value, message):
    params = example(SHAPE)[0]
    value = np.asmatrix(params.layers[0].W) if value is np.matrix else value
    setattr(params.layers[0] if part in "UWb" else params, part, value)
    for call in (params.check, lambda: lk.network("numpy", params)):
        with pytest.raises((TypeError, ValueError), match=f"^params[.:] ?{message}"):
            call()


def test_assign_refuses_another_form():
    net, other = lk.network("numpy", example(SHAPE)[0]), example((1, 4, 3, 2, 5))[0]
    want = "params: got LSTM, 1 layer of 5.* want LSTM, 2 layers of 5"
    with pytest.raises(ValueError, match=want):
        net.assign(other)


def test_windows_and_data_sets():
    x, target = np.zeros((4, 3, 1), np.float32), np.zeros((3, 1), np.float32)
    assert type(lk.Dataset(x.view(Sub), target).x) is np.ndarray
    for call, message in (
        (lambda: data.windows(np.arange(12.0), 12), "length: got 12, want .* 1 to 11"),
        (lambda: data.windows(np.arange(12.0), 0), "length: got 0"),
        (lambda: data.windows([1, 2, np.nan, 3], 2), r"series: got nan at index \[2\]"),
        (lambda: lk.Dataset(np.ma.array(x), target), "x: got a masked array"),
        (lambda: lk.Dataset(x, np.ma.array(target)), "target: got a masked array"),
        (
            lambda: lk.Dataset(x, target.astype(float)),
            "target: got dtype float64, want",
        ),
        (lambda: lk.Dataset(x, target[:2]), r"target: got shape \(2, 1\), want \(3, O"),
        (
            lambda: lk.Dataset(x[:, :0], target[:0]),
            r"x: got shape \(4, 0, 1\), want \(T, N, D\), time first",
        ),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^{message}"):
            call()

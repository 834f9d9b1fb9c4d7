"""The comparer must catch planted faults."""

import numpy as np
import pytest
from conftest import example

import lstm_kernels as lk
from lstm_kernels import cells, reference
from lstm_kernels.params import Layer
from lstm_kernels.versions.base import Network
from lstm_report.measure.comparer import (
    TOLERANCE,
    MismatchError,
    compare,
    compare_to_reference,
)


def broken_forward(change):
    """A network whose forward goes through `change(tape)`."""

    class Broken(Network):
        @staticmethod
        def layer_forward(cell, layer, x, h0, c0):
            tape = reference.layer_forward(cell, layer, x, h0, c0)
            change(tape)
            return tape

    return Broken


def permuted_gates(tape):
    H = tape.h.shape[-1]
    tape.gates[..., :H], tape.gates[..., H : 2 * H] = (
        tape.gates[..., H : 2 * H].copy(),
        tape.gates[..., :H].copy(),
    )


def untouched_output(tape):
    tape.h[1:] = 0


def one_nan(tape):
    tape.h[-1, 0, 0] = np.nan


def all_nan(tape):
    tape.h[1:] = np.nan


def late_step(tape):
    tape.h[2:] = tape.h[1:-1].copy()


@pytest.mark.parametrize(
    "fault", [permuted_gates, untouched_output, one_nan, all_nan, late_step]
)
def test_a_broken_forward_is_caught(fault):
    params, x, _ = example((2, 4, 3, 3, 7))
    compare_to_reference(Network(params), params, x)
    with pytest.raises(MismatchError):
        compare_to_reference(broken_forward(fault)(params), params, x)


@pytest.mark.parametrize("path", ["inference from zero", "inference", "training"])
@pytest.mark.parametrize("part", ["y", "final.0", "final.1"])
def test_a_fault_on_one_path_alone_is_caught(path, part):
    """Inference was wrong once while training, all that was compared, was right."""
    params, x, _ = example((2, 4, 3, 3, 7))

    class Broken(Network):
        def _forward(self, x, state, training):
            y, final, tapes = super()._forward(x, state, training)
            here = (
                "training" if training else "inference" + " from zero" * (state is None)
            )
            if here == path:
                array = y if part == "y" else final[int(part[-1])]
                array[-1, 0, 0] += np.float32(0.1)
            return y, final, tapes

    with pytest.raises(MismatchError, match=f"^{path}: {part}: relative error"):
        compare_to_reference(Broken(params), params, x)


def test_a_state_left_behind_is_caught():
    params, x, _ = example((1, 4, 3, 3, 7))

    class Broken(Network):
        last = None

        def _forward(self, x, state, training):
            self.last = state = self.last if state is None else state
            return super()._forward(x, state, training)

    with pytest.raises(MismatchError, match=r"^inference from zero: y"):
        compare_to_reference(Broken(params), params, x)


@pytest.mark.parametrize("missing", ["U", "W", "b"])
def test_a_missing_gradient_is_caught(missing, cell):
    params, x, _ = example((2, 4, 3, 3, 7), cell)

    class Broken(Network):
        @staticmethod
        def layer_backward(*args):
            grad, *rest = reference.layer_backward(*args)
            parts = {name: getattr(grad, name) for name in ("U", "W", "b")}
            return Layer(**parts | {missing: np.zeros_like(parts[missing])}), *rest

    with pytest.raises(MismatchError, match=missing):
        compare_to_reference(Broken(params), params, x)


def test_parameters_with_permuted_gates_are_caught():
    params, x, _ = example((1, 4, 3, 3, 7))
    other = params.copy()
    for name in ("U", "W", "b"):
        array = getattr(other.layers[0], name)
        array[..., :14] = np.concatenate([array[..., 7:14], array[..., :7]], axis=-1)
    with pytest.raises(MismatchError):
        compare_to_reference(lk.network("numpy", other), params, x)


@pytest.mark.parametrize(
    ("got", "message"),
    [
        ({}, "want"),
        ({"a": None}, "a: got None, want real numbers"),
        ({"a": np.ones(3), "b": np.ones(2)}, "got arrays"),
        ({"a": np.ones(2)}, "shape"),
        ({"a": np.ones((3, 1))}, "shape"),
        ({"a": np.array([1, 2, np.nan])}, "not finite"),
        ({"a": np.array([1, 2, np.inf])}, "not finite"),
        ({"a": np.zeros(3)}, "relative error"),
        ({"a": np.array([1, 2, 3 + 1e-3])}, "relative error"),
        ({"a": np.array([1, 2, 3 + 1e-9j])}, "a: got complex128, want real numbers"),
        ({"a": np.array(["1", "2", "3"])}, "a: got <U1, want real numbers"),
    ],
)
def test_compare_refuses(got, message):
    want = {"a": np.array([1.0, 2.0, 3.0])}
    assert compare(want, want, 1e-6) == 0
    with pytest.raises(MismatchError, match=message):
        compare(got, want, 1e-6)
    with pytest.raises(
        MismatchError, match="a: compared with complex128, want real numbers"
    ):
        compare(want, {"a": want["a"] + 1j}, 1e-6)


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 1e-4), (np.float64, 1e-10)])
def test_no_tolerance_admits_what_is_more_than_rounding(dtype, error):
    """Ten roundings in a row stay far below; a network off by this is wrong."""
    params, x, _ = example((1, 4, 3, 3, 7), dtype=dtype)

    class Off(Network):
        def _forward(self, x, state, training):
            y, final, tapes = super()._forward(x, state, training)
            return y * dtype(1 + error), final, tapes

    assert np.finfo(dtype).eps < TOLERANCE[np.dtype(dtype)] < error
    with pytest.raises(MismatchError, match="y: relative error"):
        compare_to_reference(Off(params), params, x)


def test_small_arrays_are_judged_by_their_own_size():
    want = {"a": np.array([1e-3, 5e-4])}
    off = {"a": want["a"] + 1e-6}  # a thousandth of the largest entry
    assert compare(off, want, 2e-3) == pytest.approx(1e-3)
    with pytest.raises(MismatchError, match="a: relative error"):
        compare(off, want, TOLERANCE[np.dtype(np.float32)])


def coupled(tanh, sigmoid):
    """An LSTM of three gates and one state array: what it forgets, it takes in."""

    def forward(i_bar, g_bar, o_bar, c_prev):
        i, g, o = sigmoid(i_bar), tanh(g_bar), sigmoid(o_bar)
        c = c_prev + i * (g - c_prev)
        return i, g, o, o * tanh(c), c

    def backward(dh, dc, i, g, o, c_prev, c):
        t = tanh(c)
        dc = dc + dh * o - dh * o * t * t
        di, dg, do = dc * (g - c_prev), dc * i, dh * t
        bars = (di - di * i) * i, dg - dg * g * g, (do - do * o) * o
        return *bars, dc - dc * i

    return forward, backward


@pytest.mark.parametrize("version", ["numpy", "sequential"])
def test_a_new_cell_is_compared_with_its_own_gates_and_states(monkeypatch, version):
    gates = tuple(range(3))
    cell = cells.Cell("cifg", ("i", "g", "o"), gates, gates, ("h", "c"), coupled)
    monkeypatch.setitem(cells.CELLS, "cifg", cell)
    params, x, _ = example((2, 4, 3, 3, 7), "cifg")
    assert compare_to_reference(version, params, x) < 1e-5

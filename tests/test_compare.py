"""The comparer must catch planted faults."""

import numpy as np
import pytest
from conftest import example

from lstm_kernels import reference
from lstm_kernels.params import Layer
from lstm_kernels.versions.base import Network
from lstm_report.measure.comparer import (
    TOLERANCE,
    MismatchError,
    compare,
    compare_to_reference,
)

SHAPE = (2, 4, 3, 3, 7)
# What changes the tape of a layer's forward pass.
FAULTS = {
    "gates permuted": lambda tape: np.copyto(tape.gates, np.roll(tape.gates, 7, -1)),
    "output untouched": lambda tape: tape.h[1:].fill(0),
    "one NaN": lambda tape: tape.h[-1:, :1, :1].fill(np.nan),
    "all NaN": lambda tape: tape.h[1:].fill(np.nan),
    "a step late": lambda tape: np.copyto(tape.h[2:], tape.h[1:-1].copy()),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_forward_is_caught(fault):
    params, x, _ = example(SHAPE)

    class Broken(Network):
        @staticmethod
        def layer_forward(cell, layer, x, h0, c0):
            tape = reference.layer_forward(cell, layer, x, h0, c0)
            FAULTS[fault](tape)
            return tape

    compare_to_reference(Network(params), params, x)
    with pytest.raises(MismatchError):
        compare_to_reference(Broken(params), params, x)


@pytest.mark.parametrize("path", ["inference from zero", "inference", "training"])
@pytest.mark.parametrize("part", ["y", "final.0", "final.1"])
def test_a_fault_on_one_path_alone_is_caught(path, part):
    """Inference was wrong once while training, all that was compared, was right."""
    params, x, _ = example(SHAPE)

    class Broken(Network):
        def _forward(self, x, state, training):
            y, final, tapes = super()._forward(x, state, training)
            inference = "inference" if state is not None else "inference from zero"
            if path == ("training" if training else inference):
                array = y if part == "y" else final[int(part[-1])]
                array[-1, 0, 0] += np.float32(0.1)
            return y, final, tapes

    with pytest.raises(MismatchError, match=f"^{path}: {part}: relative error"):
        compare_to_reference(Broken(params), params, x)


def test_a_state_left_behind_is_caught():
    params, x, _ = example(SHAPE)

    class Broken(Network):
        last = None

        def _forward(self, x, state, training):
            self.last = state = self.last if state is None else state
            return super()._forward(x, state, training)

    with pytest.raises(MismatchError, match=r"^inference from zero: y"):
        compare_to_reference(Broken(params), params, x)


@pytest.mark.parametrize("missing", ["U", "W", "b"])
def test_a_missing_gradient_is_caught(missing, cell):
    params, x, _ = example(SHAPE, cell)

    class Broken(Network):
        @staticmethod
        def layer_backward(*args):
            grad, *rest = reference.layer_backward(*args)
            parts = {name: getattr(grad, name) for name in ("U", "W", "b")}
            return Layer(**parts | {missing: np.zeros_like(parts[missing])}), *rest

    with pytest.raises(MismatchError, match=missing):
        compare_to_reference(Broken(params), params, x)


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 1e-4), (np.float64, 1e-10)])
def test_no_tolerance_admits_what_is_more_than_rounding(dtype, error):
    """Ten roundings in a row stay far below; a network off by this is wrong."""
    params, x, _ = example(SHAPE, dtype=dtype)

    class Off(Network):
        def _forward(self, x, state, training):
            y, final, tapes = super()._forward(x, state, training)
            return y * dtype(1 + error), final, tapes

    assert np.finfo(dtype).eps < TOLERANCE[np.dtype(dtype)] < error
    with pytest.raises(MismatchError, match="y: relative error"):
        compare_to_reference(Off(params), params, x)


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
    with pytest.raises(MismatchError, match="a: compared with complex128, want real"):
        compare(want, {"a": want["a"] + 1j}, 1e-6)


def test_small_arrays_are_judged_by_their_own_size():
    want = {"a": np.array([1e-3, 5e-4])}
    off = {"a": want["a"] + 1e-6}  # a thousandth of the largest entry
    assert compare(off, want, 2e-3) == pytest.approx(1e-3)
    with pytest.raises(MismatchError, match="a: relative error"):
        compare(off, want, TOLERANCE[np.dtype(np.float32)])

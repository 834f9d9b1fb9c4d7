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
EXAMPLE = example(SHAPE)


def caught(faulty, params, x, match):
    compare_to_reference(Network(params), params, x)
    with pytest.raises(MismatchError, match=match):
        compare_to_reference(faulty(params), params, x)


@pytest.mark.parametrize("path", ["inference from zero", "inference", "training"])
@pytest.mark.parametrize("part", ["y", "final.0", "final.1"])
def test_a_fault_on_one_path_alone_is_caught(path, part):
    """Inference was wrong once while training, all that was compared, was right."""

    class Faulty(Network):
        def _forward(self, x, state, training):
            y, final, tapes = super()._forward(x, state, training)
            inference = "inference" if state is not None else "inference from zero"
            if path == ("training" if training else inference):
                array = y if part == "y" else final[int(part[-1])]
                array[-1, 0, 0] += np.float32(0.1)
            return y, final, tapes

    params, x, _ = EXAMPLE
    caught(Faulty, params, x, f"^{path}: {part}: relative error")


def test_a_state_left_behind_is_caught():
    class Faulty(Network):
        last = None

        def _forward(self, x, state, training):
            self.last = state = self.last if state is None else state
            return super()._forward(x, state, training)

    params, x, _ = EXAMPLE
    caught(Faulty, params, x, r"^inference from zero: y")


@pytest.mark.parametrize("missing", ["U", "W", "b"])
def test_a_missing_gradient_is_caught(missing, cell):
    class Faulty(Network):
        @staticmethod
        def layer_backward(*args):
            grad, *rest = reference.layer_backward(*args)
            parts = {name: getattr(grad, name) for name in ("U", "W", "b")}
            return Layer(**parts | {missing: np.zeros_like(parts[missing])}), *rest

    params, x, _ = example(SHAPE, cell)
    caught(Faulty, params, x, missing)


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 1e-4), (np.float64, 1e-10)])
def test_no_tolerance_admits_what_is_more_than_rounding(dtype, error):
    """Ten roundings in a row stay far below; a network off by this is wrong."""

    class Faulty(Network):
        def _forward(self, x, state, training):
            y, final, tapes = super()._forward(x, state, training)
            return y * dtype(1 + error), final, tapes

    assert np.finfo(dtype).eps < TOLERANCE[np.dtype(dtype)] < error
    params, x, _ = example(SHAPE, dtype=dtype)
    caught(Faulty, params, x, "y: relative error")


A = np.array([1.0, 2.0, 3.0])
REFUSED = [
    ({}, {"a": A}, "want"),
    ({"a": A, "b": A}, {"a": A}, "got arrays"),
    ({"a": None}, {"a": A}, "a: got None, want real numbers"),
    ({"a": A + 1e-9j}, {"a": A}, "a: got complex128, want real numbers"),
    ({"a": A.astype(str)}, {"a": A}, "a: got <U32, want real numbers"),
    ({"a": A}, {"a": A + 1j}, "a: compared with complex128, want real"),
    ({"a": A[:2]}, {"a": A}, "shape"),
    ({"a": A[:, None]}, {"a": A}, "shape"),
    ({"a": np.array([1, 2, np.nan])}, {"a": A}, "not finite"),
    ({"a": np.array([1, 2, np.inf])}, {"a": A}, "not finite"),
    ({"a": 0 * A}, {"a": A}, "relative error"),
    # Judged by its own size: a thousandth of the largest entry.
    ({"b": 10 * A, "a": 1e-3 * A + 3e-6}, {"b": 10 * A, "a": 1e-3 * A}, "a: relative"),
]


@pytest.mark.parametrize(("got", "want", "message"), REFUSED)
def test_compare_refuses(got, want, message):
    with pytest.raises(MismatchError, match=message):
        compare(got, want, 0.9e-3)


def test_the_error_is_relative_to_the_largest_entry():
    assert compare({"a": A}, {"a": A}, 0.0) == 0
    assert compare({"a": A + 3e-3}, {"a": A}, 1.1e-3) == pytest.approx(1e-3)

"""Backward passes: gradients summed over several of them, and without those of the
inputs.
"""

import numpy as np
import pytest
from conftest import SIMULATED, skip_slow

import lstm_kernels as lk
from lstm_report.measure.comparer import compare


def gradients_of_passes(net, batches, sums=None):
    """The parameters' gradients of several passes, added up one by one or in `sums`."""
    total = None
    for k, (x, dy) in enumerate(batches):
        net.forward(x, training=True)
        if sums is None:
            named = net.backward(dy).arrays()
        else:
            more = k < len(batches) - 1
            grads = net.backward(dy, sums=sums, more=more)
            assert (grads.layers == []) == more
            assert grads.x.shape == x.shape
            if more:
                continue
            return {name: a for name, a in grads.arrays().items() if "layers" in name}
        named = {name: a for name, a in named.items() if "layers" in name}
        total = (
            named
            if total is None
            else {name: a + named[name] for name, a in total.items()}
        )
    return total


def several_batches(D, H, dtype=np.float32):
    rng = np.random.default_rng(0)
    return [
        (
            rng.standard_normal((T, B, D)).astype(dtype),
            rng.standard_normal((T, B, H)).astype(dtype),
        )
        for T, B in ((5, 3), (2, 1), (5, 3), (1, 4))
    ]


@pytest.mark.parametrize("H", [7, 16, 17, 64])
def test_gradients_are_summed_over_passes(version, H):
    if SIMULATED and version.startswith("cuda") and H in (16, 64):
        pytest.skip("slow in the simulator")
    net = lk.network(version, lk.Params.init(6, H, num_layers=2))
    batches = several_batches(6, H)
    sums = net.new_sums()
    for _ in range(2):  # the second time they begin anew
        got = gradients_of_passes(net, batches, sums)
        compare(got, gradients_of_passes(net, batches), 1e-5)
    # Other passes go between without a trace.
    net.forward(batches[0][0], training=True)
    net.backward(batches[0][1], sums=sums, more=True)
    alone = gradients_of_passes(net, batches[1:2])
    net.forward(batches[1][0], training=True)
    last = net.backward(batches[1][1], sums=sums)
    first = gradients_of_passes(net, batches[:1])
    for name, gradient in alone.items():
        compare({name: last.arrays()[name]}, {name: gradient + first[name]}, 1e-5)


def test_gradients_without_those_of_the_inputs(version):
    skip_slow(version, (2, 5, 3, 6, 17), "lstm")
    net = lk.network(version, lk.Params.init(6, 17, num_layers=2))
    (x, dy), *_ = several_batches(6, 17)
    net.forward(x, training=True)
    want = net.backward(dy).arrays()
    for inputs in (False, True):
        net.forward(x, training=True)
        got = net.backward(dy, inputs=inputs)
        assert (got.x is None) == (not inputs)
        for name, array in got.arrays().items():
            np.testing.assert_array_equal(array, want[name])


def test_sums_of_another_network_or_of_an_interrupted_pass():
    one, other = (lk.network("numba-fused", lk.Params.init(2, 3)) for _ in range(2))
    x, dy = np.ones((2, 1, 2), np.float32), np.ones((2, 1, 3), np.float32)
    one.forward(x, training=True)
    with pytest.raises(ValueError, match="sums: got those of another network"):
        one.backward(dy, sums=other.new_sums())
    with pytest.raises(TypeError, match="sums: got dict, want"):
        one.backward(dy, sums={})
    sums = one.new_sums()
    sums.torn = True
    with pytest.raises(RuntimeError, match="sums of which a pass was not finished"):
        one.backward(dy, sums=sums)
    sums.begin()
    want = one.backward(dy)
    one.forward(x, training=True)
    np.testing.assert_array_equal(
        one.backward(dy, sums=sums).layers[0].U, want.layers[0].U
    )

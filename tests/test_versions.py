"""Every version against the reference: outputs, states and each named gradient, over
odd shapes.
"""

import copy
import doctest
import sys
from types import SimpleNamespace
from typing import get_args

import numba
import numpy as np
import pytest
from conftest import EDGES, SHAPES, SIMULATED, example, skip_slow

import lstm_kernels as lk
from lstm_kernels import reference, schedules
from lstm_report.measure.comparer import TOLERANCE, compare, compare_to_reference


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agrees_with_reference(version, cell, shape, dtype):
    skip_slow(version, shape, cell, dtype)
    params, x, _ = example(shape, cell, dtype)
    compare_to_reference(version, params, x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sizes_beside_a_vector_and_a_block_agree(version, cell, dtype):
    """One layer and two, one step and some, at every size where a kernel may change its
    ways.
    """
    skip_slow(version, SHAPES[1], cell, dtype)
    for number, H in enumerate(EDGES):
        shape = (
            1 + number % 2,
            (1, 3, 4)[number % 3],
            2 + number % 4,
            (H, 3)[number % 2],
            H,
        )
        # No vectors there; four numbers are loaded at a time.
        if version.startswith("cuda") and (H > 5 or dtype == np.float64):
            continue
        if version in ("sequential", "numpy-sample") and H > 33:
            continue
        params, x, _ = example(shape, cell, dtype)
        compare_to_reference(version, params, x)


def test_one_step_of_every_depth_at_whole_blocks(version, cell):
    """T = 1, and storage without padding: what a call returns is what the kernels
    wrote.
    """
    H, depths = (8, (1, 3)) if version.startswith("cuda") else (64, (1, 2, 3))
    for layers in depths:
        params, x, _ = example((layers, 1, 3, 5, H), cell)
        compare_to_reference(version, params, x)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_loss_and_grads_agree(version, cell, shape):
    skip_slow(version, shape, cell)
    params, x, target = example(shape, cell)
    net = lk.network(version, params)
    loss, grads = net.loss_and_grads(x, target)
    wide = params.astype(np.float64), x.astype(np.float64), target.astype(np.float64)
    want_loss, want = reference.loss_and_grads(*wide)
    assert loss == pytest.approx(want_loss, rel=1e-5)
    compare(grads.arrays(), want.arrays(), TOLERANCE[x.dtype])


def test_sample_by_sample_equals_batch(version, cell):
    params, x, _ = example((2, 5, 4, 3, 7), cell)
    net = lk.network(version, params)
    y, _ = net.forward(x)
    single = [net.forward(x[:, s : s + 1])[0] for s in range(x.shape[1])]
    compare({"y": np.concatenate(single, axis=1)}, {"y": y}, TOLERANCE[x.dtype])


def test_state_carries_over_a_cut_sequence(version, cell):
    params, x, _ = example((2, 6, 3, 2, 7), cell)
    net = lk.network(version, params)
    whole, last = net.forward(x)
    first, state = net.forward(x[:2])
    second, state = net.forward(x[2:], state)
    got = {"y": np.concatenate([first, second])} | dict(enumerate(state))
    compare(got, {"y": whole} | dict(enumerate(last)), TOLERANCE[x.dtype])


def test_sequences_of_different_lengths(version, cell):
    """What `forward` says of them, run as it stands there, gives each sequence's own
    last output and gradients; what they are padded with does not matter.
    """
    if (
        SIMULATED
        and version.startswith("cuda")
        and (cell, version) != ("gru", "cuda-v2")
    ):
        pytest.skip("slow in the simulator")
    params, x, _ = example((2, 6, 4, 3, 7), cell, output_size=None)
    lengths, rng = np.array([6, 1, 4, 3]), np.random.default_rng(8)
    dlast = rng.standard_normal((4, 7)).astype(np.float32)
    net = lk.network(version, params)
    names = {"np": np, "net": net, "x": x, "lengths": lengths, "dlast": dlast}
    steps = doctest.DocTestParser().get_examples(type(net).forward.__doc__)
    exec("".join(step.source for step in steps), names)
    alone, sums = [], {}
    for sample, length in enumerate(lengths):
        own = np.ascontiguousarray(x[:length, sample : sample + 1])
        y, _ = net.forward(own, training=True)
        alone.append(y[-1, 0])
        dy = np.zeros_like(y)
        dy[-1, 0] = dlast[sample]
        grads = net.backward(dy)
        dx = names["grads"].x[:, sample]
        compare({"x": dx[:length]}, {"x": grads.x[:, 0]}, TOLERANCE[x.dtype])
        assert not dx[length:].any()
        for name, a in grads.arrays().items():
            if name.startswith("layers"):
                sums[name] = sums.get(name, 0) + a
    compare({"last": names["last"]}, {"last": np.stack(alone)}, TOLERANCE[x.dtype])
    got = {name: names["grads"].arrays()[name] for name in sums}
    compare(got, sums, TOLERANCE[x.dtype])


def test_step_is_gradient_descent(version, cell):
    params, x, target = example((2, 4, 5, 3, 7), cell)
    net = lk.network(version, params)
    loss, grads = net.loss_and_grads(x, target)
    assert net.step(x, target, 0.5) == loss
    want = {name: a - 0.5 * grads.arrays()[name] for name, a in params.arrays().items()}
    compare(net.params().arrays(), want, 1e-6)


@pytest.mark.parametrize(
    "shape", [(2, 5, 17, 3, 33), (1, 12, 16, 1, 64), (2, 20, 64, 128, 128)]
)
def test_same_bits_for_every_thread_count_and_run(version, shape):
    if version in ("sequential", "numpy-sample") and shape[-1] > 64:
        pytest.skip("slow, and single-threaded by construction")
    if version.startswith("cuda") and (SIMULATED or version == "cuda-v1"):
        if shape[-1] > 33:
            pytest.skip("slow in the simulator, and on one thread")
        shape = (2, 3, 17, 3, 9)
    params, x, target = example(shape)
    results = []
    several = min(2, numba.config.NUMBA_NUM_THREADS)
    for threads in (1, several, several, None):
        loss, grads = lk.network(version, params, threads=threads).loss_and_grads(
            x, target
        )
        results.append({"loss": np.array(loss)} | grads.arrays())
    for other in results[1:]:
        for name, value in results[0].items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)


def test_steps_descend_by_the_gradients_of_the_reference(version, cell):
    """Several, and after a backward pass that began with a gradient of the final state:
    each begins with none, in every layer.
    """
    params, x, target = example((3, 4, 2, 3, 5), cell)
    skip_slow(version, (3, 4, 2, 3, 5), cell)
    net, want, rate = lk.network(version, params), params.astype(np.float64), 0.5
    y, final = net.forward(x, training=True)
    net.backward(np.ones_like(y), tuple(np.ones_like(part) for part in final))
    for _ in range(3):
        wide = x.astype(np.float64), target.astype(np.float64)
        loss, grads = reference.loss_and_grads(want, *wide)
        assert net.step(x, target, rate) == pytest.approx(loss, rel=1e-5)
        slopes = grads.arrays()
        moved = {n: a - rate * slopes[n] for n, a in want.arrays().items()}
        want = want.from_arrays(moved, cell)
    got = net.params().arrays()
    for name, a in want.arrays().items():
        np.testing.assert_allclose(got[name], a, rtol=1e-5, atol=2e-6, err_msg=name)


def test_the_caller_owns_what_comes_and_goes(version):
    params, x, target = example((1, 4, 3, 2, 7))
    before, x_before = params.copy(), x.copy()
    net = lk.network(version, params)
    y, state = net.forward(x, training=True)
    dy = np.ones_like(y)
    want = net.backward(dy).arrays()
    y[:], state[0][:] = np.nan, np.nan
    np.testing.assert_array_equal(dy, 1)
    for name, value in net.backward(dy).arrays().items():
        np.testing.assert_array_equal(value, want[name])
    net.step(x, target, 0.1)
    net.params().layers[0].W[:] = np.nan
    assert np.isfinite(net.params().layers[0].W).all()
    for name, value in before.arrays().items():
        np.testing.assert_array_equal(params.arrays()[name], value)
    np.testing.assert_array_equal(x, x_before)


def test_large_inputs_saturate_without_warning(version, cell):
    params, x, _ = example((1, 3, 2, 2, 7), cell)
    y, _ = lk.network(version, params).forward(x * np.float32(1e6))
    assert np.isfinite(y).all()
    assert np.abs(y).max() <= 1


def test_a_network_says_what_it_is(version):
    net = lk.network(version, example((2, 1, 1, 3, 7))[0], threads=1)
    assert net.name == version
    says = f"{version}: LSTM, 2 layers of 7, 3 inputs, read-out 2, float32"
    assert repr(net) in (f"{says}, 1 thread", says)
    assert repr(net) != says or version.startswith("cuda")


CALLED = []


def by_layers(graph):
    CALLED.append(graph)
    return schedules.layer_by_layer(graph)


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("numba-chunks", {"chunks": 3, "run_up": 5, "tolerance": 0, "sweeps": 2}),
        ("numba-wavefront", {"schedules": by_layers}),
    ],
)
def test_options_of_a_version_are_those_of_its_class(version, options):
    params, x, _ = example((2, 40, 1, 2, 5))
    net = lk.network(version, params, threads=1, **options)
    same = copy.deepcopy(net)  # made with the same
    want = lk.network("numpy", params).forward(x)[0]
    for one in (net, same):
        compare({"y": one.forward(x)[0]}, {"y": want}, TOLERANCE[x.dtype])
    if "chunks" in options:
        assert net.seams.chunks == same.seams.chunks == options["chunks"]
    else:
        assert len(CALLED) > 1


def test_versions_are_named_once_and_lead_to_their_classes():
    registry = sys.modules["lstm_kernels.versions"]  # the name is also a function
    names = [version.name for version in lk.versions()]
    assert names == [version.load().name for version in lk.versions()]
    assert [*get_args(registry.VersionName)] == names
    assert {version.target for version in lk.versions()} == {"cpu", "gpu"}


def test_an_unavailable_version_says_why(monkeypatch):
    class Rung(lk.Version):
        def load(self):
            return SimpleNamespace(why_unavailable=lambda: "there is no such device")

    registry = sys.modules["lstm_kernels.versions"]
    rung = Rung("rung", "needs a device", "rung.Rung", "gpu")
    assert rung.why_unavailable == "there is no such device"
    monkeypatch.setattr(registry, "_VERSIONS", (rung,))
    said = "'rung' cannot run here: there is no such device"
    with pytest.raises(lk.UnavailableError, match=said):
        lk.network("rung", example((1, 1, 1, 1, 1))[0])


@pytest.mark.parametrize(
    ("order", "kind"),
    [([0, 3], ValueError), ([-1], ValueError), ([0.5], TypeError), ([[0]], TypeError)],
)
def test_an_epoch_refuses_indices_that_are_no_examples(version, order, kind):
    params, x, target = example((1, 2, 3, 2, 7))
    net, dataset = lk.network(version, params), lk.Dataset(x, target)
    with pytest.raises(kind, match=r"^order: got"):
        net.epoch(dataset, order, 2, 0.1)
    with pytest.raises(ValueError, match=r"^batch_size: got 0"):
        net.epoch(dataset, [0, 1], 0, 0.1)
    assert len(net.epoch(dataset, [0, 1, 2], 2, 0.1)) == 2

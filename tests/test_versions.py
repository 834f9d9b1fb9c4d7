"""Every version against the reference: outputs, states and each named gradient, over
odd shapes.
"""

import copy
import doctest
import pickle
import sys
from itertools import product
from types import SimpleNamespace
from typing import get_args

import numba
import numpy as np
import pytest
from conftest import EDGES, SHAPES, SIMULATED, example, skip_slow

import lstm_kernels as lk
from lstm_kernels import params as of_params
from lstm_kernels import reference, schedules, training
from lstm_kernels.cells import CELLS
from lstm_report.measure.comparer import TOLERANCE, compare, compare_to_reference


# In float64 two: the vectors of other sizes are met in the next test.
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [*product(SHAPES, [np.float32]), *product(SHAPES[1::4], [np.float64])],
)
def test_agrees_with_reference(version, cell, shape, dtype):
    skip_slow(version, shape, cell, dtype)
    params, x, target = example(shape, cell, dtype)
    net = lk.network(version, params)
    compare_to_reference(net, params, x)
    wide = (a.astype(np.float64) for a in (params, x, target))
    want_loss, want = reference.loss_and_grads(*wide)
    loss, grads = net.loss_and_grads(x, target)
    assert loss == pytest.approx(want_loss, rel=1e-5)
    compare(grads.arrays(), want.arrays(), TOLERANCE[x.dtype])


# One layer and two, one step and some, at every size where a kernel may change its
# ways; one step of storage without padding: what a call returns, the kernels wrote.
BESIDE = [
    (1 + n % 2, (1, 3, 4)[n % 3], 2 + n % 4, (H, 3)[n % 2], H)
    for n, H in enumerate(EDGES)
]
BESIDE += [(L, 1, 3, 5, H) for L, H in ((1, 8), (3, 8), (1, 64), (2, 64), (3, 64))]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sizes_beside_a_vector_and_a_block_agree(version, cell, dtype):
    skip_slow(version, SHAPES[1], cell, dtype)
    for shape in BESIDE:
        _, T, *_, H = shape
        if version.startswith("cuda"):  # no vectors: four numbers are loaded at a time
            most = 8 if T == 1 else 5
            skipped = dtype == np.float64 or most < H
        else:
            skipped = version in ("sequential", "numpy-sample") and H > 33
        if not skipped:
            params, x, _ = example(shape, cell, dtype)
            compare_to_reference(version, params, x)


def test_one_sample_in_two_parts_is_that_of_the_whole(version, cell):
    params, x, _ = example((2, 6, 3, 2, 7), cell)
    net = lk.network(version, params)
    y, last = net.forward(x)
    first, state = net.forward(x[:2, 1:2])
    second, state = net.forward(x[2:, 1:2], state)
    got = {"y": np.concatenate([first, second])} | dict(enumerate(state))
    want = {"y": y[:, 1:2]} | {k: a[:, 1:2] for k, a in enumerate(last)}
    compare(got, want, TOLERANCE[x.dtype])


@pytest.mark.parametrize("version", ["numpy", "numba-fused"])
def test_sequences_of_different_lengths(version, cell):
    """What `forward` says of them, run as it stands there, gives each sequence's own
    last output and gradients; what they are padded with does not matter.
    """
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
        net = lk.network(version, params, threads=threads)
        loss, grads = net.loss_and_grads(x, target)
        results.append({"loss": loss} | grads.arrays())
    for other in results[1:]:
        np.testing.assert_equal(other, results[0])


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
        before, _ = net.loss_and_grads(x, target)
        wide = x.astype(np.float64), target.astype(np.float64)
        loss, grads = reference.loss_and_grads(want, *wide)
        assert net.step(x, target, rate) == before == pytest.approx(loss, rel=1e-5)
        slopes = grads.arrays()
        moved = {n: a - rate * slopes[n] for n, a in want.arrays().items()}
        want = want.from_arrays(moved, cell)
    got = net.params().arrays()
    for name, a in want.arrays().items():
        np.testing.assert_allclose(got[name], a, rtol=1e-5, atol=2e-6, err_msg=name)


CALLED = []


def by_layers(graph):
    CALLED.append(graph)
    return schedules.layer_by_layer(graph)


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("numba-wavefront", {"schedules": by_layers}),
    ],
)
def test_options_of_a_version_are_those_of_its_class(version, options):
    """Of its copies too, and so is the number of threads."""
    params, x, _ = example((2, 40, 1, 2, 5))
    net = lk.network(version, params, threads=1, **options)
    says = f"{version}: LSTM, 2 layers of 5, 2 inputs, 2 outputs, float32, 1 thread"
    want = lk.network("numpy", params).forward(x)[0]
    for one in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        CALLED.clear()
        compare({"y": one.forward(x)[0]}, {"y": want}, TOLERANCE[x.dtype])
        assert repr(one) == says
        if "chunks" in options:
            assert one.seams.chunks == options["chunks"]
        else:
            assert CALLED


def test_names_are_those_of_the_registries_and_lead_to_their_classes():
    registry = sys.modules["lstm_kernels.versions"]  # the name is also a function
    names = [version.name for version in lk.versions()]
    assert names == [version.load().name for version in lk.versions()]
    assert {version.target for version in lk.versions()} == {"cpu", "gpu"}
    for literal, known in (
        (registry.VersionName, names),
        (of_params.CellName, CELLS),
        (training.OptimizerName, training.OPTIMIZERS),
    ):
        assert [*get_args(literal)] == [*known]


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

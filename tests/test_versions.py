"""Every version against the reference: whatever the cell, dtype, sizes, threads, state
and schedule, outputs, states and every gradient are right, with the bits of one thread.
"""

import copy
import doctest
import pickle
import sys
from typing import get_args

import numba
import numpy as np
import pytest
from conftest import ALL_CELLS, EDGES, SIMULATED, VERSIONS, example
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from toys import random_schedule

import lstm_kernels as lk
from lstm_kernels import params as params_module
from lstm_kernels import reference, schedules
from lstm_kernels.cells import CELLS
from lstm_report.measure.comparer import TOLERANCE, compare, compare_to_reference

SLOW = "sequential", "numpy-sample"
# Multiply-adds of a pass: what the simulator and plain loops take a second for
MOST = dict.fromkeys(SLOW, 300_000) | {"cuda-persistent": 1_000}
MOST |= dict.fromkeys((v for v in VERSIONS if v.startswith("cuda-v")), 3_000)
# A form of kernel is compiled for a second and more in some of them.
EXAMPLES = {"numba-fused": 60, "numba-wavefront": 30, "numba-sample": 12}
EXAMPLES |= {"numba-tile": 12, "numpy": 30}


@st.composite
def cases(draw, version, cell):
    """Sizes (L, T, B, D, H), the dtype, threads, and a seed."""
    H = draw(st.sampled_from([1, 2, 7, *EDGES]))
    L, T = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 5, 12, 25]))
    B = draw(st.sampled_from([1, 2, 3, 4, 9, 16, 17, 40]))
    # Many inputs saturate a few units, where 1 - h^2 cancels in any precision.
    D = draw(st.sampled_from([1, 2, 3, 4, 5, 8, 33, H][: 6 if H < 7 else None]))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    if H == 1 or T * B * D == 1:
        # A gradient is one number, a sum that may cancel: float32 holds no tolerance.
        dtype = np.float64
    work, most = L * T * B * (D + H) * H, MOST.get(version, 10_000_000)
    if SIMULATED and version.startswith("cuda"):
        assume(dtype == np.float32)  # the simulator computes in float64 anyway
        most = min(most, 10_000)
    assume(work <= most)
    threads = draw(st.sampled_from([1, min(2, numba.config.NUMBA_NUM_THREADS), None]))
    return (L, T, B, D, H), dtype, threads, draw(st.integers(0, 99))


def everything(net, x, target, seed):
    """What a network computes on each public path, by name; it has made two steps."""
    rng, params = np.random.default_rng(seed), net.params()
    T, B, H = *x.shape[:2], params.hidden_size
    shape = len(CELLS[params.cell].state), params.num_layers, B, H
    state, dstate = (tuple(a) for a in rng.uniform(-1, 1, (2, *shape)).astype(x.dtype))
    dy = rng.standard_normal((T, B, H)).astype(x.dtype)
    passes = net.forward(x, state), net.forward(x), net.forward(x, state, True)
    first, second = net.record(x, state), net.record(-x)
    tapes = [second.backward(dy), first.backward(dy, dstate), second.backward(dy)]
    loss, grads = net.loss_and_grads(x, target)
    dataset = lk.Dataset(np.tile(x, (1, 2, 1)), np.tile(target, (2, 1)))
    losses = net.epoch(dataset, np.arange(2 * B)[::-1][1:], B, 0.01)  # and a rest
    named = {f"loss {k}": np.array(value) for k, value in enumerate([loss, *losses])}
    for k, (y, final) in enumerate(passes):
        named |= {f"pass {k}: {i}": a for i, a in enumerate((y, *final))}
    for k, value in enumerate((*tapes, grads, net.params())):
        named |= {f"{k}: {name}": a for name, a in value.arrays().items()}
    return named


@pytest.mark.parametrize("cell", ALL_CELLS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_version_is_the_reference_with_the_bits_of_one_thread(version, cell):
    count = EXAMPLES.get(version, 6 if version.startswith("cuda") else 20)
    count = count // 3 if cell == "coupled" else count

    @settings(max_examples=count)
    @given(case=cases(version, cell))
    def agrees(case):
        sizes, dtype, threads, seed = case
        params, x, target = example(sizes, cell, dtype, seed=seed)
        options = {}
        if version == "numba-wavefront" and seed % 2:
            rng = np.random.default_rng(seed)
            options = {"schedules": lambda graph: random_schedule(rng, graph)}
        net = lk.network(version, params, threads=threads, **options)
        compare_to_reference(net, params, x)
        if version != "cuda-persistent" or not SIMULATED:
            wide = (a.astype(np.float64) for a in (params, x, target))
            want_loss, want = reference.loss_and_grads(*wide)
            loss, grads = net.loss_and_grads(x, target)
            assert loss == pytest.approx(want_loss, rel=1e-5)
            compare(grads.arrays(), want.arrays(), TOLERANCE[x.dtype])
        if not version.startswith("cuda"):
            one = "numba-fused" if options else version
            alone = lk.network(one, params, threads=1)
            pair = (everything(n, x, target, seed) for n in (net, alone))
            np.testing.assert_equal(*pair)

    agrees()


@pytest.mark.parametrize("version", VERSIONS)
def test_products_and_passes_that_are_cut_have_the_bits_of_one_thread(version):
    """So large that BLAS, left to itself, would round as its threads suggest, and that
    `numba-sample` computes a layer's steps in several regions.
    """
    shape = (2, 17, 64, 128, 256)
    if version in SLOW or version.startswith("cuda"):
        pytest.skip("one thread by construction, or slow in the simulator")
    params, x, target = example(shape)
    several = min(2, numba.config.NUMBA_NUM_THREADS)
    nets = [lk.network(version, params, threads=n) for n in (1, several)]
    compare_to_reference(nets[0], params, x)
    np.testing.assert_equal(*(everything(net, x, target, 0) for net in nets))


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
    want = {"last": [], "dx": np.zeros_like(x)}
    for sample, length in enumerate(lengths):
        tape = net.record(np.ascontiguousarray(x[:length, sample : sample + 1]))
        want["last"].append(tape.y[-1, 0])
        dy = np.zeros_like(tape.y)
        dy[-1, 0] = dlast[sample]
        grads = tape.backward(dy)
        want["dx"][:length, sample] = grads.x[:, 0]
        for name, a in grads.arrays().items():
            if name.startswith("layers"):
                want[name] = want.get(name, 0) + a
    got = {"last": names["last"], "dx": names["grads"].x} | names["grads"].arrays()
    want["last"] = np.stack(want["last"])
    compare({name: got[name] for name in want}, want, TOLERANCE[x.dtype])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stream_goes_on_from_the_state_of_a_prediction(version):
    params, x, _ = example((2, 5, 3, 3, 7))
    net, state = lk.network(version, params), None
    for step in x:
        prediction, state = net.predict(step[None], state)
    want, whole = net.predict(x, None)
    assert (net.predict(x) == want).all()
    compare({"p": prediction}, {"p": want}, 1e-5)
    for got, part in zip(state, whole, strict=True):
        compare({"state": got}, {"state": part}, 1e-5)
    with pytest.raises(ValueError, match=r"state\.h: got shape \(2, 1, 7\), want"):
        net.predict(x, tuple(part[:, :1] for part in state))


def test_copies_have_the_options_and_threads_of_a_network():
    graphs = []

    def layer_by_layer(graph):
        graphs.append(graph)
        return schedules.layer_by_layer(graph)

    params, x, _ = example((2, 40, 1, 2, 5))
    made = {"threads": 1, "schedules": layer_by_layer}
    net = lk.network("numba-wavefront", params, **made)
    want, _ = net.forward(x)
    says = (
        "numba-wavefront: LSTM, 2 layers of 5, 2 inputs, 2 outputs, float32, 1 thread"
    )
    copies = [copy.deepcopy(net), copy.copy(net)]
    for one in copies:
        graphs.clear()
        np.testing.assert_array_equal(one.forward(x)[0], want)
        assert repr(one) == says
        assert graphs
    kept = lk.network("numba-fused", params, threads=1, subnormals=True)
    again = pickle.loads(pickle.dumps(kept))
    assert repr(again) == repr(kept)
    assert again.subnormals


def test_names_are_those_of_the_registries_and_lead_to_their_classes():
    names = [version.name for version in lk.versions()]
    assert names == [version.load().name for version in lk.versions()]
    assert {version.target for version in lk.versions()} == {"cpu", "gpu"}
    registry = sys.modules["lstm_kernels.versions"]  # the name is also a function
    for literal, known in (
        (registry.VersionName, names),
        (params_module.CellName, CELLS),
    ):
        assert [*get_args(literal)] == [*known]

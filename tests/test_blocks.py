"""The GPU versions on blocks that run at the same time, every number watched."""

import blocks
import numpy as np
import pytest
from conftest import SIMULATED, example

import lstm_kernels as lk
from lstm_kernels.gpu import build
from lstm_kernels.versions.cuda_epoch import CudaEpoch
from lstm_kernels.versions.cuda_fused import CudaFused
from lstm_report.measure.comparer import compare, compare_to_reference

pytestmark = pytest.mark.skipif(not SIMULATED, reason="a stand-in for a device")


@pytest.fixture
def watch(monkeypatch):
    """`blocks.watch`, with caches of kernels that are empty before and after."""
    build.build.cache_clear()
    yield lambda change=(): blocks.watch(monkeypatch, change)
    build.build.cache_clear()


def check(net, x, target, B):
    """Passes and two epochs of a network against the reference."""
    params, dataset = net.params(), lk.Dataset(x, target)
    compare_to_reference(net, params, x)
    reference = lk.network("numpy", params)
    order = np.random.default_rng(3).permutation(len(target))
    for _ in range(2):
        got, want = (n.epoch(dataset, order, B, 0.2) for n in (net, reference))
        np.testing.assert_allclose(got, want, rtol=1e-5)
    compare(net.params().arrays(), reference.params().arrays(), 1e-5)
    loss, grads = net.loss_and_grads(x, target)
    expected, truth = reference.loss_and_grads(x, target)
    assert loss == pytest.approx(expected, rel=1e-5)
    compare(grads.arrays(), truth.arrays(), 2e-5)


@pytest.mark.parametrize("version", [CudaFused, CudaEpoch])
@pytest.mark.parametrize("shape", [(1, 3, 5, 5, 4), (2, 2, 7, 2, 3), (3, 1, 5, 2, 4)])
def test_tiles_on_watched_blocks(watch, cell, version, shape):
    watch()
    params, x, target = example(shape, cell)
    net = version(params)
    net._device.multiprocessors = 3
    check(net, x, target, 4)


@pytest.mark.parametrize("version", [CudaFused, CudaEpoch])
@pytest.mark.parametrize(("D", "H"), [(4, 4), (1, 5), (3, 8)])
def test_four_samples_to_a_thread_on_watched_blocks(watch, version, D, H):
    watch()
    params, x, target = example((1, 2, 11, D, H))
    net = version(params)
    net._device.multiprocessors = 2
    assert net._pass(2, 8).plan.R == 4
    check(net, x, target, 8)


@pytest.mark.parametrize(
    ("cell", "B", "H"), [("rnn", 2, 7), ("gru", 2, 7), ("lstm", 9, 9)]
)
def test_threads_that_share_sums_on_watched_blocks(watch, cell, B, H):
    """A tile of one sample and of four; units beside a multiple of four."""
    watch()
    params, x, target = example((2, 2, B + 1, 3, H), cell)
    net = CudaFused(params)
    net._device.multiprocessors, net._device.threads = 3, 3 * H
    assert net._pass(2, B).plan.parts > 1
    check(net, x, target, B)


def silent(space):
    """`cuda` without the barrier of a block."""
    space["cuda"].syncthreads = lambda: None
    return space["cuda"]


@pytest.mark.parametrize(
    ("name", "fault", "error"),
    [
        ("cuda", silent, blocks.RaceError),
        ("lane", lambda space: lambda: (0, 1), blocks.RaceError),
        ("step_at", lambda space: lambda *place: 10**6, IndexError),
    ],
)
def test_faults_are_caught_on_watched_blocks(watch, name, fault, error):
    watch({name: fault})
    params, x, _ = example((1, 2, 6, 2, 3))
    with pytest.raises(error):
        compare_to_reference("cuda-fused", params, x)

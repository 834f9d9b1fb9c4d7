"""`cuda-persistent`: how it divides a network, what it refuses, and its kernels, on the
device where there is one, else in the simulator, one block after another.
"""

import itertools

import numpy as np
import pytest
from conftest import SIMULATED, example
from test_cuda import agree, needs_kernels, simulated

from lstm_kernels.gpu import ptx
from lstm_kernels.gpu.layout import Sizes, four
from lstm_kernels.versions import cuda_persistent
from lstm_report.measure.comparer import compare

H100 = {"multiprocessors": 132, "shared": 227 << 10}
T4 = {"multiprocessors": 40, "shared": 64 << 10}


@pytest.fixture
def on_device(monkeypatch):
    """Threads of a plan as on a device."""
    monkeypatch.setattr(cuda_persistent, "SIMULATED", False)


def plan(L, B, H, *, K=4, dtype=np.float32, limits=H100):
    return cuda_persistent.plan(Sizes(L, 9, B, H, H, 1, K), dtype, **limits)


def test_plans_of_known_networks(on_device):
    reference = plan(4, 64, 512)
    assert (reference.blocks, reference.units, reference.tile) == (128, 16, 64)
    assert (reference.R, reference.buffer, reference.shared) == (8, 4352, 208_896)
    # Few layers, few samples: smaller groups; more samples are divided, too.
    assert plan(1, 1, 512)[:5] == (128, 16, 16, 4, 1)
    assert plan(1, 64, 512)[:5] == (128, 16, 16, 16, 16)
    assert plan(1, 64, 128, limits=T4).shared <= T4["shared"]


@pytest.mark.parametrize(
    ("L", "dtype"), [(1, np.float64), (2, np.float32), (5, np.float32)]
)
@pytest.mark.parametrize("limits", [H100, T4])
def test_plans_cover_the_network_and_fit_the_device(on_device, L, dtype, limits):
    samples, units = (1, 3, 4, 31, 32, 33, 70, 1000), (1, 7, 17, 31, 32, 33, 64)
    for K, B, H in itertools.product((1, 3, 4, 5), samples, units):
        made = plan(L, B, H, K=K, dtype=dtype, limits=limits)
        shares = L * -(-H // made.units) * -(-B // made.tile)
        assert made.blocks == shares <= limits["multiprocessors"]
        assert made.shared <= limits["shared"]
        threads, columns = made.x * made.y, four(made.units * K)
        assert columns // 4 <= threads
        assert 4 * made.R * threads <= 4 * made.buffer  # the sums
        assert made.buffer % 4 == 0
        assert made.buffer // cuda_persistent.ROWS >= 12  # eight numbers, four apart
        assert made.buffer // (columns + 4) >= 8
        assert made.R == 8 or made.tile < 32 or dtype == np.float64


@pytest.mark.parametrize(
    ("L", "dtype", "limits", "largest"),
    [
        (1, np.float32, H100, 1124),
        (4, np.float64, H100, 396),
        (1, np.float32, T4, 320),
    ],
)
def test_networks_that_do_not_fit_are_refused(on_device, L, dtype, limits, largest):
    weights = 4 * largest**2 * L * np.dtype(dtype).itemsize
    assert weights < limits["multiprocessors"] * limits["shared"] < 2 * weights
    plan(L, 8, largest, dtype=dtype, limits=limits)
    said = rf"^params: {L} layers of hidden_size {largest + 4} do not fit: .* smaller"
    with pytest.raises(ValueError, match=said):
        plan(L, 8, largest + 4, dtype=dtype, limits=limits)
    with pytest.raises(ValueError, match="multiprocessors; want fewer layers"):
        plan(133, 1, 1)


@needs_kernels
def test_a_network_that_does_not_fit_keeps_its_parameters():
    params, x, target = example((2, 3, 5, 2, 5))
    net = cuda_persistent.CudaPersistent(params)
    net._device.shared = 4000
    said = "^params: 2 layers of hidden_size 5 do not fit"
    with pytest.raises(ValueError, match=said):
        net.step(x, target, 0.1)
    compare(net.params().arrays(), params.arrays(), 0)


@needs_kernels
@pytest.mark.parametrize(
    ("cell", "shape", "shared"),
    [
        ("rnn", (1, 10, 1, 3, 7), 1 << 20),  # chunks of eight steps, and two more
        ("gru", (3, 3, 3, 9, 4), 1 << 20),  # a row to a thread, more inputs than units
        ("lstm", (2, 2, 6, 1, 8), 1 << 20),  # four rows, in part
        ("lstm", (2, 1, 34, 4, 8), 14_000),  # eight; short buffers: sums in pieces
        ("lstm", (1, 2, 70, 2, 3), 1 << 20),  # more rows than a product takes
    ],
)
def test_sizes_of_persistent_cuda(cell, shape, shared):
    params, x, target = example(shape, cell)
    net = cuda_persistent.CudaPersistent(params)
    if SIMULATED:
        net._device.shared = shared
    agree(net, x, target, batch_size=len(target) // 2 + 1)


@simulated
def test_copies_of_four_numbers_begin_at_a_multiple_of_four():
    a = np.zeros(16)
    ptx.copy_quad(a, 4, np.arange(16.0), 8)
    np.testing.assert_array_equal(a[4:8], [8, 9, 10, 11])
    for i, j in ((2, 4), (4, 2)):
        with pytest.raises(IndexError, match="want multiples of four"):
            ptx.copy_quad(a, i, a, j)

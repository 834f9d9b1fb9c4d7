"""The GPU versions: on the device where there is one, else in the simulator."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import SIMULATED, example

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.gpu import build, device, layout, plans
from lstm_kernels.versions import cuda_fused
from lstm_report.experiments import gpu
from lstm_report.measure.comparer import MismatchError, compare, compare_to_reference

GPU = [v.name for v in lk.versions() if v.target == "gpu"]
needs_kernels = pytest.mark.skipif(
    device.why_unavailable() is not None, reason=str(device.why_unavailable())
)
simulated = pytest.mark.skipif(
    not SIMULATED, reason="plants faults that only Python can run"
)


def test_the_ladder_has_the_source_s_columns():
    rows = {v.name: v for v in lk.versions() if v.target == "gpu"}
    assert list(rows)[:3] == ["cuda-v1", "cuda-v2", "cuda-v3"]
    ours = len(rows) - 3
    positioned = [v.thread_positioning for v in rows.values()]
    assert positioned == [False, True, True] + [True] * ours
    optimised = [v.transfer_optimised for v in rows.values()]
    assert optimised == [False, False, True] + [True] * ours


def agree(net, x, target, *, batch_size, epochs=2, rate=0.2):
    """Epochs of a network beside those of the reference."""
    reference, dataset = lk.network("numpy", net.params()), lk.Dataset(x, target)
    order = np.random.default_rng(2).permutation(len(target))
    for _ in range(epochs):
        both = [n.epoch(dataset, order, batch_size, rate) for n in (net, reference)]
        np.testing.assert_allclose(*both, rtol=1e-5)
    compare(net.params().arrays(), reference.params().arrays(), 1e-5)
    compare({"p": net.predict(x)}, {"p": reference.predict(x)}, 1e-5)


@needs_kernels
@pytest.mark.parametrize(("B", "shared"), [(5, 48 << 10), (17, 48 << 10), (17, 900)])
def test_fused_cuda_plans(cell, B, shared):
    """One sample to a thread or four, several tiles to a block."""
    params, x, target = example((2, 2, B, 3, 5), cell)
    net = cuda_fused.CudaFused(params)
    net._device.shared, net._device.multiprocessors = shared, 4
    compare_to_reference(net, params, x)
    agree(net, x, target, batch_size=B // 2)


def test_plans_of_the_tile_kernels():
    def plan(B, H, shared=200 << 10, dtype=np.float32, K=4, threads=256):
        limits = {"multiprocessors": 132, "shared": shared, "threads": threads}
        sizes = layout.Sizes(1, 12, B, 1, H, 1, K)
        return plans.plan(sizes, dtype, **limits)

    few, many = plan(256, 32), plan(100_000, 32)
    assert (few.tile, few.blocks, few.R, few.x, few.y) == (2, 128, 1, 32, 8)
    assert (many.tile, many.blocks, many.R, many.all_blocks) == (32, 132, 4, 132)
    assert (plan(256, 300).x, plan(256, 300).y) == (150, 1)  # 300 units in two rounds
    assert plan(100_000, 32, dtype=np.float64).R == plan(100_000, 32, K=5).R == 1
    # Eight rows of threads: those that have no group of samples share the sums.
    parts = {B: plan(132 * B, 32).parts for B in (1, 2, 4, 8, 12, 16, 20, 32)}
    assert parts == {1: 8, 2: 4, 4: 8, 8: 4, 12: 2, 16: 2, 20: 1, 32: 1}
    assert (plan(1, 33).y, plan(1, 33).parts) == (7, 7)
    assert (plan(1, 3).y, plan(1, 3).parts) == (85, 1)
    for B in (1, 3, 100, 5000):
        for H in (1, 7, 32, 100, 300):
            small = plan(B, H, 48 << 10)
            assert small.shared <= 48 << 10
            assert small.tile % small.R == small.y % small.parts == 0
            assert 1 <= small.blocks <= small.all_blocks <= 132
            assert small.x * small.y <= 256
    with pytest.raises(
        ValueError, match=r"^params: hidden_size 9000 takes \d+ bytes of shared"
    ):
        plan(1, 9000)


class Shared:
    """A block's shared memory, which remembers the last number that was used."""

    last = 0

    def __getitem__(self, i):
        self.last = max(self.last, int(i))
        return np.float32(0)

    def __setitem__(self, i, value):
        self.last = max(self.last, int(i))


@simulated
@pytest.mark.parametrize("shared", [48 << 10, 1500])
@pytest.mark.parametrize(("D", "H"), [(1, 5), (9, 2), (17, 5), (4, 8)])
@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_a_launch_asks_for_the_shared_memory_that_its_kernels_use(cell, D, H, shared):
    limits = {"multiprocessors": 2, "shared": shared, "threads": 4 * H}
    for B in (1, 6, 20):
        n = layout.Sizes(1, 1, B, D, H, 1, len(CELLS[cell].gates))
        made, places = plans.plan(n, np.float32, **limits), n.places(2)
        how = CELLS[cell], np.float32, build.TILES, n
        space = build.functions(*how, R=made.R, parts=made.parts)
        block = SimpleNamespace(syncthreads=lambda: None, gridDim=SimpleNamespace(x=1))
        block.blockDim = SimpleNamespace(x=1, y=made.parts)  # of so many threads
        block.threadIdx, space["cuda"] = SimpleNamespace(x=0, y=0), block
        theta, work = np.zeros(2 * n.P + 4), np.zeros(places.end)
        used = Shared()
        for block.threadIdx.y in range(made.parts):
            arrays = theta, used, work
            space["forward_layer"](0, D, places, made.tile, 0, *arrays)
            space["backward_layer"](0, D, places, made.tile, 0, *arrays, True)
        assert made.tile * H <= used.last < made.shared // 4
        assert made.x * made.y <= made.shared // 4  # `sum_rows`


def test_arrays_fill_work_at_multiples_of_four():
    """Sizes by hand, for two layers, three steps, five samples of an LSTM, two
    blocks.
    """
    n = layout.Sizes(2, 3, 5, 7, 11, 13, 4)
    P = (7 + 11 + 1 + 11 + 11 + 1) * 11 * 4 + 12 * 13
    assert n.P == P
    sizes = {
        "partials": 2 * (P + 1 + -(P + 1) % 4),
        "x": 105,
        "h": 440,
        "c": 440,
        "gates": 1320,
    }
    sizes |= {"dy": 165, "state": 220, "da": 1320, "dx": 105, "d_out": 65}
    places = n.places(blocks=2)
    assert (places.T, places.B, places.partials) == (3, 5, 0)
    assert (*sizes, "end") == places._fields[2:]
    begin = 0
    for name, size in sizes.items():
        assert getattr(places, name) == begin
        begin += size + -size % 4
    assert places.end == begin
    assert n.shape("gates") == (2, 3, 5, 11, 4)


@pytest.mark.parametrize("output_size", [None, 2])
def test_packed_parameters_come_back(cell, output_size):
    params = example((3, 1, 1, 5, 7), cell, output_size=output_size)[0]
    n = layout.Sizes.of(params, 1, 1)
    flat = layout.pack(params)
    compare(layout.unpack(flat, params).arrays(), params.arrays(), 0)
    behind = flat[n.P + -n.P % 4 :]
    first = flat[: 13 * 7 * n.K].reshape(13, 7, n.K)  # rows of U, W and b; units
    np.testing.assert_array_equal(
        behind[: first.size].reshape(7, 13, n.K), first.swapaxes(0, 1)
    )


@needs_kernels
@pytest.mark.parametrize("version", GPU)
def test_an_epoch_is_that_of_the_reference_on_cuda(version, cell):
    params, x, target = example((2, 3, 11, 2, 5), cell)
    agree(lk.network(version, params), x, target, batch_size=4)


@needs_kernels
def test_what_cuda_versions_copy():
    """Bytes counted by hand, four to a number."""
    work = gpu.Workload(L=1, T=4, D=2, H=5, B=6)
    params, (x, target) = work.params(), work.example()
    layer, state, step = (2 + 5 + 1) * 4 * 5, 2 * 6 * 5, 6 * 5
    tape, gates = (4 + 1) * step, 4 * 4 * step
    copied = {}
    for version in GPU:
        net = lk.network(version, params)
        net.step(x, target, 0.1)
        copied[version] = gpu.copied(net, lambda net=net: net.step(x, target, 0.1))
    # Numba copies all arrays of a launch there and back: forward, backward (without b,
    # with dy and dx) and gradients.
    both = state + x.size + layer + 2 * tape + gates
    both += layer - 4 * 5 + tape + 2 * gates + 4 * step + state + x.size
    both += x.size + tape + gates + layer
    for version in ("cuda-v1", "cuda-v2"):
        assert copied[version] == (4 * both, 4 * both)
    sent = x.size + layer + state, 4 * step + state
    fetched = tape + step, x.size + state + layer
    assert copied["cuda-v3"] == (4 * sum(sent), 4 * sum(fetched))
    for version in gpu.STAY:
        assert copied[version] == (
            4 * (x.size + target.size) + 8 * 6,
            4,
        )  # and the order


@needs_kernels
@pytest.mark.parametrize("version", gpu.STAY)
def test_no_copies_inside_an_epoch_on_cuda(version):
    params, x, target = example((1, 3, 12, 2, 5))
    net, dataset = lk.network(version, params), lk.Dataset(x, target)
    order = np.arange(12)
    net.epoch(dataset, order, 3, 0.1)
    for batch_size, steps in ((12, 1), (3, 4)):
        sent = gpu.copied(net, lambda b=batch_size: net.epoch(dataset, order, b, 0.1))
        assert sent == (
            8 * 12,
            4 * steps,
        )  # the order once, a loss for each step at the end


@needs_kernels
@pytest.mark.parametrize("version", ["cuda-v2", *gpu.STAY])
def test_cuda_gives_the_same_bits_every_run(version):
    params, x, target = example((2, 3, 21, 3, 6), "gru")
    first, second = (
        lk.network(version, params).loss_and_grads(x, target)[1] for _ in range(2)
    )
    for name, value in first.arrays().items():
        np.testing.assert_array_equal(second.arrays()[name], value, err_msg=name)


@needs_kernels
@pytest.mark.parametrize("version", gpu.STAY)
def test_a_data_set_is_sent_again_when_it_is_another_on_cuda(version):
    params, x, target = example((1, 3, 8, 2, 5))
    net, reference = lk.network(version, params), lk.network("numpy", params)
    for scale in (1, 2):
        dataset = lk.Dataset(x * np.float32(scale), target)
        got, want = (n.epoch(dataset, np.arange(8), 4, 0.1) for n in (net, reference))
        np.testing.assert_allclose(got, want, rtol=1e-5)
        net.step(x, target, 0.1)
        reference.step(x, target, 0.1)
        got, want = (n.epoch(dataset, np.arange(8), 4, 0.1) for n in (net, reference))
        np.testing.assert_allclose(got, want, rtol=1e-5)


@needs_kernels
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the simulator computes in NumPy
@pytest.mark.parametrize("version", gpu.STAY)
def test_losses_end_at_one_that_is_not_finite_on_cuda(version):
    params, x, target = example((1, 2, 6, 2, 3))
    net = lk.network(version, params)
    dataset = lk.Dataset(x, target * np.float32(1e19))
    losses = net.epoch(dataset, np.arange(6), 1, 1e30)
    assert len(losses) < 6
    assert np.isfinite(losses[:-1]).all()
    assert not np.isfinite(losses[-1])
    net.assign(params)
    compare(net.params().arrays(), params.arrays(), 0)


@needs_kernels
@pytest.mark.parametrize("version", GPU)
def test_memory_that_the_device_lacks(version):
    params, x, target = example((1, 4, 6, 2, 5))
    net = lk.network(version, params)
    net._device.free = lambda: 100
    with pytest.raises(
        ValueError, match=rf"^x: {version} wants .* MiB on the device for .* free"
    ):
        net.step(x, target, 0.1)
    for name, value in net._params.arrays().items():
        np.testing.assert_array_equal(value, params.arrays()[name])


@needs_kernels
@pytest.mark.parametrize("version", GPU)
def test_a_failing_kernel_leaves_the_host_s_parameters(version):
    params, x, target = example((1, 4, 6, 2, 5))
    net = lk.network(version, params)

    def broken(*where, together=False):
        def launch(*arguments):
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

        return launch

    net._device.configure = broken
    for call in (
        lambda: net.step(x, target, 0.1),
        lambda: net.loss_and_grads(x, target),
    ):
        with pytest.raises(RuntimeError, match="ILLEGAL_ADDRESS"):
            call()
    with pytest.raises(RuntimeError, match="ILLEGAL_ADDRESS"):
        net.forward(x, training=True)
    with pytest.raises(RuntimeError, match=r"want forward\(x, training=True\)"):
        net.backward(np.zeros((4, 6, 5), np.float32))
    for name, value in net._params.arrays().items():
        np.testing.assert_array_equal(value, params.arrays()[name])


def test_why_a_gpu_cannot_be_used():
    def dropped(capability):
        raise ValueError("compute capability 6.0 is not supported\nmore")

    said = device.why_not_compiled("Tesla P100", (6, 0), dropped)
    assert "Tesla P100 has compute capability 6.0" in said
    assert "pip install 'numba-cuda[cu12]'" in said
    assert "more" not in said
    said = device.why_not_compiled("H200", (9, 0), dropped)
    assert "cu12" not in said
    assert "ValueError: compute capability" in said
    assert device.why_not_compiled("H200", (9, 0), lambda capability: None) is None

    def missing(capability):
        raise RuntimeError("libNVVM cannot be found.\nDo `conda install cudatoolkit`")

    said = device.why_not_compiled("H200", (9, 0), missing)
    assert said.startswith("the CUDA compiler (NVVM) was not found in ")
    assert "pip install" in said


IMPORTS = """
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("numba.cuda"):
            raise ImportError("no CUDA bindings\\nsecond line")
sys.meta_path.insert(0, Broken())
import lstm_kernels as lk
reasons = {v.name: v.why_unavailable for v in lk.versions() if v.target == "gpu"}
assert len(set(reasons.values())) == 1, reasons
print(reasons["cuda-v1"])
try:
    lk.network("cuda-fused", lk.Params.init(1, 2))
except lk.UnavailableError as error:
    print(error)
"""


def test_a_broken_cuda_import_is_a_reason():
    words = [sys.executable, "-c", IMPORTS]
    said = subprocess.run(
        words, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert said[0] == "numba.cuda cannot be imported (ImportError: no CUDA bindings)"
    assert said[1] == f"name: 'cuda-fused' cannot run here: {said[0]}"


PERSISTENT = "cuda-persistent"
PERSISTENT_FAULTS = {
    "sum_numbers": lambda right: lambda shared, i, parts, step: shared[i + 1],
    "rows_at_once": lambda right: lambda columns: 2 * right(columns),
    "division": lambda right: lambda *how: (*right(*how)[:3], 0, 0),
    "stage": lambda right: lambda *how: right(*how[:6], how[6] - 1, *how[7:]),
}


@simulated
@pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # of numbers that nobody has written
@pytest.mark.parametrize(
    ("version", "name", "fault"),
    [
        *((PERSISTENT, *planted) for planted in PERSISTENT_FAULTS.items()),
        ("cuda-v2", "multiply_back", lambda right: lambda da, M, to: None),
        ("cuda-v2", "walk", lambda right: lambda s, *how: right(0, *how)),
        ("cuda-fused", "layer_at", lambda right: lambda l: 4 * l),
        ("cuda-fused", "total", lambda right: lambda a: a[0] + a[1] + a[2]),
        ("cuda-fused", "sum_rows", lambda right: lambda n, _, *how: right(n, 1, *how)),
    ],
)
def test_faults_in_cuda_kernels_are_caught(monkeypatch, version, name, fault):
    original = build.functions

    def functions(*arguments, **keywords):
        space = original(*arguments, **keywords)
        space[name] = fault(space[name])
        return space

    monkeypatch.setattr(build, "functions", functions)
    build.build.cache_clear()
    shape = (2, 3, 66, 2, 3) if version == PERSISTENT else (1, 3, 6, 2, 5)
    params, x, _ = example(shape)
    try:
        with pytest.raises((MismatchError, IndexError)):
            compare_to_reference(version, params, x)
    finally:
        build.build.cache_clear()


@needs_kernels
def test_kernels_of_other_constants_have_other_names():
    """Numba's cache on disk would take one for the other."""
    sizes = layout.Sizes(1, 0, 0, 2, 3, 1, 4)
    tile = CELLS["lstm"], np.float32, build.TILES
    builds = [(*tile, sizes, {"R": R, "parts": p}) for R in (1, 4) for p in (1, 8)]
    builds += [(*tile, sizes._replace(**{name: 7}), {"R": 4}) for name in "LDHO"]
    builds += [(CELLS["gru"], *tile[1:], sizes, {"R": 4})]
    builds += [(tile[0], np.float64, tile[2], sizes, {"R": 4})]
    labels = [
        build.functions(*words, **constants)["step"].__qualname__
        for *words, constants in builds
    ]
    assert len(set(labels)) == len(labels) == 10


@needs_kernels
@pytest.mark.parametrize("version", GPU)
def test_a_small_mini_batch_after_a_large_one_on_cuda(version):
    """Arrays of the device keep the size of the largest; the examples in them do
    not.
    """
    params, x, target = example((1, 3, 9, 2, 5))
    net, reference = lk.network(version, params), lk.network("numpy", params)
    order = np.arange(9)
    for count in (9, 2, 5):
        some = np.ascontiguousarray(x[:, -count:]), target[-count:].copy()
        assert net.step(*some, 0.2) == pytest.approx(
            reference.step(*some, 0.2), rel=1e-5
        )
        dataset = lk.Dataset(*some)
        got, want = (n.epoch(dataset, order[:count], 3, 0.2) for n in (net, reference))
        np.testing.assert_allclose(got, want, rtol=1e-5)
    compare(net.params().arrays(), reference.params().arrays(), 1e-5)

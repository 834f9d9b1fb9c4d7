"""The GPU versions: on the device where there is one, else in the simulator."""

import itertools
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import SIMULATED, example

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.gpu import available, build, device, layout, plans
from lstm_kernels.versions import cuda_fused
from lstm_report.experiments import gpu
from lstm_report.measure.comparer import compare, compare_to_reference

GPU = [v.name for v in lk.versions() if v.target == "gpu"]
needs_kernels = pytest.mark.skipif(
    available.why_unavailable() is not None, reason=str(available.why_unavailable())
)
simulated = pytest.mark.skipif(
    not SIMULATED, reason="plants faults that only Python can run"
)


def test_the_ladder_has_the_source_s_columns():
    rows = [v for v in lk.versions() if v.target == "gpu"]
    flags = [(v.thread_positioning, v.transfer_optimised) for v in rows]
    assert flags == [(False, False), (True, False), *[(True, True)] * 4]


def agree(net, x, target, *, batch_size):
    """Every pass of a network, an epoch and a prediction beside the reference."""
    reference, dataset = lk.network("numpy", net.params()), lk.Dataset(x, target)
    compare_to_reference(net, net.params(), x)
    order = np.random.default_rng(2).permutation(len(target))
    both = [n.epoch(dataset, order, batch_size, 0.2) for n in (net, reference)]
    np.testing.assert_allclose(*both, rtol=1e-5)
    compare(net.params().arrays(), reference.params().arrays(), 1e-5)
    compare({"p": net.predict(x)}, {"p": reference.predict(x)}, 1e-5)
    (loss, grads), (want, expected) = (
        n.loss_and_grads(x, target) for n in (net, reference)
    )
    assert loss == pytest.approx(want, rel=1e-5)
    compare(grads.arrays(), expected.arrays(), 2e-5)


@needs_kernels
@pytest.mark.parametrize(
    ("cell", "B", "shared"),
    [("rnn", 5, 48 << 10), ("gru", 17, 48 << 10), ("lstm", 17, 900)],
)
def test_fused_cuda_plans(cell, B, shared):
    """One sample to a thread or four, several tiles to a block."""
    params, x, target = example((2, 2, B, 3, 5), cell)
    net = cuda_fused.CudaFused(params)
    net._device.shared, net._device.multiprocessors = shared, 4
    run = net._pass(2, B)  # all of the device ends a mini-batch
    assert run.grid("update")[0] == run.plan.all_blocks
    agree(net, x, target, batch_size=B // 2)


def planned(B, H, shared=200 << 10, dtype=np.float32, K=4):
    limits = {"multiprocessors": 132, "shared": shared, "threads": 256}
    return plans.plan(layout.Sizes(1, 12, B, 1, H, 1, K), dtype, **limits)


def test_plans_of_the_tile_kernels():
    few, many = planned(256, 32), planned(100_000, 32)
    assert (few.tile, few.blocks, few.R, few.x, few.y) == (2, 128, 1, 32, 8)
    assert (many.tile, many.blocks, many.R, many.all_blocks) == (32, 132, 4, 132)
    assert planned(256, 300)[1:3] == (150, 1)  # 300 units in two rounds
    assert planned(100_000, 32, dtype=np.float64).R == planned(100_000, 32, K=5).R == 1
    # Eight rows of threads: those that have no group of samples share the sums.
    parts = {B: planned(132 * B, 32).parts for B in (1, 2, 4, 8, 12, 16, 20, 32)}
    assert parts == {1: 8, 2: 4, 4: 8, 8: 4, 12: 2, 16: 2, 20: 1, 32: 1}
    for B, H in itertools.product((1, 3, 100, 5000), (1, 7, 32, 100, 300)):
        small = planned(B, H, 48 << 10)
        assert small.shared <= 48 << 10
        assert small.tile % small.R == small.y % small.parts == 0
        assert 1 <= small.blocks <= small.all_blocks <= 132
        assert small.x * small.y <= 256
    with pytest.raises(ValueError, match=r"^params: hidden_size 9000 takes \d+ bytes"):
        planned(1, 9000)


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
def test_every_call_is_that_of_the_reference_on_cuda(version, cell):
    params, x, target = example((2, 2, 3, 2, 5), cell)
    agree(lk.network(version, params), x, target, batch_size=2)


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
    for version in gpu.STAY:  # the order, too
        assert copied[version] == (4 * (x.size + target.size) + 8 * 6, 4)


@needs_kernels
@pytest.mark.parametrize("version", gpu.STAY)
def test_no_copies_inside_an_epoch_on_cuda(version):
    params, x, target = example((1, 1, 4, 2, 3))
    net, dataset = lk.network(version, params), lk.Dataset(x, target)
    order = np.arange(4)
    net.epoch(dataset, order, 1, 0.1)
    for batch_size, steps in ((4, 1), (1, 4)):
        sent = gpu.copied(net, lambda b=batch_size: net.epoch(dataset, order, b, 0.1))
        # The order once, a loss for each step at the end.
        assert sent == (8 * 4, 4 * steps)


@needs_kernels
@pytest.mark.parametrize("version", ["cuda-v2", *gpu.STAY])
def test_cuda_gives_the_same_bits_every_run(version):
    params, x, target = example((2, 2, 9 if SIMULATED else 21, 3, 6), "gru")
    first, second = (
        lk.network(version, params).loss_and_grads(x, target)[1] for _ in range(2)
    )
    compare(second.arrays(), first.arrays(), 0)


def calls(net, dataset):
    """What calls in turn return; an epoch after a step sends the data set again."""
    x, order = dataset.x, np.arange(len(dataset))
    losses = net.epoch(dataset, order, 3, 0.1)
    losses.append(net.step(x, dataset.target, 0.1))
    losses += net.epoch(dataset, order, 3, 0.1)
    y, _ = net.forward(x, training=True)
    grads = [net.backward(np.ones_like(y)).arrays() for _ in range(2)]
    return np.array(losses), y, *grads


@needs_kernels
@pytest.mark.parametrize("version", GPU)
def test_calls_in_turn_on_cuda(version):
    """Of another data set and of fewer samples: arrays of the device are as large as
    the first calls need, and no later call asks for more.
    """
    params, x, target = example((1, 2, 5, 2, 4))
    examples = (x, target), (2 * x, target), (x[:, -2:].copy(), target[-2:].copy())
    datasets = [lk.Dataset(*some) for some in examples]  # alive
    both = net, reference = [lk.network(name, params) for name in (version, "numpy")]
    for dataset in datasets:
        got, want = (calls(n, dataset) for n in both)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
        compare({"y": got[1]}, {"y": want[1]}, 1e-5)
        compare(got[2], want[2], 2e-5)
        compare(got[3], got[2], 0)
        net._device.free = lambda: 0 if version in GPU[2:] else 1 << 30
    compare(net.params().arrays(), reference.params().arrays(), 1e-5)


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
    wanted = rf"^x: {version} wants .* MiB on the device for .* free"
    with pytest.raises(ValueError, match=wanted):
        net.step(x, target, 0.1)
    compare(net._params.arrays(), params.arrays(), 0)


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
    for call in (net.step, lambda *how: net.loss_and_grads(*how[:2]), net.forward):
        with pytest.raises(RuntimeError, match="ILLEGAL_ADDRESS"):
            call(x, *((target, 0.1) if call != net.forward else (None, True)))
    with pytest.raises(RuntimeError, match=r"want forward\(x, training=True\)"):
        net.backward(np.zeros((4, 6, 5), np.float32))
    compare(net._params.arrays(), params.arrays(), 0)


class Card:
    """A device and its driver, as numba.cuda shows them; a first kernel on it raises
    `error`, or gives what `wrong` says.
    """

    def __init__(self, name="H200", capability=(9, 0), error=None, wrong=None):
        about = {"name": name, "compute_capability": capability}
        about |= {"MULTIPROCESSOR_COUNT": 4, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 1}
        self.device, self.error, self.wrong = SimpleNamespace(**about), error, wrong
        self.gpus, self.launched = [self.device], []

    def is_available(self):
        return True

    def get_current_device(self):
        return self.device

    def current_context(self):
        room = SimpleNamespace(deallocations=SimpleNamespace(clear=lambda: None))
        return SimpleNamespace(
            device=self.device,
            memory_manager=room,
            get_memory_info=lambda: (1 << 20, 1 << 20),
        )

    def device_array(self, shape, dtype):
        return np.zeros(shape, dtype).view(OnCard)

    def jit(self, signature):
        return lambda kernel: Launched(self, kernel.__name__)


class OnCard(np.ndarray):
    def copy_to_device(self, host):
        self[:] = host

    def copy_to_host(self, host):
        host[:] = self


class Launched:
    """A first kernel of a Card, of which two blocks fit."""

    def __init__(self, card, name):
        self.card, self.name, self.overloads = card, name, {None: self}

    def max_cooperative_grid_blocks(self, threads, shared):
        return 2

    def __getitem__(self, grid):
        return self

    def __call__(self, out):
        self.card.launched.append(self.name)
        if self.card.error and self.card.error[0] == self.name:
            raise self.card.error[1]
        whole = self.name == "across_grid"
        out[:] = np.arange(64).reshape(-1, 64 if whole else 32)[:, ::-1].ravel()
        if self.card.wrong == self.name:
            out[7] += 1


@pytest.fixture
def on_card(monkeypatch):
    """A function that puts a Card, with a driver of CUDA 12.4, where the device is."""

    def put(**how):
        card = Card(**how)
        monkeypatch.setattr(device, "cuda", card)
        monkeypatch.setattr(device, "SIMULATED", False)
        driver = SimpleNamespace(
            cuDriverGetVersion=lambda n: setattr(n._obj, "value", 12040)
        )
        monkeypatch.setattr(device.Device, "load_driver", lambda: driver)
        for known in (available.why_unavailable, available.why_not_together):
            known.cache_clear()
        return card

    yield put
    for known in (available.why_unavailable, available.why_not_together):
        known.cache_clear()


OLD_DRIVER = RuntimeError("[222] CUDA_ERROR_UNSUPPORTED_PTX_VERSION\nptxas: more")
DROPPED = ValueError("compute capability 6.0 is not supported\nmore")
MISSING = RuntimeError("libNVVM cannot be found.\nDo `conda install cudatoolkit`")
UNLINKED = RuntimeError("libcudadevrt.a not found")
P100 = {"name": "Tesla P100", "capability": (6, 0)}
ONE, ALL = "across_block", "across_grid"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            P100 | {"error": (ONE, DROPPED)},
            r"^Tesla P100 has compute capability 6\.0.*cu12.* supported\)$",
        ),
        (
            {"error": (ONE, DROPPED)},
            r"^kernels do not run on H200: .*\(ValueError: compute",
        ),
        ({"error": (ONE, MISSING)}, r"^the CUDA compiler \(NVVM\) was .*pip install"),
        (
            {"error": (ONE, OLD_DRIVER)},
            r"^the driver, of CUDA 12\.4, is older.*pip install 'numba-cuda\[cu12\]'",
        ),
        ({"wrong": ONE}, r"^kernels do not run on H200.* first kernel gave \["),
    ],
)
def test_why_a_gpu_cannot_be_used(on_card, how, said):
    """It launches, compares, and says what to do; every version has the reason."""
    card = on_card(**how)
    reasons = {v.why_unavailable for v in lk.versions() if v.target == "gpu"}
    assert len(reasons) == 1
    assert re.search(said, reasons.pop())
    assert card.launched == [ONE]  # once a process
    with pytest.raises(lk.UnavailableError, match="'cuda-v3' cannot run here"):
        lk.network("cuda-v3", lk.Params.init(1, 2))


@pytest.mark.parametrize(
    ("how", "epoch", "persistent"),
    [
        ({}, None, None),
        (P100, None, "^Tesla P100 has compute capability 6.0, want 7.0 or newer$"),
        ({"error": (ALL, UNLINKED)}, "libcudadevrt was not found: install", "libcuda"),
        ({"wrong": ALL}, "kernels do not run on H200.* a first kernel gave", "gave"),
        ({"capability": (5, 2)}, "capability 5.2, want 6.0", "5.2, want 7.0 or newer"),
    ],
)
def test_what_a_version_needs_of_a_device(on_card, how, epoch, persistent):
    on_card(**how)
    reasons = {v.name: v.why_unavailable for v in lk.versions() if v.target == "gpu"}
    for name, want in (("cuda-epoch", epoch), ("cuda-persistent", persistent)):
        got = reasons.pop(name)
        assert re.search(want, got) if want else got is None
    assert {*reasons.values()} == {None}


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
    words, how = [sys.executable, "-c", IMPORTS], {"text": True, "check": True}
    said = subprocess.run(words, capture_output=True, **how).stdout.splitlines()
    assert said[0] == "numba.cuda cannot be imported (ImportError: no CUDA bindings)"
    assert said[1] == f"name: 'cuda-fused' cannot run here: {said[0]}"


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

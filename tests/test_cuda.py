"""The GPU versions: on the device where there is one, else in the simulator, one block
after another. `test_versions.py` compares each with the reference.
"""

import inspect
import itertools
import math
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import hypothesis
import numpy as np
import ptx
import pytest
from conftest import SIMULATED, example
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.gpu import available, build, device, layout, plans
from lstm_kernels.gpu.layout import Sizes, four
from lstm_kernels.versions import cuda_fused, cuda_persistent
from lstm_report.experiments import gpu
from lstm_report.measure.comparer import compare

ROWS = {v.name: v for v in lk.versions() if v.target == "gpu"}
needs_kernels = pytest.mark.skipif(
    available.why_unavailable() is not None, reason=str(available.why_unavailable())
)
simulated = pytest.mark.skipif(not SIMULATED, reason="stands in for what it plants")
H100 = {"multiprocessors": 132, "shared": 227 << 10}
T4 = {"multiprocessors": 40, "shared": 64 << 10}
SIZES = {"L": range(1, 6), "T": [9], "B": [1, 3, 31, 32, 33, 70, 1000, 100_000]}
SIZES |= {"D": [1, 12, 300], "H": [1, 7, 31, 32, 33, 64, 300, 1124, 1128, 9000]}
SIZES |= {"O": [1], "K": [1, 3, 4, 5]}


@contextmanager
def too_large(may, said):
    """A block that may end with a ValueError that begins so."""
    try:
        yield
    except ValueError as error:
        if not (may and str(error).startswith(said)):
            raise


@given(
    n=st.builds(Sizes, **{name: st.sampled_from(some) for name, some in SIZES.items()}),
    dtype=st.sampled_from([np.float32, np.float64]),
    card=st.sampled_from([H100, T4]),
)
@settings(max_examples=300)
def test_a_plan_fits_the_device_or_says_what_does_not(n, dtype, card):
    size, count, shared = np.dtype(dtype).itemsize, *card.values()
    sample = (max(n.D, n.H) + n.H * (n.K + 2)) * size  # x, h, c and sums
    with too_large(8 * sample > shared, f"params: hidden_size {n.H} takes "):
        tile = plans.plan(n, dtype, threads=256, **card)
        assert tile.blocks == min(-(-n.B // tile.tile), count)
        assert tile.blocks <= tile.all_blocks <= count
        assert sample / 2 < tile.shared <= shared
        assert tile.x * tile.y <= min(256, tile.shared // size)  # `sum_rows`
        assert tile.tile % tile.R == tile.y % tile.parts == 0
        assert tile.R == 1 or (size == 4 and n.K <= 4)
    weights = n.L * n.H**2 * n.K * size
    layers = f"params: {n.L} layers of hidden_size {n.H} do not fit: the device has "
    with too_large(3 * weights > count * shared, layers):
        kept = cuda_persistent.plan(n, dtype, simulated=False, **card)
        shares = n.L * -(-n.H // kept.units) * -(-n.B // kept.tile)
        assert kept.blocks == shares <= count
        assert weights / shares < kept.shared <= shared
        threads, columns = kept.x * kept.y, four(kept.units * n.K)
        assert columns // 4 <= threads
        assert kept.R * threads <= kept.buffer  # four of them hold the sums
        assert kept.buffer % 4 == 0
        assert kept.buffer >= max(12 * 64, 8 * (columns + 4))  # rows four apart
        assert kept.R == 8 or kept.tile < 32 or size == 8


def test_plans_of_recorded_networks():
    def plan(of, L, B, H, **options):
        return of(Sizes(L, 9, B, H, H, 1, 4), np.float32, **H100 | options)

    # Rows of threads that have no group of samples share the sums.
    parts = {B: plan(plans.plan, 1, 132 * B, 32, threads=256).parts for B in (1, 8, 32)}
    assert parts == {1: 8, 8: 4, 32: 1}
    assert plan(plans.plan, 1, 256, 300, threads=256)[1:3] == (150, 1)  # two rounds
    kept = cuda_persistent.plan
    reference = 128, 16, 16, 16, 64, 8, 4352, 208_896
    assert plan(kept, 4, 64, 512, simulated=False) == reference
    assert plan(kept, 1, 1, 512, simulated=False)[3:5] == (4, 1)
    plan(kept, 1, 8, 1124, simulated=False)  # the largest
    with pytest.raises(ValueError, match="want fewer layers or a smaller hidden_size"):
        plan(kept, 1, 8, 1128, simulated=False)


class Memory:
    """An array of which it is counted how often each number was written."""

    def __init__(self, size):
        self.size, self.written = size, np.zeros(size, int)

    def _place(self, i):
        first, last = (i.start, i.stop - 1) if isinstance(i, slice) else (i, i)
        assert 0 <= first <= last < self.size
        return i if isinstance(i, slice) else int(i)

    def __getitem__(self, i):
        return np.zeros(self.size, np.float32)[self._place(i)]

    def __setitem__(self, i, value):
        self.written[self._place(i)] += 1


def run_threads(space, name, grid, values):
    """Run a kernel, thread by thread: no index depends on a number."""
    shared, (x, y) = grid.shared // 4, grid.threads
    block = SimpleNamespace(syncthreads=lambda: None)
    block.shared = SimpleNamespace(array=lambda *_: Memory(shared))
    block.cg = SimpleNamespace(this_grid=lambda: SimpleNamespace(sync=lambda: None))
    block.blockDim = SimpleNamespace(x=x, y=y)
    block.gridDim = SimpleNamespace(x=grid.blocks)
    space |= {"cuda": block, "load_acquire": lambda *_: 1 << 30}
    arguments = [values[word] for word in inspect.signature(space[name]).parameters]
    for i, j in itertools.product(range(grid.blocks), range(x * y)):
        block.blockIdx = SimpleNamespace(x=i)
        block.threadIdx = SimpleNamespace(x=j % x, y=j // x)
        space[name](*arguments)


@simulated
@pytest.mark.parametrize("kept", [False, True])
def test_kernels_stay_in_their_memory_and_compute_each_number_once(kept):
    """In as much shared memory as their launch asks for, on the grid it has."""
    kind = cuda_persistent.CudaPersistent if kept else cuda_fused.CudaFused
    ranges = [st.integers(1, most) for most in (2, 3, 9, 9, 6, 2)]

    # To shrink takes minutes.
    @settings(max_examples=12, phases=[Phase.explicit, Phase.generate])
    # Whose backward pass needs more memory than its forward pass
    @hypothesis.example(sizes=(1, 1, 3, 6, 9, 1), cell="rnn", few=False)
    @given(sizes=st.tuples(*ranges), cell=st.sampled_from([*CELLS]), few=st.booleans())
    def stay(sizes, cell, few):
        L, T, B, D, H, O = sizes
        params = lk.Params.init(D, H, num_layers=L, output_size=O, cell=cell)
        card = SimpleNamespace(multiprocessors=3, threads=4 * H)
        card.shared = 1 << 20 if kept else 1500 if few else 48 << 10
        card.array = lambda name, shape, dtype: Memory(shape[0])
        run = kind.pass_of(card, params, T, B, kind.kernels)
        n, constants = run.n, {name: getattr(run.plan, name) for name in run.constants}
        space = build.functions(CELLS[cell], np.float32, run.modules, n, **constants)
        for name in kind.kernels:
            work, losses = run.work(), Memory(1)
            theta = Memory(layout.pack(params).size)
            values = {"n": run.places, "tile": run.plan.tile, "first": 0, "batch": 0}
            values |= {"order": np.arange(B), "x": np.zeros((T, B, D)), "theta": theta}
            values |= {"target": np.zeros((B, O)), "work": work, "losses": losses}
            values |= {"blocks": 1 if kept else run.plan.blocks, "rate": float(few)}
            grid = run.grid(name)
            if kept and name == "forward" and few:  # as on a device
                grid = grid._replace(blocks=run.plan.blocks)
            run_threads(space, name, grid, values)

            def written(array, work=work):
                first, shape = getattr(run.places, array), n.shape(array)
                return work.written[first : first + math.prod(shape)].reshape(shape)

            if name == "forward":
                assert (written("h")[:, 1:] == 1).all()
            elif name in ("backward", "step"):
                assert (written("da") == 1).all()
            elif name == "parameter_gradients":
                assert (written("partials")[0, : n.P + 1] == 1).all()
            elif name == "update":
                changed = np.r_[theta.written[: n.P], theta.written[four(n.P) :]]
                assert losses.written == 1
                assert (changed == few).all()
                assert kept or grid.blocks == run.plan.all_blocks

    stay()


def calls(net, dataset):
    """What calls in turn return; an epoch after a step sends the data set again, and
    its last mini-batch is smaller.
    """
    x, target, N = dataset.x, dataset.target, len(dataset)
    order = np.random.default_rng(2).permutation(N)
    losses = net.epoch(dataset, order, N // 2 + 1, 0.1)
    y, _ = net.forward(x, training=True)
    backward = net.backward(np.ones_like(y)).arrays()
    compare(net.backward(np.ones_like(y)).arrays(), backward, 0)
    loss, grads = net.loss_and_grads(x, target)
    losses += [loss, net.step(-x, target, 0.1), *net.epoch(dataset, order[:2], 2, 0.1)]
    results = {"losses": np.array(losses), "y": y, "p": net.predict(x)}
    results |= {f"backward {name}": a for name, a in backward.items()}
    params = {f"new {name}": a for name, a in net.params().arrays().items()}
    return results | grads.arrays() | params


@needs_kernels
@pytest.mark.parametrize(
    ("version", "cell", "shape", "limits"),
    [
        *((version, "gru", (2, 2, 5, 2, 4), {}) for version in ROWS),
        # A sample to a thread or four, several tiles to a block.
        ("cuda-fused", "rnn", (2, 2, 5, 3, 5), {"multiprocessors": 4}),
        ("cuda-fused", "gru", (2, 2, 17, 3, 5), {"multiprocessors": 4}),
        ("cuda-fused", "lstm", (2, 2, 17, 3, 5), {"shared": 900}),
        # Chunks of eight steps, and two more.
        ("cuda-persistent", "rnn", (1, 10, 1, 3, 7), {}),
        # A row to a thread, more inputs than units; four rows, in part.
        ("cuda-persistent", "gru", (3, 3, 3, 9, 4), {}),
        ("cuda-persistent", "lstm", (2, 2, 6, 1, 8), {}),
        # Eight; short buffers: sums in pieces. More rows than a product takes.
        ("cuda-persistent", "lstm", (2, 1, 34, 4, 8), {"shared": 14_000}),
        ("cuda-persistent", "lstm", (1, 2, 70, 2, 3), {}),
    ],
)
def test_every_call_is_that_of_the_reference_on_cuda(version, cell, shape, limits):
    """Of another data set and of fewer samples, too: arrays of the device are as large
    as the first calls need, and no later call asks for more.
    """
    params, x, target = example(shape, cell)
    datasets = [lk.Dataset(x, target)]
    if cell == "gru" and not limits:
        datasets += [lk.Dataset(2 * x[:, -2:].copy(), target[-2:].copy())]
    both = net, _ = [lk.network(name, params) for name in (version, "numpy")]
    if SIMULATED:
        vars(net._device).update(limits)
    for dataset in datasets:
        got, want = (calls(n, dataset) for n in both)
        compare(got, want, 2e-5)
        if version in [*ROWS][2:]:  # Numba makes the arrays of V1 and V2
            net._device.free = lambda: 0


@needs_kernels
def test_what_cuda_versions_copy():
    """Bytes counted by hand, four to a number; within an epoch nothing."""
    work = gpu.Workload(L=1, T=4, D=2, H=5, B=6)
    params, (x, target), dataset = work.params(), work.example(), work.dataset(6)
    layer, state, step = (2 + 5 + 1) * 4 * 5, 2 * 6 * 5, 6 * 5
    tape, gates = (4 + 1) * step, 4 * 4 * step
    # Numba copies all arrays of a launch there and back: forward, backward (without b,
    # with dy and dx) and gradients.
    both = state + x.size + layer + 2 * tape + gates
    both += layer - 4 * 5 + tape + 2 * gates + 4 * step + state + x.size
    both += x.size + tape + gates + layer
    sent, fetched = x.size + layer + 2 * state + 4 * step, tape + step + x.size
    want = dict.fromkeys(("cuda-v1", "cuda-v2"), (4 * both, 4 * both))
    want["cuda-v3"] = 4 * sent, 4 * (fetched + state + layer)
    # The order, too, in eight bytes; the loss, of each step of an epoch.
    want |= dict.fromkeys(gpu.STAY, (4 * (x.size + target.size) + 8 * 6, 4))
    for version in ROWS:
        net = lk.network(version, params)
        net.step(x, target, 0.1)
        assert gpu.copied(net, lambda n=net: n.step(x, target, 0.1)) == want[version]
        if version in gpu.STAY:
            epoch = gpu.epoch_of(dataset, 2, 0.1)(net)
            epoch()
            assert gpu.copied(net, epoch) == (8 * 6, 4 * 3)


@needs_kernels
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the simulator computes in NumPy
@pytest.mark.parametrize("version", gpu.STAY)
def test_losses_end_at_one_that_is_not_finite_on_cuda(version):
    params, x, target = example((1, 2, 6, 2, 3))
    net = lk.network(version, params)
    dataset = lk.Dataset(x, target * np.float32(1e19))
    losses = net.epoch(dataset, np.arange(6), 1, 1e30)
    assert len(losses) < 6
    assert [*np.isfinite(losses)] == [True] * (len(losses) - 1) + [False]
    net.assign(params)
    compare(net.params().arrays(), params.arrays(), 0)


@needs_kernels
@pytest.mark.parametrize("version", ROWS)
def test_a_call_that_fails_leaves_the_host_s_parameters(version):
    params, x, target = example((1, 4, 6, 2, 5))

    def broken(*arguments):
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    faults = [({"launch": broken}, RuntimeError, "ILLEGAL_ADDRESS")]
    said = rf"^x: {version} wants .* MiB on the device for .* free"
    faults += [({"free": lambda: 100}, ValueError, said)]
    if SIMULATED and version == "cuda-persistent":
        faults += [({"shared": 4000}, ValueError, "^params: 1 layers of hidden_size 5")]
    for fault, error, said in faults:
        net = lk.network(version, params)
        vars(net._device).update(fault)
        steps = (net.step, target, 0.1), (net.loss_and_grads, target)
        for call, *arguments in (*steps, (net.forward, None, True)):
            with pytest.raises(error, match=said):
                call(x, *arguments)
        with pytest.raises(RuntimeError, match=r"want forward\(x, training=True\)"):
            net.backward(np.zeros((4, 6, 5), np.float32))
        compare(net._params.arrays(), params.arrays(), 0)


class Driver:
    """What it was asked for."""

    def __init__(self, error=0):
        self.asked, self.error = [], error

    def __getattr__(self, name):
        def ask(*words):
            self.asked.append((name, *(getattr(word, "value", word) for word in words)))
            return self.error

        return ask


class Kernel:
    """A dispatcher with one overload, of which five blocks fit."""

    def __init__(self, function):
        overload = SimpleNamespace(max_cooperative_grid_blocks=lambda *how: 5)
        overload._codelibrary = SimpleNamespace(get_cufunc=lambda: function)
        self.overloads, self.launched = {"signature": overload}, []

    def __getitem__(self, where):
        return lambda *arguments: self.launched.append(where)


OF_MODULE = SimpleNamespace(handle=SimpleNamespace(value=16))
OF_LIBRARY = SimpleNamespace(handle=17, device=SimpleNamespace(id=3), kernel=object())
ASKED = [
    (OF_MODULE, ("cuFuncSetAttribute", 16, 8, 227 << 10)),
    (OF_LIBRARY, ("cuKernelSetAttribute", 8, 227 << 10, 17, 3)),
]


@simulated
@pytest.mark.parametrize(("function", "asked"), ASKED)
def test_a_launch_gets_what_the_device_has(function, asked):
    """The most shared memory is asked for once: a launch that wants less must not lower
    what a later one of the same kernel needs. More blocks than fit would wait for ever.
    """
    used, driver, kernel = device.Device("cuda-epoch"), Driver(), Kernel(function)
    used.simulated, used.shared, used.load_driver = False, 227 << 10, lambda: driver
    for shared in (149_860, 108_900, 40_000, 149_860):
        used.launch(kernel, device.Grid(1, (32, 8), shared))
    assert driver.asked == [asked]
    used.launch(kernel, device.Grid(5, 256, 1000, together=True))
    assert kernel.launched[-2:] == [(1, (32, 8), 0, 149_860), (5, 256, 0, 1000)]
    with pytest.raises(RuntimeError, match=r"^cuda-epoch: got 6 .* want at most 5"):
        used.launch(kernel, device.Grid(6, 256, 1000, together=True))
    used.load_driver = lambda: Driver(1)
    with pytest.raises(RuntimeError, match=r"not grant a block 232448 .* \(error 1\)"):
        used.launch(Kernel(function), device.Grid(1, 256, 200_000))


@pytest.mark.parametrize(
    ("name", "capability", "oldest", "error", "said"),
    [
        ("H200", (9, 0), (9, 0), "", None),
        ("H200", (9, 0), (0, 0), "libNVVM cannot be found.\n", "libNVVM .*pip install"),
        ("H200", (9, 0), (0, 0), "[222] UNSUPPORTED_PTX_VERSION", "a newer driver"),
        ("H200", (9, 0), (0, 0), "libcudadevrt.a not found", "install the CUDA tool"),
        ("H200", (9, 0), (0, 0), "bad", r"^kernels .* on H200 \(OSError: bad\): rest"),
        (b"P100", (6, 0), (0, 0), "capability 6.0", r"on P100 .*cuda\[cu12\]"),
        (b"P100", (6, 0), (7, 0), "", "^P100 has .* 6.0, want 7.0 or newer$"),
        (None, None, (0, 0), "", r"no CUDA device \(Error at driver init\): want an"),
    ],
)
def test_why_a_gpu_cannot_be_used(name, capability, oldest, error, said):
    """It launches, and says what to do."""

    def launch():
        if error:
            raise OSError(error)

    card = SimpleNamespace(name=name, compute_capability=capability)
    cuda = SimpleNamespace(is_available=lambda: name, gpus=[card])
    cuda.get_current_device = lambda: card
    cuda.cuda_error = lambda: "Error at driver init: \n"
    reason = available.why_not(cuda, launch, oldest)
    assert re.search(said, reason) if said else reason is None


@simulated
def test_a_first_kernel_is_looked_at():
    available.launch(available.across_block)
    with pytest.raises(RuntimeError, match=r"gave \[-1.* want \[31"):
        available.launch(lambda out: None)


def printed(code, **variables):
    """The lines that a new process prints."""
    environment = {k: v for k, v in os.environ.items() if "CUDA_" not in k} | variables
    words = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.check_output(words, env=environment, text=True).splitlines()


BROKEN = """
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("numba.cuda"):
            raise ImportError("no CUDA bindings\\nsecond line")
sys.meta_path.insert(0, Broken())
import lstm_kernels as lk
print(*{v.why_unavailable for v in lk.versions() if v.target == "gpu"}, sep="\\n")
try:
    lk.network("cuda-fused", lk.Params.init(1, 2))
except lk.UnavailableError as error:
    print(error)
"""
NUMPY = """
import types, numpy as np
vars(np).pop("row_stack", None)  # as NumPy 2.5
np.__all__ = [name for name in np.__all__ if name != "row_stack"]
before = dict(vars(np))
import lstm_kernels as lk
reasons = [v.why_unavailable for v in lk.versions()]
lk.network("numpy", lk.Params.init(1, 2)).forward(np.zeros((1, 1, 1), np.float32))
import ptx
if not ptx.why_unavailable():  # numba-cuda is here: a kernel needs no device
    from numba import cuda, float32
    with ptx.stand_in((9, 0)):
        cuda.compile_ptx(lambda a: None, (float32[::1],), cc=(9, 0))
for name, value in vars(np).items():
    if before.pop(name, None) is not value and not isinstance(value, types.ModuleType):
        print(name)
print("gone:", *before)
"""


def test_an_import_takes_a_machine_as_it_is(tmp_path):
    """A broken numba.cuda is a reason; NumPy is as it was; the toolkit is found by its
    compiler, unless one is named.
    """
    why = "numba.cuda cannot be imported (ImportError: no CUDA bindings)"
    assert printed(BROKEN) == [why, f"name: 'cuda-fused' cannot run here: {why}"]
    paths = os.pathsep.join([".", os.path.dirname(ptx.__file__)])
    assert printed(NUMPY, PYTHONPATH=paths, NUMBA_ENABLE_CUDASIM="0") == ["gone:"]
    tool = tmp_path / "bin" / "nvcc"
    tool.parent.mkdir()
    tool.touch(0o755)
    path = f"{tool.parent}{os.pathsep}{os.environ['PATH']}"
    code = "import os, lstm_kernels.gpu.device; print(os.environ['CUDA_HOME'])"
    assert printed(code, PATH=path) == [str(tmp_path)]
    assert printed(code, PATH=path, CUDA_HOME="/named") == ["/named"]


def test_kernels_of_other_constants_have_other_names():
    """Numba's cache on disk would take one for the other."""
    usual = {"cell": "lstm", "dtype": np.float32, "R": 4, "parts": 8}
    usual |= {"L": 1, "D": 2, "H": 3, "O": 1}
    changes = [{"cell": "gru"}, {"dtype": np.float64}, *({k: 7} for k in [*usual][2:])]
    names = set()
    for change in ({}, *changes):
        L, D, H, O = ((usual | change)[k] for k in "LDHO")
        cell, dtype, R, parts = [*(usual | change).values()][:4]
        how = CELLS[cell], dtype, build.TILES, Sizes(L, 0, 0, D, H, O, 4)
        names.add(build.functions(*how, R=R, parts=parts)["step"].__qualname__)
    assert len(names) == 1 + len(changes)


def test_the_ladder_has_the_source_s_columns():
    flags = [(v.thread_positioning, v.transfer_optimised) for v in ROWS.values()]
    assert flags == [(False, False), (True, False), *[(True, True)] * 4]

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

import numpy as np
import ptx as ptx_tool
import pytest
from conftest import SIMULATED, example
from hypothesis import given, settings
from hypothesis import strategies as st

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.gpu import available, build, device, layout, plans, ptx
from lstm_kernels.gpu.device import Grid
from lstm_kernels.gpu.layout import Sizes, four
from lstm_kernels.versions import cuda_fused, cuda_persistent
from lstm_report.experiments import gpu
from lstm_report.measure.comparer import compare, compare_to_reference

ROWS = {v.name: v for v in lk.versions() if v.target == "gpu"}
needs_kernels = pytest.mark.skipif(
    available.why_unavailable() is not None, reason=str(available.why_unavailable())
)
simulated = pytest.mark.skipif(not SIMULATED, reason="stands in for what it plants")
H100 = {"multiprocessors": 132, "shared": 227 << 10}
T4 = {"multiprocessors": 40, "shared": 64 << 10}


def test_the_ladder_has_the_source_s_columns():
    flags = [(v.thread_positioning, v.transfer_optimised) for v in ROWS.values()]
    assert flags == [(False, False), (True, False), *[(True, True)] * 4]


# Plans: what a launch is cut into.


@given(
    n=st.builds(
        Sizes,
        L=st.integers(1, 5),
        T=st.just(9),
        B=st.sampled_from([1, 3, 31, 32, 33, 70, 1000, 100_000]),
        D=st.sampled_from([1, 12, 300]),
        H=st.sampled_from([1, 7, 31, 32, 33, 64, 300, 1124, 1128, 9000]),
        O=st.just(1),
        K=st.sampled_from([1, 3, 4, 5]),
    ),
    dtype=st.sampled_from([np.float32, np.float64]),
    card=st.sampled_from([H100, T4]),
)
@settings(max_examples=300)
def test_a_plan_fits_the_device_or_says_what_does_not(n, dtype, card):
    size, count, shared = np.dtype(dtype).itemsize, *card.values()
    sample = (max(n.D, n.H) + n.H * (n.K + 2)) * size  # x, h, c and sums
    with too_large(8 * sample > shared, f"params: hidden_size {n.H} takes "):
        tile = plans.plan(n, dtype, threads=256, **card)
        assert 1 <= tile.blocks <= tile.all_blocks <= count
        assert sample / 2 < tile.shared <= shared
        assert tile.x * tile.y <= 256
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


@contextmanager
def too_large(may, said):
    """A block that may end with a ValueError that begins so."""
    try:
        yield
    except ValueError as error:
        if not (may and str(error).startswith(said)):
            raise


def test_plans_of_known_networks():
    """Of an H100: those that its recorded times are of."""

    def tile(B, H):
        return plans.plan(Sizes(1, 12, B, 1, H, 1, 4), np.float32, threads=256, **H100)

    assert tile(256, 32)[:5] == (128, 32, 8, 2, 1)
    assert tile(100_000, 32)[:5] == (132, 32, 8, 32, 4)
    assert tile(256, 300)[1:3] == (150, 1)  # 300 units in two rounds
    # Eight rows of threads: those that have no group of samples share the sums.
    parts = {B: tile(132 * B, 32).parts for B in (1, 2, 4, 8, 12, 16, 20, 32)}
    assert parts == {1: 8, 2: 4, 4: 8, 8: 4, 12: 2, 16: 2, 20: 1, 32: 1}

    def kept(L, B, H):
        n = Sizes(L, 9, B, H, H, 1, 4)
        return cuda_persistent.plan(n, np.float32, simulated=False, **H100)

    assert kept(4, 64, 512) == (128, 16, 16, 16, 64, 8, 4352, 208_896)
    # Few layers, few samples: smaller groups; more samples are divided, too.
    assert kept(1, 1, 512)[:5] == (128, 16, 16, 4, 1)
    assert kept(1, 64, 512)[:5] == (128, 16, 16, 16, 16)
    kept(1, 8, 1124)  # the largest
    with pytest.raises(ValueError, match="want fewer layers or a smaller hidden_size"):
        kept(1, 8, 1128)


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


def run_threads(space, name, grid, arguments):
    """Run a kernel, thread by thread: no index depends on a number."""
    block = SimpleNamespace(syncthreads=lambda: None)
    shared = grid.shared // 4  # numbers
    block.shared = SimpleNamespace(array=lambda *_: Memory(shared))
    block.cg = SimpleNamespace(this_grid=lambda: SimpleNamespace(sync=lambda: None))
    x, y = grid.threads
    block.blockDim = SimpleNamespace(x=x, y=y)
    block.gridDim = SimpleNamespace(x=grid.blocks)
    space |= {"cuda": block, "load_acquire": lambda *_: 1 << 30}
    words = [arguments[word] for word in inspect.signature(space[name]).parameters]
    for i, j in itertools.product(range(grid.blocks), range(x * y)):
        block.blockIdx = SimpleNamespace(x=i)
        block.threadIdx = SimpleNamespace(x=j % x, y=j // x)
        space[name](*words)


@simulated
@pytest.mark.parametrize("kept", [False, True])
def test_kernels_stay_in_their_memory_and_compute_each_number_once(kept):
    """In as much shared memory as their launch asks for, on the grid it has."""
    kind = cuda_persistent.CudaPersistent if kept else cuda_fused.CudaFused

    @settings(max_examples=12)
    @given(draw=st.data(), cell=st.sampled_from([*CELLS]), few=st.booleans())
    def stay(draw, cell, few):
        most = 2, 3, 9, 9, 6, 2
        L, T, B, D, H, O = (draw.draw(st.integers(1, size)) for size in most)
        params = lk.Params.init(D, H, num_layers=L, output_size=O, cell=cell)
        card = SimpleNamespace(multiprocessors=3, threads=4 * H)
        card.shared = 1 << 20 if kept else 1500 if few else 48 << 10
        card.array = lambda name, shape, dtype: Memory(shape[0])
        run = kind.pass_of(card, params, T, B, kind.kernels)
        constants = {name: getattr(run.plan, name) for name in run.constants}
        how = CELLS[cell], np.float32, run.modules, run.n
        space, n = build.functions(*how, **constants), run.n
        for name in kind.kernels:
            work, theta, losses = (
                run.work(),
                Memory(layout.pack(params).size),
                Memory(1),
            )
            values = {"n": run.places, "tile": run.plan.tile, "first": 0, "batch": 0}
            values |= {"order": np.arange(B), "x": np.zeros((T, B, D)), "theta": theta}
            values |= {"target": np.zeros((B, O)), "work": work, "losses": losses}
            values |= {"blocks": run.plan.blocks, "rate": float(few)}
            grid = run.grid(name)
            if kept and name == "forward" and few:  # as on a device
                grid = grid._replace(blocks=run.plan.blocks)
            run_threads(space, name, grid, values)

            def written(array, work=work):
                first, shape = getattr(run.places, array), n.shape(array)
                return work.written[first : first + math.prod(shape)].reshape(shape)

            if name == "forward":
                assert (written("h")[:, 1:] == 1).all()
            if name in ("backward", "step"):
                assert (written("da") == 1).all()
            if name == "parameter_gradients":
                assert (written("partials")[0, : n.P + 1] == 1).all()
            if name == "update":
                changed = np.r_[theta.written[: n.P], theta.written[four(n.P) :]]
                assert losses.written == 1
                assert (changed == few).all()

    stay()


# What a call computes.


def calls(net, dataset):
    """What calls in turn return; an epoch after a step sends the data set again, and
    its last mini-batch is smaller.
    """
    x, target, N = dataset.x, dataset.target, len(dataset)
    compare_to_reference(net, net.params(), x)
    order = np.random.default_rng(2).permutation(N)
    losses = net.epoch(dataset, order, N // 2 + 1, 0.1)
    losses.append(net.step(x, target, 0.1))
    losses += net.epoch(dataset, order, N // 2 + 1, 0.1)
    y, _ = net.forward(x, training=True)
    backward = net.backward(np.ones_like(y)).arrays()
    compare(net.backward(np.ones_like(y)).arrays(), backward, 0)
    loss, grads = net.loss_and_grads(x, target)
    results = {"losses": np.array([*losses, loss]), "y": y, "p": net.predict(x)}
    results |= {f"backward {name}": a for name, a in backward.items()}
    return results | grads.arrays() | {"params": net.params().layers[0].W}


@needs_kernels
@pytest.mark.parametrize(
    ("version", "cell", "shape", "limits"),
    [
        *((version, "gru", (2, 2, 5, 2, 5), {}) for version in ROWS),
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
    examples = (x, target), (2 * x[:, -2:].copy(), target[-2:].copy())
    datasets = [lk.Dataset(*some) for some in examples]  # alive
    both = net, _ = [lk.network(name, params) for name in (version, "numpy")]
    if SIMULATED:
        vars(net._device).update(limits)
    for dataset in datasets:
        got, want = (calls(n, dataset) for n in both)
        compare(got, want, 2e-5)
        if version in [*ROWS][2:]:  # Numba makes the arrays of V1 and V2
            net._device.free = lambda: 0


@needs_kernels
@pytest.mark.parametrize("version", ["cuda-v2", *gpu.STAY])
def test_cuda_gives_the_same_bits_every_run(version):
    params, x, target = example((2, 2, 9 if SIMULATED else 21, 3, 6), "gru")
    first, second = (
        lk.network(version, params).loss_and_grads(x, target)[1] for _ in range(2)
    )
    compare(second.arrays(), first.arrays(), 0)


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
    sent = x.size + layer + state, 4 * step + state
    fetched = tape + step, x.size + state + layer
    want = dict.fromkeys(("cuda-v1", "cuda-v2"), (4 * both, 4 * both))
    want["cuda-v3"] = 4 * sum(sent), 4 * sum(fetched)
    # The order, too.
    want |= dict.fromkeys(gpu.STAY, (4 * (x.size + target.size) + 8 * 6, 4))
    for version in ROWS:
        net = lk.network(version, params)
        net.step(x, target, 0.1)
        assert gpu.copied(net, lambda n=net: n.step(x, target, 0.1)) == want[version]
        for batch in (6, 2, 2) if version in gpu.STAY else ():
            run = lambda n=net, b=batch: n.epoch(dataset, range(6), b, 0.1)  # noqa: E731
            copied = gpu.copied(net, run)
        if version in gpu.STAY:  # the order once, a loss for each step at the end
            assert copied == (8 * 6, 4 * 3)


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


# What a device lacks.


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
        calls = (net.step, target, 0.1), (net.loss_and_grads, target)
        for call, *arguments in (*calls, (net.forward, None, True)):
            with pytest.raises(error, match=said):
                call(x, *arguments)
        with pytest.raises(RuntimeError, match=r"want forward\(x, training=True\)"):
            net.backward(np.zeros((4, 6, 5), np.float32))
        compare(net._params.arrays(), params.arrays(), 0)


class Driver:
    """Which shared memory was asked for of which kernel, in either of two ways."""

    def __init__(self, error=0):
        self.asked, self.error = [], error

    def cuFuncSetAttribute(self, handle, *words):
        self.asked.append((handle.value, *words))
        return self.error

    def cuKernelSetAttribute(self, attribute, size, *words):
        return self.cuFuncSetAttribute(words[0], attribute, size, words[1])


class Kernel:
    """A dispatcher with one overload, of which five blocks fit."""

    def __init__(self, function):
        overload = SimpleNamespace(max_cooperative_grid_blocks=lambda *how: 5)
        overload._codelibrary = SimpleNamespace(get_cufunc=lambda: function)
        self.overloads, self.launched = {"signature": overload}, []

    def __getitem__(self, where):
        return lambda *arguments: self.launched.append(where)


def on_h100(driver):
    """A Device as one of an H100 would be."""
    used = device.Device("cuda-epoch")
    used.multiprocessors, used.shared, used.simulated = 132, 227 << 10, False
    used.load_driver = lambda: driver
    return used


OF_MODULE = SimpleNamespace(handle=SimpleNamespace(value=16))
OF_LIBRARY = SimpleNamespace(handle=17, device=SimpleNamespace(id=3), kernel=object())


@simulated
@pytest.mark.parametrize(("function", "of"), [(OF_MODULE, ()), (OF_LIBRARY, (3,))])
def test_a_launch_gets_what_the_device_has(function, of):
    """The most shared memory is asked for once: a launch that wants less must not lower
    what a later one of the same kernel needs. More blocks than fit would wait for ever.
    """
    driver, kernel = Driver(), Kernel(function)
    used = on_h100(driver)
    for shared in (149_860, 108_900, 40_000, 149_860):
        used.launch(kernel, Grid(1, (32, 8), shared))
    assert driver.asked == [(16 + len(of), 8, 227 << 10, *of)]
    used.launch(kernel, Grid(5, (32, 8), 1000, together=True))
    assert kernel.launched[-2:] == [(1, (32, 8), 0, 149_860), (5, (32, 8), 0, 1000)]
    with pytest.raises(RuntimeError, match=r"^cuda-epoch: got 6 .* want at most 5"):
        used.launch(kernel, Grid(6, (32, 8), 1000, together=True))
    with pytest.raises(RuntimeError, match=r"not grant a block 232448 .* \(error 1\)"):
        on_h100(Driver(1)).launch(Kernel(function), Grid(1, (32, 8), 200_000))


def card(name="H200", capability=(9, 0), count=1):
    """numba.cuda with such devices."""
    one = SimpleNamespace(name=name, compute_capability=capability)
    return SimpleNamespace(
        is_available=lambda: count > 0,
        gpus=[one] * count,
        cuda_error=lambda: "Error at driver init: \nmore",
        get_current_device=lambda: one,
    )


@pytest.mark.parametrize(
    ("of", "oldest", "error", "said"),
    [
        (card(), (7, 0), None, None),
        (card(), (0, 0), "libNVVM cannot be found.\nmore", "libNVVM .*pip install"),
        (card(), (0, 0), "[222] UNSUPPORTED_PTX_VERSION", "VERSION.*a newer driver"),
        (card(), (0, 0), "libcudadevrt.a not found", "install the CUDA toolkit"),
        (card(), (0, 0), "else", r"^kernels do not run on H200 \(OSError: else\): re"),
        (card("P100", (6, 0)), (0, 0), "capability 6.0", r"on P100 .*cuda\[cu12\]"),
        (card("P100", (6, 0)), (7, 0), None, "^P100 has .* 6.0, want 7.0 or newer$"),
        (card(count=0), (0, 0), None, r"no CUDA device \(Error at driver init\): ch"),
    ],
)
def test_why_a_gpu_cannot_be_used(of, oldest, error, said):
    """It launches, and says what to do."""

    def launch():
        if error:
            raise OSError(error)

    reason = available.why_not(of, launch, oldest)
    assert reason is None if said is None else re.search(said, reason)


@simulated
def test_a_first_kernel_is_looked_at():
    available.launch(available.across_block)
    with pytest.raises(RuntimeError, match=r"gave \[-1.* want \[31"):
        available.launch(lambda out: None)


# What an import does.


def printed(code, **variables):
    """The lines that a new process prints."""
    environment = {k: v for k, v in os.environ.items() if "CUDA_" not in k}
    words = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.check_output(
        words, env=environment | variables, text=True
    ).splitlines()


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


def test_a_broken_cuda_import_is_a_reason():
    why = "numba.cuda cannot be imported (ImportError: no CUDA bindings)"
    said = f"name: 'cuda-fused' cannot run here: {why}"
    assert printed(BROKEN) == [why, said]


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


def test_numpy_is_as_it_was():
    paths = os.pathsep.join([".", os.path.dirname(ptx_tool.__file__)])
    said = printed(NUMPY, PYTHONPATH=paths, NUMBA_ENABLE_CUDASIM="0")
    assert said == ["gone:"]


def test_an_import_finds_the_toolkit(tmp_path):
    """By its compiler; one that is named stays."""
    tool = tmp_path / "bin" / "nvcc"
    tool.parent.mkdir()
    tool.touch(0o755)
    path = f"{tool.parent}{os.pathsep}{os.environ['PATH']}"
    code = "import os, lstm_kernels.gpu.device; print(os.environ['CUDA_HOME'])"
    assert printed(code, PATH=path) == [str(tmp_path)]
    assert printed(code, PATH=path, CUDA_HOME="/named") == ["/named"]


def test_kernels_of_other_constants_have_other_names():
    """Numba's cache on disk would take one for the other."""
    sizes, some = Sizes(1, 0, 0, 2, 3, 1, 4), {"R": 4, "parts": 8}
    builds = [("lstm", np.float32, sizes, some), ("gru", np.float32, sizes, some)]
    builds += [("lstm", np.float64, sizes, some)]
    builds += [("lstm", np.float32, sizes._replace(**{k: 7}), some) for k in "LDHO"]
    builds += [("lstm", np.float32, sizes, some | {k: 2}) for k in some]
    labels = {
        build.functions(CELLS[cell], dtype, build.TILES, n, **constants)[
            "step"
        ].__qualname__
        for cell, dtype, n, constants in builds
    }
    assert len(labels) == len(builds)


@simulated
def test_copies_of_four_numbers_begin_at_a_multiple_of_four():
    a = np.zeros(16)
    ptx.copy_quad(a, 4, np.arange(16.0), 8)
    np.testing.assert_array_equal(a[4:8], [8, 9, 10, 11])
    for i, j in ((2, 4), (4, 2)):
        with pytest.raises(IndexError, match="want multiples of four"):
            ptx.copy_quad(a, i, a, j)

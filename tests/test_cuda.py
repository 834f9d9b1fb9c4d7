"""The GPU versions: on the device where there is one, else in the simulator."""

import math
import subprocess
import sys
import types
import warnings

import numpy as np
import pandas as pd
import pytest
from conftest import SIMULATED, example

import lstm_kernels as lk
from lstm_kernels import kernels
from lstm_kernels.bench import gpu, runner
from lstm_kernels.bench.comparer import MismatchError, compare, compare_to_reference
from lstm_kernels.cells import CELLS
from lstm_kernels.errors import LowOccupancyWarning
from lstm_kernels.gpu import device, device_functions, layout, plans, sample_kernels
from lstm_kernels.report import figures_gpu
from lstm_kernels.versions import cuda_fused

GPU = [v.name for v in lk.versions() if v.target == "gpu"]
needs_kernels = pytest.mark.skipif(
    device.why_unavailable() is not None, reason=str(device.why_unavailable())
)
simulated = pytest.mark.skipif(not SIMULATED, reason="plants faults that only Python can run")


def test_the_ladder_has_the_source_s_columns():
    rows = {v.name: v for v in lk.versions() if v.target == "gpu"}
    assert list(rows) == ["cuda-v1", "cuda-v2", "cuda-v3", "cuda-fused"]
    assert [v.thread_positioning for v in rows.values()] == [False, True, True, True]
    assert [v.transfer_optimised for v in rows.values()] == [False, False, True, True]


@needs_kernels
@pytest.mark.parametrize("shared", [48 << 10, 3000, 1600])
@pytest.mark.parametrize("sums", ["ordered", "atomic"])
@pytest.mark.parametrize("B", [5, 37])
def test_fused_cuda_plans(cell, shared, sums, B):
    """Weights in shared memory or not, one sample to a thread or four, several tiles to a block."""
    if sums == "atomic" and cell != "gru":
        pytest.skip("only the sums differ, and a GRU's blocks")
    params, x, target = example((2, 3, B, 3, 9), cell)
    net = cuda_fused.CudaFused(params, sums=sums)
    net._device.most_shared, net._device.multiprocessors = shared, 4
    compare_to_reference(net, params, x)
    dataset, order = lk.Dataset(x, target), np.random.default_rng(1).permutation(B)
    reference = lk.network("numpy", params)
    got, want = (n.epoch(dataset, order, B // 2, 0.1) for n in (net, reference))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    compare(net.params().arrays(), reference.params().arrays(), 1e-5)


def test_plans_of_cuda_fused():
    def plan(B, H, shared=200 << 10, L=1, D=1):
        n = layout.Sizes(L, 12, B, D, H, 1)
        return plans.plan(n, CELLS["lstm"], np.dtype(np.float32), 132, shared)

    few, many = plan(256, 32), plan(100_000, 32)
    assert few.tile == 2
    assert (few.blocks, few.R, few.resident) == (128, 1, True)
    assert (many.tile, many.blocks, many.R) == (32, 132, 4)
    assert not plan(256, 256).resident
    for B in (1, 3, 100, 5000):
        for H in (1, 7, 32, 100, 300):
            small = plan(B, H, 48 << 10)
            assert small.shared <= 48 << 10
            assert small.tile % small.R == 0
            assert 1 <= small.blocks <= 132
            assert small.threads <= plans.MOST_THREADS
    with pytest.raises(ValueError, match=r"^params: hidden_size 9000 takes \d+ bytes of shared"):
        plan(1, 9000)


def test_arrays_fill_work_without_a_gap():
    L, T, B, D, H, O = n = layout.Sizes(2, 3, 5, 7, 11, 13)
    places = layout.Places.of(n, 4, 100, CELLS["gru"])
    slots, gates = (L, T + 1, B, H), (L, T, B, 4, H)
    shapes = {"partials": (4, 101), "x": (T, B, D), "h": slots, "c": slots, "gates": gates}
    shapes |= {"dy": (T, B, H), "state": (2, L, B, H), "da": gates, "dx": (T, B, D)}
    shapes |= {"d_out": (B, O)}
    assert (*shapes, "end") == places._fields
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    assert {name: places.size(name) for name in shapes} == sizes
    assert (places[0], places.end) == (0, sum(sizes.values()))


@pytest.mark.parametrize(("rows", "width", "threads"), [(5, 1, 4), (3, 7, 4), (9, 5, 32)])
def test_a_walk_meets_every_entry_once(rows, width, threads):
    entries = []
    for me in range(threads):
        index = {"threadIdx": types.SimpleNamespace(x=me)}
        cuda = types.SimpleNamespace(blockDim=types.SimpleNamespace(x=threads), **index)
        space = kernels.fill([device_functions], {"cuda": cuda}, "walk")
        row, column, *steps = space["first_place"](width)
        while row < rows:
            entries.append((row, column))
            row, column = space["next_place"](row, column, *steps, width)
    assert sorted(entries) == list(np.ndindex(rows, width))


@needs_kernels
def test_sums_are_checked():
    with pytest.raises(ValueError, match="sums: got 'fast', want one of 'ordered', 'atomic'"):
        cuda_fused.CudaFused(example((1, 2, 3, 2, 4))[0], sums="fast")


@needs_kernels
@pytest.mark.parametrize("version", GPU)
def test_an_epoch_is_that_of_the_reference_on_cuda(version, cell):
    params, x, target = example((2, 3, 11, 2, 5), cell)
    dataset, order = lk.Dataset(x, target), np.random.default_rng(2).permutation(11)
    net, reference = lk.network(version, params), lk.network("numpy", params)
    for _ in range(2):
        got, want = (n.epoch(dataset, order, 4, 0.2) for n in (net, reference))
        np.testing.assert_allclose(got, want, rtol=1e-5)
    compare(net.params().arrays(), reference.params().arrays(), 1e-5)
    compare({"p": net.predict(x)}, {"p": reference.predict(x)}, 1e-5)


@needs_kernels
def test_what_cuda_versions_copy():
    """Bytes counted by hand: x, target, parameters and gradients (with the loss), four each."""
    work = gpu.Workload(L=1, T=4, D=2, H=5, B=6)
    params, (x, target) = work.params(), work.example()
    theta = (2 + 5 + 1) * 4 * 5 + 5 + 1
    copied = {}
    for version in GPU:
        net = lk.network(version, params)
        net.step(x, target, 0.1)
        copied[version] = gpu.copied(net, lambda net=net: net.step(x, target, 0.1))
    both = 4 * (x.size + target.size + theta + theta + 1)
    assert copied["cuda-v1"] == copied["cuda-v2"] == (both, both)
    assert copied["cuda-v3"] == (4 * (x.size + target.size + theta), 4 * (theta + 1))
    assert copied["cuda-fused"] == (4 * (x.size + target.size) + 8 * 6, 4)  # and the order
    for version in ("cuda-v1", "cuda-v2", "cuda-v3"):
        assert figures_gpu.step_bytes(version, work) == copied[version]


@needs_kernels
def test_no_copies_inside_an_epoch_of_cuda_fused():
    params, x, target = example((1, 3, 12, 2, 5))
    net, dataset = lk.network("cuda-fused", params), lk.Dataset(x, target)
    order = np.arange(12)
    net.epoch(dataset, order, 3, 0.1)
    for batch_size, steps in ((12, 1), (3, 4)):
        sent = gpu.copied(net, lambda b=batch_size: net.epoch(dataset, order, b, 0.1))
        assert sent == (8 * 12, 4 * steps)  # the order once, a loss for each step at the end


@needs_kernels
@pytest.mark.parametrize("version", ["cuda-v2", "cuda-fused"])
def test_cuda_gives_the_same_bits_every_run(version):
    params, x, target = example((2, 3, 21, 3, 6), "gru")
    first, second = (lk.network(version, params).loss_and_grads(x, target)[1] for _ in range(2))
    for name, value in first.arrays().items():
        np.testing.assert_array_equal(second.arrays()[name], value, err_msg=name)


@needs_kernels
def test_a_data_set_is_sent_again_when_it_is_another():
    params, x, target = example((1, 3, 8, 2, 5))
    net, reference = lk.network("cuda-fused", params), lk.network("numpy", params)
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
def test_losses_end_at_one_that_is_not_finite():
    params, x, target = example((1, 2, 6, 2, 3))
    net = lk.network("cuda-fused", params)
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
    with pytest.raises(ValueError, match=rf"^x: {version} wants .* MiB on the device for .* free"):
        net.step(x, target, 0.1)
    for name, value in net._params.arrays().items():
        np.testing.assert_array_equal(value, params.arrays()[name])


@needs_kernels
@pytest.mark.parametrize("version", GPU)
def test_a_failing_kernel_leaves_the_host_s_parameters(version, monkeypatch):
    params, x, target = example((1, 4, 6, 2, 5))
    net = lk.network(version, params)

    def broken(self, *where):
        def launch(*arguments):
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

        return launch

    monkeypatch.setattr(device.Device, "configure", broken)
    for call in (lambda: net.step(x, target, 0.1), lambda: net.loss_and_grads(x, target)):
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

    def removed(capability):
        raise AttributeError("module 'numpy' has no attribute 'row_stack'")

    said = device.why_not_compiled("Tesla P100", (6, 0), dropped)
    assert "Tesla P100 has compute capability 6.0" in said
    assert "install lstm-kernels[cuda12]" in said
    assert "more" not in said
    said = device.why_not_compiled("H200", (9, 0), dropped)
    assert "cuda12" not in said
    assert "ValueError: compute capability" in said
    assert device.why_not_compiled("H200", (9, 0), lambda capability: None) is None
    said = device.why_not_compiled("H200", (9, 0), removed)
    assert said == device.NUMPY_TOO_NEW


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
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0] == "numba.cuda cannot be imported (ImportError: no CUDA bindings)"
    assert said[1] == f"name: 'cuda-fused' cannot run here: {said[0]}"


@needs_kernels
def test_few_blocks_are_explained_once(monkeypatch):
    class Kernel:
        def __getitem__(self, grid):
            warnings.warn("Grid size 1 will likely result in GPU under-utilization", stacklevel=2)
            return lambda *arguments: None

    monkeypatch.setattr(device, "SIMULATED", False)
    monkeypatch.setattr(
        device.Device, "__init__", lambda self: vars(self).update(FIELDS | {"_configured": {}})
    )
    used = device.Device()
    with pytest.warns(LowOccupancyWarning, match=r"cuda-v2: 1 blocks of 32 threads on a device of"):
        used.configure(Kernel(), 1, 32, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        used.configure(Kernel(), 2, 32, 0)


FIELDS = {"version": "cuda-v2", "multiprocessors": 132, "_warned": False}


def planted(modules, change, **names):
    """Kernels with a fault: `change` replaces a function among those of the modules."""
    space = device.functions(CELLS["lstm"], np.float32, modules, **names)
    original = device.functions

    def functions(*arguments, **keywords):
        space = original(*arguments, **keywords)
        space.update({name: function(space) for name, function in change.items()})
        return space

    assert set(change) <= set(space)
    return functions


@simulated
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("where", lambda space: lambda: (0, space["cuda"].gridsize(1))),
        ("layer_at", lambda space: lambda index, D, H: (0, D * 4 * H, (D + H) * 4 * H - 1, D)),
        ("total", lambda space: lambda a: a[0] + a[1] + a[2]),
    ],
)
def test_faults_in_cuda_samples_are_caught(monkeypatch, name, fault):
    functions = planted((sample_kernels,), {name: fault}, where="position")
    monkeypatch.setattr(device, "functions", functions)
    device.build.cache_clear()
    params, x, _ = example((1, 3, 6, 2, 5))
    try:
        with pytest.raises((MismatchError, IndexError)):
            compare_to_reference("cuda-v2", params, x)
    finally:
        device.build.cache_clear()


@simulated
def test_a_fault_in_the_sum_over_blocks_is_caught(monkeypatch):
    def first_only(space):
        return lambda partials, size, first, count, stride: None

    functions = planted(plans.MODULES, {"add_up": first_only}, R=1, RESIDENT=True, ATOMIC=False)
    monkeypatch.setattr(device, "functions", functions)
    device.build.cache_clear()
    params, x, _ = example((1, 3, 9, 2, 5))
    try:
        with pytest.raises(MismatchError, match="layers"):
            compare_to_reference("cuda-fused", params, x)
    finally:
        device.build.cache_clear()


@needs_kernels
def test_the_gpu_benchmark_runs():
    small = gpu.Workload(1, 2, 1, 3, 4)
    names = ["numpy", "cuda-v3", "cuda-fused"]
    rows = gpu.hundreds(names, small, repeats=1, batches=1)
    assert set(rows["version"]) == set(names)
    moved = gpu.transfers(["cuda-v1", "cuda-v3"], small, repeats=1)
    assert (moved["bytes"] > 0).all()
    grown = gpu.windows(names[1:], [8, 16], small, repeats=1)
    assert grown.groupby("N")["B"].first().to_dict() == {8: 1, 16: 2}
    both = gpu.sums(small, repeats=1, steps=1)
    assert set(both["variant"]) == {"sums ordered", "sums atomic"}
    assert not runner.medians(rows).isna().any()


def rows_of(times, variant, stage="epoch", **columns):
    """Rows of a record: version -> seconds, or (version, N) -> seconds."""
    table = [
        {"machine": "m", "version": key[0], "N": key[1], "seconds": value}
        for key, value in times.items()
    ]
    return pd.DataFrame(table).assign(variant=variant, stage=stage, repeat=0, **columns)


def test_sentences_about_records():
    growing = {("cuda-fused", 10**p): max(1e-4, 1e-9 * 10**p) for p in range(2, 7)}
    growing |= {("numba-fused", 10**p): 1e-7 * 10**p for p in range(2, 7)}
    rows = rows_of(growing, "windows")
    assert "from 100 to 100,000 windows" in figures_gpu.growth(rows)
    assert "power 0.00" in figures_gpu.growth(rows)
    assert "overtakes `numba-fused` from 10,000 windows on" in figures_gpu.growth(rows)
    assert "and is 100 times as fast at 1,000,000" in figures_gpu.growth(rows)
    steps = {("sequential", 0): 1.7, ("numpy", 0): 0.76, ("cuda-v3", 0): 0.1}
    long = {("cuda-v3", 0): 1.0, ("cuda-fused", 0): 0.1}
    both = pd.concat([rows_of(steps, "h", "step", B=256), rows_of(long, "h", "5 epochs", B=256)])
    said = figures_gpu.speeds(both)
    assert "17 times as fast as `sequential`, 7.6 times as fast as `numpy`" in said
    assert "10 times as fast with `cuda-fused`" in said
    table = figures_gpu.times(both)
    assert table.loc[("m", "h", "step"), "cuda-v3 (ms)"].item() == 100
    assert table.loc[("m", "h", "5 epochs"), "cuda-fused (ms)"].item() == 100


def test_nothing_recorded_is_said_so(monkeypatch):
    monkeypatch.setattr(figures_gpu.results, "read", lambda name: none())
    assert figures_gpu.each("windows", figures_gpu.growth) == figures_gpu.NOT_YET
    assert set(figures_gpu.claims(figures_gpu.recorded()).values()) == {None}


@simulated
def test_a_notebook_on_a_device_times_itself(monkeypatch):
    shown = []
    nb = types.SimpleNamespace(say=shown.append, show=lambda figure, name: shown.append(name))
    assert figures_gpu.show(nb, figures_gpu.measured(["numpy"])) is None
    assert shown == [figures_gpu.NOT_YET]
    monkeypatch.setattr(figures_gpu, "live", lambda: True)
    monkeypatch.setattr(figures_gpu.device, "describe", lambda: {"name": "a GPU"})
    monkeypatch.setattr(gpu, "table", lambda names, repeats: pd.DataFrame())
    names = ["sequential", "numpy", "numba-fused", "cuda-v3", "cuda-fused"]
    rows = figures_gpu.measured(names, small=True)
    medians = figures_gpu.show(nb, rows)
    assert shown[1].startswith("a GPU, in this run: a step of 8 samples takes `cuda-v3`")
    assert shown[2].startswith("a GPU, in this run: from 16 to 32 windows")
    assert shown[3:] == ["07-windows-this-run"]
    assert "cuda-fused (ms)" in medians
    assert set(map(type, figures_gpu.claims(rows).values())) == {bool}


def none():
    raise ValueError("no file")


def test_rooflines_and_shares():
    loads = figures_gpu.loads()
    assert loads["flop per byte"].is_monotonic_increasing
    assert pytest.approx(33.4, abs=0.1) == figures_gpu.SHARED_MEMORY
    assert "four samples to a thread: 0.67 flop" in figures_gpu.roofline(loads).alt
    table = figures_gpu.occupancy(gpu.HUNDREDS)
    assert table.loc["cuda-v1", "blocks"] == 1
    assert table.loc["cuda-v2", "blocks"] == 8
    assert (table["registers of a thread"] < 256).all()


@needs_kernels
def test_each_filling_of_the_kernels_has_a_name_of_its_own():
    """Numba's cache on disk would take one for the other."""
    real, labels = np.dtype(np.float32), []
    for R in (1, 4):
        for resident in (True, False):
            for atomic in (True, False):
                names = {"R": R, "RESIDENT": resident, "ATOMIC": atomic}
                space = device.functions(CELLS["lstm"], real, plans.MODULES, **names)
                labels += [space[name].__qualname__ for name in device.KERNELS]
    for where in ("position", "no_position"):
        for dtype in (real, np.dtype(np.float64)):
            space = device.functions(CELLS["gru"], dtype, (sample_kernels,), where=where)
            labels += [space[name].__qualname__ for name in device.KERNELS]
    assert len(set(labels)) == len(labels)


@needs_kernels
def test_a_comparison_that_fails_leaves_the_others(monkeypatch, tmp_path, capsys):
    def fails(*arguments, **keywords):
        raise ValueError("planted")

    one = rows_of({("cuda-v3", 8): 1.0}, "transfers sent", "step", bytes=4)
    one = one.drop(columns="machine")
    for name in ("table", "hundreds", "sums", "windows", "batches", "hidden"):
        monkeypatch.setattr(gpu, name, fails)
    monkeypatch.setattr(gpu, "transfers", lambda *arguments, **keywords: one)
    running = gpu.main("smoke", tmp_path)
    name, _, path = next(running)
    assert name == "transfers"
    assert len(pd.read_csv(path)) == 1
    with pytest.raises(RuntimeError, match=r"^not measured, see above: table \(ValueError\), hund"):
        next(running)
    assert "planted" in capsys.readouterr().err


def test_checks_say_what_failed(monkeypatch, tmp_path):
    class Done:
        returncode, stdout, stderr = 1, "1 failed, 3 passed\n", ""

    monkeypatch.setattr(gpu.subprocess, "run", lambda *words, **how: Done)
    monkeypatch.setattr(gpu.shutil, "which", lambda name: "a-tool")
    monkeypatch.setattr(
        gpu.provenance,
        "machine",
        lambda preset: {"date": "2026-01-01", "commit": "c", "dirty": False, "name": "m"},
    )
    said = {name: result for name, result, _ in gpu.checks(tmp_path)}
    assert said["tests on the device"] == "failed: 1 failed, 3 passed"
    assert set(said) == {
        "tests on the device",
        "compute-sanitizer memcheck",
        "compute-sanitizer racecheck",
    }
    assert "1 failed" in (tmp_path / "m" / "gpu-checks.json").read_text()


def test_figures_of_records_say_what_they_show():
    times = {(name, N): 1e-6 * N for name in ("cuda-v3", "cuda-fused") for N in (100, 1000)}
    figure = figures_gpu.scaling(rows_of(times, "windows"), "N", "windows")
    title = figure.axes[0].get_title() + figure.axes[0].get_title(loc="left")
    assert title == "cuda-fused: 10 times the time for 10 times as many windows"
    assert "cuda-v3 0.1 to 1 ms" in figure.alt


@needs_kernels
@pytest.mark.parametrize("version", GPU)
def test_a_small_mini_batch_after_a_large_one_on_cuda(version):
    """Arrays of the device keep the size of the largest; the examples in them do not."""
    params, x, target = example((1, 3, 9, 2, 5))
    net, reference = lk.network(version, params), lk.network("numpy", params)
    order = np.arange(9)
    for count in (9, 2, 5):
        some = np.ascontiguousarray(x[:, -count:]), target[-count:].copy()
        assert net.step(*some, 0.2) == pytest.approx(reference.step(*some, 0.2), rel=1e-5)
        dataset = lk.Dataset(*some)
        got, want = (n.epoch(dataset, order[:count], 3, 0.2) for n in (net, reference))
        np.testing.assert_allclose(got, want, rtol=1e-5)
    compare(net.params().arrays(), reference.params().arrays(), 1e-5)


@needs_kernels
@pytest.mark.parametrize("shared", [1300, 1600, 1900, 2000])
def test_plans_of_one_network_agree_on_where_weights_are(shared):
    """A whole and a small last mini-batch, twice, about the limit of shared memory."""
    params, x, target = example((1, 2, 11, 2, 6))
    net, reference = cuda_fused.CudaFused(params), lk.network("numpy", params)
    net._device.most_shared, net._device.multiprocessors = shared, 2
    dataset, order = lk.Dataset(x, target), np.arange(11)
    for _ in range(2):
        got, want = (n.epoch(dataset, order, 10, 0.3) for n in (net, reference))
        np.testing.assert_allclose(got, want, rtol=1e-5)
    assert len({net._pass(2, B).plan.resident for B in (10, 1)}) == 1
    compare(net.params().arrays(), reference.params().arrays(), 1e-5)

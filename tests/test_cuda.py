"""The GPU versions: on the device where there is one, else in the simulator."""

import itertools
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
from lstm_kernels.cells import CELLS
from lstm_kernels.errors import LowOccupancyWarning
from lstm_kernels.gpu import build, device, layout, plans, sample_kernels
from lstm_kernels.versions import cuda_fused
from lstm_report.experiments import gpu
from lstm_report.figures import gpu as figures_gpu
from lstm_report.measure import runner
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
    assert list(rows) == ["cuda-v1", "cuda-v2", "cuda-v3", "cuda-fused", "cuda-epoch"]
    assert [v.thread_positioning for v in rows.values()] == [
        False,
        True,
        True,
        True,
        True,
    ]
    assert [v.transfer_optimised for v in rows.values()] == [
        False,
        False,
        True,
        True,
        True,
    ]


@needs_kernels
@pytest.mark.parametrize("shared", [48 << 10, 3000, 1600])
@pytest.mark.parametrize("sums", ["ordered", "atomic"])
@pytest.mark.parametrize("B", [5, 37])
def test_fused_cuda_plans(cell, shared, sums, B):
    """Weights in shared memory or not, one sample to a thread or four, several tiles to
    a block.
    """
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


def test_plans_of_the_tile_kernels():
    def plan(B, H, shared=200 << 10, L=1, T=12, D=1):
        n, how = (
            layout.Sizes(L, T, B, D, H, 1),
            {"most_threads": 256, "most_units": 256},
        )
        return plans.plan(n, CELLS["lstm"], np.dtype(np.float32), 132, shared, **how)

    few, many = plan(256, 32), plan(100_000, 32)
    assert few.tile == 2
    assert (few.blocks, few.R, few.resident, few.x, few.y) == (128, 1, True, 32, 8)
    assert (many.tile, many.blocks, many.R, many.all_blocks) == (32, 132, 4, 132)
    assert not plan(256, 256).resident
    assert (plan(256, 300).x, plan(256, 300).y) == (150, 1)  # 300 units in two rounds
    for B in (1, 3, 100, 5000):
        for H in (1, 7, 32, 100, 300):
            small = plan(B, H, 48 << 10)
            assert small.shared <= 48 << 10
            assert small.tile % small.R == 0
            assert 1 <= small.blocks <= small.all_blocks <= 132
            assert small.threads <= 256
    with pytest.raises(
        ValueError, match=r"^params: hidden_size 9000 takes \d+ bytes of shared"
    ):
        plan(1, 9000)


def test_large_networks_share_the_gradients_among_all_blocks():
    """By count: few rows of gradients to add up are cheaper than a tape that all blocks
    read.
    """

    def product(B, H, L=1, T=12, D=1):
        n, how = (
            layout.Sizes(L, T, B, D, H, 1),
            {"most_threads": 256, "most_units": 256},
        )
        return plans.plan(n, CELLS["lstm"], np.float32, 132, 227 << 10, **how).product

    assert not any(product(B, H) for B in (16, 256, 4096) for H in (8, 32, 64))
    assert product(64, 512, L=4, T=100, D=512)
    n, lstm = layout.Sizes(4, 100, 64, 512, 512, 1), CELLS["lstm"]
    by_tile, by_all = plans.rounds(n, lstm, 64, 132, 256)
    assert (
        by_tile > 2 * by_all
    )  # half the multiprocessors would add up 64 rows of 8.4 million
    numbers = (
        layout.packed_size(n, 4) + 1
    ) * 64  # of which each thread adds up its share
    assert plans.rounds(n._replace(T=0), lstm, 64, 132, 256)[0] == -(
        -numbers // (132 * 256)
    )


def test_arrays_fill_work_at_multiples_of_four():
    L, T, B, D, H, O = n = layout.Sizes(2, 3, 5, 7, 11, 13)
    places, P = layout.Places.of(n, 4, 4), layout.packed_size(n, 4)
    slots, gates = (L, T + 1, B, H), (L, T, B, H, 4)
    shapes = {
        "partials": (4, P + 1),
        "x": (T, B, D),
        "h": slots,
        "c": slots,
        "gates": gates,
    }
    shapes |= {"dy": (T, B, H), "state": (2, L, B, H), "da": gates, "dx": (T, B, D)}
    shapes |= {"d_out": (B, O)}
    assert (*shapes, "end") == places._fields
    sizes = [math.prod(shape) for shape in shapes.values()]
    assert [b - a for a, b in itertools.pairwise(places)] == [
        size + -size % 4 for size in sizes
    ]
    assert places[0] == 0


@pytest.mark.parametrize("output_size", [None, 2])
def test_packed_parameters_come_back(cell, output_size):
    params = example((3, 1, 1, 5, 7), cell, output_size=output_size)[0]
    n, K = layout.Sizes.of(params, 1, 1), len(CELLS[cell].gates)
    flat = layout.pack(params)
    assert flat.shape == (layout.packed_size(n, K),)
    compare(layout.unpack(flat, params), params.arrays(), 0)
    both = layout.pack(params, transposed=True)
    np.testing.assert_array_equal(both[: flat.size], flat)
    turned = both[flat.size + -flat.size % 4 :]
    U = flat[: 5 * 7 * K].reshape(5, 7, K)  # of the first layer: inputs, units, gates
    np.testing.assert_array_equal(turned[: U.size].reshape(7, 5, K), U.swapaxes(0, 1))


@needs_kernels
def test_sums_are_checked():
    with pytest.raises(
        ValueError, match="sums: got 'fast', want one of 'ordered', 'atomic'"
    ):
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
    """Bytes counted by hand: x, target, parameters and gradients (with the loss), four
    each.
    """
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
    for version in gpu.STAY:
        assert copied[version] == (
            4 * (x.size + target.size) + 8 * 6,
            4,
        )  # and the order
    for version in ("cuda-v1", "cuda-v2", "cuda-v3"):
        assert figures_gpu.step_bytes(version, work) == copied[version]


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
def test_a_failing_kernel_leaves_the_host_s_parameters(version, monkeypatch):
    params, x, target = example((1, 4, 6, 2, 5))
    net = lk.network(version, params)

    def broken(self, *where, together=False):
        def launch(*arguments):
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

        return launch

    monkeypatch.setattr(device.Device, "configure", broken)
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
    assert "install lstm-kernels[cuda12]" in said
    assert "more" not in said
    said = device.why_not_compiled("H200", (9, 0), dropped)
    assert "cuda12" not in said
    assert "ValueError: compute capability" in said
    assert device.why_not_compiled("H200", (9, 0), lambda capability: None) is None


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


@needs_kernels
def test_few_blocks_are_explained_once(monkeypatch):
    class Kernel:
        def __getitem__(self, grid):
            warnings.warn(
                "Grid size 1 will likely result in GPU under-utilization", stacklevel=2
            )
            return lambda *arguments: None

    monkeypatch.setattr(device, "SIMULATED", False)
    monkeypatch.setattr(
        device.Device,
        "__init__",
        lambda self: vars(self).update(FIELDS | {"_configured": {}}),
    )
    used = device.Device()
    with pytest.warns(
        LowOccupancyWarning, match=r"cuda-v2: 1 blocks of 32 threads on a device of"
    ):
        used.configure(Kernel(), 1, 32, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        used.configure(Kernel(), 2, 32, 0)


FIELDS = {"version": "cuda-v2", "multiprocessors": 132, "_warned": False}


def planted(change):
    """Kernels with a fault: `change` replaces a function among those of the modules."""
    original = build.functions

    def functions(*arguments, **keywords):
        space = original(*arguments, **keywords)
        assert set(change) <= set(space)
        space.update({name: function(space) for name, function in change.items()})
        return space

    return functions


@simulated
@pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # of numbers that nobody has written
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("where", lambda space: lambda: (0, space["cuda"].gridsize(1))),
        ("layer_at", lambda space: lambda index: 4 * index),
        ("total", lambda space: lambda a: a[0] + a[1] + a[2]),
    ],
)
def test_faults_in_cuda_samples_are_caught(monkeypatch, name, fault):
    monkeypatch.setattr(build, "functions", planted({name: fault}))
    build.build.cache_clear()
    params, x, _ = example((1, 3, 6, 2, 5))
    try:
        with pytest.raises((MismatchError, IndexError)):
            compare_to_reference("cuda-v2", params, x)
    finally:
        build.build.cache_clear()


@simulated
def test_a_fault_in_the_sum_over_blocks_is_caught(monkeypatch):
    def first_only(space):
        right = space["sum_rows"]
        return lambda rows, shared, end: right(1, shared, end)

    monkeypatch.setattr(build, "functions", planted({"sum_rows": first_only}))
    monkeypatch.setattr(plans, "rounds", lambda *how: (0, 1))
    build.build.cache_clear()
    params, x, _ = example((1, 3, 9, 2, 5))
    try:
        with pytest.raises(MismatchError, match="layers"):
            compare_to_reference("cuda-fused", params, x)
    finally:
        build.build.cache_clear()


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
    growing = {("cuda-epoch", 10**p): max(1e-4, 1e-9 * 10**p) for p in range(2, 7)}
    growing |= {("numba-fused", 10**p): 1e-7 * 10**p for p in range(2, 7)}
    rows = rows_of(growing, "windows")
    assert "from 100 to 100,000 windows" in figures_gpu.growth(rows)
    assert "power 0.00" in figures_gpu.growth(rows)
    assert "overtakes `numba-fused` from 10,000 windows on" in figures_gpu.growth(rows)
    assert "and is 100 times as fast at 1,000,000" in figures_gpu.growth(rows)
    steps = {("sequential", 0): 1.7, ("numpy", 0): 0.76, ("cuda-v3", 0): 0.1}
    long = {("cuda-v3", 0): 1.0, ("cuda-fused", 0): 0.1, ("cuda-epoch", 0): 0.05}
    both = pd.concat(
        [rows_of(steps, "h", "step", B=256), rows_of(long, "h", "5 epochs", B=256)]
    )
    said = figures_gpu.speeds(both)
    assert "17 times as fast as `sequential`, 7.6 times as fast as `numpy`" in said
    assert (
        "10 times as fast with `cuda-fused` and 20 times as fast with `cuda-epoch`."
        in said
    )
    more = rows_of({("numpy", 0): 0.9, ("cuda-v3", 0): 0.1}, "h", "step", B=600)
    more = pd.concat([both, more, rows_of(long, "h", "5 epochs", B=600)])
    assert "of 600 samples takes `cuda-v3` 100 ms, 9 times as fast as `numpy`;" in (
        figures_gpu.speeds(more)
    )
    epochs = rows_of(
        {("cuda-fused", 1024): 4e-4, ("cuda-epoch", 1024): 8e-5}, "batch", B=256
    )
    assert figures_gpu.a_step(epochs) == (
        "a step of 256 samples in an epoch of 4 takes `cuda-fused` 100 µs and `cuda-epoch` 20 µs."
    )
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
    nb = types.SimpleNamespace(
        say=shown.append, show=lambda figure, name: shown.append(name)
    )
    assert figures_gpu.show(nb, figures_gpu.measured(["numpy"])) is None
    assert shown == [figures_gpu.WAITS]
    monkeypatch.setattr(figures_gpu, "live", lambda: True)
    monkeypatch.setattr(figures_gpu.device, "describe", lambda: {"name": "a GPU"})
    monkeypatch.setattr(gpu, "table", lambda *names, **how: pd.DataFrame())
    names = ["sequential", "numpy", "numba-fused", "cuda-v3", *gpu.STAY]
    rows = figures_gpu.measured(names, small=True)
    medians = figures_gpu.show(nb, rows)
    assert shown[1].startswith(
        "a GPU, in this run: a step of 8 samples takes `cuda-v3`"
    )
    assert shown[2].startswith(
        "a GPU, in this run: a step of 8 samples in an epoch of 2 takes"
    )
    assert shown[3].startswith("a GPU, in this run: from 16 to 32 windows")
    assert shown[4:] == ["07-windows-this-run", "07-batch-this-run"]
    assert "cuda-epoch (ms)" in medians
    assert set(map(type, figures_gpu.claims(rows).values())) == {bool}


def none():
    raise ValueError("no file")


def test_rooflines_and_shares():
    loads = figures_gpu.loads()
    assert loads["flop per byte"].is_monotonic_increasing
    assert pytest.approx(33.4, abs=0.1) == figures_gpu.SHARED_MEMORY
    assert "four samples to a thread: 0.67 flop" in figures_gpu.roofline(loads).alt
    table = figures_gpu.occupancy(gpu.HUNDREDS)
    assert table.loc["cuda-epoch", "blocks"] == 132
    assert table.loc["cuda-v1", "blocks"] == 1
    assert table.loc["cuda-v2", "blocks"] == 8
    assert (table["registers of a thread"] < 256).all()


@needs_kernels
def test_each_filling_of_the_kernels_has_a_name_of_its_own():
    """Numba's cache on disk would take one for the other."""
    sizes, labels = layout.Sizes(1, 0, 0, 2, 3, 1), []
    choices = itertools.product((1, 4), (True, False), (True, False), (True, False))
    for values in choices:
        names = dict(zip(("R", "RESIDENT", "ATOMIC", "PRODUCT"), values, strict=True))
        space = build.functions(
            CELLS["lstm"], np.float32, plans.MODULES, sizes, **names
        )
        labels.append(space["step"].__qualname__)
    for name in "LDHO":
        other = sizes._replace(**{name: 7})
        space = build.functions(
            CELLS["lstm"], np.float32, plans.MODULES, other, **names
        )
        labels.append(space["step"].__qualname__)
    for where, real in itertools.product(
        ("position", "no_position"), (np.float32, np.float64)
    ):
        space = build.functions(
            CELLS["gru"], real, (sample_kernels,), sizes, where=where
        )
        labels.append(space["step"].__qualname__)
    assert len(set(labels)) == len(labels) == 24


def test_figures_of_records_say_what_they_show():
    times = {
        (name, N): 1e-6 * N for name in ("cuda-v3", "cuda-fused") for N in (100, 1000)
    }
    figure = figures_gpu.scaling(rows_of(times, "windows"), "N", "windows")
    title = figure.axes[0].get_title() + figure.axes[0].get_title(loc="left")
    assert title == "cuda-fused: 10 times the time for 10 times as many windows"
    assert "cuda-v3 0.1 to 1 ms" in figure.alt


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

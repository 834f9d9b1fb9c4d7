"""`numba-bf16`: rounding, both ways to multiply words, bounds that follow from the
format.
"""

import pickle
import subprocess
import sys
from functools import partial

import llvmlite.binding
import numpy as np
import pandas as pd
import pytest
from conftest import EDGES, SHAPES, example
from test_fused import Guarded, Interpreted, random_shapes

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import bfloat16, bfloat16_space, cost, registers, simd, workspace
from lstm_kernels.cpu.bfloat16 import Bfloat16Tiles, available, rounded
from lstm_kernels.schedules import layer_by_layer, wavefront
from lstm_kernels.versions import numba_fused
from lstm_kernels.versions.numba_bf16 import NumbaBf16, NumbaBf16Wavefront
from lstm_kernels.versions.numba_fused import NumbaFused
from lstm_report.experiments import bfloat16 as measured
from lstm_report.figures import bfloat16 as figures_bfloat16
from lstm_report.measure.comparer import (
    TOLERANCE,
    MismatchError,
    compare,
    compare_to_reference,
    format_error,
    run,
    truth,
)
from lstm_report.measure.workloads import Workload

FLOAT, WAYS = np.dtype(np.float32), available()
ways = pytest.mark.parametrize("way", WAYS)
UNIT = 2.0**-8  # what rounding to 8 bits changes at most, relative to the number


def tiles_of(cell, H, way="widening"):
    return Bfloat16Tiles(CELLS[cell], FLOAT, H, None, way)


# Numbers.


def some_floats():
    """Float32 of every upper half, with lower halves at, below and above a tie, and at
    random.
    """
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.random.default_rng(0).integers(0, 1 << 16, 1 << 16, dtype=np.uint32)
    parts = [upper | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, lower)]
    return np.concatenate(parts).astype(np.uint32).view(np.float32)


def test_rounding_is_to_the_nearest_of_two_the_even_one():
    x = some_floats()
    got, bits = rounded(x), x.view(np.uint32)
    finite = np.isfinite(x)
    assert np.isnan(got[np.isnan(x)]).all()
    np.testing.assert_array_equal(got[np.isinf(x)], x[np.isinf(x)])
    assert not (got.view(np.uint32) & 0xFFFF).any()
    low = (bits & 0xFFFF0000)[finite]
    low, high = low.view(np.float32), (low + 0x10000).astype(np.uint32).view(np.float32)
    # What follows the largest number is infinity: as far away as if it were 2^128.
    low, high = (a.astype(np.float64) for a in (low, high))
    ends = [np.where(np.isinf(a), np.copysign(2.0**128, a), a) for a in (low, high)]
    down, up = (np.abs(end - x[finite].astype(float)) for end in ends)
    even = (bits[finite] >> 16 & 1) == 0
    want = np.where((down < up) | ((down == up) & even), low, high)
    np.testing.assert_array_equal(got[finite], want)
    assert rounded(np.float64([1 + 2**-9, -3.0])).dtype == np.float64
    np.testing.assert_array_equal(rounded(np.float64([1 + 2**-9, -3.0])), [1, -3])


def test_compiled_code_rounds_as_numpy_does_and_packs_words():
    lanes = registers.vector_registers().bytes // 4

    def words(m, count, x, y, out, halves, kept):
        line = m.lanes * 4

        def one(k):
            a, b = (m.rounded(m.load(p + k * line)) for p in (x, y))
            word = m.pair(a, b)
            m.store(out + k * line, word)
            second, first = m.halves(word)
            m.store(halves + k * 2 * line, first)
            m.store(halves + k * 2 * line + line, second)
            m.store_rounded(kept + k * (line // 2), a)

        m.loop(count, one)

    run_it = partial(call, simd.compiled(words, FLOAT, lanes, "test"))
    x = some_floats()
    x = np.concatenate([x, np.zeros(-len(x) % lanes, np.float32)])
    y = np.random.default_rng(1).permutation(x)
    out, halves, kept = (
        np.empty_like(x),
        np.empty(2 * len(x), np.float32),
        np.empty(len(x), "u2"),
    )
    run_it(len(x) // lanes, *(a.ctypes.data for a in (x, y, out, halves, kept)))
    upper = [rounded(a).view(np.uint32) >> 16 for a in (x, y)]
    np.testing.assert_array_equal(out.view(np.uint32), upper[0] | upper[1] << 16)
    np.testing.assert_array_equal(kept, upper[0])
    both = halves.view(np.uint32).reshape(-1, 2, lanes) >> 16
    np.testing.assert_array_equal(both[:, 0].ravel(), upper[0])
    np.testing.assert_array_equal(both[:, 1].ravel(), upper[1])


def call(address, *numbers):
    import ctypes

    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(numbers))(address)(*numbers)


def products(way, a, b):
    """sum over k of a[i, k] b[k, n], words, by the loop of the tiles."""
    tiles = tiles_of("rnn", 1, way)
    rows, lanes = len(a), tiles.lanes

    def product(m, count, A, row, B, C):
        sums = [[m.variable(m.constant(0.0))] for _ in range(rows)]
        tiles.multiply(m, sums, A, row, 4, B, lanes * 4, count)
        for i, (total,) in enumerate(sums):
            m.store(C + i * lanes * 4, m.get(total))

    weights, out = (
        workspace.buffer(*b.shape, dtype=FLOAT),
        np.empty((rows, lanes), FLOAT),
    )
    weights[:] = b
    code = simd.compiled(product, FLOAT, lanes, f"test_{way}_{rows}")
    call(
        code,
        a.shape[1],
        a.ctypes.data,
        a[0].nbytes,
        weights.ctypes.data,
        out.ctypes.data,
    )
    return out


def of_scales(rng, low, high, *shape):
    return rounded(
        rng.standard_normal(shape) * 2.0 ** rng.integers(low, high, shape)
    ).astype("f4")


@ways
@pytest.mark.parametrize("rows", [1, 3, 5])
def test_both_ways_add_the_second_product_of_a_word_first(way, rows):
    """Bit for bit what float32 gives one product at a time, over many scales."""
    rng, lanes = np.random.default_rng(rows), tiles_of("rnn", 1).lanes
    a, b = of_scales(rng, -9, 9, rows, 2 * 50), of_scales(rng, -9, 9, 2 * 50, lanes)
    words = np.ascontiguousarray(b.reshape(50, 2, lanes).transpose(0, 2, 1)).reshape(
        50, -1
    )
    got = products(way, bfloat16_space.words(a), bfloat16_space.words(words))
    want = np.zeros((rows, lanes), np.float32)
    for k in range(50):
        for half in (2 * k + 1, 2 * k):
            want = a[:, half, None] * b[half] + want
    np.testing.assert_array_equal(got, want)
    other = np.zeros_like(want)
    for k in range(100):
        other = a[:, k, None] * b[k] + other
    assert (got != other).any()  # what adds the first one first is told from it


@pytest.mark.skipif("dot" not in WAYS, reason="the CPU has no AVX512_BF16")
def test_numbers_below_the_normal_range_are_zero_for_the_dot_product_alone():
    lanes = tiles_of("rnn", 1).lanes
    tiny, one = np.full((1, 2), 2.0**-130, "f4"), np.ones((1, 2 * lanes), "f4")
    words = [bfloat16_space.words(array) for array in (tiny, one)]
    assert not products("dot", *words).any()
    np.testing.assert_array_equal(products("widening", *words), 2.0**-129)


# Networks.


@ways
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_way_and_schedule_agrees_and_gives_the_same_bits(cell, way, shape):
    params, x, target = example(shape, cell)
    compare_to_reference(NumbaBf16(params, way=way), params, x)
    compare_to_reference(NumbaBf16Wavefront(params, way=way), params, x)
    want = outcome(NumbaBf16(params, threads=1, way=WAYS[0]), x, target)
    nets = {"threads": NumbaBf16(params, way=way)}
    for schedules in (None, layer_by_layer, lambda graph: wavefront(graph, 2, 1)):
        nets[schedules] = NumbaBf16Wavefront(params, way=way, schedules=schedules)
    for name, net in nets.items():
        for key, value in outcome(net, x, target).items():
            np.testing.assert_array_equal(value, want[key], err_msg=f"{name}: {key}")


def outcome(net, x, target):
    loss, grads = net.loss_and_grads(x, target)
    results = {"y": net.forward(x)[0], "loss": np.array(loss)} | grads.arrays()
    np.testing.assert_array_equal(net.forward(x, training=True)[0], results["y"])
    net.step(x, target, 0.1)
    return results | {f"after.{n}": a for n, a in net.params().arrays().items()}


@pytest.mark.parametrize("way", WAYS[1:])
def test_sizes_beside_a_vector_and_a_block_agree(cell, way):
    for number, H in enumerate(EDGES):
        shape = (
            1 + number % 2,
            (1, 3, 4)[number % 3],
            2 + number % 4,
            (H, 3)[number % 2],
            H,
        )
        params, x, _ = example(shape, cell)
        compare_to_reference(NumbaBf16(params, way=way), params, x)


def test_rows_beside_a_run_of_pairs_agree(cell):
    """T B at, below and above what a weight's gradient takes at once, odd and even."""
    for N in (127, 128, 129, 255, 257):
        params, x, _ = example((1, N, 1, 3, 8), cell)
        compare_to_reference(NumbaBf16(params), params, x)
    params, x, _ = example((2, 43, 3, 4, 17), cell)
    compare_to_reference(NumbaBf16(params), params, x)


def test_every_division_of_the_work_gives_the_same_bits(cell, monkeypatch):
    for shape in [(2, 5, 17, 3, 33), (1, 9, 4, 40, 64)]:
        params, x, target = example(shape, cell)
        results = []
        for split in cost.work_splits(tiles_of(cell, shape[4]), *x.shape[:2], 2):
            monkeypatch.setattr(
                numba_fused.NumbaFused, "work_split", lambda *_, s=split: s
            )
            results.append(outcome(NumbaBf16(params), x, target))
        assert len(results) >= 2
        for other in results[1:]:
            for name, value in results[0].items():
                np.testing.assert_array_equal(other[name], value, err_msg=name)


def test_an_epoch_is_its_steps_and_words_follow_the_parameters():
    params, x, target = example((2, 5, 23, 3, 20))
    dataset, order = lk.Dataset(x, target), np.random.default_rng(0).permutation(23)
    whole, steps = (NumbaBf16(params) for _ in range(2))
    losses = whole.epoch(dataset, order, 8, 0.1)
    assert losses == super(numba_fused.NumbaFused, steps).epoch(dataset, order, 8, 0.1)
    fresh = NumbaBf16(whole.params())
    for net in (steps, fresh):
        for name, value in whole.params().arrays().items():
            np.testing.assert_array_equal(net.params().arrays()[name], value)
        np.testing.assert_array_equal(net.forward(x)[0], whole.forward(x)[0])
        got, want = net.loss_and_grads(x, target), whole.loss_and_grads(x, target)
        assert got[0] == want[0]
        np.testing.assert_array_equal(got[1].x, want[1].x)  # through U^T and W^T


def test_steps_smaller_than_a_bfloat16_are_not_lost():
    """Descent changes float32 parameters: a hundred small steps are one large one."""
    params, x, target = example((1, 1, 2, 1, 4))
    net = NumbaBf16(params)
    for _ in range(100):
        net.step(x, target, 1e-4)
    moved = net.params().layers[0].b - params.layers[0].b
    once = NumbaBf16(params)
    once.step(x, target, 1e-2)
    want = once.params().layers[0].b - params.layers[0].b
    assert np.abs(want).max() < UNIT * np.abs(params.layers[0].b).max()
    compare({"b": moved}, {"b": want}, 0.02)


# Memory.


@ways
def test_every_address_lies_inside_an_array(cell, way, monkeypatch):
    """The kernels in plain Python, on tiles that check, with the bits of the compiled
    ones.
    """
    used = set()
    for shape in [(1, 1, 1, 1, 1), (2, 3, 3, 3, 17)]:
        params, x, target = example(shape, cell)
        for split in cost.work_splits(tiles_of(cell, shape[4]), *x.shape[:2], 2):
            monkeypatch.setattr(
                numba_fused.NumbaFused, "work_split", lambda *_, s=split: s
            )
            net = NumbaBf16(params, way=way)
            kernels = Interpreted(net, monkeypatch)
            net.assign(params)  # packed by these kernels, too
            compare_to_reference(net, params, x)
            dataset = lk.Dataset(np.repeat(x, 2, axis=1), np.repeat(target, 2, axis=0))
            order = np.arange(2 * x.shape[1])[::-1][:-1]
            net.epoch(dataset, order, x.shape[1], 0.1)
            compare_to_reference(net, net.params(), x)
            used |= kernels.used
            monkeypatch.undo()
    assert used >= {
        "whole",
        "back",
        "through_U",
        "gradient_W",
        "transpose",
        "pair_rounded",
    }
    assert used >= {"pair_numbers", "round_numbers"}


def test_canaries_around_every_array_survive(monkeypatch):
    for number, shape in enumerate(random_shapes(120, seed=1)):
        guarded = Guarded()
        for module in (workspace, numba_fused, bfloat16_space):
            monkeypatch.setattr(module, "buffer", guarded)
        cell = tuple(CELLS)[number % 3]
        params, x, target = example(shape, cell)
        splits = cost.work_splits(tiles_of(cell, shape[4]), *x.shape[:2], 2)
        split = splits[number % len(splits)]
        monkeypatch.setattr(numba_fused.NumbaFused, "work_split", lambda *_, s=split: s)
        net = NumbaBf16(params, way=WAYS[number % len(WAYS)])
        net.forward(x)
        compare_to_reference(net, params, x)
        net.step(x, target, 0.1)
        assert guarded.intact(), (cell, shape)


# Numerics.


def test_errors_stay_below_what_the_format_explains(cell):
    for L, T, B, H in [(1, 2, 8, 32), (1, 50, 8, 32), (2, 20, 4, 128), (1, 20, 4, 512)]:
        params, x, _ = example((L, T, B, H, H), cell)
        rng = np.random.default_rng(0)
        dy = rng.standard_normal((T, B, H)).astype(np.float32)
        got, want = run(NumbaBf16(params), x, dy, None, None), truth(params, x, dy)
        for name, array in want.items():
            bound = format_error(L, T, array.size)
            error = compare({name: got[name]}, {name: array}, bound)
            assert error > 1e-5 or name in ("V", "b_out"), name  # it does round


def few(cell):
    """So few numbers that none is as close to a tie as float32 rounds: no `tolerance`
    is needed.
    """
    params, x, _ = example((2, 3, 2, 5, 17), cell)
    return (
        params,
        x,
        np.random.default_rng(0).standard_normal((3, 2, 17)).astype(np.float32),
    )


@ways
def test_few_numbers_agree_within_float32_s_tolerance(cell, way):
    params, x, dy = few(cell)
    got = run(NumbaBf16(params, way=way), x, dy, None, None)
    compare(got, truth(params, x, dy, rounding=rounded), TOLERANCE[FLOAT])


@pytest.mark.parametrize(
    "fault", ["cut off", "h as it is", "a term less", "b in bfloat16"]
)
def test_the_comparison_does_catch_other_arithmetic(fault):
    params, x, dy = few("lstm")
    got, wrong, rounding = (
        run(NumbaBf16(params), x, dy, None, None),
        params.copy(),
        rounded,
    )

    def cut(a):
        return (a.astype("f4").view("u4") & 0xFFFF0000).view("f4").astype(a.dtype)

    if fault == "cut off":
        rounding = cut
    elif fault == "h as it is":
        rounding = lambda a: a if a.shape == (2, 17) else rounded(a)  # noqa: E731
    elif fault == "a term less":
        wrong.layers[0].W[10] = 0
    else:
        wrong.layers[0].b[:] = rounded(wrong.layers[0].b)
    with pytest.raises(MismatchError):
        compare(got, truth(wrong, x, dy, rounding=rounding), TOLERANCE[FLOAT])


# Use.


def test_bad_input_is_refused():
    params = example((1, 1, 1, 1, 1), dtype=np.float64)[0]
    with pytest.raises(
        TypeError, match="params: got float64, want float32: numba-bf16"
    ):
        lk.network("numba-bf16", params)
    params = params.astype(np.float32)
    with pytest.raises(ValueError, match="way: got 'tiles', want one of"):
        NumbaBf16(params, way="tiles")


def test_a_way_that_the_cpu_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(registers, "cpu_features", lambda: {"avx2": True, "fma": True})
    assert available() == ("widening",)
    with pytest.raises(ValueError, match="way: got 'dot', want"):
        NumbaBf16(example((1, 1, 1, 1, 1))[0], way="dot")


@pytest.mark.parametrize(
    ("name", "first"),
    [("znver4", "dot"), ("znver5", "dot"), ("sapphirerapids", "widening")],
)
def test_the_dot_product_comes_first_where_it_was_measured_to_be_faster(
    name, first, monkeypatch
):
    monkeypatch.setattr(
        registers, "cpu_features", lambda: {"avx512f": True, "avx512bf16": True}
    )
    wide = registers.Registers(64, 32, True, "AVX-512")
    monkeypatch.setattr(registers, "vector_registers", lambda: wide)
    monkeypatch.setattr(bfloat16.numba.config, "CPU_NAME", None)
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_name", lambda: name)
    assert available()[0] == first
    assert set(available()) == {"dot", "widening"}


def test_a_copy_multiplies_the_same_way():
    params, x, _ = example((1, 3, 2, 3, 20))
    for way in WAYS:
        for kind in (NumbaBf16, NumbaBf16Wavefront):
            copy = pickle.loads(pickle.dumps(kind(params, threads=1, way=way)))
            assert copy.way == way
            assert type(copy) is kind
            assert copy.forward(x)[0].shape == (3, 2, 20)


def test_the_ladder_says_which_way_runs_here():
    words = [sys.executable, "-m", "lstm_kernels"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    (line,) = (line for line in said.splitlines() if line.startswith("numba-bf16"))
    assert bfloat16.WAYS[WAYS[0]] in line


def test_the_reference_with_rounding_is_the_reference_where_nothing_is_rounded():
    params, x, _ = example((2, 3, 2, 3, 5))
    dy = np.ones((3, 2, 5), np.float32)
    same = truth(params, x, dy, rounding=lambda a: a)
    compare(same, truth(params, x, dy), 1e-14)


# What is measured and told.


def test_bits_tells_networks_apart(monkeypatch):
    work = Workload(L=1, T=3, D=2, H=9, B=2)
    assert measured.bits(work, 2)[:2] == (
        True,
        9 * 4 * (2 + 9 + 1) + 9 + 1 + 2 * 3 * 2 + 2 * 2 * 9,
    )
    monkeypatch.setattr(
        measured, "NumbaBf16Wavefront", lambda params, n, way: NumbaFused(params)
    )
    assert not measured.bits(work, 2)[0]


def test_the_bound_of_one_sample_halves_what_is_no_product_with_inputs():
    work = Workload(L=2, T=100, D=300, H=100, B=1)
    inputs = work.gflop * 400 / 600 / 2  # seconds of two cores at 1 GFLOP/s
    ms = [1e3 * (inputs + 4), 1e3 * (inputs / 2 + 3)]
    table = pd.DataFrame({"inference, ms": ms}, index=["numba-fused", "numba-bf16/dot"])
    table["its loop, GFLOP/s"] = 2.0, 4.0
    got = measured.halved(table, work).loc["numba-bf16/dot"]
    assert got["the rest"] == pytest.approx(3000)
    assert got["speed"] == pytest.approx(ms[0] / ms[1])
    assert got["bound"] == pytest.approx((inputs + 4) / (inputs / 2 + 2))


def test_passes_are_compared_with_the_loops_of_their_round(monkeypatch):
    # Made-up times: a core's loop does 4 GFLOP/s, a pass on both cores as much; the
    # second and the third of three rounds take twice and three times as long.
    work = Workload(L=1, T=3, D=2, H=9, B=2)
    gflop = {"inference": work.gflop, "training": work.step_gflop}
    gflop["loop"] = measured.ablation.tile_loop()[1] / 1e9

    def made(cases, **options):
        for call in cases.values():
            call()
        rows = [
            (name, repeat, (1 + repeat) * gflop[name.split(", ")[1]] / 4)
            for name in cases
            for repeat in range(3)
        ]
        return pd.DataFrame(rows, columns=["case", "repeat", "seconds"])

    monkeypatch.setattr(measured, "interleaved", made)
    table, _ = measured.passes(work, 2, repeats=3)
    assert table.index[0] == "numba-fused"
    assert table["its loop, GFLOP/s"].to_numpy() == pytest.approx(4)
    assert table["inference, ms"].to_numpy() == pytest.approx(1e3 * work.gflop / 2)
    assert table.filter(like="of its loop").to_numpy() == pytest.approx(0.5)
    told = figures_bfloat16.told_passes(table)
    assert told.loc["numba-fused", "training, of its loop"] == "50%"


def test_what_was_recorded_is_told():
    """Figures and tables of rows with known numbers."""
    size = {"L": 1, "T": 100, "D": 512, "H": 512, "B": 64, "stage": "forward"}
    made = [("numba-bf16", "widening", 2.5), ("numba-fused", None, 2.0)]
    made += [("numba-bf16", "dot", 1.0), ("pytorch", "bfloat16", 3.0)]
    rows = pd.DataFrame(
        [
            size
            | {
                "version": v,
                "variant": n,
                "seconds": s * (1 + repeat),
                "repeat": repeat,
            }
            for v, n, s in made
            for repeat in range(3)
        ]
    )
    table = figures_bfloat16.beside(rows, "forward")
    assert table.loc["numba-bf16, dot product", "one layer"] == "2000, 2.00x"
    assert table.loc["PyTorch, bfloat16", "one layer"] == "6000, 33 % slower"
    assert figures_bfloat16.ahead(rows, "forward").to_dict() == {"one layer": 3.0}
    losses = pd.DataFrame(
        [
            {
                "variant": "reber",
                "repeat": k,
                "version": v,
                "loss": loss,
                "stage": "trained",
            }
            for k, pair in enumerate([(1.0, 1.1), (2.0, 2.1), (3.0, 3.1)])
            for v, loss in zip(("numba-fused", "numba-bf16"), pair, strict=True)
        ]
    )
    change, spread = figures_bfloat16.changes(figures_bfloat16.learned(losses))
    assert change["reber"] == pytest.approx(0.05)
    assert spread["reber"] == pytest.approx(0.5)


def test_learning_trains_both_from_the_same_parameters():
    rows = measured.learning("smoke")
    table = figures_bfloat16.learned(rows)
    assert set(table.index.get_level_values(0)) == {"airline", "reber"}
    assert np.isfinite(table.to_numpy()).all()
    assert (table["numba-fused"] != table["numba-bf16"]).all()
    np.testing.assert_allclose(table["numba-bf16"], table["numba-fused"], rtol=0.05)

"""Compilers and batch sizes: programs, checks, child processes, arithmetic, figures."""

import math
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from lstm_kernels import UnavailableError, reference
from lstm_kernels.cores import allowed
from lstm_report.experiments import batches, compilers
from lstm_report.experiments.switches import COMBINATIONS, Variant
from lstm_report.figures import compilers as figures_compilers
from lstm_report.figures import plots
from lstm_report.measure import ceilings, peers, results
from lstm_report.measure.comparer import MismatchError, compare, compare_outputs
from lstm_report.measure.workloads import Workload

HERE = ["numpy", "numba-fused"]
SMALL = Workload(L=1, T=3, D=4, H=5, B=2)


def scan(step, state, a):
    """`jax.lax.scan` in plain Python."""
    y = []
    for one in a:
        state, h = step(state, one)
        y.append(h)
    return state, np.stack(y)


JAX = SimpleNamespace(
    numpy=np,
    nn=SimpleNamespace(sigmoid=reference.sigmoid),
    lax=SimpleNamespace(scan=scan),
)
LAYERS = {
    "steps": partial(peers.by_steps, np, list, reference.sigmoid),
    "scan": partial(peers.by_scan, JAX),
}


@pytest.mark.parametrize("form", LAYERS)
def test_the_layer_as_users_write_it_is_the_references(form):
    """Its text runs on NumPy's arrays too; a stack of two."""
    work = replace(SMALL, L=2)
    params, (x, _) = work.params(dtype=np.float64), work.example()
    want, theta = reference.forward(params, x)[0], params.arrays()
    layers = partial(peers.stack, LAYERS[form], 2)
    compare({"y": layers(theta, x)}, {"y": want}, 1e-6)
    # Another order of gates.
    swapped = theta | {"layers.0.b": np.roll(theta["layers.0.b"], 5)}
    with pytest.raises(MismatchError, match="y: relative error"):
        compare({"y": layers(swapped, x)}, {"y": want}, 1e-6)


# PyTorch's compiler calls what PyTorch has deprecated.
@pytest.mark.filterwarnings("ignore:`torch[.]jit:DeprecationWarning")
@pytest.mark.parametrize("name", compilers.COMPILERS)
def test_every_program_that_can_run_here_is_right(name):
    if why := compilers.why_unavailable(name):
        pytest.skip(why)
    params, (x, _) = SMALL.params(), SMALL.example()
    program = compilers.COMPILERS[name].program(params, allowed())
    assert compare_outputs({name: partial(program, x)}, params, x)[name] < 2e-5


def planted(spoil):
    """The reference with a fault, as a program."""

    def program(params, threads):
        calls, right = [], compilers.numpy(params, threads)

        def predict(x):
            calls.append(x)
            return spoil(right(x), len(calls))

        return predict

    return compilers.Compiler("numpy", "numpy", program)


FAULTS = {
    "scaled": (lambda y, calls: y * np.float32(1.001), "numpy: y: relative error"),
    "NaN": (lambda y, calls: y * np.float32(np.nan), "numpy: y: got .* not finite"),
    "a step late": (lambda y, calls: np.roll(y, 1, axis=0), "numpy: y: relative error"),
    "a step short": (lambda y, calls: y[1:], "numpy: y: got shape"),
    "wears out": (
        lambda y, calls: y * 2 if calls > 3 else y,
        "numpy: y: relative error",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_program_is_not_timed(monkeypatch, fault):
    spoil, said = FAULTS[fault]
    monkeypatch.setitem(compilers.COMPILERS, "numpy", planted(spoil))
    with pytest.raises(MismatchError, match=said):
        compilers.speeds([4], 1, names=["numpy"], least=0)


def test_speeds_are_rows_of_a_results_file(tmp_path):
    rows = compilers.speeds([3, 8], 2, names=HERE)
    assert set(rows) <= set(results.COLUMNS)
    assert rows.groupby(["version", "H"]).size().to_dict() == {
        (n, H): 2 for n in HERE for H in (3, 8)
    }
    assert set(rows["stage"]) == {"forward"}
    assert set(rows["threads"]) == {allowed()}
    assert (rows["D"] == rows["H"]).all()
    assert rows["max_err"].between(0, 2e-5).all()
    of_numpy = rows[rows["version"] == "numpy"]
    assert set(of_numpy["variant"]) == {np.__version__}
    results.write("compilers", rows, preset="smoke", folder=tmp_path)
    assert len(results.read("compilers", tmp_path)) == len(rows)


def test_who_is_missing_is_named_with_the_reason(monkeypatch):
    compilers.why_unavailable.cache_clear()
    monkeypatch.setattr(compilers, "find_spec", lambda name: name == "numpy" or None)
    try:
        assert compilers.gaps()["jax-scan"] == "jax is not installed"
        assert set(compilers.gaps()) == set(compilers.COMPILERS) - {"numpy"}
        with pytest.raises(
            UnavailableError, match="'jax-scan' cannot run here: jax is not inst"
        ):
            compilers.speeds([4], 1, names=["numpy", "jax-scan"])
        assert set(compilers.speeds([4], 1, least=0)["version"]) == {"numpy"}
    finally:
        compilers.why_unavailable.cache_clear()


def test_pytorch_without_a_cpp_compiler_is_a_gap(monkeypatch):
    def fails(a):
        raise RuntimeError("no C++ compiler\nmore of it")

    torch = SimpleNamespace(compile=lambda f: fails, tanh=None, ones=np.ones)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(compilers, "find_spec", lambda name: True)
    compilers.why_unavailable.cache_clear()
    try:
        assert compilers.why_unavailable("pytorch-eager") is None
        assert (
            compilers.why_unavailable("pytorch-compiled")
            == "torch.compile: no C++ compiler"
        )
        torch.compile = lambda f: np.tanh
        compilers.why_unavailable.cache_clear()
        assert compilers.why_unavailable("pytorch-compiled") is None
    finally:
        compilers.why_unavailable.cache_clear()


def inference(sizes):
    return batches.inference(SMALL, sizes, best=())


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (partial(compilers.speeds, []), ValueError, r"sizes: got \[\], want at least"),
        (partial(compilers.speeds, [0]), ValueError, "sizes: got 0, want an integer"),
        (partial(compilers.speeds, [2.5]), TypeError, "sizes: got 2.5, want"),
        (partial(compilers.speeds, [2], names=["gcc"]), ValueError, "name: got 'gcc'"),
        (
            partial(compilers.speeds, [2], names=[]),
            ValueError,
            r"names: got \[\], want",
        ),
        (partial(compilers.speeds, [2], threads=0), ValueError, "threads: got 0, want"),
        (partial(compilers.compile_times, []), ValueError, r"sizes: got \[\]"),
        (partial(batches.knee, 0, 1), ValueError, "peak: got 0, want"),
        (partial(batches.knee, 1, math.nan), ValueError, "bandwidth: got nan, want"),
        (partial(batches.knee, "1", 1), TypeError, "peak: got '1', want"),
        (partial(inference, [0]), ValueError, "batches: got 0, want"),
        (partial(inference, []), ValueError, r"batches: got \[\], want"),
    ],
)
def test_bad_input_is_refused(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_a_first_call_is_timed_beyond_a_later_one(monkeypatch):
    """A clock by hand: the program's making takes 2 s, its calls 5, 1.5, 1 and 3 s."""
    clock, takes = [100.0], [5.0, 1.5, 1.0, 3.0, 0.0]

    def program(params, threads):
        clock[0] += 2.0
        right = compilers.numpy(params, threads)

        def predict(x):
            clock[0] += takes.pop(0)
            return right(x)

        return predict

    made = compilers.Compiler("numpy", "numpy", program)
    monkeypatch.setitem(compilers.COMPILERS, "numpy", made)
    monkeypatch.setattr(compilers, "threadpool_limits", lambda count, user_api: None)
    with monkeypatch.context() as patched:
        patched.setattr(time, "perf_counter", lambda: clock[0])
        seconds, error = compilers.first_call("numpy", asdict(SMALL), 1)
    assert seconds == 6.0
    assert error < 2e-5
    assert takes == []  # the last call was verified
    wrong = planted(lambda y, calls: y * 2)
    monkeypatch.setitem(compilers.COMPILERS, "numpy", wrong)
    with pytest.raises(MismatchError, match="numpy: y: relative error"):
        compilers.first_call("numpy", asdict(SMALL), 1)


def test_what_keeps_no_compiled_code_is_not_loaded(monkeypatch):
    rows = compilers.compile_times([3], names=["numpy"])
    assert rows["stage"].to_list() == ["compile"]

    def with_caches(call, arguments, *, stages):
        return {stage: [float(len(stage)), 0.0] for stage in stages}

    monkeypatch.setattr(compilers, "with_caches", with_caches)
    rows = compilers.compile_times([4, 6], names=["numba-fused"])
    table = rows.pivot(index="H", columns="stage", values="seconds")
    assert table.to_dict("index") == {H: {"compile": 7.0, "load": 4.0} for H in (4, 6)}


def made(stage, version, H, seconds, **more):
    """Rows as measured: one for each of some seconds."""
    sizes = {"L": 1, "T": 20, "B": 32, "D": H, "H": H, "dtype": "float32", "threads": 2}
    rows = [
        {"version": version, "stage": stage, "repeat": repeat, "seconds": s}
        | sizes
        | more
        for repeat, s in enumerate(seconds)
    ]
    return pd.DataFrame(rows)


def of_compilers():
    """Made-up rows: JAX's scan pays at 16 units and not at 64; torch.compile was not
    measured.
    """
    parts = []
    for H, plain, scan, fused in ((16, 1e-3, 5e-4, 1e-4), (64, 1e-3, 2e-3, 5e-4)):
        for name, call, cost in (
            ("numpy", 1e-3, 0.0),
            ("numba-fused", fused, 1.8),
            ("jax-eager", plain, 0.25),
            ("jax-scan", scan, 0.75),
            ("pytorch-eager", 1e-3, 0.01),
        ):
            parts.append(made("forward", name, H, [call, 2 * call, 3 * call]))
            parts.append(made("compile", name, H, [cost]))
            parts.append(
                made("load", name, H, [cost / 10])
                if name in compilers.COMPILED
                else None
            )
    return pd.concat(parts, ignore_index=True)


def test_compiling_is_earned_back_after_so_many_calls():
    found = (
        compilers.break_even(of_compilers())
        .set_index(["version", "H"])["calls"]
        .to_dict()
    )
    # Medians of a call: twice what each is made of.
    assert found == {
        ("numba-fused", 16): math.ceil(1.8 / (2e-3 - 2e-4)),
        ("numba-fused", 64): math.ceil(1.8 / (2e-3 - 1e-3)),
        ("jax-scan", 16): 500,
        ("jax-scan", 64): math.inf,
    }
    # Less than operation by operation
    rows = of_compilers().replace({"seconds": {0.75: 0.2}})
    found = compilers.break_even(rows).set_index(["version", "H"])["calls"]
    assert found["jax-scan", 16] == 1
    assert compilers.break_even(rows[rows["stage"] == "forward"]).empty


@pytest.mark.parametrize("seed", range(5))
def test_break_even_is_the_first_call_at_which_the_sums_meet(seed):
    cost, plain_cost, call, plain = np.random.default_rng(seed).uniform(0.1, 1, 4)
    call, plain = min(call, plain), max(call, plain)
    rows = [
        made("forward", n, 8, [s])
        for n, s in (("jax-eager", plain), ("jax-scan", call))
    ]
    rows += [
        made("compile", n, 8, [s])
        for n, s in (("jax-eager", plain_cost), ("jax-scan", cost))
    ]
    ((_, _, calls),) = compilers.break_even(pd.concat(rows)).itertuples(index=False)
    n = np.arange(1, 10_000)
    earned = cost + n * call <= plain_cost + n * plain
    assert calls == n[earned][0]


def test_speedups_are_ratios_round_by_round():
    rows = [
        made("forward", "numpy", 4, [1.0, 9.0, 4.0]),
        made("forward", "numba-fused", 4, [0.5, 1.0, 4.0]),
        made("forward", "jax-scan", 4, [1.0, 1.0, 1.0]),  # without its plain form
    ]
    found = compilers.speedups(pd.concat(rows))
    assert found[["version", "H"]].drop_duplicates().to_numpy().tolist() == [
        ["numba-fused", 4]
    ]
    assert found.sort_values("repeat")["ratio"].to_list() == [2.0, 9.0, 1.0]


def test_the_smoke_preset_measures_every_stage(monkeypatch, capsys):
    calls = []

    def noted(name):
        return lambda *a, **k: calls.append(name) or made(name, "numpy", 4, [1.0])

    for name in ("speeds", "compile_times"):
        monkeypatch.setattr(compilers, name, noted(name))
    monkeypatch.setattr(compilers, "gaps", lambda: {"jax-scan": "jax is not installed"})
    assert len(compilers.measure("smoke")) == 2
    assert calls == ["speeds", "compile_times"]
    assert "jax-scan is left out: jax is not installed" in capsys.readouterr().err


def test_the_knee_is_where_reading_takes_as_long_as_computing():
    peak, bandwidth = 400.0, 50.0  # GFLOP/s, GB/s
    knee, weights = batches.knee(peak, bandwidth), 1e6
    assert knee == 16
    assert weights * 4 / (bandwidth * 1e9) == weights * 2 * knee / (peak * 1e9)
    reading = made("reading", "numba-fused", 512, [1e-3] * 3)
    reading = reading.assign(T=100, D=1, B=1)
    assert batches.bandwidth(reading) == pytest.approx(
        4 * 4 * 512**2 * 100 / 1e-3 / 1e9
    )
    assert (
        batches.peak(made("ceiling", "sgemm", 1, [0.5])) == ceilings.SGEMM_GFLOP / 0.5
    )
    assert math.isnan(batches.peak(reading))
    assert math.isnan(batches.bandwidth(reading.iloc[:0]))


STACK = Workload(L=2, T=3, D=4, H=5, B=1)


def test_batch_sizes_are_rows_of_a_results_file(monkeypatch, tmp_path):
    class Peer:
        def __init__(self, params, threads):
            self.params = params

        def predict(self, x):
            return reference.forward(self.params, x)[0]

    monkeypatch.setitem(peers.PEERS, "pytorch", Peer)
    monkeypatch.setitem(peers.PACKAGES, "pytorch", "numpy")
    rows = batches.inference(
        STACK, [1, 20], best=("combine",), names=["pytorch"], repeats=1
    )
    assert set(rows) <= set(results.COLUMNS)
    found = set(
        zip(rows["version"], rows["variant"].fillna(""), rows["B"], strict=True)
    )
    cases = [("study", "combine"), ("study", "baseline"), ("numba-fused", "")]
    cases.append(("pytorch", np.__version__))
    assert found == {(*case, B) for case in cases for B in (1, 20)}
    rates = batches.rates(rows)
    assert set(rates["name"]) == {"combine", "baseline", "numba-fused", "pytorch"}
    (row, *_), (rate, *_) = rows.itertuples(), rates.itertuples()
    assert rate.gflops == pytest.approx(
        replace(STACK, B=int(row.B)).gflop / row.seconds
    )
    results.write("batches", rows, preset="smoke", folder=tmp_path)


@pytest.mark.parametrize("sample", [0, 19])
def test_a_combination_with_a_wrong_sample_is_not_timed(monkeypatch, sample):
    right = Variant.forward

    def wrong(self, x):
        y = right(self, x)
        if self.on and x.shape[1] == 20:
            y[:, sample] *= np.float32(1.001)
        return y

    batches.inference(STACK, [20], best=("fuse",), repeats=1, least=0)
    monkeypatch.setattr(Variant, "forward", wrong)
    with pytest.raises(MismatchError, match=r"^study/fuse: y: relative error"):
        batches.inference(STACK, [20], best=("fuse",), repeats=1, least=0)


def test_a_program_that_wears_out_is_caught_at_the_end(monkeypatch):
    right, used = Variant.forward, []

    def wrong(self, x):
        used.append(1)
        return right(self, x) * (2 if len(used) > 8 else 1)

    monkeypatch.setattr(Variant, "forward", wrong)
    with pytest.raises(MismatchError, match=r"^study/"):
        batches.inference(STACK, [2], best=("fuse",), repeats=2, least=0)
    assert len(used) > 8


def test_the_sweep_has_ceilings_and_reading(monkeypatch):
    monkeypatch.setattr(ceilings, "SIZE", 64)
    monkeypatch.setattr(ceilings, "COUNT", 64)
    rows = batches.sweep("smoke", best=("combine", "fuse"), names=[])
    assert set(rows["stage"]) == {"forward", "reading", "ceiling"}
    assert set(rows["version"]) == {"study", "numba-fused", "sgemm", "copy"}
    assert batches.knee(batches.peak(rows), batches.bandwidth(rows)) > 0
    plt.close(figures_compilers.rates(rows))


def test_the_fastest_combination_is_the_one_that_was(monkeypatch):
    def all_combinations(work, *, threads, repeats):
        names = [batches.name(on) for on in COMBINATIONS]
        rows = [made("forward", "study", 4, [1.0], variant=name) for name in names]
        rows[fast] = rows[fast].assign(seconds=0.5)
        return pd.concat(rows)

    monkeypatch.setattr(batches, "all_combinations", all_combinations)
    for fast in (0, 7, 31):
        assert batches.fastest(STACK, 1, repeats=1) == COMBINATIONS[fast]


def of_batches():
    """Made-up rows: a peak of 400 GFLOP/s, weights read at 50 GB/s, no ONNX Runtime."""
    parts = []
    for B in (1, 8, 64):
        gflop = Workload(4, 20, 512, 512, B).gflop
        for version, variant, rate in (
            ("study", "baseline", 10.0 * B**0.5),
            ("study", "combine + fuse", 20.0 * B**0.5),
            ("numba-fused", None, min(200, 25 * B)),
            ("pytorch", "2", min(180, 20 * B)),
        ):
            seconds = [gflop / rate] * 3
            parts.append(
                made("forward", version, 512, seconds, variant=variant, L=4, B=B)
            )
    seconds = 4 * 4 * 512**2 * 100 / 50e9
    parts.append(made("reading", "numba-fused", 512, [seconds], D=1, B=1, T=100))
    ceiling = made("ceiling", "sgemm", 512, [ceilings.SGEMM_GFLOP / 400])
    parts.append(ceiling.assign(**dict.fromkeys("LTBDH", math.nan)))
    return pd.concat(parts, ignore_index=True)


def said(figure):
    figure.canvas.draw()
    words = plots.words(figure)
    plt.close(figure)
    assert "nan" not in words
    return words


def test_the_figure_of_rates_says_what_it_shows():
    words = said(figures_compilers.rates(of_batches()))
    assert (
        "With 64 samples numba-fused 50% of the SGEMM, baseline 20% of the SGEMM"
        in words
    )
    assert "below 16, reading the weights bounds a step" in words
    assert "SGEMM, 400 GFLOP/s" in words
    assert "weights read at 50 GB/s" in words
    assert "Not measured: ONNX Runtime." in words
    assert "Labels: " in words
    # Without ceilings there is no knee
    alone = of_batches().query("stage == 'forward'")
    words = said(figures_compilers.rates(alone))
    assert "With 64 samples numba-fused 200 GFLOP/s, baseline 80 GFLOP/s" in words
    assert "knee" not in words


def test_the_figures_of_compilers_say_what_they_show():
    words = said(figures_compilers.speedups(of_compilers()))
    assert "2.00x to 10.0x at 16 units, 50 % slower to 2.00x at 64 units" in words
    assert "Not measured: JAX, jit unrolled, torch.compile." in words
    words = said(figures_compilers.compile_times(of_compilers()))
    assert "Compiling takes 0.75 s (JAX, jit of a scan) to 1.8 s (numba-fused)" in words
    assert "dashed: found compiled" in words
    assert "Earned back after 500 (JAX, jit of a scan, 16 units) to 1,800 (" in words
    assert "never by JAX, jit of a scan at 64 units" in words


@pytest.mark.parametrize("name", ["rates", "speedups", "compile_times"])
def test_a_figure_of_nothing_is_refused(name):
    draw, rows = getattr(figures_compilers, name), of_compilers()
    with pytest.raises(ValueError, match="rows: got none of stage"):
        draw(rows.iloc[:0])
    with pytest.raises(ValueError, match="rows: got columns"):
        draw(pd.DataFrame())
    if name == "speedups":
        with pytest.raises(ValueError, match="rows: got no compiled form beside"):
            draw(rows[rows["version"] == "numpy"])
    assert not plt.get_fignums()

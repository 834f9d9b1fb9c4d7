"""Predictions of training on many ranks: formulas by hand, limits, fits of planted
links.
"""

import math
import re
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from planted import planted

from lstm_kernels.schedules import PIPELINES
from lstm_report.experiments import scaling
from lstm_report.experiments.scaling import LINKS, Link, ModelCosts

IDEAL = Link("ideal", 0.0, math.inf)
SLOW = Link("slow", 10.0, 1.0)
PLAIN = Link("plain", 0.5, 8.0)  # a message of 4 bytes takes 1 s


def proportional(layers=4, weights=32.0):
    """Layers of 1, 2, ... s forward per sample and twice that back."""
    B = (1, 2, 4, 64)
    seconds = [tuple(float(k * n) for n in B) for k in range(2 * layers + 1)]
    rows = (
        (f"layer {k}", seconds[k], seconds[2 * k], weights)
        for k in range(1, layers + 1)
    )
    return ModelCosts(B, tuple(rows), 4.0)


def measured(costs, noise=0.0, repeats=5, seed=0):
    """Rows as of the program `costs`, in a random order."""
    rng, rows = np.random.default_rng(seed), []
    for name, f, b, weights in costs.layers:
        for stage, seconds in (("forward", f), ("backward", b)):
            for B, value in zip(costs.samples, seconds, strict=True):
                for repeat in range(repeats):
                    taken = value * (1 + noise * rng.standard_normal())
                    rows.append((name, stage, B, repeat, taken, weights, 1, 1))
    columns = ["variant", "stage", "B", "repeat", "seconds", "bytes", "T", "H"]
    return pd.DataFrame(rows, columns=columns).sample(frac=1, random_state=seed)


def lacking():
    """Rows without those of one layer, way and number of samples."""
    rows = measured(proportional(2))
    return rows[
        (rows["variant"] != "layer 1") | (rows["stage"] != "forward") | (rows["B"] != 4)
    ]


def messages(link, noise=0.0, repeats=20):
    rng, sizes = np.random.default_rng(0), np.repeat(8.0 * 8 ** np.arange(7), repeats)
    noisy = 1 + noise * rng.standard_normal(len(sizes))
    return pd.DataFrame({"bytes": sizes, "seconds": link.seconds(sizes) * noisy})


def sums(link, add, noise=0.0):
    rng = np.random.default_rng(1)
    rows = [
        (P, size, scaling.sum_seconds(size, P, link=link, add=add))
        for P in (2, 4)
        for size in (4096, 1 << 20, 1 << 24)
        for _ in range(9)
    ]
    table = pd.DataFrame(rows, columns=["ranks", "bytes", "seconds"])
    return table.assign(
        seconds=table["seconds"] * (1 + noise * rng.standard_normal(len(rows)))
    )


# By hand


def check_sum(module):
    """Four ranks, 16 bytes: 3 messages of 4 bytes out and 3 in, 1 s each, and 12 bytes
    added.
    """
    assert module.sum_seconds(16, 4, link=PLAIN, add=0.25) == 6 + 3
    assert module.sum_seconds(16, 1, link=PLAIN, add=0.25) == 0


def check_data(module):
    """Two layers, two ranks with one of two samples each: 1 + 2 forward, 4 and 2
    back.
    """
    costs, how = proportional(2, weights=8.0), {"ranks": 2, "link": PLAIN}
    after = module.data_parallel(costs, 2, overlap=False, **how)
    assert after.seconds == 9 + 2 * 2  # a sum of 8 bytes is two messages of 4
    assert (
        module.data_parallel(costs, 2, **how).seconds == 9 + 2
    )  # the top layer's is hidden
    slow = Link("slower", 4.5, 8.0)  # 10 s a sum: from 7 s on, and one after the other
    assert module.data_parallel(costs, 2, ranks=2, link=slow).seconds == 7 + 20


def check_turns(module):
    """Four ranks on two cores compute in twice the time; sums take what they take."""
    costs, how = (
        proportional(2, weights=8.0),
        {"ranks": 4, "link": PLAIN, "overlap": False},
    )
    alone = module.data_parallel(costs, 4, **how).seconds
    shared = module.data_parallel(costs, 4, cores=2, **how).seconds
    assert shared - alone == 9
    assert module.data_parallel(costs, 4, cores=4, **how).seconds == alone


def check_pipeline(module):
    """Two equal stages, two micro-batches of two samples: (M + P - 1) (f + b) and two hand-overs,
    8 bytes in 1.5 s.
    """
    layers = (("a", (1.0, 2.0), (2.0, 4.0), 8.0), ("b", (1.0, 2.0), (2.0, 4.0), 8.0))
    costs = ModelCosts((1, 2), layers, 4.0)
    step = module.layer_parallel(costs, 4, ranks=2, link=PLAIN, micro_batches=2)
    assert step.seconds == 3 * (2 + 4) + 2 * 1.5
    grid = module.layer_parallel(
        costs, 8, ranks=4, link=PLAIN, micro_batches=2, replicas=2
    )
    assert grid.seconds == step.seconds + 2  # 8 bytes of each stage over two replicas
    assert (grid.way, grid.replicas, grid.stages, grid.used) == ("mixed", 2, 2, 4)
    # On one core both stages' work is done in turn: 2 micro-batches of 2 stages, 6 s
    # each.
    one = module.layer_parallel(costs, 4, ranks=2, link=PLAIN, micro_batches=2, cores=1)
    assert one.seconds == 2 * 2 * 6
    # The end of a step, on the rank where it takes longest; twice that where two share
    # a core.
    ends = replace(costs, ends=(5.0, 7.0))
    ended = module.layer_parallel(ends, 4, ranks=2, link=PLAIN, micro_batches=2)
    assert ended.seconds == step.seconds + 7
    ended = module.layer_parallel(
        ends, 4, ranks=2, link=PLAIN, micro_batches=2, cores=1
    )
    assert ended.seconds == one.seconds + 14
    alone = [
        module.data_parallel(c, 4, ranks=2, link=PLAIN).seconds for c in (costs, ends)
    ]
    assert alone[1] == alone[0] + 12


def check_ends(module):
    """What "last" takes beyond "backward", the mean over samples, and the descent."""
    costs = proportional(2)
    rows = [measured(costs)]
    for name, extra, descent in (("layer 1", 3.0, 1.0), ("layer 2", 0.0, 2.0)):
        own = rows[0][rows[0]["variant"] == name]
        last = own[own["stage"] == "backward"]
        rows.append(last.assign(stage="last", seconds=last["seconds"] + extra))
        rows.append(last.iloc[:1].assign(stage="descent", seconds=descent))
    found = module.ModelCosts.from_rows(pd.concat(rows), ["layer 1", "layer 2"])
    assert found.ends == (4.0, 2.0)
    assert found.end([1, 1]) == 4
    assert found.end([2], 3) == 18


CHECKS = [check_sum, check_data, check_turns, check_pipeline, check_ends]


@pytest.mark.parametrize("check", CHECKS)
def test_by_hand(check):
    check(scaling)


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (check_sum, "2 * (ranks - 1) * link", "(ranks - 1) * link"),
        (check_sum, "add * size * (ranks - 1) / ranks", "add * size"),
        (check_data, "max(done, end) + seconds", "end + seconds"),
        (check_data, "reversed(parts)", "parts"),
        (check_turns, "costs.parts(share, _turns(ranks, cores))", "costs.parts(share)"),
        (check_pipeline, "max(pipe.seconds, work", "min(pipe.seconds, work"),
        (check_pipeline, "costs.end(pipe.counts, turns)", "costs.end(pipe.counts)"),
        (check_pipeline, "costs.end([len(parts)]", "costs.end([1] * len(parts)"),
        (check_ends, '- at[name, "backward"]', ""),
        (
            check_pipeline,
            "sum_seconds(max(pipe.memory)",
            "0 * sum_seconds(max(pipe.memory)",
        ),
        (
            check_pipeline,
            "link.seconds(costs.hand * samples)",
            "link.seconds(costs.hand)",
        ),
    ],
)
def test_a_planted_fault_is_seen(check, right, wrong):
    with pytest.raises(AssertionError):
        check(planted(scaling, right, wrong))


def test_costs_between_below_and_above_those_measured():
    costs = ModelCosts((2, 4, 8), (("a", (3.0, 5.0, 7.0), (6.0, 6.0, 5.0), 9.0),), 1.0)
    got = {
        B: (part.forward, part.backward)
        for B in (1, 2, 3, 6, 8, 12)
        for part in costs.parts(B)
    }
    assert got == {1: (3, 6), 2: (3, 6), 3: (4, 6), 6: (6, 5.5), 8: (7, 5), 12: (9, 5)}
    assert costs.parts(2)[0].weights == 9
    single = ModelCosts((4,), (("a", (2.0,), (4.0,), 0.0),), 1.0)
    assert [(p.forward, p.backward) for p in single.parts(8)] == [(4, 8)]


def test_costs_are_the_medians_of_measured_rows():
    costs = proportional(3)
    names = [name for name, *_ in costs.layers]
    assert ModelCosts.from_rows(measured(costs), names) == replace(
        costs, ends=(0.0,) * 3
    )
    noisy = ModelCosts.from_rows(measured(costs, noise=0.01, repeats=9), names)
    for (_, f, *_), (_, g, *_) in zip(costs.layers, noisy.layers, strict=True):
        np.testing.assert_allclose(f, g, rtol=0.03)


# Limits


@pytest.mark.parametrize(
    "way", [scaling.data_parallel, scaling.layer_parallel, scaling.mixed]
)
def test_one_rank_takes_the_sum_of_the_costs(way):
    costs = proportional()
    step = way(costs, 8, ranks=1, link=SLOW)
    assert step.seconds == sum(part.forward + part.backward for part in costs.parts(8))


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_without_a_cost_of_messages_data_parallelism_scales(kind):
    table = scaling.sweep(
        proportional(), 64, link=IDEAL, ranks=(1, 2, 8, 64), scaling=kind
    )
    data = table[table["way"] == "data"]
    np.testing.assert_allclose(data["speedup"], data["ranks"], rtol=1e-12)
    np.testing.assert_allclose(data["efficiency"], 1.0, rtol=1e-12)
    layer = table[table["way"] == "layer"]
    assert (layer["speedup"] <= layer["stages"] + 1e-9).all()


def test_on_a_slow_link_more_ranks_are_slower():
    table = scaling.sweep(proportional(), 4, link=SLOW, ranks=(1, 2, 4, 8))
    data = table[table["way"] == "data"]["seconds"]
    assert data.is_monotonic_increasing
    assert data.is_unique


@pytest.mark.parametrize(
    "link", [IDEAL, PLAIN, SLOW, *LINKS.values()], ids=lambda link: link.name
)
@pytest.mark.parametrize("order", PIPELINES)
def test_overlap_and_more_candidates_are_never_slower(link, order):
    costs = proportional(6, weights=2e5)
    for ranks in (1, 2, 3, 6, 12):
        how = {"ranks": ranks, "link": link, "add": 1e-9}
        data = scaling.data_parallel(costs, 16, **how)
        assert (
            data.seconds
            <= scaling.data_parallel(costs, 16, overlap=False, **how).seconds
        )
        best = scaling.mixed(costs, 16, order=order, **how)
        assert best.seconds <= data.seconds
        assert best.replicas * best.stages == ranks
        if ranks <= 6:
            pipe = {"ranks": ranks, "link": link, "order": order}
            for M in scaling.MICRO_BATCHES if ranks > 1 else (1,):
                one = scaling.layer_parallel(costs, 16, micro_batches=M, **pipe)
                assert best.seconds <= one.seconds
                assert one.micro_batches <= 16


def test_a_mixed_grid_can_be_the_fastest():
    """More ranks than layers, and more than samples: neither way alone has work for
    all.
    """
    step = scaling.mixed(proportional(4), 4, ranks=16, link=Link("fast", 1e-3, 1e3))
    assert (step.replicas, step.stages, step.used) == (4, 4, 16)


def test_ranks_without_work_are_told():
    costs = proportional(3)
    assert scaling.layer_parallel(costs, 8, ranks=8, link=PLAIN).used == 3
    assert scaling.data_parallel(costs, 4, ranks=8, link=PLAIN).used == 4


def test_the_partition_is_the_best_for_every_number_of_micro_batches():
    rng = np.random.default_rng(0)
    rows = tuple(
        (str(k), (float(a),), (float(b),), 0.0)
        for k, (a, b) in enumerate(rng.random((7, 2)))
    )
    costs = ModelCosts((1,), rows, 0.0)
    for stages in (2, 3, 5):
        for M in (1, 2, 7):
            how = {"ranks": stages, "link": IDEAL, "micro_batches": M}
            got = scaling.layer_parallel(costs, M, **how).seconds
            want = scaling.plan(costs.parts(1), stages, M).seconds
            assert got == pytest.approx(want, rel=1e-12)


# Fits


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
@pytest.mark.parametrize(("noise", "within"), [(0.0, 0.01), (0.05, 0.1)])
def test_a_fit_finds_a_planted_link(link, noise, within):
    got, error = scaling.fit(messages(link, noise), "found")
    assert got.latency == pytest.approx(link.latency, rel=within)
    assert got.bandwidth == pytest.approx(link.bandwidth, rel=within)
    assert error < max(noise, 1e-9)
    add = scaling.fit_add(sums(link, 2e-10, noise / 10), link)
    assert add == pytest.approx(2e-10, rel=within)


def test_a_fit_is_not_negative_and_tells_its_error():
    rows = pd.DataFrame({"bytes": [8, 16, 32], "seconds": [1.0, 1.0, 0.5]})
    link, error = scaling.fit(rows, "falling")
    assert link.latency > 0
    assert link.bandwidth == math.inf
    assert error == pytest.approx(0.5, abs=0.2)
    fast = sums(PLAIN, 0.0).assign(seconds=lambda rows: rows["seconds"] / 2)
    assert scaling.fit_add(fast, PLAIN) == 0


def test_the_error_of_a_prediction():
    table = scaling.sweep(proportional(), 8, link=PLAIN, ranks=(1, 2, 4))
    known = table.set_index(["way", "ranks"])["seconds"]
    rows = pd.DataFrame(
        [
            ("data", P, factor * known["data", P])
            for P in (1, 2)
            for factor in (0.5, 0.8, 7.0)
        ],
        columns=["way", "ranks", "seconds"],
    )
    got = scaling.errors(rows, table)
    assert got["ranks"].tolist() == [1, 2]
    np.testing.assert_allclose(got["error"], 0.25)
    with pytest.raises(ValueError, match=re.escape("measured: got ('data', 3)")):
        scaling.errors(rows.assign(ranks=3), table)


# Bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Link("bad", -1.0, 1.0), "link: got latency -1.0"),
        (lambda: Link("bad", math.nan, 1.0), "link: got latency nan"),
        (lambda: Link("bad", 0.0, 0.0), "bandwidth 0.0"),
        (
            lambda: scaling.fit(messages(PLAIN)[:3], "few"),
            "rows: got 1 size of messages",
        ),
        (
            lambda: scaling.fit(messages(PLAIN)[["seconds"]], "none"),
            "rows: got no column bytes",
        ),
        (lambda: scaling.fit(-messages(PLAIN), "negative"), "rows.seconds: got"),
        (
            lambda: scaling.fit_add(sums(PLAIN, 0.0).assign(ranks=1), PLAIN),
            "sums over 1 rank",
        ),
        (
            lambda: ModelCosts.from_rows(measured(proportional(2)), ["layer 9"]),
            "layer 9",
        ),
        (
            lambda: ModelCosts.from_rows(lacking(), ["layer 1"]),
            "rows: got not every B of layer 1",
        ),
        (lambda: proportional().parts(0), "samples: got 0"),
        (
            lambda: scaling.data_parallel(proportional(), 0, ranks=1, link=PLAIN),
            "batch: got 0",
        ),
        (
            lambda: scaling.data_parallel(proportional(), 1, ranks=0, link=PLAIN),
            "ranks: got 0",
        ),
        (
            lambda: scaling.mixed(proportional(), 1, ranks=2, link=PLAIN, cores=0),
            "cores: got 0",
        ),
        (
            lambda: scaling.layer_parallel(proportional(), 1, ranks=0, link=PLAIN),
            "ranks: got 0",
        ),
        (
            lambda: scaling.layer_parallel(
                proportional(), 1, ranks=2, link=PLAIN, micro_batches=0
            ),
            "micro_batches: got 0",
        ),
        (
            lambda: scaling.layer_parallel(
                proportional(), 1, ranks=2, link=PLAIN, order="x"
            ),
            "order: got 'x'",
        ),
        (
            lambda: scaling.sweep(proportional(), 1, link=PLAIN, scaling="x"),
            "scaling: got 'x'",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_every_published_link_has_a_source():
    for name, link in LINKS.items():
        assert link.name == name
        assert len(link.source) > 40
        assert 1e-7 < link.latency < 1e-3
        assert 1e8 < link.bandwidth < 1e12


def test_a_sweep_to_1024_ranks_is_quick():
    costs, start = proportional(34), time.perf_counter()
    table = scaling.sweep(costs, 64, link=LINKS["InfiniBand HDR 200 Gbit/s"])
    assert time.perf_counter() - start < 15
    assert table["ranks"].max() == 1024
    assert len(table) == 33

"""The five switches of `study/switches.py`: every combination computes the same, at
every size.
"""

import threading
from functools import partial
from itertools import product

import numpy as np
import pytest
from conftest import SHAPES, example

import lstm_kernels as lk
from lstm_kernels import schedules
from lstm_report.experiments import switches
from lstm_report.experiments.switches import (
    BASELINE,
    COMBINATIONS,
    EVERY,
    SWITCHES,
    Variant,
)
from lstm_report.measure.comparer import MismatchError, compare_outputs

# Sizes equal to a vector and to wide blocks, one below and one above; few and many
# samples.
SIZES = [
    *SHAPES,
    *(
        (1 + n % 3, 2 + n % 5, 1 + n % 7, (H, 3)[n % 2], H)
        for n, H in enumerate((15, 16, 17))
    ),
    *(
        (1 + n % 3, 2 + n % 5, 5 + n, (H, 3)[n % 2], H)
        for n, H in enumerate((31, 32, 33))
    ),
    *(
        (1 + n % 3, 3 + n % 5, 6 + n, (H, 3)[n % 2], H)
        for n, H in enumerate((63, 64, 65))
    ),
    (2, 9, 13, 129, 127),
]


def check(variant, params, x):
    return compare_outputs({repr(variant): partial(variant.forward, x)}, params, x)


@pytest.mark.parametrize("on", COMBINATIONS, ids=lambda on: "+".join(on) or "baseline")
def test_every_combination_agrees_with_the_reference(on):
    for shape, dtype in product(SIZES, (np.float32, np.float64)):
        params, x, _ = example(shape, dtype=dtype)
        for threads in (1, 2, 3):
            check(Variant(params, on, threads=threads), params, x)


@pytest.mark.parametrize(
    "on", [BASELINE, EVERY, ("fuse", "pack"), ("combine", "wavefront")]
)
def test_nothing_is_left_from_call_to_call(on):
    params, x, _ = example((3, 9, 5, 7, 40))
    variant, longer = Variant(params, on, threads=2), example((3, 11, 6, 7, 40))[1]
    first = variant.forward(x).copy()
    variant.forward(10 * x)
    check(variant, params, longer)
    np.testing.assert_array_equal(variant.forward(x), first)


def test_there_are_32_combinations_in_the_source_s_order():
    assert len(COMBINATIONS) == len(set(COMBINATIONS)) == 32
    assert BASELINE == ()
    assert tuple(SWITCHES) == EVERY
    params, _, _ = example((1, 1, 1, 1, 1))
    assert Variant(params, ("pack", "combine")).on == ("combine", "pack")
    assert repr(Variant(params)) == "Variant: baseline"


def test_switches_that_have_nothing_to_do_change_nothing(monkeypatch):
    """With one product in a cell there is no second to run beside it: `concurrent` must
    not take the threads away from that one.
    """
    params, x, _ = example((2, 4, 5, 9, 33))
    used, at_once = [], switches.at_once
    monkeypatch.setattr(
        switches, "at_once", lambda *a: used.append(len(a[0])) or at_once(*a)
    )
    for on in [("combine",), ("combine", "pack"), ("combine", "fuse", "pack")]:
        jobs = []
        for also in ((), ("concurrent",)):
            used.clear()
            variant = Variant(params, on + also, threads=2)
            assert not variant.concurrent
            jobs.append((variant.forward(x).copy(), [*used]))
        np.testing.assert_array_equal(jobs[0][0], jobs[1][0])
        assert jobs[0][1] == jobs[1][1]
    assert Variant(params, ("concurrent", "pack")).concurrent


def test_a_planted_fault_of_each_seam_is_seen(monkeypatch):
    params, x, _ = example((2, 6, 5, 9, 33))

    def wrong(on):
        with pytest.raises(MismatchError):
            check(Variant(params, on, threads=2), params, x)

    packed = Variant._packed
    monkeypatch.setattr(
        Variant, "_packed", lambda self, m: packed(self, np.roll(m, 1, axis=1))
    )
    wrong(("pack",))
    monkeypatch.undo()
    forgetful = lambda self, z, matrix, out, threads: []  # noqa: E731 - a product that is left out
    monkeypatch.setattr(Variant, "_product", forgetful)
    wrong(("combine",))
    monkeypatch.undo()
    fused = Variant._fused
    monkeypatch.setattr(
        Variant, "_fused", lambda s, sums, b, c, h: fused(s, sums, 0 * b, c, h)
    )
    wrong(("fuse",))
    monkeypatch.undo()

    def from_above(graph):
        return schedules.Schedule(graph, tuple(reversed(graph.tasks(graph.steps))))

    monkeypatch.setattr(switches, "layer_by_layer", from_above)
    wrong(())


def test_a_task_that_fails_ends_the_others():
    graph = schedules.Graph(3, 12)
    plan = schedules.wavefront(graph, 3, 2)
    seen, lock = [], threading.Lock()

    def perform(task):
        with lock:
            seen.append(task)
        if len(seen) == 5:
            raise KeyboardInterrupt("planted")

    with pytest.raises(KeyboardInterrupt, match="planted"):
        switches.run(plan, perform)
    assert 5 <= len(seen) < len(plan.tasks)
    done = []
    switches.run(plan, done.append)
    schedules.check(schedules.Schedule(graph, tuple(plan.tasks)))
    assert sorted(done) == sorted(plan.tasks)


def test_a_second_thread_computes():
    params, x, _ = example((2, 7, 6, 5, 40))
    variant, results = Variant(params, EVERY, threads=2), []
    want = variant.forward(x).copy()
    thread = threading.Thread(target=lambda: results.append(variant.forward(x).copy()))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(results[0], want)


def test_bad_input():
    params, x, _ = example((2, 4, 3, 5, 8))
    for on, message in [
        (("combine", "fast"), "on: got 'fast', want one of"),
        (("fuse", "fuse"), "each once"),
        ("combine", "on: got 'combine', want names"),
    ]:
        with pytest.raises(ValueError, match=message):
            Variant(params, on)
    with pytest.raises(ValueError, match="got cell 'gru', want 'lstm'"):
        Variant(lk.Params.init(2, 3, cell="gru"))
    with pytest.raises(TypeError, match="params: got dict"):
        Variant({})
    with pytest.raises(ValueError, match="threads"):
        Variant(params, threads=0)
    variant = Variant(params)
    with pytest.raises(TypeError, match="x: got dtype float64, want float32"):
        variant.forward(x.astype(np.float64))
    for bad in (x[:, :, :4].copy(), x[:0], x[0]):
        with pytest.raises(ValueError, match="x: got"):
            variant.forward(bad)
    bad = x.copy()
    bad[1, 2, 3] = np.nan
    with pytest.raises(
        ValueError, match=r"x: got nan at index \[1, 2, 3\], want finite"
    ):
        variant.forward(bad)

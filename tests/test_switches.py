"""The switches of page 06: every combination computes the same, at every size, and no
two are the same code.
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
    "on", [BASELINE, EVERY, ("fuse", "layout", "kernel"), ("combine", "wavefront")]
)
def test_nothing_is_left_from_call_to_call(on):
    params, x, _ = example((3, 9, 5, 7, 40))
    variant, longer = Variant(params, on, threads=2), example((3, 11, 6, 7, 40))[1]
    first = variant.forward(x).copy()
    variant.forward(10 * x)
    check(variant, params, longer)
    np.testing.assert_array_equal(variant.forward(x), first)


def test_no_combination_is_excluded_or_the_same_code_twice():
    # concurrent, wavefront or neither; no layout, layout, or kernel too; two more.
    assert len(COMBINATIONS) == len(set(COMBINATIONS)) == 3 * 3 * 2 * 2
    assert BASELINE in COMBINATIONS
    assert EVERY in COMBINATIONS
    params, x, _ = example((3, 7, 9, 5, 33))
    runs = {Variant(params, on, threads=2).runs(x) for on in COMBINATIONS}
    assert len(runs) == len(COMBINATIONS)
    assert Variant(params, ("layout", "combine")).on == ("combine", "layout")
    assert repr(Variant(params)) == "Variant: baseline"


def test_what_runs_is_what_is_described(monkeypatch):
    """At the same time run as many products as the switches say, of such operands."""
    params, x, _ = example((2, 4, 5, 9, 33))
    lists, at_once = [], switches.at_once

    def seen(jobs, threads):
        lists.append([job for job in jobs if len(job.args) == 3])  # a, matrix, out
        at_once(jobs, threads)

    monkeypatch.setattr(switches, "at_once", seen)
    for on, lengths, function in [
        ((), [1] * 8, "matmul"),
        (("combine",), [1] * 2, "matmul"),
        (("concurrent", "fuse"), [8], "matmul"),
        (("combine", "concurrent", "layout"), [2], "matmul"),
        (("layout", "kernel"), [2] * 8, "_by_tile"),
        (("combine", "concurrent", "layout", "kernel"), [2], "_by_tile"),
    ]:
        lists.clear()
        variant = Variant(params, on, threads=2)
        variant.forward(x)
        cell = [jobs for jobs in lists if jobs][: len(lengths)]
        assert [len(jobs) for jobs in cell] == lengths
        _, jobs, described, *_ = variant.runs(x)
        assert list(described) == lengths
        assert {name for name, *_ in jobs} == {function}
        for job, (name, *arrays) in zip(sum(cell, []), jobs, strict=True):  # noqa: RUF017
            assert job.func.__name__ == name
            assert [(a.shape, a.strides) for a in job.args] == arrays


def test_layout_changes_how_the_same_operand_lies():
    params, _, _ = example((1, 2, 3, 4, 32))
    stored, transposed, panels = (
        Variant(params, on)._layers[0][0][0][0]  # of layer 0, x, gate i
        for on in (BASELINE, ("layout",), ("layout", "kernel"))
    )
    np.testing.assert_array_equal(stored[:, :32], params.layers[0].U[:, :32])
    np.testing.assert_array_equal(stored, transposed)
    np.testing.assert_array_equal(stored, np.concatenate(panels, axis=1))
    assert stored.T.flags.c_contiguous  # as PyTorch stores it: a unit's weights
    assert transposed.flags.c_contiguous


def test_without_products_the_rest_remains():
    params, x, _ = example((2, 3, 4, 5, 16))
    for on in (BASELINE, EVERY):
        variant = Variant(params, on, threads=2)
        y = variant.forward(x, products=False)
        assert np.isfinite(y).all()
        with pytest.raises(MismatchError):
            compare_outputs(
                {"bare": partial(variant.forward, x, products=False)}, params, x
            )


def test_the_peak_is_a_rate():
    assert 0.1 < switches.peak(1, rounds=2) < 1e4


def test_a_planted_fault_of_each_seam_is_seen(monkeypatch):
    params, x, _ = example((2, 6, 5, 9, 33))

    def wrong(on):
        with pytest.raises(MismatchError):
            check(Variant(params, on, threads=2), params, x)

    laid_out = Variant._laid_out
    monkeypatch.setattr(
        Variant, "_laid_out", lambda self, m: laid_out(self, np.roll(m, 1, axis=1))
    )
    for on in (("layout",), ("layout", "kernel")):
        wrong(on)
    monkeypatch.undo()
    forgetful = lambda self, a, threads, matrix, out: []  # noqa: E731 - a product that is left out
    monkeypatch.setattr(Variant, "_product", forgetful)
    for on in (("combine",), ("concurrent",)):
        wrong(on)
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
        (("concurrent", "wavefront"), "on: with wavefront no core is free"),
        (("kernel",), "on: kernel needs its layout"),
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

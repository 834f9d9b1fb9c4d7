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
from lstm_report.experiments.switches import BASELINE, COMBINATIONS, EVERY, Variant
from lstm_report.measure.comparer import compare_outputs

# Sizes equal to a vector and to wide blocks, one below and one above; few and many
# samples; 1 to 3 threads.
SIZES = [*SHAPES, (2, 9, 13, 129, 127)]
SIZES += [
    (1 + n % 3, 2 + n % 5, 1 + n, (H, 3)[n % 2], H)
    for n, H in enumerate((15, 16, 17, 31, 32, 33, 63, 64, 65))
]
THREADS = [1 + n % 3 for n in range(2 * len(SIZES))]


def check(variant, params, x, **options):
    forward = partial(variant.forward, x, **options)
    return compare_outputs({repr(variant): forward}, params, x)


@pytest.mark.parametrize("on", COMBINATIONS, ids=lambda on: "+".join(on) or "baseline")
def test_every_combination_agrees_with_the_reference(on):
    cases = product((np.float32, np.float64), SIZES)
    for (dtype, shape), threads in zip(cases, THREADS, strict=True):
        params, x, _ = example(shape, dtype=dtype)
        check(Variant(params, on, threads=threads), params, x)


@pytest.mark.parametrize("on", [BASELINE, EVERY, ("combine", "wavefront")])
def test_nothing_is_left_from_call_to_call_and_a_second_thread_computes(on):
    params, x, _ = example((3, 9, 5, 7, 40))
    variant, longer = Variant(params, on, threads=2), example((3, 11, 6, 7, 40))[1]
    results = [variant.forward(x).copy()]
    variant.forward(10 * x)  # in the memory of the first call
    another = threading.Thread(target=lambda: results.append(variant.forward(x)))
    another.start()
    another.join()
    np.testing.assert_array_equal(*results)
    check(variant, params, longer)


def test_no_combination_is_excluded_or_the_same_code_twice():
    # concurrent, wavefront or neither; no layout, layout, or kernel too; two more.
    assert len(COMBINATIONS) == len(set(COMBINATIONS)) == 3 * 3 * 2 * 2
    assert {BASELINE, EVERY} <= set(COMBINATIONS)
    params, x, _ = example((3, 7, 9, 5, 33))
    runs = {Variant(params, on, threads=2).runs(x) for on in COMBINATIONS}
    assert len(runs) == len(COMBINATIONS)


def test_what_is_measured_of_the_machine_has_its_unit():
    assert 1 < switches.peak(1, 3) < 1000  # GFLOP/s
    assert -1e-3 < switches.waking(2, 20) < 0.5  # seconds


def test_a_task_that_fails_ends_the_others():
    plan = schedules.wavefront(schedules.Graph(3, 12), 3, 2)
    seen = []

    def perform(task):
        seen.append(task)
        if task == plan.tasks[len(plan.tasks) // 2]:
            raise KeyboardInterrupt("planted")

    with pytest.raises(KeyboardInterrupt, match="planted"):
        switches.run(plan, perform)
    assert len(seen) < len(plan.tasks)


PARAMS, X, _ = example((2, 4, 3, 5, 8))
GRU = lk.Params.init(2, 3, cell="gru")


@pytest.mark.parametrize(
    ("params", "on", "message"),
    [
        (PARAMS, ("combine", "fast"), "on: got 'fast', want one of"),
        (PARAMS, ("pointwise", "pointwise"), "each once"),
        (PARAMS, ("concurrent", "wavefront"), "on: with wavefront no core is free"),
        (PARAMS, ("kernel",), "on: kernel needs its layout"),
        (GRU, (), "got cell 'gru', want 'lstm'"),
    ],
)
def test_switches_that_make_no_sense_are_refused(params, on, message):
    with pytest.raises(ValueError, match=message):
        Variant(params, on)
    with pytest.raises(ValueError, match="x: got"):
        Variant(PARAMS).forward(X * np.nan)

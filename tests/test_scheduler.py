"""The scheduler on toy cells: every cell once, after all that it needs, whoever comes
late, steals, or is told to stop.
"""

import ctypes

import numpy as np
import pytest
from toys import DELAYS, Toy, random_toy

from lstm_kernels.cpu import scheduler
from lstm_kernels.cpu.thread_pool import thread_pool
from lstm_kernels.kernels import native
from lstm_kernels.schedules import Graph, by_samples, by_units, waits_for, wavefront


def test_random_boxes_with_random_delays():
    """Delays of up to 100 us in some cells, always the same values; workers that never
    come are not waited for: who waits long steals.
    """
    rng = np.random.default_rng(1)
    for _ in range(60):
        some = random_toy(rng)
        workers = some.plan.workers
        for came in (1, *rng.integers(1, workers + 1, 9).tolist()):
            some.clear()
            some.renew()
            slow = rng.random(DELAYS) < 0.1
            some.delays[:] = rng.integers(0, 3000, DELAYS) * slow
            passes = int(rng.integers(1, 4))
            some.run(passes, came)
            some.check(passes)
            for stage in some.plan.stages:
                spans = some.plan.timeline(stage.kernel).spans
                needed = waits_for(stage.schedule)
                assert [s.task for s in spans] == [p.task for p in stage.schedule.parts]
                for span, others in zip(spans, needed, strict=True):
                    assert all(spans[k].stop <= span.start for k in others)
                    assert 0 <= span.worker < came


def test_many_passes_in_one_region():
    """Each of three stages on all workers: rows that share steps, then none, then
    samples; fifty passes, and a later region goes on counting.
    """
    graph = Graph(3, 8, blocks=5, samples=4)
    back = Graph(3, 8, True, blocks=2, samples=4)
    rng, total = np.random.default_rng(2), 0
    for workers in range(1, 7):
        stages = by_units(graph, min(workers, 5)), wavefront(back, workers, 3)
        some, total = Toy(*((one, False) for one in (*stages, by_samples(graph, 2)))), 0
        for passes in (50, 1, 50):
            some.delays[:] = rng.integers(0, 500, DELAYS) * (rng.random(DELAYS) < 0.1)
            some.run(passes)
            total += passes
            some.check(total)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("share", [by_units, by_samples, wavefront])
def test_a_cancelled_pass_computes_nothing_more(workers, share):
    some = Toy((share(Graph(3, 8, blocks=5, samples=4), workers), False))
    stage = some.plan.stages[0]
    for item in range(1, len(stage.schedule.parts) + 1, 3):
        some.clear(cancels_at=item)
        some.renew()
        some.run()
        thread_pool().drain()
        assert some.counts.max() <= 1
        assert some.counts.sum() < 3 * 8 * 5 * 4
        assert some.plan.timeline(stage.kernel) is None
        some.clear()
        some.renew()  # as a new workspace
        some.run(2)
        some.check(2)


@pytest.mark.parametrize("came", [1, 2, 3])
@pytest.mark.parametrize("parts", [5, 1])
def test_nobody_stops_while_parameters_change(came, parts):
    """The pass is cancelled when one of the items begins that change them: all of these
    are done, and nothing of the next pass.
    """
    last = by_units(Graph(1, 1, blocks=parts), min(parts, 3))
    some = Toy((by_units(Graph(2, 3, blocks=3), 3), False), (last, True))
    before = 2 * 3 * 3
    for item in range(before + 1, before + parts + 1):
        for _ in range(10):
            some.clear(cancels_at=item)
            some.renew()
            some.run(50, came)
            thread_pool().drain()
            some.check(1)


@pytest.mark.parametrize("share", [by_units, by_samples, wavefront])
def test_a_late_worker_does_nothing_of_passes_that_are_over(share):
    """As if it had been held up before it began; and it is no hindrance to the next."""
    some = Toy((share(Graph(3, 6, blocks=5, samples=4), 3), False))
    some.run(4)
    some.check(4)
    thread_pool().drain()
    late = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 5)(native(scheduler.run, ""))
    for p in range(3):
        for first in range(4):
            assert late(p, first, 4, some.plan._region[2]) == 4
    some.check(4)
    some.run(1)
    some.check(5)


def test_a_pass_that_was_interrupted_is_not_run_again():
    some = Toy((by_units(Graph(1, 2, blocks=2), 2), False))

    class Interrupted(dict):
        def __len__(self):
            raise KeyboardInterrupt

    spans, some.plan._spans = some.plan._spans, Interrupted()
    with pytest.raises(KeyboardInterrupt):
        some.run()
    some.plan._spans = spans
    with pytest.raises(RuntimeError, match=r"^run: got a pass that a signal interr"):
        some.run()

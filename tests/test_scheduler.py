"""The scheduler on toy cells: every cell once, after all that it needs, whoever comes
late, steals, or is told to stop.
"""

import ctypes

import numpy as np
import pytest
from toys import DELAYS, Toy, random_toy

from lstm_kernels.cpu.plan import run_code
from lstm_kernels.cpu.thread_pool import thread_pool
from lstm_kernels.schedules import Graph, by_samples, by_units, waits_for, wavefront

shares = pytest.mark.parametrize("share", [by_units, by_samples, wavefront])


def test_random_boxes_with_random_delays():
    """Delays of up to 100 us in some cells, always the same values; workers that never
    come are not waited for: who waits long steals. A later region goes on counting.
    """
    rng = np.random.default_rng(1)
    for _ in range(50):
        toy = random_toy(rng)
        workers = toy.plan.workers
        for came in (1, workers, *rng.integers(1, workers + 1, 4).tolist()):
            toy.renew()
            slow = rng.random(DELAYS) < 0.1
            toy.delays[:] = rng.integers(0, 3000, DELAYS) * slow
            passes = int(rng.choice([1, 2, 10]))
            toy.run(passes, came)
            toy.check(passes)
            toy.run(1, came)
            toy.check(passes + 1)
            for stage in toy.plan.stages:
                spans = toy.plan.timeline(stage.kernel).spans
                needed = waits_for(stage.schedule)
                assert [s.task for s in spans] == [p.task for p in stage.schedule.parts]
                for span, others in zip(spans, needed, strict=True):
                    assert all(spans[k].stop <= span.start for k in others)
                    assert 0 <= span.worker < came


@pytest.mark.parametrize("came", [1, 2, 3])
@shares
def test_a_cancelled_pass_stops_but_not_while_parameters_change(share, came):
    """Cancelled as an item begins: of those that change parameters all are done then,
    and nothing of the next pass; else nothing of them.
    """
    for parts in (1, 5):
        last = by_units(Graph(1, 1, blocks=parts), min(parts, 3))
        toy = Toy((share(Graph(2, 3, blocks=3), 3), False), (last, True))
        before = len(toy.plan.stages[0].schedule.parts)
        for item in [*range(1, before + 1), *range(before + 1, before + parts + 1)] * 4:
            toy.renew(cancels_at=item)
            toy.run(50, came)
            thread_pool().drain()
            if item > before:
                toy.check(1)
            else:
                assert toy.counts.max() <= 1
                assert toy.counts[:2].sum() < 2 * 3 * 3
                assert toy.counts[2:].sum() == 0
                assert toy.plan.timeline(toy.plan.stages[0].kernel) is None


@shares
def test_a_late_worker_does_nothing_of_passes_that_are_over(share):
    """As if it had been held up before it began; and it is no hindrance to the next."""
    toy = Toy((share(Graph(3, 6, blocks=5, samples=4), 3), False))
    toy.run(4)
    toy.check(4)
    thread_pool().drain()
    late = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 5)(run_code())
    for p in range(3):
        for first in range(4):
            assert late(p, first, 4, toy.plan._region[2]) == 4
    toy.check(4)
    toy.run(1)
    toy.check(5)

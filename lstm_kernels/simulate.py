"""What a schedule would take: timelines from measured costs, and a bound."""

from dataclasses import dataclass
from typing import NamedTuple

from .errors import check_int, check_type
from .schedules import Costs, Schedule, timed


class Span(NamedTuple):
    """When a part of a task ran, seconds from the first one's start, and on which
    worker: where several helped, that of its end.
    """

    task: int
    worker: int
    start: float
    stop: float


@dataclass(frozen=True)
class Timeline:
    """What became of a schedule, predicted or measured: a Span for each of its parts,
    in their order.
    """

    schedule: Schedule
    spans: tuple[Span, ...]

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last stop."""
        start = min(span.start for span in self.spans)
        return max(span.stop for span in self.spans) - start

    @property
    def idle(self) -> float:
        """The share of the time of the workers that have a task in which they ran
        nothing.
        """
        busy = sum(span.stop - span.start for span in self.spans)
        most = self.makespan * self.schedule.employed
        return 1 - busy / most if most else 0.0


def simulate(schedule: Schedule, costs: Costs) -> Timeline:
    """The Timeline of a schedule: a part starts when its worker is free and its waits
    are over.
    """
    check_type("schedule", schedule, Schedule, "a Schedule")
    check_type("costs", costs, Costs, "Costs").of(schedule.graph)
    tasks = schedule.tasks
    spans = (
        Span(part.task, tasks[part.task].worker, start, stop)
        for part, start, stop, _ in timed(schedule, costs.seconds, costs.hand)
    )
    return Timeline(schedule, tuple(spans))


def pipeline_bound(micro_batches: int, workers: int) -> float:
    """Of a pipeline of equal stages: M P / (M + P - 1).

    Raises TypeError, or ValueError for a number below one.
    """
    check_int("workers", workers)
    check_int("micro_batches", micro_batches)
    return micro_batches * workers / (micro_batches + workers - 1)

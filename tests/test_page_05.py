"""Page 5: its models, claims, tables and figures on made rows."""

import numpy as np
import pandas as pd
import pytest
from pages import bars, claims, functions, rows, says

from lstm_kernels.cores import cores
from lstm_kernels.schedules import Costs, Graph, check, layer_by_layer, wavefront
from lstm_kernels.simulate import Span, Timeline, simulate
from lstm_kernels.versions.numba_wavefront import NumbaWavefront
from lstm_report.experiments import divisions
from lstm_report.measure.evidence import Interval

page = functions("05_layers")
two_cores = pytest.mark.skipif(cores() < 2, reason="two threads need two cores")
C, T = page.CHUNK, 2 * page.CHUNK
STRETCH = Interval(1.1, 1.2, 1.3)


def gain(**changed):
    """Rows as `gains` gives them: forward_8=(...) is a value for each process."""
    of = {"forward_1": (1, 1.1, 0.9), "forward_2": (1.5, 1.4, 1.3)}
    of |= {"forward_4": (1.9, 1.7, 1.6), "forward_8": (1.7, 1.8, 1.75)}
    of |= {"backward_4": (1.7, 1.8, 1.82), "backward_8": (1.61, 1.65, 1.64)} | changed
    made = [
        (process, name.partition("_")[0], int(name.partition("_")[2]), C, value)
        for name, values in of.items()
        for process, value in enumerate(values)
    ]
    return pd.DataFrame(made, columns=["process", "stage", "L", "C", "gain"])


def passes(costs, slower=1.0):
    """Rows as `measure_stacks` gives them, that last what costs of one layer say; those
    on two threads `slower` times as long.
    """
    keys = [(2, 1, 2), (2, 1, C), (2, 1, T), (4, 1, T), (2, 2, C), (4, 2, C), (4, 2, 2)]
    made = []
    for process, stage in ((0, "forward"), (0, "backward"), (1, "forward")):
        for L, threads, length in keys:
            graph = Graph(L, T, backward=stage == "backward")
            plan = wavefront(graph, threads, length, together=threads)
            plan = layer_by_layer(graph) if length == T else plan
            every = Costs(costs.step * L, task=costs.task, hand=costs.hand)
            far = slower if threads == 2 else 1.0
            spans = tuple(
                s._replace(start=far * s.start, stop=far * s.stop)
                for s in simulate(plan, every).spans
            )
            line = Timeline(plan, spans)
            made.append((process, stage, L, threads, length, 0, line.makespan, line))
    names = ["process", "stage", "L", "threads", "C", "repeat", "seconds", "line"]
    return pd.DataFrame(made, columns=names)


COSTS = Costs((2e-6,), task=5e-6, hand=1e-7)
MS = Costs((1e-3,))  # a millisecond a step


def shapes(**changed):
    """A table of intervals by (L, H, B), for four layers."""
    of = {"h64_b1": (1.01, 2.0, 2.1), "h512_b1": (0.4, 0.5, 0.99)}
    of |= {"h64_b4": (0.99, 1.5, 2.0), "h512_b4": (0.5, 0.8, 1.0)} | changed
    keys = [(4, *(int(part[1:]) for part in name.split("_"))) for name in of]
    index = pd.MultiIndex.from_tuples(keys, names=["L", "H", "B"])
    return pd.DataFrame(of.values(), index, columns=["low", "middle", "high"])


def at_ends(**changed):
    return shapes(**changed), 64, 512, "why"


def caches(low):
    return 512, Interval(low, 2.5, 2.6), Interval(1.2, 1.3, 1.4), 2.0


DEEP = "forward_4", "forward_8", "backward_4", "backward_8"
FEW = gain(forward_8=(1.7, 1.8, 1.9), backward_8=(0.9, 1.1, 1.2))
# 4 layers of two chunks on two workers
GANTT = passes(MS, slower=2.0), {(0, "forward"): MS}, C
test_claims = claims(
    (page.claim_gains, (gain(), STRETCH, C), True, "forward, 4 layers: 1.7x (1.6x to"),
    (page.claim_gains, (gain(), STRETCH, C), True, "take 1.2 (1.1 to 1.3) times"),
    *(
        (page.claim_gains, (gain(**{deep: (1.9, 1.59, 1.8)}), STRETCH, C), False)
        for deep in DEEP
    ),
    (page.claim_map, at_ends(), True, "64 units: 2x (1.01x to 2.1x); 512 units: 50 %"),
    (page.claim_map, at_ends(h64_b1=(1.0, 2.0, 2.1)), False),
    (page.claim_map, at_ends(h512_b1=(0.4, 0.5, 1.0)), False),
)
test_words = says(
    (page.figure_gains, (gain(), C, T), "four layers and more: 1.6x to 1.9x. "),
    (page.figure_gantt, GANTT, f"Predicted: {5 * C} ms, idle 20.0%. "),
    (page.figure_gantt, GANTT, f"Measured: {10 * C} ms, idle 20.0%"),
    (page.figure_explorer, (), "Layer by layer: 192 s", "Chunks of 24 steps: 120 s"),
    (
        page.table_lengths,
        (FEW, T),
        f"| {C} | 1.78x | 1.8x (1.7x to 1.9x) | level (0.9x",
    ),
    (page.table_goals, (FEW, C), "layers | reached: 1.8x (1.7x to 1.9x)", "90% of min"),
    (page.table_goals, (FEW, C), "| not reached: level (0.9x to 1.2x) |"),
    (page.figure_map, shapes(), "Layers faster in 1 of 4 shapes, steps in 1, level in"),
    (page.figure_map, shapes(), "Labels: 2.00x; 0.50x; level; level."),
    (page.sentence_caches, caches(2.01), "4 MiB", "more than two cores", "1.3 (1.2 to"),
    (page.sentence_caches, caches(2.0), "no: more than two cores"),
)


def test_the_model_gives_back_the_costs_of_its_passes_and_predicts_them():
    made = passes(COSTS)
    found = page.fitted(made)
    assert set(found) == {(0, "forward"), (0, "backward"), (1, "forward")}
    for costs in found.values():
        assert costs.step[0] == pytest.approx(2e-6)
        assert (costs.task, costs.hand) == pytest.approx((5e-6, 1e-7))
    assert page.errors(made, found) == pytest.approx(np.zeros(9), abs=1e-9)
    half = page.errors(passes(COSTS, slower=2.0), found)
    assert half == pytest.approx(np.full(9, -0.5), abs=1e-9)


def test_only_workers_that_were_idle_have_waited():
    plan = wavefront(Graph(2, 4), 2, 2, together=2)
    tasks = [(task.layer, task.start) for task in plan.tasks]
    assert tasks == [(0, 0), (0, 2), (1, 0), (1, 2)]

    def waited(*workers):
        times = (0.0, 2.0), (2.0, 4.0), (2.5, 4.5), (4.5, 6.5)
        pairs = zip(workers, times, strict=True)
        spans = (Span(i, worker, *span) for i, (worker, span) in enumerate(pairs))
        return page.waits(Timeline(plan, tuple(spans)))

    # The last one waited for nothing: its own worker was busy until 4.5
    assert waited(0, 0, 1, 1) == pytest.approx([0.5])
    assert waited(0, 0, 0, 0) == []


def test_two_threads_are_compared_with_one_layer_by_layer():
    found = page.gains(passes(Costs((1.0,))))
    assert set(found["L"]) == {2, 4}
    assert found["stage"].iloc[0] == "forward"
    # Two layers of two chunks: three chunks last instead of four; four layers, 5 of 8.
    of = found[found["C"] == C].groupby("L")["gain"].median()
    assert of.to_dict() == pytest.approx({2: 4 / 3, 4: 8 / 5})
    assert page.stretched(passes(COSTS)).middle > 1  # more tasks begin
    slow = page.stretched(passes(Costs((1.0,)), slower=1.5))
    assert slow.middle == pytest.approx(1.5)


def test_the_gains_are_drawn_with_their_range_under_their_bound():
    (ax,) = page.figure_gains(gain(), C, T).axes
    bound = next(line for line in ax.lines if line.get_linestyle() == "--")
    assert bound.get_ydata() == pytest.approx([1, 4 / 3, 8 / 5, 16 / 9])
    drawn = {tuple(line.get_ydata()) for line in ax.lines}
    assert {(1.0, 1.4, 1.7, 1.75), (1.8, 1.64)} <= drawn
    ends = [(0.9, 1.1), (1.3, 1.5), (1.6, 1.9), (1.7, 1.8), (1.7, 1.82), (1.61, 1.65)]
    np.testing.assert_allclose(bars(ax), ends)


def test_colours_of_the_map_say_who_wins():
    drawn = page.figure_map(shapes()).axes[0].images[0].get_array()
    assert drawn.tolist() == [[1.0, -1.0], [0.0, 0.0]]


def test_the_best_chunk_follows_from_the_hand_over():
    check(page.layer_after_layer(Graph(5, 3)))
    assert page.best_chunk(0.0, L=2, T=6, workers=2) == (1, 7.0)
    assert page.best_chunk(100.0, L=2, T=6, workers=2)[1] <= 12


def test_kinds_of_division_are_compared_by_what_all_processes_find_fastest():
    seconds = {"layers, chunks of 3, 2 side by side": 1, "units": (2, 3, 4)}
    # The fastest in one process, by luck
    seconds |= {"layers, chunks of 8, 2 side by side": (0.5, 9, 9), "one thread": 0.1}
    made = rows(seconds, by="variant", L=4, H=64, B=1)
    found = divisions.compared(made, ("layers",), divisions.STEP)
    assert found.loc[(4, 64, 1)].to_list() == [2.0, 3.0, 4.0]
    assert divisions.compared(made, ("one thread",), ("units",))["high"].item() == 40.0


@two_cores
def test_every_division_is_timed_and_checked(monkeypatch):
    sizes = {"samples": (2,), "T": 4, "repeats": 1}
    made = divisions.measure((2,), (32,), **sizes)
    assert {"one thread", "units", "samples"} <= set(made["variant"])
    assert made["variant"].str.startswith("layers, chunks").any()
    right = divisions.forward
    monkeypatch.setattr(divisions, "forward", lambda *a: (1.001 * right(*a)[0],))
    with pytest.raises(AssertionError, match="y: relative error"):
        divisions.measure((1,), (32,), **sizes)


@two_cores
def test_stacks_are_checked_before_they_are_timed(monkeypatch):
    sizes = {"layers": (2, 4), "lengths": (3, 6), "chunk": 6, "T": 12, "H": 16}
    made = page.measure_stacks(repeats=1, **sizes)
    assert len(made) == 2 * (2 + 4 + 1)
    assert {line.makespan for line in made["line"]} == set(made["seconds"])
    right = NumbaWavefront.forward
    wrong = lambda self, x, **how: (1.001 * right(self, x, **how)[0], None)  # noqa: E731
    monkeypatch.setattr(NumbaWavefront, "forward", wrong)
    with pytest.raises(AssertionError, match="y: relative error"):
        page.measure_stacks(repeats=1, **sizes)

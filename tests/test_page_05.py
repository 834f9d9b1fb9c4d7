"""Page 05, its own cells on made rows."""

import numpy as np
import pandas as pd
import pytest
from pages import Page, bars, machine, of_card, rows
from planted import planted

from lstm_kernels.cores import cores
from lstm_kernels.schedules import Costs, Graph, Schedule, layer_by_layer, wavefront
from lstm_kernels.simulate import Span, Timeline, simulate
from lstm_report.experiments import partitions
from lstm_report.measure.comparer import MismatchError

PAGE = Page("05_layers")
page = PAGE.module
T, STEPS = 2 * page.CHUNK, (2e-6, 3e-6, 7e-6)  # seconds of a step, by process


def longer(line, times):
    """A Timeline in which everything takes so many times as long."""
    spans = [s._replace(start=times * s.start, stop=times * s.stop) for s in line.spans]
    return Timeline(line.schedule, tuple(spans))


def stacks(slow=(1.0, 1.03, 1.07), back=(1.1, 1.13, 1.17)):
    """Rows as `measure_stacks` gives them: passes on two threads take `slow`, backward
    `back`, times as long as costs of one step and a hand-over of 110 ns say.
    """
    made = []
    keys = [("one", 4, 1, T), ("one", 8, 1, T), ("streams", 8, 1, 24)]
    keys += [("workers", 4, 2, 24), ("workers", 8, 2, 24)]
    for stage, factors in (("forward", slow), ("backward", back)):
        for way, L, threads, C in keys:
            graph = Graph(L, T, backward=stage == "backward")
            plan = wavefront(graph, threads, C, together=threads)
            plan = layer_by_layer(graph) if way == "one" else plan
            for process, (step, factor) in enumerate(zip(STEPS, factors, strict=True)):
                line = simulate(plan, Costs((step,) * L, hand=1.1e-7))
                line = longer(line, factor) if way == "workers" else line
                key = way, L, threads, C, stage, process, 0, T, 19
                made.append((*key, line.makespan, line))
    names = [*page.KEYS, "stage", "process", "repeat", "T", "H", "seconds", "line"]
    return pd.DataFrame(made, columns=names)


def gaining(gain):
    """Rows in which two threads are so many times as fast, with eight layers."""
    least = stacks(slow=(1, 1, 1)).query("L == 8 and stage == 'forward'")
    took = least.groupby(["way", "process"])["seconds"].first()
    return stacks(slow=(took["one"] / took["workers"] / np.array(gain)).to_list())


def divided(small=(0.5, 0.7, 0.9), large=(1.1, 1.3, 1.7)):
    """Rows as `measure_partitions` gives them; seconds of layers at both ends of the
    map, where units take one second.
    """
    shapes = {(4, 32, 1, 10): small, (4, 64, 1, 10): large, (8, 64, 1, 96): 0.625}
    parts = [
        rows(
            {"layers, chunks of 3": layers, "units": 1.0, "one thread": 2.3},
            by="variant",
            **dict(zip("LHBT", shape, strict=True)),
        )
        for shape, layers in shapes.items()
    ]
    return pd.concat(parts, ignore_index=True)


def on_card():
    """Of 2 and 8 layers, so many milliseconds."""
    took = {2: (20, 12, 3, 8), 8: (84, 24, 6, 9)}
    parts = []
    for L, (turn, wave, cpu, persistent) in took.items():
        times = {"layers_in_turn": turn, "wavefront": wave, "numba-wavefront": cpu}
        times = {name: ms / 1e3 for name, ms in times.items()}
        parts.append(of_card("layers", "inference", times, L=L))
        times = {"cuda-persistent": persistent / 1e3}
        parts.append(of_card("deep", "forward", times, L=L))
    return pd.concat(parts)


def made(slow=(1.0, 1.03, 1.07), **of_map):
    return {
        "gpu": on_card(),
        "several_cores": True,
        "cache": 40 * 1024,  # of a core; W of 64 units has 64 KiB
        "measure_stacks": stacks(slow),
        "measure_machine": machine(line=(1.7e-7, 1.9e-7, 2.3e-7)),
        "measure_partitions": divided(**of_map),
    }


CASES = {
    "as expected": (
        made(),
        "TTT",
        "| 8 layers, chunks of 24 | 1.78x | 1.72x (1.66x to 1.77x) | 1.57x",
        "cache line takes 170 ns (115 to 380)",
        "off by -2.91 % (-6.54 to ",
        "an L2 cache (0.0391 MiB) (1.43x (1.11x to 2x); 23.1 % slower",
        "| GPU, `cuda-persistent` | 8 | 9 |",
        "| a chunk at each end: the bound | 0.072 | 1.78x |",
        "| longer tasks | 0.0194 | 1.73x |",
        "| sum = measured | 0.668 | 1.72x |",
    )
}
EDGES = [
    (0, ("most", 1.25), lambda times: made(slow=times)),  # of what is allowed 80 %
    (1, ("most", 1 / 0.9), lambda times: made(slow=[times[1]] * 3)),
    (1, 1 / 1.1, lambda times: made(slow=[times[1]] * 3)),
    (2, ("most", 1.1), lambda seconds: made(small=seconds)),  # that of 64 units
    (2, 1, lambda seconds: made(large=seconds)),
]
test_page, test_edge, test_all = PAGE.tests(__file__, CASES, EDGES)


def test_the_bound_and_the_steps_of_schedules_are_the_simulators():
    page.check_bound(8, 4, 24, 3)
    with pytest.raises(MismatchError, match="simulate: got"):
        page.check_bound(3, 2, 24, 24)  # 2 does not divide 3
    assert page.steps(page.schedules()) == ["192", "120", "100"]


def test_only_workers_that_were_idle_have_waited():
    plan = wavefront(Graph(2, 4), 2, 2, together=2)

    def waited(*workers):
        times = (0.0, 2.0), (2.0, 4.0), (2.5, 4.5), (4.5, 6.5)
        pairs = zip(workers, times, strict=True)
        spans = (Span(i, worker, *span) for i, (worker, span) in enumerate(pairs))
        return page.waits(Timeline(plan, tuple(spans)))

    # The last one waited for nothing: its own worker was busy until 4.5
    assert waited(0, 0, 1, 1) == pytest.approx([0.5])
    assert waited(0, 0, 0, 0) == []


def test_figures_have_measured_points_with_their_range_and_colours_of_who_wins():
    ends = bars(page.figure_workers(stacks()).axes[0])
    want = [(1.4945, 1.5997), (1.6594, 1.7737)]
    np.testing.assert_allclose(ends, want, rtol=1e-2)
    ax = page.figure_map(page.map_of(divided(), 10)).axes[0]
    drawn = ax.collections[0].get_array()
    assert drawn[0].tolist() == pytest.approx([np.log2(1 / 0.7), np.log2(1 / 1.3)])
    titles = page.plots.words(page.figure_schedules(page.schedules()))
    assert "Chunks of 24 steps: 120 steps, idle 20.2 %" in titles
    assert "worker 1 at 3" in page.plots.words(page.figure_grid())


def test_a_wrong_schedule_is_refused_and_a_division_chosen():
    """The tasks that the solution of the exercise names may change places."""
    good = wavefront(Graph(4, 12), 2, 3, together=2)
    tasks = list(good.tasks)
    tasks[0], tasks[8] = tasks[8], tasks[0]
    said = page.refused(Schedule(good.graph, tuple(tasks)))
    assert "task 0 on worker 0 waits for what is never done" in said
    with pytest.raises(AssertionError, match="took a wrong"):
        page.refused(good)
    assert page.chosen(8) in ("one thread", "units") or "layers" in page.chosen(8)


@pytest.mark.skipif(cores() < 2, reason="two threads need two cores")
def test_stacks_and_partitions_are_checked_before_they_are_timed():
    sizes = {"layers": (2, 4), "lengths": (3, 24), "T": 24, "H": 16, "repeats": 1}
    assert set(page.measure_stacks(**sizes)["way"]) == {"one", "workers", "streams"}
    few = {"layers": (2,), "units": (32,), "samples": (2,), "T": 4, "repeats": 1}
    tried = set(partitions.measure(**few)["variant"])
    assert {"one thread", "units", "samples"} <= tried
    wrong = planted(page, '"y": y}', '"y": 1.001 * y}').measure_stacks
    with pytest.raises(AssertionError, match="y: relative error"):
        wrong(**sizes)
    wrong = planted(partitions, "call()[0]}", "1.001 * call()[0]}").measure
    with pytest.raises(AssertionError, match="y: relative error"):
        wrong(**few)

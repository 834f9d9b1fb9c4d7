"""Page 05 on synthetic rows, its figures and its checks."""

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
ABOUT = {"cpu": "Host", "cores": 13, "vectors": "", "date": "2026-01-02"}
ABOUT |= {"gpu": {"name": "Card", "driver": "1.2", "multiprocessors": 7}}
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


def divided(few=(0.5, 0.7, 0.9), many=(1.1, 1.3, 1.7)):
    """Rows of `partitions.measure`; seconds of layers at both ends of the map, where
    units take one second.
    """
    parts = [
        rows(
            {"layers, chunks of 3": layers, "units": 1.0, "one thread": 2.3},
            by="variant",
            **dict(zip("LHBT", (4, units, 1, 10), strict=True)),
        )
        for units, layers in ((32, few), (64, many))
    ]
    return pd.concat(parts, ignore_index=True)


def on_card():
    """Of so many layers, milliseconds: the GPU's in turn and at the same time, the
    cores of its host, `numba-fused`.
    """
    names = "layers_in_turn", "wavefront", "numba-wavefront", "numba-fused"
    parts = []
    for L, took in {1: (11, 13, 2, 1.7), 8: (84, 24, 6, 9)}.items():
        times = {name: ms / 1e3 for name, ms in zip(names, took, strict=True)}
        parts.append(of_card("layers", "inference", times, L=L, T=96, H=24))
    return pd.concat(parts)


def made(slow=(1.0, 1.03, 1.07), **of_map):
    return {
        "gpu": on_card(),
        "about": ABOUT,
        "rates": (1.7, 3e3),
        "several_cores": True,
        "measure_stacks": stacks(slow),
        "measure_machine": machine(line=(1.7e-7, 1.9e-7, 2.3e-7)),
        "measure": divided(**of_map),
    }


EDGES = [
    (0, ("most", 1 / 0.95), lambda times: made(slow=times)),
    (1, ("most", 1.0), lambda seconds: made(few=seconds)),
    (1, 0.9, lambda seconds: made(many=seconds)),
]
test_text, test_edge, test_all = PAGE.approved(made(), EDGES)


def test_the_bound_is_the_simulators():
    page.check_bound(8, 4, 24, 3)
    with pytest.raises(MismatchError, match="simulate: got"):
        page.check_bound(3, 2, 24, 24)  # 2 does not divide 3


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


def test_what_a_pass_on_two_threads_lost_adds_up():
    """Of the process of step 3 us: 8 layers of 48 steps, chunks of 24."""
    lost = page.losses(stacks(slow=(1.0, 1.0, 1.0)).query("process == 1"))
    step = 3e-6
    assert lost["half of one thread's time"] == pytest.approx(192 * step)
    assert lost["idle ends: the bound"] == pytest.approx(24 * step)
    assert abs(lost["longer tasks"]) < 1e-9
    assert 0 < lost["synchronisation"] < 8 * 1.1e-7


def test_figures_have_points_with_their_range_bounds_and_colours_of_who_wins():
    page.plots.style()
    host = page.on_host(on_card())
    assert host.loc[8].tolist() == pytest.approx([8 * 2 / 6, page.bound(8, 8, 96, 3)])
    (ax,) = page.figure_cores(stacks(), host).axes
    want = [(1.4945, 1.5997), (1.6594, 1.7737)]
    np.testing.assert_allclose(bars(ax), want, rtol=1e-2)
    table = partitions.compared(divided(), ("layers",), partitions.STEP)
    (ax,) = page.figure_map(table).axes
    drawn = ax.collections[0].get_array()
    assert drawn[0].tolist() == pytest.approx([np.log2(1 / 0.7), np.log2(1 / 1.3)])
    titles = page.plots.words(page.figure_schedules())
    assert "Chunks of 24 steps: 120 steps, idle 20.2 %" in titles
    assert "worker 1 at 3" in page.plots.words(page.figure_grid())


def test_a_wrong_schedule_is_refused():
    good = wavefront(Graph(4, 12), 2, 3, together=2)
    tasks = list(good.tasks)
    tasks[0], tasks[8] = tasks[8], tasks[0]
    said = page.refused(Schedule(good.graph, tuple(tasks)))
    assert "task 0 on worker 0 waits for what is never done" in said
    with pytest.raises(AssertionError, match="accepted a wrong"):
        page.refused(good)


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

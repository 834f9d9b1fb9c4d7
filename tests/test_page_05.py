"""Page 05: its models, figures, tables and claims on made rows, on both sides of every
condition.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from pages import functions

from lstm_kernels.cores import cores
from lstm_kernels.schedules import Costs, Graph, check, layer_by_layer, wavefront
from lstm_kernels.simulate import Span, Timeline, simulate
from lstm_kernels.versions.numba_wavefront import NumbaWavefront
from lstm_report import plots
from lstm_report.experiments import divisions
from lstm_report.measure.evidence import Interval

page = functions("05_layers")
two_cores = pytest.mark.skipif(cores() < 2, reason="two threads need two cores")
C, T = page.CHUNK, 2 * page.CHUNK


def gain(**of):
    """Rows as `gains` gives them: forward_8=(...) is a value for each process."""
    rows = [
        (process, name.partition("_")[0], int(name.partition("_")[2]), C, value)
        for name, values in of.items()
        for process, value in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=["process", "stage", "L", "C", "gain"])


DEEP = {"forward_4": (1.9, 1.6), "forward_8": (1.7, 1.8), "backward_8": (1.61, 1.65)}


def passes(costs, slower=1.0):
    """Rows as `measure_stacks` gives them, that last what costs of one layer say; those
    on two threads `slower` times as long.
    """
    keys = [(2, 1, 2), (2, 1, C), (2, 1, T), (4, 1, T), (2, 2, C), (4, 2, C), (4, 2, 2)]
    rows = []
    for process, stage in ((0, "forward"), (0, "backward"), (1, "forward")):
        for L, threads, length in keys:
            graph = Graph(L, T, backward=stage == "backward")
            plan = wavefront(graph, threads, length, together=threads)
            plan = layer_by_layer(graph) if length == T else plan
            every = Costs(costs.step * L, task=costs.task, hand=costs.hand)
            line = simulate(plan, every)
            far = slower if threads == 2 else 1.0
            spans = [
                s._replace(start=far * s.start, stop=far * s.stop) for s in line.spans
            ]
            line = Timeline(plan, tuple(spans))
            rows.append((process, stage, L, threads, length, 0, line.makespan, line))
    names = ["process", "stage", "L", "threads", "C", "repeat", "seconds", "line"]
    return pd.DataFrame(rows, columns=names)


COSTS = Costs((2e-6,), task=5e-6, hand=1e-7)


def test_the_model_gives_back_the_costs_of_its_passes_and_predicts_them():
    rows = passes(COSTS)
    found = page.fitted(rows)
    assert set(found) == {(0, "forward"), (0, "backward"), (1, "forward")}
    for costs in found.values():
        assert costs.step[0] == pytest.approx(2e-6)
        assert (costs.task, costs.hand) == pytest.approx((5e-6, 1e-7))
    assert page.errors(rows, found) == pytest.approx(np.zeros(9), abs=1e-9)
    half = page.errors(passes(COSTS, slower=2.0), found)
    assert half == pytest.approx(np.full(9, -0.5), abs=1e-9)


def test_only_workers_that_were_idle_have_waited():
    plan = wavefront(Graph(2, 4), 2, 2, together=2)
    tasks = [(task.layer, task.start) for task in plan.tasks]
    assert tasks == [(0, 0), (0, 2), (1, 0), (1, 2)]

    def line(*spans):
        return Timeline(plan, tuple(Span(i, *span) for i, span in enumerate(spans)))

    ends = (0, 0.0, 2.0), (0, 2.0, 4.0), (1, 2.5, 4.5), (1, 4.5, 6.5)
    # The last one waited for nothing: its own worker was busy until 4.5
    assert page.waits(line(*ends)) == pytest.approx([0.5])
    alone = [(0, *span[1:]) for span in ends]
    assert page.waits(line(*alone)) == []


def test_two_threads_are_compared_with_one_layer_by_layer():
    found = page.gains(passes(Costs((1.0,))))
    assert set(found["L"]) == {2, 4}
    assert found["stage"].iloc[0] == "forward"
    # Two layers of two chunks: three chunks last instead of four; four layers, 5 of 8.
    of = found[found["C"] == C].groupby("L")["gain"].median()
    assert of.to_dict() == pytest.approx({2: 4 / 3, 4: 8 / 5})
    assert page.stretched(passes(COSTS)).middle > 1  # more tasks begin
    assert page.stretched(passes(Costs((1.0,)), slower=1.5)).middle == pytest.approx(
        1.5
    )


def test_the_deep_stacks_have_to_reach_four_fifths_in_every_process():
    told = page.claim_gains(gain(**DEEP), Interval(1.1, 1.2, 1.3), C)
    assert told["held"]
    assert "forward, 4 layers: 1.75x (1.6x to 1.9x)" in told["numbers"]
    assert "1.2 (1.1 to 1.3) times as long" in told["why"]
    shallow = {"forward_2": (1.0, 1.1)}
    assert page.claim_gains(gain(**DEEP, **shallow), Interval(1, 1, 1), C)["held"]
    for name in DEEP:
        slow = DEEP | {name: (1.9, 1.59)}
        assert not page.claim_gains(gain(**slow), Interval(1, 1, 1), C)["held"], name


def test_the_gains_are_drawn_under_their_bound():
    shallow = {
        "forward_1": (1.0, 1.0),
        "forward_2": (1.5, 1.5),
        "backward_4": (1.7, 1.7),
    }
    figure = page.figure_gains(gain(**DEEP, **shallow), C, T)
    (ax,) = figure.axes
    assert ax.get_title("left") == "Two threads, four layers and more: 1.6x to 1.9x"
    assert (ax.get_xlabel(), ax.get_xscale()) == ("layers", "log")
    assert ax.get_ylabel() == "speed-up of two threads over one"
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1", "2", "4", "8"]
    bound = next(line for line in ax.lines if line.get_linestyle() == "--")
    assert bound.get_ydata() == pytest.approx([1, 4 / 3, 8 / 5, 16 / 9])
    drawn = {tuple(line.get_ydata()) for line in ax.lines}
    assert {(1.0, 1.5, 1.75, 1.75), (1.7, 1.63)} <= drawn
    names = {text.get_text() for text in ax.texts}
    assert names == {"min(L, P) = 2", "bound of\nthe schedule", "forward", "backward"}
    assert "against layers on a log axis" in plots.words(figure)
    plt.close(figure)


def test_the_predicted_and_the_measured_run_are_drawn():
    rows = passes(Costs((1e-3,)), slower=2.0)
    costs = {(0, "forward"): Costs((1e-3,))}
    figure = page.figure_gantt(rows, costs, C)
    titles = [ax.get_title("left") for ax in figure.axes]
    predicted, measured = 5 * C, 10 * C  # ms: 4 layers of two chunks on two workers
    assert titles[0].startswith(f"Predicted: {predicted} ms, idle 20.0%")
    assert titles[1].startswith(f"Measured: {measured} ms, idle 20.0%")
    assert figure.axes[1].get_xlabel() == "ms; a number is the layer of a task"
    lanes = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert lanes == ["worker 0", "worker 1"]
    assert [len(ax.patches) for ax in figure.axes] == [8, 8]
    assert "a lane per worker" in figure.alt
    plt.close(figure)


def test_the_explorer_has_three_schedules_on_as_many_workers():
    check(page.layer_after_layer(Graph(5, 3)))
    figure = page.figure_explorer()
    titles = [ax.get_title("left").partition(",")[0] for ax in figure.axes]
    assert titles[0] == "Layer by layer: 192 steps"
    assert titles[1] == "Chunks of 24 steps: 120 steps"
    assert {len(ax.get_yticks()) for ax in figure.axes} == {2}
    plt.close(figure)
    assert page.best_chunk(0.0, L=2, T=6, workers=2) == (1, 7.0)
    assert page.best_chunk(100.0, L=2, T=6, workers=2)[1] <= 12


def test_the_chunk_lengths_and_the_goals_are_tabled():
    rows = gain(forward_8=(1.7, 1.9), backward_8=(0.9, 1.2))
    lines = page.table_lengths(rows, T).splitlines()
    assert lines[2] == f"| {C} | 1.78x | 1.8x (1.7x to 1.9x) | level (0.9x to 1.2x) |"
    told = page.table_goals(rows, C)
    assert "some speed-up over layers | reached: 1.8x (1.7x to 1.9x), 8 layers" in told
    assert "| 90% of min(L, P) = 2; more cores are not measured |" in told
    assert "parallel backpropagation | not reached: level (0.9x to 1.2x) |" in told
    assert told.count("not measured yet") == 2


def shapes(**of):
    """A table of intervals by (L, H, B): h64_b1=(low, middle, high)."""
    keys = [tuple(int(part[1:]) for part in name.split("_")) for name in of]
    index = pd.MultiIndex.from_tuples(
        [(4, *key) for key in keys], names=["L", "H", "B"]
    )
    return pd.DataFrame(of.values(), index, columns=["low", "middle", "high"])


def test_a_shape_is_won_only_by_the_whole_interval():
    won, lost = (1.01, 2.0, 2.1), (0.4, 0.5, 0.99)
    level = (0.99, 1.5, 2.0)
    table = shapes(h64_b1=won, h64_b4=level, h512_b1=lost, h512_b4=(0.5, 0.8, 1.0))
    figure = page.figure_map(table)
    (ax,) = figure.axes
    assert (
        ax.get_title("left") == "Layers faster in 1 of 4 shapes, steps in 1, level in 2"
    )
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("hidden units", "samples")
    texts = {text.get_position(): text.get_text() for text in ax.texts}
    assert (texts[0, 0], texts[1, 0]) == ("2.00x", "0.50x")
    assert texts[0, 1] == texts[1, 1] == "level"
    assert ax.images[0].get_array().tolist() == [[1.0, -1.0], [0.0, 0.0]]
    plt.close(figure)

    assert page.claim_map(table, 64, 512, "why")["held"]
    said = page.claim_map(table, 64, 512, "why")
    assert said["numbers"].startswith("64 units: 2x (1.01x to 2.1x); 512 units: 50 %")
    for name, near in (("h64_b1", (1.0, 2.0, 2.1)), ("h512_b1", (0.4, 0.5, 1.0))):
        other = shapes(**{"h64_b1": won, "h512_b1": lost, name: near})
        assert not page.claim_map(other, 64, 512, "why")["held"], name


def test_more_than_two_cores_give_is_told_only_where_all_processes_say_so():
    across = Interval(1.2, 1.3, 1.4)
    told = page.sentence_caches(512, Interval(2.01, 2.5, 2.6), across, 2.0)
    assert "has 4 MiB and a core's L2 cache 2 MiB" in told
    assert "2.5 (2.01 to 2.6) times as fast as one thread, more than two cores" in told
    assert "1.3 (1.2 to 1.4) times" in told
    told = page.sentence_caches(512, Interval(2.0, 2.5, 2.6), across, 2.0)
    assert "more than two cores" not in told


def test_kinds_of_division_are_compared_by_what_all_processes_find_fastest():
    seconds = {
        "layers, chunks of 3, 2 side by side": (1.0, 1.0),
        "layers, chunks of 8, 2 side by side": (0.5, 9.0),  # by luck, in one process
        "units": (2.0, 4.0),
        "one thread": (0.1, 0.1),
    }
    rows = pd.DataFrame(
        [
            (4, 64, 1, name, process, 0, value)
            for name, values in seconds.items()
            for process, value in enumerate(values)
        ],
        columns=["L", "H", "B", "variant", "process", "repeat", "seconds"],
    )
    found = divisions.compared(rows, ("layers",), divisions.STEP)
    assert found.loc[(4, 64, 1)].to_list() == [2.0, 3.0, 4.0]
    assert divisions.compared(rows, ("one thread",), ("units",))["high"].item() == 40.0


@two_cores
def test_every_division_is_timed_and_checked(monkeypatch):
    rows = divisions.measure((2,), (32,), (2,), T=4, repeats=1)
    assert {"one thread", "units", "samples"} <= set(rows["variant"])
    assert rows["variant"].str.startswith("layers, chunks").any()
    right = divisions.forward
    monkeypatch.setattr(divisions, "forward", lambda *a: (1.001 * right(*a)[0],))
    with pytest.raises(AssertionError, match="y: relative error"):
        divisions.measure((1,), (32,), (2,), T=4, repeats=1)


@two_cores
def test_the_stacks_are_checked_before_they_are_timed(monkeypatch):
    sizes = {"layers": (2, 4), "lengths": (3, 6), "chunk": 6, "T": 12, "H": 16}
    rows = page.measure_stacks(repeats=1, **sizes)
    assert len(rows) == 2 * (2 + 4 + 1)
    assert (rows["seconds"] > 0).all()
    assert {line.makespan for line in rows["line"]} == set(rows["seconds"])
    right = NumbaWavefront.forward
    wrong = lambda self, x, **how: (1.001 * right(self, x, **how)[0], None)  # noqa: E731
    monkeypatch.setattr(NumbaWavefront, "forward", wrong)
    with pytest.raises(AssertionError, match="y: relative error"):
        page.measure_stacks(repeats=1, **sizes)

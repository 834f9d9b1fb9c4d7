"""The lab: right schedules are right in several forms, likely mistakes get the hint that
fits, and what is shown is predicted, run and compared.
"""

import re
from itertools import accumulate
from types import SimpleNamespace

import notebook_rules as rules
import numpy as np
import pytest
from form import problems_of_code, problems_of_form
from hypothesis import given
from hypothesis import strategies as st
from pages import has, text_of
from planted import planted
from test_lesson import Page, edited, exercises_of, run

from lstm_kernels.cores import cores
from lstm_kernels.schedules import Costs, Graph, Schedule, Task, check, wavefront
from lstm_kernels.simulate import simulate
from lstm_report import plots
from lstm_report.experiments import timelines
from lstm_report.lesson import exercises, lab, plans
from lstm_report.lesson.plans import PLANS
from lstm_report.measure import MismatchError
from lstm_report.measure.workloads import Workload

BOOK, STUBS, SOLUTIONS = exercises_of("lab", PLANS)
COSTS = Costs((1e-5,) * 4, task=1e-6, hand=2e-6)
WORK = Workload(L=4, T=9, D=5, H=5, B=1)


@pytest.fixture
def fixed(monkeypatch):
    """Costs that need no measurement."""
    monkeypatch.setattr(lab, "measured_costs", lambda *_: (COSTS, ""))


def grade(source, strict=True, **names):
    """Run an exercise's cell; returns the lab and what it said last."""
    page = Page()
    page.shown = []
    page.show = lambda *words: page.shown.append(words)
    one = lab.Lab(page, WORK, strict=strict, threads=1)
    run(source, {"Task": Task, "lab": one, "Schedule": Schedule} | names)
    return one, page.said[-1]


def test_an_exercise_with_blanks_is_open(fixed):
    for name, source in STUBS.items():
        message = f"Exercise {PLANS[name].number} is open. Hint: {PLANS[name].hint}."
        with pytest.raises(exercises.Open, match=re.escape(message)):
            grade(source)
        one, said = grade(source, strict=False)
        assert said == message
        one.score()
        assert one._nb.said[-1] == "Exercises solved: 0 of 4."


ONE, LAYERS, WAVE, OWN = SOLUTIONS.values()
LOOP = "for layer in range(graph.layers):\n"
APPEND = "tasks.append(Task(layer, 0, graph.steps))"
STEP_BY_STEP = """for step in range(graph.steps):
        tasks += [Task(layer, step, step + 1) for layer in range(graph.layers)]
"""
BY_TURNS = """for start in range(0, graph.steps, chunk):
        for layer in range(graph.layers):
"""
NESTED = "for layer in range(graph.layers):\n        for start in range(0, graph.steps, chunk):\n"
KEY = "task.layer + task.start // chunk"
RIGHT = {
    "one": [
        [],
        [(LOOP + "        " + APPEND + "\n", STEP_BY_STEP)],
        [("return tasks", "return tuple(graph.tasks(min(7, graph.steps)))")],
    ],
    "layers": [
        [],
        [("layer % 2", "1 - layer % 2")],
        [("layer % 2", "layer * 2 // graph.layers")],
        [(LOOP, LOOP + "        half = graph.steps // 2\n")],
        [("layer % 2", "layer % 2 == 1")],
        [("layer % 2", "__import__('numpy').int32(layer % 2)")],
    ],
    "wave": [
        [],
        [("chunk = 8", "chunk = 1")],
        [(NESTED, BY_TURNS), ("layer % 2", "layer * 2 // graph.layers")],
    ],
    "own": [
        [],
        [("place % workers", "task.layer % workers")],
        [(KEY, f"({KEY}, -task.layer)"), ("place %", "(place + 1) %")],
    ],
}
ANSWERS = [
    (name, edited(SOLUTIONS[name], changes))
    for name, every in RIGHT.items()
    for changes in every
]


@pytest.mark.parametrize(("name", "source"), ANSWERS)
def test_right_answers_are_right(fixed, name, source):
    one, said = grade(source)
    assert re.match(rf"Exercise {PLANS[name].number} is right: \d+ tasks", said)
    one.score()
    assert one._nb.said[-1] == f"Exercises solved: 1 of 4: {PLANS[name].number}."


HALVES = """
    half = graph.layers // 2
    for layer in range(half):
        for worker in range(2):
            tasks.append(Task(layer + worker * half, 0, graph.steps, worker))
    return tasks


lab.grade"""
# What of a solution becomes what, and what the message must say.
PLANTED = {
    "one": [
        ("    return tasks\n", "", "it returns nothing. Hint: `return tasks`"),
        ("return tasks", "return tasks[0]", "returns one Task. Hint: a list"),
        ("return tasks", "return iter(tasks)", "returns a list_iterator, want a list"),
        ("return tasks", "return (t for t in tasks)", "generator. Hint: put its tasks"),
        ("return tasks", "return Schedule(graph, tuple(tasks))", "which the lab makes"),
        (
            "return tasks",
            "return [(0, 0, 9)]",
            r"element 0 is `\(0, 0, 9\)`, want `Task",
        ),
        ("return tasks", "return []", r"`schedule: cell \(0, 0\).*no task at all"),
        ("range(graph.layers)", "range(1, graph.layers)", "Hint: layers count from 0"),
        ("range(graph.layers)", "range(graph.layers - 1)", "no task of layer 3; range"),
        ("range(graph.layers)", "range(graph.layers + 1)", "to graph.layers - 1"),
        ("range(graph.layers)", "range(graph.layers)[::-1]", "lower layers first"),
        ("range(graph.layers)", "graph.layers", "TypeError: `'int' object is not"),
        ("layer, 0,", "layer, 1,", r"cell \(0, 0\) is computed never.*steps count"),
        ("graph.steps)", "graph.steps - 1)", r"cell \(0, 99\).*one past the last"),
        ("graph.steps)", "graph.steps + 1)", "inside the graph`.*stop is at most"),
        ("0, graph.steps)", "graph.steps, 0)", "start is less than its stop"),
        ("graph.steps)", "graph.steps, 1)", "on worker 1, want 0 to 0. Hint: workers"),
        ("graph.steps)", "graph.steps / 1)", "stop of task 0 is `100.0`.*`//` divides"),
        ("graph.steps)", "graph.steps, 0, (0, 1))", "blocks or samples, want whole"),
        (
            f"{LOOP}        {APPEND}",
            "for t in graph.tasks(1)[::-1]:\n        tasks.append(t)",
            r"worker 0 is at task 0 \(layer 3, steps 99 to 99\) and waits for task 1 .*which "
            "comes later in the list of worker 0. Hint: steps go up",
        ),
    ],
    "layers": [
        (
            "layer % 2",
            "1 + layer % 2",
            "is on worker 2, want 0 to 1. Hint: workers count from 0",
        ),
        (
            "layer % 2",
            "layer // 2",
            "5, steps 7, workers 2: a task is on worker 2, .*for any number of",
        ),
        ("layer % 2", "[0, 0, 1, 1][layer]", "also called with other numbers of lay"),
        ("layer % 2", "None", "worker of task 0 is `None`, want an integer"),
        ("layer % 2", "layer / 9", "worker of task 0 is `0.0`.*Hint: a task has integ"),
        ("return tasks", "return tasks + tasks", "in the list more than once"),
        ("graph.layers)", "4)", r"5, .*\(4, 0\).*no task of layer 4; range"),
        ("return tasks", "    return tasks", "layer 0 alone is there; is `return` in"),
        ("return tasks", "while True: pass", "has not ended after 2000000 instr"),
        ("layer % 2", "layer - layer", "one worker has every task, want 2. Hint: give"),
        (
            "layer % 2",
            "-(layer % 2)",
            "is on worker -1, want 0 to.*workers count from 0",
        ),
        (
            LOOP,
            LOOP + "        tasks.append(Task(layer, 0, graph.steps, 1 - layer % 2))\n",
            r"cell \(0, 0\) is computed twice.*every worker has every cell",
        ),
        (
            "    return tasks\n\n\nlab.grade",
            HALVES,
            "twice.*a task is in the list more than once",
        ),
        (
            f"\n    {LOOP}        tasks.append(Task(layer, 0, graph.steps, worker=layer % 2))\n"
            "    return tasks\n\n\nlab.grade",
            HALVES,
            r"5, steps 7, workers 2: .*\(4, 0\) is.*and an odd number has no half",
        ),
        (
            "return tasks",
            "return tasks[::-1]",
            r"worker 0 is at task 1 \(layer 2, steps 0 to 99\) and waits for task 2 "
            r"\(layer 1, steps 0 to 99\), which comes later in the list of worker 1; "
            r"worker 1 is at task 0 \(layer 3, .*\) and waits for task 1 \(layer 2, "
            r"steps 0 to 99\), where worker 0 is. Hint: ",
        ),
    ],
    "wave": [
        (
            "chunk = 8",
            "chunk = graph.steps",
            "reaches 50 % of the bound, want 75 %.*in ch",
        ),
        ("chunk = 8", "chunk = graph.steps // 10", "also a short sequence.*max"),
        ("chunk = 8", "chunk = graph.steps / 10", "'float' object.*`//` divides"),
        (
            "layer % 2",
            "layer * 2 // graph.layers",
            "64.. % of the.*Hint: in chunks, neigh",
        ),
        (
            "min(start + chunk, graph.steps)",
            "start + chunk",
            "chunk may be shorter: min",
        ),
        ("min(start + chunk", "min(start + chunk - 1", r"cell \(0, 7\).*one past the"),
        (
            "min(start + chunk",
            "min(start + chunk + 1",
            r"cell \(0, 8\) is.*twice.*one past",
        ),
        (
            "range(0, graph.steps, chunk)",
            "range(0, graph.steps // chunk * chunk, chunk)",
            r"cell \(0, 96\) is computed never.*the last chunk is missing",
        ),
        (
            NESTED,
            BY_TURNS,
            "reaches 64.9 % of the bound, .*each of which finishes a layer",
        ),
        (
            "range(0, graph.steps, chunk)",
            "range(0, graph.steps, chunk)[::-1]",
            "steps 88 to 95.*Hint: steps go up",
        ),
        (
            "return tasks",
            "return sorted(tasks, key=lambda task: (task.worker, -task.layer))",
            "worker 0 is at.*worker 1 is at.*lower layers first",
        ),
        ("return tasks", "return tasks if graph.steps > 7 else []", "no task at all"),
    ],
    "own": [
        (
            "min(4, graph.steps)",
            "4",
            "1, steps 1, w.*chunk: got 4.*min.chunk, gr",
        ),
        ("% workers", "% 4", "workers 2: a task is on worker 3"),
        ("% workers", "% 1", "one worker has every task, want 2"),
        (KEY, "-task.layer", "Hint: a worker takes its tasks in the order of the list"),
        (
            "enumerate(order)]",
            "enumerate(order[1:])]",
            r"cell \(0, 0\).*have 296 cells, the graph has 300",
        ),
    ],
}
MISTAKES = [(name, *how) for name, every in PLANTED.items() for how in every]


@pytest.mark.parametrize(("name", "old", "new", "hint"), MISTAKES)
def test_a_planted_mistake_gets_its_hint(fixed, name, old, new, hint):
    source = edited(SOLUTIONS[name], [(old, new)])
    number = PLANS[name].number
    says = rf"^Exercise {number} is not right yet: with layers .*{hint}"
    with pytest.raises(exercises.Wrong, match=says) as raised:
        grade(source)
    assert raised.value._render_traceback_() == [str(raised.value)]
    one, said = grade(source, strict=False)
    assert said == str(raised.value)
    assert not one._solved


def test_lists_that_cross_are_a_circle_although_each_is_possible():
    crossed = [Task(1, 4, 6, 0), Task(2, 0, 2, 0), Task(3, 0, 2, 1), Task(0, 4, 6, 1)]
    rest = [
        t
        for t in Graph(4, 6).tasks(2)
        if t not in {x._replace(worker=0) for x in crossed}
    ]
    tasks = (*(t._replace(worker=2) for t in rest), *crossed)
    with pytest.raises(exercises.Wrong, match="Hint: let all workers follow one order"):
        plans.checked(PLANS["own"], lambda graph, workers: tasks, Graph(4, 6), 3)
    assert timelines.circle(wavefront(Graph(4, 6), 2, 2)) == ""


def test_bad_input_is_refused(fixed):
    one, _ = grade(ONE)
    for call, words, message in (
        (one.grade, ("two", len), "name: got 'two'"),
        (one.grade, ("one", [Task(0, 0, 1)]), "function: got list, want a function"),
        (one.guess, ("one", 1), "name: got 'one'"),
        (one.guess, ("wave", -1), "guess: got -1"),
        (one.result, ("none",), "name: got 'none'"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            call(*words)


shapes = st.tuples(st.integers(1, 5), st.integers(1, 30), st.integers(1, 5))


@given(shapes, st.integers(1, 30), st.lists(st.floats(0.1, 9), min_size=5, max_size=5))
def test_no_schedule_is_faster_than_the_bound(shape, chunk, steps):
    layers, length, workers = shape
    graph, costs = Graph(layers, length), Costs(tuple(steps[:layers]))
    least = timelines.bound(graph, costs, workers)
    plan = wavefront(graph, workers, min(chunk, length), costs=costs)
    for schedule in (plan, timelines.best_wavefront(graph, workers, costs)):
        check(schedule)
        assert simulate(schedule, costs).makespan >= least * (1 - 1e-9)
    check(timelines.whole_layers(graph, workers, costs))


def test_the_bound_is_the_work_or_the_longest_path():
    costs = Costs((1.0, 3.0, 1.0))
    assert timelines.bound(Graph(3, 10), costs, 1) == 50
    assert timelines.bound(Graph(3, 10), costs, 4) == 1 + 30 + 1
    assert timelines.bound(Graph(4, 100), Costs((2.0,) * 4), 2) == 400


ROW = timelines.Compared(1e-3, 2e-3, 4e-3, alone=3e-3, package=1.25e-3)


def test_a_schedule_is_compared_with_its_bound_in_words():
    said = ROW.told(2)
    has(
        [
            "2000 µs, **50 % of the bound** of 1000 µs",
            "own is predicted to reach 80 %",
            "measured 4000 µs, 25 %",
            "compared with one worker: 25 % slower",
        ],
        said,
    )
    has(["no: compared with one", "no: package"], ROW._replace(package=2e-3).told(1))
    away = ROW._replace(measured=None)
    has(["On 4 workers", "not measured: this process has fewer cores"], away.told(4))
    assert away.gain == 1.5
    assert ROW.most == 3
    assert list(away.cells(2).values()) == ["50 %", "not measured", ""]
    assert "was not measured: this process has one core" in timelines.told(COSTS, 1)
    has(["step of a layer takes 10 µs", "begins 2 µs after"], timelines.told(COSTS, 2))


def shown(one):
    """The figures that a lab showed: name, caption, words."""
    return [
        (name, caption, text_of(figure)) for figure, name, caption, _ in one._nb.shown
    ]


def test_on_one_core_the_lab_predicts_and_says_what_it_did_not_measure(fixed):
    one, _ = grade(WAVE)
    plots.style()
    one.guess("wave", 1.5)
    one.result("wave")
    ((name, caption, text),) = shown(one)
    assert (name, caption) == (
        "lab-wave",
        "Exercise 3, 4 layers: the schedule is yours.",
    )
    has(["2 workers: predicted 2.", "no: measured"], text)
    has(["not measured", "You guessed 1.5x; it is"], one._nb.said[-1])
    one.result("layers")  # open, without a guess
    has(["<details>", "49.9 % of the bound", "no: guessed"], one._nb.said[-1])
    assert "the schedule is the package's" in shown(one)[-1][1]
    table = one.table()
    assert table["schedule"].tolist() == ["the package's", "yours"]
    assert table["measured"].tolist() == ["not measured"] * 2
    assert list(table.index) == ["2", "3"]


@pytest.mark.skipif(cores() < 2, reason="two threads need two cores")
def test_every_right_schedule_runs_and_is_drawn_beside_its_prediction():
    page = Page()
    page.shown = []
    page.show = lambda *words: page.shown.append(words)
    one = lab.Lab(page, WORK, threads=2)
    has(["A step of a layer takes", "begins"], page.said[0])
    plots.style()
    for name, source in SOLUTIONS.items():
        run(source, {"Task": Task, "lab": one})
        one.result(name)
    assert [name for name, *_ in shown(one)] == [f"lab-{name}" for name in PLANS]
    has(["4 workers: predicted", "2 workers: predicted", "measured"], shown(one)[-1][2])
    has(["1 worker: predicted", "no: worker 1"], shown(one)[0][2])
    table = one.table()
    assert table.index.tolist() == ["1", "2", "3", "4", "4"]
    assert (table["measured"] == "not measured").tolist() == [False] * 4 + [True]
    assert not (table["schedule"] != "yours").any()
    errors = re.findall(r"largest relative error (\S+)\.", " ".join(page.said))
    assert len(errors) == 4
    assert all(float(error) < 1e-4 for error in errors)
    one.score()
    assert page.said[-1] == "Exercises solved: 4 of 4: 1, 2, 3, 4."


def test_a_wrong_output_is_seen_before_it_is_timed():
    x, _ = WORK.example()
    wrong = planted(timelines, "net.forward(x)[0]", "1.001 * net.forward(x)[0]")
    alone = {"one": timelines.layer_by_layer(Graph(4, 9))}
    with pytest.raises(MismatchError, match="one: y: relative error"):
        wrong.Ran(WORK.params(), x, alone, 1)
    ran = timelines.Ran(WORK.params(), x, alone, 2)
    assert len(ran.lines["one"].spans) == 4


def test_measured_costs_are_those_of_the_timelines(monkeypatch):
    """Of spans that were made: a step takes 2 s, a task 3 s more, a hand-over 5 s."""
    costs = Costs((2.0,) * 4, task=3.0, hand=5.0)

    def made(params, x, schedules, repeats):
        lines = {name: simulate(plan, costs) for name, plan in schedules.items()}
        return SimpleNamespace(lines=lines, disturbed="")

    monkeypatch.setattr(timelines, "Ran", made)
    found, _ = timelines.measured_costs(WORK.params(), np.zeros((9, 1, 5)), 2, 1)
    np.testing.assert_allclose(found.step, 2 + 3 / 9)
    assert found.hand == 5
    assert found.task == pytest.approx(3.0)
    alone, _ = timelines.measured_costs(WORK.params(), np.zeros((9, 1, 5)), 1, 1)
    assert alone == Costs(found.step, found.task)


def test_the_exercises_for_home_are_right():
    def gain(chunk):
        plan = wavefront(Graph(4, 100), 2, chunk, together=2)
        return 200 / simulate(plan, Costs((1.0,) * 4)).makespan

    assert gain(22) > 0.9 > gain(23)
    source = edited(WAVE, [("lab.grade", "(lambda *_: 0)")])
    space = {"Task": Task}
    exec(source, space)
    tasks = tuple(space["wave"](Graph(4, 100)))
    with pytest.raises(ValueError, match="waits for what is never done"):
        check(Schedule(Graph(4, 100, backward=True), tasks))
    ends = [*accumulate([1, 2, 4, 8, *[10] * 7, 8, 4, 2, 1])]
    pairs = [*zip([0, *ends], ends, strict=False)]
    plan = [Task(layer, *pair, layer) for layer in range(3) for pair in pairs]
    line = simulate(Schedule(Graph(3, 100), tuple(plan)), Costs((1.0,) * 3))
    assert line.makespan == 100 + 2 * 10


def test_the_notebook_has_the_form_of_the_report():
    assert problems_of_form(BOOK) + problems_of_code(BOOK) == []
    pages = [path.stem for path in rules.notebooks(rules.ROOT / "notebooks")]
    assert pages[-3:] == ["lesson", "lab", "appendix"]
    source = "\n".join(cell.source for cell in BOOK.cells)
    asked = re.findall(r'lab\.(guess|result)\("(\w+)"', source)
    wants = [("guess", name) for name in lab.GUESSES] + [("result", n) for n in PLANS]
    assert sorted(asked) == sorted(wants)
    for name in PLANS:
        assert f'lab.grade("{name}", {name})' in SOLUTIONS[name]

"""The lab: schedules of layers, checked, predicted, run and drawn at once."""

from dataclasses import replace
from itertools import product

import pandas as pd

from lstm_kernels.errors import check_choice, check_numbers, counted

from .. import plots
from ..experiments.timelines import compared, measured_costs, told
from ..measure.evidence import percent, speed
from .exercises import Wrong
from .lesson import Lesson
from .plans import OTHERS, PLANS, STEPS, checked
from .stages import errors, folded, most_threads

GUESSES = {"layers": percent, "wave": speed, "own": speed}


class Lab(Lesson):
    """Grades schedules, predicts what they take, runs them and draws both.

    nb, strict: as of Lesson. work: sizes of a stack; the exercises have their layers
    and steps. threads: how many may run, by default one a core. Measures and says what
    a step, a task and a hand-over cost.
    """

    exercises = PLANS

    def __init__(self, nb, work, strict=False, threads=None):
        super().__init__(nb, strict)
        self._threads, self._work = threads or most_threads(), replace(work, T=STEPS)
        self._x, self._rounds = self._work.example()[0], nb.pick(smoke=3, paper=40)
        self._found, self._guesses, self._rows = {}, {}, {}
        how = self._work.params(), self._x, self._threads
        self._costs, noise = measured_costs(*how, self._rounds)
        nb.say(told(self._costs, self._threads), noise)

    def _graded(self, exercise, function, plain):
        found = {}
        for graph, workers in product((exercise.graph, *OTHERS), exercise.workers):
            try:
                schedule = checked(exercise, plain, graph, workers)
            except Wrong as error:
                case = f"layers {graph.layers}, steps {graph.steps}, workers {workers}"
                said = str(error).replace(", blocks=None, samples=None", "")
                said = said.replace(f"{graph}", "the graph")
                raise Wrong(f"with {case}: {said}") from None
            found.setdefault(workers, schedule)  # that of the first graph
        self._found[exercise.number] = found
        tasks = " and ".join(counted(len(one.tasks), "task") for one in found.values())
        return f"{tasks}, every cell once."

    def guess(self, name, value):
        """Take a guess of an exercise: a number above zero, of "layers" a fraction of
        at most 1; None is no guess yet. Raises ValueError, or TypeError for no number.
        """
        form = GUESSES[check_choice("name", name, GUESSES)]
        if value is not None:
            value = float(check_numbers("guess", value, (), positive=True))
        if name == "layers" and value is not None and value > 1:
            raise ValueError(f"guess: got {value:g}, want a fraction: 0.5 for 50 %")
        self._guesses[name] = value
        text = "No guess yet" if value is None else f"Your guess: {form(value)}"
        self._nb.say(f"{text}.")

    def result(self, name):
        """Predict, run and draw what an exercise returned where it is right, else the
        package's schedule. The text is folded where a guess is asked for and missing.
        """
        plan = self.exercises[check_choice("name", name, self.exercises)]
        layers, own = plan.graph.layers, name in self._solved
        costs = replace(self._costs, step=self._costs.step[:layers])
        package = {w: plan.package(plan.graph, w, costs) for w in plan.workers}
        shown = self._found[plan.number] if own else package
        how = replace(self._work, L=layers).params(), self._x, self._threads
        rows, lines, ran = compared(*how, self._rounds, costs, shown, package)
        whose = "yours" if own else "the package's"
        caption = f"Exercise {plan.number}, {layers} layers: the schedule is {whose}."
        figure = plots.compared(lines, ran.lines)
        self._nb.show(figure, f"lab-{name}", caption, ran.disturbed)
        self._rows |= {(plan.number, w): (whose, row) for w, row in rows.items()}
        text = " ".join(row.told(w) for w, row in rows.items())
        text += f" The output is right: {errors(ran.error)}."
        if name in GUESSES:
            workers = plan.workers[-1]
            row, guess, form = rows[workers], self._guesses.get(name), GUESSES[name]
            answer = {"layers": row.share, "wave": row.gain, "own": row.most}[name]
            best = f"{workers} workers can reach {form(answer)}"
            found = best if name == "own" else f"it is {form(answer)}"
            if guess:
                text += f" You guessed {form(guess)}; {found}."
            else:
                text = folded("No guess: show it", f"{text} Asked for: {form(answer)}.")
        self._nb.say(text)

    def table(self):
        """A row for each schedule that was shown: how near it comes to its bound."""
        rows = [
            {"exercise": f"{n}", "workers": f"{w}", "schedule": whose} | row.cells(w)
            for (n, w), (whose, row) in sorted(self._rows.items())
        ]
        return pd.DataFrame(rows).set_index("exercise")

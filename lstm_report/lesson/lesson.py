"""The classroom: kernels graded at once, and guesses set beside what was measured."""

import ast
import inspect
import re
import textwrap
import traceback
from functools import partial
from types import FunctionType

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lstm_kernels.cores import cores
from lstm_kernels.errors import check_choice, check_numbers
from lstm_kernels.kernels import numbas_threads
from lstm_kernels.versions import versions

from .. import plots
from ..measure.comparer import MismatchError
from ..measure.evidence import digits, speed
from ..measure.timing import disturbance, interleaved, summary
from .classroom import on_gpu, per_load, plain_product
from .exercises import EXERCISES, SIZES, Open, Wrong


def has_blanks(function):
    """Whether `...` still stands in a function's code, except as an index."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):  # its source is not kept
        return "Ellipsis" in repr(function.__code__.co_consts)
    nodes = list(ast.walk(tree))
    indices = [
        node
        for n in nodes
        if isinstance(n, ast.Subscript)
        for node in ast.walk(n.slice)
    ]
    blanks = (n for n in nodes if isinstance(n, ast.Constant) and n.value is Ellipsis)
    return any(blank not in indices for blank in blanks)


def described(error, function):
    """An exception, and the last line of the learner's function that it came
    through.
    """
    file = function.__code__.co_filename
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame for frame in frames if frame.filename == file]
    # Numba names the line in its message, behind the kernel's file and before the
    # passes.
    text = re.sub(r'File "[^"]*", (line \d+).*', r"in \1", " ".join(str(error).split()))
    text = f"it raised {type(error).__name__}: {text[:300]}"
    if lines:
        text += f", in line {lines[-1].lineno}"
        text += f": {lines[-1].line}" * bool(lines[-1].line)
    return text


class Lesson:
    """Grades the exercises of the classroom.

    nb: the page's Notebook. strict: whether an exercise that is still open raises Open;
    else a sentence says so and the page goes on. Raises TypeError for another `strict`.
    """

    def __init__(self, nb, strict=False):
        if not isinstance(strict, bool):
            raise TypeError(f"strict: got {type(strict).__name__}, want True or False")
        self._nb, self._strict, self._solved = nb, strict, {}

    def grade(self, name, function):
        """Run the learner's function on seeded inputs and say that it is right, or
        still open.

        name: of EXERCISES. Compiled functions run as Python first, where an index out
        of bounds is an error, then compiled; both are compared with the reference in
        float64. Raises Wrong with a hint, Open (see `strict`), ValueError for an
        unknown name, TypeError for no function.
        """
        exercise = EXERCISES[check_choice("name", name, EXERCISES)]
        plain = getattr(function, "py_func", function)
        if not isinstance(plain, FunctionType):
            raise TypeError(f"function: got {type(function).__name__}, want a function")
        self._solved.pop(name, None)
        who = f"Exercise {exercise.number}"
        if has_blanks(plain):
            message = f"{who} is open. Hint: {exercise.hint}."
            if self._strict:
                raise Open(message)
            self._nb.say(message)
            return
        if exercise.compiled and plain is function:
            raise Wrong(f"{who}: `{name}` is not compiled. Hint: put @njit above it.")
        worst = 0.0
        for form in dict.fromkeys((plain, function)):
            for sizes in SIZES:
                inputs = exercise.draw(np.random.default_rng(exercise.number), *sizes)
                worst = max(
                    worst, self._check(exercise, form, plain, inputs, f"{who}: ")
                )
        message = f"{who} is right: largest relative error {worst:.1e}."
        if name == "tile":
            plain_intensity = per_load(plain_product)
            try:
                intensity = per_load(plain)
            except Exception:  # no loop over numbers, such as A @ B
                intensity = 0.0
            if intensity <= plain_intensity:
                raise Wrong(
                    f"{who}: right, but {intensity:.2f} multiply-adds for each number "
                    "loaded. Hint: keep the sums in variables and use each loaded "
                    "number more than once."
                )
            message += (
                f" It does {intensity:.2f} multiply-adds for each number it loads, "
            )
            message += f"not {plain_intensity:.2f}."
        self._solved[name] = function
        self._nb.say(message)

    @staticmethod
    def _check(exercise, form, plain, inputs, who):
        """The largest relative error of one run, or Wrong."""
        given = [array.copy() for array in inputs]
        for array in given:
            # Read-only arrays are another type to Numba; there Python has already found
            # writes.
            array.flags.writeable = form is not plain
        try:
            got = exercise.run(form, *given)
            arrays = {name: np.asarray(value) for name, value in got.items()}
        except Wrong as error:
            raise Wrong(f"{who}{error}") from None
        except Exception as error:
            read_only = "read-only" in str(error)
            hint = (
                "inputs are still needed: write to results alone" if read_only else None
            )
            raise Wrong(
                f"{who}{described(error, plain)}. Hint: {hint or exercise.raised}."
            ) from None
        try:
            return exercise.error(arrays, *inputs)
        except MismatchError as error:
            hint = exercise.why(arrays, *inputs) or exercise.hint
            raise Wrong(f"{who}{error}. Hint: {hint}.") from None

    def beside(self, name, package, run, *inputs):
        """Time a solved exercise on `inputs` beside the package's `run`, and say both;
        where it is still open or `run` is None, say nothing.

        package: what `run` is, in words.
        """
        if name not in self._solved or run is None:
            return
        exercise, function = EXERCISES[name], self._solved[name]
        own = on_gpu(function) if name == "thread" else partial(exercise.run, function)
        exercise.error(own(*inputs), *inputs)
        rounds = self._nb.pick(smoke=2, paper=10)
        times = interleaved(
            {"own": partial(own, *inputs), "package": run}, repeats=rounds
        )
        us = 1e6 * summary(times)["median"]
        self._nb.say(
            f"Exercise {exercise.number}: yours {digits(us['own'])} us, {package} "
            f"{digits(us['package'])} us.",
            disturbance(times),
        )

    def score(self):
        """Say how many exercises are solved."""
        numbers = sorted(EXERCISES[name].number for name in self._solved)
        which = f": {', '.join(map(str, numbers))}" if numbers else ""
        self._nb.say(f"Exercises solved: {len(numbers)} of {len(EXERCISES)}{which}.")


ON_CPU = ("sequential", "numpy-sample", "numpy", "numba-sample", "numba-fused")
LOOPS = "plain loops, compiled"  # `classroom.recurrence`
ON_GPU = ("cuda-v1", "cuda-fused")
# Stage: the cases (version, threads) that are compared; threads None are all.
STAGES = {
    "NumPy": (("sequential", 1), ("numpy", 1)),
    "compiled": (("numpy", 1), (LOOPS, 1)),
    "threads": (("numba-sample", 1), ("numba-sample", None)),
    "tile": (("numba-sample", 1), ("numba-fused", 1)),
    "GPU": (("numba-fused", 1), ("cuda-fused", 1)),
}


def cases():
    """The cases (version or LOOPS, threads) that can run here: on one thread, then on
    all.
    """
    most = min(cores(), numbas_threads())
    gpu = [
        (v.name, 1) for v in versions() if v.name in ON_GPU and not v.why_unavailable
    ]
    threaded = [("numba-sample", most), ("numba-fused", most)] if most > 1 else []
    return [(name, 1) for name in (*ON_CPU, LOOPS)] + threaded + gpu


def verdict(guess, measured):
    """How far a guess is from what was measured, in words."""
    ratio = guess / measured
    if 0.5 <= ratio <= 2:
        return "within a factor of two"
    side = "low" if ratio < 1 else "high"
    return f"too {side} by a factor of {digits(max(ratio, 1 / ratio))}"


class Predictions:
    """Guesses beside what was measured.

    nb: the page's Notebook. times: as of `bench.interleaved`, by cases (version,
    threads). multiply_adds: of a case. Shown by `guess`; kept for the table and the
    figure.
    """

    def __init__(self, nb, times, multiply_adds):
        self._nb, self._disturbed = nb, disturbance(times)
        table = summary(times)
        self._summary = table.loc[[case for case in cases() if case in table.index]]
        self._multiply_adds = multiply_adds
        self._seconds, self._guesses = self._summary["median"], {}

    def guess(self, stage, value):
        """Say a guess, a number above zero, and the measurement; None is no guess.

        stage: "loops", where the guess is nanoseconds for a multiply-add, or a key of
        STAGES, where it is the factor of the two cases. Raises ValueError, or TypeError
        for no number.
        """
        check_choice("stage", stage, ("loops", *STAGES))
        if value is not None:
            value = float(check_numbers("guess", value, (), positive=True))
        if stage == "loops":
            seconds = self._seconds["sequential", 1]
            measured, form = 1e9 * seconds / self._multiply_adds, "{:.3g} ns".format
            cases = f"`sequential` takes {1e3 * seconds:.3g} ms "
            cases += f"for {self._multiply_adds} of them"
        else:
            before, after = (self._case(case) for case in STAGES[stage])
            if before == after or after not in self._seconds:
                self._nb.say(f"Not measured: {self._why(stage)}.")
                return
            measured, form = self._seconds[before] / self._seconds[after], speed
            cases = ", ".join(map(self._timed, (before, after)))
        self._guesses[stage] = (value, measured, form)
        text = f"This machine measured **{form(measured)}**: {cases}."
        if value is not None:
            guess = f"You guessed {form(value)}, which is {verdict(value, measured)}."
            text = f"{text} {guess}"
        self._nb.say(text, self._disturbed)

    def _case(self, case):
        """A case as it was timed: None is the largest number of threads."""
        version, threads = case
        most = max(
            threads for name, threads in self._seconds.index if name == "numba-sample"
        )
        return version, threads or most

    def _timed(self, case):
        version, threads = case
        on = f" on {threads} threads" if threads > 1 else ""
        return f"`{version}`{on} takes {digits(1e6 * self._seconds[case])} us"

    @staticmethod
    def _why(stage):
        if stage == "threads":
            return "this process has one core"
        return next(v.why_unavailable for v in versions() if v.name == "cuda-fused")

    def table(self):
        """A row per stage that was measured: guess, measured and how far apart, as
        text.
        """
        rows = {
            stage: (
                "-" if guess is None else form(guess),
                form(measured),
                "" if guess is None else verdict(guess, measured),
            )
            for stage, (guess, measured, form) in self._guesses.items()
        }
        columns = ["your guess", "measured", "the guess is"]
        table = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
        return table.rename_axis(index="stage")

    def factors(self):
        """The measured factors in a line, and what disturbed the run."""
        shown = self.table()["measured"].drop("loops", errors="ignore")
        mark = f" (disturbed run: {self._disturbed})" if self._disturbed else ""
        return ", ".join(f"{stage} {factor}" for stage, factor in shown.items()) + mark

    def times(self):
        """A row per case: its time, and its speed compared with plain loops, as
        text.
        """
        us = 1e6 * self._summary
        text = us.map(digits)
        rows = {
            "version": [f"`{version}`" for version, _ in us.index],
            "threads": [str(threads) for _, threads in us.index],
            "us": text["median"],
            "quartiles (us)": text["q1"] + " to " + text["q3"],
            "speed over plain loops": (us["median"].iloc[0] / us["median"]).map(speed),
        }
        return pd.DataFrame(rows)

    def figure(self):
        """Guess and measured factor of each stage on a log axis."""
        shown = {s: pair[:2] for s, pair in self._guesses.items() if s in STAGES}
        if not shown:
            raise ValueError(
                "guess: got no stage of a factor, want one before the figure"
            )
        figure, ax = plt.subplots(figsize=(plots.WIDTH, 1.2 + 0.6 * len(shown)))
        for place, (guess, measured) in enumerate(shown.values()):
            if guess is not None:
                ends = (guess, measured)
                ax.plot(ends, (place, place), color=plots.GREY, linewidth=1)
            for what, value, marker, colour, y in (
                ("guess", guess, "o", plots.RED, 11),
                ("measured", measured, "s", plots.BLUE, -11),
            ):
                if value is None:
                    continue
                ax.plot(value, place, marker, color=colour)
                plots.note(
                    ax,
                    f"{what} {speed(value)}",
                    (value, place),
                    (0, y),
                    color=colour,
                    ha="center",
                    va="center",
                )
        ax.axvline(1, color=plots.GREY, linewidth=0.8, linestyle=":")
        ax.set(
            xscale="log",
            xlabel="times as fast as what it is compared with",
            ylabel="stage",
        )
        ax.set_yticks(range(len(shown)), [*shown])
        ax.margins(x=0.2, y=0.25)
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        ax.set_title(self.score())
        return figure

    def score(self):
        """How many guesses are within a factor of two, in words."""
        made = [pair[:2] for pair in self._guesses.values() if pair[0] is not None]
        if not made:
            return "No guess was made"
        close = sum(0.5 <= guess / measured <= 2 for guess, measured in made)
        return f"{close} of {len(made)} guesses are within a factor of two"

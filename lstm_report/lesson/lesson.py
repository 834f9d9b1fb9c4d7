"""The classroom: kernels graded at once."""

import ast
import inspect
import linecache
import re
import textwrap
import traceback
from contextlib import nullcontext
from functools import partial
from types import FunctionType

import numpy as np

from lstm_kernels.errors import check_choice

from ..measure.comparer import MismatchError
from ..measure.evidence import us
from ..measure.timing import disturbance, interleaved, summary
from .classroom import on_gpu, per_load, plain_product
from .exercises import EXERCISES, SIZES, Endless, NotSolved, Open, Wrong, limited
from .gpu_code import executed


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
    """An exception, the last line of the learner's function that it came through, and
    the numbers and the shapes of arrays that its names had there.
    """
    file = function.__code__.co_filename
    frames = traceback.walk_tb(error.__traceback__)
    frames = [pair for pair in frames if pair[0].f_code.co_filename == file]
    # Numba names the line in its message, behind the kernel's file and before the
    # passes.
    said = " ".join(str(error).replace("`", "'").split())
    said = re.sub(r'File "[^"]*", (line \d+).*', r"in \1", said)
    # Code spans, or Markdown takes `<class ...>` and `2*x*y` for its own.
    text = f"it raised {type(error).__name__}: `{said[:300]}`"
    there = []
    if frames:
        frame, number = frames[-1]
        line = linecache.getline(file, number).strip()
        text += f", in line {number}" + f": `{line}`" * bool(line)
        read = line.rpartition(" = ")[2]  # what stands before it is not read
        for name in dict.fromkeys(re.findall(r"[^\W\d]\w*", read)):
            value = frame.f_locals.get(name)
            if isinstance(value, np.ndarray):
                there.append(f"{name}.shape = {value.shape}")
            elif isinstance(value, float | np.floating):
                there.append(f"{name} = {value:.4g}")
            elif isinstance(value, int | np.integer):
                there.append(f"{name} = {value}")
    return text + f", where {', '.join(there)}" * bool(there)


class Lesson:
    """Grades the exercises of the classroom.

    nb: the page's Notebook. strict: whether an exercise that is open or wrong raises
    Open or Wrong; else a sentence says so and the page goes on. Raises TypeError for
    another `strict`.
    """

    exercises: dict = EXERCISES

    def __init__(self, nb, strict=False):
        if not isinstance(strict, bool):
            raise TypeError(f"strict: got {type(strict).__name__}, want True or False")
        self._nb, self._strict, self._solved = nb, strict, {}

    def grade(self, name, function):
        """Run the learner's function on seeded inputs and say whether it is right,
        wrong or still open.

        name: of `exercises`. Compiled functions run as Python first, where an index out
        of bounds is an error, then compiled; both are compared with the reference in
        float64. Raises Wrong or Open with a hint (see `strict`), ValueError for an
        unknown name, TypeError for no function.
        """
        exercise = self.exercises[check_choice("name", name, self.exercises)]
        plain = getattr(function, "py_func", function)
        if not isinstance(plain, FunctionType):
            raise TypeError(f"function: got {type(function).__name__}, want a function")
        self._solved.pop(name, None)
        who = f"Exercise {exercise.number}"
        try:
            if has_blanks(plain):
                raise Open(f"is open. Hint: {exercise.hint}")
            told = f"{who} is right: {self._graded(exercise, function, plain)}"
            self._solved[name] = function
        except NotSolved as error:
            told = f"{who} {'is not right yet: ' * isinstance(error, Wrong)}{error}."
            if self._strict:
                raise type(error)(told) from None
        self._nb.say(told)

    def _graded(self, *exercise):
        return graded(*exercise)

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
        cases = {"own": partial(own, *inputs), "package": run}
        times = interleaved(cases, repeats=rounds)
        median = summary(times)["median"]
        self._nb.say(
            f"Exercise {exercise.number}: yours {us(median['own'])}, {package} "
            f"{us(median['package'])}.",
            disturbance(times),
        )

    def score(self):
        """Say how many exercises are solved."""
        every = self.exercises
        numbers = sorted(every[name].number for name in self._solved)
        which = f": {', '.join(map(str, numbers))}" if numbers else ""
        self._nb.say(f"Exercises solved: {len(numbers)} of {len(every)}{which}.")


def graded(exercise, function, plain):
    """What is said of a right function; raises Wrong."""
    wrong, worst, more = "", 0.0, ""
    try:
        if exercise.compiled and plain is function:
            raise Wrong("it is not compiled. Hint: put @njit above it")
        for form in dict.fromkeys((plain, function)):
            for sizes in SIZES:
                inputs = exercise.draw(np.random.default_rng(exercise.number), *sizes)
                worst = max(worst, checked(exercise, form, plain, inputs))
        more = shared_loads(plain) if exercise is EXERCISES["tile"] else ""
    except Endless:
        raise  # nor would it end as code for a GPU
    except Wrong as error:
        wrong = str(error)
    if exercise is EXERCISES["thread"]:
        wrong, more = executed(plain, wrong, described)
    if wrong:
        raise Wrong(wrong)
    return f"largest relative error {worst:.1e}.{more}"


def checked(exercise, form, plain, inputs):
    """The largest relative error of one run, or Wrong."""
    given = [array.copy() for array in inputs]
    for array in given:
        # Read-only arrays are another type to Numba; there Python has already found
        # writes.
        array.flags.writeable = form is not plain
    try:
        # Compiled, it has come to its end as Python, and Numba is not to be traced
        with limited(plain) if form is plain else nullcontext():
            got = exercise.run(form, *given)
        arrays = {name: np.asarray(value) for name, value in got.items()}
    except Wrong:
        raise
    except Exception as error:
        hint = "see that line"
        if "read-only" in str(error):
            hint = "inputs are still needed: write to results alone"
        elif "can be converted to Python scalars" in str(error):
            hint = "it takes one number; `sigmoids` and `np.tanh` take arrays"
        elif isinstance(error, IndexError | ValueError):
            hint = exercise.why_raised(plain) or exercise.hint
        raise Wrong(f"{described(error, plain)}. Hint: {hint}") from None
    try:
        return exercise.error(arrays, *inputs)
    except MismatchError as error:
        hint = exercise.why(arrays, *inputs) or exercise.hint
        raise Wrong(f"{exercise.told(error)}. Hint: {hint}") from None


def shared_loads(tile):
    """How often a tile uses what it loads, in words; Wrong where no more than the plain
    loop.
    """
    hint = "Hint: keep the sums in variables and use each loaded number more than once"
    least = per_load(plain_product)
    try:
        count = per_load(tile)
    except Exception:  # no loop over numbers
        got = "C is right, but computed by a call such as A @ B"
        raise Wrong(f"{got}. {hint}") from None
    if count <= least:
        got = f"C is right, but with {count:.2f} multiply-adds for each number loaded"
        raise Wrong(f"{got}. {hint}")
    return (
        f" It does {count:.2f} multiply-adds for each number loaded; the plain loop "
        f"{least:.2f}, all of a tile 1.00."
    )

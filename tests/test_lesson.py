"""The classroom: blanks are seen, solutions pass, likely mistakes get the hint that
fits.
"""

import linecache
import re
from pathlib import Path

import nbformat
import notebook_rules as rules
import numpy as np
import pandas as pd
import pytest
from form import problems_of_form

from lstm_report.lesson import exercises, lesson
from lstm_report.lesson.exercises import EXERCISES
from lstm_report.measure import MismatchError

BOOK = nbformat.read(Path(__file__).parents[1] / "notebooks" / "lesson.ipynb", 4)
NAMES = list(EXERCISES)
PLACES = [k for k, cell in enumerate(BOOK.cells) if "exercise" in rules.tags(cell)]
STUBS = {name: BOOK.cells[k].source for name, k in zip(NAMES, PLACES, strict=True)}
SOLUTIONS = {
    name: re.search(
        r"<details><summary>Solution</summary>\n\n```python\n(.+?)\n```\n\n</details>",
        BOOK.cells[k + 1].source,
        re.DOTALL,
    )[1]
    for name, k in zip(NAMES, PLACES, strict=True)
}


class Page:
    """What the grader says."""

    def __init__(self):
        self.said = []

    def say(self, text, disturbed=""):
        self.said.append(text)

    @staticmethod
    def pick(*, smoke, paper):
        return smoke


@pytest.fixture(scope="module")
def names():
    """What the notebook's set-up defines."""
    space = {"PRESET": "smoke", "STRICT": False}
    exec(next(cell.source for cell in BOOK.cells if "import " in cell.source), space)
    return space


def grade(names, source, strict=True):
    """Run an exercise's cell; returns the grader and what it said."""
    page = Page()
    grader = lesson.Lesson(page, strict=strict)
    exec(source, names | {"lesson": grader})
    return grader, page.said


@pytest.mark.parametrize("name", NAMES)
def test_an_exercise_with_blanks_is_open(names, name):
    assert "..." in STUBS[name]
    with pytest.raises(
        exercises.Open, match=f"Exercise {EXERCISES[name].number} is open. Hint: "
    ):
        grade(names, STUBS[name])
    grader, said = grade(names, STUBS[name], strict=False)
    assert said == [
        f"Exercise {EXERCISES[name].number} is open. Hint: {EXERCISES[name].hint}."
    ]
    grader.score()
    assert said[-1] == "Exercises solved: 0 of 6."


@pytest.mark.parametrize("name", NAMES)
def test_a_solution_is_right(names, name):
    grader, said = grade(names, SOLUTIONS[name])
    number = EXERCISES[name].number
    assert re.match(
        rf"Exercise {number} is right: largest relative error \d\.\de-\d\d\.", said[0]
    )
    grader.score()
    assert said[-1] == f"Exercises solved: 1 of 6: {number}."


IN_PLACE = """
            for j in range(H):
                a[:] = b
                for k in range(D):
                    for n in range(4 * H):
                        a[n] += x[t, s, k] * U[k, n]
                for k in range(H):
                    for n in range(4 * H):
                        a[n] += h[k] * W[k, n]
                h[j], c[j] = unit(a[j], a[H + j], a[2 * H + j], a[3 * H + j], c[j])
            y[t, s] = h
"""
PLAIN = """range(M):
        for j in range(N):
            total = 0.0
            for k in range(K):
                total += A[r, k] * B[k, j]
            C[r, j] = total


"""
RESET = "        h[:], c[:] = 0, 0  # the state before the first step\n"
OUTER, INNER = "    for s in range(B):\n", "        for t in range(T):\n"
GATES = "sigmoid(i_bar), sigmoid(f_bar), sigmoid(o_bar)"
BLOCKS = "i_bar, f_bar, g_bar, o_bar = np.split"
# Exercise, what of its solution becomes what, what the message must say.
PLANTED = [
    (
        "cell",
        GATES,
        "sigmoid(f_bar), sigmoid(i_bar), sigmoid(o_bar)",
        "order is i, f, g, o",
    ),
    ("cell", "math.tanh(g_bar)", "sigmoid(g_bar)", "a tanh, no sigmoid"),
    ("cell", "math.tanh(c)", "math.tanh(c_prev)", "the new c"),
    ("cell", "math.tanh(c)", "c", "the tanh is missing"),
    ("cell", "return h, c", "return c, h", "h comes first"),
    ("cell", "return h, c", "return h, h", "h is used in the place of c"),
    ("cell", "return h, c", "return c, c", "c is used in the place of h"),
    ("cell", "return h, c", "return h", "it returns float, want h and c"),
    ("cell", "    return h, c\n", "", "it returns nothing"),
    ("cell", "c = f", "c = math.nan * f", "not finite"),
    ("cell", "i * g", "i * g / 0", "raised ZeroDivisionError: .*, in line 5"),
    ("cell", "return h, c", "return 'h', 'c'", "raised|want real numbers"),
    ("step", BLOCKS, "i_bar, f_bar, o_bar, g_bar = np.split", "order is i, f, g, o"),
    (
        "step",
        "np.split(a, 4, axis=1)",
        "(a[:, k::4] for k in range(4))",
        "every fourth column",
    ),
    ("step", " + b ", " ", "b is missing"),
    ("step", " + h @ W", "", "h W is missing"),
    ("step", "(f_bar) * c", "(f_bar) * h", "h stands in the place of c"),
    (
        "step",
        "    c = ",
        "    c *= 1\n    c = ",
        "ValueError: .*read-only.*write to results",
    ),
    ("step", "return h, c", "return h[:1], c", r"h: got shape \(1, 7\), want \(3, 7\)"),
    ("step", "return h, c", "return 0 * h, c", "h: relative error 1 at"),
    ("step", "return h, c", "return h.astype(np.float16), c", "h: relative error"),
    ("step", "return h, c", "return h, np.full_like(c, np.nan)", "not finite"),
    ("recurrence", OUTER + RESET, RESET[4:] + OUTER, "the state is not reset"),
    (
        "recurrence",
        OUTER + RESET + INNER,
        RESET[4:] + INNER[4:] + "    " + OUTER,
        "order of loops",
    ),
    ("recurrence", RESET + INNER, INNER + "    " + RESET, "reset at every step"),
    (
        "recurrence",
        r"(?s)\n            a\[:\].+?y\[t, s\] = h\n",
        IN_PLACE,
        "h is overwritten",
    ),
    ("recurrence", "c[j])\n", "h[j])\n", "h stands in the place of c"),
    (
        "recurrence",
        "a[H + j], a[2 * H + j]",
        "a[2 * H + j], a[H + j]",
        "order is i, f, g, o",
    ),
    ("recurrence", "range(T)", "range(T - 1)", "never written stay NaN"),
    ("recurrence", "range(T)", "range(T + 1)", "raised IndexError: .*, in line 12"),
    ("recurrence", "@njit\n", "", "not compiled"),
    (
        "recurrence",
        "a[:] = b",
        "a[:] = eval('b')",
        "raised TypingError: .*eval.*in line 9",
    ),
    ("recurrence", "a[:] = b", "b[:] = a", "read-only"),
    (
        "parallel",
        r"(?s)prange\(B\)(.+)range\(T\)",
        r"range(B)\1prange(T)",
        "at the same time",
    ),
    ("parallel", "prange(B)", "range(B)", "no loop is a prange"),
    ("parallel", "prange(B)", "prange(B - 1)", "never written stay NaN"),
    ("parallel", "prange(B)", "prange(B + 1)", "raised IndexError"),
    ("parallel", "range(T)", "range(0)", "never written stay NaN"),
    ("parallel", "h[t, s], W", "h[t, s], 0 * W", "h W is missing"),
    (
        "tile",
        "min(r + 1, M - 1)",
        "r + 1",
        "raised IndexError.*the last tile has fewer rows",
    ),
    (
        "tile",
        "min(j + 1, N - 1)",
        "j + 1",
        "raised IndexError.*the last tile has fewer rows",
    ),
    (
        "tile",
        "range(0, M, 2)",
        "range(0, M - 1, 2)",
        "C: got .* the last tile has fewer rows",
    ),
    ("tile", "s01 + a0 * b1", "s01 + a1 * b0", "sum rc is row r times column c"),
    (
        "tile",
        "C[r, j1] = s00, s01",
        "C[r, j1] = s01, s00",
        "sum rc is row r times column c",
    ),
    ("tile", r"(?s)range\(0, M, 2\):\n.+?\n\n\n", PLAIN, "more than once"),
    ("tile", "range(K)", "range(K - 1)", "C: relative error"),
    (
        "tile",
        r"(?s)    for r in range.+?\n\n\n",
        "    C[:] = A @ B\n\n\n",
        "more than once",
    ),
    (
        "thread",
        "if s < x.shape[1]:",
        "if True:",
        "raised IndexError: sample 3 of 3 .*the guard",
    ),
    ("thread", "s < x", "s <= x", "raised IndexError: sample 3 of 3 .*the guard"),
    ("thread", "x.shape[1]:", "x.shape[1] - 1:", "leaves out the last sample"),
    ("thread", "block * block_size + index", "index", "threads share a sample"),
    (
        "thread",
        "block * block_size + index",
        "index - block",
        "raised IndexError: sample -1",
    ),
    ("thread", "walk(s,", "walk(0,", "threads share a sample"),
    (
        "thread",
        "index\n    if s < x.shape[1]:",
        "index\n    s %= x.shape[1]\n    if True:",
        "threads of a sample: relative error 1 .*threads share a sample",
    ),
    ("thread", "        walk", "        0 and walk", "never written stay NaN"),
]


@pytest.mark.parametrize(("name", "old", "new", "hint"), PLANTED)
def test_a_planted_mistake_gets_its_hint(names, name, old, new, hint):
    pattern = old if "(?s)" in old else re.escape(old)
    new = new if "(?s)" in old else new.replace("\\", r"\\")
    source, count = re.subn(pattern, new, SOLUTIONS[name])
    assert count == 1
    number = EXERCISES[name].number
    with pytest.raises(
        exercises.Wrong, match=rf"(?s)^Exercise {number}: .*{hint}"
    ) as caught:
        grade(names, source)
    assert isinstance(caught.value, MismatchError)


def test_right_only_without_an_edge_is_refused(names):
    """A tile whose loops leave out what is not a multiple of it."""
    source = SOLUTIONS["tile"].replace("(0, M, 2)", "(0, M - M % 2, 2)")
    with pytest.raises(exercises.Wrong, match="the last tile has fewer rows"):
        grade(names, source)


def test_an_index_is_no_blank(names):
    source = SOLUTIONS["step"].replace(
        "np.split(a, 4, axis=1)",
        "(a[..., k * len(W) : (k + 1) * len(W)] for k in range(4))",
    )
    spaces = names | {"lesson": lesson.Lesson(Page(), strict=True)}
    linecache.cache["cell"] = (
        len(source),
        None,
        source.splitlines(keepends=True),
        "cell",
    )
    exec(compile(source, "cell", "exec"), spaces)
    half = source.replace("np.tanh(c)", "...")
    linecache.cache["cell"] = (len(half), None, half.splitlines(keepends=True), "cell")
    with pytest.raises(exercises.Open):
        exec(compile(half, "cell", "exec"), spaces)


def test_what_is_wrong_again_is_no_longer_solved(names):
    page = Page()
    grader = lesson.Lesson(page)
    exec(SOLUTIONS["cell"], names | {"lesson": grader})
    with pytest.raises(exercises.Wrong):
        exec(SOLUTIONS["cell"].replace("i * g", "i"), names | {"lesson": grader})
    grader.score()
    assert page.said[-1] == "Exercises solved: 0 of 6."


def test_the_grader_refuses_bad_input():
    grader = lesson.Lesson(Page())
    with pytest.raises(
        ValueError, match="name: got 'Cell', want one of 'cell', 'step'"
    ):
        grader.grade("Cell", len)
    with pytest.raises(TypeError, match="function: got int, want a function"):
        grader.grade("cell", 3)
    with pytest.raises(TypeError, match="strict: got str, want True or False"):
        lesson.Lesson(Page(), strict="no")


def test_a_solved_exercise_is_timed_beside_the_package(names):
    grader, said = grade(names, SOLUTIONS["cell"])
    rows = np.random.default_rng(0).uniform(-1, 1, (20, 5))
    grader.beside("step", "`numpy`", lambda: None, rows)  # open: says nothing
    grader.beside("cell", "the package's", lambda: None, rows)
    assert re.fullmatch(
        r"Exercise 1: yours [\d.]+ us, the package's [\d.]+ us\.", said[-1]
    )
    assert len(said) == 2


SECONDS = {("sequential", 1): 8.0, ("numpy", 1): 2.0, ("numba-sample", 1): 0.5}
SECONDS |= {("numba-fused", 1): 1.0, (lesson.LOOPS, 1): 0.5}


@pytest.fixture
def answers():
    rows = [(case, repeat, s) for case, s in SECONDS.items() for repeat in range(3)]
    times = pd.DataFrame(rows, columns=["case", "repeat", "seconds"])
    return lesson.Predictions(Page(), times, 4_000_000_000)


def test_a_guess_stands_beside_the_measured_factor(answers):
    answers.guess("loops", 3)
    answers.guess("NumPy", 16)
    answers.guess("compiled", 4)
    answers.guess("tile", 1)
    said = answers._nb.said
    assert "measured **2 ns**" in said[0]
    assert "guessed 3 ns, which is within" in said[0]
    assert "measured **4x**" in said[1]
    assert "guessed 16x, which is too high" in said[1]
    assert "too high by a factor of 4." in said[1]
    assert "within a factor of two" in said[2]
    assert "measured **50 % slower**" in said[3]
    assert answers.table()["measured"].to_list() == [
        "2 ns",
        "4x",
        "4x",
        "50 % slower",
    ]
    assert answers.factors() == "NumPy 4x, compiled 4x, tile 50 % slower"
    assert answers.score() == "3 of 4 guesses are within a factor of two"
    assert answers.times()["version"].to_list() == [
        f"`{version}`" for version, _ in SECONDS
    ]
    labels = [text.get_text() for text in answers.figure().axes[0].texts]
    assert "guess 16x" in labels
    assert "measured 50 % slower" in labels


def test_no_guess_is_no_guess(answers):
    answers.guess("loops", None)
    answers.guess("NumPy", None)
    assert answers._nb.said[1].startswith("This machine measured **4x**: ")
    assert "guess" not in "".join(answers._nb.said)
    assert answers.table()["your guess"].to_list() == ["-", "-"]
    assert answers.score() == "No guess was made"
    labels = [text.get_text() for text in answers.figure().axes[0].texts]
    assert labels == ["measured 4x"]
    answers.guess("NumPy", 3)
    assert answers.score() == "1 of 1 guesses are within a factor of two"


def test_a_stage_that_was_not_measured_says_why(answers):
    answers.guess("threads", 2)
    assert answers._nb.said == ["Not measured: this process has one core."]
    with pytest.raises(ValueError, match="want one before the figure"):
        answers.figure()


@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_guess_is_a_number_above_zero(answers, value):
    with pytest.raises(ValueError, match="guess: got"):
        answers.guess("NumPy", value)
    with pytest.raises(TypeError, match="guess: got"):
        answers.guess("NumPy", "ten")
    with pytest.raises(ValueError, match="stage: got 'nothing'"):
        answers.guess("nothing", 1)


def test_the_notebook_has_the_form_of_the_report():
    assert problems_of_form(BOOK) == []
    stages = re.findall(
        r'answers\.guess\("(\w+)", guess\)', "\n".join(c.source for c in BOOK.cells)
    )
    assert stages == ["loops", *lesson.STAGES]
    for name in NAMES:
        assert f'lesson.grade("{name}", {name})' in SOLUTIONS[name]

"""The classroom: blanks are seen, solutions pass, likely mistakes get the hint that
fits.
"""

import re
from pathlib import Path

import nbformat
import notebook_rules as rules
import numpy as np
import pandas as pd
import pytest
from form import problems_of_form
from pages import has, text_of

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
def test_an_exercise_with_blanks_is_open_and_its_solution_right(names, name):
    exercise = EXERCISES[name]
    message = f"Exercise {exercise.number} is open. Hint: {exercise.hint}."
    with pytest.raises(exercises.Open, match=re.escape(message)):
        grade(names, STUBS[name])
    grader, said = grade(names, STUBS[name], strict=False)
    assert said == [message]
    grader.score()
    assert said[-1] == "Exercises solved: 0 of 6."
    grader, said = grade(names, SOLUTIONS[name])
    right = rf"Exercise {exercise.number} is right: largest relative error \d\.\de-\d\d"
    assert re.match(right, said[0])
    grader.score()
    assert said[-1] == f"Exercises solved: 1 of 6: {exercise.number}."


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
RESET = "        h[:], c[:] = 0, 0  # the state before the first step\n"
OUTER, INNER = "    for s in range(B):\n", "        for t in range(T):\n"
LATE, TWICE = RESET[4:] + INNER[4:] + "    " + OUTER, RESET + INNER
GATES = "sigmoid(i_bar), sigmoid(f_bar), sigmoid(o_bar)"
FIVE = "sigmoid(f_bar), sigmoid(i_bar), sigmoid(o_bar)"
BLOCKS = "i_bar, f_bar, g_bar, o_bar = np.split"
COLUMNS = "(a[:, k::4] for k in range(4))"
START = "block * block_size + index"
ORDER, UNWRITTEN = "order is i, f, g, o", "never written stay NaN"
EDGE = "the last tile has fewer rows"
# What of a solution becomes what, and what the message must say.
PLANTED = {
    "cell": [
        (GATES, FIVE, ORDER),
        ("math.tanh(g_bar)", "sigmoid(g_bar)", "a tanh, no sigmoid"),
        ("math.tanh(c)", "math.tanh(c_prev)", "the new c"),
        ("math.tanh(c)", "c", "the tanh is missing"),
        ("return h, c", "return c, h", "h comes first"),
        ("return h, c", "return h, h", "h is used in the place of c"),
        ("return h, c", "return c, c", "c is used in the place of h"),
        ("return h, c", "return h", "it returns float, want h and c"),
        ("    return h, c\n", "", "it returns nothing"),
        ("i * g", "i * g / 0", "raised ZeroDivisionError: .*, in line 5"),
    ],
    "step": [
        (BLOCKS, "i_bar, f_bar, o_bar, g_bar = np.split", ORDER),
        ("np.split(a, 4, axis=1)", COLUMNS, "every fourth column"),
        (" + h @ W", "", "h W is missing"),
        ("(f_bar) * c", "(f_bar) * h", "h stands in the place of c"),
        ("    c = ", "    c *= 1\n    c = ", "read-only.*write to results"),
        ("return h, c", "return h[:1], c", r"h: got shape \(1, 7\), want \(3, 7\)"),
        ("return h, c", "return h.astype(np.float16), c", "h: relative error"),
        ("return h, c", "return h, np.full_like(c, np.nan)", "not finite"),
    ],
    "recurrence": [
        (OUTER + RESET, RESET[4:] + OUTER, "the state is not reset"),
        (OUTER + RESET + INNER, LATE, "order of loops"),
        (TWICE, INNER + "    " + RESET, "reset at every step"),
        (r"(?s)\n            a\[:\].+?y\[t, s\] = h\n", IN_PLACE, "h is overwritten"),
        ("a[H + j], a[2 * H + j]", "a[2 * H + j], a[H + j]", ORDER),
        ("range(T)", "range(T - 1)", UNWRITTEN),
        ("@njit\n", "", "not compiled"),
        ("a[:] = b", "a[:] = eval('b')", "raised TypingError: .*eval.*in line 9"),
        ("a[:] = b", "b[:] = a", "read-only"),
    ],
    "parallel": [
        (r"(?s)prange\(B\)(.+)range\(T\)", r"range(B)\1prange(T)", "the same time"),
        ("prange(B)", "range(B)", "no loop is a prange"),
        ("prange(B)", "prange(B - 1)", UNWRITTEN),
        ("h[t, s], W", "h[t, s], 0 * W", "h W is missing"),
    ],
    "tile": [
        ("min(r + 1, M - 1)", "r + 1", f"raised IndexError.*{EDGE}"),
        ("range(0, M, 2)", "range(0, M - 1, 2)", f"C: got .* {EDGE}"),
        ("s01 + a0 * b1", "s01 + a1 * b0", "sum rc is row r times column c"),
        ("range(K)", "range(K - 1)", "C: relative error"),
        (r"(?s)    for r in range.+?\n\n\n", "    C[:] = A @ B\n\n\n", "than once"),
    ],
    "thread": [
        ("if s < x.shape[1]:", "if True:", "IndexError: sample 3 of 3 .*the guard"),
        ("x.shape[1]:", "x.shape[1] - 1:", "leaves out the last sample"),
        (START, "index", "threads share a sample"),
        ("        walk", "        0 and walk", UNWRITTEN),
    ],
}
MISTAKES = [(name, *how) for name, rows in PLANTED.items() for how in rows]


@pytest.mark.parametrize(("name", "old", "new", "hint"), MISTAKES)
def test_a_planted_mistake_gets_its_hint(names, name, old, new, hint):
    pattern = old if "(?s)" in old else re.escape(old)
    new = new if "(?s)" in old else new.replace("\\", r"\\")
    source, count = re.subn(pattern, new, SOLUTIONS[name])
    assert count == 1
    says = rf"(?s)^Exercise {EXERCISES[name].number}: .*{hint}"
    with pytest.raises(exercises.Wrong, match=says):
        grade(names, source)
    assert issubclass(exercises.Wrong, MismatchError)


def test_an_index_is_no_blank():
    assert not lesson.has_blanks(lambda a: a[..., 0])
    assert lesson.has_blanks(lambda a: a[..., 0] + ...)


def test_what_is_wrong_again_is_no_longer_solved(names):
    grader, said = grade(names, SOLUTIONS["cell"])
    with pytest.raises(exercises.Wrong):
        exec(SOLUTIONS["cell"].replace("i * g", "i"), names | {"lesson": grader})
    grader.score()
    assert said[-1] == "Exercises solved: 0 of 6."


BAD = [
    (lambda: lesson.Lesson(Page()).grade("Cell", len), "name: got 'Cell', want one of"),
    (lambda: lesson.Lesson(Page()).grade("cell", 3), "function: got int, want a funct"),
    (lambda: lesson.Lesson(Page(), strict="no"), "strict: got str, want True or False"),
    (lambda: predictions().guess("NumPy", 0), "guess: got 0"),
    (lambda: predictions().guess("NumPy", float("nan")), "guess: got nan"),
    (lambda: predictions().guess("NumPy", "ten"), "guess: got"),
    (lambda: predictions().guess("nothing", 1), "stage: got 'nothing'"),
    (lambda: predictions().figure(), "want one before the figure"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input_is_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_a_solved_exercise_is_timed_beside_the_package(names):
    grader, said = grade(names, SOLUTIONS["cell"])
    rows = np.random.default_rng(0).uniform(-1, 1, (20, 5))
    grader.beside("step", "`numpy`", lambda: None, rows)  # open: says nothing
    grader.beside("cell", "the package's", lambda: None, rows)
    told = r"Exercise 1: yours [\d.]+ us, the package's [\d.]+ us\."
    assert re.fullmatch(told, said[-1])
    assert len(said) == 2


SECONDS = {("sequential", 1): 8.0, ("numpy", 1): 2.0, ("numba-sample", 1): 0.5}
SECONDS |= {("numba-fused", 1): 1.0, (lesson.LOOPS, 1): 0.5}
GUESSES = [
    ("loops", 3, "measured **2 ns**", "guessed 3 ns, which is within a factor of two"),
    ("NumPy", 16, "measured **4x**", "16x, which is too high by a factor of 4."),
    ("NumPy", 1, "measured **4x**", "guessed 1x, which is too low by a factor of 4."),
    ("NumPy", None, "measured **4x**: ", "no: guess"),
    ("compiled", 4, "measured **4x**", "within a factor of two"),
    ("tile", 1, "measured **50 % slower**", "within a factor of two"),
    ("threads", 2, "Not measured: this process has one core."),
]


def predictions(*guesses):
    """Predictions after some guesses, pairs of a stage and a value."""
    times = [(case, repeat, s) for case, s in SECONDS.items() for repeat in range(3)]
    times = pd.DataFrame(times, columns=["case", "repeat", "seconds"])
    answers = lesson.Predictions(Page(), times, 4_000_000_000)
    for guess in guesses:
        answers.guess(*guess)
    return answers


@pytest.mark.parametrize(("guess", "words"), [(g[:2], g[2:]) for g in GUESSES])
def test_a_guess_stands_beside_the_measured_factor(guess, words):
    has(words, predictions(guess)._nb.said[0])


def test_all_guesses_are_shown_and_counted():
    answers = predictions(*(guess[:2] for guess in GUESSES[:2] + GUESSES[4:]))
    measured = answers.table()["measured"].to_list()
    assert measured == ["2 ns", "4x", "4x", "50 % slower"]
    assert answers.factors() == "NumPy 4x, compiled 4x, tile 50 % slower"
    assert answers.score() == "3 of 4 guesses are within a factor of two"
    versions = [f"`{version}`" for version, _ in SECONDS]
    assert answers.times()["version"].to_list() == versions
    has(["guess 16x", "measured 50 % slower"], text_of(answers.figure()))


def test_no_guess_is_no_guess():
    answers = predictions(("loops", None), ("NumPy", None))
    assert answers.table()["your guess"].to_list() == ["-", "-"]
    assert answers.score() == "No guess was made"
    assert "Labels: measured 4x." in text_of(answers.figure())
    answers.guess("NumPy", 3)
    assert answers.score() == "1 of 1 guesses are within a factor of two"


def test_the_notebook_has_the_form_of_the_report():
    assert problems_of_form(BOOK) == []
    source = "\n".join(cell.source for cell in BOOK.cells)
    stages = re.findall(r'answers\.guess\("(\w+)", guess\)', source)
    assert stages == ["loops", *lesson.STAGES]
    for name in NAMES:
        assert f'lesson.grade("{name}", {name})' in SOLUTIONS[name]

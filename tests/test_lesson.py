"""The classroom: blanks are seen, solutions pass, likely mistakes get the hint that
fits; guesses stand beside what was measured. As a program: exercise 6 without the
simulator.
"""

import json
import linecache
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import notebook_rules as rules
import numpy as np
import pytest
from form import problems_of_code, problems_of_form
from pages import has, rows, text_of
from test_ptx import without_simulator
from test_ptx_machine import pytestmark as marks_of_machine

from lstm_report.lesson import __main__ as handout
from lstm_report.lesson import exercises, gpu_code, lesson, mistakes, stages
from lstm_report.lesson.exercises import EXERCISES
from lstm_report.measure import MismatchError
from lstm_report.measure.timing import together
from lstm_report.ptx_machine import compiler

SOLUTION = re.compile(
    r"<details><summary>Solution</summary>\n\n```python\n(.+?)\n```\n", re.DOTALL
)


def exercises_of(page, names):
    """A notebook, and by name the cells of its exercises and their solutions."""
    path = Path(__file__).parents[1] / "notebooks" / f"{page}.ipynb"
    book = nbformat.read(path, 4)
    tagged = [k for k, cell in enumerate(book.cells) if "exercise" in rules.tags(cell)]
    places = dict(zip(names, tagged, strict=True))
    stubs = {name: book.cells[k].source for name, k in places.items()}
    solutions = {
        n: SOLUTION.search(book.cells[k + 1].source) for n, k in places.items()
    }
    return book, stubs, {name: found[1] for name, found in solutions.items()}


NAMES = list(EXERCISES)
BOOK, STUBS, SOLUTIONS = exercises_of("lesson", NAMES)


class Page:
    """What the grader says."""

    def __init__(self):
        self.said = []

    def say(self, text, disturbed=""):
        self.said.append(text)

    @staticmethod
    def pick(*, smoke, paper):
        return smoke


def set_up():
    """What the notebook's set-up defines."""
    space = {"PRESET": "smoke", "STRICT": False}
    for cell in BOOK.cells:
        if cell.cell_type == "code" and "import " in cell.source:
            exec(cell.source, space)
    return space


names = pytest.fixture(set_up, scope="module", name="names")


def run(source, space):
    """Execute a cell as IPython does: its source can be looked up."""
    file = f"<cell {len(linecache.cache)}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    exec(compile(source, file, "exec"), space)


def grade(names, source, strict=True):
    """Run an exercise's cell; returns the grader and what it said."""
    page = Page()
    grader = lesson.Lesson(page, strict=strict)
    run(source, names | {"lesson": grader})
    return grader, page.said


@pytest.mark.parametrize("name", NAMES)
def test_an_exercise_with_blanks_is_open(names, name):
    exercise = EXERCISES[name]
    message = f"Exercise {exercise.number} is open. Hint: {exercise.hint}."
    with pytest.raises(exercises.Open, match=re.escape(message)):
        grade(names, STUBS[name])
    grader, said = grade(names, STUBS[name], strict=False)
    assert said == [message]
    grader.score()
    assert said[-1] == "Exercises solved: 0 of 6."


# Another right form of each: what of a solution becomes what.
RIGHT = {
    "cell": [
        ("sigmoid(f_bar)", "1 / (1 + np.exp(-f_bar))"),
        ("math.tanh(g_bar)", "2 * sigmoid(2 * g_bar) - 1"),
        ("h, c\n", "[h, c]\n"),
    ],
    "step": [
        ("h @ W", "np.einsum('bk,kn->bn', h, W)"),
        ("np.split(a, 4, axis=1)", "a.reshape(len(a), 4, -1).transpose(1, 0, 2)"),
        ("return h, c", "return [h, c]"),
    ],
    "recurrence": [
        ("h[:], c[:] = 0, 0", "h = np.zeros_like(h); c.fill(0)"),
        (
            "for n in range(4 * H):\n                    a[n] += h[k] * W[k, n]",
            "a += W[k] * h[k]",
        ),
    ],
    "parallel": [
        ("prange(B)", "prange(x.shape[1])"),
        ("range(T)", "range(len(h) - 1)"),
    ],
    "tile": [
        ("min(r + 1, M - 1)", "(r + 1) % M"),
        ("A[r, k], A[r1, k]", "A.T[k, r], A.T[k][r1]"),
        ("range(0, M, 2)", "range(M - 2 + M % 2, -1, -2)"),
    ],
    "thread": [
        ("if s <", "while s <"),
        ("c, gates)\n\n", "c, gates)\n        break\n\n"),
    ],
}


def edited(source, changes):
    for old, new in changes:
        assert source.count(old) == 1
        source = source.replace(old, new)
    return source


ANSWERS = {
    name: [edited(SOLUTIONS[name], changes) for changes in (RIGHT[name], [])]
    for name in NAMES
}


# `conftest` lets Numba simulate a GPU, where other code runs than a learner's.
GRADED = """
import test_lesson as lesson
names = lesson.set_up()
for name, answers in lesson.ANSWERS.items():
    # Those of exercise 4 take seconds each to compile: `make test-colab` runs all.
    for answer in answers[-1:] if name == "parallel" else answers:
        print(*lesson.grade(names, answer)[1])
"""


def test_right_answers_are_right_where_learners_run_them():
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    env = os.environ | {"NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": path}
    how = {"env": env, "capture_output": True, "text": True, "check": False}
    done = subprocess.run([sys.executable, "-c", GRADED], **how)
    assert done.returncode == 0, done.stderr
    right = r"Exercise (\d) is right: largest relative error \d\.\de-\d\d"
    told = [int(re.match(right, line)[1]) for line in done.stdout.splitlines()]
    assert told == [1, 1, 2, 2, 3, 3, 4, 5, 5, 6, 6]


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
FILL = "            a[:] = b\n"
LATE = RESET[4:] + INNER[4:] + "    " + OUTER
APART = "a[H + j], a[2 * H + j], a[3 * H + j]"
H_W = "for k in range(H):\n                for n in range(4 * H):\n"
GATES = "sigmoid(i_bar), sigmoid(f_bar), sigmoid(o_bar)"
FIVE = "sigmoid(f_bar), sigmoid(i_bar), sigmoid(o_bar)"
COLUMNS = "(a[:, k::4] for k in range(4))"
START = "block * block_size + index"
# What of a solution becomes what, and what the message must say: a row a kind.
PLANTED = {
    "cell": [
        (GATES, FIVE, "order is i, f, g, o"),
        ("math.tanh(c)", "math.tanh(c_prev)", "the new c"),
        ("math.tanh(c)", "c", "at case .*tanh is missing: h = o tanh"),
        ("c_prev + i", "c_prev - i", "both parts are added"),
        (GATES, "i_bar, f_bar, o_bar", "Hint: i, f, o: got no function; i, f and o"),
        ("f * c_prev + ", "", "f c_prev is missing"),
        ("return h, c", "return c, h", "h comes first"),
        ("return h, c", "return h", "it returns float, want h and c"),
        ("i * g", "i * g / 0", "raised ZeroDivisionError: .*, in line 5: `c = f .* 0`"),
    ],
    "step": [
        ("np.split(a, 4, axis=1)", COLUMNS, "every fourth column"),
        (
            "(f_bar) * c",
            "(f_bar) * h",
            r"at step \d, sample .*h stands in the place of c",
        ),
        (" + b ", " - b ", "b is added"),
        ("sigmoids(f", "sigmoid(f", "it takes one number; `sigmoids`"),
        ("    c = ", "    c *= 1\n    c = ", "read-only.*write to results"),
        ("x @ U", "x * U", r"ValueError.*x.shape = \(3, 3\).*matrix products, `x @ U`"),
        ("return h, c", "return h[:1], c", r"h: got shape \(1, 7\), want \(3, 7\)"),
    ],
    "recurrence": [
        (OUTER + RESET, RESET[4:] + OUTER, "the state is not reset"),
        ("a[n] += h[k]", "a[n] = h[k]", r"overwritten: add to it with \+="),
        (OUTER + RESET + INNER, LATE, "order of loops"),
        (RESET + INNER, INNER + "    " + RESET, "reset at every step"),
        (r"(?s)\n            a\[:\].+?y\[t, s\] = h\n", IN_PLACE, "h is overwritten"),
        (APART, APART.replace("H", "D"), "H apart, not D"),
        (H_W, H_W.replace("range(H)", "range(D)"), "D rows of W alone"),
        ("W[k, n]", "W[n, k]", r"n = 7, .*\(7, 28\).*not W\[n, k\]"),
        (INNER + FILL, FILL[4:] + INNER, r"a\[:\] = b at every step"),
        ("(T, B, D), H", "(B, T, D), H", "IndexError.*T and B are exchanged"),
        (RESET, "", "what the memory of np.empty held"),
        ("range(T)", "range(T - 1)", "never written stay NaN"),
        ("@njit\n", "", "not compiled"),
    ],
    "parallel": [
        (r"(?s)prange\(B\)(.+)range\(T\)", r"range(B)\1prange(T)", "the same time"),
        ("prange(B)", "range(B)", "no loop is a prange"),
    ],
    "tile": [
        ("min(r + 1, M - 1)", "r + 1", "raised IndexError.*the last tile has fewer"),
        ("s01 + a0 * b1", "s01 + a1 * b0", "sum 01 is row 0 by column 1, not row 1"),
        ("s01 + a0 * b1", "a0 * b1", "a sum is overwritten"),
        ("s01 + a0 * b1", "s01 - a0 * b1", "products are added"),
        ("B[k, j], B[k, j1]", "B[k, j], B[k, j2]", "IndexE|NameError: [^,]*, in line"),
        ("A[r, k], A[r1, k]", "A[k, r], A[k, r1]", r"is A\[r, k\], not A\[k, r\]"),
        (
            r"(?s)    for r in range.+?\n\n\n",
            "    C[:] = A @ B\n\n\n",
            "a call such as",
        ),
    ],
    "thread": [
        ("if s < x.shape[1]:", "if True:", "IndexError: `sample 3 of 3 .*the guard"),
        ("x.shape[1]:", "x.shape[1] - 1:", "leaves out the last sample"),
        ("    if s <", "    while s <", "computes sample 0 again and again"),
        (START, f"{START} + 1", "sample 0 is computed by 0 threads.*count from 0"),
        (START, "index", "threads share a sample"),
        (START, "index * block_size + block", "block and index are exchanged"),
        (
            "        walk",
            "        0 and walk",
            "sample 0 is computed by 0 threads, want 1",
        ),
    ],
}
MISTAKES = [(name, *how) for name, rows in PLANTED.items() for how in rows]


@pytest.mark.parametrize(("name", "old", "new", "hint"), MISTAKES)
def test_a_planted_mistake_gets_its_hint(names, name, old, new, hint):
    pattern = old if "(?s)" in old else re.escape(old)
    new = new if "(?s)" in old else new.replace("\\", r"\\")
    source, count = re.subn(pattern, new, SOLUTIONS[name])
    assert count == 1
    says = rf"(?s)^Exercise {EXERCISES[name].number} is not right yet: .*{hint}"
    with pytest.raises(exercises.Wrong, match=says) as raised:
        grade(names, source)
    assert isinstance(raised.value, MismatchError)
    assert raised.value._render_traceback_() == [str(raised.value)]
    _, said = grade(names, source, strict=False)  # the page goes on
    assert said == [str(raised.value)]


# As code for a GPU: what of the solution of exercise 6 becomes what, and what is said
# of it. Its blocks are of three threads, then of five.
GUARD = "if s < x.shape[1]:"
RACE = r"has a fault in blocks of \d threads \(race\): thread"
OUTSIDE = r"has a fault in blocks of \d threads \(outside\): thread"
CLEAN = (
    r"^Exercise 6 is right: .*e-\d\d. As code for a GPU it has no race, and no index"
)
WALK = r"`walk\(s, x, U, W, b, h, c, gates\)`, "
ON_GPU = [
    ("", "", CLEAN),
    (START, "index + block_size * block", CLEAN),
    (GUARD, "if s >= x.shape[1]:\n        return\n    if True:", CLEAN),
    (GUARD, "h[0, 0, 0] if s < 1 else 0\n    " + GUARD, CLEAN),  # a read is none
    # The first sample of block 1 is that of block 0, or the one behind it.
    (
        START,
        "index",
        f"threads share a sample: .* On a GPU line 5, {WALK}{RACE} 0 of block 1 writes "
        r"gates\[0, 0, 0, 0\], which thread 0 of block 0 writes at line 5,",
    ),
    (
        START,
        "block + index",
        f"threads share a sample: .* On a GPU line 5, {WALK}{RACE} 0 of block 1 writes "
        r"gates\[0, 1, 0, 0\], which thread 1 of block 0 writes at line 5,",
    ),
    # In three samples the first index that is too large is of the last step: 5 * 3 * 3.
    (
        GUARD,
        "if True:",
        f"the guard, .* On a GPU line 5, {WALK}{OUTSIDE} 3 of block 0 reads "
        r"x.flat\[45\], outside of its shape \(5, 3, 3\)",
    ),
    (
        GUARD,
        GUARD.replace("<", "<="),
        f"the guard, .* On a GPU line 5, {WALK}{OUTSIDE}",
    ),
    # Right one thread after the other.
    (
        GUARD,
        f"h[0] = 0\n    {GUARD}",
        rf"not right yet: on a GPU line 4, `h\[0\] = 0`, {RACE} 1 of block 0 writes "
        r"h\[0, 0, 0\], which thread 0 writes at line 4, .* Hint: ",
    ),
    (
        "c, gates)\n\n",
        "c, gates)\n        c[0, 0] = 0\n\n",
        rf"not right yet: on a GPU line 6, `c\[0, 0\] = 0`, {RACE} 1 of block 0 writes "
        r"c\[0, 0, 0\], which thread 0 ",
    ),
    (
        START,
        f"np.array([{START}]).sum().item()",
        "as code for a GPU it raised TypingE",
    ),
    (
        GUARD,
        f"print(s)\n    {GUARD}",
        r"^Exercise 6 is right: .* was not checked: NotImplementedError: [^/]*:4: call",
    ),
    # No race and no index: what Python says alone.
    (GUARD, "if s < x.shape[1] - 1:", r"leaves out the last sample: [^.]*\.$"),
]


WITH_COMPILER = marks_of_machine[0]


def on_gpu(changes):
    """What is said of each change of the solution of exercise 6."""
    space = set_up()
    for old, new in changes:
        source = edited(SOLUTIONS["thread"], [(old, new)] if new else [])
        yield grade(space, source, strict=False)[1][0]


def messages(*how):
    """What is said in a process without the simulator; a learner prints numbers."""
    lines = without_simulator(__file__, *how)
    return [line for line in lines if line.startswith("Exercise")]


@WITH_COMPILER
def test_exercise_6_is_executed_as_code_for_a_gpu():
    for (*change, says), said in zip(ON_GPU, messages(), strict=True):
        assert re.search(says, said), (change, said)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("compiler", "C compiler: got no-cc, want gcc or clang on the PATH"),
        ("NVVM", r"no kernel can be compiled \(OSError: no libNVVM\): pip install "),
    ],
)
def test_where_it_cannot_be_a_right_answer_says_so(monkeypatch, how, reason):
    if how == "compiler":
        monkeypatch.setenv("CC", "no-cc")
    right, wrong = messages(how)
    says = "^Exercise 6 is right: .* at the same time was not checked: "
    assert re.search(says + reason, right)
    assert re.search(ON_GPU[-1][-1], wrong)


def test_what_is_wrong_on_a_gpu_alone_is_not_right(monkeypatch):
    def wrong(thread):
        raise MismatchError("h: relative error 1")

    monkeypatch.setattr(gpu_code, "why_unavailable", lambda: None)
    monkeypatch.setattr(gpu_code, "first_fault", wrong)
    with pytest.raises(exercises.Wrong, match="as code for a GPU it raised Mismatch"):
        grade(set_up(), SOLUTIONS["thread"])


def test_what_is_wrong_again_is_no_longer_solved(names):
    grader, said = grade(names, SOLUTIONS["cell"])
    assert not lesson.has_blanks(lambda a: a[..., 0])  # an index is none
    with pytest.raises(exercises.Wrong):
        exec(SOLUTIONS["cell"].replace("i * g", "i"), names | {"lesson": grader})
    grader.score()
    assert said[-1] == "Exercises solved: 0 of 6."


def test_bad_input_is_refused():
    grader, answers = lesson.Lesson(Page()), predictions()
    for call, words, message in (
        (grader.grade, ("Cell", len), "name: got 'Cell', want one of"),
        (grader.grade, ("cell", 3), "function: got int, want a function"),
        (answers.guess, ("NumPy", float("nan")), "guess: got nan"),
        (answers.guess, ("nothing", 1), "stage: got 'nothing'"),
        (answers.figure, (), "want one before the figure"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            call(*words)


def test_a_solved_exercise_is_timed_beside_the_package(names):
    grader, said = grade(names, SOLUTIONS["cell"])
    inputs = np.random.default_rng(0).uniform(-1, 1, (20, 5))
    grader.beside("step", "`numpy`", lambda: None, inputs)  # open: says nothing
    grader.beside("cell", "the package's", lambda: None, inputs)
    told = r"Exercise 1: yours [\d.]+ µs, the package's [\d.]+ µs\."
    assert re.fullmatch(told, said[-1])


ONE, TWO = ("numba-sample", 1), ("numba-sample", 2)
TILE, FUSED = ("numba-tile", 1), ("numba-fused", 1)
LESSON = {("sequential", 1): 0.064, ("numpy", 1): 0.016, (stages.LOOPS, 1): 4e-3}
SECONDS = {
    "": LESSON | {ONE: 8e-3, TILE: 7e-3, FUSED: 1e-3, TWO: 4e-3},
    "many samples": {ONE: 0.9, TWO: 0.5},
    "large": {ONE: 0.3, TILE: 0.1, FUSED: 0.05},
    "large, one sample": {ONE: 0.011, TILE: 0.01, FUSED: 0.005},
    "smallest": {ONE: 3e-4, TWO: 5e-4, TILE: 4e-4, FUSED: 1e-4},
}
GUESSES = [
    ("loops", 30, "measured **78.9 ns**", "low by a factor"),
    ("NumPy", 16, "**4x**: `sequential` takes 64 ms, `numpy` takes 16 ms", "high by a"),
    ("NumPy", None, "<details><summary>No guess: show it", "**4x**: ", "no: guessed"),
    ("compiled", 4, "measured **4x**", "within a factor of two", "no: details"),
    ("tile", 3, "measured **3x**", "one sample: 1.1x. With 32 units", "16 KiB: 1.14x"),
    ("threads", 2, "measured **2x**", "one step takes 500 µs", "**1.8x**"),
    ("GPU", 2, "Not measured: "),
]


def predictions(*guesses, threads=2):
    """Predictions after some guesses, pairs of a stage and a value."""
    parts = [rows(times).assign(work=work) for work, times in SECONDS.items()]
    times = together(parts).query("process == 0").drop(columns="process")
    answers = stages.Predictions(Page(), times, peak=186.0, threads=threads)
    for guess in guesses:
        answers.guess(*guess)
        answers.result(guess[0])
    return answers


@pytest.mark.parametrize(("guess", "words"), [(g[:2], g[2:]) for g in GUESSES])
def test_a_guess_stands_beside_the_measured_factor(guess, words):
    asked, answered = predictions(guess)._nb.said
    assert "measured" not in asked
    has(words, answered)
    one_core = predictions(("threads", 2), threads=1)._nb.said[1]
    assert one_core == "Not measured: this process has one core."


def test_all_guesses_are_shown_and_counted():
    answers = predictions(*(guess[:2] for guess in GUESSES[:2] + GUESSES[3:]))
    assert answers.score() == "3 of 5 guesses are within a factor of two"
    has(["guess 16x", "measured 3x", "3 of 5", "tile"], text_of(answers.figure()))
    has(["64x", "NumPy 4x", "50 % slower, `numba-tile`"], answers.factors())
    table = answers.times().reset_index()
    versions = [f"`{version}`" for version, _ in SECONDS[""]]
    assert table["version"].to_list() == versions
    assert table.iloc[1].to_list()[1:3] == ["1", "16000"]
    answers.disturbed = "quartiles 70 % apart"
    answers.result("tile")
    assert "**Noisy session: quartiles 70 % apart.**" in answers._nb.said[-1]
    answers.last_step()
    has(["**7x**, 6000 µs less", "takes 300 µs more"], answers._nb.said[-1])
    nothing = predictions(("loops", None), ("NumPy", None))
    assert nothing.score() == "No guess was made"
    has(["largest factor is NumPy: 4x", "no: guess"], text_of(nothing.figure()))


def test_the_stages_are_timed_and_agree():
    passes = stages.Passes(stages.AIRLINE.params(), stages.windows())
    assert list(passes) == stages.cases()
    y, _ = passes["numpy", 1]()
    ahead, wrong = mistakes.races(stages.AIRLINE.params(), stages.windows(), y, runs=2)
    assert ahead.startswith("y: relative error")
    assert wrong in range(3)
    assert stages.errors(1e-9, passes.largest_error()) != stages.errors(1e-9)
    passes["numpy", 1] = lambda: (passes.y + 1, None)
    with pytest.raises(MismatchError):
        passes.largest_error()
    assert {*stages.others("smallest")} == {*SECONDS["smallest"]}
    times = stages.timed({ONE: passes[ONE]}, repeats=1)
    assert {*times["work"]} == {*SECONDS}
    assert "conditions" in times.attrs


def test_a_handout_has_no_solutions(tmp_path):
    book, out = Path(rules.ROOT, "notebooks", "lesson.ipynb"), tmp_path / "out.ipynb"
    handout.main([str(book), str(out)])
    text = out.read_text()
    assert "Solution" in book.read_text()
    assert "Solution" not in text
    assert "s < x.shape[1]" not in text
    assert "lesson.grade" in text
    cells = json.loads(text)["cells"]
    assert len(cells) == len(BOOK.cells) - len(NAMES)  # those of solutions alone
    assert not any(cell.get("outputs") for cell in cells)
    with pytest.raises(SystemExit):
        handout.main([str(book), str(out)])


def test_the_notebook_has_the_form_of_the_report():
    assert problems_of_form(BOOK) + problems_of_code(BOOK) == []
    source = "\n".join(cell.source for cell in BOOK.cells)
    asked = re.findall(r'answers\.(guess|result)\("(\w+)"', source)
    names = "loops", *stages.STAGES
    assert asked == [(what, name) for name in names for what in ("guess", "result")]
    for name in NAMES:
        assert f'lesson.grade("{name}", {name})' in SOLUTIONS[name]


def no_nvvm(*words, **options):
    raise OSError("no libNVVM.\nIt is looked for in many places.")


if __name__ == "__main__":
    if sys.argv[1:] == ["NVVM"]:
        compiler.compile_ptx = no_nvvm
    which = slice(None, None, len(ON_GPU) - 1 if sys.argv[1:] else None)
    print(*on_gpu([how[:2] for how in ON_GPU[which]]), sep="\n")

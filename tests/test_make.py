"""`make report` and its kin on small notebooks: lines, failures, claims, interrupts, what
is up to date.
"""

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import notebook_rules as rules
import psutil
import pytest
import report
from made import code, parameters, save, text
from notebook_rules import ReportError

ROOT = Path(__file__).parents[1]
# What `nb.claim` displays, without the time that its imports take.
CLAIM = """
claim = {{"sentence": {!r}, "verdict": {!r}, "numbers": ""}}
about = {{"lstm_kernels": {{"claim": claim}}}}
display({{"text/markdown": "> **It.**"}}, metadata=about, raw=True)
"""
# A cell that says by a file that it runs, and does not end.
ENDLESS = "import pathlib, time\npathlib.Path('running').touch()\ntime.sleep(600)"


def notebook(folder, name, source):
    """A notebook that is not executed: title, claim, parameters, then `source`."""
    start = text(f"# {name}\n\n**A claim.**"), parameters()
    return save(
        folder / "notebooks" / f"{name}.ipynb", *start, code(source, count=None)
    )


@pytest.fixture
def project(tmp_path):
    """A project without a page."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".stamp").touch()  # the environment is this one
    (tmp_path / "notebooks").mkdir()
    shutil.copy(ROOT / "notebooks" / "references.bib", tmp_path / "notebooks")
    return tmp_path


def environment():
    """Without what a make that runs this test hands down."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    return own | {"PYTHONPATH": str(ROOT)}


def make(project, *targets, **env):
    words = ["make", f"PY={sys.executable}", *targets]
    how = {"env": environment() | env, "capture_output": True, "text": True}
    return subprocess.run(words, cwd=project, **how)


def bare(project, words):
    """What make does without an environment and without a network."""
    shutil.rmtree(project / ".venv")
    words = *words.split(), f"PYTHON={sys.executable}", "PY=.venv/bin/python"
    return make(project, *words, PIP_NO_INDEX="1")


def started(done):
    return re.findall(r"^(\w+) \(\d of \d\) starts", done.stdout, re.MULTILINE)


def test_a_wrong_result_stops_nothing_but_fails_and_the_next_call_goes_on(project):
    notebook(project, "01_a", CLAIM.format("One is two.", "Did not hold"))
    wrong = notebook(project, "02_b", "assert 1 == 2, 'wrong result'")
    notebook(project, "lesson", CLAIM.format("Two is two.", "Held"))
    save(project / "build" / "paper" / wrong.name, text("an old result"))
    done = make(project, "report")
    assert done.returncode != 0
    assert started(done) == ["01_a", "02_b", "lesson"]
    assert "01_a (1 of 3) starts, about 0 s left" in done.stdout
    assert re.search(r"^02_b \(2 of 3\) failed after \d+ s$", done.stdout, re.MULTILINE)
    assert "02_b.ipynb, cell 3 failed: AssertionError: wrong result\n" in done.stderr
    told = done.stdout[done.stdout.index("Claims:") :]
    assert re.sub(r"\d+ s", "1 s", told).splitlines() == [
        "Claims: 1 held, 1 did not.",
        "01_a: 1 s",
        "  claim 1, did not hold: One is two.",
        "    build/site/01_a.html#claim-01_a-1",
        "02_b: not executed",
        "lesson: 1 s",
    ]
    site = project / "build" / "site"
    pages = {path.name for path in site.iterdir()}
    assert {"index.html", "01_a.html", "lesson.html"} <= pages - {"02_b.html"} == pages

    notebook(project, "02_b", "assert 1 == 1")
    words = [sys.executable, "tools/report.py", "run", "build/paper"]
    how = {"env": environment(), "capture_output": True, "text": True}
    done = subprocess.run(words, cwd=project, **how)
    assert done.returncode == 0, done.stderr  # a claim that does not hold is no failure
    assert started(done) == ["02_b"]


def interrupted(project, command, reached, **env):
    """What a command of report.py says that is interrupted once `reached(process)`."""
    process = subprocess.Popen(
        [sys.executable, "tools/report.py", *command.split()],
        cwd=project,
        env=environment() | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not reached(process):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate()[1]
    assert said == "report: interrupted; the same call goes on from here\n"
    assert process.returncode == 130


@pytest.mark.parametrize("sign", ["line", "kernel", "cell"])
def test_an_interrupt_is_a_line_without_a_traceback(project, sign):
    """As soon as the page is announced, its kernel is there, or its cell runs."""
    notebook(project, "01_a", ENDLESS)
    running = project / "notebooks" / "running"
    reached = {
        "line": lambda process: process.stdout.readline().startswith("01_a (1 of 1)"),
        "kernel": lambda process: psutil.Process(process.pid).children(),
        "cell": lambda process: running.exists(),
    }
    interrupted(project, "run build", reached[sign])
    assert not (project / "build").exists()


# A module that says by a file that it is imported, and hides an interrupt.
SLOW = """
import pathlib, time
pathlib.Path("importing").touch()
try:
    time.sleep(600)
except BaseException:
    raise ImportError("broken")
"""


@pytest.mark.parametrize(
    ("module", "command"),
    [("nbformat", "run build"), ("papermill", "run build"), ("bs4", "html build site")],
)
def test_an_interrupt_while_a_module_is_imported_is_a_line_too(
    project, module, command
):
    notebook(project, "01_a", "1")
    stubs = project / "stubs"
    stubs.mkdir()
    (stubs / f"{module}.py").write_text(SLOW)
    path = os.pathsep.join([str(stubs), str(ROOT)])
    importing = project / "importing"
    interrupted(project, command, lambda _: importing.exists(), PYTHONPATH=path)


def test_pages_are_chosen_by_number_or_name_and_one_that_fails_stops_none(
    project, capsys
):
    for name in ("01_a", "02_b", "10_c", "lesson"):
        notebook(project, name, "1")
    executed = []

    def execute(path, out, preset, began):
        executed.append((path.stem, out.parent.name, preset))
        if path.stem == "02_b":
            raise ReportError("wrong")

    def run(only):
        executed.clear()
        fine = report.run(project / "out", "smoke", only, project, execute)
        return fine, [stem for stem, *_ in executed]

    for only in ("1", "01", "01_a"):
        assert run(only) == (True, ["01_a"])
    assert run("L") == run("lesson") == (True, ["lesson"])
    assert executed == [("lesson", "out", "smoke")]
    assert run("") == (False, ["01_a", "02_b", "10_c", "lesson"])
    assert "report: wrong" in capsys.readouterr().err
    with pytest.raises(ReportError, match="NB: got '7', want the number or name of 01"):
        run("7")


def test_what_is_left_counts_rows_of_other_pages_that_are_not_there(tmp_path):
    """Page 1 took 30 seconds, 20 of them for rows that page 2 took from it, in 5."""
    for name, seconds, made in (("01_a", 30, True), ("02_b", 5, False)):
        book = rules.read(notebook(tmp_path, name, "1"))
        took = {"seconds": seconds, "shared": {"a.b": [3, 20, made]}}
        book = rules.stored(book, took | {"cells": f"0 0 {seconds}"})
        report.write(tmp_path / "notebooks" / f"{name}.ipynb", rules.dumps(book))

    def left(only):
        stream, nothing = io.StringIO(), lambda *_: None
        assert report.run(
            tmp_path / "build", "paper", only, tmp_path, nothing, stream=stream
        )
        return int(re.search(r"starts, about (\d+) s left", stream.getvalue())[1])

    assert [left("1"), left("2"), left("")] == [30, 25, 35]
    rows = tmp_path / "build" / "shared" / "a.b"
    report.write(rows, b"rows")
    assert [left("1"), left("2"), left("")] == [10, 5, 15]
    (tmp_path / "lstm_kernels").mkdir()
    (tmp_path / "lstm_kernels" / "a.py").touch()
    os.utime(rows, (1, 1))  # of older code
    assert [left("1"), left("2"), left("")] == [30, 25, 35]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("notebook", "Makefile:[0-9]+: .* NB: want the number of a notebook"),
        ("notebook NB=42", "report: NB: got '42', want the number or name of 01_a\n"),
        ("notebook NB=1 PRESET=big", "report: PRESET: got 'big', want paper or smoke"),
        ("notebook NB=1 SPACE=98765", r"\.venv: got .* GB free .*, want 98765\n"),
        ("report SPACE=98765", r"\.venv: got .* GB free .*, want 98765\n"),
        ("test SPACE=98765", r"\.venv: got .* GB free .*, want 98765\n"),
    ],
)
def test_what_cannot_be_is_a_sentence_before_an_environment_is_made(
    project, words, said
):
    notebook(project, "01_a", "1")
    done = bare(project, words)
    assert done.returncode != 0
    assert re.match(said, done.stderr), done.stderr
    assert done.stdout == ""
    assert not (project / ".venv").exists()


def test_packages_that_do_not_come_are_told_of_in_a_sentence(project):
    done = bare(project, "report")
    assert done.returncode != 0
    *_, last, _ = done.stderr.splitlines()  # and what make says
    assert "no network, or no space left?" in last
    assert not (project / ".venv" / ".stamp").exists()


PACKAGES = ("lstm_kernels/cpu/a.py", "lstm_kernels/series/a.csv", "lstm_report/a.py")
RECORDED = ("data/results/ptx.csv", "data/results/b/a.csv", "data/results/b/a.json")
READ = (*PACKAGES, *RECORDED)


@pytest.fixture
def executed(tmp_path):
    """A project with the files of READ: its root, a notebook, what was executed of it,
    and the root for `up_to_date`.
    """
    for path in (tmp_path / path for path in READ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    source, out = notebook(tmp_path, "01_a", "1"), tmp_path / "out.ipynb"
    for path in tmp_path.rglob("*"):
        os.utime(path, (1, 1))
    assert not report.up_to_date(source, out, tmp_path)
    shutil.copy(source, out)
    assert report.up_to_date(source, out, tmp_path)
    return source, out, tmp_path


def renew(path):
    os.utime(path, (time.time() + 9,) * 2)  # clocks are coarse


@pytest.mark.parametrize("path", READ)
def test_what_a_page_reads_and_is_newer_makes_it_old(executed, path):
    renew(executed[-1] / path)
    assert not report.up_to_date(*executed)


@pytest.mark.parametrize("size", [0, 40])
def test_a_page_that_is_damaged_is_old(executed, size):
    out = executed[1]
    out.write_bytes(out.read_bytes()[:size])
    renew(out)
    assert not report.up_to_date(*executed)
    with pytest.raises(ReportError, match=f"{out.name}: damaged"):
        rules.read(out)


def test_results_that_go_make_a_page_old_and_caches_do_not(executed):
    cache = executed[-1] / "lstm_kernels" / "__pycache__" / "a.pyc"
    cache.parent.mkdir()
    cache.touch()
    renew(cache)
    assert report.up_to_date(*executed)
    gone = executed[-1] / RECORDED[-1]
    gone.unlink()
    renew(gone.parent)
    assert not report.up_to_date(*executed)

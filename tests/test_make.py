"""`make report` and its kin on small notebooks: lines, failures, claims, what is up to
date.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import notebook_rules as rules
import pytest
import report
import standalone
from made import code, parameters, save, text

ROOT = Path(__file__).parents[1]
# What `nb.claim` displays, without the time that its imports take.
CLAIM = """
claim = {{"sentence": {!r}, "verdict": {!r}, "numbers": ""}}
about = {{"lstm_kernels": {{"claim": claim}}}}
display({{"text/markdown": "> **It.**"}}, metadata=about, raw=True)
"""


def notebook(folder, name, source):
    """A notebook that is not executed: title, claim, parameters, then `source`."""
    start = text(f"# {name}\n\n**A claim.**"), parameters()
    save(folder / "notebooks" / f"{name}.ipynb", *start, code(source, count=None))


@pytest.fixture
def project(tmp_path):
    """A project of three notebooks, of which the second fails."""
    for name in (
        "Makefile",
        "requirements.lock",
        "pyproject.toml",
        "README.md",
        "tools",
    ):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".stamp").touch()  # the environment is this one
    notebook(tmp_path, "01_a", CLAIM.format("One is two.", "Did not hold"))
    notebook(tmp_path, "02_b", "assert 1 == 2, 'wrong result'")
    notebook(tmp_path, "lesson", CLAIM.format("Two is two.", "Held"))
    shutil.copy(ROOT / "notebooks" / "references.bib", tmp_path / "notebooks")
    return tmp_path


def make(project, *targets):
    own = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    words = ["make", f"PY={sys.executable}", *targets]
    env = own | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(words, cwd=project, env=env, capture_output=True, text=True)


def started(done):
    return re.findall(r"^(\w+) \(\d of \d\) starts", done.stdout, re.MULTILINE)


def test_a_wrong_result_stops_nothing_but_fails_and_the_next_call_goes_on(project):
    done = make(project, "report")
    assert done.returncode != 0
    assert started(done) == ["01_a", "02_b", "lesson"]
    assert "01_a (1 of 3) starts; the stored run took 0 s, 0.0 min left" in done.stdout
    assert "02_b.ipynb, cell 3 failed: AssertionError: wrong result" in done.stderr
    told = done.stdout[done.stdout.index("Claims:") :]
    assert re.sub(r"\d+ s", "1 s", told).splitlines() == [
        "Claims: 1 did not hold, 1 held",
        "01_a: 1 s, stored 1 s",
        "  did not hold: One is two.",
        "02_b: not executed",
        "lesson: 1 s, stored 1 s",
    ]
    site = project / "build" / "site"
    assert {"index.html", "01_a.html", "lesson.html"} <= {
        p.name for p in site.iterdir()
    }
    assert not (site / "02_b.html").exists()

    notebook(project, "02_b", "assert 1 == 1")
    done = make(project, "report")
    assert done.returncode == 0, done.stderr  # a claim that does not hold is no failure
    assert started(done) == ["02_b"]
    assert done.stdout.endswith("open build/site/index.html\n")
    assert (site / "02_b.html").exists()


@pytest.mark.parametrize("number", ["1", "01", "lesson"])
def test_one_notebook_is_named_by_its_number(project, number):
    done = make(project, "notebook", f"NB={number}", "PRESET=smoke")
    assert done.returncode == 0, done.stderr
    assert started(done) == ["lesson" if number == "lesson" else "01_a"]
    [built] = (project / "build" / "smoke").glob("*.ipynb")
    assert 'PRESET = \\"smoke\\"' in built.read_text()


def test_a_number_that_is_none_is_an_error_that_names_those_there_are(project):
    done = make(project, "notebook", "NB=7")
    assert done.returncode != 0
    assert "NB: got '7', want the number or name of 01_a, 02_b, lesson" in done.stderr
    assert "NB: want the number of a notebook" in make(project, "notebook").stderr


def read_by_pages():
    """Of what the pages carry where they stand alone, a file of each folder and kind."""
    carried = {}
    for path in report.sources():
        carried |= standalone.carried(rules.read(path))
    found = (path.relative_to(ROOT) for path in carried.values())
    return sorted({(path.parent, path.suffix): path for path in found}.values())


READ = read_by_pages()


@pytest.fixture
def executed(tmp_path, monkeypatch):
    """A project with files of READ: its root, a notebook, and what was executed of it."""
    monkeypatch.setattr(report, "ROOT", tmp_path)
    for path in (tmp_path / path for path in READ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    notebook(tmp_path, "01_a", "1")
    for path in tmp_path.rglob("*"):
        os.utime(path, (1, 1))
    source, out = tmp_path / "notebooks" / "01_a.ipynb", tmp_path / "out.ipynb"
    assert not report.up_to_date(source, out)
    shutil.copy(source, out)
    assert report.up_to_date(source, out)
    return tmp_path, source, out


def test_pages_read_code_series_and_results():
    kinds = {(path.parts[0], path.suffix) for path in READ}
    wanted = {("lstm_kernels", ".py"), ("lstm_kernels", ".csv"), ("lstm_report", ".py")}
    assert wanted | {("data", ".csv"), ("data", ".json")} <= kinds


@pytest.mark.parametrize("path", READ, ids=str)
def test_what_a_page_reads_and_is_newer_makes_it_old(executed, path):
    project, source, out = executed
    os.utime(project / path, (time.time() + 9,) * 2)
    assert not report.up_to_date(source, out)


def test_results_that_come_or_go_make_a_page_old_and_caches_do_not(executed):
    project, source, out = executed
    cache = project / "lstm_kernels" / "__pycache__" / "a.pyc"
    cache.parent.mkdir()
    cache.touch()
    os.utime(cache, (time.time() + 9,) * 2)
    assert report.up_to_date(source, out)
    gone = next(
        path for path in READ if path.parts[0] == "data" and len(path.parts) > 3
    )
    (project / gone).unlink()
    os.utime((project / gone).parent, (time.time() + 9,) * 2)  # clocks are coarse
    assert not report.up_to_date(source, out)

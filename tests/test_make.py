"""`make report` and `make smoke` on small notebooks: lines, failures, interruptions,
claims.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import notebook_rules as rules
import papermill
import pytest
import report
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).parents[1]
# What `nb.claim` displays, without the time that its imports take.
CLAIM = """
claim = {{"sentence": {!r}, "verdict": {!r}, "numbers": ""}}
about = {{"lstm_kernels": {{"claim": claim}}}}
display({{"text/markdown": "> it"}}, metadata=about, raw=True)
"""


def notebook(path, *sources, seconds=None):
    """A notebook that is not executed: title, claim, parameters, then `sources`."""
    first = new_code_cell('PRESET = "paper"')
    first.metadata.tags = ["parameters"]
    cells = [new_markdown_cell(f"# {path.stem}\n\n**A claim.**"), first]
    cells += [new_code_cell(source) for source in sources]
    metadata = rules.METADATA | ({rules.OURS: {"seconds": seconds}} if seconds else {})
    path.parent.mkdir(exist_ok=True)
    nbformat.write(new_notebook(cells=cells, metadata=metadata), path)
    return path


@pytest.fixture
def project(tmp_path):
    """A project of three notebooks, of which the second fails; its tools are those of
    this one.
    """
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".stamp").touch()  # the environment is this one
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    notebooks = tmp_path / "notebooks"
    notebook(notebooks / "01_a.ipynb", CLAIM.format("One is two.", "Did not hold"))
    notebook(notebooks / "02_b.ipynb", "assert 1 == 2, 'wrong result'")
    notebook(notebooks / "lesson.ipynb", CLAIM.format("Two is two.", "Held"))
    return tmp_path


def make(project, target):
    own = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    words = ["make", f"PY={sys.executable}", target]
    return subprocess.run(
        words, cwd=project, env=own, capture_output=True, text=True, check=False
    )


def started(said):
    return re.findall(r"^(\w+) \(\d of 3\): starts", said, re.MULTILINE)


def test_a_wrong_result_stops_nothing_but_fails_and_the_next_call_goes_on(project):
    done = make(project, "report")
    assert done.returncode != 0
    assert started(done.stdout) == ["01_a", "02_b", "lesson"]
    assert "02_b.ipynb, cell 3 failed: AssertionError: wrong result" in done.stderr
    told = done.stdout[done.stdout.index("claims:") :]
    assert told.splitlines() == [
        "claims: 1 held, 1 did not hold here, 0 not measured",
        "  did not hold here, 01_a: One is two.",
        "02_b: not executed",
    ]
    pages = {path.name for path in (project / "build" / "site").glob("*.html")}
    assert {"index.html", "01_a.html", "lesson.html"} <= pages
    assert "02_b.html" not in pages

    notebook(project / "notebooks" / "02_b.ipynb", "assert 1 == 1")
    done = make(project, "report")
    # A claim that does not hold is no failure.
    assert done.returncode == 0, done.stderr
    assert started(done.stdout) == ["02_b"]
    assert done.stdout.endswith("open build/site/index.html\n")
    files = project / "build" / "site" / "files"
    assert {path.name for path in files.glob("*.ipynb")} == {
        "01_a.ipynb",
        "02_b.ipynb",
        "lesson.ipynb",
    }
    index = (project / "build" / "site" / "index.html").read_text()
    assert 'href="files/02_b.ipynb"' in index


def test_an_interrupt_is_a_line_and_leaves_no_result(tmp_path, capsys, monkeypatch):
    path = notebook(tmp_path / "notebooks" / "01_a.ipynb", "1")
    out = tmp_path / "out.ipynb"

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(papermill, "execute_notebook", interrupted)
    monkeypatch.setattr(report.logging, "disable", lambda: None)
    assert report.main(["execute", str(path), str(out)]) == 130
    assert (
        capsys.readouterr().err
        == "report: interrupted; the same call goes on from here\n"
    )
    assert not out.exists()


def test_a_line_tells_what_a_notebook_took_and_what_it_took_before(tmp_path, capsys):
    path = notebook(tmp_path / "notebooks" / "01_a.ipynb", "1", seconds=240)
    for given, before in (
        ({}, "; the stored run took 4 min"),
        ({"PRESET": "smoke"}, ""),
    ):
        report.execute(path, tmp_path / "out.ipynb", given)
        first, last = capsys.readouterr().out.splitlines()
        assert first == f"01_a (1 of 1): starts{before}"
        assert re.fullmatch(rf"01_a \(1 of 1\): \d+ s{re.escape(before)}", last)
    assert rules.seconds(rules.read(tmp_path / "out.ipynb")) < 100

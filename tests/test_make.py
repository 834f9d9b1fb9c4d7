"""`make report` and its kin on small notebooks: failures, interrupts, what is up to
date, what cannot be.
"""

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
from made import TITLE, code, parameters, save

ROOT = Path(__file__).parents[1]
# What `nb.claim` displays, without the time that its imports take.
CLAIM = """
claim = {{"sentence": {!r}, "verdict": {!r}, "numbers": ""}}
about = {{"lstm_kernels": {{"claim": claim}}}}
display({{"text/markdown": "> **It.**"}}, metadata=about, raw=True)
"""
# A cell that says by a file that it runs, and does not end.
ENDLESS = "import pathlib, time\npathlib.Path('running').touch()\ntime.sleep(600)"
# What is read of this project, so that a small one has it.
FILES = "Makefile", "requirements.lock", "pyproject.toml", "README.md"


def notebook(folder, name, source):
    """A notebook that is not executed: title, claim, parameters, then `source`."""
    cells = TITLE, parameters(), code(source, count=None)
    return save(folder / "notebooks" / f"{name}.ipynb", *cells)


@pytest.fixture
def project(tmp_path):
    """A project without a page, whose environment is this one."""
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path)
    for name in ("tools", "figures", "colab"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in (".venv", "notebooks"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / "notebooks" / "references.bib", tmp_path / "notebooks")
    (tmp_path / ".venv" / ".stamp").touch()
    return tmp_path


# Without what a make that runs this test hands down.
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
ENV |= {"PYTHONPATH": str(ROOT)}
OWN = f"PY={sys.executable}"


def make(project, *words, **env):
    how = {"env": ENV | env, "capture_output": True, "text": True}
    return subprocess.run(["make", OWN, *words], cwd=project, **how)


def test_a_page_that_fails_stops_no_other_and_the_next_call_goes_on(project):
    """A failure is a status, a claim that does not hold a result."""
    notebook(project, "01_a", CLAIM.format("One is two.", "Did not hold"))
    wrong = notebook(project, "02_b", "assert 1 == 2, 'wrong result'")
    notebook(project, "lesson", CLAIM.format("Two is two.", "Held"))
    build, site = project / "build" / "paper", project / "build" / "site"
    os.utime(save(build / wrong.name, TITLE), (1, 1))  # an old result
    done = make(project, "report")
    assert done.returncode != 0
    assert "AssertionError: wrong result" in done.stderr
    assert "02_b.ipynb failed" in done.stderr
    ended = done.stdout[done.stdout.index("Claims:") :]
    assert ended.splitlines() == [
        "Claims: 1 held, 1 did not.",
        "Medians outside the range of the stored run: 0 of 0.",
        "01_a: did not hold: One is two.",
        "    build/site/notebooks/01_a.html#claim-01_a-1",
        "02_b: not executed",
    ]
    pages = {path.stem for path in site.rglob("*.html")}
    assert {"index", "01_a", "lesson"} <= pages - {"02_b"} == pages

    before = (build / "01_a.ipynb").stat().st_mtime
    notebook(project, "02_b", "assert 1 == 1")
    done = make(project, "report")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "open build/site/index.html"
    assert (site / "notebooks" / "02_b.html").exists()
    assert (build / "01_a.ipynb").stat().st_mtime == before


def test_an_interrupt_leaves_the_pages_that_are_done_and_no_process(project):
    notebook(project, "01_a", "1")
    notebook(project, "02_b", ENDLESS)
    how = {"cwd": project, "env": ENV, "start_new_session": True}
    how["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(["make", OWN, "report"], **how)
    while not (project / "notebooks" / "running").exists():
        assert process.poll() is None
        time.sleep(0.1)
    kernels = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait() != 0
    _, alive = psutil.wait_procs(kernels, timeout=20)
    assert not alive
    built = (project / "build" / "paper").glob("*.ipynb")
    assert [path.name for path in built] == ["01_a.ipynb"]
    assert not (project / "build" / "site").exists()


PACKAGES = ("lstm_kernels/cpu/a.py", "lstm_kernels/series/a.csv", "lstm_report/a.py")
RECORDED = ("data/results/ptx.csv", "data/results/b/a.csv", "data/results/b/a.json")
READ = (*PACKAGES, *RECORDED, "notebooks/01_a.ipynb")
CACHE = "lstm_kernels/__pycache__/a.pyc"


def test_what_a_page_reads_and_is_newer_makes_it_old_and_unfit_to_be_accepted(project):
    page = "build/paper/01_a.ipynb"
    for path in (*READ, CACHE):
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).touch()
    notebook(project, "01_a", "1")
    stored = (project / "notebooks" / "01_a.ipynb").read_bytes()
    for path in project.rglob("*"):
        os.utime(path, (1, 1))
    assert make(project, "-q", page).returncode  # it is not there
    os.utime(save(project / page, TITLE), (5, 5))
    for path in (*READ, "data/results/b"):  # a folder tells of what is gone
        assert not make(project, "-q", page).returncode
        os.utime(project / path, (9, 9))
        assert make(project, "-q", page).returncode, path
        done = make(project, "accept")
        assert done.returncode
        assert f"nothing is accepted: {page} is not there, or older" in done.stderr
        os.utime(project / path, (1, 1))
    os.utime(project / CACHE, (9, 9))
    assert not make(project, "-q", page).returncode
    assert (project / "notebooks" / "01_a.ipynb").read_bytes() == stored


def test_a_page_is_chosen_by_number_letter_or_name_and_executed_anew(project):
    for name in ("01_a", "10_c", "lesson", "lab", "appendix"):
        notebook(project, name, "1")
    wants = {"1": "01_a", "01": "01_a", "10_c": "10_c", "L": "lesson", "A": "appendix"}
    wants |= {"S": "lab"}
    for number, want in wants.items():
        for preset in ("paper", "smoke"):
            words = "notebook", f"NB={number}", f"PRESET={preset}"
            pages = re.findall(
                r"build/(\S+)\.ipynb", make(project, "-n", *words).stdout
            )
            assert pages == [f"{preset}/{want}"] * 2  # removed and made


def bare(project, words):
    """What make does without an environment and without a network."""
    shutil.rmtree(project / ".venv")
    words = *words.split(), f"PYTHON={sys.executable}", "PY=.venv/bin/python"
    return make(project, *words, PIP_NO_INDEX="1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("notebook", "Makefile:.* NB: got '', want the number or name of 01_a"),
        ("notebook NB=42", "Makefile:.* NB: got '42', want the number or name of 01_a"),
        ("notebook NB=1 PRESET=big", ".* PRESET: got 'big', want paper or smoke"),
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


def test_what_is_stored_is_the_page_with_its_preset(project):
    cell = "import os\nfrom lstm_kernels.notes import note\nnote('x', 'is loud')\n"
    cell += f"print(PRESET, {f'{project}/data'!r}, os.getcwd()[-9:])"
    folded = code(cell, count=None, tags=["hide-input"])
    save(project / "notebooks" / "01_a.ipynb", TITLE, parameters(), folded)
    began = time.time()
    done = make(project, "build/smoke/01_a.ipynb")
    assert done.returncode == 0, done.stderr
    out = project / "build" / "smoke" / "01_a.ipynb"
    book = rules.read(out)
    said = "smoke data notebooks\n"
    assert [cell.get("execution_count") for cell in book.cells] == [None, 1, 2]
    assert [output.text for _, output, _ in rules.outputs(book)] == [said]
    assert rules.preset(book) == "smoke"
    assert book.cells[-1].metadata == {"tags": ["hide-input"]} | rules.FOLDED
    assert book.metadata == rules.METADATA
    assert out.read_text() == rules.dumps(book)
    assert abs(out.stat().st_mtime - began) < 10  # what changes meanwhile is newer


def test_what_goes_to_stderr_is_a_failure_that_leaves_no_result(project):
    notebook(project, "01_a", "import sys\nprint('loud', file=sys.stderr)")
    os.utime(save(project / "build" / "paper" / "01_a.ipynb", TITLE), (1, 1))
    done = make(project, "build/paper/01_a.ipynb")
    assert done.returncode != 0
    assert "01_a.ipynb, cell 3 wrote to stderr: loud" in done.stderr
    assert not (project / "build" / "paper" / "01_a.ipynb").exists()

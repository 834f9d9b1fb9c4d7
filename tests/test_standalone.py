"""The notebooks that stand alone: one file each, in an empty folder, without a
network.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
import notebook_rules as rules
import pytest
import report
import standalone
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from test_lesson import ANSWERS
from traitlets.config import Config

ROOT = Path(__file__).parents[1]
NOTEBOOKS = [*report.sources(), ROOT / "tools" / "gpu.ipynb"]
RESULTS = ROOT / "data" / "results"
# The interpreter of an environment such as teachers have: `make test-colab` names it.
KERNEL = os.environ.get("LSTM_KERNELS_KERNEL")
KERNEL = KERNEL and os.path.abspath(KERNEL)
# Where the system allows it, a kernel has no network at all.
ALONE = ["unshare", "--map-root-user", "--net"]
try:
    subprocess.run([*ALONE, "true"], check=True, capture_output=True)
except (OSError, subprocess.CalledProcessError):
    ALONE = []


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of the notebooks that stand alone."""
    folder = tmp_path_factory.mktemp("dist")
    standalone.make(folder, NOTEBOOKS)
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home folder for every kernel of this module: code is compiled once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def execute(home, tmp_path, monkeypatch):
    """A function that executes a notebook in an empty folder, with a kernel that has
    nothing of this process's environment, and returns what its cells wrote, by stream.
    """

    def run(book):
        folder = tmp_path / "empty"
        folder.mkdir()
        # A short path: sockets lie in it
        with tempfile.TemporaryDirectory() as settings:
            search = os.pathsep.join([str(Path(KERNEL).parent), "/usr/bin:/bin"])
            kernel = ["env", "-i", f"HOME={home}", f"PATH={search}"]
            kernel += [f"JUPYTER_RUNTIME_DIR={settings}"]
            kernel += ["PYDEVD_DISABLE_FILE_VALIDATION=1", *ALONE, KERNEL, "-m"]
            kernel += ["ipykernel_launcher", "-f", "{connection_file}"]
            spec = Path(settings, "kernels", "alone", "kernel.json")
            spec.parent.mkdir(parents=True)
            about = {"argv": kernel, "display_name": "alone", "language": "python"}
            spec.write_text(json.dumps(about))
            monkeypatch.setenv("JUPYTER_PATH", settings)
            monkeypatch.setenv("JUPYTER_RUNTIME_DIR", settings)
            manager = {"transport": "ipc", "ip": f"{settings}/kernel"}
            where = {"metadata": {"path": str(folder)}}
            how = {"resources": where, "config": Config({"KernelManager": manager})}
            NotebookClient(book, timeout=None, kernel_name="alone", **how).execute()
        assert not list(folder.iterdir()), "it leaves files in the teacher's folder"
        said = {"stdout": "", "stderr": ""}
        for _, output, _ in rules.outputs(book):
            if output.output_type == "stream":
                said[output.name] += output.text
        return said

    return run


def named(match):
    return re.sub(r"\[([^]]+)\]\((\w+\.ipynb)\)", r"\1 (`\2`)", match[0])


def test_what_a_pages_module_names_is_carried(tmp_path, monkeypatch):
    pages, recorded = tmp_path / "lstm_report" / "pages", tmp_path / "data/results/m"
    for folder in (pages, recorded):
        folder.mkdir(parents=True)
    (pages / "page_01.py").write_text("read('trial')")
    (pages / "page_02.py").write_text("read('other')")
    for name in ("trial", "other"):
        (recorded / f"{name}.csv").touch()
    monkeypatch.setattr(standalone, "ROOT", tmp_path)
    cell = new_code_cell(
        "from lstm_report.pages import page_01 as page; page_width = 1"
    )
    brought = standalone.carried(new_notebook(cells=[cell]))
    assert [name for name in brought if "recorded" in name] == [
        "lstm_report/recorded/m/trial.csv"
    ]


def test_the_next_pages_are_named_by_their_files(tmp_path):
    text = "See [02](02_b.ipynb).\n\nHow to go on: [01](01_cell.ipynb) has it."
    path = tmp_path / "01_a.ipynb"
    nbformat.write(new_notebook(cells=[new_markdown_cell(text)]), path)
    source = json.loads(standalone.standalone(path))["cells"][0]["source"]
    assert "".join(source) == ("See 02.\n\nHow to go on: 01 (`01_cell.ipynb`) has it.")


def test_each_notebook_carries_the_package_and_is_otherwise_its_source(made):
    for source in NOTEBOOKS:
        before, after = rules.read(source), rules.read(made / source.name)
        first = after.cells.pop(1)
        assert rules.tags(first) == ["package"]
        # Links to files beside it, which lead nowhere, are text.
        for one, other in zip(after.cells, before.cells, strict=True):
            text = re.sub(r"How to (go|read) on(?s:.*)", named, other.source)
            text = re.sub(r"\[([^]]+)\]\([\w./]+\)", r"\1", text)
            assert one.source == (other.source if other.cell_type == "code" else text)
            if one.cell_type == "markdown":
                assert not re.search(r"\]\([\w./]*\.(ipynb|md)", one.source)
        assert all(not cell.get("outputs") for cell in after.cells)


# `python -S` sees neither this project, which is installed here, nor what it needs: the
# package itself needs NumPy to be imported, and that is said first.
FIND = "import importlib.util; print(importlib.util.find_spec('lstm_kernels').origin)"


def run_cell(source, home, *options, **env):
    """What the first cell does in a process with little of this one's environment."""
    env = {"HOME": str(home), "PATH": os.environ["PATH"]} | env
    how = {"cwd": home, "env": env, "capture_output": True, "text": True}
    words = [sys.executable, *options, "-"]
    return subprocess.run(words, input=f"{source}\n{FIND}", check=False, **how)


def place_of(done):
    """Where the first cell has put the packages."""
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.splitlines()[-1]).parents[1]


@pytest.fixture
def first_cell(made):
    return rules.read(made / NOTEBOOKS[0].name).cells[1].source


def test_the_first_cell_brings_both_packages_and_the_results_it_names(tmp_path):
    code = new_code_cell("a = nb.recorded('peers')\nb = find(\"ptxas.csv\")")
    path = tmp_path / "a.ipynb"
    nbformat.write(new_notebook(cells=[new_markdown_cell("# A"), code]), path)
    source = nbformat.reads(standalone.standalone(path), 4).cells[1].source
    place = place_of(run_cell(source, tmp_path, "-S"))
    wanted = {
        path.relative_to(ROOT): path
        for package in ("lstm_kernels", "lstm_report")
        for path in (ROOT / package).rglob("*")
    }
    for path in (*RESULTS.glob("*/peers.*"), RESULTS / "ptxas.csv"):
        wanted[Path("lstm_report", "recorded", path.relative_to(RESULTS))] = path
    carried = {path.relative_to(place): path for path in place.rglob("*")}
    got, want = (
        {name: path.read_bytes() for name, path in files.items() if kept(path)}
        for files in (carried, wanted)
    )
    assert got == want
    assert len(got) > 60


def kept(path):
    return path.is_file() and "__pycache__" not in path.parts


def test_the_same_files_make_the_same_bytes_and_others_go(made, tmp_path):
    (tmp_path / "08_gone.ipynb").touch()
    standalone.make(tmp_path, NOTEBOOKS[:1])
    (path,) = tmp_path.iterdir()
    assert path.read_bytes() == (made / path.name).read_bytes()
    title = rules.read(path).cells[1].source.partition("\n")[0]
    version, size = re.search(r"lstm_kernels (\S+) .* of (\d+) KB", title).groups()
    assert version == standalone.__version__
    assert abs(int(size) - path.stat().st_size / 1000) <= 1


def test_the_first_cell_skips_itself_where_the_package_can_be_imported(
    first_cell, tmp_path
):
    done = run_cell(first_cell, tmp_path, PYTHONPATH=str(ROOT))
    assert place_of(done) == ROOT
    assert "was made for" not in done.stdout
    source = re.sub(r'(VERSION, SHA256 =) "[^"]+"', r'\1 "9.8"', first_cell)
    done = run_cell(source, tmp_path, PYTHONPATH=str(ROOT))
    assert "this notebook was made for 9.8." in done.stdout
    assert not (tmp_path / ".cache").exists()


NO_HOME = "import pathlib\ndef no_home(*_): raise RuntimeError('no home')\n"
NO_HOME += "pathlib.Path.home = no_home\n"


@pytest.mark.parametrize("obstacle", ["a file", "no home", "a relative cache"])
def test_a_cache_that_cannot_be_used_is_no_obstacle(first_cell, tmp_path, obstacle):
    env = {"TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    if obstacle == "a file":
        (tmp_path / ".cache").write_text("where the folder would be")
    if obstacle == "a relative cache":
        env["XDG_CACHE_HOME"] = "here"
    source = NO_HOME * (obstacle == "no home") + first_cell
    place = place_of(run_cell(source, tmp_path, "-S", **env))
    relative = obstacle == "a relative cache"
    assert place.is_relative_to(tmp_path / (".cache" if relative else "tmp"))
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("change", ["none", "empty", "one file"])
def test_what_was_unpacked_is_used_again_where_it_is_whole(
    first_cell, tmp_path, change
):
    done = run_cell(first_cell, tmp_path, "-S")
    place = place_of(done)
    assert f"unpacked to {place}" in done.stdout
    file = place / "lstm_kernels" / "cells.py"
    wanted, made = file.read_bytes(), file.stat().st_ino
    if change == "empty":
        shutil.rmtree(place)
        place.mkdir()
    if change == "one file":
        file.write_text("raise SystemExit(3)")
    assert place_of(run_cell(first_cell, tmp_path, "-S")) == place
    assert file.read_bytes() == wanted
    assert (file.stat().st_ino == made) == (change == "none")
    assert [*place.parent.iterdir()] == [place]


FULL = """
import errno, zipfile
def full(self, folder):
    open(f"{folder}/begun", "w").close()
    raise OSError(errno.ENOSPC, "no space left")
zipfile.ZipFile.extractall = full
"""
OTHER_USER = "import os\nos.getuid = lambda: 12345\n"
DAMAGED = "ValueError: this cell was cut or changed: take a fresh copy"
OLD = "import sys; sys.hexversion = 0x30A0000\n"
# What stands before the cell, what of its packed text becomes what, and the error.
FAULTS = {
    "a full disk": (FULL, "", "", "cannot be unpacked to .*no space left"),
    "another user": (OTHER_USER, "", "", "cannot be unpacked to "),
    "an old Python": (OLD, "", "", "this needs 3.11"),
    "cut": ("", r'.{100}\n"""', '\n"""', DAMAGED),
    "changed": ("", r'(?<=.{99}).(?=\n""")', lambda m: chr(ord(m[0]) ^ 1), DAMAGED),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_work_is_an_error_and_leaves_nothing(first_cell, tmp_path, fault):
    before, old, new, message = FAULTS[fault]
    source = before + re.sub(old, new, first_cell, count=1)
    assert (source != before + first_cell) == bool(old)
    (tmp_path / "tmp").mkdir()
    done = run_cell(source, tmp_path, "-S", TMPDIR=str(tmp_path / "tmp"))
    assert re.search(message, done.stderr, re.DOTALL)
    if fault != "another user":  # whose own folder stays
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
        assert not [*(tmp_path / "tmp").iterdir()]


needs_kernel = pytest.mark.skipif(
    not KERNEL, reason="`make test-colab` runs these elsewhere"
)


@needs_kernel
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_an_empty_folder(execute, made, path):
    book = rules.read(made / path.name)
    for cell in book.cells:
        if "parameters" in rules.tags(cell):
            cell.source = cell.source.replace('"paper"', '"smoke"', 1)
    said = execute(book)
    assert "lstm_kernels and lstm_report unpacked to" in said["stdout"]
    assert not said["stderr"].strip()


@needs_kernel
def test_the_lesson_is_solved_in_an_empty_folder(execute, made):
    book = rules.read(made / "lesson.ipynb")
    exercises = [cell for cell in book.cells if "exercise" in rules.tags(cell)]
    for cell, answers in zip(exercises, ANSWERS.values(), strict=True):
        cell.source = "\n\n\n".join(answers)
    for cell in book.cells:
        if rules.tags(cell) == ["guess"]:
            cell.source = cell.source.replace("None", "3")
        cell.source = cell.source.replace('PRESET = "paper"', 'PRESET = "smoke"')
    assert not execute(book)["stderr"].strip()
    shown = (output.get("data", {}) for _, output, _ in rules.outputs(book))
    said = "\n".join(data.get("text/markdown", "") for data in shown)
    right = [number for number in range(1, 7) for _ in range(4)]
    assert [*map(int, re.findall(r"Exercise (\d) is right", said))] == right
    assert [*map(int, re.findall(r"Exercise (\d): yours", said))][:5] == [1, 2, 3, 4, 5]
    assert "Exercises solved: 6 of 6: 1, 2, 3, 4, 5, 6." in said
    assert "guesses are within a factor of two" in said

"""The notebooks that stand alone: one file each, in an empty folder, without a
network.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import notebook_rules as rules
import pytest
import standalone
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from test_lesson import ANSWERS
from traitlets.config import Config

from lstm_report import closings

ROOT = Path(__file__).parents[1]
GPU = ROOT / "tools" / "gpu.ipynb"
NOTEBOOKS = [*rules.notebooks(ROOT / "notebooks"), GPU]
# The interpreter of an environment such as teachers have: `make test-colab` names it.
KERNEL = os.environ.get("LSTM_KERNELS_KERNEL")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of the notebooks that stand alone."""
    folder = tmp_path_factory.mktemp("dist")
    (folder / "08_gone.ipynb").touch()  # of another state
    standalone.make(folder, NOTEBOOKS)
    return folder


def test_each_notebook_carries_the_package_and_is_otherwise_its_source(made):
    assert {path.name for path in made.iterdir()} == {path.name for path in NOTEBOOKS}
    for source in NOTEBOOKS:
        before, after = rules.read(source), rules.read(made / source.name)
        first = after.cells.pop(1)
        assert rules.tags(first) == ["package"]
        about = rf"lstm_kernels {standalone.__version__} .* of (\d+) KB"
        size = int(re.search(about, first.source)[1])
        assert abs(size - (made / source.name).stat().st_size / 1000) <= 1
        # Links to files beside it, which lead nowhere, are text.
        for one, other in zip(after.cells, before.cells, strict=True):
            text = re.sub(r"\[([^]]+)\]\([\w./]+\)", r"\1", other.source)
            assert one.source == (other.source if other.cell_type == "code" else text)
            assert not one.get("outputs")
    assert standalone.standalone(source) == (made / source.name).read_text()


FIND = "import importlib.util; print(importlib.util.find_spec('lstm_kernels').origin)"


def run_cell(source, home, *options, **env):
    """What the first cell does in a process with little of this one's environment;
    with `-S` it sees neither this project, which is installed here, nor what it needs.
    """
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
    return rules.read(made / GPU.name).cells[1].source


def files(folder):
    """The content of each file below a folder, but for caches."""
    paths = {path.relative_to(folder): path for path in folder.rglob("*")}
    kept = {
        n: p for n, p in paths.items() if p.is_file() and "__pycache__" not in n.parts
    }
    return {name: path.read_bytes() for name, path in kept.items()}


def test_the_first_cell_brings_both_packages_and_what_was_recorded(
    first_cell, tmp_path
):
    place = place_of(run_cell(first_cell, tmp_path, "-S"))
    rooms = {"lstm_kernels": "lstm_kernels", "lstm_report": "lstm_report"}
    rooms |= {"lstm_report/recorded": "data/results"}
    brought = files(place)
    goals = json.loads(brought.pop(Path("lstm_report/recorded", closings.FILE)))
    assert goals == closings.stored()
    assert brought == {
        Path(room, name): content
        for room, source in rooms.items()
        for name, content in files(ROOT / source).items()
    }


def test_what_was_unpacked_is_used_again_where_it_is_whole(first_cell, tmp_path):
    place = place_of(run_cell(first_cell, tmp_path, "-S"))
    file = place / "lstm_kernels" / "cells.py"
    wanted, unpacked = file.read_bytes(), file.stat().st_ino
    for damage in (lambda: None, file.unlink, lambda: file.write_text("exit(3)")):
        assert file.stat().st_ino == unpacked
        damage()
        done = run_cell(first_cell, tmp_path, "-S")
        assert f"unpacked to {place}" in done.stdout
        assert place_of(done) == place
        assert file.read_bytes() == wanted
        assert [*place.parent.iterdir()] == [place]
        unpacked = file.stat().st_ino


def test_a_cache_that_cannot_be_used_is_no_obstacle(first_cell, tmp_path):
    (tmp_path / ".cache").write_text("where the folder would be")
    (tmp_path / "tmp").mkdir()
    place = place_of(run_cell(first_cell, tmp_path, "-S", TMPDIR=f"{tmp_path}/tmp"))
    assert place.is_relative_to(tmp_path / "tmp")


def test_the_first_cell_skips_itself_where_the_package_is(first_cell, tmp_path):
    other = re.sub(r'(VERSION, SHA256 =) "[^"]+"', r'\1 "9.8"', first_cell)
    for source, differs in ((first_cell, False), (other, True)):
        done = run_cell(source, tmp_path, PYTHONPATH=str(ROOT))
        assert place_of(done) == ROOT
        assert ("this notebook was made for 9.8." in done.stdout) == differs
    assert not (tmp_path / ".cache").exists()


DAMAGED = "ValueError: this cell was cut or changed: take a fresh copy"
OLD = "import sys; sys.hexversion = 0x30A0000\n"
FLIPPED = r'(?<=.{99}).(?=\n""")', lambda letter: chr(ord(letter[0]) ^ 1)
# What stands before the cell, what of its packed text becomes what, and the error.
FAULTS = {
    "an old Python": (OLD, ("", ""), "this needs 3.11"),
    "cut": ("", (r'.{100}\n"""', '\n"""'), DAMAGED),
    "changed": ("", FLIPPED, DAMAGED),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_work_is_an_error_and_leaves_nothing(first_cell, tmp_path, fault):
    before, damage, message = FAULTS[fault]
    source = before + re.sub(*damage, first_cell, count=1)
    assert source != first_cell
    done = run_cell(source, tmp_path, "-S", TMPDIR=str(tmp_path))
    assert message in done.stderr
    assert not [*tmp_path.iterdir()]


# As teachers would: `make test-colab`.

needs_kernel = pytest.mark.skipif(
    not KERNEL, reason="`make test-colab` runs these elsewhere"
)
# Where the system allows it, a kernel has no network at all.
ALONE = ["unshare", "--map-root-user", "--net"]
try:
    subprocess.run([*ALONE, "true"], check=True, capture_output=True)
except (OSError, subprocess.CalledProcessError):
    ALONE = []


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """The folder of a kernel that has nothing of this process's environment, and one
    home for all notebooks: code is compiled once.
    """
    home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("k")
    program = os.path.abspath(KERNEL)
    words = ["env", "-i", f"HOME={home}", f"PATH={Path(program).parent}:/usr/bin:/bin"]
    words += ["PYDEVD_DISABLE_FILE_VALIDATION=1", *ALONE, program, "-m"]
    words += ["ipykernel_launcher", "-f", "{connection_file}"]
    about = {"argv": words, "display_name": "alone", "language": "python"}
    (folder / "alone").mkdir()
    (folder / "alone" / "kernel.json").write_text(json.dumps(about))
    return folder


def execute(book, kernel, tmp_path):
    """What a book of small sizes says that is executed in an empty folder."""
    for cell in book.cells:
        cell.source = cell.source.replace('PRESET = "paper"', 'PRESET = "smoke"', 1)
    sockets = Config({"KernelManager": {"transport": "ipc", "ip": f"{kernel}/socket"}})
    how = {"resources": {"metadata": {"path": str(tmp_path)}}, "config": sockets}
    client = NotebookClient(book, timeout=None, kernel_name="alone", **how)
    manager = client.create_kernel_manager()
    manager.kernel_spec_manager = KernelSpecManager(kernel_dirs=[str(kernel)])
    client.execute()
    assert not list(tmp_path.iterdir()), "it leaves files in the teacher's folder"
    said = [output for _, output, _ in rules.outputs(book)]
    assert not [one.text for one in said if one.get("name") == "stderr"]
    texts = (one.get("data", {}).get("text/markdown", "") for one in said)
    return "\n".join([*texts, *(one.get("text", "") for one in said)])


@needs_kernel
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_an_empty_folder(kernel, made, tmp_path, path):
    said = execute(rules.read(made / path.name), kernel, tmp_path)
    assert "lstm_kernels and lstm_report unpacked to" in said


@needs_kernel
def test_the_lesson_is_solved_in_an_empty_folder(kernel, made, tmp_path):
    book = rules.read(made / "lesson.ipynb")
    exercises = [cell for cell in book.cells if "exercise" in rules.tags(cell)]
    for cell, answers in zip(exercises, ANSWERS.values(), strict=True):
        cell.source = "\n\n\n".join(answers)
    for cell in book.cells:
        if rules.tags(cell) == ["guess"]:
            cell.source = cell.source.replace("None", "3")
    said = execute(book, kernel, tmp_path)
    right = [number for number in range(1, 7) for _ in range(4)]
    assert [*map(int, re.findall(r"Exercise (\d) is right", said))] == right
    assert [*map(int, re.findall(r"Exercise (\d): yours", said))][:5] == [1, 2, 3, 4, 5]
    assert "Exercises solved: 6 of 6: 1, 2, 3, 4, 5, 6." in said
    assert "guesses are within a factor of two" in said

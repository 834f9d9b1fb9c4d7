"""The notebooks that stand alone: one file each, in an empty folder, without a
network.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import notebook_rules as rules
import pytest
import standalone
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from test_lesson import ANSWERS
from test_rooms import GRAPH
from traitlets.config import Config

import lstm_kernels
from lstm_report import closings

ROOT = Path(__file__).parents[1]
GPU = ROOT / "tools" / "gpu.ipynb"
NOTEBOOKS = [*rules.notebooks(ROOT / "notebooks"), GPU]
COLAB = {ROOT / name: recorded for name, recorded in standalone.COLAB.items()}
# The interpreter of an environment such as teachers have: `make test-colab` names it.
KERNEL = os.environ.get("LSTM_KERNELS_KERNEL")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of all notebooks, each with all that there is."""
    folder = tmp_path_factory.mktemp("dist")
    (folder / "08_gone.ipynb").write_text('"id": "package"')  # of another state
    standalone.make(folder, dict.fromkeys(NOTEBOOKS))
    return folder


def test_each_notebook_carries_the_package_and_is_otherwise_its_source(made):
    assert {path.name for path in made.iterdir()} == {path.name for path in NOTEBOOKS}
    for source in NOTEBOOKS:
        before, after = rules.read(source), rules.read(made / source.name)
        assert rules.dumps(after) == (made / source.name).read_text("utf-8")
        first = after.cells.pop(1)
        assert rules.tags(first) == ["package"]
        assert f"lstm_kernels {lstm_kernels.__version__} travels" in first.source
        # Links to files beside it, which lead nowhere, are text.
        for one, other in zip(after.cells, before.cells, strict=True):
            page = r"(page )?\[(\d\d)\]\(\w+\.ipynb\)"
            text = re.sub(page, r"page \2 of the report", other.source)
            text = re.sub(r"\[([^]]+)\]\([\w./]+\)", r"\1", text)
            assert one.source == (other.source if other.cell_type == "code" else text)
            assert not one.get("outputs")


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
    other = "__pycache__", "unpacked"  # the second marks a folder of the first cell's
    kept = {n: p for n, p in paths.items() if p.is_file() and not {*other} & {*n.parts}}
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
    other = re.sub(r'(VERSION, SHA256, MARK =) "[^"]+"', r'\1 "9.8"', first_cell)
    for source, differs in ((first_cell, False), (other, True)):
        done = run_cell(source, tmp_path, PYTHONPATH=str(ROOT))
        assert place_of(done) == ROOT
        assert ("this notebook was made for 9.8." in done.stdout) == differs
    assert not (tmp_path / ".cache").exists()


def test_another_notebook_brings_what_it_needs(tmp_path):
    """In the same kernel, in a process that inherits its PYTHONPATH, or in a folder
    where something else has the packages' names.
    """
    cells = {path: rules.read(ROOT / "colab" / path.name).cells[1] for path in COLAB}
    lesson, lab, gpu, page = (cell.source for cell in cells.values())
    needs = "import importlib.util as u; assert u.find_spec('lstm_report.{}')\n"
    (tmp_path / "lstm_report").mkdir()
    (tmp_path / "lstm_kernels").mkdir()
    source = "\n".join([gpu, page, needs.format("cards"), lab])
    first = run_cell(source + "\n" + needs.format("lesson.lab"), tmp_path, "-S")
    there = place_of(first)
    after = {"PYTHONPATH": str(there)}
    assert place_of(run_cell(lesson, tmp_path, "-S", **after)) != there
    again = run_cell(f"{lab}\n{lab}", tmp_path, "-S", **after)
    assert place_of(again) == there
    assert again.stdout.count("can be imported here already") == 2


DAMAGED = "ValueError: this cell was cut or changed: take a fresh copy"
OLD = "import sys; sys.hexversion = 0x30A0000\n"
FLIPPED = r'(?<=.{99}).(?=.{99}\n""")', lambda letter: chr(ord(letter[0]) ^ 1)
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


# What lies in colab/.

each_of_colab = pytest.mark.parametrize("path", COLAB, ids=lambda path: path.stem)
# KiB. Page 03 measures everything that the others do; the lesson and the lab carry what
# executes code for a GPU.
LARGEST = {"03_cpu_ladder": 240, "lesson": 230, "lab": 230}


def test_colab_has_what_would_be_written_now():
    changed = standalone.stale(ROOT / "colab", COLAB)
    assert not changed, f"{[*changed]}: want `python3 tools/standalone.py`"


@pytest.fixture(scope="module")
def brought(tmp_path_factory):
    """A function: where the first cell of a notebook of colab/ has put what it brings,
    by the notebook's path.
    """
    home = tmp_path_factory.mktemp("home")

    def place(path):
        source = rules.read(ROOT / "colab" / path.name).cells[1].source
        return place_of(run_cell(source, home, "-S"))

    return place


@each_of_colab
def test_a_file_of_colab_is_small_and_brings_files_as_they_are(brought, path):
    size = (ROOT / "colab" / path.name).stat().st_size
    assert size <= 1024 * LARGEST.get(path.stem, 200)
    results = {
        found.relative_to(ROOT / "data" / "results"): found
        for pattern in COLAB[path]
        for found in ROOT.glob(f"data/results/{pattern}")
    }
    assert bool(results) == bool(COLAB[path])
    came = files(brought(path))
    recorded = Path("lstm_report", "recorded")
    for name, content in came.items():
        if name.is_relative_to(recorded):
            source = results.pop(name.relative_to(recorded))
        else:
            source = ROOT / name
        assert content == source.read_bytes(), name
    assert not results


def missing(names):
    """What modules import, wherever in their text, and is not among them."""
    return {other for name in names for other in GRAPH[name]} - {*names}


def modules_in(place):
    paths = [p.relative_to(place).with_suffix("") for p in place.rglob("*.py")]
    return sorted(".".join(p.parts).removesuffix(".__init__") for p in paths)


# In the order of their names; what the notebook imports, and what fresh processes do.
IMPORT_ALL = """
import importlib, importlib.util, json, re, sys, warnings
place, names, code = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
warnings.simplefilter("ignore")
sys.path.insert(0, place)
for name in names:
    if ".torch" in name and not importlib.util.find_spec("torch"):
        continue  # layers for PyTorch, where that is
    assert importlib.import_module(name).__file__.startswith(place), name
exec(code)
from lstm_report.measure import evidence, process
for program in (evidence.CHILD, process.CHILD):
    exec("\\n".join(re.findall("^from lstm_.+$", program, re.MULTILINE)))
print(len(names))
"""


@each_of_colab
def test_what_comes_along_imports_nothing_else(brought, path):
    place = brought(path)
    names = modules_in(place)
    assert not missing(names)
    nodes = ast.walk(ast.parse(code_of(path)))
    own = [ast.unparse(n) for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)]
    words = [sys.executable, "-c", IMPORT_ALL, str(place)]
    words += [json.dumps(names), "\n".join(own)]
    how = {"capture_output": True, "text": True, "cwd": place.parent}
    done = subprocess.run(words, check=False, **how)
    assert done.stdout.strip() == str(len(names)), done.stderr
    assert len(names) > 80


@each_of_colab
def test_a_module_that_stayed_behind_is_seen(path):
    for name in ("cells", "plots", "other_frameworks"):  # the last in a function
        kept = {p for p in standalone.modules(code_of(path)) if p.stem != name}
        names = [".".join(p.relative_to(ROOT).with_suffix("").parts) for p in kept]
        assert missing([n.removesuffix(".__init__") for n in names])


def code_of(path):
    cells = (c for c in rules.read(path).cells if c.cell_type == "code")
    return "\n".join(cell.source for cell in cells)


# Changes of a folder of two stand-alone notebooks, and what is stale then.
CHANGES = {
    "nothing": (lambda folder: None, {}),
    "gone": (lambda folder: (folder / "b.ipynb").unlink(), {"b.ipynb": True}),
    "of another state": (
        lambda folder: shutil.copy(folder / "a.ipynb", folder / "c.ipynb"),
        {"c.ipynb": False},
    ),
    "damaged": (
        lambda folder: (folder / "a.ipynb").write_text('"id": "package"'),
        {"a.ipynb": True},
    ),
}


@pytest.fixture
def two(tmp_path):
    """A folder of two stand-alone notebooks, and what they are made of."""
    sources = {}
    for name in ("a.ipynb", "b.ipynb"):
        sources[tmp_path / name] = ()
        shutil.copy(GPU, tmp_path / name)
    standalone.make(tmp_path / "made", sources)
    return tmp_path / "made", sources


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_stale_and_is_written_and_nothing_else(two, change):
    folder, sources = two
    before = {path.name: path.stat().st_ino for path in folder.iterdir()}
    act, names = CHANGES[change]
    act(folder)
    changed = standalone.stale(folder, sources)
    assert {name: text is not None for name, text in changed.items()} == names
    assert standalone.make(folder, sources) == [*names]
    assert not standalone.stale(folder, sources)
    after = {path.name: path.stat().st_ino for path in folder.iterdir()}
    assert {*after} == {*before}
    assert {name for name in after if after[name] != before[name]} <= {*names}


def test_a_source_that_changed_makes_a_notebook_stale(two, monkeypatch):
    folder, sources = two
    (path := next(iter(sources))).write_text(path.read_text().replace("GPU", "card"))
    assert [*standalone.stale(folder, sources)] == ["a.ipynb"]
    carried = standalone.carried

    def changed(*given):
        return carried(*given) | {"lstm_kernels/cells.py": "# changed"}

    monkeypatch.setattr(standalone, "carried", changed)
    assert [*standalone.stale(folder, sources)] == ["a.ipynb", "b.ipynb"]


# With Python alone.


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """What of the repository the program reads."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("lstm_kernels", "lstm_report", "data", "notebooks", "tools"):
        kept = shutil.ignore_patterns("__pycache__", "page")
        shutil.copytree(ROOT / name, folder / name, ignore=kept)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def program(clone, *words):
    """The end of the program without site-packages, this project or an environment."""
    words = [sys.executable, "-I", "-S", "tools/standalone.py", *words]
    how = {"cwd": clone, "capture_output": True, "text": True, "env": {}}
    return subprocess.run(words, check=False, **how)


def test_python_alone_makes_the_same_files(clone, made):
    done = program(clone)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(".ipynb") == len(COLAB)
    assert files(clone / "colab") == files(ROOT / "colab")
    assert program(clone).stdout == "renewed in colab/: nothing\n"
    done = program(clone, "dist", "notebooks/05_layers.ipynb")
    assert (done.returncode, done.stderr) == (0, "")
    (name,) = files(clone / "dist")
    assert files(clone / "dist")[name] == (made / name).read_bytes()


LAYERS = "notebooks/05_layers.ipynb"
WRONG = {
    "no notebook": (["out"], "NOTEBOOK: got none"),
    "an option": (["--help"], "NOTEBOOK: got none"),
    "not there": (["out", "notebooks/55.ipynb"], "NOTEBOOK: got notebooks/55.ipynb"),
    "no notebook's file": (["out", "data/README.md"], "got data/README.md"),
    "made already": (["out", "colab/gpu.ipynb"], "which stands alone already"),
    "one name": (["out", LAYERS, f"tools/../{LAYERS}"], "got two of one name"),
    "their own folder": (["notebooks", LAYERS], "which was not made by this"),
    "a file": (["data/README.md", LAYERS], "data/README.md"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_an_error_and_nothing_is_written(clone, wrong):
    words, message = WRONG[wrong]
    shutil.copytree(ROOT / "colab", clone / "colab", dirs_exist_ok=True)
    before = files(clone)
    done = program(clone, *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert files(clone) == before


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
    folder = ROOT / "colab" if path in COLAB else made
    said = execute(rules.read(folder / path.name), kernel, tmp_path)
    assert "lstm_kernels and lstm_report unpacked to" in said
    if path in COLAB:  # what was recorded there
        assert ("NVIDIA H100" in said) == bool(COLAB[path])


@needs_kernel
def test_the_lesson_is_solved_in_an_empty_folder(kernel, tmp_path):
    book = rules.read(ROOT / "colab" / "lesson.ipynb")
    exercises = [cell for cell in book.cells if "exercise" in rules.tags(cell)]
    for cell, answers in zip(exercises, ANSWERS.values(), strict=True):
        cell.source = "\n\n\n".join(answers)
    for cell in book.cells:
        if rules.tags(cell) == ["guess"]:
            cell.source = cell.source.replace("None", "3")
    said = execute(book, kernel, tmp_path)
    right = [n for n, answers in enumerate(ANSWERS.values(), 1) for _ in answers]
    assert [*map(int, re.findall(r"Exercise (\d) is right", said))] == right
    assert [*map(int, re.findall(r"Exercise (\d): yours", said))][:5] == [1, 2, 3, 4, 5]
    assert "Exercises solved: 6 of 6: 1, 2, 3, 4, 5, 6." in said
    assert "guesses are within a factor of two" in said

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
from traitlets.config import Config

ROOT = Path(__file__).parents[1]
NOTEBOOKS = report.sources()
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
COMPILING = re.compile(r"lstm_kernels: compiling for this CPU, \d+ s so far;[^\r\n]*")


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
    nothing of this process's environment, and returns it executed.
    """

    def run(path, preset="paper"):
        folder, book = tmp_path / "empty", rules.read(path)
        folder.mkdir()
        for cell in book.cells:
            if "parameters" in rules.tags(cell):
                cell.source = cell.source.replace('"paper"', f'"{preset}"', 1)
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
            client = NotebookClient(
                book,
                timeout=None,
                kernel_name="alone",
                resources={"metadata": {"path": str(folder)}},
                config=Config({"KernelManager": manager}),
            )
            client.execute()
        assert not list(folder.iterdir()), "it leaves files in the teacher's folder"
        return book

    return run


def said(notebook, name="stdout"):
    """What the cells of a notebook wrote."""
    streams = (output for _, output, _ in rules.outputs(notebook) if "name" in output)
    return "".join(stream.text for stream in streams if stream.name == name)


def small(cell, *sources):
    """A notebook of the first cell and others."""
    cells = [new_markdown_cell("# Small"), cell, *map(new_code_cell, sources)]
    return new_notebook(cells=cells, metadata=rules.METADATA)


def save(notebook, path):
    nbformat.write(notebook, path)
    return path


def test_each_notebook_carries_the_package_and_is_otherwise_its_source(made):
    for source in NOTEBOOKS:
        before, after = rules.read(source), rules.read(made / source.name)
        first = after.cells.pop(1)
        assert rules.tags(first) == ["package"]
        # Links to files beside it, which lead nowhere, are text.
        for one, other in zip(after.cells, before.cells, strict=True):
            text = re.sub(r"\[([^]]+)\]\([\w./]+\)", r"\1", other.source)
            assert one.source == (other.source if other.cell_type == "code" else text)
            if one.cell_type == "markdown":
                assert not re.search(r"\]\([\w./]*\.(ipynb|md)", one.source)
        assert all(not cell.get("outputs") for cell in after.cells)


def unpacked(source, home):
    """The files that the first cell unpacks, by their place."""
    assert run_cell(source, home, "-S").returncode == 0
    (place,) = (home / ".cache" / "lstm_kernels").iterdir()
    files = [path for path in place.rglob("*") if path.is_file()]
    files = [path for path in files if "__pycache__" not in path.parts]
    return {path.relative_to(place): path.read_bytes() for path in files}


def test_the_first_cell_brings_both_packages_and_the_results_it_names(tmp_path):
    cells = [new_code_cell("a = nb.recorded('peers')\nb = find(\"ptxas.csv\")")]
    path = save(
        new_notebook(cells=[new_markdown_cell("# A"), *cells]), tmp_path / "a.ipynb"
    )
    source = nbformat.reads(standalone.standalone(path), 4).cells[1].source
    (tmp_path / "home").mkdir()
    carried = unpacked(source, tmp_path / "home")
    wanted = {
        path.relative_to(ROOT): path.read_bytes()
        for package in ("lstm_kernels", "lstm_report")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert len(wanted) > 60
    recorded = [*RESULTS.glob("*/peers.*"), RESULTS / "ptxas.csv"]
    assert len(recorded) > 3
    for path in recorded:
        place = Path("lstm_report", "recorded", path.relative_to(RESULTS))
        wanted[place] = path.read_bytes()
    assert carried == wanted


def test_a_file_tells_its_version_and_its_size(made):
    for source in NOTEBOOKS:
        path = made / source.name
        title = rules.read(path).cells[1].source.partition("\n")[0]
        told = re.search(r"lstm_kernels (\S+) .* of (\d+) KB", title)
        assert told[1] == standalone.__version__
        assert abs(int(told[2]) - path.stat().st_size / 1000) <= 1


def test_the_same_files_make_the_same_bytes(made, tmp_path):
    standalone.make(tmp_path, NOTEBOOKS[:1])
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (made / path.name).read_bytes()


def test_what_is_of_another_state_goes(tmp_path):
    old = save(new_notebook(), tmp_path / "08_gone.ipynb")
    standalone.make(tmp_path, NOTEBOOKS[:1])
    assert not old.exists()


# `python -S` sees neither this project, which is installed here, nor what it needs: the
# package itself needs NumPy to be imported, and that is said first.
FIND = "import importlib.util; print(importlib.util.find_spec('lstm_kernels').origin)"


def first_cell(made):
    return rules.read(made / NOTEBOOKS[0].name).cells[1].source


def run_cell(source, home, *options, **env):
    """What the first cell does in a process with little of this one's environment; an
    empty value leaves a variable out.
    """
    env = {"HOME": str(home), "PATH": os.environ["PATH"]} | env
    env = {name: value for name, value in env.items() if value}
    words = [sys.executable, *options, "-"]
    return subprocess.run(
        words,
        cwd=home,
        env=env,
        input=f"{source}\n{FIND}",
        capture_output=True,
        text=True,
        check=False,
    )


def place_of(done):
    """Where the first cell has put the packages."""
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.splitlines()[-1]).parents[1]


def test_the_first_cell_unpacks_once_and_tells_where(made, tmp_path):
    first, second = (run_cell(first_cell(made), tmp_path, "-S") for _ in range(2))
    assert place_of(first) == place_of(second)
    folder = tmp_path / ".cache" / "lstm_kernels"
    assert [*folder.iterdir()] == [place_of(first)]
    assert f"unpacked to {place_of(first)}" in first.stdout


def test_the_first_cell_skips_itself_where_the_package_can_be_imported(made, tmp_path):
    done = run_cell(first_cell(made), tmp_path)
    assert place_of(done) == ROOT
    assert "already" in done.stdout
    assert "was made for" not in done.stdout
    source = re.sub(
        r'VERSION, SHA256 = "[^"]+"', 'VERSION, SHA256 = "9.8"', first_cell(made)
    )
    assert "this notebook was made for 9.8." in run_cell(source, tmp_path).stdout
    assert not (tmp_path / ".cache").exists()


NO_HOME = "import pathlib\ndef no_home(*_): raise RuntimeError('no home')\n"
NO_HOME += "pathlib.Path.home = no_home\n"


@pytest.mark.parametrize("obstacle", ["a file", "no home", "a relative cache"])
def test_a_cache_that_cannot_be_used_is_no_obstacle(made, tmp_path, obstacle):
    source, env = first_cell(made), {"TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    if obstacle == "a file":
        (tmp_path / ".cache").write_text("where the folder would be")
    if obstacle == "no home":
        source = NO_HOME + source
    if obstacle == "a relative cache":
        env["XDG_CACHE_HOME"] = "here"
    place = place_of(run_cell(source, tmp_path, "-S", **env))
    relative = obstacle == "a relative cache"
    assert place.is_relative_to(tmp_path / (".cache" if relative else "tmp"))
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("change", ["empty", "one file", "another user"])
def test_a_folder_that_is_not_what_its_name_says_is_not_taken(made, tmp_path, change):
    source = first_cell(made)
    place = place_of(run_cell(source, tmp_path, "-S"))
    wanted = (place / "lstm_kernels" / "cells.py").read_bytes()
    if change == "empty":
        shutil.rmtree(place)
        place.mkdir()
    if change == "one file":
        (place / "lstm_kernels" / "cells.py").write_text("raise SystemExit(3)")
    if change == "another user":
        source = "import os\nos.getuid = lambda: 12345\n" + source
        done = run_cell(source, tmp_path, "-S")
        assert "the packages cannot be unpacked to" in done.stderr
        return
    assert place_of(run_cell(source, tmp_path, "-S")) == place
    assert (place / "lstm_kernels" / "cells.py").read_bytes() == wanted


FULL = """
import errno, zipfile
def full(self, folder):
    open(f"{folder}/begun", "w").close()
    raise OSError(errno.ENOSPC, "no space left")
zipfile.ZipFile.extractall = full
"""


def test_a_full_disk_leaves_nothing(made, tmp_path):
    (tmp_path / "tmp").mkdir()
    env = {"TMPDIR": str(tmp_path / "tmp")}
    done = run_cell(FULL + first_cell(made), tmp_path, "-S", **env)
    assert "cannot be unpacked" in done.stderr
    assert "no space left" in done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [*(tmp_path / "tmp").iterdir()]


@pytest.mark.parametrize("fault", ["cut", "changed"])
def test_a_damaged_cell_is_an_error_that_says_what_to_do(made, tmp_path, fault):
    source = first_cell(made)
    text = re.search(r'"""\n(.+?)\n"""', source, re.DOTALL)[1]
    other = text[:-100] if fault == "cut" else text[:-1] + chr(ord(text[-1]) ^ 1)
    done = run_cell(source.replace(text, other), tmp_path, "-S")
    assert "ValueError: this cell was cut or changed: take a fresh copy" in done.stderr
    assert not (tmp_path / ".cache").exists()


def test_an_old_python_is_an_error_that_says_so(made, tmp_path):
    source = "import sys; sys.hexversion = 0x30A0000\n" + first_cell(made)
    assert "this needs 3.11" in run_cell(source, tmp_path, "-S").stderr


needs_kernel = pytest.mark.skipif(
    not KERNEL, reason="`make test-colab` runs these elsewhere"
)
# Would find the repository or a network.
PROBE = """
import os, socket, sys
print(sorted(os.listdir()), [p for p in sys.path if "{root}" == p])
try:
    socket.create_connection(("192.0.2.1", 80), timeout=1)
except OSError as error:
    print(type(error).__name__)
"""


@needs_kernel
def test_the_kernel_finds_neither_repository_nor_network(execute, tmp_path, made):
    cell = rules.read(made / NOTEBOOKS[0].name).cells[1]
    probe = PROBE.format(root=ROOT)
    path = save(
        small(cell, probe, "import lstm_kernels; print(lstm_kernels.__file__)"),
        tmp_path / "a.ipynb",
    )
    folder, network, place = said(execute(path)).splitlines()[-3:]
    assert folder == "[] []"
    assert network == "OSError" if ALONE else "Error" in network
    assert "/.cache/lstm_kernels/" in place


@needs_kernel
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_an_empty_folder(execute, made, path):
    done = execute(made / path.name, "smoke")
    assert "lstm_kernels and lstm_report unpacked to" in said(done)
    loud = COMPILING.sub("", said(done, "stderr")).split("\n")
    assert [line for line in loud if line.strip()] == []

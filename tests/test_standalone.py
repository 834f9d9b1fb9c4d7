"""The notebooks that stand alone: one file each, in an empty folder, without a
network.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
import notebook_rules as rules
import papermill
import pytest
import report
import standalone
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from traitlets.config import Config

ROOT = Path(__file__).parents[1]
NOTEBOOKS = report.sources(ROOT / "notebooks")
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

    def run(path, python=sys.executable, **given):
        folder = tmp_path / "empty"
        folder.mkdir()
        with (
            tempfile.TemporaryDirectory() as settings
        ):  # a short path: sockets lie in it
            search = os.pathsep.join(
                [str(Path(python).parent), "/usr/local/bin:/usr/bin:/bin"]
            )
            clean = [
                "env",
                "-i",
                f"HOME={home}",
                f"PATH={search}",
                f"JUPYTER_RUNTIME_DIR={settings}",
            ]
            kernel = [
                *clean,
                "PYDEVD_DISABLE_FILE_VALIDATION=1",
                *ALONE,
                str(python),
                "-m",
            ]
            kernel += ["ipykernel_launcher", "-f", "{connection_file}"]
            spec = Path(settings, "kernels", "alone", "kernel.json")
            spec.parent.mkdir(parents=True)
            about = {"argv": kernel, "display_name": "alone", "language": "python"}
            spec.write_text(json.dumps(about))
            monkeypatch.setenv("JUPYTER_PATH", settings)
            monkeypatch.setenv("JUPYTER_RUNTIME_DIR", settings)
            return papermill.execute_notebook(
                str(path),
                None,
                parameters=given,
                kernel_name="alone",
                cwd=str(folder),
                progress_bar=False,
                config=Config(
                    {"KernelManager": {"transport": "ipc", "ip": f"{settings}/kernel"}}
                ),
            )

    return run


def said(notebook, name="stdout"):
    """What the cells of a notebook wrote."""
    streams = (output for _, _, output in rules.outputs(notebook) if "name" in output)
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
        assert not re.search(r"\]\([\w./]*\.(ipynb|md)", rules.dumps(after))
        assert all(not cell.get("outputs") for cell in after.cells)


def test_the_wheel_beside_them_brings_the_recorded_results(made):
    (wheel,) = made.glob("*.whl")
    names = standalone.zipfile.ZipFile(wheel).namelist()
    recorded = {name for name in names if name.startswith("lstm_kernels/recorded/")}
    kept = {path for pattern in standalone.RECORDED for path in RESULTS.glob(pattern)}
    assert len(kept) > 10
    assert recorded == {f"lstm_kernels/recorded/{p.relative_to(RESULTS)}" for p in kept}
    assert not [name for name in names if "__pycache__" in name]


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


def run_cell(source, home, *options):
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    how = {"cwd": home, "env": env, "input": f"{source}\n{FIND}", "text": True}
    return subprocess.run(
        [sys.executable, *options, "-"], capture_output=True, **how, check=False
    )


def test_the_first_cell_unpacks_once_and_tells_where(made, tmp_path):
    source = rules.read(made / NOTEBOOKS[0].name).cells[1].source
    first, second = (run_cell(source, tmp_path, "-S") for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    folder = tmp_path / ".cache" / "lstm_kernels"
    assert first.stdout.splitlines()[-1].startswith(str(folder))
    assert len(list(folder.iterdir())) == 1


def test_the_first_cell_skips_itself_where_the_package_can_be_imported(made, tmp_path):
    source = rules.read(made / NOTEBOOKS[0].name).cells[1].source
    done = run_cell(source, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(ROOT / "lstm_kernels" / "__init__.py")
    assert "already" in done.stdout
    assert not (tmp_path / ".cache").exists()


def test_a_home_that_cannot_be_written_is_no_obstacle(made, tmp_path):
    source = rules.read(made / NOTEBOOKS[0].name).cells[1].source
    (tmp_path / ".cache").write_text("a file where the folder would be")
    done = run_cell(source, tmp_path, "-S")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("fault", ["cut", "changed"])
def test_a_damaged_cell_is_an_error_that_says_what_to_do(made, tmp_path, fault):
    source = rules.read(made / NOTEBOOKS[0].name).cells[1].source
    text = re.search(r'"""\n(.+?)\n"""', source, re.DOTALL)[1]
    other = text[:-100] if fault == "cut" else text[:-1] + chr(ord(text[-1]) ^ 1)
    done = run_cell(source.replace(text, other), tmp_path, "-S")
    assert "ValueError: this cell was cut or changed: take a fresh copy" in done.stderr
    assert not (tmp_path / ".cache").exists()


def test_an_old_python_is_an_error_that_says_so(made, tmp_path):
    source = rules.read(made / NOTEBOOKS[0].name).cells[1].source
    done = run_cell("import sys; sys.hexversion = 0x30A0000\n" + source, tmp_path, "-S")
    assert "needs 3.11 or newer" in done.stderr


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
    folder, network, place = said(execute(path, KERNEL)).splitlines()[-3:]
    assert folder == "[] []"
    assert network == "OSError" if ALONE else "Error" in network
    assert "/.cache/lstm_kernels/" in place


@needs_kernel
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_an_empty_folder(execute, made, path):
    done = execute(made / path.name, KERNEL, PRESET="smoke")
    assert "lstm_kernels unpacked to" in said(done)
    loud = COMPILING.sub("", said(done, "stderr")).split("\n")
    assert [line for line in loud if line.strip()] == []

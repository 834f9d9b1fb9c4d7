"""What compiled code leaves behind: its cache on disk, and what is said of it."""

import os
import re
import shutil
import subprocess
import sys
import threading

import numba
import pytest
from test_rooms import GRAPH, ROOT, room

from lstm_kernels import kernels

weight = None


def weighted(x):
    return weight * x


def twice(x):
    return weighted(x) + weighted(x)


@pytest.mark.parametrize("of", [[weighted, twice], [sys.modules[__name__]]])
def test_functions_made_anew_find_each_other_and_what_their_free_names_are(of):
    three, five = (kernels.fill(of, {"weight": w}, f"w{w}") for w in (3, 5))
    assert (three["twice"](2), five["twice"](2)) == (12, 20)
    # So Numba's cache keeps them apart.
    assert three["twice"].__qualname__.startswith("twice_w3_")
    assert weight is None


def test_a_part_is_compiled_once_for_numbers_of_the_source_and_others():
    space = kernels.fill([weighted, twice], {"weight": 3}, "once", kernels.part)
    part = space["weighted"]
    assert numba.njit(lambda x: part(0) + part(1) + part(x))(2) == 9
    assert len(part.signatures) == 1


def test_code_is_compiled_on_a_thread_to_which_no_signal_comes():
    """An exception of a handler would leave the compiler half changed."""

    class Dispatcher:
        def compile(self, *types):
            return threading.current_thread()

    dispatcher = kernels.cached(lambda: lambda function: Dispatcher(), twice)
    assert dispatcher.compile(numba.int64) is not threading.main_thread()


# --- the cache is a help


def plus_one(x):
    return x + 1


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Makes a function that compiles `plus_one`, as another start of Python would."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))

    def start():
        new = kernels.fill([plus_one], {}, "trial")["plus_one"]
        return kernels.cached(numba.njit, new)

    return start


def files(folder, suffix="[ic]"):
    return sorted(folder.rglob(f"*.nb{suffix}"))


def compiles(function):
    """Whether it had to be compiled; what it computes is right."""
    assert function(1) == 2
    return not sum(function.stats.cache_hits.values())


@pytest.mark.parametrize("suffix", ["i", "c"])
@pytest.mark.parametrize("damage", [lambda old: old[:99], lambda old: b"cos\nsystem\n"])
def test_a_damaged_file_is_compiled_anew_and_replaced(start, tmp_path, damage, suffix):
    assert compiles(start())
    assert not compiles(start())
    (path,) = files(tmp_path, suffix)
    path.write_bytes(damage(path.read_bytes()))
    assert compiles(start())
    compiles(start())  # where the index was damaged, it is kept from now on
    assert not compiles(start())


@pytest.mark.skipif(os.name == "nt", reason="POSIX limits")
def test_a_disk_that_takes_no_more_stops_nothing(start, tmp_path):
    """The index is written before the data: if these cannot be, it must not lead to old
    data, of other types.
    """
    import resource

    assert compiles(start())
    files(tmp_path, "i")[0].unlink()
    function, limit = start(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        assert (function(1.5), function(1)) == (2.5, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert start()(1.5) == 2.5


def test_what_a_notebook_defines_is_compiled_anew(start, tmp_path):
    there = {"__name__": "a_notebook"}
    exec("def cell(x):\n    return x + 1", there)
    new = kernels.fill([weighted], {"weight": 3, "cell": there["cell"]}, "notebook")
    assert kernels.cached(numba.njit, new["weighted"])(2) == 6
    assert not files(tmp_path)


# A function of a file, which is kept, and two of none, which cannot be.
SAYS = """
import numba
from lstm_kernels.kernels import cached
from test_kernels import plus_one
space = {}
exec("def other(x):\\n    return x + 1", space)
for function in (plus_one, space["other"], space["other"]):
    assert cached(numba.njit, function)(1) == 2
"""


@pytest.mark.skipif(os.name == "nt", reason="no terminal to be had")
@pytest.mark.parametrize(
    ("terminal", "quiet", "words"),
    [
        (True, {}, ["compiling for this machine", "NUMBA_CACHE_DIR"]),
        (False, {}, ["NUMBA_CACHE_DIR"]),
        (True, {"LSTM_KERNELS_QUIET": "1"}, []),
    ],
)
def test_what_takes_long_is_said_once_to_who_waits(tmp_path, terminal, quiet, words):
    reader, writer = os.openpty() if terminal else os.pipe()
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "NUMBA_CACHE_DIR": str(tmp_path)}
    kept = {k: v for k, v in os.environ.items() if k != "LSTM_KERNELS_QUIET"}
    line = [sys.executable, "-W", "ignore", "-c", SAYS]
    subprocess.run(
        line, check=True, timeout=300, stderr=writer, env=kept | paths | quiet
    )
    os.write(writer, b"end")  # else reading nothing would wait
    text = ""
    while not text.endswith("end"):
        text += os.read(reader, 10_000).decode()
    lines = text.splitlines()[:-1]
    os.close(reader)
    os.close(writer)
    assert len(lines) == len(words)
    for line, word in zip(lines, words, strict=True):
        assert line.startswith("lstm_kernels: ")
        assert word in line


COMPUTES = """
import sys
import numpy as np
import lstm_kernels as lk
for dtype in sys.argv[1:]:
    params = lk.Params.init(input_size=2, hidden_size=9, output_size=1).astype(dtype)
    x = np.linspace(-1, 1, 60).reshape(6, 5, 2).astype(dtype)
    target, found = np.ones((5, 1), dtype), []
    for name in ("numba-fused", "numpy"):
        net = lk.network(name, params, threads=1)
        found.append(net.loss_and_grads(x, target)[1].arrays())
    for name, want in found[1].items():
        error = np.abs(found[0][name] - want).max()
        assert error < 1000 * np.finfo(dtype).eps, (dtype, name, error)
"""


def test_code_that_two_processes_kept_is_told_apart_in_a_third(tmp_path):
    """Numba numbers functions in each process anew, and types alone tell their symbols
    apart where code of both is loaded.
    """
    paths = {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path)}
    for dtypes in (["float32"], ["float64"], ["float32", "float64"]):
        line = [sys.executable, "-c", COMPUTES, *dtypes]
        subprocess.run(line, check=True, timeout=300, env=os.environ | paths)


# --- code of edited sources is not used


def test_cpu_and_gpu_call_no_kernel_outside():
    """So the key of their code is of their own folder's sources, and the cells."""
    for name, imported in GRAPH.items():
        if name.startswith(("lstm_kernels.cpu", "lstm_kernels.gpu")):
            assert {room(other) for other in imported} <= {room(name), "lstm_kernels"}
    defines = r"^@(part|njit)|= (part|njit)\(|cached\(njit"
    for path in (ROOT / "lstm_kernels").glob("*.py"):
        is_help = path.name == "kernels.py"
        assert is_help or not re.search(defines, path.read_text(), re.MULTILINE), path


# A kernel of ranks/, which calls one of cpu/; a cell and an epilogue from outside.
OUTSIDE = {
    "lstm_kernels/ranks/shared.py": """
from ..cpu.scheduler import serpentine
def of_one(step):
    return serpentine(step, 0, 0, 9)
""",
    "a_cell.py": """
from dataclasses import replace
from lstm_kernels.cells import CELLS
CELL = replace(CELLS["rnn"], make=lambda *functions: CELLS["rnn"].make(*functions))
""",
    "a_study.py": """
from lstm_kernels.cpu.micro_kernels import MicroKernels
class Study(MicroKernels):
    pass
class Other(Study):
    pass
""",
}
# These, and kernels of cpu/ alone.
COMPILE = """
import numpy as np
from a_cell import CELL
from a_study import Other, Study
from lstm_kernels.cpu import scheduler, thread_pool
from lstm_kernels.cpu.micro_kernels import MicroKernels, codes
from lstm_kernels.kernels import native
from lstm_kernels.ranks import shared
assert native(scheduler.run, "", scheduler.SIGNATURE)
for kernel in (thread_pool.run_region, shared.of_one):
    assert native(kernel, "")
for kind in (MicroKernels, Study, Other):
    assert codes(kind(CELL, np.dtype(np.float32), 3), "forward")
"""
STUDIES = {"_Study_", "_Other_"}
OF_CPU = {".run__", ".run_region_", "_MicroKernels_"} | STUDIES
EVERY = OF_CPU | {".of_one_"}
EDITS = (
    ("lstm_kernels/data.py", EVERY),  # nothing is kept yet
    ("lstm_kernels/data.py", set()),  # of which no kernel is compiled
    ("lstm_kernels/cpu/net.py", EVERY),
    # Which no kernel of cpu/ calls, but what comes from outside may.
    ("lstm_kernels/ranks/shared.py", EVERY - {".run__", ".run_region_"}),
    ("a_cell.py", {"_MicroKernels_"} | STUDIES),
    ("a_study.py", STUDIES),
)


def test_machine_code_of_an_edited_source_is_not_used_again(tmp_path):
    """And goes, with what lies beside it untouched."""
    hidden = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "lstm_kernels", tmp_path / "lstm_kernels", ignore=hidden)
    for path, text in OUTSIDE.items():
        (tmp_path / path).write_text(text)
    environment = os.environ | {"PYTHONPATH": "", "NUMBA_CACHE_DIR": ""}
    line = [sys.executable, "-c", COMPILE]
    before, others = {}, []
    for edited, anew in EDITS:
        with open(tmp_path / edited, "a") as file:
            file.write("# an edit\n")
        subprocess.run(line, check=True, timeout=300, cwd=tmp_path, env=environment)
        now = {p: p.stat().st_mtime_ns for p in files(tmp_path, "c") if p not in others}
        new = [path for path in now if now[path] != before.get(path)]
        for paths, names in ((new, anew), (now, EVERY)):
            kept = [name for path in paths for name in EVERY if name in path.name]
            assert sorted(kept) == sorted(names), edited
            assert len(paths) == len(names)
        before = now
        if not others:  # of another Python, and what somebody is writing
            (one, *_) = now
            python = f".py{sys.version_info[0]}"
            others = [one.with_name(one.name.replace(python, ".py9"))]
            others.append(one.with_name(f"{one.name}.tmp.0123456789abcdef"))
            for path in others:
                path.touch()
    assert all(path.exists() for path in others)

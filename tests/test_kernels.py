"""What compiled code leaves behind: its cache on disk, and what it tells who waits for
it.
"""

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import numba
import pytest

from lstm_kernels import kernels

FOLDER = "some/folder"


class Stderr:
    """A stream that may be a terminal."""

    def __init__(self, terminal):
        self.terminal, self.text = terminal, ""

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    @property
    def lines(self):
        return self.text.splitlines()


@pytest.fixture
def stderr(monkeypatch):
    """A terminal, of a process in which nothing was compiled or told yet."""
    stream = Stderr(terminal=True)
    monkeypatch.setattr(kernels, "sys", SimpleNamespace(stderr=stream, modules={}))
    monkeypatch.delenv("LSTM_KERNELS_QUIET", raising=False)
    monkeypatch.setattr(kernels, "_told", set())
    monkeypatch.setattr(kernels, "_spent", 0.0)
    return stream


# --- free names

weight = None


def weighted(x):
    return weight * x


def twice(x):
    return weighted(x) + weighted(x)


@pytest.mark.parametrize("sources", [[weighted, twice], [sys.modules[__name__]]])
def test_functions_made_anew_find_each_other_and_what_their_free_names_are(sources):
    three, five = (kernels.fill(sources, {"weight": w}, f"w{w}") for w in (3, 5))
    assert (three["twice"](2), five["twice"](2)) == (12, 20)
    assert three["twice"].__qualname__.startswith(
        "twice_w3_"
    )  # so Numba's cache keeps them apart
    assert weight is None


def test_parts_are_compiled_with_what_calls_them():
    space = kernels.fill([weighted, twice], {"weight": 3}, "part", kernels.part)
    assert numba.njit(space["twice"].py_func)(2.0) == 12


def test_a_part_is_compiled_once_for_numbers_of_the_source_and_others():
    space = kernels.fill([weighted], {"weight": 3}, "once", kernels.part)
    part = space["weighted"]
    assert numba.njit(lambda x: part(0) + part(1) + part(x))(2) == 9
    assert len(part.signatures) == 1


def test_a_name_that_stands_for_a_function_of_a_source_is_made_anew_too():
    space = kernels.fill(
        [sys.modules[__name__]], {"weight": 2, "alias": weighted}, "alias"
    )
    assert space["alias"](3) == 6
    foreign = kernels.fill([twice], {"weighted": len}, "foreign")
    assert foreign["twice"]("abc") == 6


# --- the line about compiling


def test_compiling_for_more_than_a_second_is_told_once(stderr):
    kernels.report_compiling(0.6, FOLDER)
    assert stderr.lines == []
    for _ in range(3):
        kernels.report_compiling(0.6, FOLDER)
    (line,) = stderr.lines
    assert line.startswith("lstm_kernels: compiling")
    assert FOLDER in line


def test_what_is_told_of_one_thing_hides_nothing_else(stderr):
    for what in ("a", "b", "a"):
        kernels.tell(what, f"about {what}")
    assert stderr.lines == ["lstm_kernels: about a.", "lstm_kernels: about b."]


def test_a_file_or_a_pipe_is_told_nothing(stderr):
    stderr.terminal = False
    kernels.report_compiling(9, FOLDER)
    assert stderr.lines == []


def test_a_notebook_sees_the_seconds_in_one_line(stderr):
    stderr.terminal = False
    kernels.sys.modules["ipykernel"] = None
    kernels.report_compiling(0.9, FOLDER)
    for _ in range(2):
        kernels.report_compiling(9, FOLDER)
    before, *lines = stderr.text.split("\r")
    assert before == ""
    assert [re.search(r"(\d+) s so far", line)[1] for line in lines] == ["10", "19"]


def test_nobody_is_told_where_quiet_is_asked_for(stderr, monkeypatch):
    monkeypatch.setenv("LSTM_KERNELS_QUIET", "1")
    kernels.sys.modules["ipykernel"] = None
    kernels.report_compiling(9, FOLDER)
    assert stderr.lines == []


def test_a_process_without_stderr_is_told_nothing(stderr):
    kernels.sys.stderr = None
    kernels.report_compiling(9, FOLDER)


# --- what counts as compiling


def kernel():
    """A function to be compiled."""


def compiler(seconds, clock, **made):
    """A stand-in for numba.cfunc, which takes its time by a stand-in for the clock."""

    def compile(cache=False):
        def decorate(function):
            clock.now += seconds
            return SimpleNamespace(
                _cache=SimpleNamespace(cache_path=made["folder"]), **made
            )

        return decorate

    return compile


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(now=0.0)
    monkeypatch.setattr(kernels.time, "perf_counter", lambda: now.now)
    return now


def test_a_function_found_in_the_cache_is_not_compiled(stderr, clock, tmp_path):
    found = compiler(9, clock, folder=str(tmp_path), cache_hits=1)
    kernels.cached(found, kernel)
    assert stderr.lines == []
    kernels.cached(compiler(9, clock, folder=str(tmp_path), cache_hits=0), kernel)
    assert len(stderr.lines) == 1
    assert str(tmp_path) in stderr.lines[0]


def happened(module, folder=FOLDER):
    function = SimpleNamespace(py_func=SimpleNamespace(__module__=module))
    if folder:
        function._cache = SimpleNamespace(cache_path=folder)
    return SimpleNamespace(data={"dispatcher": function})


def compile_when_called(clock, *events, seconds=9):
    """Events of functions, the first of which needs the others."""
    listener = kernels._Compiling()
    for event in events:
        listener.on_start(event)
    clock.now += seconds
    for event in reversed(events):
        listener.on_end(event)


def test_what_numba_compiles_at_a_call_counts_once(stderr, clock):
    ours = f"{kernels.__package__}.numba_sample"
    compile_when_called(clock, happened(ours), happened(ours), seconds=0.9)
    assert stderr.lines == []
    compile_when_called(clock, happened(ours), seconds=0.9)
    assert len(stderr.lines) == 1


@pytest.mark.parametrize(
    "event", [happened("theirs"), happened(None), happened("theirs", None)]
)
def test_what_others_compile_does_not_count(stderr, clock, event):
    compile_when_called(clock, event)
    assert stderr.lines == []


def test_code_that_numba_lifts_out_of_a_function_compiles():
    """The listener hears of it as of any function; it has no cache to ask for."""

    @numba.njit
    def lifted(x):
        with numba.objmode():
            str(x)
        return x + 1

    assert lifted(1) == 2


# --- the cache on disk


def test_code_of_other_states_of_the_sources_leaves_the_cache(tmp_path):
    module = "lstm_kernels.cpu.simd"
    now, old = kernels.digest(module), "0123456789ab"
    gone = [
        f"simd.infer_float32_{old}-391.py311.nbi",
        f"simd.infer_float32_{old}-391.py311.1.nbc",
        f"simd.step_step_lstm_float32_16x4_True_{old}-1.py312.nbi",
    ]
    left = [
        f"simd.infer_float32_{now}-391.py311.nbi",
        f"simd.infer_float32_{now}-391.py311.2.nbc",
        "simd.blocked_product-97.py311.nbi",  # whose name holds no state
        f"theirs.infer_float32_{old}-391.py311.nbi",
        f"my_simd.step_{old}-1.py311.nbi",
        f"simd.step_{old}.txt",
        f"simd.step_{old}-1.py311.nbi.part",
    ]
    for name in gone + left:
        (tmp_path / name).touch()
    kernels._prune(str(tmp_path), module)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(left)


@pytest.mark.parametrize(
    ("module", "room", "alone"),
    [
        ("cpu.passes", "cpu", "passes.py"),
        ("gpu.build", "gpu", "build.py"),
        ("versions.numba_sample", "cpu", "../versions/numba_sample.py"),
    ],
)
def test_an_edit_of_a_source_changes_the_key_and_no_other_edit(
    module, room, alone, tmp_path, monkeypatch
):
    package = tmp_path / "lstm_kernels"
    hidden = shutil.ignore_patterns("__pycache__")
    shutil.copytree(kernels._PACKAGE, package, ignore=hidden)
    monkeypatch.setattr(kernels, "_PACKAGE", package)
    place = SimpleNamespace(__file__=str(package / room / alone))
    monkeypatch.setitem(sys.modules, f"lstm_kernels.{module}", place)
    digest = partial(kernels.digest.__wrapped__, f"lstm_kernels.{module}")
    before, changed = digest(), set()
    for path in package.rglob("*.py"):
        text = path.read_bytes()
        path.write_bytes(text + b"# an edit\n")
        if digest() != before:
            changed.add(path.relative_to(package).as_posix())
        path.write_bytes(text)
    of_room = {f"{room}/{path.name}" for path in (package / room).glob("*.py")}
    own = (package / room / alone).resolve().relative_to(package).as_posix()
    assert changed == {"cells.py", "kernels.py", own} | of_room


KEYS = """
import numpy as np, lstm_kernels as lk
lk.network("numba-fused", lk.Params.init(1, 3), threads=1).forward(np.ones((2, 1, 1), np.float32))
"""


def test_machine_code_of_an_edited_source_is_not_used_again(tmp_path):
    package = tmp_path / "lstm_kernels"
    shutil.copytree(
        kernels._PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__")
    )

    def cached():
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": ""}
        subprocess.run(
            [sys.executable, "-c", KEYS], env=environment, check=True, timeout=300
        )
        return {path.name for path in tmp_path.rglob("*.nbc")}

    def edit(name):
        path = package / name
        path.write_bytes(path.read_bytes() + b"# an edit\n")

    first = cached()
    edit("data.py")
    assert cached() == first
    edit("cpu/block_kernels.py")  # what the kernels call, which Numba does not look at
    assert not cached() & {name for name in first if "forward" in name}


def test_the_files_that_numba_writes_are_known_by_their_names(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels.numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernels, "digest", lambda module: "0123456789ab")
    kernels.native(empty, "trial")
    files = list(tmp_path.rglob("*.nb[ic]"))
    assert {path.suffix for path in files} == {".nbi", ".nbc"}
    for path in files:  # Numba names them after the file of the source, this one
        path.rename(path.with_name(path.name.replace("test_kernels.", "simd.")))
    monkeypatch.undo()
    module = "lstm_kernels.cpu.simd"
    kernels._prune.__wrapped__(str(files[0].parent), module)
    assert not list(tmp_path.rglob("*.nb[ic]"))


def empty(task, _, address):
    return 0


def test_a_file_that_cannot_be_removed_stays(tmp_path):
    folder = tmp_path / "simd.step_0123456789ab-1.py311.nbi"  # refuses to be unlinked
    folder.mkdir()
    kernels._prune(str(tmp_path), "lstm_kernels.cpu.simd")
    assert folder.exists()


def test_where_no_folder_can_be_written_it_is_told_once(stderr):
    made = []

    def compile(cache=False):
        def decorate(function):
            if cache:
                raise RuntimeError(
                    "cannot cache function 'kernel': no locator available"
                )
            made.append(function)
            return function

        return decorate

    for _ in range(2):
        assert kernels.cached(compile, kernel) is kernel
    assert made == [kernel, kernel]
    (line,) = stderr.lines
    assert "NUMBA_CACHE_DIR" in line


def test_other_errors_of_compiling_are_raised(stderr):
    def compile(cache=False):
        raise RuntimeError("out of registers")

    with pytest.raises(RuntimeError, match="out of registers"):
        kernels.cached(compile, kernel)


# --- the real thing

FORWARD = """
import sys, numpy as np, lstm_kernels as lk
from numba.core import caching
for name in ("CacheImpl", "_CacheImpl"):  # no folder beside the sources, nor the user's
    if hasattr(caching, name):
        getattr(caching, name)._locator_classes = getattr(caching, name)._locator_classes[:1]
net = lk.network("numba-fused", lk.Params.init(1, 3), threads=1)
for T in (2, 3):
    net.forward(np.ones((T, 1, 1), np.float32))
"""


@pytest.mark.skipif(
    not hasattr(os, "openpty"), reason="this system has no pseudo-terminals"
)
@pytest.mark.parametrize("writable", [True, False])
def test_a_terminal_reads_one_line(writable, tmp_path):
    (tmp_path / "file").touch()
    folder = tmp_path / ("cache" if writable else "file/cache")
    lines = told(FORWARD, folder)
    assert len(lines) == 1, lines
    assert str(folder) in lines[0] if writable else "NUMBA_CACHE_DIR" in lines[0]
    if writable:
        assert told(FORWARD, folder) == []  # "which the next start will not"


def told(script, folder):
    """What a Python that compiles into `folder` writes to a terminal."""
    reader, terminal = os.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "LSTM_KERNELS_QUIET"}
    environment |= {"NUMBA_CACHE_DIR": str(folder)}
    try:
        command = [sys.executable, "-c", script]
        subprocess.run(
            command, env=environment, stderr=terminal, check=True, timeout=300
        )
        os.close(terminal)
        text = b""
        try:
            while part := os.read(reader, 4096):
                text += part
        except OSError:  # the end, as Linux tells it
            pass
    finally:
        os.close(reader)
    return text.decode().splitlines()

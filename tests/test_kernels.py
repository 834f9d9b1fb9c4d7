"""What compiled code leaves behind: its cache on disk, and what it tells who waits for
it.
"""

import ast
import errno
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import numba
import numpy as np
import pytest
from numba.core.caching import IndexDataCacheFile
from test_rooms import GRAPH, MODULES

from lstm_kernels import kernels, notes
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import simd
from lstm_kernels.cpu.tiles import Tiles

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
    monkeypatch.setattr(notes, "sys", SimpleNamespace(stderr=stream, modules={}))
    monkeypatch.delenv("LSTM_KERNELS_QUIET", raising=False)
    monkeypatch.setattr(notes, "_told", set())
    monkeypatch.setattr(notes, "_shown_in", None)
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
        notes.note(what, f"about {what}")
    assert stderr.lines == ["lstm_kernels: about a.", "lstm_kernels: about b."]


def test_a_file_or_a_pipe_is_told_what_went_wrong_alone(stderr):
    stderr.terminal = False
    kernels.report_compiling(9, FOLDER)
    assert stderr.lines == []
    notes.note("what", "it went wrong")
    assert stderr.lines == ["lstm_kernels: it went wrong."]


class Notebook:
    """A shell of IPython with a kernel: what each cell shows, by its display_id."""

    kernel, execution_count = object(), 1

    def __init__(self):
        self.display_pub, self.shown = self, defaultdict(dict)

    def publish(self, data, transient, update):
        outputs, display = self.shown[self.execution_count], transient["display_id"]
        assert update == (display in outputs)
        assert all(display not in o for n, o in self.shown.items() if o is not outputs)
        outputs[display] = data["text/plain"]


@pytest.fixture
def notebook(stderr):
    shell = Notebook()
    notes.sys.modules["IPython"] = SimpleNamespace(get_ipython=lambda: shell)
    return shell


def test_each_cell_of_a_notebook_has_one_line_with_the_seconds(stderr, notebook):
    kernels.report_compiling(0.9, FOLDER)
    for cell, calls in ((4, 23), (9, 1)):
        notebook.execution_count = cell
        for _ in range(calls):
            kernels.report_compiling(9, FOLDER)
    lines = [line for outputs in notebook.shown.values() for line in outputs.values()]
    assert [re.search(r"(\d+) s so far", line)[1] for line in lines] == ["208", "217"]
    assert stderr.lines == []  # which a notebook shows in red


def test_a_notebook_is_promised_nothing_of_another_machine(notebook):
    kernels.report_compiling(9, FOLDER)
    ((line,),) = (outputs.values() for outputs in notebook.shown.values())
    assert "next start" not in line
    assert "machine" in line


def test_nobody_is_told_where_quiet_is_asked_for(stderr, notebook, monkeypatch):
    monkeypatch.setenv("LSTM_KERNELS_QUIET", "1")
    kernels.report_compiling(9, FOLDER)
    notes.note("what", "it went wrong")
    notes.sys.modules.clear()
    kernels.report_compiling(9, FOLDER)
    assert (stderr.lines, dict(notebook.shown)) == ([], {})


class Writing:
    """A stream that takes text alone."""

    def write(self, text):
        pass


class Failing(Stderr):
    def write(self, text):
        raise BrokenPipeError


class Closed(Stderr):
    def isatty(self):
        raise ValueError("I/O operation on closed file")

    write = isatty


@pytest.mark.parametrize(
    "stream",
    [None, Writing(), Failing(terminal=True), Closed(terminal=True), object()],
    ids=["none", "write alone", "failing", "closed", "nothing"],
)
def test_telling_fails_no_call(stderr, stream):
    notes.sys.stderr = stream
    kernels.report_compiling(9, FOLDER)
    notes.note("what", "it went wrong")


def test_a_notebook_that_cannot_show_fails_no_call(notebook):
    notebook.display_pub = None
    kernels.report_compiling(9, FOLDER)
    notes.sys.modules["IPython"] = SimpleNamespace()  # half imported
    kernels.report_compiling(9, FOLDER)


# --- what counts as compiling


def plus_one(x):
    return x + 1


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """A function that compiles `plus_one` as another start of Python would."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))

    def start():
        new = kernels.fill([plus_one], {}, "trial")["plus_one"]
        return kernels.cached(numba.njit, new)

    return start


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still but for compiling, which takes nine seconds."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(kernels.time, "perf_counter", lambda: clock.now)
    save = IndexDataCacheFile.save

    def saved(self, *what):
        clock.now += 9
        save(self, *what)

    monkeypatch.setattr(IndexDataCacheFile, "save", saved)


def test_what_is_found_in_the_cache_is_not_compiled(kept, stderr, clock, monkeypatch):
    assert kept()(1) == 2
    (line,) = stderr.lines
    assert "kept" in line
    monkeypatch.setattr(notes, "_told", set())
    monkeypatch.setattr(kernels, "_spent", 0.0)
    assert kept()(1) == 2
    assert stderr.lines == [line]


def test_what_is_compiled_at_once_counts_too(kept, stderr, clock):
    kernels.native(plus_one, "at_once")
    assert len(stderr.lines) == 1


# --- the cache is a help


def files(folder):
    return sorted(folder.rglob("*.nb[ic]"))


DAMAGES = {
    "emptied": lambda content: b"",
    "halved": lambda content: content[: len(content) // 2],
    "zeroed": lambda content: bytes(len(content)),
    "zeroed from the middle": lambda content: content[: len(content) // 2].ljust(
        len(content), b"\0"
    ),
    "another's": lambda content: b"cos\nsystem\n",
}


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_named_and_replaced(kept, stderr, tmp_path, damage, suffix):
    assert kept()(1) == 2
    before = files(tmp_path)
    (path,) = (path for path in before if path.suffix == suffix)
    path.write_bytes(damage(path.read_bytes()))
    assert kept()(1) == 2
    (line,) = stderr.lines
    assert str(path).partition(".nb")[0].removesuffix(".1") in line
    assert files(tmp_path) == before
    again = kept()
    assert again(1) == 2
    assert sum(again.stats.cache_hits.values()) == 1


def test_damaged_files_of_a_c_function_are_replaced(stderr, tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    for _ in range(2):
        assert kernels.native(plus_one, "damaged")
        for path in files(tmp_path):
            path.write_bytes(b"")
    assert kernels.native(plus_one, "damaged")
    assert all(path.stat().st_size for path in files(tmp_path))
    assert len(stderr.lines) == 1


@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT", "EFBIG", "EACCES", "EROFS"])
def test_a_disk_that_takes_no_more_stops_nothing(kept, stderr, monkeypatch, error):
    code = getattr(errno, error)

    def refuse(self, name, data):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(IndexDataCacheFile, "_save_data", refuse)
    made = kept()
    assert (made(1), made(1.5)) == (2, 2.5)  # two signatures, one line
    (line,) = stderr.lines
    assert os.strerror(code) in line
    assert made._cache.cache_path in line
    assert "NUMBA_CACHE_DIR" in line


def test_an_index_names_no_code_of_another_kernel(kept, stderr, tmp_path, monkeypatch):
    """The index is written before the data: if these cannot be, old data of its name
    must not be found by it.
    """
    made = kept()
    assert made(1) == 2
    for path in files(tmp_path):
        if path.suffix == ".nbi":
            path.unlink()
    monkeypatch.setattr(IndexDataCacheFile, "_save_data", lambda *what: 1 / 0)
    assert kept()(1.5) == 2.5
    monkeypatch.undo()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))
    assert kept()(1.5) == 2.5
    assert len(stderr.lines) == 1


def test_a_folder_that_is_a_file_since_stops_nothing(kept, stderr, tmp_path):
    made = kept()
    shutil.rmtree(tmp_path / "kept")
    (tmp_path / "kept").touch()
    assert made(1) == 2
    (line,) = stderr.lines
    assert str(tmp_path) in line


def test_where_no_folder_can_be_written_it_is_told_once(kept, stderr, monkeypatch):
    def refuse(function):
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr("numba.core.dispatcher.FunctionCache", refuse)
    for _ in range(2):
        assert kept()(1) == 2
    (line,) = stderr.lines
    assert "NUMBA_CACHE_DIR" in line


def test_other_errors_of_compiling_are_raised(kept, stderr):
    with pytest.raises(numba.TypingError):
        kept()("text")
    assert stderr.lines == []


@pytest.mark.skipif(os.name == "nt", reason="POSIX limits")
def test_a_limit_of_the_size_of_files_stops_nothing(kept, stderr):
    import resource

    made = kept()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        assert made(1) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (line,) = stderr.lines
    assert os.strerror(errno.EFBIG) in line
    assert not files(pathlib.Path(made._cache.cache_path))


def python(script, folder, **environment):
    """What a Python that runs a script in a folder writes to stderr."""
    environment = os.environ | environment
    environment.pop("LSTM_KERNELS_QUIET", None)
    command = [sys.executable, "-c", script]
    how = {"cwd": folder, "stderr": subprocess.PIPE, "text": True, "timeout": 300}
    done = subprocess.run(command, env=environment, **how)
    assert done.returncode == 0, done.stderr
    return done.stderr


def copy_package(folder):
    package = folder / "lstm_kernels"
    hidden = shutil.ignore_patterns("__pycache__")
    shutil.copytree(kernels._PACKAGE, package, ignore=hidden)
    return package


def test_a_package_without_sources_computes(tmp_path):
    copy_package(tmp_path)
    command = [sys.executable, "-m", "compileall", "-q", "-b", str(tmp_path)]
    subprocess.run(command, check=True)
    for path in tmp_path.rglob("*.py"):
        path.unlink()
    (line,) = python(COMPILE, tmp_path, NUMBA_CACHE_DIR=str(tmp_path)).splitlines()
    assert "sources" in line


# --- the cache on disk: keys


KERNELS = re.compile(
    r"^@part\b|^@njit\b|@instruction|\bforeign\(|\(Tiles\)|"
    r"(\.|lstm_kernels\.)kernels import|import kernels\b|^from numba import .*njit",
    re.MULTILINE,
)
WITH_KERNELS = {
    name for name, path in MODULES.items() if KERNELS.search(path.read_text())
} - {"lstm_kernels.kernels"}


@cache
def reached(name):
    """The modules with kernels that one imports, and those that they import."""
    found = {name}
    for other in GRAPH[name] & WITH_KERNELS:
        found |= reached(other)
    return found


def missing(name):
    """The package that a module cannot be imported without, or None."""
    for package in ("mpi4py",):
        if package in MODULES[name].read_text() and find_spec(package) is None:
            return package
    return None


@pytest.mark.parametrize("name", sorted(WITH_KERNELS))
def test_an_edit_of_what_a_kernel_reaches_changes_its_key(name, monkeypatch):
    if package := missing(name):
        pytest.skip(f"no {package}")
    if ".gpu." not in name:
        import_module(name)
    module = ModuleType(name)
    module.__file__, module.__package__ = str(MODULES[name]), name.rpartition(".")[0]
    monkeypatch.setitem(sys.modules, name, module)
    read, edited = pathlib.Path.read_bytes, None

    def with_edit(path):
        return read(path) + (b"# an edit\n" if path == edited else b"")

    monkeypatch.setattr(pathlib.Path, "read_bytes", with_edit)
    before = kernels.digest.__wrapped__(name)
    for other in reached(name) | {"lstm_kernels.cells", "lstm_kernels.kernels"}:
        edited = MODULES[other]
        assert kernels.digest.__wrapped__(name) != before, f"{name} reaches {other}"
    for other in ("lstm_kernels.data", "lstm_report.plots", "lstm_kernels.params"):
        edited = MODULES[other]
        assert kernels.digest.__wrapped__(name) == before


def test_a_tile_has_the_key_of_who_overrides_it_and_of_its_cell():
    """As a study of the report does with a tile, and a reader with a cell."""
    cell, float32 = CELLS["lstm"], np.dtype(np.float32)
    theirs = replace(cell, make=lambda *functions: cell.make(*functions))
    study = type("Study", (Tiles,), {"__module__": "a_study"})
    ours, mine = "lstm_kernels.cpu.tiles", "lstm_kernels.cells"
    for kind, of, modules in (
        (Tiles, cell, {ours, mine}),
        (study, cell, {ours, mine, "a_study"}),
        (Tiles, theirs, {ours, __name__}),
    ):
        for tile in kind(of, float32, 3).all().values():
            assert {*simd._origins(tile)} == modules


# A kernel of cpu/ and one of ranks/, which calls those of cpu/.
COMPILE = """
import numpy as np
from lstm_kernels.cpu import arrays, machine_code, wavefront_kernels
from lstm_kernels.ranks import shares
for kernel in (wavefront_kernels.next_batch, shares.steps_in_memory):
    assert machine_code.address(kernel, arrays.JOBS[np.dtype("float32")])
"""


def test_machine_code_of_an_edited_source_is_not_used_again(tmp_path):
    package = copy_package(tmp_path)

    def cached():
        python(COMPILE, tmp_path, NUMBA_CACHE_DIR="")
        names = {path.name for path in tmp_path.rglob("*.nbc")}
        shares = {name for name in names if "shares" in name}
        assert shares
        return shares, names - shares

    def edit(name):
        path = package / name
        path.write_bytes(path.read_bytes() + b"# an edit\n")

    shares, others = cached()
    edit("data.py")
    assert cached() == (shares, others)
    edit("ranks/shares.py")  # which no kernel of cpu/ calls
    new_shares, same = cached()
    assert not new_shares & shares
    assert same == others
    edit("cpu/block_kernels.py")  # what the kernels call, which Numba does not look at
    newer_shares, new_others = cached()
    assert not newer_shares & new_shares
    assert not new_others & others


def test_what_a_notebook_defines_is_compiled_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "a_notebook", ModuleType("a_notebook"))
    there = {"__name__": "a_notebook"}
    exec("def cell(x):\n    return x + 1", there)
    new = kernels.fill([weighted], {"weight": 3, "cell": there["cell"]}, "notebook")
    assert kernels.cached(numba.njit, new["weighted"])(2) == 6
    assert not files(tmp_path)


def test_code_of_other_states_of_the_sources_leaves_the_cache(kept, tmp_path):
    assert kept()(1) == 2
    now = files(tmp_path)
    key = re.search("_([0-9a-f]{12})-", now[0].name)[1]
    names = {path.name for path in now}
    assert {path.suffix for path in now} == {".nbi", ".nbc"}
    gone = {name.replace(key, "0123456789ab") for name in names}
    left = {name.replace("plus_one", "plus_two") for name in gone}
    left |= {f"my_{name}" for name in gone} | {f"{name}.part" for name in gone}
    left |= {name.replace("ab-", "ab.") for name in gone}
    folder = now[0].parent
    for path in now:
        path.unlink()
    for name in gone | left:
        (folder / name).touch()
    assert kept()(1) == 2
    assert {path.name for path in folder.iterdir()} == names | left


def test_a_file_that_cannot_be_removed_stays(kept, tmp_path):
    assert kept()(1) == 2
    index, _ = sorted(files(tmp_path), key=lambda path: path.suffix == ".nbc")
    key = re.search("_([0-9a-f]{12})-", index.name)[1]
    folder = index.with_name(index.name.replace(key, "0123456789ab"))
    folder.mkdir()  # refuses to be unlinked
    index.unlink()
    assert kept()(1) == 2
    assert folder.exists()


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


# Two dtypes, each first used by another process, then both by one from the cache.
MIXED = """
import sys
import numpy as np, lstm_kernels as lk
def run(H, D, L, dtype, T):
    params = lk.Params.init(D, H, num_layers=L, output_size=1, cell="rnn", dtype=dtype)
    x = np.random.default_rng(0).standard_normal((T, 1, D)).astype(dtype)
    net, right = (lk.network(name, params) for name in ("numba-fused", "numpy"))
    for one in (net, right):
        y, _ = one.forward(x, training=True)
        one.grads = one.backward(np.ones_like(y)).arrays()
    for name, a in net.grads.items():
        np.testing.assert_allclose(a, right.grads[name], rtol=1e-3, atol=1e-3)
for dtype in sys.argv[1:] * 3:
    run(*((2, 1, 2, dtype, 2) if dtype == "float64" else (4, 3, 2, dtype, 300)))
"""
NAMES = """
import sys
import numpy as np
from lstm_kernels.cpu.arrays import JOBS
from lstm_kernels.cpu import instructions
names = {}
for name in sys.argv[1:]:
    dtype = JOBS[np.dtype(name)]
    kinds = []
    instructions.instruction = lambda kind, *more: kinds.append(kind) or (lambda f: f)
    instructions.record_at(dtype)
    names[name] = kinds[0].mangling_args
print(sorted(names.items()))
"""


def run_fresh(code, *words, **environment):
    line = [sys.executable, "-c", code, *words]
    return subprocess.run(
        line,
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | environment,
    ).stdout


def test_functions_of_a_record_have_one_name_in_every_process_and_two_for_two():
    """Else the linker takes one of them for the other, from the cache."""
    first = run_fresh(NAMES, "float32", "float64")
    assert run_fresh(NAMES, "float64", "float32") == first
    (_, one), (_, two) = ast.literal_eval(first)
    assert one != two


@pytest.mark.skipif("LSTM_KERNELS_HOSTILE" not in os.environ, reason="takes a minute")
def test_dtypes_that_processes_compiled_apart_do_not_meet(tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path)}
    for words in (["float32"], ["float64"], ["float64", "float32"]):
        run_fresh(MIXED, *words, **cache)

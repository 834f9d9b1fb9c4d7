"""What compiled code leaves behind: its cache on disk, and what it tells who waits for
it.
"""

import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numba
import numpy as np
import pytest
from test_rooms import GRAPH, MODULES, ROOT

import lstm_kernels as lk
from lstm_kernels import kernels, notes
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import micro_kernels
from lstm_kernels.cpu.micro_kernels import MicroKernels
from lstm_kernels.versions.numba_fused import NumbaFused

# --- free names

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
    assert numba.njit(space["twice"].py_func)(2.0) == 12


# --- what is told


@pytest.fixture
def told(monkeypatch):
    """A process that has told nothing yet: change(stream, shell) puts another standard
    error there, and IPython's shell.
    """
    monkeypatch.delenv("LSTM_KERNELS_QUIET", raising=False)

    def change(stream, shell=None):
        modules = {"IPython": SimpleNamespace(get_ipython=lambda: shell)}
        system = SimpleNamespace(stderr=stream, modules=modules)
        monkeypatch.setattr(notes, "_told", set())
        monkeypatch.setattr(notes, "sys", system)

    here = SimpleNamespace(change=change, stream=io.StringIO())
    here.lines = lambda: here.stream.getvalue().splitlines()
    change(here.stream)
    return here


def compile_for(seconds):
    kernels._spent = 0.0
    for _ in range(3):
        kernels.report_compiling(seconds / 3, "some/folder")


def test_a_terminal_or_a_notebook_is_told_once_of_long_compiling(told, monkeypatch):
    shown = []
    display = SimpleNamespace(publish=lambda data: shown.append(data["text/plain"]))
    compile_for(9)
    assert told.lines() == []  # a file or a pipe
    told.stream.isatty = lambda: True
    compile_for(0.9)
    assert told.lines() == []
    compile_for(9)
    (line,) = told.lines()
    assert line.startswith("lstm_kernels: compiling for this machine")
    assert "some/folder" in line
    for quiet in (False, True):
        told.change(told.stream, SimpleNamespace(kernel=object(), display_pub=display))
        if quiet:
            monkeypatch.setenv("LSTM_KERNELS_QUIET", "1")
        compile_for(9)
        assert shown == told.lines() == [line]  # a notebook shows stderr in red


@pytest.mark.parametrize("stream", [None, object()])
@pytest.mark.parametrize("shell", [None, SimpleNamespace(kernel=1, display_pub=None)])
def test_telling_fails_no_call(told, stream, shell):
    told.change(stream, shell)
    compile_for(9)
    notes.note("what", "it went wrong")


# --- the cache is a help


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


def files(folder, suffix="[ic]"):
    return sorted(folder.rglob(f"*.nb{suffix}"))


def found(made):
    """Whether plus_one of another start was in the cache, and is right."""
    assert made(1) == 2
    return sum(made.stats.cache_hits.values()) == 1


def test_what_is_found_in_the_cache_is_not_compiled(kept):
    kernels._spent = 0.0
    assert not found(kept())
    spent = kernels._spent
    assert found(kept())
    assert 0 < spent == kernels._spent


@pytest.mark.parametrize("suffix", ["i", "c"])
@pytest.mark.parametrize("damage", [lambda old: old[:99], lambda old: b"cos\nsystem\n"])
def test_a_damaged_file_is_named_and_replaced(kept, told, tmp_path, damage, suffix):
    assert not found(kept())
    before = files(tmp_path)
    (path,) = files(tmp_path, suffix)
    path.write_bytes(damage(path.read_bytes()))
    assert not found(kept())
    (line,) = told.lines()
    assert str(path).partition(".nb")[0].removesuffix(".1") in line
    assert files(tmp_path) == before
    assert found(kept())


@pytest.mark.parametrize("label", ["trial", "trial.of[2]"])
def test_code_of_other_sources_goes_when_new_is_kept(tmp_path, monkeypatch, label):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))
    read, edits = pathlib.Path.read_bytes, [b"1", b"2", b"3"]

    def edited(path):
        return read(path) + edits[-1]

    def keep(name=label, origins=()):
        """The files that a function compiled by these sources has, all together."""
        kernels.digest.cache_clear()
        before = {*files(tmp_path)}
        new = kernels.fill([plus_one], {}, name, origins=origins)["plus_one"]
        made = kernels.cached(numba.njit, new)
        assert (made(1), made(1.5)) == (2, 2.5)
        return {*files(tmp_path)} - before

    monkeypatch.setattr(pathlib.Path, "read_bytes", edited)
    # Of another label, and of one that is called by other modules: two functions.
    others = keep(f"{label}_2") | keep(origins=["lstm_kernels.data"])
    old = keep()
    (of_old, *_) = sorted(old)
    for name in (
        of_old.name.replace(f".py{sys.version_info[0]}", ".py9"),  # another Python's
        of_old.name.replace("-", "-of-me-"),
        f"{of_old.name}.tmp.0123456789abcdef",  # which somebody is writing
    ):
        (of_old.parent / name).touch()
        others.add(of_old.parent / name)
    opened = open(of_old, "rb")  # noqa: SIM115
    edits.pop()
    new = keep()
    assert len(new) == len(old) == 3  # an index, two signatures
    assert {p for p in others | old | new if p.exists()} == others | new
    assert {*files(tmp_path)} <= others | new
    assert opened.read()
    opened.close()
    edits.pop()
    kernels.digest.cache_clear()


@pytest.mark.skipif(os.name == "nt", reason="POSIX limits")
def test_a_disk_that_takes_no_more_stops_nothing(kept, told, tmp_path):
    """The index is written before the data: if these cannot be, old data of its name
    must not be found by it.
    """
    import resource

    assert not found(kept())
    files(tmp_path, "i")[0].unlink()
    made, limit = kept(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        assert (made(1.5), made(1)) == (2.5, 2)  # two signatures, one line
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    (line,) = told.lines()
    assert made._cache.cache_path in line
    assert "NUMBA_CACHE_DIR" in line
    assert not files(tmp_path)
    assert kept()(1.5) == 2.5


class Threads(numba.core.event.Listener):
    """Notes on which threads Numba compiles."""

    def __init__(self):
        self.found = set()

    def on_start(self, event):
        self.found.add(threading.current_thread())

    def on_end(self, event):
        pass


def test_without_a_folder_it_is_told_once_and_compiled_on_another_thread(told):
    """To which no signal comes: an exception of a handler would leave the compiler half
    changed.
    """
    space, heard = {}, Threads()
    exec("def of_no_file(x):\n    return x + 1", space)
    with numba.core.event.install_listener("numba:compile", heard):
        for _ in range(2):
            assert kernels.cached(numba.njit, space["of_no_file"])(1) == 2
    assert heard.found
    assert threading.main_thread() not in heard.found
    (line,) = told.lines()
    assert "NUMBA_CACHE_DIR" in line


# --- the cache on disk: keys

# What a file with kernels has in its text
DEFINES = r"^@(part|njit|inlined|i\w+)\b|\b(part|njit|c_function)\(|\(MicroKernels\)"
WITH_KERNELS = {
    name
    for name, path in MODULES.items()
    if re.search(DEFINES, path.read_text(), re.MULTILINE)
} - {"lstm_kernels.kernels"}
OTHERS = {"lstm_kernels.data", "lstm_kernels.params", "lstm_report.plots"}


@cache
def reached(name):
    """The modules with kernels that one imports, and those that they import."""
    found = {name, "lstm_kernels.cells", "lstm_kernels.kernels"}
    for other in GRAPH[name] & WITH_KERNELS:
        found |= reached(other)
    return found


def test_an_edit_of_what_a_kernel_reaches_changes_its_key():
    assert len(WITH_KERNELS) > 15
    alone = pathlib.Path(__file__)
    assert alone in kernels.sources(alone)
    assert alone.with_name("conftest.py") not in kernels.sources(alone)
    for name in WITH_KERNELS:
        read = kernels.sources(MODULES[name])
        assert {MODULES[other] for other in reached(name)} <= read, name
        if name.startswith("lstm_kernels."):
            assert not {MODULES[other] for other in OTHERS} & read, name


def test_a_micro_kernel_has_the_key_of_who_overrides_it_and_of_its_cell(monkeypatch):
    """As a study of the report does with a micro-kernel, and a reader with a cell."""
    cell, float32, found = CELLS["lstm"], np.dtype(np.float32), {}
    theirs = replace(cell, make=lambda *functions: cell.make(*functions))
    study = type("Study", (MicroKernels,), {"__module__": "a_study"})
    ours, mine = "lstm_kernels.cpu.micro_kernels", "lstm_kernels.cells"

    def native(function, label, signature, origins, names):
        found.update(dict.fromkeys(origins))

    monkeypatch.setattr(micro_kernels, "native", native)
    layout = "lstm_kernels.cpu.packing"
    for kind, of, modules in (
        (MicroKernels, cell, {ours, layout, mine}),
        (study, cell, {ours, layout, mine, "a_study"}),
        (MicroKernels, theirs, {ours, layout, __name__}),
    ):
        micro_kernels._code.cache_clear()
        for name in kind(of, float32, 3).all():
            found.clear()
            micro_kernels.codes(kind(of, float32, 3), name)
            assert {*found} == modules or not found  # of one that is alike
    micro_kernels._code.cache_clear()


def test_two_epilogues_of_one_module_are_two_codes():
    class Halved(MicroKernels):
        factor = 0.5

        def cell_forward(self, m, sums, cells, keep, a, c, c_new, h_new):
            super().cell_forward(m, sums, cells, keep, a, c, c_new, h_new)
            for i, v, _ in cells:
                h_new.store(i, v, h_new.vector(i, v) * m.constant(self.factor))

    class Quartered(Halved):
        factor = 0.25

    params, x = lk.Params.init(2, 5), np.ones((1, 3, 2), np.float32)
    want, _ = lk.network("numba-fused", params).forward(x)
    for kind in (Halved, Quartered):
        net = type("Net", (NumbaFused,), {"micro_kernels": kind})(params)
        np.testing.assert_allclose(net.forward(x)[0], kind.factor * want, rtol=1e-6)


def python(code, folder, *words):
    """What a Python prints that runs code in a folder."""
    environment = os.environ | {"PYTHONPATH": "", "NUMBA_CACHE_DIR": ""}
    how = {"cwd": folder, "text": True, "timeout": 300, "env": environment}
    return subprocess.check_output([sys.executable, "-c", code, *words], **how)


# A kernel of ranks/, which calls one of cpu/.
SHARED = """
from ..cpu.scheduler import serpentine
def of_one(step):
    return serpentine(step, 0, 0, 9)
"""
# It, and kernels of cpu/ alone.
COMPILE = """
from lstm_kernels.cpu import scheduler, thread_pool
from lstm_kernels.kernels import native
from lstm_kernels.ranks import shared
for kernel in (scheduler.run, thread_pool.run_region, shared.of_one):
    assert native(kernel, "")
"""
KERNELS = {"run", "run_region", "of_one"}


def test_machine_code_of_an_edited_source_is_not_used_again(tmp_path):
    hidden, package = shutil.ignore_patterns("__pycache__"), tmp_path / "lstm_kernels"
    shutil.copytree(ROOT / "lstm_kernels", package, ignore=hidden)
    (package / "ranks" / "shared.py").write_text(SHARED)
    before = {}
    for edited, anew in (
        ("data.py", KERNELS),
        ("data.py", set()),
        ("cpu/net.py", KERNELS),
        ("ranks/shared.py", {"of_one"}),  # which no kernel of cpu/ calls
    ):
        with open(package / edited, "a") as file:
            file.write("# an edit\n")
        python(COMPILE, tmp_path)
        now = {p.name: p.stat().st_mtime_ns for p in files(tmp_path, "c")}
        new = [name for name in now if now[name] != before.get(name)]
        assert {o for o in KERNELS for n in new if f".{o}_" in n} == anew, edited
        assert len(new) == len(anew), edited
        assert len(now) == len(KERNELS), "old code is kept"
        before = now


def test_what_a_notebook_defines_is_compiled_anew(kept, tmp_path):
    there = {"__name__": "a_notebook"}
    exec("def cell(x):\n    return x + 1", there)
    new = kernels.fill([weighted], {"weight": 3, "cell": there["cell"]}, "notebook")
    assert kernels.cached(numba.njit, new["weighted"])(2) == 6
    assert not files(tmp_path)

"""How kernels become machine code, which is kept on disk.

Numba's cache knows a function by its file and qualified name, and looks at that file
alone for changes. So names in the cache hold a hash of all sources that code can be
compiled from (`digest`): code compiled from other sources is never found again. The
cache is a help: whatever fails there, kernels are compiled and run.
"""

import glob
import hashlib
import inspect
import pathlib
import re
import sys
import time
import types
from contextlib import suppress
from functools import cache, partial

import numba
from numba import njit
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.sigutils import normalize_signature

from .forks import at_fork
from .interrupts import undisturbed
from .notes import is_terminal, note, notebook, show

# fastmath: "contract" alone, so that a * b + c may be one fused multiply-add; sums keep
# their order. error_model: division as NumPy's; Python's check for zero would keep the
# loops scalar.
OPTIONS = {"fastmath": {"contract"}, "error_model": "numpy"}


class _Help:
    """Before Numba's class of a cache: what fails there counts as not kept."""

    def load_overload(self, *what):
        self._start = time.perf_counter()
        try:
            return super().load_overload(*what)
        except OSError as error:
            self._lost("read", error)
        except Exception as error:  # whatever damaged bytes are read as
            files, done = f"{self._base}.nb*", "it was removed, and is compiled anew"
            if not self._remove():
                done = "it cannot be removed: please do"
            why = f"is damaged ({type(error).__name__})"
            note("damaged", f"compiled code in {files} {why}: {done}")

    def save_overload(self, *what):
        try:
            super().save_overload(*what)
        except Exception as error:
            # The index is written first: it must not name what other code was kept in.
            self._remove()
            self._lost("written", error)
        else:
            report_compiling(time.perf_counter() - self._start, self.cache_path)
            self._prune()

    @property
    def _base(self):
        """How the paths of the index and the data begin."""
        return str(pathlib.Path(self.cache_path, self._impl.filename_base))

    def _remove(self):
        """Remove the index, then the data: whether nothing is left."""
        paths = glob.glob(f"{glob.escape(self._base)}.*nb[ic]")
        with suppress(OSError):  # another user's, or in use
            for path in sorted(paths, key=lambda path: path.endswith(".nbc")):
                pathlib.Path(path).unlink()
            return True
        return False

    def _lost(self, done, error):
        cause = getattr(error, "strerror", None) or repr(error)
        where = f"{self.cache_path} cannot be {done} ({cause})"
        note("no-cache", f"compiled code in {where}{AGAIN}; {ANOTHER}")

    def _prune(self):
        """Remove the same kernel compiled from other states of the sources: it is not
        asked for again.
        """
        key = self._py_func.__qualname__.rpartition("_")[2]
        name = pathlib.Path(self._base).name
        before, _, _ = name.partition(key)
        other = re.compile(rf"{re.escape(before)}([0-9a-f]{{12}})-\d+\.py.*\.nb[ic]")
        if not other.fullmatch(f"{name}.nbi"):  # it holds no key
            return
        with suppress(OSError):  # another user's, or in use
            for path in pathlib.Path(self.cache_path).glob("*.nb[ic]"):
                match = other.fullmatch(path.name)
                if match and match[1] != key:
                    path.unlink()


AGAIN = ": every start compiles what it needs"
ANOTHER = "NUMBA_CACHE_DIR may name another folder"


def cached(compile, function, **options):
    """compile(**options)(function), which compiles nothing yet, with Numba's cache on
    disk where there can be one.
    """
    made = compile(**options)(function)
    if function.__qualname__.endswith(f"_{ANEW}"):
        return made
    try:
        made.enable_caching()
    except Exception as error:  # no place for it: of several kinds
        if pathlib.Path(inspect.getfile(function)).exists():
            cause = f"no folder for compiled code can be written ({error})"
            note("no-cache", f"{cause}{AGAIN}; {ANOTHER}")
        else:
            cause = "compiled code is kept beside sources, and there are none here"
            note("no-cache", f"{cause}{AGAIN}")
        return made
    kind = type(made._cache)
    made._cache.__class__ = type(kind.__name__, (_Help, kind), {})
    return made


_spent = 0.0


def report_compiling(seconds, folder):
    """Say so when compiling has taken more than a second in all; a notebook sees the
    seconds.
    """
    global _spent
    _spent += seconds
    if _spent > 1:
        what, later = "compiling for this machine", "later starts on it will not"
        if shell := notebook():
            show(shell, f"{what}, {_spent:.0f} s so far; {later}")
        elif is_terminal():
            note("compiling", f"{what}; {later}: kept in {folder}")


# A fork waits until no thread compiles.
at_fork(hold=global_compiler_lock)

threads_lost = False  # is this a fork of a process in which Numba's threads had begun?


def _renew():
    global threads_lost
    with suppress(ValueError):  # they had not begun
        threads_lost = bool(numba.threading_layer())


at_fork(renew=_renew)


def numbas_threads():
    """How many threads Numba takes. To ask Numba would begin its threads, which resets
    the number of OpenMP's that PyTorch takes.
    """
    with suppress(ValueError):  # they have not begun
        if numba.threading_layer():
            return numba.get_num_threads()
    return numba.config.NUMBA_NUM_THREADS


_PACKAGE = pathlib.Path(__file__).parent
# Rooms with kernels; those of each may call the ones before it. gpu/ stands by itself.
_ROOMS = ("cpu", "versions", "ranks")
ANEW = "anew"  # in place of a hash where no file is known: each process compiles it


@cache
def digest(*modules):
    """A hash of what kernels of modules can be compiled from, or ANEW: the cells, this
    file, the module and its room, and the rooms that it may call.
    """
    paths = {*_sources(_PACKAGE, "cells"), *_sources(_PACKAGE, "kernels")}
    for name in modules:
        module = sys.modules.get(name)
        if getattr(module, "__file__", None) is None:  # a notebook's
            return ANEW
        path, rooms = pathlib.Path(module.__file__), []
        room = path.parent
        if room.parent == _PACKAGE and room.name in _ROOMS:
            rooms = [_PACKAGE / r for r in _ROOMS[: _ROOMS.index(room.name) + 1]]
        elif room.parent == _PACKAGE:  # gpu/
            rooms = [room]
        elif room != _PACKAGE:  # somebody else's
            rooms = [_PACKAGE / r for r in (*_ROOMS, "gpu")]
            rooms += [room] if module.__package__ else []
        paths |= {path, *(p for r in rooms for p in _sources(r, "*"))}
    try:
        texts = [path.read_bytes() for path in sorted(paths)]
    except OSError:  # removed since
        return ANEW
    return hashlib.sha256(b"".join(texts)).hexdigest()[:12]


def _sources(folder, name):
    """Files of modules, or, in an installation without sources, their bytecode."""
    return [*folder.glob(f"{name}.py")] or [*folder.glob(f"{name}.pyc")]


def fill(sources, names, label, compile=None, origins=()):
    """Functions made anew, free names filled in: a dict of globals in which they find
    each other.

    sources: functions, and modules, all of whose functions are taken. names: what free
    names are. label: tells one filling from others in Numba's cache, which knows a
    function by its qualified name. compile: what becomes of each new function; None: it
    stays Python's. origins: names of modules whose code they call besides.
    """
    modules = [source for source in sources if isinstance(source, types.ModuleType)]
    functions = {f.__name__: f for f in sources if f not in modules}
    space = {}
    for scope in [*map(vars, modules), *(f.__globals__ for f in functions.values())]:
        space |= {name: value for name, value in scope.items() if value is not None}
    space |= names
    own = {module.__name__ for module in modules}
    for name, value in space.items():
        if isinstance(value, types.FunctionType) and value.__module__ in own:
            functions[name] = value
    filled = (getattr(value, "py_func", value) for value in names.values())
    origins = {f.__module__ for f in filled if isinstance(f, types.FunctionType)} | {
        *origins
    }
    for name, function in functions.items():
        key = digest(function.__module__, *sorted(origins))
        new = types.FunctionType(function.__code__, space, function.__name__)
        new.__qualname__ = f"{function.__name__}_{label}_{key}"
        new.__module__ = function.__module__
        space[name] = compile(new) if compile else new
    return space


def part(function):
    """Compile a function as part of what calls it, when that is compiled."""
    made = njit(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, **OPTIONS)
    typed = made.get_call_template

    def once(args, kws):
        # Numba would compile it anew for an argument that is 0 in the source.
        return typed([numba.types.unliteral(kind) for kind in args], kws)

    made.get_call_template = once
    return made


_kept = []  # code must outlive those who know its address


def native(function, label, signature=None, origins=()):
    """The address of a function as machine code, in C's calling convention; in Numba's
    cache it is under `label`. signature: its types; None: integers of 64 bits, and so
    is the result. origins: as of `fill`.
    """
    if signature is None:
        signature = numba.types.int64(
            *[numba.types.int64] * function.__code__.co_argcount
        )
    new = fill([function], {}, label, origins=origins)[function.__name__]
    made = cached(partial(_c_function, signature), new, **OPTIONS)
    undisturbed(made.compile)
    _kept.append(made)
    return made.address


def _c_function(signature, **options):
    """As `numba.cfunc`, which compiles at once."""
    return lambda function: CFunc(function, normalize_signature(signature), {}, options)

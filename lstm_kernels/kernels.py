"""How kernels become machine code, which is kept on disk.

Numba's cache knows a function by its file and qualified name, and looks at that file
alone for changes. So names in the cache hold a hash of all sources that code can be
compiled from (`digest`): code of other sources is never found, and goes when new code
is kept. The cache is a help: whatever fails there, kernels are compiled and run.
"""

import hashlib
import pathlib
import re
import sys
import time
import types
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any

import numba
from numba import njit
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock

from .forks import at_fork
from .interrupts import undisturbed
from .notes import is_watched, note

# fastmath: "contract" alone, so that a * b + c may be one fused multiply-add; sums keep
# their order. error_model: division as NumPy's; Python's check for zero would keep the
# loops scalar.
OPTIONS: dict[str, Any] = {"fastmath": {"contract"}, "error_model": "numpy"}
# Of functions that allocate nothing: Numba need not count references to their views,
# which takes longer than a small product. A private option (tests/test_engine.py).
PLAIN = OPTIONS | {"_nrt": False}
# A function of `fill` in the cache: what it is, of which sources, for which Python
FILLED = re.compile(r"(.+_[0-9a-f]{4})([0-9a-f]{12})-\w+(\.py\w+)")
AGAIN = "every start compiles what it needs; NUMBA_CACHE_DIR may name another folder"


class _Help:
    """Mixin for Numba's cache classes: a cache failure is treated as a miss."""

    def load_overload(self, *what):
        self._start = time.perf_counter()
        try:
            return super().load_overload(*what)
        except Exception as error:  # whatever damaged bytes are read as
            self._lost("read", error, "it is compiled anew")

    def save_overload(self, *what):
        try:
            super().save_overload(*what)
        except Exception as error:
            self._lost("written", error, AGAIN)
        else:
            if filled := FILLED.fullmatch(self._impl.filename_base):
                start, key, end = map(re.escape, filled.groups())
                self._remove(rf"{start}(?!{key})\w{{12}}-\w+{end}")
            report_compiling(time.perf_counter() - self._start, self.cache_path)

    def _lost(self, done, error, then):
        base = self._impl.filename_base
        self._remove(re.escape(base))
        base = f"{self.cache_path}/{base}.*"
        note(f"not {done}", f"compiled code in {base} is not {done} ({error}): {then}")

    def _remove(self, base):
        """Remove index and data of each function whose name in the cache matches."""
        for path in [*pathlib.Path(self.cache_path).glob("*.nb[ic]")]:
            if re.fullmatch(rf"{base}(\.\d+)?", path.stem):
                with suppress(OSError):  # another user's, or in use
                    path.unlink()


def cached(compile: Callable, function: Callable, **options: Any) -> Any:
    """compile(**options)(function), which compiles nothing yet; when it does, it is
    left whole by signals. With Numba's cache on disk where there can be one.
    """
    dispatcher = compile(**options)(function)
    disturbed = dispatcher.compile
    dispatcher.compile = lambda *types: undisturbed(partial(disturbed, *types))
    if function.__qualname__.endswith(f"_{ANEW}"):
        return dispatcher
    try:
        dispatcher.enable_caching()
    except Exception as error:  # no place for it: of several kinds
        note("no cache", f"no folder takes compiled code ({error}): {AGAIN}")
        return dispatcher
    dispatcher._cache.__class__ = type("Cache", (_Help, type(dispatcher._cache)), {})
    return dispatcher


_spent = 0.0


def report_compiling(seconds: float, folder: str) -> None:
    """Say so, once, when compiling has taken more than a second in all."""
    global _spent
    _spent += seconds
    if _spent > 1 and is_watched():
        note("compiling", f"compiling for this machine, this once: kept in {folder}")


threads_lost = False  # is this a fork of a process in which Numba's threads had begun?


def _renew():
    global threads_lost
    with suppress(ValueError):  # they had not begun
        threads_lost = bool(numba.threading_layer())


at_fork(hold=global_compiler_lock, renew=_renew)  # while no thread compiles


def numbas_threads() -> int:
    """How many threads Numba takes. To ask Numba would begin its threads, which resets
    the number of OpenMP's that PyTorch takes.
    """
    with suppress(ValueError):  # they have not begun
        if numba.threading_layer():
            return numba.get_num_threads()
    return numba.config.NUMBA_NUM_THREADS


_PACKAGE = pathlib.Path(__file__).parent
# Rooms with kernels. Those of the first two call none outside; others may call all.
_ROOMS = [_PACKAGE / name for name in ("cpu", "gpu", "versions", "ranks")]
ANEW = "anew"  # in place of a hash where no file is known: each process compiles it


def sources(path: pathlib.Path) -> set[pathlib.Path]:
    """The files that kernels of a module's file can be compiled from: the cells, this
    file, the module with its package's folder, and the rooms that it may call.
    """
    paths = {_PACKAGE / "cells.py", _PACKAGE / "kernels.py"}
    if path in paths:
        return paths
    rooms = [path.parent] if path.parent in _ROOMS[:2] else [path.parent, *_ROOMS]
    folders = [room for room in rooms if (room / "__init__.py").exists()]
    return paths | {path, *(p for folder in folders for p in folder.glob("*.py"))}


@cache
def digest(*modules: str) -> str:
    """Hashes of which files modules are, and of their sources; or ANEW."""
    try:
        files = [pathlib.Path(vars(sys.modules[name])["__file__"]) for name in modules]
        paths = sorted(set().union(*map(sources, files)))
        texts = b"".join(path.read_bytes() for path in paths)
    except (KeyError, TypeError, OSError):  # a notebook's, or without sources
        return ANEW
    which = hashlib.sha256(repr(files).encode()).hexdigest()[:4]
    return which + hashlib.sha256(texts).hexdigest()[:12]


def fill(of, names, label, compile=None, origins=()):
    """Functions made anew, free names filled in: a dict of globals in which they find
    each other.

    of: functions, and modules, all of whose functions are taken. names: what free
    names are. label: tells one filling from others in Numba's cache, which knows a
    function by its qualified name. compile: what becomes of each new function; None: it
    stays Python's. origins: names of modules whose code they call besides.
    """
    functions = {f.__name__: f for f in of if isinstance(f, types.FunctionType)}
    modules = {m.__name__: vars(m) for m in of if isinstance(m, types.ModuleType)}
    space = {}
    for scope in [*modules.values(), *(f.__globals__ for f in functions.values())]:
        space |= scope
    space |= names
    for name, value in space.items():
        if isinstance(value, types.FunctionType) and value.__module__ in modules:
            functions[name] = value
    filled = (getattr(value, "py_func", value) for value in names.values())
    called = (f.__module__ for f in filled if isinstance(f, types.FunctionType))
    origins = sorted({*called, *origins})
    for name, function in functions.items():
        key = digest(function.__module__, *origins)
        new = types.FunctionType(function.__code__, space, function.__name__)
        new.__qualname__ = f"{function.__name__}_{label}_{key}"
        new.__module__ = function.__module__
        space[name] = compile(new) if compile else new
    return space


def part(function: Callable, **options: Any) -> Any:
    """Compile a function as part of what calls it, when that is compiled. options: of
    `njit`; `_nrt=True` for one that allocates.
    """
    alone = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    dispatcher = njit(function, **PLAIN | alone | options)
    typed = dispatcher.get_call_template

    def once(args, kws):
        # Numba would compile it anew for an argument that is 0 in the source.
        return typed([numba.types.unliteral(kind) for kind in args], kws)

    dispatcher.get_call_template = once
    return dispatcher


# Likewise where it is called once, with a NamedTuple of many arrays.
inlined = partial(part, inline="always")

_kept: list[Any] = []  # code must outlive those who know its address


def native(function, label, signature=None, origins=(), names=None):
    """The address of a function as machine code, in C's calling convention; in Numba's
    cache it is under `label`. signature: its types; None: integers of 64 bits, and so
    is the result. origins: as of `fill`.
    """
    kinds = signature or numba.int64(*[numba.int64] * function.__code__.co_argcount)
    signature = kinds.args, kinds.return_type
    new = fill([function], names or {}, label, origins=origins)[function.__name__]
    # `numba.cfunc` would compile at once.
    dispatcher = cached(lambda: lambda f: CFunc(f, signature, {}, {**PLAIN}), new)
    dispatcher.compile()
    _kept.append(dispatcher)
    return dispatcher.address

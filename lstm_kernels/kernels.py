"""How kernels become machine code, which is kept on disk.

Numba's cache knows a function by its file and qualified name, and looks at that file
alone for changes. So names in the cache hold a hash of all sources that code can be
compiled from (`digest`): code of other sources is never found, and goes when new code
is kept. The cache is a help: whatever fails there, kernels are compiled and run; what
is damaged is replaced without a word.
"""

import glob
import hashlib
import pathlib
import re
import sys
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
ALONE = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # called by no Python
# In the cache's name of a function of `fill`: hashes, and the line it begins in
KEY = r"(_[\da-f]{4})[\da-f]{12}-\d+(?=\.py)"
NOT_KEPT = (
    "compiled code is not kept on disk ({}): every start compiles what it needs; "
    "NUMBA_CACHE_DIR may name a folder for it"
)


class _Help:
    """Mixin for Numba's cache classes: a cache failure is treated as a miss."""

    def load_overload(self, *what):
        code = None
        with suppress(Exception):  # whatever damaged bytes are read as
            code = super().load_overload(*what)
        if code is None and is_watched():
            message = "compiling for this machine, the first time only: kept in {}"
            note("compiling", message.format(self.cache_path))
        return code

    def save_overload(self, *what):
        name, keep = self._impl.filename_base, None
        try:
            super().save_overload(*what)
            keep = f"{name}."
        except Exception as error:  # its index is written first: it may name older data
            note("not kept", NOT_KEPT.format(error))
        # What other sources became goes too.
        names = re.sub(KEY, r"\1*", glob.escape(name))
        with suppress(OSError):  # another user's, or in use
            for path in pathlib.Path(self.cache_path).glob(f"{names}.*nb[ic]"):
                if keep is None or not path.name.startswith(keep):
                    path.unlink()


def cached(compile: Callable, function: Callable, **options: Any) -> Any:
    """compile(**options)(function), which compiles nothing yet; when it does, it is
    left whole by signals. With Numba's cache on disk where there can be one.
    """
    dispatcher = compile(**options)(function)
    dispatcher.compile = partial(undisturbed, dispatcher.compile)
    if function.__qualname__.endswith(f"_{ANEW}"):
        return dispatcher
    try:
        dispatcher.enable_caching()
        cache_class = type("Cache", (_Help, type(dispatcher._cache)), {})
        dispatcher._cache = cache_class(function)
    except Exception as error:  # no place for it: of several kinds
        note("not kept", NOT_KEPT.format(error))
    return dispatcher


threads_lost = False  # is this a fork of a process in which Numba's threads had begun?


def _begun():
    """Have Numba's threads begun? To ask Numba for more would begin them, which resets
    the number of OpenMP's that PyTorch takes.
    """
    with suppress(ValueError):
        return bool(numba.threading_layer())
    return False


def _renew():
    global threads_lost
    threads_lost = _begun()


at_fork(hold=global_compiler_lock, renew=_renew)  # while no thread compiles


def numbas_threads() -> int:
    """How many threads Numba takes."""
    return numba.get_num_threads() if _begun() else numba.config.NUMBA_NUM_THREADS


_PACKAGE = pathlib.Path(__file__).parent
# Rooms with kernels. Those of the first two call none outside; others may call all.
_ROOMS = [_PACKAGE / name for name in ("cpu", "gpu", "versions", "ranks")]
ANEW = "anew"  # in place of a hash where no file is known: each process compiles it


def sources(path: pathlib.Path) -> set[pathlib.Path]:
    """The files that kernels of a module's file can be compiled from: the cells, this
    file, the module with its package's folder, and the rooms that it may call.
    """
    rooms = [path.parent, *([] if path.parent in _ROOMS[:2] else _ROOMS)]
    folders = [room for room in rooms if (room / "__init__.py").exists()]
    paths = {path, _PACKAGE / "cells.py", _PACKAGE / "kernels.py"}
    return paths.union(*(folder.glob("*.py") for folder in folders))


@cache
def digest(*modules: str) -> str:
    """Hashes of which files modules are, and of their sources; or ANEW."""
    try:
        files = [pathlib.Path(vars(sys.modules[name])["__file__"]) for name in modules]
        paths = set().union(*map(sources, files))
        texts = b"".join(path.read_bytes() for path in sorted(paths))
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
    dispatcher = njit(function, **PLAIN | ALONE | options)
    typed = dispatcher.get_call_template

    def once(args, kws):
        # Numba would compile it anew for an argument that is 0 in the source.
        return typed([numba.types.unliteral(kind) for kind in args], kws)

    dispatcher.get_call_template = once
    return dispatcher


_kept: list[Any] = []  # code must outlive those who know its address


def native(function, label, signature=None, origins=(), names=None):
    """The address of a function as machine code, in C's calling convention; in Numba's
    cache it is under `label`. signature: its types; None: integers of 64 bits, and so
    is the result. origins: as of `fill`.
    """
    kinds = signature or numba.int64(*[numba.int64] * function.__code__.co_argcount)
    types = kinds.args, kinds.return_type
    new = fill([function], names or {}, label, origins=origins)[function.__name__]
    # `numba.cfunc` would compile at once.
    dispatcher = cached(lambda: lambda f: CFunc(f, types, {}, {**PLAIN}), new)
    dispatcher.compile()
    _kept.append(dispatcher)
    return dispatcher.address

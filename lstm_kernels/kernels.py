"""How kernels become machine code, which is kept on disk.

Numba's cache knows a function by its file and qualified name, and looks at that file
alone for changes. So names in the cache hold a hash of all sources that code can be
compiled from (`digest`): code compiled from other sources is never found again.
"""

import hashlib
import os
import pathlib
import re
import sys
import time
import types
from contextlib import suppress
from functools import cache, partial

import numba
from numba import njit
from numba.core import event
from numba.core.compiler_lock import global_compiler_lock

from .forks import at_fork

# fastmath: "contract" alone, so that a * b + c may be one fused multiply-add; sums keep
# their order. error_model: division as NumPy's; Python's check for zero would keep the
# loops scalar.
OPTIONS = {"fastmath": {"contract"}, "error_model": "numpy"}


def cached(compile, function, **options):
    """Compile with Numba's cache on disk, or without where no folder can be written."""
    start = time.perf_counter()
    try:
        made = compile(cache=True, **options)(function)
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        tell(
            "no-cache",
            "no folder for compiled code can be written: NUMBA_CACHE_DIR may name one",
        )
        return compile(**options)(function)
    folder = made._cache.cache_path
    _prune(folder, function.__module__)
    if not getattr(made, "cache_hits", True):  # a C function is compiled at once
        report_compiling(time.perf_counter() - start, folder)
    return made


_told, _spent = set(), 0.0


def tell(what, message, again=False):
    """A line on stderr, if it is a terminal or a notebook: once, or `again` over the
    one before.
    """
    reads = sys.stderr is not None and (
        sys.stderr.isatty() or "ipykernel" in sys.modules
    )
    if (
        (again or what not in _told)
        and reads
        and "LSTM_KERNELS_QUIET" not in os.environ
    ):
        start, end = ("\r", "") if again else ("", "\n")
        print(f"{start}lstm_kernels: {message}.", file=sys.stderr, flush=True, end=end)
    _told.add(what)


def report_compiling(seconds, folder):
    """Say so when compiling has taken more than a second in all; a notebook sees the
    seconds.
    """
    global _spent
    _spent += seconds
    if _spent > 1:
        if "ipykernel" in sys.modules:
            so_far = f"{_spent:.0f} s so far; the next start will not"
            tell("compiling", f"compiling for this CPU, {so_far}", again=True)
        else:
            kept_in = f"the next start will not: kept in {folder}"
            tell("compiling", f"compiling for this CPU; {kept_in}")


class _Compiling(event.Listener):
    """Counts what functions of this package take that Numba compiles when they are
    called.
    """

    def __init__(self):
        self._starts = []

    def on_start(self, happened):
        self._starts.append(time.perf_counter())

    def on_end(self, happened):
        start, function = self._starts.pop(), happened.data["dispatcher"]
        # Anybody's function: what Numba lifts out of one, such as objmode, knows no
        # cache.
        folder = getattr(getattr(function, "_cache", None), "cache_path", None)
        ours = str(function.py_func.__module__).startswith(__package__)
        if folder and ours and not self._starts:
            report_compiling(time.perf_counter() - start, folder)


event.register("numba:compile", _Compiling())
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


@cache
def _prune(folder, module):
    """Remove a module's cached code of other states of the sources: it is not asked for
    again.
    """
    stem = module.rpartition(".")[2]
    ours = re.compile(rf"{stem}\.\w+_([0-9a-f]{{12}})-\d+\.py.*\.nb[ic]")
    for path in pathlib.Path(folder).glob("*.nb[ic]"):
        match = ours.fullmatch(path.name)
        if match and match[1] != digest(module):
            with suppress(OSError):  # another user's, or in use
                path.unlink()


_PACKAGE = pathlib.Path(__file__).parent


@cache
def digest(module):
    """A hash of what a module's code can be compiled from: itself, the cells, this file
    and its room, gpu/ or else cpu/.
    """
    room = "gpu" if module.startswith(f"{__package__}.gpu.") else "cpu"
    paths = {_PACKAGE / "cells.py", _PACKAGE / "kernels.py"}
    paths |= {*(_PACKAGE / room).glob("*.py")}
    paths.add(pathlib.Path(getattr(sys.modules.get(module), "__file__", __file__)))
    texts = [path.read_bytes() for path in sorted(paths)]
    return hashlib.sha256(b"".join(texts)).hexdigest()[:12]


def fill(sources, names, label, compile=None):
    """Functions made anew, free names filled in: a dict of globals in which they find
    each other.

    sources: functions, and modules, all of whose functions are taken. names: what free
    names are. label: tells one filling from others in Numba's cache, which knows a
    function by its qualified name. compile: what becomes of each new function; None: it
    stays Python's.
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
    for name, function in functions.items():
        new = types.FunctionType(function.__code__, space, function.__name__)
        new.__qualname__ = f"{function.__name__}_{label}_{digest(function.__module__)}"
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


def native(function, label, signature=None):
    """The address of a function as machine code, in C's calling convention; in Numba's
    cache it is under `label`. signature: its types; None: integers of 64 bits, and so
    is the result.
    """
    if signature is None:
        signature = numba.types.int64(
            *[numba.types.int64] * function.__code__.co_argcount
        )
    new = fill([function], {}, label)[function.__name__]
    _kept.append(cached(partial(numba.cfunc, signature), new, **OPTIONS))
    return _kept[-1].address

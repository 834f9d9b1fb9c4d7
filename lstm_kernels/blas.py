"""NumPy's products on threads, with the same bits for every number of them.

A BLAS library that is left to its own threads cuts long sums as their number suggests
(OpenBLAS does), and rounds differently for one and for two. Here the cut depends on the
shape alone: the product is divided into panels of its result, and each panel is
computed by one thread, with BLAS kept to that thread.
"""

import ctypes
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from .cores import allowed
from .forks import at_fork

MOST_PANELS = 16
# Operations worth a second thread: half of them take some 80 us, about the price of
# waking it.
LEAST_WORK = 16_000_000

_computing: Any = threading.RLock()
at_fork(hold=_computing)  # OpenBLAS forgets its number of threads at a fork


@contextmanager
def single_threaded() -> Iterator[None]:
    """A context that keeps BLAS to the calling thread, and arithmetic in this thread to
    the standard: round to nearest, keep subnormal numbers. One Python thread at a time
    is inside: BLAS has one number of threads for all of them.

    At its end the number is what it was, or what others have set meanwhile, which holds
    inside until the next `product`; and the thread computes as before.
    """
    nested = _computing._is_owned()
    with _computing:
        if nested:
            yield
            return
        get, put, standard = _environment()
        mode = ctypes.create_string_buffer(64)  # an fenv_t takes 32 bytes at most
        get(mode)  # before an interrupt can find another
        try:
            put(standard)
            _keep_alone()
            yield
        finally:
            try:
                put(mode)
            finally:
                _give_back()


_others: dict[Any, int] = {}  # numbers that are not ours, while a 1 of ours is set


@cache
def _libraries():
    return ThreadpoolController().select(user_api="blas").lib_controllers


def _set_number(library, number):
    # The public function does nothing while another Python thread has a limit.
    set_number = getattr(library, "_real_set_num_threads", library.set_num_threads)
    set_number(number)


def _keep_alone():
    for library in _libraries():
        number = library.get_num_threads()
        if number not in (1, None):
            _others[library] = number
            _set_number(library, 1)


def _give_back():
    for library, number in _others.items():
        if library.get_num_threads() == 1:  # else it is others' again
            _set_number(library, number)
    _others.clear()  # an interrupt before leaves it to the next context


@cache
def _environment():
    """C's fegetenv and fesetenv, and its standard environment; in Windows, functions
    that do nothing.
    """
    if sys.platform not in ("linux", "darwin"):
        return (nothing := lambda place: None), nothing, None
    library = ctypes.CDLL(None)
    get, put = library.fegetenv, library.fesetenv
    get.argtypes = put.argtypes = [ctypes.c_void_p]
    if sys.platform == "linux":
        return get, put, -1  # FE_DFL_ENV
    return get, put, ctypes.addressof(ctypes.c_byte.in_dll(library, "_FE_DFL_ENV"))


@lru_cache(maxsize=1024)
def panels(M: int, N: int, K: int) -> list[tuple[slice, slice]]:
    """Cut an (M, N) product over K into slices of rows or columns, by its shape
    alone.
    """
    work, size = 2 * M * N * K, max(M, N)
    count = 1
    if work >= LEAST_WORK:
        # Few and wide: BLAS packs the other operand anew for every panel.
        count = min(MOST_PANELS, max(2, work // (4 * LEAST_WORK)))
    # Whole cache lines, whole tiles of BLAS's kernel
    width = 64 * math.ceil(size / count / 64)
    pieces = [slice(start, min(start + width, size)) for start in range(0, size, width)]
    return [
        (piece, slice(None)) if M >= N else (slice(None), piece) for piece in pieces
    ]


def product(a: np.ndarray, b: np.ndarray, threads: int) -> np.ndarray:
    """a (M, K) @ b (K, N) on up to `threads` threads, inside `single_threaded`."""
    if _computing._is_owned():
        _keep_alone()  # others may have changed it
    cuts = panels(a.shape[0], b.shape[1], a.shape[1])
    if len(cuts) == 1:
        return a @ b
    out = np.empty((a.shape[0], b.shape[1]), np.result_type(a, b))
    matmul, pieces = np.matmul, ((a[m], b[:, n], out[m, n]) for m, n in cuts)
    at_once([partial(matmul, *piece) for piece in pieces], threads)
    return out


def at_once(jobs: Sequence[Callable[[], object]], threads: int) -> None:
    """Call functions without arguments on up to `threads` threads, the caller's among
    them, each the next in the list that nobody has begun: one may wait for another
    before it.
    """
    left = iter(jobs)  # shared: a thread that is held up takes fewer

    def work():
        for job in left:
            job()

    waiting = []
    with suppress(RuntimeError):  # at the end of the process the pool takes no work
        for _ in range(min(threads, len(jobs)) - 1):
            waiting.append(_pool(os.getpid()).submit(work))
    work()
    for done in waiting:
        done.result()


@cache
def _pool(process):  # a forked child does not inherit threads: it makes its own
    return ThreadPoolExecutor(max(1, allowed() - 1), initializer=_begin)


def _begin():
    """What a thread of the pool does first; it computes as the one that started it did
    then, inside `single_threaded`.
    """
    for library in _libraries():
        if getattr(library, "threading_layer", None) == "openmp":  # a number of its own
            _set_number(library, 1)

"""NumPy's products on threads, with the same bits for every number of them.

A BLAS library that is left to its own threads cuts long sums as their number suggests
(OpenBLAS does), and rounds differently for one and for two. Here the cut depends on the
shape alone: the product is divided into panels of its result, and each panel is
computed by one thread, with BLAS kept to that thread.
"""

import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial

import numpy as np
from threadpoolctl import ThreadpoolController

from .cores import cores

MOST_PANELS = 16
# Operations worth a second thread: half of them take some 80 us, about the price of
# waking it.
LEAST_WORK = 16_000_000


class SingleThreaded:
    """A context that keeps BLAS to the calling thread; several threads may be inside at
    once.

    Those inside are noted by object, not counted: one that an interrupt threw out while
    it entered or left is struck off when Python frees it, and BLAS gets its threads
    back then.
    """

    def __enter__(self):
        _inside[id(self)] = threading.get_ident()
        _settle()

    def __exit__(self, *error):
        _inside.pop(id(self), None)
        _settle()

    def __del__(self):
        _inside.pop(id(self), None)
        if _before and not _inside:
            _settle()


_inside, _settling = {}, threading.RLock()
_before = []  # the libraries and their numbers of threads, until they have them back


def _settle():
    """Keep BLAS to one thread while a context is inside, else give back what it had."""
    with _settling:
        inside = bool(_inside)  # others come and go meanwhile, and settle after this
        if inside and not _before:
            _before.extend(_numbers())
        for library, count in _before:
            # threadpoolctl lets only the first Python thread set the number: here all
            # may, one at a time.
            getattr(library, "clear_controlling_thread", lambda force: None)(force=True)
            library.set_num_threads(1 if inside else count)
        if not inside:
            _before.clear()


def _numbers():
    # Not inside the `with`: an interrupt in a comprehension there would leave the lock
    # taken, since Python 3.12.
    return [(library, library.get_num_threads()) for library in _libraries()]


def _after_fork_in_parent():
    try:
        _settle()  # OpenBLAS ended its threads for the fork, and forgot their number
    finally:
        _settling.release()


def _after_fork_in_child():
    global _settling
    _settling = threading.RLock()
    for other, thread in list(_inside.items()):
        if thread != threading.get_ident():  # it is not in this process
            del _inside[other]
    _settle()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _settling.acquire(),
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


@cache
def panels(M, N, K):
    """Cut an (M, N) product over K into slices of rows or columns, by its shape
    alone.
    """
    work, size = 2 * M * N * K, max(M, N)
    # Few and wide: BLAS packs the other operand anew for every panel.
    count = (
        1 if work < LEAST_WORK else min(MOST_PANELS, max(2, work // (4 * LEAST_WORK)))
    )
    width = 64 * math.ceil(
        size / count / 64
    )  # whole cache lines, whole tiles of BLAS's kernel
    pieces = [slice(start, min(start + width, size)) for start in range(0, size, width)]
    return [
        (piece, slice(None)) if M >= N else (slice(None), piece) for piece in pieces
    ]


def product(a, b, threads=None):
    """a (M, K) @ b (K, N) on up to `threads` threads; None is `cores()`.

    Call it inside `SingleThreaded`.
    """
    cuts = panels(a.shape[0], b.shape[1], a.shape[1])
    if len(cuts) == 1:
        return a @ b
    out = np.empty((a.shape[0], b.shape[1]), np.result_type(a, b))
    panel = [
        partial(np.matmul, a[rows], b[:, columns], out[rows, columns])
        for rows, columns in cuts
    ]
    at_once(panel, threads or cores())
    return out


def at_once(jobs, threads):
    """Call functions without arguments on up to `threads` threads, the caller's among
    them, each the next in the list that nobody has begun: one may wait for another
    before it.
    """
    if min(threads, len(jobs)) == 1:
        for job in jobs:
            job()
        return
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
def _libraries():
    return ThreadpoolController().select(user_api="blas").lib_controllers


@cache
def _pool(process):  # a forked child does not inherit threads: it makes its own
    return ThreadPoolExecutor(max(1, cores() - 1))

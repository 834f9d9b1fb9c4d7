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
from contextlib import contextmanager, suppress
from functools import cache, partial

import numpy as np
from threadpoolctl import ThreadpoolController

from .cores import cores
from .forks import at_fork

MOST_PANELS = 16
# Operations worth a second thread: half of them take some 80 us, about the price of
# waking it.
LEAST_WORK = 16_000_000


_computing = threading.RLock()
at_fork(hold=_computing)  # OpenBLAS forgets its number of threads at a fork


@contextmanager
def single_threaded():
    """A context that keeps BLAS to the calling thread. One Python thread at a time is
    inside: BLAS has one number of threads for all of them.
    """
    with _computing, _libraries().limit(limits=1):
        yield


@cache
def _libraries():
    return ThreadpoolController().select(user_api="blas")


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
    # Whole cache lines, whole tiles of BLAS's kernel
    width = 64 * math.ceil(size / count / 64)
    pieces = [slice(start, min(start + width, size)) for start in range(0, size, width)]
    return [
        (piece, slice(None)) if M >= N else (slice(None), piece) for piece in pieces
    ]


def product(a, b, threads=None):
    """a (M, K) @ b (K, N) on up to `threads` threads; None is `cores()`.

    Call it inside `single_threaded`.
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
def _pool(process):  # a forked child does not inherit threads: it makes its own
    return ThreadPoolExecutor(max(1, cores() - 1))

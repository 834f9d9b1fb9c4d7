"""NumPy's products on threads, with the same bits for every number of them.

A BLAS library that is left to its own threads cuts long sums as their number suggests (OpenBLAS
does), and rounds differently for one and for two. Here the cut depends on the shape alone: the
product is divided into panels of its result, and each panel is computed by one thread, with BLAS
kept to that thread.
"""

import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController

from ..cores import cores

MOST_PANELS = 16
# Operations worth a second thread: half of them take some 80 us, about the price of waking it.
LEAST_WORK = 16_000_000


class _SingleThreaded:
    """A context that keeps BLAS to the calling thread; several threads may be inside at once."""

    def __init__(self):
        self._lock, self._inside, self._before = threading.Lock(), 0, []

    def __enter__(self):
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._before = [(library, library.get_num_threads()) for library in _libraries()]
                for library, _ in self._before:
                    library.set_num_threads(1)

    def __exit__(self, *error):
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                for library, count in self._before:
                    library.set_num_threads(count)


single_threaded = _SingleThreaded()


@cache
def panels(M, N, K):
    """Cut an (M, N) product over K into slices of rows or columns, by its shape alone."""
    work, size = 2 * M * N * K, max(M, N)
    # Few and wide: BLAS packs the other operand anew for every panel.
    count = 1 if work < LEAST_WORK else min(MOST_PANELS, max(2, work // (4 * LEAST_WORK)))
    width = 64 * math.ceil(size / count / 64)  # whole cache lines, whole tiles of BLAS's kernel
    pieces = [slice(start, min(start + width, size)) for start in range(0, size, width)]
    return [(piece, slice(None)) if M >= N else (slice(None), piece) for piece in pieces]


def product(a, b, threads=None):
    """a (M, K) @ b (K, N) on up to `threads` threads; None is `cores()`.

    Call it inside `single_threaded`.
    """
    cuts = panels(a.shape[0], b.shape[1], a.shape[1])
    if len(cuts) == 1:
        return a @ b
    threads = min(threads or cores(), len(cuts))
    out = np.empty((a.shape[0], b.shape[1]), np.result_type(a, b))

    left = iter(cuts)  # shared: a thread that is held up takes fewer panels

    def work():
        for rows, columns in left:
            np.matmul(a[rows], b[:, columns], out=out[rows, columns])

    waiting = [_pool(os.getpid()).submit(work) for _ in range(threads - 1)]
    work()
    for done in waiting:
        done.result()
    return out


@cache
def _libraries():
    return ThreadpoolController().select(user_api="blas").lib_controllers


@cache
def _pool(process):  # a forked child does not inherit threads: it makes its own
    return ThreadPoolExecutor(max(1, cores() - 1))

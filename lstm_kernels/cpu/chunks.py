"""The memory of a layer whose lanes are chunks of one sequence, and how it runs
(`chunk_kernels.py`).
"""

from typing import NamedTuple

import numpy as np

from ..cells import CELLS
from ..errors import counted
from ..params import expand
from . import chunk_kernels as kernels
from .chunk_tiles import code
from .machine_code import address
from .tiles import Tiles, codes
from .workspace import Work, at, buffer, point

WORD = kernels.WORD


class Chunking(NamedTuple):
    """A sequence as so many chunks, after a run-up of so many steps: lanes in groups of
    so many vectors, or without vectors samples of a mini-batch. One chunk is no cut.
    """

    chunks: int
    run_up: int = 0
    vectors: int = 0

    @property
    def by(self):
        return "one thread" if self.chunks == 1 else "chunks"

    def __str__(self):
        lanes = (
            f"lanes of {counted(self.vectors, 'vector')}" if self.vectors else "samples"
        )
        how = f"{self.chunks} chunks as {lanes}, run-up {self.run_up}"
        return how if self.chunks > 1 else "step by step"


def lane_weights(cell, layer):
    """A layer's arrays as `chunk_tiles.py` reads them, by name."""
    full, K, H = expand(cell, layer), len(cell.gates), len(layer.W)
    U, W, b = (a.reshape(-1, K, H) for a in (full.U, full.W, full.b))
    arrays = {"U": U.transpose(2, 0, 1), "W": W.transpose(2, 0, 1), "b": b[0].T}
    return {name: np.ascontiguousarray(a) for name, a in arrays.items()}


class ChunkedLayer:
    """Room for a layer of D inputs and H units over T steps as C chunks of n steps,
    which fill whole groups of lanes; C n may be more than T.
    """

    def __init__(self, tiles, C, T, D, H, threads):
        self.n = n = -(-T // C)
        self.last, self.end = (T - 1) // n, (T - 1) % n + 1
        S, tasks = len(tiles.cell.state), C // tiles.lanes
        shapes = {"x": (n, D, C), "h": (n + 1, H, C)}
        shapes |= dict.fromkeys(("starts", "ends"), (S, H, C))
        shapes |= {"c": (H, C), "c_end": (H,)} if tiles.has_c else {}
        self.arrays = {
            name: buffer(*shape, dtype=tiles.dtype) for name, shape in shapes.items()
        }
        self.bytes = sum(array.nbytes for array in self.arrays.values())
        self.operations = 2 * C * n * H * len(tiles.cell.gates) * (D + H)
        job = np.zeros(1, kernels.JOBS[tiles.dtype])
        point(job, C=C, n=n, S=S, D=D, H=H, tasks=tasks, width=tiles.lanes)
        point(job, lanes=tiles.lanes // tiles.vectors, **self.arrays)
        point(job, last=self.last, end=self.end)
        point(job, forward=code(tiles))
        point(job, **codes(Tiles(CELLS["rnn"], tiles.dtype, 1), "transpose"))
        address(kernels.sweep, job.dtype)  # compile it before a pass is timed
        self.participants = min(threads, tasks)
        self.work = Work(np.zeros(1, np.int64), job, self.participants)

    def run(self, weights, x, start, run_up, sweeps):
        """From x (C n, D): y (C n, H), the final state (S, H), and after how many
        sweeps every seam held, 0 where one still moves after `sweeps`. weights: as of
        `lane_weights`. start: the initial state (S, H), or 0.
        """
        self.work.settle()
        words, starts = self.work.job_words, self.arrays["starts"]
        y = np.empty((len(x), starts.shape[1]), x.dtype)
        starts.fill(0)
        starts[..., 0] = start
        for name, array in {**weights, "x_rows": x, "y_rows": y}.items():
            words[getattr(WORD, name)] = at(array)
        words[WORD.ahead], words[WORD.sweeps] = run_up, sweeps
        self.work.progress[kernels.EXACT :] = 0
        owner = self, weights, x, y
        self.work.run(kernels.sweep, self.participants, owner, self.operations)
        state = [self.arrays["h"][self.end, :, self.last].copy()]
        state += [a.copy() for name, a in self.arrays.items() if name == "c_end"]
        return y, state, int(self.work.progress[kernels.LAST])

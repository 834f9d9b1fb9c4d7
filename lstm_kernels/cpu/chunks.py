"""The memory of layers whose lanes are chunks of one sequence, and how they run
(`chunk_kernels.py`).
"""

from typing import NamedTuple

import numpy as np

from ..cells import CELLS
from ..params import Layer, expand, fold
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
        lanes = f"lanes of {self.vectors} vectors" if self.vectors else "samples"
        how = f"{self.chunks} chunks as {lanes}, run-up {self.run_up}"
        return how if self.chunks > 1 else "step by step"


def lane_weights(cell, layer):
    """A layer's arrays as `chunk_tiles.py` reads them, by name."""
    full, K, H = expand(cell, layer), len(cell.gates), len(layer.W)
    U, W, b = (a.reshape(-1, K, H) for a in (full.U, full.W, full.b))
    arrays = {
        "U": U.transpose(2, 0, 1),
        "W": W.transpose(2, 0, 1),
        "b": b[0].T,
        "WT": W.transpose(0, 2, 1),
    }
    return {name: np.ascontiguousarray(a) for name, a in arrays.items()}


class ChunkedLayer:
    """A layer of D inputs and H units over T steps. below: the layer whose outputs it
    reads, or None. A state is (2, H), as of `chunk_kernels.py`.
    """

    def __init__(self, tiles, T, D, H, chunking, threads, below, tolerance):
        self.T, self.H, self.tiles, self.threads = T, H, tiles, threads
        self.n = n = -(-T // chunking.chunks)
        C = -(-chunking.chunks // tiles.lanes) * tiles.lanes
        self.padding = C * n - T
        self.chunks = C - self.padding // n  # those that are not all padding
        self.run_up = min(chunking.run_up, n - 1)
        self.operations = 2 * T * H * tiles.K * (D + H)
        kept = tiles.keep or not tiles.has_c
        shapes = {
            **({} if below else {"x_rows": (C * n, D), "x": (n, D, C)}),
            "h": (n + 1, H, C),
            **({"c": (n * kept + 1, H, C)} if tiles.has_c else {}),
            "tolerance": (1,),
        }
        if tiles.keep:
            shapes |= dict.fromkeys(("a", "da"), (n, H * tiles.K, C))
            shapes |= {"da_rows": (C * n, H * tiles.K)}
            shapes |= {"dy_rows": (C * n, H), "dy": (n, H, C)}
        states = {"starts": (2, H, C), "ends": (2, H, C), "given": (2, H)}
        self.arrays, self.states, self.gradients = (
            {name: buffer(*shape, dtype=tiles.dtype) for name, shape in each.items()}
            for each in (shapes, states, states)
        )
        self.arrays.setdefault("c", self.arrays["h"])
        if below:
            self.arrays["x"] = below.arrays["h"][1:]
        self.arrays["tolerance"][:] = tolerance
        job = np.zeros(1, kernels.JOBS[tiles.dtype])
        tasks = C // tiles.lanes
        point(job, C=C, n=n, D=D, H=H, K=tiles.K, tasks=tasks)
        point(job, lanes=tiles.lanes // tiles.vectors, width=tiles.lanes)
        point(job, entry=self.padding, ahead=self.run_up, kept=kept)
        point(job, **self.arrays)
        used = ("forward", "backward") if tiles.keep else ("forward",)
        point(job, **{name: code(tiles, name) for name in used})
        point(job, **codes(Tiles(CELLS["rnn"], tiles.dtype, 1), "transpose"))
        address(kernels.sweep, job.dtype)  # compile it before a pass is timed
        # What the words of the record are forward, and in the pass back.
        self._words = [
            {getattr(WORD, name): at(array) for name, array in each.items()}
            | {WORD.back: back}
            for back, each in enumerate((self.states, self.gradients))
        ]
        self.participants = min(threads, tasks)
        self.work = Work(np.zeros(1, np.int64), job, self.participants)

    @property
    def bytes(self):
        every = self.arrays, self.states, self.gradients
        return sum(array.nbytes for arrays in every for array in arrays.values())

    @property
    def exact(self):
        """How many chunks are exact after a pass."""
        return int(self.work.progress[kernels.EXACT])

    @property
    def sweeps(self):
        """How many there were in a pass."""
        return int(self.work.progress[kernels.SWEEPS])

    @property
    def exact_steps(self):
        return (self.padding // self.n + self.exact) * self.n - self.padding

    @property
    def exact_state(self):
        """The state after these steps, a view."""
        return self.states["ends"][..., self.padding // self.n + self.exact - 1]

    def aim(self, weights):
        """Take over what `lane_weights` returned."""
        self.weights = weights
        point(self.work.job, **weights)

    def _run(self, sweeps, back, *alive):
        """alive: arrays, beside the layer's own, that addresses lead to."""
        words = self.work.job_words
        self.work.progress[kernels.EXACT :] = 0
        words[WORD.sweeps] = sweeps
        for word, value in self._words[back].items():
            words[word] = value
        owner = self, self.weights, alive
        self.work.run(kernels.sweep, self.participants, owner, self.operations)

    def forward(self, x, given, sweeps):
        """y (T, H), which `backward` reads. x: (T, D), or None: of the layer below.
        given: the initial state, or what broadcasts to it.
        """
        arrays, states = self.arrays, self.states
        if x is not None:
            arrays["x_rows"][self.padding :] = x
        states["starts"].fill(0)
        states["given"][:] = given
        rows = np.empty((self.padding + self.T, self.H), self.tiles.dtype)
        self.work.job_words[WORD.y_rows] = at(rows)
        self._run(sweeps, False, rows)
        return rows[self.padding :]

    def backward(self, x, y, dy, dfinal):
        """The gradient of the layer, of x and of the initial state, a view. x: (T, D);
        y, dy: (T, H); dfinal: that of the final state, h and c, or () for zero. What
        `forward` left stays as it is: another pass back begins there.
        """
        arrays, gradients, padding = self.arrays, self.gradients, self.padding
        arrays["dy_rows"][padding:] = dy
        gradients["starts"].fill(0)
        for start, d in zip(gradients["starts"], dfinal, strict=False):
            start[:, -1] = d
        self._run(self.chunks, True)
        da = arrays["da_rows"][padding:]
        U = self.weights["U"].transpose(1, 0, 2).reshape(x.shape[1], -1)
        h0 = self.states["given"][0]
        dW = y[:-1].T @ da[1:] + np.multiply.outer(h0, da[0])
        H, K = self.H, self.tiles.K
        dU, dW, db = (  # from (units, gates) to (gates, units)
            a.reshape(-1, H, K).transpose(0, 2, 1).reshape(-1, K * H)
            for a in (x.T @ da, dW, da.sum(axis=0))
        )
        grad = fold(self.tiles.cell, Layer(dU, dW, db[0]))
        return grad, da @ U.T, gradients["given"]

"""The memory of layers whose lanes are chunks of one sequence, and how they run
(`chunk_kernels.py`).
"""

from typing import NamedTuple

import numpy as np

from ..cells import CELLS
from ..params import Layer, expand, fold
from . import chunk_kernels as kernels
from .chunk_tiles import code
from .tiles import Tiles, codes
from .workspace import Work, at, buffer, point

WORD = kernels.WORD


class Chunking(NamedTuple):
    """A sequence as `count` chunks, after a run-up of so many steps: lanes in groups of
    so many vectors, or without vectors samples of a mini-batch. One chunk is no cut.
    """

    count: int
    run_up: int = 0
    vectors: int = 0

    @property
    def by(self):
        return "one thread" if self.count == 1 else "chunks"

    def __str__(self):
        lanes = f"lanes of {self.vectors} vectors" if self.vectors else "samples"
        how = f"{self.count} chunks as {lanes}, run-up {self.run_up}"
        return how if self.count > 1 else "step by step"


def is_diagonal(layer):
    """Is the block of W for every gate diagonal?"""
    H = len(layer.W)
    gates = layer.W.reshape(H, -1, H)
    return not (gates * (1 - np.eye(H, dtype=int))[:, None]).any()


class LaneWeights:
    """A layer as `chunk_tiles.py` reads it."""

    def __init__(self, cell, layer, diagonal):
        full, K, H = expand(cell, layer), len(cell.gates), len(layer.W)
        U, W, b = (a.reshape(-1, K, H) for a in (full.U, full.W, full.b))
        self.full = full
        own = np.einsum("jgj->jg", W)[:, None]
        arrays = {
            "U": U.transpose(2, 0, 1),
            "W": own if diagonal else W.transpose(2, 0, 1),
            "b": b[0].T,
            "WT": W.transpose(0, 2, 1),
        }
        self.arrays = {name: np.ascontiguousarray(a) for name, a in arrays.items()}


class ChunkedLayer:
    """A layer of D inputs and H units over T steps. below: the layer whose outputs it
    reads, or None. trains: is there a backward pass? newton: are tangents carried?
    """

    def __init__(
        self, tiles, T, D, H, chunking, threads, below=None, *, trains, newton
    ):
        count, K, S = chunking.count, tiles.K, len(tiles.cell.state)
        C, n = -(-count // tiles.lanes) * tiles.lanes, -(-T // count)
        R = 1 if tiles.diagonal else H
        N = S * R if newton else 0
        self.T, self.H, self.n, self.padding, self.tiles = T, H, n, C * n - T, tiles
        self.run_up = min(chunking.run_up, n - 1)
        self.chunks = C - self.padding // n  # those that are not all padding
        kept = tiles.keep or not tiles.has_c
        shapes = {
            **({} if below else {"x_rows": (C * n, D), "x": (n, D, C)}),
            "h": (n + 1, H, C),
            **({"c": (n * kept + 1, H, C)} if tiles.has_c else {}),
            **dict.fromkeys(("starts", "ends"), (S, H, C)),
            "given": (S, H),
            "change": (2, S, H),
        }
        if tiles.keep:
            shapes["a"] = n, H * K, C
        if trains:
            shapes |= dict.fromkeys(("y_rows", "dy_rows"), (C * n, H))
            shapes |= {"da_rows": (C * n, H * K), "da": (n, H * K, C)}
            shapes |= {"dy": (n, H, C), "dh": (H, C), "dc": (H, C)}
        if N:
            shapes |= {"tangents": (S, N, H, C), "following": (N, H, C)}
        self.arrays = {
            name: buffer(*shape, dtype=tiles.dtype) for name, shape in shapes.items()
        }
        self.arrays.setdefault("c", self.arrays["h"])
        # Of the gradient: starts, ends and what leaves; a pass back takes nothing away
        # from what the pass before it has left.
        states = "starts", "ends", "given"
        self.gradients = [np.zeros_like(self.arrays[name]) for name in states]
        if below:
            self.arrays["x"] = below.arrays["h"][1:]
        self.operations = 2 * T * H * K * (D + R) * (1 + 2 * N)
        job = np.zeros(1, kernels.JOBS[tiles.dtype])
        tasks = C // tiles.lanes
        point(job, C=C, n=n, D=D, H=H, K=K, R=R, N=N, states=S, tasks=tasks)
        point(job, lanes=tiles.lanes // tiles.vectors, width=tiles.lanes)
        point(job, entry=self.padding, ahead=self.run_up, kept=kept)
        point(job, **self.arrays)
        used = {"forward": True, "backward": trains, "tangents_tile": newton}
        squares = Tiles(CELLS["rnn"], tiles.dtype, 1)
        point(job, **codes(squares, "transpose"))
        tile_codes = {
            name: code(tiles, name.removesuffix("_tile")) for name in used if used[name]
        }
        point(job, **tile_codes)
        self.participants = min(threads, tasks)
        self.work = Work(np.zeros(1, np.int64), job, self.participants)

    @property
    def bytes(self):
        return sum(array.nbytes for array in self.arrays.values())

    def aim(self, weights, tolerance):
        """Take over LaneWeights, and the tolerance."""
        self.weights = weights
        point(self.work.job, rate=tolerance, **weights.arrays)

    def _run(self, kernel, sweeps, starts, ends, given):
        """Chunks that are exact, and sweeps."""
        words = self.work.job_words
        self.work.stop[kernels.EXACT :] = 0
        words[WORD.sweeps] = sweeps
        words[WORD.starts] = at(starts)
        words[WORD.ends] = at(ends)
        words[WORD.given] = at(given)
        self.work.run(kernel, self.participants, self, self.operations)
        found = self.work.stop[[kernels.EXACT, kernels.SWEEPS]]
        return found.tolist()

    def forward(self, x, given, sweeps, warm=False):
        """y (T, H), the final state (S, H), how many chunks are exact, and sweeps. x:
        (T, D), or None: of the layer below. given: the initial state (S, H), or zero.
        warm: begin with the seams of the last call.
        """
        arrays = self.arrays
        if x is not None:
            arrays["x_rows"][self.padding :] = x
        if not warm:
            arrays["starts"].fill(0)
        arrays["given"][:] = given
        rows = arrays.get("y_rows")
        if rows is None:
            rows = np.empty((self.padding + self.T, self.H), self.tiles.dtype)
            self.work.job_words[WORD.y_rows] = at(rows)
        self.work.job_words[WORD.ahead] = 0 if warm else self.run_up
        ends = arrays["ends"]
        states = arrays["starts"], ends, arrays["given"]
        found = self._run(kernels.forward, sweeps, *states)
        return rows[self.padding :], ends[..., -1].copy(), *found

    def exact(self, chunks):
        """The steps of so many chunks, and the state (S, H) after them."""
        last = self.work.job["C"][0] - self.chunks + chunks - 1
        steps = (last + 1) * self.n - self.padding
        return int(steps), self.arrays["ends"][..., last].copy()

    def backward(self, x, dy, dfinal):
        """The gradient of the layer, of x and of the initial state (S, H). x: (T, D);
        dy: (T, H); dfinal: (S, H).
        """
        arrays = self.arrays
        arrays["dy_rows"][self.padding :] = dy
        starts, ends, dgiven = self.gradients
        starts.fill(0)
        starts[..., -1] = dfinal
        self.work.job_words[WORD.ahead] = self.run_up
        self._run(kernels.backward, self.chunks, starts, ends, dgiven)
        da = arrays["da_rows"][self.padding :]
        y = arrays["y_rows"][self.padding :]
        U = self.weights.arrays["U"].transpose(1, 0, 2).reshape(x.shape[1], -1)
        dW = y[:-1].T @ da[1:] + np.multiply.outer(arrays["given"][0], da[0])
        H, K = self.H, self.tiles.K
        grads = (
            a.reshape(-1, H, K).transpose(0, 2, 1).reshape(-1, K * H)
            for a in (x.T @ da, dW, da.sum(axis=0))
        )
        dU, dW, db = grads
        grad = fold(self.tiles.cell, Layer(dU, dW, db[0]))
        return grad, da @ U.T, dgiven.copy()

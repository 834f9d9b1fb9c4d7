"""How a pass of `numba-fused` is divided among threads: a model of six costs, measured
here.

A step of B samples through K rows of packed weights is, for each vector of weights, a
load and B fused multiply-adds, whichever takes longer, in tiles of so many rows; then
the cell, a vector of units at a time. Threads divide it by samples (each loads all the
weights) or by unit blocks (all wait for each other in every step, and fetch the h that
others wrote). Every split computes the same bits.
"""

import math
import time
from typing import NamedTuple

from ..schedules import Costs

# Rows (t, sample) of a layer's input that are multiplied at once where a step has fewer
# samples: enough for the weights to be loaded rarely, few enough for the result to stay
# in L2.
INPUT_ROWS = 64
# Every round waits for the slowest thread. On a shared machine that is another thread
# each time, which the costs, the best of many runs, do not contain.
MARGIN = 0.05


class WorkSplit(NamedTuple):
    """How threads divide a pass."""

    threads: int
    shares: int  # of the samples, independent of each other; 0: rounds of unit blocks
    input_steps: int  # steps whose inputs are multiplied at once
    splits: int  # shares of the samples in a round of the backward pass


class MachineCosts(NamedTuple):
    """Seconds of what a pass is made of."""

    fma: float  # a fused multiply-add of a vector, or the products of a vector of words
    load: float  # of a vector of weights
    cell: float  # on a vector of units
    enter: float  # into a parallel region
    turn: float  # a round, beside its work
    hand: float  # fetching a vector that another core wrote


def work_splits(tiles, T, B, threads):
    """The candidates for mini-batches (T, B): one thread, shares of the samples,
    rounds.
    """
    input_steps = max(1, min(T, INPUT_ROWS // B))
    wide = tiles.padded // tiles.wide_units
    splits = max(
        1, min(B // tiles.tile_rows(tiles.wide_vectors), -(-2 * threads // wide))
    )
    candidates = [WorkSplit(1, 1, input_steps, 1)]
    if threads > 1 and B > 1:
        candidates.append(WorkSplit(threads, min(threads, B), 1, 1))
    if threads > 1 and tiles.blocks > 1:
        candidates.append(WorkSplit(threads, 0, input_steps, splits))
    return candidates


def predict(costs, split, tiles, sizes, T, B, training):
    """Seconds of a forward pass, or of a training step, of layers with `sizes`
    inputs.
    """
    gates, blocks, rows = tiles.gates, tiles.blocks, B
    if split.shares:
        rows = -(-B // split.shares)
    else:
        blocks = -(-blocks // split.threads)
    units = blocks * tiles.vectors

    def product(rows, K, matrix):
        height = tiles.tile_rows(len(gates[matrix]) * tiles.vectors)
        whole, rest = divmod(rows, height)
        tile = whole * max(costs.load, height * costs.fma)
        tile += max(costs.load, rest * costs.fma) if rest else 0
        return tiles.words(K) * len(gates[matrix]) * units * tile

    step = 0.0
    for D in sizes:
        step += product(split.input_steps * rows, D, "U") / split.input_steps
        step += product(rows, tiles.hidden, "W") + rows * units * costs.cell
        if split.shares == 0:
            others = tiles.blocks - tiles.blocks / split.threads
            step += costs.turn + B * others * tiles.vectors * costs.hand
    seconds = T * step
    seconds *= 3 if training else 1  # two more products of each size
    return seconds + costs.enter * (split.threads > 1)


def task_costs(costs, tiles, sizes, B):
    """The Costs of a task of `numba-wavefront`: its steps, reading U once, a
    hand-over.
    """
    one = WorkSplit(1, 1, max(1, INPUT_ROWS // B), 1)
    step = tuple(predict(costs, one, tiles, [D], 1, B, False) for D in sizes)
    vectors = (
        tiles.words(tiles.hidden) * len(tiles.gates["U"]) * tiles.blocks * tiles.vectors
    )
    return Costs(step, task=vectors * costs.load, hand=costs.turn)


def choose(costs, tiles, sizes, T, B, training, threads):
    """The split with the least predicted time; rounds have to be better by MARGIN."""

    def seconds(split):
        predicted = predict(costs, split, tiles, sizes, T, B, training)
        return predicted * (1 if split.shares else 1 + MARGIN)

    return min(work_splits(tiles, T, B, threads), key=seconds)


def measure(runner, tiles, threads, repeats=15):
    """MachineCosts from a few runs, the best of `repeats` of each: noise only makes a
    run longer.

    runner(H, B, T, split) returns a function that runs the forward pass of an LSTM with
    one input, tiles(H) are its tiles. The runs alternate: a disturbance spoils one
    repeat of each. The first step starts from zero and has no product with W.
    """
    one, lanes, words = WorkSplit(1, 1, 1, 1), tiles(1).lanes, tiles(1).words
    in_rounds, B, wide = WorkSplit(threads, 0, 1, 1), 24, 8 * lanes
    # Weights of `wide` units are beyond L1, of these within
    small, large = (2 * lanes, 6 * lanes)
    cases = [
        (H, b, T, one) for H, b in ((small, B), (large, B), (wide, 1)) for T in (1, 5)
    ]
    if threads > 1:
        cases += [(small, b, T, in_rounds) for b in (1, 64) for T in (1, 33)]
        cases += [(lanes, 1, 1, one), (lanes, 1, 1, in_rounds)]
    runs, best = {case: runner(*case) for case in cases}, dict.fromkeys(cases, math.inf)
    for _ in range(repeats):
        for case, run in runs.items():
            run()  # with its own data in the cache
            start = time.perf_counter()
            run()
            best[case] = min(best[case], time.perf_counter() - start)

    def later(H, B, T, split):
        """Seconds of a step after the first."""
        return max(0.0, best[H, B, T + 1, split] - best[H, B, 1, split]) / T

    def vector(H, B):
        """Of a step for a vector of units: the cell, and the words of H + 1 rows of
        four gates.
        """
        return later(H, B, 4, one) / (B * (H // lanes))

    rows = 4 * (words(large) - words(small))
    fma = max(1e-13, vector(large, B) - vector(small, B)) / rows
    cell = max(0.0, vector(small, B) - 4 * (words(small) + 1) * fma)
    load = max(0.0, vector(wide, 1) - cell) / (4 * (words(wide) + 1))
    costs = MachineCosts(fma, load, cell, 0.0, 0.0, 0.0)
    if threads == 1:
        return costs

    def excess(B):
        """What a round takes beyond its work."""
        work = predict(costs, in_rounds, tiles(small), [1], 1, B, False)
        return max(0.0, later(small, B, 32, in_rounds) - work)

    turn = excess(1)
    hand = max(0.0, excess(64) - turn) / (64 * (2 - 2 / threads))
    enter = max(0.0, best[lanes, 1, 1, in_rounds] - best[lanes, 1, 1, one] - turn)
    return MachineCosts(fma, load, cell, enter, turn, hand)

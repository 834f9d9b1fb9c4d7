"""Which schedule is fastest for a shape: a model of five costs, measured on this machine.

A step of B samples through K rows of packed weights is, for each vector of weights, a load and B
fused multiply-adds, whichever takes longer, in tiles of so many rows; then the cell, a vector of
units at a time. Threads divide that work by samples (each then loads all the weights) or by hidden
blocks (all must wait for each other in every step), and it costs something to set them to work.
The costs decide nothing but time: every schedule computes the same bits.
"""

from typing import NamedTuple

from . import simd

# Rows (t, sample) of a layer's input that are multiplied at once where a step has fewer samples:
# enough for the weights to be loaded rarely, few enough for the result to stay in L2.
CHUNK_ROWS = 64


class Schedule(NamedTuple):
    """Threads; shares of the samples that are done independently, or 0 for rounds of hidden blocks;
    steps whose inputs are multiplied at once; shares of the samples in a round of the way back.
    """

    threads: int
    shares: int
    chunk: int
    splits: int


class Costs(NamedTuple):
    """Seconds: a fused multiply-add and a load of a vector of weights, the cell on a vector of
    units, entering a parallel region, a round.
    """

    fma: float
    load: float
    cell: float
    enter: float
    turn: float


def schedules(tiles, T, B, threads):
    """The candidates: one thread, shares of the samples, rounds of hidden blocks."""
    chunk = max(1, min(T, CHUNK_ROWS // B))
    wide = tiles.padded // tiles.WIDE
    splits = max(1, min(B // simd.tile_rows(tiles.wide), -(-2 * threads // wide)))
    found = [Schedule(1, 1, chunk, 1)]
    if threads > 1 and B > 1:
        found.append(Schedule(threads, min(threads, B), 1, 1))
    if threads > 1 and tiles.blocks > 1:
        found.append(Schedule(threads, 0, chunk, splits))
    return found


def predict(costs, schedule, tiles, sizes, T, B, training):
    """Seconds of a forward pass, or of a training step, of layers with `sizes` inputs."""
    gates, blocks, rows = tiles.gates, tiles.blocks, B
    if schedule.shares:
        rows = -(-B // schedule.shares)
    else:
        blocks = -(-blocks // schedule.threads)
    units = blocks * tiles.vectors

    def product(rows, K, matrix):
        height = simd.tile_rows(len(gates[matrix]) * tiles.vectors)
        whole, rest = divmod(rows, height)
        tile = whole * max(costs.load, height * costs.fma)
        tile += max(costs.load, rest * costs.fma) if rest else 0
        return K * len(gates[matrix]) * units * tile

    step = 0.0
    for D in sizes:
        step += product(schedule.chunk * rows, D, "U") / schedule.chunk
        step += product(rows, tiles.hidden, "W") + rows * units * costs.cell
    seconds, turns = T * step, T * len(sizes) if schedule.shares == 0 else 0
    if training:  # two more products of each size, and all rounds twice
        seconds, turns = 3 * seconds, 2 * turns + 2
    if schedule.threads > 1:
        seconds += costs.enter + turns * costs.turn
    return seconds


def choose(costs, tiles, sizes, T, B, training, threads):
    """The schedule with the least predicted time."""
    found = schedules(tiles, T, B, threads)
    return min(found, key=lambda s: predict(costs, s, tiles, sizes, T, B, training))


def measure(seconds, lanes, threads):
    """Costs from five runs; `seconds(H, B, T, schedule)` times an LSTM with one input."""
    one = Schedule(1, 1, 1, 1)
    call = seconds(lanes, 1, 1, one)  # what a call costs before any work
    H, B, T = 4 * lanes, 24, 4

    def vectors(H):
        return 4 * H * (H // lanes)  # of W

    # The first step starts from zero: it has no product with W.
    cell = max(0.0, seconds(H, B, 1, one) - call) / (B * H // lanes)
    fma = max(0.0, seconds(H, B, T + 1, one) - seconds(H, B, 1, one)) / T - B * H // lanes * cell
    fma = max(fma, 1e-12) / (B * vectors(H))
    wide = 8 * lanes  # weights of a layer that is beyond L1
    load = max(0.0, seconds(wide, 1, T + 1, one) - seconds(wide, 1, 1, one)) / (T * vectors(wide))
    if threads == 1:
        return Costs(fma, load, cell, 0.0, 0.0)
    few, many = (seconds(lanes, 1, T, Schedule(threads, 0, 1, 1)) for T in (1, 33))
    turn = max(0.0, many - few - 32 * cell) / 32
    return Costs(fma, load, cell, max(0.0, few - call - turn), turn)

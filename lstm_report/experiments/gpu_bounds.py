"""The least time of a training step on a card, by count: what no run can beat.

A term takes one kind of work that a version does in every step, at the highest rate
that the card has for it; the bound is the largest term. What is not counted (addresses,
exponentials, waiting, launches) can only make a step slower.

chain: multiply-adds of products that one thread issues, one a clock. arithmetic: those
of all threads, on the lanes of the multiprocessors that have a block; a warp has those
of its scheduler. operands: bytes of weights that a multiprocessor brings into
registers, from whichever memory, at what its banks give a clock. copies: bytes between
host and device, one array after another, at the rate of one direction.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from lstm_kernels.gpu import plans
from lstm_kernels.gpu.layout import Sizes
from lstm_kernels.versions import cuda_persistent, cuda_v1, versions

from ..measure.evidence import digits
from ..measure.workloads import AIRLINE, REFERENCE, Workload
from .gpu import bytes_copied

GPU = [version.name for version in versions() if version.target == "gpu"]
PORTED = GPU[:3]  # whose kernels are the course project's
LAUNCHES = dict.fromkeys(PORTED, f"{len(cuda_v1.KERNELS)} a layer")
LAUNCHES |= {"cuda-fused": "2", "cuda-epoch": "1 an epoch"}
LAUNCHES |= {"cuda-persistent": f"{len(cuda_persistent.KERNELS)}"}
WARP, THREADS = 32, 256  # threads of a warp, and of a block of the tile kernels
PARTS = ("airline (\N{MICRO SIGN}s)", AIRLINE, 1e6), ("reference (ms)", REFERENCE, 1e3)
BANKS = 128  # bytes a clock that a multiprocessor's shared memory or L1 gives


class Card(NamedTuple):
    """Rates of a card. name: what its driver calls it, a regular expression."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    lanes: int  # for float32, of a multiprocessor
    schedulers: int  # of a multiprocessor
    ghz: float  # the highest clock
    shared: int  # bytes that a block may have
    pcie: float  # 1e9 bytes a second, in one direction
    source: str  # of the clock and of PCIe; the others are the CUDA guide's


T4, P100 = r"(NVIDIA|Tesla) T4", r"Tesla P100-PCIE-16GB"
A100, H100 = r"(NVIDIA )?A100-SXM4-[48]0GB", r"NVIDIA H100 80GB HBM3"
SHEET = "NVIDIA data sheet"
QUERIED = f"deviceQuery, {SHEET}"
TOLD = f"clock as the driver of one says, {SHEET}"
CARDS = {
    "T4": Card(T4, (7, 5), 40, 64, 4, 1.59, 64 << 10, 16, QUERIED),
    "P100": Card(P100, (6, 0), 56, 64, 2, 1.329, 48 << 10, 16, SHEET),
    "A100": Card(A100, (8, 0), 108, 64, 4, 1.41, 163 << 10, 32, QUERIED),
    "H100": Card(H100, (9, 0), 132, 128, 4, 1.98, 227 << 10, 64, TOLD),
}


class Bound(NamedTuple):
    """Seconds that no step falls below, and the term that says so."""

    seconds: float
    term: str


Clocks = dict[str, float]  # of each term


def inputs_of(n: Sizes) -> list[int]:
    """Inputs of each layer."""
    return [n.D] + [n.H] * (n.L - 1)


def ported(version: str, n: Sizes, card: Card) -> Clocks:
    """Of V1, V2 and V3, whose launches follow each other."""
    chain = arithmetic = 0.0
    for rows in (inputs + n.H for inputs in inputs_of(n)):
        # Forward and back a thread has a sample; for the gradients a unit of a row of
        # U, W or b.
        of_sample, of_unit = 2 * n.T * rows * n.H * n.K, n.T * n.B * n.K
        for shares, each in ((n.B, of_sample), ((rows + 1) * n.H, of_unit)):
            threads = 1 if version == "cuda-v1" else shares
            lanes = -(-threads // WARP) * min(WARP, card.lanes // card.schedulers)
            lanes = min(lanes, card.multiprocessors * card.lanes)
            chain += shares // threads * each
            arithmetic += shares * each / lanes
    return {"chain": chain, "arithmetic": arithmetic}


def tiled(n: Sizes, work: Workload, card: Card) -> Clocks:
    """Of `cuda-fused` and `cuda-epoch`, whose blocks have tiles of samples."""
    limits = {"multiprocessors": card.multiprocessors, "shared": card.shared}
    plan = plans.plan(n, np.float32, threads=THREADS, **limits)
    # Weights are loaded anew for each tile of a block, and for samples taken in turn.
    tiles = -(-n.B // plan.tile)
    loads = -(-tiles // plan.blocks)
    loads *= -(-plan.tile // (plan.y // plan.parts * plan.R))
    inputs = inputs_of(n)
    forward = sum(inputs) + n.L * (n.H + 1)  # rows of U, W and b
    back = sum(inputs[1:]) + n.L * n.H  # of W, and of U but for the first layer
    weights = n.T * (forward + back) * n.H * n.K
    return {
        "arithmetic": work.step_gflop * 1e9 / 2 / (plan.blocks * card.lanes),
        "operands": loads * weights * 4 / BANKS,
    }


def kept(n: Sizes, work: Workload, card: Card) -> Clocks:
    """Of `cuda-persistent`; ValueError where the weights do not fit."""
    limits = {"multiprocessors": card.multiprocessors, "shared": card.shared}
    plan = cuda_persistent.plan(n, np.float32, simulated=False, **limits)
    # The gradients' products, as many as forward, are shared among all blocks.
    passes = (work.step_gflop - work.gflop) / min(plan.blocks, card.multiprocessors)
    gradients = work.gflop / card.multiprocessors
    return {
        "chain": 16 * n.T * n.B,  # a thread's gradients: four rows, four columns
        "arithmetic": (passes + gradients) * 1e9 / 2 / card.lanes,
    }


def bound(version: str, work: Workload, card: Card) -> Bound | str:
    """The bound of a step of an LSTM, float32, with one output; or why the version
    cannot run.
    """
    n = Sizes(work.L, work.T, work.B, work.D, work.H, 1, 4)
    oldest = cuda_persistent.OLDEST
    if version == "cuda-persistent" and card.capability < oldest:
        return f"needs capability {'.'.join(map(str, oldest))}"
    try:
        if version in PORTED:
            clocks = ported(version, n, card)
        else:
            of = kept if version == "cuda-persistent" else tiled
            clocks = of(n, work, card)
    except ValueError:
        return "does not fit"
    layers = inputs_of(n) if version in PORTED else [n.D]
    copied = (bytes_copied(version, replace(work, L=1, D=D)) for D in layers)
    seconds = {term: count / card.ghz / 1e9 for term, count in clocks.items()}
    seconds["copies"] = sum(map(sum, copied)) / card.pcie / 1e9
    term = max(seconds, key=lambda name: seconds[name])
    return Bound(seconds[term], term)


def table(cards: Iterable[str] = CARDS) -> pd.DataFrame:
    """The bounds of a step of the airline workload and of the reference workload for
    each version, a column a card; and the launches of a step.
    """

    def told(found, unit):
        if isinstance(found, str):
            return found
        return f"{digits(unit * found.seconds)} ({found.term})"

    lines = {
        f"`{version}`, {of}": {"launches a step": LAUNCHES[version]}
        | {name: told(bound(version, work, CARDS[name]), unit) for name in cards}
        for of, work, unit in PARTS
        for version in GPU
    }
    return pd.DataFrame.from_dict(lines, orient="index").rename_axis("version")


def compared(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """The measured steps and epochs of the GPU versions, with a column `least`: the
    bound, infinite for what should not run. Of an epoch the whole mini-batches count.

    rows: with columns of `results.COLUMNS`. name: of the device, as its driver says it.
    Raises ValueError for a device that is none of CARDS.
    """
    cards = [card for card in CARDS.values() if re.fullmatch(card.name, name)]
    if not cards:
        raise ValueError(f"name: got {name!r}, want one of {', '.join(CARDS)}")
    timed = rows["version"].isin(GPU) & rows["stage"].isin(["step", "epoch"])
    least = []
    for row in rows[timed].to_dict("records"):
        work = Workload(**{axis: int(row[axis]) for axis in "LTDHB"})
        found = bound(row["version"], work, cards[0])
        steps = row["N"] // row["B"] if row["stage"] == "epoch" else 1
        least.append(steps * found.seconds if isinstance(found, Bound) else np.inf)
    return rows[timed].assign(least=least)


def refuted(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """Those of `compared` that lie below their bound: none, unless a bound is wrong."""
    found = compared(rows, name)
    return found[found["seconds"] < found["least"]]


def verdict(rows: pd.DataFrame, name: str) -> str:
    """A sentence: how many times were compared, and how many lie below their bounds."""
    try:
        found = compared(rows, name)
    except ValueError:
        return f"There are no bounds of {name}: nothing to compare."
    if found.empty:
        return f"No step of {name} was measured: nothing to compare."
    cases = ["version", "stage", *"LTDHB", "N"]
    count = found.groupby(cases, dropna=False).ngroups
    below = refuted(rows, name).groupby(cases, dropna=False).ngroups
    nearest = (found["seconds"] / found["least"]).min()
    return (
        f"Of {count} cases that were timed on {name} {below or 'none'} had a time below"
        f" its bound; the nearest took {digits(nearest)} times its bound."
    )

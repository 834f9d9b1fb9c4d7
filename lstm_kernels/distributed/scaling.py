"""What a step of training would take on 1 to 1024 ranks: predicted from measured costs.

A message takes latency + bytes / bandwidth (`Link`), a layer what was measured of it (`ModelCosts`),
and a pipeline what `simulate` says. Ranks compute at one pace, messages do not meet on the way, and
memory has no limit. A sum of n bytes over P ranks is that of `world.Sum`, a rank sending its
messages one after another:

    2 (P - 1) (latency + n / P / bandwidth) + add n (P - 1) / P
"""

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from ..errors import REAL, check_choice, check_int, check_numbers, check_rate
from ..schedules import PIPELINES
from .planner import LayerCost, plan, predict

RANKS = tuple(2**k for k in range(11))
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
WAYS = ("data", "layer", "mixed")
SCALINGS = ("strong", "weak")


@dataclass(frozen=True)
class Link:
    """What connects two ranks. latency: seconds of a message, one way. bandwidth: bytes per second
    in one direction, infinite too. source: whose figures, and what was timed.
    """

    name: str
    latency: float
    bandwidth: float
    source: str = ""

    def __post_init__(self):
        if not isinstance(self.latency, REAL) or not 0 <= self.latency < math.inf:
            raise ValueError(f"latency: got {self.latency!r}, want a finite number, not negative")
        if not isinstance(self.bandwidth, REAL) or not self.bandwidth > 0:
            raise ValueError(f"bandwidth: got {self.bandwidth!r}, want a number above zero")

    def seconds(self, size):
        """Of a message of so many bytes."""
        return self.latency + size / self.bandwidth


_PUBLISHED = (
    Link(
        "NVLink 4 (H100)",
        3.4e-6,
        376e9,
        "Bandwidth: p2pBandwidthLatencyTest, one way between two H100 SXM; NVIDIA/nccl issue 1264, "
        '"Only ~783GByte/s out of theoretical 900GB/s HGX H100 SXM Nvlink4". Latency: what NCCL '
        "counts for a step of a ring, protocol Simple, no half round trip; NVIDIA, NCCL, "
        "src/graph/tuning.cc, 2026.",
    ),
    Link(
        "InfiniBand NDR 400 Gbit/s",
        2e-6,
        50e9,
        "Vendor's figures, not a measurement: RDMA latency of a byte below 2 us, bandwidth the line "
        'rate; Microsoft, "HBv4-series VM sizes performance and scalability", 2023.',
    ),
    Link(
        "InfiniBand HDR 200 Gbit/s",
        1.61e-6,
        23.5e9,
        "MPI: half a round trip of 8 bytes (osu_latency, HPC-X and Open MPI); osu_mbw_mr of two "
        'pairs of processes; Microsoft, "HPC Performance and Scalability Results with Azure HBv2 '
        'VMs", 2019.',
    ),
    Link(
        "Ethernet 40 Gbit/s, usNIC",
        1.93e-6,
        37.23e9 / 8,
        "MPI: half a round trip and bandwidth by NetPIPE, Open MPI 1.8.1 past the system's TCP, no "
        'switch; J. Squyres, Cisco, "MPI over 40Gb Ethernet".',
    ),
    Link(
        "Ethernet 10 Gbit/s, TCP",
        10e-6,
        1.25e9,
        "Latency: one way from application to application through Linux's TCP, no MPI, at best; "
        'S. Larsen et al., "Architectural Breakdown of End-to-End Latency in a TCP/IP Network", '
        "2009. Bandwidth: the line rate.",
    ),
)
LINKS = {link.name: link for link in _PUBLISHED}


def _columns(name, rows, *wanted):
    """Raises ValueError unless a DataFrame has these columns and a row."""
    if missing := [column for column in wanted if column not in rows]:
        raise ValueError(f"{name}: got no column {', '.join(missing)}")
    if rows.empty:
        raise ValueError(f"{name}: got no rows")
    if "seconds" in wanted:
        check_numbers(f"{name}.seconds", rows["seconds"], positive=True)
    return rows


def fit(rows, name):
    """The Link that fits measured messages best, and the largest relative error of that fit.

    rows: a DataFrame of bytes and seconds, one way, repeats of each size; the medians are fitted by
    least squares in relative error. Raises ValueError for fewer than two sizes.
    """
    medians = _columns("rows", rows, "bytes", "seconds").groupby("bytes")["seconds"].median()
    if len(medians) < 2:
        raise ValueError(f"rows: got {len(medians)} sizes of messages, want at least two")
    sizes, seconds = medians.index.to_numpy(float), medians.to_numpy()
    (latency, pace), _ = nnls(np.stack([1 / seconds, sizes / sizes.max() / seconds], 1), seconds**0)
    bandwidth = sizes.max() / pace if pace else math.inf
    link = Link(name, float(latency), float(bandwidth), f"measured, {len(rows)} messages")
    return link, float(np.max(np.abs(link.seconds(sizes) / seconds - 1)))


def fit_add(rows, link):
    """`add`: what a rank takes to add a byte, seconds, by least squares in relative error.

    rows: a DataFrame of ranks, bytes and seconds of sums over that link, repeats of each.
    """
    rows = _columns("rows", rows, "ranks", "bytes", "seconds")
    if rows["ranks"].min() < 2:
        raise ValueError(f"rows: got a sum over {rows['ranks'].min()} rank, want two or more")
    medians = rows.groupby(["ranks", "bytes"])["seconds"].median()
    total = medians.to_numpy()
    P, sizes = (medians.index.get_level_values(level).to_numpy(float) for level in (0, 1))
    added, rest = sizes * (P - 1) / P / total, 1 - sum_seconds(sizes, P, link=link) / total
    return max(0.0, float(added @ rest / (added @ added)))


def sum_seconds(size, ranks, *, link, add=0.0):
    """Of a sum of so many bytes over so many ranks: the module's formula; none over one."""
    messages = 2 * (ranks - 1) * link.seconds(size / ranks)
    return messages + add * size * (ranks - 1) / ranks


@dataclass(frozen=True)
class ModelCosts:
    """What each layer of a model costs, bottom first, by the number of samples.

    samples: those measured, ascending. forward, backward: of each layer the seconds at each of
    them. weights: bytes of each layer's gradients. hand: bytes handed from layer to layer of a
    sample.
    """

    names: tuple[str, ...]
    samples: tuple[int, ...]
    forward: tuple[tuple[float, ...], ...]
    backward: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    hand: float

    @classmethod
    def from_rows(cls, rows, names, hand=None):
        """Medians of rows of the program `costs` of `measure.py`: variant (one of names), stage, B,
        seconds, and bytes of gradients. hand: None is 4 T H, by the columns T and H.
        """
        needed = (
            "variant",
            "stage",
            "B",
            "seconds",
            "bytes",
            *(("T", "H") if hand is None else ()),
        )
        rows = _columns("rows", rows, *needed)
        table = rows.pivot_table(index=["variant", "stage"], columns="B", values="seconds")
        for key in ((name, way) for name in names for way in ("forward", "backward")):
            if key not in table.index or table.loc[key].isna().any():
                raise ValueError(f"rows: got not every B of {' '.join(key)}")
        table = rows.pivot_table("seconds", ["variant", "stage"], "B", aggfunc="median")
        forward, backward = (
            tuple(tuple(table.loc[name, way]) for name in names) for way in ("forward", "backward")
        )
        weights = rows.groupby("variant")["bytes"].first()
        hand = 4.0 * rows["T"].iloc[0] * rows["H"].iloc[0] if hand is None else hand
        samples = tuple(int(B) for B in table.columns)
        weights = tuple(float(weights[name]) for name in names)
        return cls(tuple(names), samples, forward, backward, weights, float(hand))

    def parts(self, samples):
        """A LayerCost of each layer for so many samples, a mean too: on the lines between those
        measured; below, what the fewest take; above, along the last line.
        """
        samples = check_rate("samples", samples)
        ways = ([self._at(s, samples) for s in way] for way in (self.forward, self.backward))
        return [LayerCost(*row) for row in zip(self.names, *ways, self.weights, strict=True)]

    def _at(self, seconds, samples):
        B = self.samples
        before = (B[-2], seconds[-2]) if len(B) > 1 else (0, 0.0)
        slope = max(0.0, (seconds[-1] - before[1]) / (B[-1] - before[0]))
        return float(np.interp(samples, B, seconds)) + slope * max(0, samples - B[-1])


@dataclass(frozen=True)
class Step:
    """A predicted step. used: ranks that have samples and layers; the others are idle."""

    way: str
    ranks: int
    replicas: int
    stages: int
    micro_batches: int
    seconds: float
    used: int


def _turns(ranks, cores):
    """How many ranks take turns on a core; cores: None is one for each rank."""
    return 1 if cores is None else -(-ranks // check_int("cores", cores))


def data_parallel(costs, batch, *, ranks, link, add=0.0, overlap=True, bucket=0, cores=None):
    """A Step in which each rank has ceil(batch / ranks) samples, and gradients are summed.

    overlap: a layer's sum begins once its gradients are there, the top layer's first, and after the
    sum before; else all begin after the last. bucket: bytes of gradients that are summed at a time,
    at least, as BUCKET of `parallel.py`; 0 is each layer by itself.
    cores: of the one machine on which the ranks take turns; None gives each rank its own.
    """
    batch, ranks = check_int("batch", batch), check_int("ranks", ranks)
    parts, turns = costs.parts(-(-batch // ranks)), _turns(ranks, cores)
    end, waiting, sums = turns * sum(part.forward for part in parts), 0.0, []
    for place, part in reversed([*enumerate(parts)]):
        end, waiting = end + turns * part.backward, waiting + part.weights
        if waiting >= bucket or place == 0:
            sums.append((end, sum_seconds(waiting, ranks, link=link, add=add)))
            waiting = 0.0
    done = 0.0
    for start, seconds in sums:
        done = max(done, start if overlap else end) + seconds
    return Step("data", ranks, ranks, 1, 1, done, min(batch, ranks))


@lru_cache(4096)
def _partition(costs, stages, samples):
    """Layers of each stage. More micro-batches than two have the same best partition: all but the
    first go at the pace of the slowest stages.
    """
    return plan(costs.parts(samples), stages, 2).counts


@lru_cache(4096)
def _pipeline(costs, stages, samples, micro_batches, link, order, turns):
    """Seconds of a pipeline, `samples` in a micro-batch, and the layers of each stage."""
    parts = [
        LayerCost(part.name, turns * part.forward, turns * part.backward)
        for part in costs.parts(samples)
    ]
    counts = _partition(costs, stages, samples)
    hand = link.seconds(costs.hand * samples)
    return predict(parts, counts, micro_batches, hand=hand, order=order).seconds, counts


def layer_parallel(costs, batch, *, ranks, link, micro_batches=1, order=PIPELINES[0], cores=None):
    """A Step in which neighbouring layers are on a rank, as `planner.plan` shares them out, and
    micro-batches go through; ranks beyond the layers are idle.

    micro_batches: no more than samples. order: of PIPELINES; the partition is the best one for
    "fill-drain". Other arguments as of `data_parallel`.
    """
    step = _grid(
        costs,
        batch,
        1,
        min(check_int("ranks", ranks), len(costs.names)),
        link,
        0.0,
        micro_batches,
        order,
        cores,
    )
    return Step("layer", ranks, 1, step.stages, step.micro_batches, step.seconds, step.used)

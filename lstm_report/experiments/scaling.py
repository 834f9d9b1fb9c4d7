"""What a step of training would take on 1 to 1024 ranks: predicted from measured costs.

A message takes latency + bytes / bandwidth (`Link`), a layer what was measured
(`ModelCosts`), a pipeline what `simulate` says. Ranks compute at one pace, messages do
not meet on their way, memory has no limit. A rank sends one message after another: a
sum of n bytes over P ranks, as `world.Sum` does it, takes 2 (P - 1) (latency + n / P /
bandwidth) + add n (P - 1) / P.
"""

import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from lstm_kernels.errors import check_choice, check_int, check_numbers, check_rate
from lstm_kernels.ranks.planner import SECONDS, LayerCost, plan, predict
from lstm_kernels.schedules import PIPELINES

RANKS = tuple(2**k for k in range(11))
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
ORDER = PIPELINES[0]


@dataclass(frozen=True)
class Link:
    """What connects two ranks. latency: seconds of a message, one way. bandwidth: bytes
    per second in one direction, infinite too. source: whose figures, and of what.
    """

    name: str
    latency: float
    bandwidth: float
    source: str = ""

    def __post_init__(self):
        if not (0 <= self.latency < math.inf and self.bandwidth > 0):
            got = f"latency {self.latency} and bandwidth {self.bandwidth}"
            raise ValueError(
                f"link: got {got}, want none below zero, and some bandwidth"
            )

    def seconds(self, size):
        """Of a message of so many bytes."""
        return self.latency + size / self.bandwidth


_PUBLISHED = [
    ("NVLink 4 (H100)", 3.4e-6, 376e9, """Bandwidth: p2pBandwidthLatencyTest, one way between two
        H100 SXM, NVIDIA/nccl issue 1264, "Only ~783GByte/s out of theoretical 900GB/s HGX H100 SXM
        Nvlink4". Latency: what NCCL counts for a step of a ring with protocol Simple, no half round
        trip; NVIDIA, NCCL, src/graph/tuning.cc, 2026."""),
    ("InfiniBand NDR 400 Gbit/s", 2e-6, 50e9, """Vendor's figures, no measurement: RDMA latency of
        a byte below 2 us, and the line rate; Microsoft, "HBv4-series VM sizes performance and
        scalability", 2023."""),
    ("InfiniBand HDR 200 Gbit/s", 1.61e-6, 23.5e9, """MPI: half a round trip of 8 bytes by
        osu_latency, bandwidth of two pairs of processes by osu_mbw_mr; Microsoft, "HPC Performance
        and Scalability Results with Azure HBv2 VMs", 2019."""),
    ("Ethernet 40 Gbit/s, usNIC", 1.93e-6, 4.65e9, """MPI: half a round trip and bandwidth by
        NetPIPE, Open MPI 1.8.1 past the system's TCP, without a switch; J. Squyres, Cisco, "MPI
        over 40Gb Ethernet"."""),
    ("Ethernet 10 Gbit/s, TCP", 10e-6, 1.25e9, """Latency: at best, one way from application to
        application through Linux's TCP, without MPI; S. Larsen et al., "Architectural Breakdown of
        End-to-End Latency in a TCP/IP Network", 2009. Bandwidth: the line rate."""),
]  # fmt: skip
LINKS = {
    name: Link(name, *numbers, " ".join(of.split()))
    for name, *numbers, of in _PUBLISHED
}


def _columns(name, rows, *wanted):
    """Rows; raises ValueError unless they have these columns and seconds above zero."""
    if missing := [column for column in (*wanted, "seconds") if column not in rows]:
        raise ValueError(f"{name}: got no column {', '.join(missing)}")
    check_numbers(f"{name}.seconds", rows["seconds"], positive=True)
    return rows


def fit(rows, name):
    """The Link that fits measured messages best, and the largest relative error of that
    fit.

    rows: a DataFrame of bytes and seconds, one way, repeats of each size; the medians
    are fitted by least squares in relative error. Raises ValueError for fewer than two
    sizes.
    """
    medians = _columns("rows", rows, "bytes").groupby("bytes")["seconds"].median()
    if len(medians) < 2:
        raise ValueError(
            f"rows: got {len(medians)} size of messages, want at least two"
        )
    sizes, seconds = medians.index.to_numpy(float), medians.to_numpy()
    columns = np.stack([1 / seconds, sizes / sizes.max() / seconds], axis=1)
    (latency, slope), _ = nnls(columns, np.ones(len(sizes)))
    bandwidth = float(sizes.max() / slope) if slope else math.inf
    link = Link(name, float(latency), bandwidth, f"measured: {len(rows)} messages")
    return link, float(np.abs(link.seconds(sizes) / seconds - 1).max())


def fit_add(rows, link):
    """`add`: seconds in which a rank adds a byte, by least squares in relative error.

    rows: a DataFrame of ranks, two or more, bytes and seconds of sums over that link,
    repeats of each. Raises ValueError for a sum over one rank.
    """
    sums = (
        _columns("rows", rows, "ranks", "bytes")
        .groupby(["ranks", "bytes"])["seconds"]
        .median()
    )
    P, sizes, seconds = sums.reset_index().to_numpy(float).T
    if P.min() < 2:
        raise ValueError(f"rows: got sums over {P.min():.0f} rank, want two or more")
    added, rest = (
        sizes * (P - 1) / P / seconds,
        1 - sum_seconds(sizes, P, link=link) / seconds,
    )
    return max(0.0, float(added @ rest / (added @ added)))


def sum_seconds(size, ranks, *, link, add=0.0):
    """Of a sum of so many bytes over so many ranks: the module's formula; none over
    one.
    """
    messages = 2 * (ranks - 1) * link.seconds(size / ranks)
    return messages + add * size * (ranks - 1) / ranks


@dataclass(frozen=True)
class ModelCosts:
    """What layers cost. samples: numbers measured, ascending. layers: bottom first,
    name, seconds forward and backward at each number, bytes of gradients. hand: bytes
    of a sample's activations. ends: seconds of each layer once in a step, whatever the
    samples are: its gradients are put in order, and its parameters descend.
    """

    samples: tuple[int, ...]
    layers: tuple[tuple[str, tuple[float, ...], tuple[float, ...], float], ...]
    hand: float
    ends: tuple[float, ...] = ()

    @classmethod
    def from_rows(cls, rows, names):
        """Medians of rows of `measure.costs`: variant (a layer's name), stage (its
        way), B, T, H, seconds, bytes. names: of the layers, bottom first. Raises
        ValueError for missing rows; of "last" and "descent" there may be none.
        """
        _columns("rows", rows, "variant", "stage", "B", "T", "H", "bytes")
        table = rows.pivot_table("seconds", ["variant", "stage"], "B", aggfunc="median")
        weights, layers = rows.groupby("variant")["bytes"].first(), []
        for name in names:
            ways = [(name, "forward"), (name, "backward")]
            if not set(ways) <= set(table.dropna().index):
                raise ValueError(f"rows: got not every B of {name}, both ways")
            seconds = (tuple(table.loc[way].tolist()) for way in ways)
            layers.append((name, *seconds, float(weights[name])))
        hand = (
            4.0 * rows["T"].iloc[0] * rows["H"].iloc[0]
        )  # float32, from layer to layer
        medians = rows.groupby(["variant", "stage"])["seconds"].median()
        at = table.mean(axis=1)
        ends = [
            max(0.0, at.get((name, "last"), 0.0) - at[name, "backward"])
            + medians.get((name, "descent"), 0.0)
            for name in names
        ]
        return cls(
            tuple(table.columns.tolist()), tuple(layers), hand, tuple(map(float, ends))
        )

    def end(self, counts, turns=1):
        """Seconds of the end of a step on the slowest rank; counts: layers of each
        stage.
        """
        ends, first = self.ends or (0.0,) * len(self.layers), [0, *accumulate(counts)]
        return turns * max(sum(ends[a:b]) for a, b in pairwise(first))

    def parts(self, samples, turns=1):
        """A LayerCost of each layer for so many samples, a mean too: on the lines
        between those measured; below, what the fewest take; above, along the last line.
        turns: ranks on a core.
        """
        check_rate("samples", samples)
        before, last = (0, *self.samples)[-2:]
        beyond = max(0.0, samples - last) / (last - before)

        def at(seconds):
            rise = max(0.0, seconds[-1] - (0.0, *seconds)[-2])
            return turns * float(
                np.interp(samples, self.samples, seconds) + beyond * rise
            )

        return [
            LayerCost(name, at(f), at(b), weights)
            for name, f, b, weights in self.layers
        ]


@dataclass(frozen=True)
class Step:
    """A predicted step. used: ranks that have samples and layers; the others are
    idle.
    """

    way: str
    ranks: int
    replicas: int
    stages: int
    micro_batches: int
    seconds: float
    used: int


def _turns(ranks, cores):
    return 1 if cores is None else -(-ranks // check_int("cores", cores))


def data_parallel(costs, batch, *, ranks, link, add=0.0, overlap=True, cores=None):
    """A Step in which each rank has ceil(batch / ranks) samples, and gradients are
    summed.

    overlap: a layer's sum begins once its gradients are there, top layer first, and the
    sum before is done; else after the backward pass. cores: of one machine, on which
    the ranks take turns; None gives each its own.
    """
    share = -(-check_int("batch", batch) // check_int("ranks", ranks))
    parts = costs.parts(share, _turns(ranks, cores))
    end, done, total = sum(part.forward for part in parts), 0.0, 0.0
    for part in reversed(parts):
        end, seconds = (
            end + part.backward,
            sum_seconds(part.weights, ranks, link=link, add=add),
        )
        done, total = max(done, end) + seconds, total + seconds
    seconds = done if overlap else end + total
    seconds += costs.end([len(parts)], _turns(ranks, cores))
    return Step("data", ranks, ranks, 1, 1, seconds, min(batch, ranks))


@lru_cache(4096)
def _partition(costs, stages, samples):
    """Layers of each stage, the best for any number of micro-batches: all but the first
    go at the pace of the slowest stages.
    """
    return plan(costs.parts(samples), stages, 2).counts


@lru_cache(4096)
def _pipeline(costs, stages, samples, micro_batches, link, order):
    """The Plan with so many samples in a micro-batch; its `memory` is that of the
    gradients.
    """
    counts, hand = (
        _partition(costs, stages, samples),
        link.seconds(costs.hand * samples),
    )
    return predict(costs.parts(samples), counts, micro_batches, hand=hand, order=order)


def layer_parallel(
    costs,
    batch,
    *,
    ranks,
    link,
    micro_batches=1,
    order=ORDER,
    cores=None,
    replicas=1,
    add=0.0,
):
    """A Step in which a rank has neighbouring layers, as `planner.plan` shares them
    out, and micro-batches go through; ranks beyond the layers are idle.

    micro_batches: how many, at most one per sample, or several such numbers to take the
    fastest of. order: of PIPELINES; the partition is the best of "fill-drain".
    replicas: of such a pipeline, each with ranks / replicas of the ranks; the sums of
    each stage come after the pipeline. cores: where ranks take turns, one computes
    while others wait: a step takes at least all of the work shared out over the cores.
    """
    batch, stages = check_int("batch", batch), min(ranks // replicas, len(costs.layers))
    share, steps, turns = -(-batch // replicas), [], _turns(stages * replicas, cores)
    used, way = min(batch, replicas) * stages, "layer" if replicas == 1 else "mixed"
    for count in (micro_batches,) if np.isscalar(micro_batches) else micro_batches:
        M = min(check_int("micro_batches", count), share)
        pipe = _pipeline(costs, stages, share / M, M, link, order)
        work = replicas * M * sum(f + b for f, b in pipe.stages)
        seconds = max(pipe.seconds, work / (cores or stages * replicas))
        seconds += sum_seconds(max(pipe.memory), replicas, link=link, add=add)
        seconds += costs.end(pipe.counts, turns)
        steps.append(Step(way, ranks, replicas, stages, M, seconds, used))
    return min(steps, key=SECONDS)


def mixed(
    costs,
    batch,
    *,
    ranks,
    micro_batches=MICRO_BATCHES,
    order=ORDER,
    overlap=True,
    **how,
):
    """The fastest Step of replicas x stages = ranks, up to as many stages as layers:
    one stage as by `data_parallel`, more as by `layer_parallel`. how: link, add, cores.
    """
    steps = [data_parallel(costs, batch, ranks=ranks, overlap=overlap, **how)]
    pipe = {"ranks": ranks, "micro_batches": micro_batches, "order": order, **how}
    for stages in range(2, min(ranks, len(costs.layers)) + 1):
        if ranks % stages == 0:
            steps.append(layer_parallel(costs, batch, replicas=ranks // stages, **pipe))
    return replace(min(steps, key=SECONDS), way="mixed")


def sweep(costs, batch, *, ranks=RANKS, scaling="strong", overlap=True, **how):
    """The Step of each way on each number of ranks, a DataFrame with a row each.

    scaling: "strong", `batch` samples in all, or "weak", `batch` for each rank. how: of
    `mixed`; a pipeline takes the fastest of its micro-batches too. speedup: samples per
    second, as a multiple of those of one rank with `batch`; efficiency: that by ranks.
    """
    check_choice("scaling", scaling, ("strong", "weak"))
    sums, rows = (
        {name: how[name] for name in ("link", "add", "cores") if name in how},
        [],
    )
    how = {"micro_batches": MICRO_BATCHES} | how
    for P in ranks:
        at = costs, batch * (check_int("ranks", P) if scaling == "weak" else 1)
        pipe = {"ranks": P} | how | ({"micro_batches": 1} if P == 1 else {})
        rows += [
            data_parallel(*at, ranks=P, overlap=overlap, **sums),
            layer_parallel(*at, **pipe),
        ]
        rows += [mixed(*at, overlap=overlap, **pipe)]
    table = pd.DataFrame(map(asdict, rows))
    one = data_parallel(costs, batch, ranks=1, **sums).seconds
    table["speedup"] = (
        one / table["seconds"] * (table["ranks"] if scaling == "weak" else 1)
    )
    return table.assign(efficiency=table["speedup"] / table["ranks"])


def errors(measured, predicted):
    """Medians of measured steps, rows of way, ranks and seconds, beside those of
    `sweep`: way, ranks, measured, predicted, and `error`, by how much more is
    predicted, relative.

    Raises ValueError for a step that is not predicted.
    """
    key = ["way", "ranks"]
    medians = _columns("measured", measured, *key).groupby(key)["seconds"].median()
    known = _columns("predicted", predicted, *key).set_index(key)["seconds"]
    if missing := [point for point in medians.index if point not in known.index]:
        raise ValueError(f"measured: got {missing[0]}, which is not predicted")
    table = pd.DataFrame({"measured": medians, "predicted": known.loc[medians.index]})
    return table.assign(error=table["predicted"] / table["measured"] - 1).reset_index()

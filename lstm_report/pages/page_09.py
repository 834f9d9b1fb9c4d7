"""Page 09: operands in bfloat16 and weights of low rank: speed and loss."""

import time
from functools import partial

import numpy as np
import pandas as pd

import lstm_kernels as lk
from lstm_kernels import data, reference
from lstm_kernels.data import Dataset
from lstm_kernels.training import train

from .. import plots
from ..measure import comparer, evidence, runner
from ..measure.evidence import Interval, digits, percent, speed
from ..measure.timing import together
from ..measure.workloads import Workload
from ..studies import low_rank
from ..studies.low_rank import LowRank, factor, without_products

DENSE, REST_CASE = "dense", "rank 0"
RANKS = 8, 16, 32, 64
ONE, MANY = "1 sample", "64 samples"
H, SIGNS_COUNT = 256, 64
SPEED = {  # arguments of `measure_speed`
    "smoke": {"H": 64, "T": 4, "batches": {ONE: 1, MANY: 8}, "repeats": 2},
    "paper": {"H": H, "T": 100, "batches": {ONE: 1, MANY: 64}, "repeats": 3},
}
HALF_PLACE = 2.0**-8  # half of the last place of a bfloat16, of numbers from 1 on
BEFORE, AFTER = 42.8, 8.36  # Optim-LSTM's milliseconds
AIRLINE, SIGNS = "airline", "64 signs"
TRAINING = {AIRLINE: ((20, 5), 1e-3), SIGNS: ((12, 3), 3e-3)}  # epochs, Adam's rate
LOSSES = {  # arguments of `measure_losses`
    "smoke": {"H": 32, "ranks": (8, 32), "small": True},
    "paper": {"H": H, "ranks": (8, 32, 64), "small": False},
}
FORMATS = {"float32": (8, 23), "bfloat16": (8, 7), "float16": (5, 10)}


def measure_speed(H, T, batches, repeats):
    """Rows of inference on one thread by `work` and case: dense, the ranks, and rank 0,
    a pass without products; verified before and after.
    """
    params, parts = Workload(1, T, H, H, 1).params(), []
    nets = {f"rank {R}": LowRank(factor(params, R)) for R in RANKS}
    nets[DENSE] = runner.network("numpy", params, threads=1)
    nets[REST_CASE] = LowRank(without_products(params))
    for name, B in batches.items():
        x, _ = Workload(1, T, H, H, B).example()
        few = np.ascontiguousarray(x[:3, :4])

        def check(few=few):
            return {case: error(net, few) for case, net in nets.items()}

        cases = runner.each(nets, lambda net, x=x: net.forward(x))
        rows = runner.timed({name: cases}, check, repeats=repeats, wait=True)
        parts.append(rows.rename(columns={"stage": "work"}))
    return together(parts)


def error(net, x):
    """The largest relative error of a network, dense or factored, from the reference in
    float64; raises MismatchError.
    """
    params = net.params()
    dense = params.dense() if isinstance(net, LowRank) else params
    want = reference.forward(dense.astype(np.float64), x.astype(np.float64))[0]
    got = {"y": net.forward(x)[0]}
    return comparer.compare(got, {"y": want}, comparer.TOLERANCE[x.dtype])


def examples(task, small=False):
    """Training and held-out examples of a task."""
    if task == AIRLINE:
        passengers = data.airline().to_numpy(float)
        growth = data.LogDifference.fit(passengers[:96]).forward(passengers[:120])
        every, count = data.windows(growth, 12), 95 - 12  # windows that end by 1956
        cut = slice(count), slice(count, None)
        return [
            Dataset(np.ascontiguousarray(every.x[:, part]), every.target[part])
            for part in cut
        ]
    rng, signs = np.random.default_rng(1), 8 if small else SIGNS_COUNT
    sets = []
    for count in (64, 64) if small else (1024, 1024):
        target = rng.choice([-1, 1], (count, signs)).astype(np.float32)
        x = np.zeros((3, count, signs), np.float32)
        x[0] = target
        sets.append(Dataset(x, target))
    return sets


def rounded(x):
    """Finite float32 to the nearest bfloat16, of two the even one, as float32; beyond
    the largest of them, to that.
    """
    bits = x.view(np.uint32)
    sign, size = bits & np.uint32(1 << 31), bits & np.uint32(0x7FFFFFFF)
    near = size + np.uint32(0x7FFF) + (size >> 16 & np.uint32(1))
    largest = np.uint32(0x7F7F0000)
    return (np.minimum(near & np.uint32(0xFFFF0000), largest) | sign).view(np.float32)


def forward_rounded(params, x):
    """y (T, B, H) of the reference, whose products round their operands."""

    def product(a, b):
        return rounded(a) @ rounded(b)

    layer = partial(reference.layer_forward, product=product)
    return reference.forward(params, x, layer_forward=layer)[0]


def rounding_error():
    """The largest relative error of rounding 100,000 numbers of all sizes; ValueError
    above 2^-8.
    """
    some = np.exp2(np.random.default_rng(0).uniform(-120, 120, 100_000))
    some = some.astype(np.float32)
    error = float(np.abs(rounded(some).astype(float) / some - 1).max())
    if error > 2.0**-8:
        raise ValueError(f"rounded: got an error of {error}, want at most 2^-8")
    return error


def measure_losses(process, H, ranks, small):
    """Rows of held-out losses of both tasks, with the number of the process as seed:
    trained dense, in bfloat16, fine-tuned dense and at each rank; and their seconds.
    """
    return pd.concat(
        losses_of(task, process, H, ranks, (2, 1) if small else epochs, rate, small)
        for task, (epochs, rate) in TRAINING.items()
    )


def losses_of(task, seed, H, ranks, epochs, rate, small):
    training, held_out = examples(task, small)
    sizes = training.x.shape[2], H
    params = lk.Params.init(*sizes, output_size=training.target.shape[1], seed=seed)
    params.layers[0].b[H : 2 * H] += 2  # the forget gate begins open
    options = {"optimizer": "adam", "progress": False}
    start = time.perf_counter()

    def loss(prediction):
        return float(np.mean((prediction - held_out.target) ** 2))

    def tuned(net):
        train(net, training, epochs[1], 32, rate / 2, seed=seed + 100, **options)
        return loss(net.predict(held_out.x))

    net = lk.network("numba-fused", params)
    train(net, training, epochs[0], 32, rate, seed=seed, **options)
    trained = net.params()
    found = {"trained": loss(net.predict(held_out.x))}
    in_bfloat16 = forward_rounded(trained, held_out.x)[-1] @ trained.V + trained.b_out
    found["bfloat16"] = loss(in_bfloat16)
    for rank in ranks:
        if rank <= low_rank.full_rank(trained):
            found[f"rank {rank}"] = tuned(LowRank(factor(trained, rank)))
    found[DENSE] = tuned(net)
    cases = [{"case": case, "loss": value} for case, value in found.items()]
    took = time.perf_counter() - start
    return pd.DataFrame(cases).assign(task=task, seconds=took, repeat=0)


def gains(rows):
    """How many times as fast as dense each rank is: Intervals by (work, case)."""
    found = {}
    for work, part in rows.groupby("work", sort=False):
        ratios = evidence.ratios(part, DENSE).drop(columns=DENSE)
        found |= {(work, case): Interval.of(ratios[case]) for case in ratios}
    return found


def kept(rows):
    """The share of the speed that the count allows, as `limit` has it, that each rank
    reaches: Intervals by (work, case).
    """
    found = {}
    for work, part in rows.groupby("work", sort=False):
        took = evidence.seconds(part)
        for rank in RANKS:
            allowed = limit(took[DENSE], took[REST_CASE], rank)
            got = took[DENSE] / took[f"rank {rank}"]
            found[work, f"rank {rank}"] = Interval.of(got / allowed)
    return found


def count(rank):
    """Of the dense layer's multiply-adds, the share that a rank has, D = H."""
    return 0.75 * rank / H


def limit(dense, rest, rank):
    """Amdahl's law: how many times as fast as dense a rank can be, where the products
    alone shrink as their count.
    """
    return dense / (rest + (dense - rest) * count(rank))


def least(found):
    """The least of Intervals by (work, case)."""
    return min(found.values(), key=lambda one: one.low)


def table_ranks(rows):
    """Milliseconds of a pass and the speed of each rank, for one sample and for 64;
    rank 0 has no products.
    """
    found, lines = gains(rows), {}
    for case in (DENSE, *(f"rank {R}" for R in reversed(RANKS)), REST_CASE):
        share = 1 if case == DENSE else count(int(case.split()[1]))
        line = {"multiply-adds": f"{digits(100 * share)} %"}
        for work, part in rows.groupby("work", sort=False):
            line[f"{work}, ms"] = digits(1e3 * evidence.seconds(part)[case].median())
            line[work] = "1x" if case == DENSE else speed(found[work, case])
        lines[case] = line
    return pd.DataFrame.from_dict(lines, orient="index").rename_axis("weights")


def sentence_published(rows):
    """Which ranks reach Optim-LSTM's speed-up, and what no rank can exceed."""
    want, found = BEFORE / AFTER, gains(rows)
    said = []
    for work in (ONE, MANY):
        reach = [f"rank {R}" for R in RANKS if found[work, f"rank {R}"].low >= want]
        most = speed(found[work, REST_CASE])
        said.append(
            f"with {work}, {' and '.join(reach) or 'no rank'} (rank 0 gains {most})"
        )
    return f"Optim-LSTM's {speed(want)} is reached by: {'; '.join(said)}."


def relative(losses):
    """Loss over the dense network's of the same seed, by task and case: bfloat16's over
    that of the network it rounds, fine-tuned ones' over the fine-tuned dense one's.
    """
    table = losses.pivot_table(
        index=["task", "process"], columns="case", values="loss", sort=False
    )
    over = table.div(table[DENSE], axis=0)
    over["bfloat16"] = table["bfloat16"] / table["trained"]
    return over.drop(columns="trained")


def of_seeds(losses, task, case):
    """Loss over the dense network's, over seeds."""
    return Interval.of(relative(losses).loc[task, case])


def moved(losses, task):
    """How far bfloat16 moves the loss at most, and how far apart the seeds are."""
    part = losses[losses["task"] == task]
    table = part.pivot_table(index="process", columns="case", values="loss")
    off = np.abs(table["bfloat16"] / table["trained"] - 1).max()
    return float(off), float(table["trained"].max() / table["trained"].min() - 1)


def moved_over_seeds(losses):
    """How far bfloat16 moves a loss, over how far apart the seeds are: the task of two
    in which this is most.
    """
    found = [off / seeds for off, seeds in (moved(losses, t) for t in TRAINING)]
    return float(np.max(found))  # NaN where one is


def by_task(losses):
    """`moved` of both tasks as text."""
    found = {task: moved(losses, task) for task in TRAINING}
    return "; ".join(
        f"{task} {percent(off)} at most, seeds {percent(seeds)} apart"
        for task, (off, seeds) in found.items()
    )


def lost(losses):
    """Of the ranks below the number of signs, the held-out loss over the share of the
    signs' variance that so few combinations leave out, 1 - R / 64: Intervals by rank.
    """
    part = losses[losses["task"] == SIGNS]
    table = part.pivot_table(index="process", columns="case", values="loss")
    few = (R for R in RANKS if f"rank {R}" in table and R < SIGNS_COUNT)
    return {R: Interval.of(table[f"rank {R}"] / (1 - R / SIGNS_COUNT)) for R in few}


def all_between(found, low, high):
    """Whether all Intervals lie between two numbers."""
    within = [low <= one.low and one.high <= high for one in found.values()]
    return bool(within) and all(within)


def by_rank(found):
    """Intervals by rank as text."""
    return "; ".join(f"rank {rank}: {value}" for rank, value in found.items())


def figure_formats():
    """The bits of three formats."""
    figure, ax = plots.panels(1, 2.1)
    for row, (exponent, fraction) in enumerate(FORMATS.values()):
        parts = (
            ("sign", 0, 1, plots.GREY),
            ("exponent", 1, exponent, plots.ORANGE),
            ("fraction", 1 + exponent, fraction, plots.SKY),
        )
        for name, start, bits, colour in parts:
            for bit in range(start, start + bits):
                ax.barh(row, 0.92, left=bit, height=0.7, color=colour, alpha=0.6)
            text = f"{name} {bits}" if bits > 1 else ""
            ax.text(start + bits / 2, row, text, ha="center", va="center")
    plots.named_rows(ax, [*FORMATS])
    ax.set(xlim=(0, 33), xlabel="bits")
    ax.grid(visible=False)
    ax.set_title("bfloat16 is the upper half of float32")
    return figure


def figure_cost(rows, losses):
    """Loss over speed with 64 samples: dense and each rank, a line for each task."""
    figure, ax = plots.panels(1, 4.4)
    ax.set(xscale="log", yscale="log")
    found, over, ends, labels = gains(rows), relative(losses), [], []
    for task, colour in ((AIRLINE, plots.BLUE), (SIGNS, plots.RED)):
        points = {DENSE: (1.0, 1.0, 1.0, 1.0)}
        for R in reversed(RANKS):
            if f"rank {R}" in over:
                case = f"rank {R}"
                low, middle, high = of_seeds(losses, task, case)
                points[case] = found[MANY, case].middle, low, middle, high
        x, low, middle, high = np.array([*points.values()]).T
        bars = middle - low, high - middle
        style = {"color": colour, "markersize": 5, "linewidth": 1.3, "capsize": 2}
        ax.errorbar(x, middle, bars, fmt="o-", **style)
        place = (-8, 0) if task == SIGNS else (0, -16)
        plots.note(ax, task, (x[-2], middle[-2]), place, color=colour, ha="right")
        ends += [*low, *high]
        if task == SIGNS:
            names = zip(x[1:], middle[1:], [*points][1:], strict=True)
            labels = [(*place, case, "black") for *place, case in names]
    fast = max(found[MANY, case].middle for case in over if case.startswith("rank"))
    plots.ticks(ax, "x", [0.5, 1, 2, 3, 5, 10, 20])
    ax.set_xlim(0.9, fast * 1.6)
    plots.ticks(ax, "y", [t for t in (0.5, 1, 2, 5, 10, 20, 50) if t <= 2 * max(ends)])
    ax.set_ylim(min(0.6, min(ends) / 1.3), max(ends) * 1.6)
    ax.set(xlabel="times as fast as dense, 64 samples (log)")
    ax.set(ylabel="held-out loss, dense = 1 (log)")
    plots.label_lines(ax, labels)
    plots.note(ax, "dense", (1.0, 1.0), (0, -16), color="black")
    told = [f"{digits(of_seeds(losses, t, 'rank 32').middle)} on {t}" for t in TRAINING]
    ax.set_title(f"Loss at rank 32, dense = 1: {told[0]}, {told[1]}")
    return figure

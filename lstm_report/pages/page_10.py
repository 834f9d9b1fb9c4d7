"""Page 10, parallel in time: chunks of a sequence; the sweeps of networks that learned
to remember; the steps in which a network forgets where it started; times of chunks.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from math import inf, log
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import lstm_kernels as lk
from lstm_kernels import data
from lstm_kernels.versions.numba_fused import NumbaFused

from .. import plots
from ..measure.comparer import compare
from ..measure.evidence import digits, intervals, ratios
from ..measure.timing import interleaved, settle, together

CHUNKS, ALONE = "chunks", "step by step"
MILLIONTH, BITS = "to a millionth", "to the last bit"
LOOKED_AT = 2048  # steps after each start
RUN_UP = 96  # steps before each chunk that make the first guess
Work = tuple[lk.Params, np.ndarray]  # a network and its sequence (T, 1, 1)


def initialised(H: int, T: int) -> Work:
    """A network as initialised, and noise."""
    x = np.random.default_rng(0).standard_normal((T, 1, 1))
    return lk.Params.init(1, H), x.astype(np.float32)


def airline(H: int, T: int, epochs: int) -> Work:
    """A network trained on windows of the airline series, and its monthly growth again
    and again.
    """
    passengers = data.airline().to_numpy(float)
    growth = data.LogDifference.fit(passengers).forward(passengers)
    net = lk.network("numba-fused", lk.Params.init(1, H, output_size=1))
    lk.train(net, data.windows(growth, 12), epochs, 16, 0.2, progress=False)
    return net.params(), np.resize(growth, (T, 1, 1)).astype(np.float32)


def running_mean(
    rng: np.random.Generator, T: int, B: int, d: int
) -> tuple[np.ndarray, np.ndarray]:
    """Noise (T, B, 1), and its mean with a time constant of d steps (B, 1), scaled."""
    x = rng.standard_normal((T, B)).astype(np.float32)
    decay = (1 - 1 / d) ** np.arange(T)[::-1]
    return x[..., None], (decay @ x / np.sqrt(d))[:, None].astype(np.float32)


def trained(
    d: int, seed: int, *, H: int, epochs: int, examples: int
) -> tuple[lk.Params, float]:
    """A network that was to tell the mean over d steps, and its loss as a fraction of
    that of telling zero.
    """

    def rate(epoch):
        return 0.2 * 0.85**epoch

    rng, steps = np.random.default_rng(seed), 3 * d
    net = lk.network("numba-fused", lk.Params.init(1, H, output_size=1, seed=seed))
    dataset = lk.Dataset(*running_mean(rng, steps, examples, d))
    lk.train(net, dataset, epochs, 32, rate, seed=seed, progress=False)
    x, target = running_mean(np.random.default_rng(99), steps, 1000, d)
    return net.params(), float(
        ((net.predict(x) - target) ** 2).sum() / (target**2).sum()
    )


def works_of(
    T: int, spans: Iterable[int], rounds: int, *, seeds: int, **training: Any
) -> dict[str, Work]:
    """By name: networks as initialised; those that were to tell a mean, of the first
    seed; those of the airline series, after so many rounds of training.
    """
    works = {f"as initialised, {H} units": initialised(H, T) for H in (4, 8, 32, 64)}
    for d in spans:
        params, _ = trained(d, 0, **training)
        name = f"mean over {d} steps, {training['H']} units"
        works[name] = params, initialised(1, T)[1]
    return works | {f"airline, {H} units": airline(H, T, rounds) for H in (2, 32)}


def shifted(ends: Iterable[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The states (1, C, H) from which chunks start: where the ones before ended, chunk
    0 from zero.
    """
    starts = tuple(np.zeros_like(end) for end in ends)
    for start, end in zip(starts, ends, strict=True):
        start[:, 1:] = end[:, :-1]
    return starts


def in_chunks(
    net: Any, x: np.ndarray, count: int, run_up: int = 0
) -> Iterator[np.ndarray]:
    """y (T, 1, H) of one sequence x (T, 1, D) after each sweep, until all seams hold.

    net: of any version. count: chunks, a divisor of T. run_up: so many steps at the
    end of each chunk make the first guess; else chunks start from zero.
    """
    chunks = np.ascontiguousarray(x.reshape(count, -1, x.shape[2]).swapaxes(0, 1))
    _, ends = net.forward(chunks[-run_up or -1 :])
    starts = shifted(ends) if run_up else tuple(map(np.zeros_like, ends))
    for _ in range(count):  # chunk k is right after k + 1 of them
        y, ends = net.forward(chunks, starts)  # chunks as samples of a mini-batch
        yield y.swapaxes(0, 1).reshape(len(x), 1, -1)
        before, starts = starts, shifted(ends)
        if all(map(np.array_equal, before, starts)):
            return


def measure_sweeps(
    spans: Iterable[int], seeds: int, T: int = 4096, chunks: int = 64, **training: Any
) -> pd.DataFrame:
    """Rows d, seed, loss, sweeps: of chunks without a run-up, of networks trained to
    remember; MismatchError where an output is wrong.
    """
    found = []
    for d, seed in product(spans, range(seeds)):
        params, loss = trained(d, seed, **training)
        x, _ = running_mean(np.random.default_rng(7), T, 1, d)
        net = NumbaFused(params)
        swept = [*in_chunks(net, x, chunks)]
        compare({"y": swept[-1]}, {"y": net.forward(x)[0]}, 0)
        found.append((d, seed, loss, len(swept)))
    return pd.DataFrame(found, columns=["d", "seed", "loss", "sweeps"])


def law(d: Any, steps: int) -> Any:
    """Sweeps over chunks of so many steps, where a network forgets by a factor 1 - 1/d
    a step until float32, of 24 binary digits, sees no difference; whole sweeps.
    """
    return 1 + np.ceil(24 * log(2) * d / steps)


def forgets(
    params: lk.Params, x: np.ndarray, steps: int = LOOKED_AT
) -> dict[str, float]:
    """After how many steps of x (T, 1, 1) a run that starts from zero, at worst of some
    thirty places, gives the output of the whole sequence, to a millionth and to the
    last bit; infinity where not within `steps`, at most T/2.
    """
    net, found = NumbaFused(params), {}
    y = net.forward(x)[0]
    places = range(steps // 32, steps, steps // 32)
    late = np.concatenate([x[s : s + steps] for s in places], axis=1)
    want = np.concatenate([y[s : s + steps] for s in places], axis=1)
    off = np.abs(net.forward(late)[0] - want).max(axis=(1, 2))
    for name, most in ((MILLIONTH, 1e-6), (BITS, 0)):
        last = max(np.flatnonzero(off > most), default=-1) + 1
        found[name] = float(last) if last < steps else inf
    return found


def measure_times(
    works: dict[str, Work], units: Iterable[int], lengths: Iterable[int], repeats: int
) -> pd.DataFrame:
    """Seconds of a forward pass, step by step and in chunks: of each work with the
    steps in which it forgets; of networks as initialised in either of two numbers of
    chunks. The first guess is that of a run-up.
    """
    parts = []
    for work, (params, x) in works.items():
        part = _timed(params, x, {CHUNKS: (32, RUN_UP)}, repeats)
        parts.append(part.assign(work=work, **forgets(params, x[: 2 * LOOKED_AT])))
    for H, T in product(units, lengths):
        cuts = {f"{n} chunks": (n, min(RUN_UP, T // n)) for n in (16, 32)}
        parts.append(_timed(*initialised(H, T), cuts, repeats).assign(H=H, T=T))
    return together(parts)


def _timed(params, x, cuts, repeats):
    """Rows of one sequence; MismatchError where chunks change a bit."""
    net = NumbaFused(params)
    right, cases = {"y": net.forward(x)[0]}, {ALONE: partial(net.forward, x)}
    for name, (count, run_up) in cuts.items():
        for steps in (run_up, len(x) // count):  # each shape is autotuned by itself
            settle(partial(net.forward, x[: steps * count].reshape(steps, count, -1)))
        swept = [*in_chunks(net, x, count, run_up)]
        compare({"y": swept[-1]}, right, 0)
        sweep = partial(in_chunks, net, x, count, run_up)
        cases[name] = lambda sweep=sweep: deque(sweep(), maxlen=1)
    return interleaved(cases, repeats=repeats).assign(sweeps=len(swept))


def sweeps_figure(swept: list[np.ndarray], right: np.ndarray, count: int) -> Figure:
    """How far the outputs of each sweep (T, 1, H) are off, a row a chunk."""
    height = 1.15 * len(swept) + 0.9
    figure, axes = plots.panels(len(swept), height, sharex=True, squeeze=False)
    titles = []
    for sweep, (ax, y) in enumerate(zip(axes.flat, swept, strict=True), start=1):
        off = np.abs(y - right).max(axis=(1, 2)).reshape(count, -1)
        shown = np.log10(np.maximum(off, 1e-7))
        drawn = ax.imshow(shown, cmap="Reds", vmin=-7, vmax=0, aspect="auto")
        correct = int((off <= 1e-7).all(axis=1).sum())
        titles.append(f"Sweep {sweep}, correct chunks: {correct} of {count}")
        ax.set_title(titles[-1], fontsize=10.5)
        ax.set(ylabel="chunk", yticks=[0, count - 1])
        ax.grid(visible=False)
        style: dict[str, Any] = {"edgecolor": plots.BLUE, "linewidth": 2}
        ax.add_patch(Rectangle((9.5, -0.5), 1, count, fill=False, **style))
    axes[-1, 0].set_xlabel(
        "step of the chunk; framed: a step of all chunks, a mini-batch"
    )
    bar = figure.colorbar(drawn, ax=axes, ticks=[-7, -5, -3, -1], label="off by")
    bar.ax.set_yticklabels(["$10^{-7}$", "$10^{-5}$", "$10^{-3}$", "0.1"])
    figure.alt = f"Errors by chunk and step. {'. '.join(titles)}."
    return figure


def memory_figure(rows: pd.DataFrame, steps: int, chunks: int) -> Figure:
    """Median sweeps over what has to be remembered, and the law."""
    figure, ax = plots.panels()
    first, last = rows["d"].min(), rows["d"].max()
    plots.ticks(ax, "x", sorted(set(rows["d"])))
    plots.ticks(ax, "y", [1, 2, 4, 8, 16, 32, 64])
    ax.set(xlim=(0.9 * first, 2 * last), ylim=(1, 1.5 * chunks), ylabel="sweeps")
    ax.set_xlabel("$d$, the steps over which the network tells the mean")
    words = f"{chunks} chunks: as many steps in a row as step by step"
    plots.level(ax, chunks, words)
    d = np.geomspace(first, last, 200)
    ax.plot(d, law(d, steps), "--", color=plots.BLACK, linewidth=1)
    place = first, 0.7 * law(first, steps)
    plots.note(ax, "dashed: the law", place, color=plots.BLACK)
    one = rows.assign(name="measured")
    plots.lines(
        ax, one, "d", "sweeps", "name", colours={"measured": plots.RED}, spread=1
    )
    ax.set_title("A longer memory costs sweeps")
    return figure


def map_figure(rows: pd.DataFrame) -> Figure:
    """How many times as fast the better number of chunks is, over units and steps."""
    gains = {}
    for key, part in rows.dropna(subset="H").groupby(["H", "T"]):
        each = intervals(ratios(part, ALONE).drop(columns=ALONE))
        gains[key] = each.loc[each["middle"].idxmax()]
    table = pd.DataFrame(gains).T["middle"].unstack()
    table.index, table.columns = table.index.astype(int), table.columns.astype(int)
    figure, ax = plots.panels(1, 0.5 * len(table) + 1.2)
    texts = table.map(lambda value: f"{digits(value)}x")
    colours = np.clip(np.log2(table), -3, 3)
    plots.heat(ax, colours, texts, cmap="PuOr", vmin=-3.5, vmax=3.5)
    ax.set(xlabel="steps $T$", ylabel="units $H$")
    faster = sum(gain["low"] > 1 for gain in gains.values())
    ax.set_title(f"Chunks are faster in {faster} of {len(gains)} cases")
    return figure

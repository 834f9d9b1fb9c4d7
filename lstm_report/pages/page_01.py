"""Page 01: the step of an LSTM as a graph, the products that wait, and how far back a
gradient reaches.
"""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

import lstm_kernels as lk
from lstm_kernels import cells, reference
from lstm_kernels.blas import single_threaded

from .. import differences, plots
from ..lesson import mistakes
from ..machines import workloads
from ..measure import results
from ..measure.comparer import TOLERANCE, compare, compare_to_reference
from ..measure.evidence import Interval, ratios
from ..measure.timing import interleaved, together
from ..measure.workloads import Workload

# Name: x, y, text, kind; the kinds differ in their boxes.
NODES = {
    "c_prev": (0.3, 5.3, "$c_{t-1}$", "value"),
    "keep": (3.7, 5.3, r"$\odot$", "operation"),
    "add": (5.7, 5.3, "+", "operation"),
    "c": (8.2, 5.3, "$c_t$", "value"),
    "c_next": (12.0, 5.3, "$c_t$", "value"),
    "put": (5.7, 4.1, r"$\odot$", "operation"),
    "tanh": (8.2, 4.1, "tanh", "operation"),
    "show": (10.4, 4.1, r"$\odot$", "operation"),
    "h": (12.0, 4.1, "$h_t$", "value"),
    "f": (3.7, 2.9, "$f_t$", "value"),
    "i": (5.7, 2.9, "$i_t$", "value"),
    "g": (8.0, 2.9, "$g_t$", "value"),
    "o": (10.4, 2.9, "$o_t$", "value"),
    "f_bar": (3.7, 1.5, r"$\bar{f}_t$", "part"),
    "i_bar": (5.7, 1.5, r"$\bar{i}_t$", "part"),
    "g_bar": (8.0, 1.5, r"$\bar{g}_t$", "part"),
    "o_bar": (10.4, 1.5, r"$\bar{o}_t$", "part"),
    "h_prev": (0.3, 1.5, "$h_{t-1}$", "value"),
    "W": (1.5, 1.5, r"$\cdot\,W$", "product"),
    "sum": (2.55, 1.5, "+", "operation"),
    "U": (2.55, 0.35, r"$\cdot\,U$", "product"),
    "x": (0.3, 0.35, "$x_t$", "value"),
}
# From, to, the derivative of the end with respect to the start, how far above the arrow
# it stands; 0: to its right.
EDGES = (
    ("h_prev", "W", "", 0),
    ("W", "sum", r"$W^\top$", 0.5),
    ("x", "U", r"$U^\top$", 0.3),
    ("U", "sum", "", 0),
    ("f_bar", "f", "$f_t(1-f_t)$", 0),
    ("i_bar", "i", "$i_t(1-i_t)$", 0),
    ("g_bar", "g", "$1-g_t^2$", 0),
    ("o_bar", "o", "$o_t(1-o_t)$", 0),
    ("c_prev", "keep", "$f_t$", 0.28),
    ("keep", "add", "1", 0.28),
    ("add", "c", "1", 0.28),
    ("c", "c_next", "1", 0.28),
    ("f", "keep", "$c_{t-1}$", 0),
    ("i", "put", "$g_t$", 0),
    ("g", "put", "$i_t$", 0),
    ("put", "add", "1", 0),
    ("c", "tanh", r"$1-\tanh^2 c_t$", 0),
    ("tanh", "show", "$o_t$", 0.28),
    ("o", "show", r"$\tanh c_t$", 0),
    ("show", "h", "1", 0.28),
)
FILL = {"value": "white", "operation": plots.YELLOW, "product": "#dddddd"}

LSTM = cells.CELLS["lstm"]
BACK = 60  # steps
# Cell, forget gate, whether W is orthogonal.
NETWORKS = {
    "LSTM, f = 0.99": ("lstm", 0.99, False),
    "LSTM, f = 0.9": ("lstm", 0.9, False),
    "RNN, orthogonal W": ("rnn", None, True),
    "LSTM, f = 0.5": ("lstm", 0.5, False),
    "RNN": ("rnn", None, False),
}
CARRIES = ("LSTM, f = 0.99", "LSTM, f = 0.9")
LOSES = ("RNN, orthogonal W", "RNN")
COLOURS = plots.RED, plots.ORANGE, plots.BLUE, plots.PURPLE, plots.BLACK


def arrow(ax, start, end, colour=plots.RED, width=2.6, **style):
    line = {"arrowstyle": "-|>", "color": colour, "linewidth": width}
    line |= {"shrinkA": 10, "shrinkB": 10, "mutation_scale": 9} | style
    ax.annotate("", end, start, arrowprops=line)


def figure_cell(backward: bool = False) -> Figure:
    """An LSTM step with x_t, h_{t-1}, U and W, the path that must wait thick; or the
    way of the gradients against its arrows, and what they are multiplied by.
    """
    figure, ax = plots.panels(1, 4.4 if backward else 3.7)
    ax.set(xlim=(-0.35, 12.5), ylim=(-1.35 if backward else -0.1, 5.8))
    ax.axis("off")
    centred = partial(ax.text, ha="center", va="center")
    ways = [(NODES[start], NODES[end], "U" in (start, end)) for start, end, *_ in EDGES]
    for (x0, y0, *_), (x1, y1, *_), thin in [*ways, (NODES["sum"], (3.1, 1.5), False)]:
        ends = [(x0, y0), (x1, y1)]
        style = (plots.GREEN if backward else plots.GREY, 1.4) if thin else ()
        dash = {"linestyle": "--" if thin and backward else "-"}
        arrow(ax, *(reversed(ends) if backward else ends), *style, **dash)
    for start, end, text, above in EDGES if backward else ():
        (x0, y0, *_), (x1, y1, *_) = NODES[start], NODES[end]
        aside = 0 if above else 0.16 + 0.15 * abs(x1 - x0)
        x, y = (x0 + x1) / 2 + aside, (y0 + y1) / 2 + above
        centred(x, y, text, color=plots.BLUE, ha="center" if above else "left")
    for x, y, text, kind in NODES.values():
        shape = "round,pad=0.3" if kind == "product" else "circle,pad=0.2"
        box = {"boxstyle": shape, "fc": FILL.get(kind), "lw": 0.8}
        centred(x, y, text, bbox=None if kind == "part" else box)
    tint: dict[str, Any] = {"fc": "#e3ecf4", "lw": 0.8, "zorder": 0.5}
    ax.add_patch(FancyBboxPatch((3.2, 1.2), 7.7, 0.6, "round,pad=0.05", **tint))
    centred(11.4, 1.5, "$da_t$" if backward else "$a_t$")
    if backward:
        line = {"linestyle": "--", "shrinkA": 0, "shrinkB": 0}
        arrow(ax, (6.9, 1.2), (6.9, 0.0), plots.GREEN, 1.4, **line)
        sums = r"$dU = \sum_t x_t^\top da_t$    $dW = \sum_t h_{t-1}^\top da_t$"
        later = f"{sums}    $dx_t = da_t U^\\top$\ncan wait until the last step is done"
        centred(6.9, -0.75, later, color=plots.GREEN)
    how = "Backward: step t - 1 waits" if backward else "Forward: step t + 1 waits"
    ax.set_title(f"{how} for the thick path")
    arrows = (
        "Arrows run from the new h and c to the old; each carries the derivative of "
        "what it leaves by what it reaches. Dashed: dU, dW and dx can wait."
        if backward
        else "Thin: x and U."
    )
    path = "along W, the gates and the cell state"
    figure.alt = f"One LSTM step as a graph. {how} for the thick path, {path}. {arrows}"
    return figure


def one_layer(T: int, B: int, D: int, H: int, product=np.matmul):
    """An LSTM layer that ran forward and backward: (Layer, Tape, dy, its gradient)."""
    draw = np.random.default_rng(0).standard_normal
    layer = lk.Layer(draw((D, 4 * H)), draw((H, 4 * H)), draw(4 * H))
    x, dy, zero = draw((T, B, D)), draw((T, B, H)), np.zeros((B, H))
    tape = reference.layer_forward(LSTM, layer, x, zero, zero, product=product)
    back = reference.layer_backward(LSTM, layer, tape, dy, zero, zero, product=product)
    return layer, tape, dy, back[0]


def share_waiting(D: int, H: int, T: int = 4, B: int = 3) -> float:
    """The share of the backward pass's multiply-adds that must wait, by count."""
    counts = []

    def counted(a, b):
        counts.append(a.size * b.shape[1])
        return a @ b

    one_layer(T, B, D, H, product=counted)
    backward = counts[1 + T :]  # after x U, and h W of T steps
    assert sum(backward) == T * B * 8 * H * (D + H)
    assert sum(backward[:T]) == T * B * 4 * H * H  # in the loop: da_t W'
    return sum(backward[:T]) / sum(backward)


def measure_waiting(T, B, H, repeats):
    """Time dh step by step, dW step by step, and dW as one product, on one thread."""
    draw = np.random.default_rng(0).standard_normal
    h, da, W = (
        draw(s).astype(np.float32) for s in ((T, B, H), (T, B, 4 * H), (H, 4 * H))
    )
    dh, each, part, once = (np.empty_like(a) for a in (h, W, W, W))

    def wait():
        for t in reversed(range(T)):
            np.matmul(da[t], W.T, out=dh[t])

    def step_by_step():
        each[:] = 0
        for t in range(T):
            np.add(each, np.matmul(h[t].T, da[t], out=part), out=each)

    def at_once():
        np.matmul(h.reshape(T * B, H).T, da.reshape(T * B, 4 * H), out=once)

    cases = {"dh": wait, "dW each step": step_by_step, "dW at once": at_once}
    with single_threaded():
        rows = interleaved(cases, repeats=repeats)
    compare({"dW": each}, {"dW": once}, TOLERANCE[h.dtype])
    return rows


def faster(rows, than: str) -> Interval:
    """How many times faster dW as one product is than a case, over processes."""
    return Interval.of(ratios(rows, than)["dW at once"])


def errors(kinds, steps: int, slips=()) -> list[float]:
    """The largest errors of gradients against central differences: of each kind of
    cell, then of an LSTM whose forward pass has each slip.
    """
    rng = np.random.default_rng(0)
    how = [(kind, reference.layer_forward) for kind in kinds]
    how += [("lstm", mistakes.layer_forward_of(slip)) for slip in slips]
    cases = (differences.case(kind, steps, rng, forward) for kind, forward in how)
    return [differences.error(*case) for case in cases]


def check_errors(right, wrong, limits=(1e-6, 0.01)) -> None:
    """AssertionError unless right gradients err by less than the first limit, wrong
    ones by more than the second.
    """
    assert max(right) < limits[0], f"got errors {right}, want less than {limits[0]}"
    for error in wrong:
        assert error > limits[1], f"got an error of {error}, want more: it is a slip"


def in_every_version(kind: Any) -> dict[str, float]:
    """Two layers of a cell, forward and backward, in each version that can run here:
    the largest relative errors by name; MismatchError beyond a tolerance.
    """
    x = np.random.default_rng(0).standard_normal((5, 3, 3)).astype(np.float32)
    params = lk.Params.init(3, 8, num_layers=2, cell=kind)
    names: list[Any] = [v.name for v in lk.versions() if not v.why_unavailable]
    return {name: compare_to_reference(name, params, x) for name in names}


def reach(cell, f, orthogonal, seed, *, alone=False, H=32) -> np.ndarray:
    """The norm of dx for each number of steps back, as a share of the first: (BACK +
    1,). alone: W is zero.
    """
    rng = np.random.default_rng(seed)
    params = lk.Params.init(H, H, cell=cell, seed=seed, dtype=np.float64)
    layer = params.layers[0]
    if f is not None:
        layer.b[H : 2 * H] = np.log(f / (1 - f))
    if orthogonal:
        layer.W[:] = np.linalg.qr(layer.W)[0]
    layer.W[:] *= not alone
    x, dy = rng.standard_normal((BACK + 1, 1, H)), np.zeros((BACK + 1, 1, H))
    dy[-1] = rng.standard_normal(H)
    *_, tapes = reference.forward(params, x)
    norms = np.linalg.norm(reference.backward(params, tapes, dy).x, axis=(1, 2))[::-1]
    return norms / norms[0]


def shares(seeds: int, *, alone: bool = False) -> dict[str, np.ndarray]:
    """Network -> what is left of a gradient, (seeds, BACK + 1); with `alone` of the
    LSTMs without W, where the cell state is the only path.
    """
    return {
        name: np.array([reach(*how, seed, alone=alone) for seed in range(seeds)])
        for name, how in NETWORKS.items()
        if how[0] == "lstm" or not alone
    }


def left(shares, names) -> Interval:
    """What is left after BACK steps, over the seeds of these networks."""
    return Interval.of(np.concatenate([shares[name][:, -1] for name in names]))


def power(value: float) -> str:
    """A small number as a multiple of a power of ten, for a sentence."""
    digits, exponent = f"{value:.1e}".split("e")
    return f"${digits} \\times 10^{{{int(exponent)}}}$"


def a_step(shares, alone) -> pd.DataFrame:
    """What a step back multiplies the gradient by, from the first step back on: medians
    of the seeds with their ends, a row a network, without W and with it.
    """

    def told(by_seed):
        rates = (by_seed[:, -1] / by_seed[:, 1]) ** (1 / (BACK - 1))
        return str(Interval.of(rates))

    table = {
        name: {
            "along the cell state alone": told(alone[name]) if name in alone else "",
            "along all paths": told(by_seed),
        }
        for name, by_seed in shares.items()
    }
    return pd.DataFrame.from_dict(table, orient="index").rename_axis("network")


def figure_reach(shares, alone, lost: float) -> Figure:
    """shares, alone: name -> (seeds, steps back); medians over the seeds, and the range
    of the first; alone dashed. lost: the limit.
    """
    figure, ax = plots.panels(1, 3.9)
    ax.set(yscale="log", ylim=(1e-24, 1e3), xlim=(0, BACK * 1.5))
    ax.set(xlabel="steps back", ylabel="norm of $dx_t$ (share of the last)")
    ax.set_xticks(range(0, BACK + 1, 10))
    plots.level(ax, lost)
    plots.note(ax, "lost in a\nfloat32 sum", (1, lost), (0, -27))
    ends = []
    for (name, by_seed), colour in zip(shares.items(), COLOURS, strict=True):
        middle, back = np.median(by_seed, axis=0), np.arange(BACK + 1)
        low, high = by_seed.min(axis=0), by_seed.max(axis=0)
        ax.fill_between(back, low, high, color=colour, alpha=0.2)
        ax.plot(back, middle, color=colour)
        if name in alone:
            ax.plot(back, np.median(alone[name], axis=0), "--", color=colour, lw=1.2)
        ends.append((BACK, middle[-1], name, colour))
    plots.label_lines(ax, ends)
    ax.set_title(f"The cell state carries a gradient {BACK} steps; an RNN loses it")
    return figure


def measure_fading(steps, B, D, H, repeats):
    """Time the gradients of an LSTM over sequences of so many steps, on one thread,
    with subnormal numbers kept and flushed to zero.
    """
    parts = []
    for T in steps:
        work = Workload(L=1, T=T, D=D, H=H, B=B)
        (x, target), params, cases = work.example(), work.params(), {}
        for case in ("kept", "flushed"):
            how = {"threads": 1, "subnormals": case == "kept"}
            net = lk.network("numba-fused", params, **how)
            cases[case] = partial(net.loss_and_grads, x, target)
        kept, flushed = (call()[1].arrays() for call in cases.values())
        for name in params.arrays():  # those of the initial state have faded
            compare({name: flushed[name]}, {name: kept[name]}, TOLERANCE[x.dtype])
        parts.append(interleaved(cases, repeats=repeats).assign(T=T))
    return together(parts)


def figure_fading(rows) -> Figure:
    """Microseconds of a time step over the length of a sequence, kept and flushed."""
    figure, ax = plots.panels(1, 3.2)
    rows = rows.assign(us=1e6 * rows["seconds"] / rows["T"])
    ax.set(xlabel="steps of a sequence", ylabel="gradients, a step (µs)")
    most = rows.groupby(["T", "case"])["us"].quantile(0.75).max()  # the ends of bars
    ax.set(xlim=(0, 1.35 * rows["T"].max()), ylim=(0, 1.2 * most))
    names = {"kept": "subnormal kept", "flushed": "flushed to zero"}
    plots.lines(ax, rows, "T", "us", "case", names=names)
    ax.set_title("What subnormal numbers cost on this processor")
    return figure


def recorded_fading(rows) -> pd.DataFrame:
    """How many forward passes a training step of PyTorch's takes, by machine, for 500
    steps and for 100. rows: as of `results.recorded`, of other packages.
    """
    table: dict[str, dict[str, Any]] = {}
    for stage in ("forward", "step"):
        for name, part in workloads(rows, stage):
            if name in ("middle", "deep, one sample"):
                peer = part[part["version"] == "pytorch"]
                taken = peer.groupby("machine")["seconds"].median()
                table.setdefault(name, {})[stage] = taken
    shown = pd.DataFrame(
        {name: of["step"] / of["forward"] for name, of in table.items()}
    )
    shown.index = [
        results.label(results.record("peers", name) | {"recorded": False})
        for name in shown.index
    ]
    columns = {"middle": "100 steps", "deep, one sample": "500 steps"}
    return shown.rename(columns=columns).rename_axis("PyTorch on")

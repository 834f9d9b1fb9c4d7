"""Page 01: the step of an LSTM as a graph, the products that wait, and how far back a
gradient reaches.
"""

from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

import lstm_kernels as lk
from lstm_kernels import cells, reference
from lstm_kernels.blas import single_threaded

from .. import differences, plots
from ..lesson import mistakes
from ..measure.comparer import TOLERANCE, compare, compare_to_reference
from ..measure.evidence import Interval, ratios
from ..measure.timing import interleaved

# Name: x, y, text, kind; the kinds differ in their boxes.
NODES = {
    "c_prev": (0.3, 5.3, "$c_{t-1}$", "value"),
    "keep": (3.3, 5.3, r"$\odot$", "operation"),
    "add": (5.3, 5.3, "+", "operation"),
    "c": (7.8, 5.3, "$c_t$", "value"),
    "c_next": (12.0, 5.3, "$c_t$", "value"),
    "put": (5.3, 4.1, r"$\odot$", "operation"),
    "tanh": (7.8, 4.1, "tanh", "operation"),
    "show": (10.2, 4.1, r"$\odot$", "operation"),
    "h": (12.0, 4.1, "$h_t$", "value"),
    "f": (3.3, 2.9, "$f_t$", "value"),
    "i": (5.3, 2.9, "$i_t$", "value"),
    "g": (7.5, 2.9, "$g_t$", "value"),
    "o": (10.2, 2.9, "$o_t$", "value"),
    "h_prev": (0.3, 1.5, "$h_{t-1}$", "value"),
    "W": (1.55, 1.5, r"$\cdot\,W$", "product"),
    "sum": (2.65, 1.5, "+", "operation"),
    "U": (2.65, 0.45, r"$\cdot\,U$", "product"),
    "x": (0.3, 0.45, "$x_t$", "value"),
}
# From, to, the derivative of the end with respect to the start, how far above the arrow
# it stands; 0: to its right.
WAITING = (
    ("h_prev", "W", "", 0),
    ("W", "sum", r"$W^\top$", 0.45),
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
GATES = {
    "f": "$f_t(1-f_t)$",
    "i": "$i_t(1-i_t)$",
    "g": "$1-g_t^2$",
    "o": "$o_t(1-o_t)$",
}
FILL = {"value": "white", "operation": plots.YELLOW, "product": "#dddddd"}

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


def figure_cell() -> Figure:
    """An LSTM step with x_t, h_{t-1}, U and W; the path that must wait is thick."""
    figure, ax = plt.subplots(figsize=(plots.WIDTH, 4.4))
    ax.set(xlim=(-0.35, 12.5), ylim=(-1.35, 5.8))
    ax.axis("off")
    centred = partial(ax.text, ha="center", va="center")
    for start, end, text, above in WAITING:
        (x0, y0, *_), (x1, y1, *_) = NODES[start], NODES[end]
        arrow(ax, (x0, y0), (x1, y1))
        aside = 0 if above else 0.16 + 0.15 * abs(x1 - x0)
        x, y = (x0 + x1) / 2 + aside, (y0 + y1) / 2 + above
        centred(x, y, text, color=plots.BLUE, ha="center" if above else "left")
    for gate, text in GATES.items():
        x, y, *_ = NODES[gate]
        arrow(ax, (x, 1.75), (x, y), shrinkA=0)
        centred(x + 0.16, 2.2, text, color=plots.BLUE, ha="left")
        centred(x, 1.5, rf"$\bar{{{gate}}}_t$")
    arrow(ax, (2.65, 1.5), (3.0, 1.5), shrinkB=0)
    for start, end in (("x", "U"), ("U", "sum")):
        arrow(ax, NODES[start][:2], NODES[end][:2], plots.GREY, 1.2)
    centred(1.4, 0.75, r"$U^\top$", color=plots.BLUE)
    for x, y, text, kind in NODES.values():
        shape = "round,pad=0.3" if kind == "product" else "circle,pad=0.2"
        centred(x, y, text, bbox={"boxstyle": shape, "fc": FILL[kind], "lw": 0.8})
    bar = FancyBboxPatch((3.0, 1.25), 7.7, 0.5, "round,pad=0.03", fc="none", lw=0.8)
    ax.add_patch(bar)
    centred(11.1, 1.5, "$a_t$")
    line = {"linestyle": "--", "shrinkA": 0, "shrinkB": 0}
    arrow(ax, (6.6, 1.2), (6.6, -0.05), plots.GREEN, 1.4, **line)
    sums = r"$dU = \sum_t x_t^\top da_t$    $dW = \sum_t h_{t-1}^\top da_t$"
    later = f"{sums}    $dx_t = da_t U^\\top$\ncan wait until the last step is done"
    centred(6.6, -0.75, later, color=plots.GREEN)
    ax.set_title("Thick: each step waits for this path, forward and backward")
    figure.alt = (  # type: ignore[attr-defined]
        "One LSTM step as a graph. Thick: from the old h through W into the "
        "pre-activations and the gates, along the cell state, to the new h and c. "
        "Thin: x through U. Dashed: the sums dU and dW and the gradient dx, which can "
        "wait. Each arrow carries the derivative of its end by its start."
    )
    return figure


def share_waiting(D: int, H: int) -> float:
    """The share of the backward pass's multiply-adds that must wait."""
    return H / (2 * (D + H))


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


def in_every_version(kind: str) -> dict[str, float]:
    """The largest relative error of each version that can run here, forward and
    backward, of two layers of a cell; MismatchError beyond a tolerance.
    """
    x = np.random.default_rng(0).standard_normal((5, 3, 3)).astype(np.float32)
    params = lk.Params.init(3, 8, num_layers=2, cell=kind)
    can = [v.name for v in lk.versions() if not v.why_unavailable]
    return {name: compare_to_reference(name, params, x) for name in can}


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


def figure_reach(shares, alone, lost: float, held: bool) -> Figure:
    """shares, alone: name -> (seeds, steps back); medians over the seeds, and the range
    of the first; alone dashed. lost: the limit.
    """
    figure, ax = plt.subplots(figsize=(plots.WIDTH, 3.9))
    ax.set(yscale="log", ylim=(1e-24, 1e3), xlim=(0, BACK * 1.5))
    ax.set(xlabel="steps back", ylabel="norm of $dx_t$ (of the last step's)")
    ax.set_xticks(range(0, BACK + 1, 10))
    plots.level(ax, lost)
    size = plt.rcParams["font.size"]
    plots.note(ax, "lost in a\nfloat32 sum", (1, lost), (0, -27), fontsize=size)
    ends = []
    for (name, by_seed), colour in zip(shares.items(), COLOURS, strict=True):
        middle, back = np.median(by_seed, axis=0), np.arange(BACK + 1)
        low, high = by_seed.min(axis=0), by_seed.max(axis=0)
        ax.fill_between(back, low, high, color=colour, alpha=0.2)
        ax.plot(back, middle, color=colour)
        if name in alone:
            ax.plot(back, np.median(alone[name], axis=0), "--", color=colour, lw=1.2)
        ends.append((BACK, middle[-1], name, colour))
    plots.label_lines(ax, ends, fontsize=size)
    carried = f"The cell state carries a gradient {BACK} steps; an RNN loses it"
    other = f"After {BACK} steps cell state and RNN are on one side of the limit"
    ax.set_title(carried if held else other)
    return figure

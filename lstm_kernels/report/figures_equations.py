"""The figures of notebook 01."""

import matplotlib.pyplot as plt
import numpy as np

from . import plots

ARROW = {"arrowstyle": "->", "shrinkA": 17, "shrinkB": 18}
# Name: (x, y, what is written in it); an operation has no letter of its own.
LSTM_NODES = {
    "c_prev": (0, 4, "c_{t-1}"),
    "keep": (2, 4, r"\odot"),
    "add": (4.5, 4, "+"),
    "c": (6.6, 4, "c_t"),
    "next": (10.2, 4, "c_t"),
    "put": (4.5, 2.9, r"\odot"),
    "tanh": (6.6, 2.9, r"\tanh"),
    "show": (8.4, 2.9, r"\odot"),
    "h": (10.2, 2.9, "h_t"),
    "f": (2, 1.8, "f_t"),
    "i": (3.7, 1.8, "i_t"),
    "g": (5.3, 1.8, "g_t"),
    "o": (8.4, 1.8, "o_t"),
    "f_bar": (2, 0.6, r"\bar{f}_t"),
    "i_bar": (3.7, 0.6, r"\bar{i}_t"),
    "g_bar": (5.3, 0.6, r"\bar{g}_t"),
    "o_bar": (8.4, 0.6, r"\bar{o}_t"),
}
RNN_NODES = {
    "h_prev": (0, 4, "h_{t-1}"),
    "W": (2, 4, r"\cdot W"),
    "add": (4.5, 4, "+"),
    "h_bar": (6.6, 4, r"\bar{h}_t"),
    "h": (8.4, 4, "h_t"),
    "next": (10.2, 4, "h_t"),
    "xU": (4.5, 2.8, "x_tU"),
}

# From, to, derivative of the end with respect to the start.
LSTM_EDGES = [
    ("f_bar", "f", "f_t(1-f_t)"),
    ("i_bar", "i", "i_t(1-i_t)"),
    ("g_bar", "g", "1-g_t^2"),
    ("o_bar", "o", "o_t(1-o_t)"),
    ("c_prev", "keep", "f_t"),
    ("f", "keep", "c_{t-1}"),
    ("i", "put", "g_t"),
    ("g", "put", "i_t"),
    ("keep", "add", "1"),
    ("put", "add", "1"),
    ("add", "c", "1"),
    ("c", "next", "1"),
    ("c", "tanh", r"1-\tanh^2c_t"),
    ("tanh", "show", "o_t"),
    ("o", "show", r"\tanh\,c_t"),
    ("show", "h", "1"),
]
RNN_EDGES = [
    ("h_prev", "W", r"W^\top"),
    ("W", "add", "1"),
    ("xU", "add", "1"),
    ("add", "h_bar", "1"),
    ("h_bar", "h", "1-h_t^2"),
    ("h", "next", "1"),
]


def cells():
    """A step of an LSTM and of an RNN as graphs, each arrow with its derivative."""
    figure, (lstm, rnn) = plt.subplots(2, 1, figsize=(9, 6.6), height_ratios=(4.2, 1.9))
    _graph(lstm, LSTM_NODES, LSTM_EDGES)
    _graph(rnn, RNN_NODES, RNN_EDGES)
    lstm.set_title("LSTM: back along the top row a gradient is multiplied by $f_t$ alone")
    rnn.set_title("RNN: back along the top row it is multiplied by $1-h_t^2$ and by $W^\\top$")
    figure.alt = (
        "Graph of an LSTM step, from the pre-activations and the old cell state to h and c, above "
        "that of an RNN step, from the old h through W to the new; each arrow carries its "
        "derivative in red."
    )
    return figure


def _graph(ax, nodes, edges):
    for x, y, text in nodes.values():
        box = {"boxstyle": "circle,pad=0.3", "fc": "white" if "_" in text else plots.YELLOW}
        ax.text(x, y, f"${text}$", ha="center", va="center", bbox=box)
    for start, end, factor in edges:
        (x0, y0, _), (x1, y1, _) = nodes[start], nodes[end]
        ax.annotate("", (x1, y1), (x0, y0), arrowprops=ARROW)
        place = (x0 + x1) / 2 + 0.1 * (y0 != y1), (y0 + y1) / 2 + 0.18 * (y0 == y1)
        ha = "center" if y0 == y1 else "left"
        ax.text(*place, f"${factor}$", color=plots.RED, ha=ha, va="center")
    ax.set(xlim=(-0.4, 10.6), ylim=(min(y for _, y, _ in nodes.values()) - 0.4, 4.4))
    ax.axis("off")


def gradient_check(sizes, errors):
    """The error of each kind of difference against the size of its step."""
    figure, ax = plt.subplots(figsize=(8, 4.4))
    ax.set(xlabel=r"step $\eta$", ylabel="largest error of $dW$, relative")
    ax.set(xscale="log", yscale="log", xlim=(0.2, 0.5 * sizes[-1]))
    plots.lines(ax, {name: (sizes, values) for name, values in errors.items()}, marker="o")
    best = sizes[np.argmin(errors["central"])]
    ax.set_title(f"A central difference is most exact at a step of {best:.0e}")
    return figure


def reach(measured, powers):
    """What is left of a gradient by steps back: measured (T,) by name, and f^n dashed, by name."""
    figure, ax = plt.subplots(figsize=(8, 4.6))
    ax.set(xlabel="steps back, $n$", ylabel="norm of $dx_t$, relative", yscale="log")
    ax.set(ylim=(1e-40, 1e6))
    plots.lines(ax, {name: (np.arange(len(left)), left) for name, left in measured.items()})
    for line, name in zip(ax.lines[: len(measured)], measured, strict=True):
        ax.plot(powers.get(name, []), color=line.get_color(), linestyle="--", linewidth=1)
    ratios = [measured[name][-1] / left[-1] for name, left in powers.items()]
    finding = f"a gradient is {min(ratios):.0e} to {max(ratios):.0e} times $f^n$"
    ax.set_title(f"After {len(measured[name]) - 1} steps {finding} (dashed)")
    return figure


def slips(states):
    """The cell state (T,) of one unit over the steps, by the function that makes g."""
    figure, ax = plt.subplots(figsize=(8, 3.8))
    ax.set(xlabel="step", ylabel="cell state $c_t$")
    plots.lines(ax, {f"g with {name}": (np.arange(len(c)), c) for name, c in states.items()})
    falls = [f"in {np.mean(np.diff(c) < 0):.0%} with {name}" for name, c in states.items()]
    ax.set_title(f"Steps in which the cell state falls: {', '.join(falls)}")
    return figure

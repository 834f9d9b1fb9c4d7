"""The figures of notebook 01."""

import matplotlib.pyplot as plt
import numpy as np

from . import plots

ARROW = {"arrowstyle": "->", "shrinkA": 17, "shrinkB": 18}
# Name: x, y, what is written there, and what leads there, with the derivative of its
# end with respect to its start; an operation has no letter of its own.
LSTM = {
    "c_prev": (0, 4, "c_{t-1}", {}),
    "f_bar": (2, 0.6, r"\bar{f}_t", {}),
    "i_bar": (3.7, 0.6, r"\bar{i}_t", {}),
    "g_bar": (5.3, 0.6, r"\bar{g}_t", {}),
    "o_bar": (8.4, 0.6, r"\bar{o}_t", {}),
    "f": (2, 1.8, "f_t", {"f_bar": "f_t(1-f_t)"}),
    "i": (3.7, 1.8, "i_t", {"i_bar": "i_t(1-i_t)"}),
    "g": (5.3, 1.8, "g_t", {"g_bar": "1-g_t^2"}),
    "o": (8.4, 1.8, "o_t", {"o_bar": "o_t(1-o_t)"}),
    "keep": (2, 4, r"\odot", {"c_prev": "f_t", "f": "c_{t-1}"}),
    "put": (4.5, 2.9, r"\odot", {"i": "g_t", "g": "i_t"}),
    "add": (4.5, 4, "+", {"keep": "1", "put": "1"}),
    "c": (6.6, 4, "c_t", {"add": "1"}),
    "next": (10.2, 4, "c_t", {"c": "1"}),
    "tanh": (6.6, 2.9, r"\tanh", {"c": r"1-\tanh^2c_t"}),
    "show": (8.4, 2.9, r"\odot", {"tanh": "o_t", "o": r"\tanh\,c_t"}),
    "h": (10.2, 2.9, "h_t", {"show": "1"}),
}
RNN = {
    "h_prev": (0, 4, "h_{t-1}", {}),
    "xU": (4.5, 2.8, "x_tU", {}),
    "W": (2, 4, r"\cdot W", {"h_prev": r"W^\top"}),
    "add": (4.5, 4, "+", {"W": "1", "xU": "1"}),
    "h_bar": (6.6, 4, r"\bar{h}_t", {"add": "1"}),
    "h": (8.4, 4, "h_t", {"h_bar": "1-h_t^2"}),
    "next": (10.2, 4, "h_t", {"h": "1"}),
}
TOP_ROW = {
    "LSTM: back along the top row a gradient is multiplied by $f_t$ alone": LSTM,
    "RNN: back along the top row it is multiplied by $1-h_t^2$ and by $W^\\top$": RNN,
}


def cells():
    """A step of an LSTM and of an RNN as graphs, each arrow with its derivative."""
    figure, axes = plt.subplots(2, figsize=(9, 6.6), height_ratios=(4.2, 1.9))
    for ax, (title, nodes) in zip(axes, TOP_ROW.items(), strict=True):
        for x, y, text, before in nodes.values():
            box = {
                "boxstyle": "circle,pad=0.3",
                "fc": "white" if "_" in text else plots.YELLOW,
            }
            ax.text(x, y, f"${text}$", ha="center", va="center", bbox=box)
            for start, factor in before.items():
                x0, y0, *_ = nodes[start]
                ax.annotate("", (x, y), (x0, y0), arrowprops=ARROW)
                place = (x0 + x) / 2 + 0.1 * (y0 != y), (y0 + y) / 2 + 0.18 * (y0 == y)
                ha = "center" if y0 == y else "left"
                ax.text(*place, f"${factor}$", color=plots.RED, ha=ha, va="center")
        ax.set(
            xlim=(-0.4, 10.6), ylim=(min(y for _, y, *_ in nodes.values()) - 0.4, 4.4)
        )
        ax.set_title(title)
        ax.axis("off")
    figure.alt = (
        "Graph of an LSTM step, from the pre-activations and the old cell state to h "
        "and c, above that of an RNN step, from the old h through W to the new; each "
        "arrow carries its derivative in red."
    )
    return figure


def gradient_check(sizes, errors):
    """The error of each kind of difference against the size of its step."""
    figure, ax = plt.subplots(figsize=(8, 4.4))
    ax.set(xlabel=r"step $\eta$", ylabel="largest error of $dW$, relative")
    ax.set(xscale="log", yscale="log", xlim=(0.2, 0.5 * sizes[-1]))
    plots.lines(
        ax, {name: (sizes, values) for name, values in errors.items()}, marker="o"
    )
    best = sizes[np.argmin(errors["central"])]
    ax.set_title(f"A central difference is most exact at a step of {best:.0e}")
    return figure


def reach(measured, powers):
    """What is left of a gradient by steps back: measured (T,) by name, and f^n dashed,
    by name.
    """
    figure, ax = plt.subplots(figsize=(8, 4.6))
    ax.set(xlabel="steps back, $n$", ylabel="norm of $dx_t$, relative", yscale="log")
    ax.set(ylim=(1e-40, 1e6))
    plots.lines(
        ax, {name: (np.arange(len(left)), left) for name, left in measured.items()}
    )
    for line, name in zip(ax.lines[: len(measured)], measured, strict=True):
        ax.plot(
            powers.get(name, []), color=line.get_color(), linestyle="--", linewidth=1
        )
    ratios = [measured[name][-1] / left[-1] for name, left in powers.items()]
    finding = f"a gradient is {min(ratios):.0e} to {max(ratios):.0e} times $f^n$"
    ax.set_title(f"After {len(measured[name]) - 1} steps {finding} (dashed)")
    return figure


def slips(states):
    """The cell state (T,) of one unit over the steps, by the function that makes g."""
    figure, ax = plt.subplots(figsize=(8, 3.8))
    ax.set(xlabel="step", ylabel="cell state $c_t$")
    plots.lines(
        ax, {f"g with {name}": (np.arange(len(c)), c) for name, c in states.items()}
    )
    falls = [
        f"in {np.mean(np.diff(c) < 0):.0%} with {name}" for name, c in states.items()
    ]
    ax.set_title(f"Steps in which the cell state falls: {', '.join(falls)}")
    return figure

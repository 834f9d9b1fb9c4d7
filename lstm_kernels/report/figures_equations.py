"""The figures of notebook 01. Each has an attribute `alt`, which says in words what it shows."""

import matplotlib.pyplot as plt

from . import plots
from .plots import ARROW

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


def lstm_cell():
    """One step of an LSTM as a graph, each arrow with its derivative."""
    figure, ax = plt.subplots(figsize=(9, 4.8))
    for x, y, text in LSTM_NODES.values():
        box = {"boxstyle": "circle,pad=0.3", "fc": "white" if "_" in text else plots.YELLOW}
        ax.text(x, y, f"${text}$", ha="center", va="center", bbox=box)
    for start, end, factor in LSTM_EDGES:
        (x0, y0, _), (x1, y1, _) = LSTM_NODES[start], LSTM_NODES[end]
        ax.annotate("", (x1, y1), (x0, y0), arrowprops=ARROW)
        place = (x0 + x1) / 2 + 0.1 * (y0 != y1), (y0 + y1) / 2 + 0.18 * (y0 == y1)
        ha = "center" if y0 == y1 else "left"
        ax.text(*place, f"${factor}$", color=plots.RED, ha=ha, va="center")
    ax.set(xlim=(-0.4, 10.6), ylim=(0.2, 4.4))
    ax.set_title("Gradients go back, multiplied by the red labels")
    ax.axis("off")
    figure.alt = (
        "Graph of an LSTM step, from the pre-activations and the old cell state to h and c; each "
        "arrow carries its derivative in red."
    )
    return figure

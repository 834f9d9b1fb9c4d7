"""The recurrent cells, each written once: forward and hand-derived backward.

A cell is a function of its pre-activations and of `c_prev`, what the previous step
hands over without passing through W: the cell state of an LSTM, the hidden state itself
for a GRU and an RNN. `tanh` and `sigmoid` are passed in, so the same text runs on NumPy
arrays, on Python floats, compiled by Numba for a CPU or a GPU, or traced into vector
code.

    forward(*pre_activations, c_prev)              -> (*gates, h, c)
    backward(dh, dc, *gates, c_prev, c)            -> (*d_pre_activations, dc_prev)

`gates` are what backward needs of the step; there are as many as pre-activations, so a
target may write them over those. `dh` is the whole gradient of h, `dc` that of c
without the part through h.

The functions hold no numeric constant: in compiled code `1 - s * s` would turn float32
into float64, `d - d * s * s` does not.
"""

from collections.abc import Callable
from dataclasses import dataclass


def rnn(tanh, sigmoid):
    """h = tanh(h_bar) (Elman 1990)."""

    def forward(h_bar, c_prev):
        h = tanh(h_bar)
        return h, h, h

    def backward(dh, dc, h, c_prev, c):
        return dh - dh * h * h, dc  # dc is zero: an RNN hands nothing past W

    return forward, backward


def lstm(tanh, sigmoid):
    """c = f c_prev + i g, h = o tanh(c) (Hochreiter & Schmidhuber 1997; Gers et al.
    2000).
    """

    def forward(i_bar, f_bar, g_bar, o_bar, c_prev):
        i, f, o = sigmoid(i_bar), sigmoid(f_bar), sigmoid(o_bar)
        g = tanh(g_bar)
        c = f * c_prev + i * g
        return i, f, g, o, o * tanh(c), c

    def backward(dh, dc, i, f, g, o, c_prev, c):
        tanh_c = tanh(c)
        do, dtanh_c = dh * tanh_c, dh * o
        dc = dc + dtanh_c - dtanh_c * tanh_c * tanh_c
        di, df, dg = dc * g, dc * c_prev, dc * i
        return (
            (di - di * i) * i,
            (df - df * f) * f,
            dg - dg * g * g,
            (do - do * o) * o,
            dc * f,
        )

    return forward, backward


def gru(tanh, sigmoid):
    """h = (1 - z) n + z h_prev, reset gate after the recurrent product (Cho et al.
    2014, v1).
    """

    def forward(r_bar, z_bar, n_bar, hn_bar, h_prev):
        r, z = sigmoid(r_bar), sigmoid(z_bar)
        n = tanh(n_bar + r * hn_bar)
        h = n + z * (h_prev - n)
        return r, z, n, hn_bar, h, h

    def backward(dh, dc, r, z, n, hn_bar, h_prev, h):
        dh = dh + dc
        dz, dn = dh * (h_prev - n), dh - dh * z
        dn_bar = dn - dn * n * n
        dr = dn_bar * hn_bar
        return (dr - dr * r) * r, (dz - dz * z) * z, dn_bar, dn_bar * r, dh * z

    return forward, backward


@dataclass(frozen=True)
class Cell:
    """A cell and where its pre-activations come from.

    gates: names of the pre-activations, in the order of the bias blocks. input_gates,
    recurrent_gates: which of them U and W feed, in the order of their blocks. state:
    the arrays a user sees as the state, ("h",) where `c_prev` is h itself. make:
    `make(tanh, sigmoid)` returns (forward, backward). torch: the class of torch.nn that
    computes it, whose state_dict `Params.from_torch` reads; None where there is none.
    """

    name: str
    gates: tuple[str, ...]
    input_gates: tuple[int, ...]
    recurrent_gates: tuple[int, ...]
    state: tuple[str, ...]
    make: Callable
    torch: str | None = None


# The one place where gate order is written down; it is PyTorch's.
CELLS = {
    "rnn": Cell("rnn", ("h",), (0,), (0,), ("h",), rnn, "RNN"),
    "lstm": Cell(
        "lstm",
        ("i", "f", "g", "o"),
        input_gates=(0, 1, 2, 3),
        recurrent_gates=(0, 1, 2, 3),
        state=("h", "c"),
        make=lstm,
        torch="LSTM",
    ),
    "gru": Cell(
        "gru",
        ("r", "z", "n", "hn"),
        input_gates=(0, 1, 2),
        recurrent_gates=(0, 1, 3),
        state=("h",),
        make=gru,
        torch="GRU",
    ),
}


def sigmoid_of(tanh):
    """The logistic function from `tanh`: it never overflows, in floats or arrays."""

    def sigmoid(x):
        return 0.5 * tanh(0.5 * x) + 0.5

    return sigmoid

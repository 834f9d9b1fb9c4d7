"""Keras's layers and order of gates for the parameters of a network; Keras is not
needed.

`get_weights` of a layer gives its kernel (D, G*H), recurrent kernel (H, G*H) and, with
`use_bias`, its bias: (G*H,), or (2, G*H) of a GRU, which has one beside each product.
"""

import numpy as np

from .cells import CELLS
from .errors import check_array, check_type

# Of each class the cell, and for each block of ours the number of Keras's.
CLASSES = {
    "SimpleRNN": ("rnn", [0]),
    "LSTM": ("lstm", [0, 1, 2, 3]),  # i, f, c, o
    "GRU": ("gru", [1, 0, 2]),  # z, r, h
}
# What the cells compute, where a layer can be made otherwise.
HELD = {
    "activation": "tanh",
    "recurrent_activation": "sigmoid",
    "reset_after": True,
    "go_backwards": False,
}
LAYER = f"a layer of Keras ({', '.join(CLASSES)}) or the arrays of its get_weights()"
WITHOUT_WEIGHTS = ("InputLayer", "Dropout")  # and without effect in inference


def read(layers, readout=None):
    """The arrays by the names of `Params.arrays`, and the cell; see
    `Params.from_keras`.
    """
    if len(layers) == 1 and _is(layers[0], "Sequential"):
        layers, readout = _split(layers[0], readout)
    if not layers:
        raise ValueError(f"layers: got none, want {LAYER}")
    named, D, H, dtype, kind = {}, "D", None, None, None
    for index, layer in enumerate(layers):
        name, below = f"layers[{index}]", kind
        kind, arrays = _layer(name, layer, last=index == len(layers) - 1)
        if below not in (None, kind):
            raise ValueError(f"{name}: got {kind} above {below}, want one cell")
        cell, order = CELLS[CLASSES[kind][0]], CLASSES[kind][1]
        G = len(order)
        if H is None:
            H = len(check_array(f"{name} recurrent", arrays[1], ("H", f"{G}*H")))
        W = check_array(f"{name} recurrent", arrays[1], (H, G * H), dtype=dtype)
        dtype = W.dtype
        U = check_array(f"{name} kernel", arrays[0], (D, G * H), dtype=dtype)
        b = np.zeros((len(cell.gates), H), dtype)
        if len(arrays) == 3:
            two = kind == "GRU"
            bias, shape = f"{name} bias", (2, G * H) if two else (G * H,)
            if two:
                bias += " (of reset_after=True)"
            bias = check_array(bias, arrays[2], shape, dtype=dtype).reshape(-1, G * H)
            sides = _ours(bias, order).reshape(-1, G, H)
            b[[*cell.input_gates]] += sides[0]
            if two:
                b[[*cell.recurrent_gates]] += sides[1]
        parts = {"U": _ours(U, order), "W": _ours(W, order), "b": b.reshape(-1)}
        named |= {f"layers.{index}.{part}": a for part, a in parts.items()}
        D = H
    if readout is not None:
        arrays = _dense(readout)
        named["V"] = check_array("readout kernel", arrays[0], (H, "O"), dtype=dtype)
        O = named["V"].shape[1]
        bias = arrays[1] if len(arrays) == 2 else np.zeros(O, dtype)
        named["b_out"] = check_array("readout bias", bias, (O,), dtype=dtype)
    return {name: a.copy() for name, a in named.items()}, cell.name


def _split(model, readout):
    """The recurrent layers of a Sequential model, and the Dense that may end it."""
    layers = [layer for layer in model.layers if not _is(layer, *WITHOUT_WEIGHTS)]
    if readout is None and layers and _is(layers[-1], "Dense"):
        readout = layers.pop()
    return layers, readout


def _layer(name, layer, last):
    """The class of a layer and its arrays; one that computes something else is
    refused.
    """
    if not hasattr(layer, "get_weights"):
        arrays = _counted(name, layer, (2, 3))
        H, GH = check_array(f"{name} recurrent", arrays[1], ("H", "G*H")).shape
        kinds = {len(order): kind for kind, (_, order) in CLASSES.items()}
        if GH % H or GH // H not in kinds:
            want = "(H, G*H) with G one of 1, 4, 3"
            raise ValueError(f"{name} recurrent: got shape ({H}, {GH}), want {want}")
        kind = kinds[GH // H]
        if kind == "GRU" and len(arrays) == 2:
            want = "the layer itself, which tells whether reset_after is True"
            raise ValueError(f"{name}: got a GRU without bias, want {want}")
        return kind, arrays
    kind = next((kind for kind in CLASSES if _is(layer, kind)), None)
    if kind is None:
        raise TypeError(f"{name}: got {type(layer).__name__}, want {LAYER}")
    held = HELD if last else HELD | {"return_sequences": True}
    for option, want in held.items():
        _check_option(name, layer, option, want)
    return kind, _counted(name, layer.get_weights(), (2, 3))


def _dense(readout):
    """The arrays of a Dense without activation."""
    if hasattr(readout, "get_weights"):
        if not _is(readout, "Dense"):
            raise TypeError(f"readout: got {type(readout).__name__}, want Dense")
        _check_option("readout", readout, "activation", "linear")
        readout = readout.get_weights()
    return _counted("readout", readout, (1, 2))


def _check_option(name, layer, option, want):
    """Refuse a layer made with another `option`, if it has that option: a function of
    Keras, known by its name, or a value.
    """
    got = getattr(layer, option, want)
    got = getattr(got, "__name__", got)
    if got != want:
        raise ValueError(f"{name}.{option}: got {got!r}, want {want!r}")


def _counted(name, arrays, counts):
    """`arrays` if it is a list of so many."""
    check_type(name, arrays, list | tuple, LAYER)
    if len(arrays) not in counts:
        want = f"{counts[0]} or {counts[1]}, of one layer that is built"
        raise ValueError(f"{name}: got {len(arrays)} arrays, want {want}")
    return arrays


def _is(layer, *kinds):
    """Whether an object's class, or one above it, has one of these names."""
    return any(base.__name__ in kinds for base in type(layer).__mro__)


def _ours(matrix, order):
    """A matrix (k, G*H) with its blocks in our order."""
    blocks = matrix.reshape(len(matrix), len(order), -1)
    return blocks[:, order].reshape(matrix.shape)

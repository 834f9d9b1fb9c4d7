"""Weights of PyTorch and Keras, read by their names and shapes, and for PyTorch
written. Neither is needed.

NOTATION.md has their names and layouts. Where U and W feed the same gates, only the sum
of two biases matters. In a GRU they do not, and both frameworks have two.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from .cells import CELLS
from .errors import check_array, check_type

TORCH = "the names of one torch.nn.RNN (tanh), LSTM or GRU of one direction,"
TORCH += " without a projection, and of at most one Linear, readout='its name'"
# For each block of ours the number of Keras's, whose are i, f, c, o, and z, r, h.
KERAS_BLOCKS = {"rnn": [0], "lstm": [0, 1, 2, 3], "gru": [1, 0, 2]}
# What the cells compute, as options of Keras's layers.
KERAS_CELL: dict[str, Any] = {
    "activation": "tanh",
    "recurrent_activation": "sigmoid",
    "reset_after": True,
    "go_backwards": False,
    "stateful": False,
}


def read_torch(source, readout=None):
    """The arrays by the names of `Params.arrays`, and the cell; see
    `Params.from_torch`.
    """
    is_module = callable(getattr(type(source), "state_dict", None))
    left = source.state_dict() if is_module else source
    want = "a torch.nn.Module, or a dict of arrays, such as its state_dict"
    left = {str(n): a for n, a in check_type("state_dict", left, Mapping, want).items()}
    names, first = sorted(left), "weight_ih_l0"
    prefix = next((n.removesuffix(first) for n in names if n.endswith(first)), "")
    layers, head, parts = [], [], ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    while f"{prefix}weight_ih_l{len(layers)}" in left:
        of_layer = [f"{prefix}{part}_l{len(layers)}" for part in parts]
        layers.append([_pop(left, name) for name in of_layer if name in left])
    usual = f"{prefix}readout", "readout"
    linear = [readout] if readout else [n for n in usual if f"{n}.weight" in left]
    for name in linear[:1]:
        of_head = f"{name}.weight", f"{name}.bias"
        head = [_pop(left, part) for part in of_head if part in left]
    if readout and not head:
        found = [n.removesuffix(".weight") for n in left if n.endswith(".weight")]
        want = f"the name of a torch.nn.Linear in it, of {found}"
        raise ValueError(f"readout: got {readout!r}, want {want}")
    whole = layers and all(len(layer) in (2, 4) for layer in layers)
    if not whole or left:
        got = f"{sorted(left)} too" if left and layers else names
        raise ValueError(f"state_dict: got {got}, want {TORCH}")
    if is_module:  # else, and where it was traced, nothing tells of relu
        modes = {getattr(module, "mode", "") for _, module in source.named_modules()}
        if not modes & {"RNN_TANH", "LSTM", "GRU"}:
            got = f"{type(source).__name__} of the modes {sorted(modes - {''})}"
            raise ValueError(f"state_dict: got {got}, want {TORCH}")
    blocks = {c.name: [*range(len(c.input_gates))] for c in CELLS.values() if c.torch}
    return _assemble(layers, head, blocks, transposed=True)


def read_keras(layers, readout=None):
    """As `read_torch`; see `Params.from_keras`."""
    if not layers:
        raise ValueError("layers: got none, want layers of SimpleRNN, LSTM or GRU")
    stack, head, below = [], [], KERAS_CELL | {"return_sequences": True}
    for index, layer in enumerate(layers):
        name, is_last = f"layers[{index}]", index == len(layers) - 1
        U, W, *bias = _weights(name, layer, 3, KERAS_CELL if is_last else below)
        # A GRU has two: of U, of W.
        rows = [*bias[0]] if bias and np.shape(bias[0])[:-1] == (2,) else bias
        parts = [(f"{name} kernel", U), (f"{name} recurrent", W)]
        stack.append(parts + [(f"{name} bias", row) for row in rows])
    if readout is not None:
        weights = _weights("readout", readout, 2, {"activation": "linear"})
        head = [*zip(("readout kernel", "readout bias"), weights, strict=False)]
    return _assemble(stack, head, KERAS_BLOCKS, transposed=False)


def write_torch(params, *, prefix="", readout="readout"):
    """The state_dict of Params; see `Params.to_torch`."""
    cell, named = CELLS[params.cell], {}
    if cell.torch is None:
        raise ValueError(f"cell: got {cell.name!r}, want one that PyTorch has")
    for index, layer in enumerate(params.layers):
        b = layer.b.reshape(len(cell.gates), -1)
        b_ih, b_hh = b[[*cell.input_gates]], b[[*cell.recurrent_gates]]
        b_hh[np.isin(cell.recurrent_gates, cell.input_gates)] = 0
        parts = {"weight_ih": layer.U.T.copy(), "weight_hh": layer.W.T.copy()}
        parts |= {"bias_ih": b_ih.reshape(-1), "bias_hh": b_hh.reshape(-1)}
        named |= {f"{prefix}{name}_l{index}": a for name, a in parts.items()}
    if params.V is not None:
        named[f"{readout}.weight"] = params.V.T.copy()
        named[f"{readout}.bias"] = params.b_out.copy()
    return named


def _assemble(layers, readout, blocks, *, transposed):
    """New arrays by the names of `Params.arrays`, and the cell.

    layers: of each U, W and its biases, as (path, array). readout: V and its bias, or
    nothing. blocks: of each cell of the framework, for each block of ours its number.
    transposed: matrices are (outputs, inputs).
    """
    dtype = None

    def check(part, *shape):
        path, array = part
        shape = shape[::-1] if transposed else shape
        array = check_array(path, array, shape, dtype=dtype)
        return array.T if transposed else array

    def ours(a):
        return a.reshape(-1, G, H)[:, order].reshape(a.shape)

    W = check(layers[0][1], "H", "G*H")
    dtype, (H, GH), D = W.dtype, W.shape, "D"
    cells = {len(order): CELLS[name] for name, order in blocks.items()}
    if GH % H or GH // H not in cells:
        want = f"{' or '.join(map(str, cells))} gates of {H} units"
        raise ValueError(f"{layers[0][1][0]}: got {GH} numbers a unit, want {want}")
    G, cell = GH // H, cells[GH // H]
    order, named = blocks[cell.name], {}
    sides = cell.input_gates, cell.recurrent_gates
    for index, (U, W, *biases) in enumerate(layers):
        b = np.zeros((len(cell.gates), H), dtype)
        if len(biases) == 1 and sides[0] != sides[1]:
            raise ValueError(f"{biases[0][0]}: got one bias, want one of U, one of W")
        for gates, bias in zip(sides, biases, strict=False):
            b[[*gates]] += ours(check(bias, GH)).reshape(G, H)
        parts = {"U": ours(check(U, D, GH)), "W": ours(check(W, H, GH))}
        parts["b"], D = b.reshape(-1), H
        named |= {f"layers.{index}.{part}": a for part, a in parts.items()}
    if readout:
        V, *bias = readout
        named["V"] = check(V, H, "O").copy()
        O = named["V"].shape[1]
        named["b_out"] = check(bias[0], O).copy() if bias else np.zeros(O, dtype)
    return named, cell.name


def _pop(named, name):
    """The path and the array of a tensor, which is taken out of a dict."""
    path, tensor = f"state_dict[{name!r}]", named.pop(name)
    if isinstance(tensor, np.ndarray) or not hasattr(tensor, "__array__"):
        return path, tensor  # what is neither, `check_array` refuses
    try:
        return path, tensor.__array__()
    except (TypeError, RuntimeError) as error:  # on a device, or bfloat16
        raise TypeError(f"{path}: got a {type(tensor).__name__} ({error})") from None


def _weights(name, layer, count, options):
    """The arrays of a layer of Keras that was made with `options`, where it has them;
    or a list of them. There are `count`, or one less: the bias may be missing.
    """
    kinds = "Dense" if count == 2 else "SimpleRNN, LSTM or GRU, and readout=Dense"
    want = f"a layer of Keras or its {count} arrays: {kinds}"
    if hasattr(layer, "get_weights"):
        config = layer.get_config()
        other = [k for k in options if config.get(k, options[k]) != options[k]]
        if other:
            got, wanted = ({k: of[k] for k in other} for of in (config, options))
            raise ValueError(f"{name}: got {got}, want {wanted}")
        layer = layer.get_weights()
    check_type(name, layer, list | tuple, want)
    if len(layer) not in (count - 1, count):
        raise ValueError(f"{name}: got {len(layer)} arrays, want {want}")
    return layer

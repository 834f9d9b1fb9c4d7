"""PyTorch's names, shapes and two biases for the parameters of a network; torch is not needed."""

from collections.abc import Mapping

import numpy as np

from .cells import CELLS
from .errors import check_array

CELL_OF_GATES = {len(cell.input_gates): name for name, cell in CELLS.items()}


def read(state_dict, readout=None):
    """(layers, V, b_out, cell) of a state_dict, layers as (U, W, b); see `Params.from_torch`."""
    if not isinstance(state_dict, Mapping) or not all(isinstance(n, str) for n in state_dict):
        raise TypeError(f"state_dict: got {type(state_dict).__name__}, want a dict of named arrays")
    heads = [name for name in state_dict if name.endswith("weight_ih_l0")]
    if len(heads) != 1:
        got = sorted(state_dict)
        raise ValueError(f"state_dict: got names {got}, want one ending in 'weight_ih_l0'")
    prefix, dtype, taken = heads[0].removesuffix("weight_ih_l0"), None, set()

    def get(name, *shape):
        if name not in state_dict:
            raise ValueError(f"state_dict: got names {sorted(state_dict)}, want {name!r} too")
        taken.add(name)
        return check_array(
            f"state_dict[{name!r}]", _host(name, state_dict[name]), shape, dtype=dtype
        )

    first = get(f"{prefix}weight_hh_l0", "G*H", "H")
    (rows, H), dtype = first.shape, first.dtype
    cell = CELL_OF_GATES.get(rows // H if rows % H == 0 else None)
    if cell is None:
        want = f"(G*H, H) with G one of {', '.join(map(str, CELL_OF_GATES))}"
        raise ValueError(
            f"state_dict['{prefix}weight_hh_l0']: got shape {first.shape}, want {want}"
        )
    layers, D = [], "D"
    while f"{prefix}weight_ih_l{len(layers)}" in state_dict:
        tail = f"l{len(layers)}"
        U, W = (
            get(f"{prefix}weight_ih_{tail}", rows, D).T,
            get(f"{prefix}weight_hh_{tail}", rows, H).T,
        )
        names = [f"{prefix}bias_{side}_{tail}" for side in ("ih", "hh")]
        b_ih, b_hh = np.zeros((2, rows), dtype)
        if any(name in state_dict for name in names):
            b_ih, b_hh = (get(name, rows) for name in names)
        b = b_ih + b_hh
        if cell == "gru":  # only n keeps its two biases apart: r scales the recurrent one
            b = np.concatenate([b[: 2 * H], b_ih[2 * H :], b_hh[2 * H :]])
        layers.append((U.copy(), W.copy(), b))
        D = H
    if readout is None:
        usual = (f"{prefix}readout", "readout")
        readout = next((name for name in usual if f"{name}.weight" in state_dict), None)
    V = b_out = None
    if readout is not None:
        V, bias = get(f"{readout}.weight", "O", H).T.copy(), f"{readout}.bias"
        O = V.shape[1]
        b_out = get(bias, O).copy() if bias in state_dict else np.zeros(O, dtype)
    if left := sorted(set(state_dict) - taken):
        raise ValueError(
            f"state_dict: got {left} too, want an RNN, LSTM or GRU and at most one read-out, "
            "'readout' or what the argument `readout` names"
        )
    return layers, V, b_out, cell


def write(record, *, gradients=False):
    """The state_dict of Params, or of Grads, where both biases get what only their sum has."""
    named = {}
    for index, layer in enumerate(record.layers):
        H, rows = layer.W.shape
        b_ih = layer.b[:rows].copy()
        b_hh = b_ih.copy() if gradients else np.zeros_like(b_ih)
        if len(layer.b) > rows:  # a GRU's recurrent bias of n
            b_hh[-H:] = layer.b[rows:]
        named |= {
            f"weight_ih_l{index}": layer.U.T.copy(),
            f"weight_hh_l{index}": layer.W.T.copy(),
            f"bias_ih_l{index}": b_ih,
            f"bias_hh_l{index}": b_hh,
        }
    if record.V is not None:
        named |= {"readout.weight": record.V.T.copy(), "readout.bias": record.b_out.copy()}
    return named


def _host(name, value):
    """A tensor as an array; what is neither stays for `check_array` to refuse."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__array__"):
        return value
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # on a device, or with a gradient
        got = type(value).__name__
        raise TypeError(f"state_dict[{name!r}]: got a {got}, want an array ({error})") from None

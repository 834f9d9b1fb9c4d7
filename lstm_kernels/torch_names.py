"""PyTorch's names, shapes and two biases for the parameters of a network; torch is not
needed.
"""

from collections.abc import Mapping

import numpy as np

from .cells import CELLS
from .errors import check_array

CELL_OF_GATES = {len(cell.input_gates): name for name, cell in CELLS.items()}


def read(state_dict, readout=None):
    """The arrays by the names of `Params.arrays`, and the cell; see
    `Params.from_torch`.
    """
    if not isinstance(state_dict, Mapping) or not all(
        isinstance(n, str) for n in state_dict
    ):
        raise TypeError(
            f"state_dict: got {type(state_dict).__name__}, want a dict of named arrays"
        )
    names, dtype = sorted(state_dict), None
    heads = [name for name in names if name.endswith("weight_ih_l0")]
    if len(heads) != 1:
        raise ValueError(
            f"state_dict: got names {names}, want one ending in 'weight_ih_l0'"
        )
    prefix, left = heads[0].removesuffix("weight_ih_l0"), set(names)

    def get(name, *shape):
        if name not in state_dict:
            raise ValueError(f"state_dict: got names {names}, want {name!r} too")
        left.discard(name)
        place, value = f"state_dict[{name!r}]", state_dict[name]
        try:  # a tensor; what is neither stays for `check_array` to refuse
            a = value if isinstance(value, np.ndarray) else value.__array__()
        except (
            TypeError,
            ValueError,
            RuntimeError,
        ) as error:  # on a device, or with a gradient
            got = type(value).__name__
            raise TypeError(f"{place}: got a {got}, want an array ({error})") from None
        except AttributeError:
            a = value
        return check_array(place, a, shape, dtype=dtype)

    first = get(f"{prefix}weight_hh_l0", "G*H", "H")
    (rows, H), dtype = first.shape, first.dtype
    cell = CELL_OF_GATES.get(rows // H if rows % H == 0 else None)
    if cell is None:
        want = f"(G*H, H) with G one of {', '.join(map(str, CELL_OF_GATES))}"
        raise ValueError(
            f"state_dict['{prefix}weight_hh_l0']: got shape {first.shape}, want {want}"
        )
    named, index, D = {}, 0, "D"
    while (U := f"{prefix}weight_ih_l{index}") in state_dict:
        named[f"layers.{index}.U"] = get(U, rows, D).T.copy()
        named[f"layers.{index}.W"] = get(
            f"{prefix}weight_hh_l{index}", rows, H
        ).T.copy()
        biases = [f"{prefix}bias_{side}_l{index}" for side in ("ih", "hh")]
        b_ih, b_hh = np.zeros((2, rows), dtype)  # torch.nn.LSTM(..., bias=False)
        if left.intersection(biases):
            b_ih, b_hh = (get(name, rows) for name in biases)
        b = b_ih + b_hh
        if (
            cell == "gru"
        ):  # only n keeps its two biases apart: r scales the recurrent one
            b = np.concatenate([b[: 2 * H], b_ih[2 * H :], b_hh[2 * H :]])
        named[f"layers.{index}.b"], D, index = b, H, index + 1
    if readout is None:
        usual = (f"{prefix}readout", "readout")
        readout = next((name for name in usual if f"{name}.weight" in state_dict), None)
    if readout is not None:
        named["V"], bias = get(f"{readout}.weight", "O", H).T.copy(), f"{readout}.bias"
        O = named["V"].shape[1]
        named["b_out"] = (
            get(bias, O).copy() if bias in state_dict else np.zeros(O, dtype)
        )
    if left:
        raise ValueError(
            f"state_dict: got {sorted(left)} too, want an RNN, LSTM or GRU and at most one "
            "read-out, 'readout' or what the argument `readout` names"
        )
    return named, cell


def write(weights, *, gradients=False):
    """The state_dict of Params, or of Grads, where both biases get what only their sum
    has.
    """
    named = {}
    for index, layer in enumerate(weights.layers):
        H, rows = layer.W.shape
        b_ih = layer.b[:rows].copy()
        b_hh = b_ih.copy() if gradients else np.zeros_like(b_ih)
        if len(layer.b) > rows:  # a GRU's recurrent bias of n
            b_hh[-H:] = layer.b[rows:]
        parts = {"weight_ih": layer.U.T.copy(), "weight_hh": layer.W.T.copy()}
        parts |= {"bias_ih": b_ih, "bias_hh": b_hh}
        named |= {f"{name}_l{index}": a for name, a in parts.items()}
    if weights.V is not None:
        named |= {
            "readout.weight": weights.V.T.copy(),
            "readout.bias": weights.b_out.copy(),
        }
    return named

"""PyTorch's names, shapes and two biases for the parameters of a network; torch is not
needed.

PyTorch has a bias beside each product: that of the input products, and that of the
recurrent ones. `Cell` says which pre-activations each product feeds; where both feed
one, only the sum of their biases matters.
"""

from collections.abc import Mapping

import numpy as np

from .cells import CELLS
from .errors import check_array, check_type

# Parts of names that this form cannot hold, what they are of, and what is wanted.
FOREIGN = {
    "_reverse": ("bidirectional", "one direction"),
    "weight_hr_l": ("a projection, proj_size", "none"),
}


def read(source, readout=None):
    """The arrays by the names of `Params.arrays`, and the cell; see
    `Params.from_torch`.
    """
    is_module = callable(getattr(source, "state_dict", None))
    is_module = is_module and not isinstance(source, type)
    state_dict = source.state_dict() if is_module else source
    if not isinstance(state_dict, Mapping) or not all(
        isinstance(n, str) for n in state_dict
    ):
        want = "a dict of named arrays or a torch.nn.Module"
        check_type("state_dict", state_dict, (), want)
    names, dtype = sorted(state_dict), None
    prefix, left = _prefix(names), set(names)
    for part, (what, want) in FOREIGN.items():
        if foreign := [name for name in names if part in name]:
            raise ValueError(f"state_dict: got {foreign} too ({what}), want {want}")
    if is_module:
        _check_module(source, prefix)

    def get(name, *shape):
        if name not in state_dict:
            raise ValueError(f"state_dict: got names {names}, want {name!r} too")
        left.discard(name)
        return check_array(
            f"state_dict[{name!r}]", _array(name, state_dict[name]), shape, dtype=dtype
        )

    first = get(f"{prefix}weight_hh_l0", "G*H", "H")
    (rows, H), dtype = first.shape, first.dtype
    cell = _cell_of(f"state_dict['{prefix}weight_hh_l0']", rows, H)
    named, index, D = {}, 0, "D"
    while f"{prefix}weight_ih_l{index}" in state_dict:
        ih, hh = (f"{prefix}{{}}_{side}_l{index}" for side in ("ih", "hh"))
        named[f"layers.{index}.U"] = get(ih.format("weight"), rows, D).T.copy()
        named[f"layers.{index}.W"] = get(hh.format("weight"), rows, H).T.copy()
        b = np.zeros((len(cell.gates), H), dtype)
        if left.intersection([ih.format("bias"), hh.format("bias")]):
            b[[*cell.input_gates]] += get(ih.format("bias"), rows).reshape(-1, H)
            b[[*cell.recurrent_gates]] += get(hh.format("bias"), rows).reshape(-1, H)
        named[f"layers.{index}.b"] = b.reshape(-1)
        D, index = H, index + 1
    if readout is None:
        usual = (f"{prefix}readout", "readout")
        readout = next((name for name in usual if f"{name}.weight" in state_dict), None)
    if readout is not None:
        named["V"] = get(f"{readout}.weight", "O", H).T.copy()
        O = named["V"].shape[1]
        has_bias = f"{readout}.bias" in state_dict  # torch.nn.Linear(..., bias=False)
        named["b_out"] = (
            get(f"{readout}.bias", O).copy() if has_bias else np.zeros(O, dtype)
        )
    if left:
        head = min(left).rpartition(".")[0]
        shape = getattr(state_dict.get(f"{head}.weight"), "shape", ())
        fits = left <= {f"{head}.weight", f"{head}.bias"} and tuple(shape[1:]) == (H,)
        if readout is None and fits:
            want = f"its name, if it is the read-out: readout={head!r}"
            raise ValueError(f"state_dict: got {sorted(left)} too, want {want}")
        want = "an RNN, LSTM or GRU and at most one read-out, 'readout' or what the"
        want += " argument `readout` names; other modules have no place in Params:"
        want += " give the state_dict of the RNN alone"
        raise ValueError(f"state_dict: got {sorted(left)} too, want {want}")
    return named, cell.name


def write(weights, *, prefix="", readout="readout", gradients=False):
    """The state_dict of Params, or of Grads, where both biases get what only their sum
    has.
    """
    cell, named = CELLS[weights.cell], {}
    if cell.torch is None:
        raise ValueError(f"cell: got {cell.name!r}, want one that PyTorch has")
    for index, layer in enumerate(weights.layers):
        b = layer.b.reshape(len(cell.gates), -1)
        b_ih, b_hh = b[[*cell.input_gates]], b[[*cell.recurrent_gates]]
        if not gradients:
            b_hh[np.isin(cell.recurrent_gates, cell.input_gates)] = 0
        parts = {"weight_ih": layer.U.T.copy(), "weight_hh": layer.W.T.copy()}
        parts |= {"bias_ih": b_ih.reshape(-1), "bias_hh": b_hh.reshape(-1)}
        named |= {f"{prefix}{name}_l{index}": a for name, a in parts.items()}
    if weights.V is not None:
        named[f"{readout}.weight"] = weights.V.T.copy()
        named[f"{readout}.bias"] = weights.b_out.copy()
    return named


def _prefix(names):
    """What comes before the names of the one RNN that is there."""
    first = "weight_ih_l0"
    prefixes = [n.removesuffix(first) for n in names if n.endswith(first)]
    if len(prefixes) > 1:
        want = "one: give the state_dict of each alone"
        raise ValueError(f"state_dict: got RNNs called {prefixes}, want {want}")
    if not prefixes:
        want = f"one ending in {first!r}"
        if any(name.endswith("weight_ih") for name in names):
            want += ": those of an RNNCell, LSTMCell or GRUCell with '_l0' added"
        raise ValueError(f"state_dict: got names {names}, want {want}")
    return prefixes[0]


def _check_module(module, prefix):
    """Refuse an RNN that computes something else with the same names and shapes."""
    path, rnn, name = prefix.removesuffix("."), module, "module"
    if path:
        inside = getattr(module, "named_modules", dict)()
        rnn, name = dict(inside).get(path), f"module.{path}"
    if (got := getattr(rnn, "nonlinearity", "tanh")) != "tanh":
        raise ValueError(f"{name}.nonlinearity: got {got!r}, want 'tanh'")
    drops = getattr(rnn, "dropout", 0) and getattr(rnn, "num_layers", 1) > 1
    if drops and getattr(rnn, "training", False):
        got, want = f"{rnn.dropout} in training mode", "0, or module.eval() before"
        raise ValueError(f"{name}.dropout: got {got}, want {want}")


def _array(name, value):
    """The array of a tensor; what is neither stays for `check_array` to refuse."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__array__"):
        return value
    kind = str(getattr(value, "dtype", ""))  # torch.bfloat16, of which NumPy has none
    if "float16" in kind:
        want = "float32 or float64: .float()"
        raise TypeError(f"state_dict[{name!r}]: got dtype {kind}, want {want}")
    try:
        return value.__array__()
    except (TypeError, ValueError, RuntimeError) as error:  # on a device, with gradient
        got = f"a {type(value).__name__}, want an array ({error})"
        raise TypeError(f"state_dict[{name!r}]: got {got}") from None


def _cell_of(name, rows, H):
    """PyTorch's cell of so many rows; one that PyTorch does not have is no guess."""
    cells = {len(cell.input_gates): cell for cell in CELLS.values() if cell.torch}
    if rows % H or rows // H not in cells:
        want = f"(G*H, H) with G one of {', '.join(map(str, cells))}"
        raise ValueError(f"{name}: got shape ({rows}, {H}), want {want}")
    return cells[rows // H]

"""Weights of PyTorch and Keras: read, and for PyTorch written. Neither is needed.

NOTATION.md has their names and layouts. Where U and W feed the same gates, only the sum
of two biases matters. In a GRU they do not, and both frameworks have two.
"""

from collections.abc import Mapping
from itertools import count

import numpy as np

from .cells import CELLS
from .errors import check_array, check_type

# For each block of ours the number of Keras's, whose are i, f, c, o, and z, r, h.
KERAS_BLOCKS = {"rnn": [0], "lstm": [0, 1, 2, 3], "gru": [1, 0, 2]}
KERAS_LAYERS = "SimpleRNN", "LSTM", "GRU"
# Options of these layers, and what the cells compute.
KERAS_OPTIONS = {
    "activation": "tanh",
    "recurrent_activation": "sigmoid",
    "reset_after": True,
    "go_backwards": False,
    "stateful": False,
}
# Parts of PyTorch's names that have no place here, and what they tell of.
FOREIGN = {
    "_reverse": "bidirectional",
    "weight_hr_l": "a projection, proj_size",
    "weight_ih;": "a cell, such as LSTMCell: its names lack _l0",
    "_g;": "weight_norm: remove_weight_norm makes one array of two",
    "parametrizations.": "a parametrization: remove it, which makes the array",
}


def read_torch(source, readout=None):
    """The arrays by the names of `Params.arrays`, and the cell; see
    `Params.from_torch`.
    """
    is_module = callable(getattr(type(source), "state_dict", None))
    left = source.state_dict() if is_module else source
    want = "a torch.nn.Module, or a dict of arrays, such as its state_dict"
    left = dict(check_type("state_dict", left, Mapping, want))
    names = sorted(map(str, left))
    prefix = _prefix(names)
    if is_module:
        _check_module(source, prefix)

    def take(*wanted):
        for name in wanted:
            if name not in left:
                raise ValueError(
                    f"state_dict: got {_foreign(names)}, want {name!r} too"
                )
        paths = {name: f"state_dict[{name!r}]" for name in wanted}
        return [(paths[name], _array(paths[name], left.pop(name))) for name in wanted]

    layers = []
    for index in count():
        weights = [f"{prefix}weight_{side}_l{index}" for side in ("ih", "hh")]
        biases = [name.replace("weight_", "bias_") for name in weights]
        if weights[0] not in left:
            break
        layers.append(take(*weights, *(biases if left.keys() & {*biases} else ())))
    if readout is None:
        usual = f"{prefix}readout", "readout"
        readout = next((name for name in usual if f"{name}.weight" in left), None)
    head = []
    if readout is not None:
        bias = f"{readout}.bias"  # torch.nn.Linear(..., bias=False) has none
        head = take(f"{readout}.weight", *([bias] if bias in left else ()))
    if left:
        got = f"{_foreign(sorted(map(str, left)))} too"
        want = "the state_dict of an RNN, LSTM or GRU alone, of one direction, and at"
        want += " most one Linear, the output layer, by its name: readout='fc'"
        raise ValueError(f"state_dict: got {got}, want {want}")
    blocks = {c.name: [*range(len(c.input_gates))] for c in CELLS.values() if c.torch}
    return _assemble(layers, head, blocks, transposed=True, biases=2)


def read_keras(layers, readout=None):
    """As `read_torch`; see `Params.from_keras`."""
    if not layers:
        raise ValueError(f"layers: got none, want layers of {', '.join(KERAS_LAYERS)}")
    stack, head = [], []
    for index, layer in reversed([*enumerate(layers)]):  # first what is no RNN
        name, below = f"layers[{index}]", index < len(layers) - 1
        options = KERAS_OPTIONS | ({"return_sequences": True} if below else {})
        U, W, *bias = _weights(name, layer, 3, KERAS_LAYERS, options)
        # A GRU has two: beside U, beside W.
        rows = [*bias[0]] if bias and np.ndim(bias[0]) == 2 else bias
        parts = [(f"{name} kernel", U), (f"{name} recurrent", W)]
        stack.insert(0, parts + [(f"{name} bias", row) for row in rows])
    if readout is not None:
        weights = _weights("readout", readout, 2, ["Dense"], {"activation": "linear"})
        head = [*zip(("readout kernel", "readout bias"), weights, strict=False)]
    return _assemble(stack, head, KERAS_BLOCKS, transposed=False, biases=1)


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


def _assemble(layers, readout, blocks, *, transposed, biases):
    """New arrays by the names of `Params.arrays`, and the cell.

    layers: of each U, W and its biases, as (path, array). readout: V and its bias, or
    nothing. blocks: of each cell of the framework, for each block of ours its number.
    transposed: matrices are (outputs, inputs). biases: how many of the same gates.
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
        path, W = layers[0][1]
        form = "(G*H, H)" if transposed else "(H, G*H)"
        want = f"{form} with G one of {', '.join(map(str, cells))}"
        raise ValueError(f"{path}: got shape {W.shape}, want {want}")
    G, cell = GH // H, cells[GH // H]
    order, named = blocks[cell.name], {}
    sides = [cell.input_gates, cell.recurrent_gates]
    if cell.input_gates == cell.recurrent_gates:
        sides = sides[:biases]
    for index, (U, W, *added) in enumerate(layers):
        if (got := np.shape(W[1])) != (want := np.shape(layers[0][1][1])):
            want = f"{want}, as the first has: the layers are of one cell and size"
            raise ValueError(f"{W[0]}: got shape {got}, want {want}")
        if len(added) not in (0, len(sides)):
            want = "one" if len(sides) == 1 else "one of U and one of W"
            got = f"{len(added)} of {GH} numbers"
            raise ValueError(f"{added[0][0]}: got {got}, want {want}")
        b = np.zeros((len(cell.gates), H), dtype)
        for gates, bias in zip(sides, added, strict=False):
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


def _prefix(names):
    """What comes before the names of the one RNN that a state_dict has."""
    first = "weight_ih_l0"
    prefixes = [n.removesuffix(first) for n in names if n.endswith(first)]
    if len(prefixes) > 1:
        want = "one: the state_dict of each alone, then Params([*a.layers, *b.layers])"
        raise ValueError(f"state_dict: got RNNs called {prefixes}, want {want}")
    if not prefixes:
        want = f"one ending in {first!r}"
        raise ValueError(f"state_dict: got {_foreign(names)}, want {want}")
    return prefixes[0]


def _foreign(names):
    """Those of names that tell why they have no place here, and why, or all."""
    for part, why in FOREIGN.items():
        if found := [name for name in names if part in f"{name};"]:
            return f"{found} ({why})"
    return f"names {names}"


def _check_module(module, prefix):
    """Refuse an RNN of PyTorch that computes something else with the same arrays, or
    does not tell, as a traced one.
    """
    path = prefix.removesuffix(".")
    name = f"module.{path}" if path else "module"
    rnn = dict(module.named_modules())[path]
    if not hasattr(rnn, "mode"):
        got = f"{type(rnn).__name__}, which tells no mode, as one traced or exported"
        want = "a torch.nn.RNN, LSTM or GRU, or the state_dict of one"
        raise ValueError(f"{name}: got {got}, want {want}")
    if rnn.mode == "RNN_RELU":
        raise ValueError(f"{name}.nonlinearity: got 'relu', want 'tanh'")
    if rnn.training and rnn.num_layers > 1:  # dropout is between layers
        _check_option(name, rnn, "dropout", 0, " in training mode, or module.eval()")


def _array(path, tensor):
    """The array of a tensor; what is neither stays for `check_array` to refuse."""
    if isinstance(tensor, np.ndarray) or not hasattr(tensor, "__array__"):
        return tensor
    try:
        return tensor.__array__()
    except (TypeError, RuntimeError) as error:  # on a device, or bfloat16
        got = f"a {type(tensor).__name__}, want an array: .cpu().float() ({error})"
        raise TypeError(f"{path}: got {got}") from None


def _weights(name, layer, most, kinds, options):
    """The arrays of a layer of Keras: of one of the classes `kinds`, made with
    `options`, whose bias may be missing; or a list of all `most` of them.
    """
    want = f"a layer of Keras ({', '.join(kinds)}) or its {most} arrays"
    least = most
    if hasattr(layer, "get_weights"):
        if (kind := type(layer).__name__) not in kinds:
            want += ", and a Dense as readout=" if kind == "Dense" else ""
            raise TypeError(f"{name}: got {kind}, want {want}")
        for option, held in options.items():
            _check_option(name, layer, option, held)
        layer, least = layer.get_weights(), most - 1
    check_type(name, layer, list | tuple, want)
    if not least <= len(layer) <= most:
        want = f"{most}, the last one the bias, of one layer that is built"
        raise ValueError(f"{name}: got {len(layer)} arrays, want {want}")
    return layer


def _check_option(name, owner, option, want, more=""):
    """Refuse what has this option and another value, or function, by its name."""
    got = getattr(owner, option, want)
    got = getattr(got, "__name__", got)
    if got != want:
        raise ValueError(f"{name}.{option}: got {got!r}, want {want!r}{more}")

"""Parameters of a stacked recurrent network, and gradients of the same form."""

import json
import os
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .cells import CELLS
from .errors import FLOATS, check_array, check_choice, check_int

FORMAT = "lstm_kernels.params/1"


@dataclass
class Layer:
    """U (D, G*H) input weights, W (H, G*H) recurrent weights, b (K*H,) bias; K = G but 4 for a
    GRU's 3.
    """

    U: np.ndarray
    W: np.ndarray
    b: np.ndarray


def expand(cell, layer):
    """The layer with a block of U and W for every pre-activation, zero where nothing feeds it.

    For LSTM and RNN that is the layer itself. A GRU's n is fed by U, its hn by W; with the zero
    blocks every cell is a = x U + h W + b, at the price of a third more arithmetic for the GRU.
    """
    size = layer.W.shape[0]

    def blocks(matrix, gates):
        if len(gates) == len(cell.gates):
            return matrix
        full = np.zeros((matrix.shape[0], len(cell.gates) * size), matrix.dtype)
        for g, k in enumerate(gates):
            full[:, k * size : (k + 1) * size] = matrix[:, g * size : (g + 1) * size]
        return full

    return Layer(blocks(layer.U, cell.input_gates), blocks(layer.W, cell.recurrent_gates), layer.b)


def fold(cell, grad):
    """The gradient of a layer from that of its expanded form: the blocks that are parameters."""
    size = grad.W.shape[0]

    def blocks(matrix, gates):
        if len(gates) == len(cell.gates):
            return matrix
        return np.hstack([matrix[:, k * size : (k + 1) * size] for k in gates])

    return Layer(blocks(grad.U, cell.input_gates), blocks(grad.W, cell.recurrent_gates), grad.b)


@dataclass
class Params:
    """Parameters: `layers[l].U`, `.W`, `.b`, and the read-out `V` (H, O), `b_out` (O,) or None."""

    layers: list[Layer]
    V: np.ndarray | None = None
    b_out: np.ndarray | None = None
    cell: str = "lstm"

    @classmethod
    def init(
        cls,
        input_size,
        hidden_size,
        num_layers=1,
        output_size=None,
        cell="lstm",
        seed=0,
        dtype=np.float32,
    ):
        """Draw every array from U(-1/sqrt(H), 1/sqrt(H)), PyTorch's default, with a seed.

        The draw is in float64 and then rounded, so both dtypes start from the same point.
        Raises TypeError or ValueError for a size below one, an unknown cell or dtype.
        """
        D, H = check_int("input_size", input_size), check_int("hidden_size", hidden_size)
        L = check_int("num_layers", num_layers)
        O = None if output_size is None else check_int("output_size", output_size)
        kind = CELLS[check_choice("cell", cell, CELLS)]
        dtype = np.dtype(dtype)
        if dtype not in FLOATS:
            raise TypeError(f"dtype: got {dtype}, want float32 or float64")
        rng = np.random.default_rng(check_int("seed", seed, low=0))

        def draw(*shape):
            return rng.uniform(-1, 1, shape).astype(dtype) / np.sqrt(H).astype(dtype)

        G, K = len(kind.input_gates), len(kind.gates)
        layers = [
            Layer(draw(D if index == 0 else H, G * H), draw(H, G * H), draw(K * H))
            for index in range(L)
        ]
        return cls(layers, draw(H, O) if O else None, draw(O) if O else None, cell)

    @property
    def input_size(self):
        return self.layers[0].U.shape[0]

    @property
    def hidden_size(self):
        return self.layers[0].W.shape[0]

    @property
    def num_layers(self):
        return len(self.layers)

    @property
    def output_size(self):
        return None if self.V is None else self.V.shape[1]

    @property
    def dtype(self):
        return self.layers[0].W.dtype

    def arrays(self):
        """The parameters themselves by name, in order: `layers.0.U`, ..., `V`, `b_out`."""
        named = {
            f"layers.{index}.{name}": getattr(layer, name)
            for index, layer in enumerate(self.layers)
            for name in ("U", "W", "b")
        }
        return named if self.V is None else named | {"V": self.V, "b_out": self.b_out}

    def copy(self):
        """A deep copy."""
        return Params.from_arrays({name: a.copy() for name, a in self.arrays().items()}, self.cell)

    def astype(self, dtype):
        """A copy in another dtype."""
        return Params.from_arrays({n: a.astype(dtype) for n, a in self.arrays().items()}, self.cell)

    def cut(self, flat):
        """Copies of the parts of `flat`, one after another in the order and shapes of `arrays`."""
        named, at = {}, 0
        for name, a in self.arrays().items():
            named[name] = flat[at : at + a.size].reshape(a.shape).copy()
            at += a.size
        return named

    @classmethod
    def from_arrays(cls, named, cell):
        """The inverse of `arrays`."""
        count = sum(name.endswith(".U") for name in named)
        layers = [
            Layer(*(named[f"layers.{i}.{name}"] for name in ("U", "W", "b"))) for i in range(count)
        ]
        return cls(layers, named.get("V"), named.get("b_out"), cell)

    def check(self, name="params"):
        """Raise TypeError or ValueError if shapes, dtypes or values do not fit; return self."""
        if not isinstance(self, Params):
            raise TypeError(f"{name}: got {type(self).__name__}, want lstm_kernels.Params")
        cell = CELLS[check_choice(f"{name}.cell", self.cell, CELLS)]
        if not self.layers:
            raise ValueError(f"{name}.layers: got no layer, want at least one")
        if (self.V is None) != (self.b_out is None):
            raise ValueError(f"{name}: got only one of V and b_out, want both or neither")
        G, K, D = len(cell.input_gates), len(cell.gates), "D"
        H = self.hidden_size if np.ndim(self.layers[0].W) == 2 else "H"
        dtype = getattr(self.layers[0].W, "dtype", None)
        for index, layer in enumerate(self.layers):
            at = f"{name}.layers[{index}]"
            layer.W = check_array(f"{at}.W", layer.W, (H, G * H), dtype=dtype if index else None)
            layer.U = check_array(f"{at}.U", layer.U, (D, G * H), dtype=dtype)
            layer.b = check_array(f"{at}.b", layer.b, (K * H,), dtype=dtype)
            D = H
        if self.V is not None:
            self.V = check_array(f"{name}.V", self.V, (H, "O"), dtype=dtype)
            self.b_out = check_array(f"{name}.b_out", self.b_out, (self.V.shape[1],), dtype=dtype)
        return self

    def save(self, path):
        """Write an .npz file without pickle; an existing file is replaced only once the new one is
        whole.
        """
        write_npz(path, {"format": FORMAT, "cell": self.cell}, self.arrays())

    @classmethod
    def load(cls, path):
        """Read what `save` wrote. Raises ValueError for a corrupt or foreign file."""
        header, named = read_npz(path, FORMAT)
        try:
            return cls.from_arrays(named, header["cell"]).check()
        except KeyError as error:
            raise ValueError(f"path: {path} lacks {error}, want every parameter array") from None

    @classmethod
    def from_torch(cls, state_dict):
        """Parameters from the state_dict of a torch.nn.RNN (tanh), LSTM or GRU, or a module that
        holds one.

        state_dict: name -> array or CPU tensor, `weight_ih_l0` (G*H, D) and so on, with any prefix;
        a further `<name>.weight` (O, H), `<name>.bias` (O,) is the read-out. The two biases are
        added where only their sum matters. Raises ValueError for names this form cannot hold
        (reverse, projections).
        """
        # np.asarray first: PyTorch's tensors do not know the argument `copy` of np.array.
        left = {name: np.asarray(value).copy() for name, value in dict(state_dict).items()}
        heads = [name for name in left if name.endswith("weight_ih_l0")]
        if len(heads) != 1:
            raise ValueError(
                f"state_dict: got names {sorted(left)}, want one ending in 'weight_ih_l0'"
            )
        prefix, layers, kind = heads[0].removesuffix("weight_ih_l0"), [], None
        while (ih := left.pop(f"{prefix}weight_ih_l{len(layers)}", None)) is not None:
            tail = f"l{len(layers)}"
            if (hh := left.pop(f"{prefix}weight_hh_{tail}", None)) is None or hh.ndim != 2:
                raise ValueError(f"state_dict: want a matrix named '{prefix}weight_hh_{tail}'")
            rows, H = hh.shape
            kind = {1: "rnn", 3: "gru", 4: "lstm"}.get(rows // H if rows % H == 0 else None)
            if kind is None:
                raise ValueError(
                    f"state_dict: '{prefix}weight_hh_{tail}' got shape {hh.shape}, want (G*H, H)"
                )
            b_ih, b_hh = (
                left.pop(f"{prefix}bias_{s}_{tail}", np.zeros(rows, hh.dtype)) for s in ("ih", "hh")
            )
            if kind == "gru":  # only n keeps its two biases apart: r scales the recurrent one
                b = np.concatenate([b_ih[: 2 * H] + b_hh[: 2 * H], b_ih[2 * H :], b_hh[2 * H :]])
            else:
                b = b_ih + b_hh
            layers.append(Layer(np.ascontiguousarray(ih.T), np.ascontiguousarray(hh.T), b))
        V = b_out = None
        heads = [name for name in left if name.endswith(".weight") and left[name].ndim == 2]
        if heads:
            weight = left.pop(heads[0])
            V = np.ascontiguousarray(weight.T)
            b_out = left.pop(
                heads[0].removesuffix("weight") + "bias", np.zeros(len(weight), weight.dtype)
            )
        if left:
            raise ValueError(
                f"state_dict: got {sorted(left)}, which an RNN, LSTM or GRU and one read-out lack"
            )
        return cls(layers, V, b_out, kind).check("state_dict")

    def to_torch(self):
        """The state_dict of the torch.nn module: `weight_ih_l0`, ..., and `readout.weight`,
        `readout.bias`.

        b goes into `bias_ih`, `bias_hh` is zero but for a GRU's last block. Load the read-out with
        a module whose attribute is called `readout`, or drop those two names.
        """
        H, named = self.hidden_size, {}
        for index, layer in enumerate(self.layers):
            b_ih, b_hh = layer.b.copy(), np.zeros_like(layer.b)
            if self.cell == "gru":
                b_ih, b_hh = layer.b[: 3 * H].copy(), np.zeros(3 * H, self.dtype)
                b_hh[2 * H :] = layer.b[3 * H :]
            named |= {
                f"weight_ih_l{index}": np.ascontiguousarray(layer.U.T),
                f"weight_hh_l{index}": np.ascontiguousarray(layer.W.T),
                f"bias_ih_l{index}": b_ih,
                f"bias_hh_l{index}": b_hh,
            }
        if self.V is not None:
            named |= {
                "readout.weight": np.ascontiguousarray(self.V.T),
                "readout.bias": self.b_out.copy(),
            }
        return named


@dataclass
class Grads(Params):
    """Gradients: the fields of Params, and `.x` (T, B, D) and `.state`, a tuple of (L, B, H)."""

    x: np.ndarray | None = None
    state: tuple = field(default_factory=tuple)

    def arrays(self):
        """Every gradient by name: those of the parameters, then `x`, `state.h` and so on."""
        states = dict(
            zip((f"state.{name}" for name in CELLS[self.cell].state), self.state, strict=True)
        )
        return super().arrays() | {"x": self.x} | states


def write_npz(path, header, named):
    """Write arrays and a JSON header beside `path`, then rename over it."""
    path = Path(path)
    beside = path.with_name(f"{path.name}.part-{os.getpid()}")
    try:
        with open(beside, "xb") as file:
            np.savez(file, header=np.array(json.dumps(header)), **named)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def read_npz(path, form):
    """Read (header, arrays) that `write_npz` wrote; ValueError for a corrupt or foreign file."""
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            named = dict(file)
        header = json.loads(str(named.pop("header")))
        got = header["format"]
    except FileNotFoundError:
        raise
    except (
        ValueError,
        KeyError,
        TypeError,
        EOFError,
        OSError,
        zipfile.BadZipFile,
        AttributeError,
    ) as error:
        raise ValueError(f"path: {path} is not a whole file of format {form!r} ({error})") from None
    if got != form:
        raise ValueError(f"path: {path} has format {got!r}, want {form!r}")
    return header, named

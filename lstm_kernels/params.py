"""Parameters of a stacked recurrent network, and gradients of the same form."""

from dataclasses import dataclass

import numpy as np

from . import torch_names
from .cells import CELLS
from .errors import check_array, check_choice, check_dtype, check_int
from .files import read_npz, write_npz

FORMAT = "lstm_kernels.params/2"


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
        dtype = check_dtype("dtype", dtype)
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
        return _named(self)

    def copy(self):
        """A deep copy."""
        return Params.from_arrays({name: a.copy() for name, a in self.arrays().items()}, self.cell)

    def astype(self, dtype):
        """A copy in float32 or float64."""
        dtype = check_dtype("dtype", dtype)
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
        """Raise TypeError or ValueError if shapes, dtypes or values do not fit.

        Returns Params of plain C-contiguous arrays: these, or others where one had to be copied or
        viewed; the caller's own stay as they are.
        """
        if not isinstance(self, Params):
            raise TypeError(f"{name}: got {type(self).__name__}, want lstm_kernels.Params")
        cell = CELLS[check_choice(f"{name}.cell", self.cell, CELLS)]
        if not isinstance(self.layers, list | tuple) or not self.layers:
            raise ValueError(
                f"{name}.layers: got {self.layers!r}, want a list of at least one Layer"
            )
        if (self.V is None) != (self.b_out is None):
            lone = "V without b_out" if self.b_out is None else "b_out without V"
            raise ValueError(f"{name}: got {lone}, want both or neither")
        G, K, W = len(cell.input_gates), len(cell.gates), getattr(self.layers[0], "W", None)
        H, GH, KH = "H", f"{G}*H", f"{K}*H"
        if isinstance(W, np.ndarray) and W.ndim == 2 and len(W):
            H, GH, KH = len(W), G * len(W), K * len(W)
        D, dtype, checked = "D", None, {}
        for index, layer in enumerate(self.layers):
            if not isinstance(layer, Layer):
                raise TypeError(f"{name}.layers[{index}]: got {layer!r}, want lstm_kernels.Layer")
            for part, shape in {"W": (H, GH), "U": (D, GH), "b": (KH,)}.items():
                at, value = f"{name}.layers[{index}].{part}", getattr(layer, part)
                a = checked[f"layers.{index}.{part}"] = check_array(at, value, shape, dtype=dtype)
                dtype = a.dtype  # of the first W, and then of all
            D = H
        if self.V is not None:
            V = checked["V"] = check_array(f"{name}.V", self.V, (H, "O"), dtype=dtype)
            shape = (V.shape[1],)
            checked["b_out"] = check_array(f"{name}.b_out", self.b_out, shape, dtype=dtype)
        kept = all(checked[path] is a for path, a in self.arrays().items())
        return self if kept else Params.from_arrays(checked, self.cell)

    def save(self, path):
        """Write an .npz file without pickle; an existing file is replaced only once the new one is
        whole. Raises as `check` does, and OSError.
        """
        write_npz(path, {"format": FORMAT, "cell": self.cell}, self.check().arrays())

    @classmethod
    def load(cls, path):
        """Read what `save` wrote. Raises ValueError for a damaged or foreign file, OSError for one
        that cannot be read.
        """
        return read_npz(path, FORMAT, lambda header, named: cls._whole(named, header["cell"]))

    @classmethod
    def _whole(cls, named, cell):
        """Checked Params of these arrays, all of them."""
        params = cls.from_arrays(named, cell)
        if unknown := sorted(set(named) - set(params.arrays())):
            raise ValueError(f"got unknown arrays {unknown}")
        return params.check()

    @classmethod
    def from_torch(cls, state_dict, *, readout=None):
        """Parameters from the state_dict of a torch.nn.RNN (tanh), LSTM or GRU, or of a module that
        holds one.

        state_dict: name -> array or CPU tensor; `weight_ih_l0` (G*H, D) and so on, with any prefix.
        The read-out, if any, is `readout.weight` (O, H) and `readout.bias` (O,), as `to_torch`
        writes them, with the same prefix or none; `readout` names another torch.nn.Linear. The two
        biases of a layer are added where only their sum matters.
        Returns Params that share no memory with it. Raises TypeError or ValueError for shapes that
        do not fit, and for names that this form cannot hold (reverse, projections, other modules).
        """
        layers, V, b_out, cell = torch_names.read(state_dict, readout)
        return cls([Layer(*parts) for parts in layers], V, b_out, cell).check("state_dict")

    def to_torch(self):
        """The state_dict of the torch.nn module: `weight_ih_l0`, ..., and `readout.weight`,
        `readout.bias`.

        b goes into `bias_ih`, `bias_hh` is zero but for a GRU's last block. Load the read-out with
        a module whose attribute is called `readout`, or drop those two names.
        """
        return torch_names.write(self)


@dataclass
class Grads:
    """Gradients: the fields of Params, and `.x` (T, B, D) and `.state`, a tuple of (L, B, H)."""

    layers: list[Layer]
    V: np.ndarray | None = None
    b_out: np.ndarray | None = None
    cell: str = "lstm"
    x: np.ndarray | None = None
    state: tuple = ()

    def arrays(self):
        """Every gradient by name: those of the parameters, then `x`, `state.h` and so on."""
        names = (f"state.{name}" for name in CELLS[self.cell].state)
        return _named(self) | {"x": self.x} | dict(zip(names, self.state, strict=True))

    def to_torch(self):
        """The gradients of PyTorch's parameters by their names: of both biases, where only their
        sum matters, the same.
        """
        return torch_names.write(self, gradients=True)


def _named(record):
    named = {
        f"layers.{index}.{name}": getattr(layer, name)
        for index, layer in enumerate(record.layers)
        for name in ("U", "W", "b")
    }
    return named if record.V is None else named | {"V": record.V, "b_out": record.b_out}

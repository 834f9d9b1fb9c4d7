"""Parameters of a stacked recurrent network, and gradients of the same form."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import DTypeLike

from . import other_frameworks
from .cells import CELLS, Cell
from .errors import (
    check_array,
    check_choice,
    check_dtype,
    check_int,
    check_type,
    counted,
)
from .files import read_npz, write_npz

FORMAT = "lstm_kernels.params/4"
Named = dict[str, np.ndarray]
CellName = Literal["rnn", "lstm", "gru"]


@dataclass(repr=False, eq=False)
class Layer:
    """Weights U (D, G*H) of the input, W (H, G*H) of h; bias b (K*H,): K = G, but 4 for
    a GRU.
    """

    U: np.ndarray
    W: np.ndarray
    b: np.ndarray

    def __repr__(self) -> str:
        said = [f"{name} {getattr(a, 'shape', a)}" for name, a in vars(self).items()]
        return f"Layer: {', '.join(said)}, {getattr(self.b, 'dtype', None)}"


def expand(cell: Cell, layer: Layer) -> Layer:
    """The layer with a block of U and W for every pre-activation, zero where nothing
    feeds it.

    For LSTM and RNN that is the layer itself. A GRU's n is fed by U, its hn by W; with
    the zero blocks every cell is a = x U + h W + b, at the price of a third more
    arithmetic for the GRU.
    """

    def blocks(matrix, gates):
        if len(gates) == len(cell.gates):
            return matrix
        full = np.zeros((len(matrix), len(cell.gates), len(layer.W)), matrix.dtype)
        full[:, gates] = matrix.reshape(len(matrix), len(gates), -1)
        return full.reshape(len(matrix), -1)

    U, W = blocks(layer.U, cell.input_gates), blocks(layer.W, cell.recurrent_gates)
    return Layer(U, W, layer.b)


def fold(cell: Cell, grad: Layer) -> Layer:
    """The gradient of a layer from that of its expanded form: the blocks that are
    parameters.
    """

    def blocks(matrix, gates):
        if len(gates) == len(cell.gates):
            return matrix
        split = matrix.reshape(len(matrix), len(cell.gates), -1)
        return split.take(gates, axis=1).reshape(len(matrix), -1)

    U, W = blocks(grad.U, cell.input_gates), blocks(grad.W, cell.recurrent_gates)
    return Layer(U, W, grad.b)


def shapes(cell: Cell, D: int, H: int, L: int, O: int | None) -> dict[str, tuple]:
    """The shape of every array by its name in `arrays`, in order."""
    GH, KH = len(cell.input_gates) * H, len(cell.gates) * H
    named: dict[str, tuple] = {}
    for index in range(L):
        shape = {"U": (H if index else D, GH), "W": (H, GH), "b": (KH,)}
        named |= {f"layers.{index}.{part}": shape[part] for part in shape}
    return named if O is None else named | {"V": (H, O), "b_out": (O,)}


@dataclass(repr=False, eq=False)
class Weights:
    """What parameters and gradients share: an array for each parameter, by name."""

    layers: list[Layer]
    V: np.ndarray | None = None
    b_out: np.ndarray | None = None
    cell: str = "lstm"

    @property
    def input_size(self) -> int:
        return len(self.layers[0].U)

    @property
    def hidden_size(self) -> int:
        return len(self.layers[0].b) // len(CELLS[self.cell].gates)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def output_size(self) -> int | None:
        return None if self.V is None else self.V.shape[1]

    @property
    def dtype(self) -> np.dtype:
        return self.layers[0].b.dtype

    @property
    def form(self) -> str:
        """The sizes in words: `LSTM, 2 layers of 32, 1 input, 1 output, float32`."""
        layers = f"{counted(self.num_layers, 'layer')} of {self.hidden_size}"
        sizes = [self.cell.upper(), layers, counted(self.input_size, "input")]
        if self.V is not None:
            sizes.append(counted(self.output_size, "output"))
        return ", ".join([*sizes, str(self.dtype)])

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.form}"

    def arrays(self) -> Named:
        """The arrays themselves by name, in order: `layers.0.U`, ..., `V`, `b_out`."""
        named = {
            f"layers.{index}.{part}": a
            for index, layer in enumerate(self.layers)
            for part, a in vars(layer).items()
        }
        return named if self.V is None else named | {"V": self.V, "b_out": self.b_out}


class Params(Weights):
    """Parameters: `layers[l].U`, `.W`, `.b`, and the output layer `V` (H, O), `b_out`
    (O,) or None.
    """

    @classmethod
    def init(
        cls,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        output_size: int | None = None,
        cell: CellName = "lstm",
        seed: int = 0,
        dtype: DTypeLike = np.float32,
    ) -> Self:
        """Draw every array from U(-1/sqrt(H), 1/sqrt(H)), PyTorch's default, with a
        seed.

        The draw is in float64 and then rounded, so both dtypes start from the same
        point. Raises TypeError or ValueError for a size below one, an unknown cell or
        dtype.
        """
        D = check_int("input_size", input_size)
        H = check_int("hidden_size", hidden_size)
        L = check_int("num_layers", num_layers)
        O = None if output_size is None else check_int("output_size", output_size)
        kind = CELLS[check_choice("cell", cell, CELLS)]
        dtype = check_dtype("dtype", dtype)
        rng = np.random.default_rng(check_int("seed", seed, low=0))
        root = np.sqrt(H).astype(dtype)
        named = {
            name: rng.uniform(-1, 1, shape).astype(dtype) / root
            for name, shape in shapes(kind, D, H, L, O).items()
        }
        return cls.from_arrays(named, cell)

    @classmethod
    def from_arrays(cls, named: Mapping[str, np.ndarray], cell: str) -> Self:
        """The inverse of `arrays`."""
        count = sum(name.endswith(".b") for name in named)
        layers = [
            Layer(*(named[f"layers.{index}.{part}"] for part in "UWb"))
            for index in range(count)
        ]
        return cls(layers, named.get("V"), named.get("b_out"), cell)

    def copy(self) -> Self:
        """A deep copy."""
        named = {name: a.copy() for name, a in self.arrays().items()}
        return self.from_arrays(named, self.cell)

    def astype(self, dtype: DTypeLike) -> Self:
        """A copy in float32 or float64. Raises TypeError for another dtype, ValueError
        for numbers that it cannot hold.
        """
        dtype = check_dtype("dtype", dtype)
        with np.errstate(over="ignore"):
            named = {n: a.astype(dtype) for n, a in self.arrays().items()}
        return self.from_arrays(named, self.cell).check()

    def check(self, name: str = "params") -> Self:
        """Raise TypeError or ValueError if shapes, dtypes or values do not fit.

        Returns Params of plain C-contiguous arrays: these, or others where one had to
        be copied or viewed; the caller's own stay as they are.
        """
        check_type(name, self, Params)
        cell = CELLS[check_choice(f"{name}.cell", self.cell, CELLS)]
        if not isinstance(self.layers, list | tuple) or not self.layers:
            want = "a list of at least one Layer"
            raise ValueError(f"{name}.layers: got {self.layers!r}, want {want}")
        for index, layer in enumerate(self.layers):
            check_type(f"{name}.layers[{index}]", layer, Layer)
        if (self.V is None) != (self.b_out is None):
            lone = "V without b_out" if self.b_out is None else "b_out without V"
            raise ValueError(f"{name}: got {lone}, want both or neither")
        bottom, GH = f"{name}.layers[0]", f"{len(cell.input_gates)}*H"
        D, _ = check_array(f"{bottom}.U", self.layers[0].U, ("D", GH)).shape
        H, _ = check_array(f"{bottom}.W", self.layers[0].W, ("H", GH)).shape
        O = None
        if self.V is not None:
            O = check_array(f"{name}.V", self.V, ("H", "O")).shape[1]
        arrays, checked, dtype = self.arrays(), {}, None
        for path, shape in shapes(cell, D, H, self.num_layers, O).items():
            place = re.sub(r"layers\.(\d+)", r"layers[\1]", f"{name}.{path}")
            checked[path] = check_array(place, arrays[path], shape, dtype=dtype)
            dtype = checked[path].dtype
        kept = all(checked[path] is a for path, a in arrays.items())
        return self if kept else self.from_arrays(checked, self.cell)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an .npz file, all or nothing. Raises as `check` does, and OSError."""
        write_npz(path, {"format": FORMAT, "cell": self.cell}, self.check().arrays())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Params":
        """Read what `save` wrote. Raises OSError; ValueError for a damaged or foreign
        file.
        """

        def build(header, named):
            params = cls.from_arrays(named, header["cell"])
            if unknown := sorted(set(named) - set(params.arrays())):
                raise ValueError(f"got unknown arrays {unknown}, want parameters alone")
            return params.check()

        return read_npz(path, FORMAT, build)

    @classmethod
    def from_torch(
        cls, state_dict: Mapping[str, object] | Any, *, readout: str | None = None
    ) -> "Params":
        """Parameters of a torch.nn.RNN (tanh), LSTM or GRU, or of a module that holds
        one. Networks here take x time first, also where the module has batch_first.

        state_dict: that of the module, name -> array or CPU tensor, with any prefix; or
        the module, which also tells whether it is of tanh; dropout is left out.
        readout: the name of the torch.nn.Linear that is the output layer, as in
        readout="fc"; None is "readout", as `to_torch` has it, where there is one; an
        activation after it is lost. Returns Params that share no memory with it. Raises
        TypeError or ValueError for names and shapes that have no place here.
        """
        named, cell = other_frameworks.read_torch(state_dict, readout)
        return cls.from_arrays(named, cell).check("state_dict")

    @classmethod
    def from_keras(cls, *layers: Any, readout: Any = None) -> "Params":
        """Parameters of layers of Keras, LSTM, GRU (reset_after) or SimpleRNN, the
        lowest first. Networks here take x time first, (T, B, D), where Keras has
        (B, T, D).

        layers: each a layer, or a list of its arrays, which cannot tell activations and
        direction: kernel (D, G*H), recurrent kernel (H, G*H), bias (G*H,), or (2, G*H)
        of a GRU. readout: a Dense or its arrays; it is applied to the last step.
        Returns Params that share no memory with them. Raises TypeError or ValueError
        for shapes that do not fit and a layer that computes something else.
        """
        named, cell = other_frameworks.read_keras(layers, readout)
        return cls.from_arrays(named, cell).check("layers")

    def to_torch(self, *, prefix: str = "", readout: str = "readout") -> Named:
        """The state_dict of the torch.nn module, and of a torch.nn.Linear called
        `readout`: arrays, which `torch.from_numpy` makes tensors of.

        prefix: before the names of the module, such as "rnn.". b goes into `bias_ih`;
        `bias_hh` is zero but for a GRU's last block. Raises ValueError for a cell that
        PyTorch does not have.
        """
        return other_frameworks.write_torch(self, prefix=prefix, readout=readout)


@dataclass(repr=False, eq=False)
class Grads(Weights):
    """Gradients: the fields of Params, and `.x` (T, B, D) and `.state`, a tuple of (L,
    B, H).
    """

    x: np.ndarray | None = None
    state: tuple[np.ndarray, ...] = ()

    def arrays(self) -> Named:
        """Every gradient by name: the parameters', then `x`, `state.h` and so on."""
        names = (f"state.{name}" for name in CELLS[self.cell].state)
        named = super().arrays() | ({} if self.x is None else {"x": self.x})
        return named | dict(zip(names, self.state, strict=True))

"""Parameters of a stacked recurrent network, and gradients of the same form."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike

from . import torch_names
from .cells import CELLS, Cell
from .errors import check_array, check_choice, check_dtype, check_int, counted
from .files import read_npz, write_npz

FORMAT = "lstm_kernels.params/2"
Named = dict[str, np.ndarray]


@dataclass
class Layer:
    """Weights U (D, G*H) of the input, W (H, G*H) of h; bias b (K*H,): K = G, but 4 for
    a GRU.
    """

    U: np.ndarray
    W: np.ndarray
    b: np.ndarray


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

    return Layer(
        blocks(layer.U, cell.input_gates),
        blocks(layer.W, cell.recurrent_gates),
        layer.b,
    )


def fold(cell: Cell, grad: Layer) -> Layer:
    """The gradient of a layer from that of its expanded form: the blocks that are
    parameters.
    """

    def blocks(matrix, gates):
        if len(gates) == len(cell.gates):
            return matrix
        split = matrix.reshape(len(matrix), len(cell.gates), -1)
        return split.take(gates, axis=1).reshape(len(matrix), -1)

    return Layer(
        blocks(grad.U, cell.input_gates), blocks(grad.W, cell.recurrent_gates), grad.b
    )


def shapes(cell: Cell, D: int, H: int, L: int, O: int | None) -> dict[str, tuple]:
    """The shape of every array by its name in `arrays`, in order."""
    GH, KH = len(cell.input_gates) * H, len(cell.gates) * H
    named: dict[str, tuple] = {}
    for index in range(L):
        shape = {"U": (H if index else D, GH), "W": (H, GH), "b": (KH,)}
        named |= {f"layers.{index}.{part}": shape[part] for part in shape}
    return named if O is None else named | {"V": (H, O), "b_out": (O,)}


@dataclass(repr=False)
class Weights:
    """What parameters and their gradients share: an array for each parameter, by
    name.
    """

    layers: list[Layer]
    V: np.ndarray | None = None
    b_out: np.ndarray | None = None
    cell: str = "lstm"
    # What a layer is, and its arrays.
    layer: ClassVar[type] = Layer
    parts: ClassVar[tuple[str, ...]] = ("U", "W", "b")

    @property
    def input_size(self) -> int:
        return self.layers[0].U.shape[0]

    @property
    def hidden_size(self) -> int:
        return self.layers[0].W.shape[0]

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def output_size(self) -> int | None:
        return None if self.V is None else self.V.shape[1]

    @property
    def dtype(self) -> np.dtype:
        return self.layers[0].W.dtype

    @property
    def form(self) -> str:
        """The sizes in words: `LSTM, 2 layers of 32, 1 input, read-out 1, float32`."""
        layers, inputs = (
            counted(self.num_layers, "layer"),
            counted(self.input_size, "input"),
        )
        readout = "" if self.V is None else f", read-out {self.output_size}"
        return f"{self.cell.upper()}, {layers} of {self.hidden_size}, {inputs}{readout}, {self.dtype}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.form}"

    def arrays(self) -> Named:
        """The arrays themselves by name, in order: `layers.0.U`, ..., `V`, `b_out`."""
        named = {
            f"layers.{index}.{part}": getattr(layer, part)
            for index, layer in enumerate(self.layers)
            for part in self.parts
        }
        return named if self.V is None else named | {"V": self.V, "b_out": self.b_out}


class Parameters(Weights):
    """Weights that a network has: they can be copied, and made from arrays by name."""

    @classmethod
    def from_arrays(cls, named: Mapping[str, np.ndarray], cell: str) -> Self:
        """The inverse of `arrays`."""
        count = sum(name.endswith(".b") for name in named)
        layers = [
            cls.layer(*(named[f"layers.{index}.{part}"] for part in cls.parts))
            for index in range(count)
        ]
        return cls(layers, named.get("V"), named.get("b_out"), cell)

    def copy(self) -> Self:
        """A deep copy."""
        return self.from_arrays(
            {name: a.copy() for name, a in self.arrays().items()}, self.cell
        )

    def astype(self, dtype: DTypeLike) -> Self:
        """A copy in float32 or float64."""
        dtype = check_dtype("dtype", dtype)
        return self.from_arrays(
            {n: a.astype(dtype) for n, a in self.arrays().items()}, self.cell
        )


class Params(Parameters):
    """Parameters: `layers[l].U`, `.W`, `.b`, and the read-out `V` (H, O), `b_out` (O,)
    or None.
    """

    @classmethod
    def init(
        cls,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        output_size: int | None = None,
        cell: str = "lstm",
        seed: int = 0,
        dtype: DTypeLike = np.float32,
    ) -> Self:
        """Draw every array from U(-1/sqrt(H), 1/sqrt(H)), PyTorch's default, with a
        seed.

        The draw is in float64 and then rounded, so both dtypes start from the same
        point. Raises TypeError or ValueError for a size below one, an unknown cell or
        dtype.
        """
        D, H = (
            check_int("input_size", input_size),
            check_int("hidden_size", hidden_size),
        )
        L = check_int("num_layers", num_layers)
        O = None if output_size is None else check_int("output_size", output_size)
        kind = CELLS[check_choice("cell", cell, CELLS)]
        dtype = check_dtype("dtype", dtype)
        rng, root = (
            np.random.default_rng(check_int("seed", seed, low=0)),
            np.sqrt(H).astype(dtype),
        )
        drawn = shapes(kind, D, H, L, O).items()
        return cls.from_arrays(
            {n: rng.uniform(-1, 1, s).astype(dtype) / root for n, s in drawn}, cell
        )

    def cut(self, flat: np.ndarray) -> Named:
        """Copies of the parts of `flat`, one after another in the order and shapes of
        `arrays`.
        """
        arrays = self.arrays()
        parts = np.split(flat, np.cumsum([a.size for a in arrays.values()]))
        return {
            n: p.reshape(arrays[n].shape).copy()
            for n, p in zip(arrays, parts, strict=False)
        }

    def check(self, name: str = "params") -> "Params":
        """Raise TypeError or ValueError if shapes, dtypes or values do not fit.

        Returns Params of plain C-contiguous arrays: these, or others where one had to
        be copied or viewed; the caller's own stay as they are.
        """
        if not isinstance(self, Params):
            raise TypeError(
                f"{name}: got {type(self).__name__}, want lstm_kernels.Params"
            )
        cell, layers = (
            CELLS[check_choice(f"{name}.cell", self.cell, CELLS)],
            self.layers,
        )
        if not isinstance(layers, list | tuple) or not layers:
            raise ValueError(
                f"{name}.layers: got {layers!r}, want a list of at least one Layer"
            )
        for index, layer in enumerate(layers):
            if not isinstance(layer, Layer):
                raise TypeError(
                    f"{name}.layers[{index}]: got {layer!r}, want lstm_kernels.Layer"
                )
        if (self.V is None) != (self.b_out is None):
            lone = "V without b_out" if self.b_out is None else "b_out without V"
            raise ValueError(f"{name}: got {lone}, want both or neither")
        arrays, checked = self.arrays(), {}
        top, GH = f"{name}.layers[0]", f"{len(cell.input_gates)}*H"
        D, _ = check_array(f"{top}.U", layers[0].U, ("D", GH)).shape
        H, _ = check_array(f"{top}.W", layers[0].W, ("H", GH)).shape
        O = (
            None
            if self.V is None
            else check_array(f"{name}.V", self.V, ("H", "O")).shape[1]
        )
        for path, shape in shapes(cell, D, H, len(layers), O).items():
            place = re.sub(r"layers\.(\d+)", r"layers[\1]", f"{name}.{path}")
            checked[path] = check_array(
                place, arrays[path], shape, dtype=layers[0].W.dtype
            )
        kept = all(checked[path] is a for path, a in arrays.items())
        return self if kept else Params.from_arrays(checked, self.cell)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an .npz file, all of it or nothing. Raises as `check` does, and
        OSError.
        """
        write_npz(path, {"format": FORMAT, "cell": self.cell}, self.check().arrays())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Params":
        """Read what `save` wrote. Raises OSError; ValueError for a damaged or foreign
        file.
        """

        def build(header, named):
            params = cls.from_arrays(named, header["cell"])
            if unknown := sorted(set(named) - set(params.arrays())):
                raise ValueError(f"got unknown arrays {unknown}")
            return params.check()

        return read_npz(path, FORMAT, build)

    @classmethod
    def from_torch(
        cls, state_dict: Mapping[str, object], *, readout: str | None = None
    ) -> "Params":
        """Parameters from the state_dict of a torch.nn.RNN (tanh), LSTM or GRU, or of a
        module that holds one.

        state_dict: name -> array or CPU tensor; `weight_ih_l0` (G*H, D) and so on, with
        any prefix. The read-out, if any, is `readout.weight` (O, H) and `readout.bias`
        (O,), as `to_torch` writes them, with the same prefix or none; `readout` names
        another torch.nn.Linear. The two biases of a layer are added where only their
        sum matters. Returns Params that share no memory with it. Raises TypeError or
        ValueError for shapes that do not fit, and for names that this form cannot hold
        (reverse, projections, other modules).
        """
        return cls.from_arrays(*torch_names.read(state_dict, readout)).check(
            "state_dict"
        )

    def to_torch(self) -> Named:
        """The state_dict of the torch.nn module, and of a torch.nn.Linear called
        `readout`.

        b goes into `bias_ih`; `bias_hh` is zero but for a GRU's last block.
        """
        return torch_names.write(self)


@dataclass(repr=False)
class Gradients(Weights):
    """Gradients of parameters, and `.x` (T, B, D) and `.state`, a tuple of (L, B,
    H).
    """

    x: np.ndarray | None = None
    state: tuple[np.ndarray, ...] = ()

    def arrays(self) -> Named:
        """Every gradient by name: those of the parameters, then `x`, `state.h` and so
        on.
        """
        names = (f"state.{name}" for name in CELLS[self.cell].state)
        named = super().arrays() | ({} if self.x is None else {"x": self.x})
        return named | dict(zip(names, self.state, strict=True))


class Grads(Gradients):
    """Gradients: the fields of Params, and `.x` (T, B, D) and `.state`, a tuple of (L,
    B, H).
    """

    def to_torch(self) -> Named:
        """The gradients of PyTorch's parameters; the same of both biases where they are
        added.
        """
        return torch_names.write(self, gradients=True)

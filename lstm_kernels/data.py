"""The airline-passenger series, its preprocessing, and data sets of windows."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .errors import check_array, check_dtype, check_int, check_numbers

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Path(__file__).parent / "series"


@dataclass(repr=False)
class Dataset:
    """Examples for sequence prediction: x (T, N, D) inputs, target (N, O), N examples."""

    x: np.ndarray
    target: np.ndarray

    def __post_init__(self):
        self.x = check_array("x", self.x, ("T", "N", "D"))
        self.target = check_array("target", self.target, (self.x.shape[1], "O"), dtype=self.x.dtype)

    def __len__(self) -> int:
        return self.x.shape[1]

    def __repr__(self) -> str:
        sizes = f"x {self.x.shape}, target {self.target.shape}, {self.x.dtype}"
        return f"Dataset: {len(self)} examples, {sizes}"

    def batch(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The examples at `index` (B,): x (T, B, D) and target (B, O), copies."""
        return np.ascontiguousarray(self.x[:, index]), self.target[index]

    def each_batch(self, order: np.ndarray, batch_size: int, step: Callable) -> list[float]:
        """step(x, target) for each mini-batch of `order`, the last one smaller if need be; the
        losses, up to one not finite.
        """
        losses = []
        for first in range(0, len(order), batch_size):
            losses.append(step(*self.batch(order[first : first + batch_size])))
            if not math.isfinite(losses[-1]):
                break
        return losses

    def sha256(self) -> str:
        """The hash of the examples: shapes, dtypes and numbers of x and target."""
        digest = hashlib.sha256()
        for a in (self.x, self.target):
            digest.update(f"{a.shape} {a.dtype.str} ".encode())
            digest.update(a.tobytes())
        return digest.hexdigest()


def airline() -> "pd.Series":
    """Monthly airline passengers in thousands, 1949-1960 (Box, Jenkins & Reinsel, Series G): a
    pandas Series of 144 integers, indexed by month.
    """
    import pandas as pd  # slow to import, and only needed here

    table = pd.read_csv(FOLDER / "airline_passengers.csv", index_col="month")
    return table["passengers"].set_axis(pd.PeriodIndex(table.index, freq="M"))


def windows(series: ArrayLike, length: int, *, dtype: DTypeLike = np.float32) -> Dataset:
    """Every run of `length` values as an input, the value after it as the target.

    series: (N,) finite real numbers; dtype: of the examples. Returns a Dataset of N - length
    examples: x (length, N - length, 1), target (N - length, 1). Raises TypeError, or ValueError
    when the series is not longer than a window.
    """
    values = check_numbers("series", series)
    length = check_int("length", length, 1, len(values) - 1)
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused as infinite
        values = values.astype(check_dtype("dtype", dtype))
    views = np.lib.stride_tricks.sliding_window_view(values[:-1], length)  # (N - length, length)
    return Dataset(views.T[..., None], values[length:, None])


@dataclass(frozen=True)
class LogDifference:
    """Passengers to scaled monthly growth and back: z_t = (log p_t - log p_{t-1} - mean) / std.

    `mean` and `std` come from the months given to `fit` and from no others. Passengers are finite
    real numbers above zero; anything else is a TypeError or ValueError.
    """

    mean: float
    std: float

    def __post_init__(self):
        check_numbers("mean", self.mean, ())
        check_numbers("std", self.std, (), positive=True)  # zero where growth never varies

    @classmethod
    def fit(cls, passengers: ArrayLike) -> "LogDifference":
        growth = cls._growth(passengers)
        return cls(float(growth.mean()), float(growth.std()))

    def forward(self, passengers: ArrayLike) -> np.ndarray:
        """(N,) passengers to (N - 1,) values; N is at least 2."""
        return (self._growth(passengers) - self.mean) / self.std

    def backward(self, before: ArrayLike, z: ArrayLike) -> np.ndarray:
        """Passengers from those of the month before and the value of this month."""
        before = check_numbers("before", before, None, positive=True)
        return before * np.exp(check_numbers("z", z, None) * self.std + self.mean)

    @staticmethod
    def _growth(passengers):
        passengers = check_numbers("passengers", passengers, positive=True)
        if len(passengers) < 2:
            raise ValueError("passengers: got 1 month, want at least 2")
        return np.diff(np.log(passengers))

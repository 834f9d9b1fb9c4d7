"""The airline-passenger series, its preprocessing, and data sets of windows."""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from .errors import check_array, check_int

FOLDER = Path(__file__).parents[1] / "data"
AIRLINE_CSV = FOLDER / "airline_passengers.csv"
AIRLINE_SHA256 = "fe529825b8393b6873a1be3d9c484cbd0c7e6853b6ca082612f406a762e2de4e"


@dataclass
class Dataset:
    """Examples for sequence prediction: x (T, N, D) inputs, target (N, O), N examples."""

    x: np.ndarray
    target: np.ndarray

    def __post_init__(self):
        self.x = check_array("x", self.x, ("T", "N", "D"))
        self.target = check_array("target", self.target, (self.x.shape[1], "O"), dtype=self.x.dtype)

    def __len__(self):
        return self.x.shape[1]

    def batch(self, index):
        """The examples at `index` (B,): x (T, B, D) and target (B, O), copies."""
        return np.ascontiguousarray(self.x[:, index]), self.target[index]

    def each_batch(self, order, batch_size, step):
        """step(x, target) for each mini-batch of `order`; the losses, up to one not finite."""
        losses = []
        for first in range(0, len(order), batch_size):
            losses.append(step(*self.batch(order[first : first + batch_size])))
            if not math.isfinite(losses[-1]):
                break
        return losses


def airline(path=AIRLINE_CSV):
    """Monthly airline passengers in thousands, 1949-1960 (Box, Jenkins & Reinsel, Series G).

    Returns a pandas Series of 144 integers, indexed by month. Raises FileNotFoundError, or
    ValueError for a file that is not this series.
    """
    try:
        table = pd.read_csv(path)
        months = pd.PeriodIndex(table["month"], freq="M", name="month")
        values = table["passengers"].to_numpy()
    except FileNotFoundError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"path: {path} cannot be read ({error}), want the columns month, passengers"
        ) from None
    digest = hashlib.sha256(",".join(map(str, values)).encode()).hexdigest()
    expected = pd.period_range("1949-01", periods=144, freq="M")
    if digest != AIRLINE_SHA256 or not months.equals(expected):
        raise ValueError(
            f"path: {path} holds {len(values)} values that are not Series G, want the 144 months "
            "1949-01 to 1960-12 whose hash is in data/README.md"
        )
    return pd.Series(values, index=months, name="passengers")


def windows(series, length, dtype=np.float32):
    """Every run of `length` values as an input, the value after it as the target.

    series: (N,) numbers. Returns a Dataset of N - length examples: x (length, N - length, 1),
    target (N - length, 1). Raises ValueError when the series is not longer than a window.
    """
    series, length = np.asarray(series), check_int("length", length)
    if series.ndim != 1 or len(series) <= length:
        raise ValueError(
            f"length: got {length} for a series of shape {series.shape}, want a shorter window"
        )
    views = np.lib.stride_tricks.sliding_window_view(series[:-1], length)  # (N - length, length)
    return Dataset(
        np.ascontiguousarray(views.T[..., None], dtype), series[length:, None].astype(dtype)
    )


@dataclass(frozen=True)
class LogDifference:
    """Passengers to scaled monthly growth and back: z_t = (log p_t - log p_{t-1} - mean) / std.

    `mean` and `std` come from the months given to `fit` and from no others.
    """

    mean: float
    std: float

    @classmethod
    def fit(cls, passengers):
        growth = np.diff(np.log(np.asarray(passengers, float)))
        return cls(float(growth.mean()), float(growth.std()))

    def forward(self, passengers):
        """(N,) passengers to (N - 1,) values."""
        return (np.diff(np.log(np.asarray(passengers, float))) - self.mean) / self.std

    def backward(self, before, z):
        """Passengers from those of the month before and the value of this month."""
        return np.asarray(before, float) * np.exp(np.asarray(z, float) * self.std + self.mean)

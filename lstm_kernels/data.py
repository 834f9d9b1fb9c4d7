"""Data sets for sequence prediction, and the airline-passenger series."""

import hashlib
import math
import re
from bisect import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .errors import (
    DivergedError,
    check_array,
    check_dtype,
    check_int,
    check_numbers,
    check_type,
)

if TYPE_CHECKING:
    import pandas as pd

FOLDER = files(__package__) / "series"  # also where the package is in a zip archive


@dataclass(repr=False)
class Dataset:
    """Examples for sequence prediction: x (T, N, D) inputs, time first, target (N, O),
    N examples.

    Examples of other lengths: a Dataset for each length, since the prediction is read
    from the last step, which must not be padding.
    """

    x: np.ndarray
    target: np.ndarray

    def __post_init__(self):
        self.x = check_array("x", self.x, ("T", "N", "D"))
        shape = self.x.shape[1], "O"
        self.target = check_array("target", self.target, shape, dtype=self.x.dtype)

    @classmethod
    def from_batch_first(cls, x: np.ndarray, target: np.ndarray) -> "Dataset":
        """Examples whose x is (N, T, D), as Keras and scikit-learn have them. An array
        of another order cannot be told from one of this order by its shape.
        """
        return cls(check_array("x", x, ("N", "T", "D")).swapaxes(0, 1), target)

    def __len__(self) -> int:
        return self.x.shape[1]

    def __repr__(self) -> str:
        sizes = f"x {self.x.shape}, target {self.target.shape}, {self.x.dtype}"
        return f"Dataset: {len(self)} examples, {sizes}"

    def batch(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The examples at `index` (B,): x (T, B, D) and target (B, O), copies."""
        return np.ascontiguousarray(self.x[:, index]), self.target[index]

    def batches(self, order: np.ndarray, batch_size: int) -> Iterable[np.ndarray]:
        """The examples of each mini-batch, as `order` (N,) has them; the last one has
        fewer if need be.
        """
        starts = range(0, len(order), batch_size)
        return (order[start : start + batch_size] for start in starts)

    def each_batch(
        self, order: np.ndarray, batch_size: int, step: Callable
    ) -> list[float]:
        """step(x, target) for each of `batches`; the losses, up to one not finite. A
        DivergedError of a step says which one it was.
        """
        losses = []
        for index in self.batches(order, batch_size):
            try:
                losses.append(step(*self.batch(index)))
            except DivergedError as error:
                error.step = len(losses)
                raise
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


def check_order(dataset, order, batch_size):
    """Return indices `order` of examples as int64 (N,), and `batch_size` as an int.

    dataset: a Dataset. Raises TypeError, or ValueError for an index that is no example.
    """
    check_type("dataset", dataset, Dataset)
    order = np.asarray(order)
    if order.ndim != 1 or order.dtype.kind not in "iu":
        got = f"shape {order.shape} of {order.dtype}"
        raise TypeError(f"order: got {got}, want indices (N,), integers")
    if order.size and not 0 <= order.min() <= order.max() < len(dataset):
        got = f"indices {order.min()} to {order.max()}"
        raise ValueError(f"order: got {got}, want 0 to {len(dataset) - 1}")
    batch_size = check_int("batch_size", batch_size)
    return np.ascontiguousarray(order, np.int64), batch_size


def check_series(
    name: str,
    value: Any,
    shape: tuple[int | str, ...] = ("N",),
    *,
    positive: bool = False,
) -> np.ndarray:
    """Return a series (N,) as `check_numbers` does, where its index tells no fault: its
    dates, if it has any, go forward in equal steps, else a ValueError says where not.
    """
    numbers = check_numbers(name, value, shape, positive=positive)
    dates = dates_of(value)
    if dates is None:
        return numbers
    if dates.hasnans:
        raise ValueError(f"{name}.index: got NaT, want a date for each number")
    if not _is_regular(dates):
        counts = range(2, len(dates) + 1)
        count = 2 + bisect(counts, 0, key=lambda n: not _is_regular(dates[:n]))
        labels = (str(label) for label in value.index[count - 2 : count])
        before, after = (label.removesuffix(" 00:00:00") for label in labels)
        want = "equal steps, oldest first, or the numbers alone: .to_numpy()"
        raise ValueError(f"{name}.index: got {after} after {before}, want {want}")
    return numbers


def _is_regular(dates):
    """Whether dates or periods go forward, and none of them is left out."""
    steps = np.diff(dates.asi8)
    if not hasattr(dates, "tz"):  # periods
        return bool((steps == dates.freq.n).all())
    # Pandas knows that months and years are of unequal length; of two dates nothing.
    kind = type(dates)
    goes_on = len(dates) < 3 or kind(dates, freq="infer").freq is not None
    return bool((steps > 0).all()) and goes_on


def dates_of(series):
    """The pandas index of a series if it is of dates or periods, or of texts such as
    1949-01 or 1949-01-31; else None.
    """
    index = getattr(series, "index", None)
    if getattr(index, "dtype", None) in ("object", "str") and all(map(_is_date, index)):
        import pandas as pd

        return pd.DatetimeIndex(index)
    dated = type(index).__name__ in ("DatetimeIndex", "PeriodIndex")
    return index if dated else None


def _is_date(label):
    return isinstance(label, str) and bool(re.fullmatch(r"\d{4}-\d\d(-\d\d)?", label))


def airline() -> "pd.Series":
    """Monthly airline passengers in thousands, 1949-1960 (Box, Jenkins & Reinsel,
    Series G): a pandas Series of 144 integers, indexed by month.
    """
    import pandas as pd  # slow to import, and only needed here

    with (FOLDER / "airline_passengers.csv").open() as file:
        table = pd.read_csv(file, index_col="month")
    return table["passengers"].set_axis(pd.PeriodIndex(table.index, freq="M"))


def windows(
    series: ArrayLike, length: int, *, dtype: DTypeLike = np.float32
) -> Dataset:
    """Every run of `length` values as an input, the value after it as the target.

    series: (N,) finite real numbers; dtype: of the examples. Returns a Dataset of N -
    length examples: x (length, N - length, 1), target (N - length, 1). Raises
    TypeError, or ValueError when the series is not longer than a window, or when its
    index, of dates or periods, has a gap, a date twice, or the newest first.
    """
    values = check_series("series", series)
    length = check_int("length", length, 1, len(values) - 1)
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused as infinite
        values = values.astype(check_dtype("dtype", dtype))
    # (N - length, length)
    views = np.lib.stride_tricks.sliding_window_view(values[:-1], length)
    return Dataset(views.T[..., None], values[length:, None])


@dataclass(frozen=True)
class LogDifference:
    """Passengers to scaled monthly growth and back: z_t = (log p_t - log p_{t-1} -
    mean) / std.

    `mean` and `std` come from the months given to `fit` and from no others. Passengers
    are finite real numbers above zero, a pandas Series of them without a gap and oldest
    first; anything else is a TypeError or ValueError.
    """

    mean: float
    std: float

    def __post_init__(self):
        check_numbers("mean", self.mean, ())
        # Zero where growth never varies.
        check_numbers("std", self.std, (), positive=True)

    @classmethod
    def fit(cls, passengers: ArrayLike) -> "LogDifference":
        growth = cls._growth(passengers)
        return cls(float(growth.mean()), float(growth.std()))

    def forward(self, passengers: ArrayLike) -> np.ndarray:
        """(N,) passengers to (N - 1,) values; N is at least 2."""
        return (self._growth(passengers) - self.mean) / self.std

    def backward(self, before: ArrayLike, z: ArrayLike) -> np.ndarray:
        """Passengers from those of the month before and the value of this month.

        Raises ValueError, too, for a value whose passengers are beyond float64.
        """
        last = check_numbers("before", before, None, positive=True)
        values = check_numbers("z", z, None)
        with np.errstate(over="ignore"):
            passengers = last * np.exp(values * self.std + self.mean)
        if not np.isfinite(passengers).all():
            raise ValueError(f"z: got up to {values.max():.3g}, want finite passengers")
        return passengers

    @staticmethod
    def _growth(passengers):
        passengers = check_series("passengers", passengers, positive=True)
        if len(passengers) < 2:
            raise ValueError("passengers: got 1 month, want at least 2")
        return np.diff(np.log(passengers))

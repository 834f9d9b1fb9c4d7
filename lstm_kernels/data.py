"""Data sets for sequence prediction, and the airline-passenger series."""

import hashlib
import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
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


@dataclass(repr=False, eq=False)
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
        self.target = check_array(
            "target", self.target, (self.x.shape[1], "O"), dtype=self.x.dtype
        )

    @classmethod
    def from_batch_first(cls, x: np.ndarray, target: np.ndarray) -> "Dataset":
        """Examples whose x is (N, T, D), as Keras and scikit-learn have them."""
        x = check_array("x", x, ("N", "T", "D"))
        check_array("target", target, (len(x), "O"), dtype=x.dtype)
        return cls(x.swapaxes(0, 1), target)

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
    if isinstance(order, np.ma.MaskedArray):
        raise TypeError("order: got a masked array, want indices without a mask")
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
    name: str, value: Any, shape: Any = ("N",), *, positive: bool = False
) -> np.ndarray:
    """Return a series (N,) as `check_numbers` does; its dates, if it has any, go
    forward without a gap, else ValueError.
    """
    numbers = check_numbers(name, value, shape, positive=positive)
    dates = dates_of(value)
    if dates is not None and len(dates) > 1 and not _is_regular(dates):
        got = f"{dates[0]} to {dates[-1]} with a gap, a date twice or out of order"
        want = "equal steps, oldest first, or the numbers alone: .to_numpy()"
        raise ValueError(f"{name}.index: got {got}, want {want}")
    return numbers


def _is_regular(dates):
    """Whether dates or periods go forward by the same step; months are one."""
    if not (dates.is_monotonic_increasing and dates.is_unique) or dates.hasnans:
        return False
    if not hasattr(dates, "tz"):  # periods
        return bool((np.diff(dates.asi8) == dates.freq.n).all())
    months = np.diff(12 * dates.year + dates.month)
    if len(dates) == 2 or (months[0] > 0 and (months == months[0]).all()):
        return True
    freq, steps = type(dates)(dates, freq="infer").freq, len(dates) - 1
    clocks = dates, dates.tz_localize(None)  # a day may have 23 hours
    return freq is not None and any(d[0] + steps * freq == d[-1] for d in clocks)


def dates_of(series):
    """The dates or periods of a pandas object's index, also such as it reads from a
    file as texts that begin with the year; or None.
    """
    index = getattr(series, "index", None)
    if not hasattr(index, "dtype"):  # no index of pandas
        return None
    import pandas as pd

    if isinstance(index, pd.DatetimeIndex | pd.PeriodIndex):
        return index
    if all(isinstance(t, str) and re.match(r"\d{4}\D\d", t) for t in index):
        with suppress(ValueError):  # no dates
            return pd.to_datetime(index, format="mixed").tz_localize(None)
    return None


def airline() -> "pd.Series":
    """Monthly airline passengers in thousands, 1949-1960 (Box, Jenkins & Reinsel,
    Series G): a pandas Series of 144 integers, indexed by month.
    """
    import pandas as pd  # slow to import, and only needed here

    with (FOLDER / "airline_passengers.csv").open() as file:
        table = pd.read_csv(file, index_col="month")
    return table["passengers"].set_axis(pd.PeriodIndex(table.index, freq="M"))


def windows(
    series: ArrayLike,
    length: int,
    *,
    target: Any = None,
    horizon: int = 1,
    dtype: DTypeLike = np.float32,
) -> Dataset:
    """Every run of `length` values as an input, the `horizon` values after it as the
    target.

    series: (N,) finite real numbers; or D columns, an array (N, D) or a pandas
    DataFrame. target: the column that is forecast, its name in a DataFrame, else its
    index, or a list of them; None is all. dtype: of the examples.

    Returns a Dataset of N' = N - length - horizon + 1 examples: x (length, N', D),
    target (N', horizon * columns), the columns of the first step, then those of the
    next. Raises TypeError, or ValueError when the series is not longer than a window
    and its horizon, when it has no such column, or when its index, of dates or periods,
    has a gap, a date twice, or the newest first.

    Values are taken as they are. Scale them first, to about -1 to 1, as `LogDifference`
    does: gates fed with hundreds saturate, and every forecast is the same number.
    """
    values, labels = _columns("series", series)
    if len(values) < 2:
        raise ValueError(f"series: got {len(values)} value, want at least 2")
    horizon = check_int("horizon", horizon, 1, len(values) - 1)
    length = check_int("length", length, 1, len(values) - horizon)
    wanted = target if isinstance(target, list) else [target]
    try:
        chosen = [labels.index(n) for n in (labels if target is None else wanted)]
    except ValueError:  # of an array too, which equals nothing
        chosen = []
    if not chosen:
        raise ValueError(f"target: got {target!r}, want one or a list of {labels}")
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused as infinite
        values = values.astype(check_dtype("dtype", dtype))
    check_array(f"series as {values.dtype}", values, ("N", "D"))
    cut = partial(np.lib.stride_tricks.sliding_window_view, axis=0)
    x = cut(values[:-horizon], length)  # (N', D, length)
    y = cut(values[length:, chosen], horizon)  # (N', columns, horizon)
    return Dataset(x.transpose(2, 0, 1), y.swapaxes(1, 2).reshape(len(y), -1))


def _columns(name, value):
    """The numbers (N, D) of a series, an array or a DataFrame, and the names of its
    columns, or their indices.
    """
    if not hasattr(value, "columns"):
        shape = ("N", "D") if getattr(value, "ndim", 1) == 2 else ("N",)
        values = check_series(name, value, shape)
        values = values.reshape(len(values), -1)
        return values, [*range(values.shape[1])]
    labels = [*value.columns]
    if len({*labels}) < len(labels):
        raise ValueError(f"{name}.columns: got {labels}, want each name once")
    columns = [check_series(f"{name}[{label!r}]", value[label]) for label in labels]
    return check_array(name, np.array(columns).T, ("N", "D")), labels


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
        if last.ndim and values.ndim and last.shape != values.shape:
            raise ValueError(f"z: got shape {values.shape}, want {last.shape}")
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

"""What is measured: sizes of networks and mini-batches by name; windows of the airline
series.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from lstm_kernels import data
from lstm_kernels.params import Params


@dataclass(frozen=True)
class Workload:
    """Sizes of a network and a mini-batch: layers, steps, inputs, hidden units,
    samples.
    """

    L: int
    T: int
    D: int
    H: int
    B: int

    def params(self, **options: Any) -> Params:
        return Params.init(self.D, self.H, num_layers=self.L, output_size=1, **options)

    def example(self, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Random x (T, B, D) and target (B, 1), float32."""
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((self.T, self.B, self.D)).astype(np.float32)
        return x, rng.standard_normal((self.B, 1)).astype(np.float32)

    def dy(self, seed: int = 0) -> np.ndarray:
        """A random gradient of y, (T, B, H), float32."""
        rng = np.random.default_rng(seed)
        return rng.standard_normal((self.T, self.B, self.H)).astype(np.float32)

    def dataset(self, N: int, seed: int = 0) -> data.Dataset:
        """A data set of N random examples."""
        return data.Dataset(*replace(self, B=N).example(seed))

    @property
    def gflop(self) -> float:
        """Floating-point operations of one LSTM inference, products only, in 1e9."""
        inputs = self.D + (self.L - 1) * self.H + self.L * self.H
        return 2 * self.T * self.B * 4 * self.H * inputs / 1e9

    @property
    def step_gflop(self) -> float:
        """The same of a training step: twice as many again, but for dx of the first
        layer.
        """
        return 3 * self.gflop - 2 * self.T * self.B * 4 * self.H * self.D / 1e9

    @property
    def repeats(self) -> int:
        """Rounds that keep a measurement under a minute or two."""
        bounds = {0.1: 20, 10: 10, 200: 5}
        return next((n for most, n in bounds.items() if self.gflop < most), 3)

    def columns(self) -> dict[str, Any]:
        return asdict(self) | {"dtype": "float32"}


AIRLINE = Workload(L=1, T=12, D=1, H=32, B=16)
REFERENCE = Workload(L=4, T=100, D=512, H=512, B=64)
SMALL_REFERENCE = Workload(L=2, T=10, D=64, H=64, B=16)
GRID = {
    "airline": AIRLINE,
    "airline, two layers": Workload(L=2, T=12, D=1, H=64, B=16),
    "middle": Workload(L=4, T=100, D=128, H=128, B=32),
    "deep, one sample": Workload(L=8, T=500, D=256, H=256, B=1),
    "one layer": Workload(L=1, T=100, D=512, H=512, B=64),
    "reference, 1 sample": replace(REFERENCE, B=1),
    **{f"reference, {B} samples": replace(REFERENCE, B=B) for B in (4, 16, 64, 256)},
}

# Of models of PyTorch; the last two are those of pytorch/pytorch#65597 and #81634.
MODELS = {
    "airline": AIRLINE,
    "two layers": Workload(L=2, T=50, D=1, H=64, B=32),
    "three layers": Workload(L=3, T=12, D=4, H=64, B=32),
    "long": Workload(L=2, T=200, D=256, H=256, B=8),
}


def airline_dataset() -> data.Dataset:
    """The training windows of page 02: 12 months each, years 1949-1958."""
    passengers = data.airline().to_numpy(float)[:120]
    return data.windows(data.LogDifference.fit(passengers).forward(passengers), 12)

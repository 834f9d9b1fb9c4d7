"""The registry of versions: the ladder from plain loops to the machine's limit.

A version is a file in this folder; its docstring says what is parallel, what changed
from the version below and what bounds it. Nothing is imported before it is asked for.
"""

import inspect
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from ..errors import UnavailableError, check_choice, why_not_compiled
from ..params import Params

if TYPE_CHECKING:
    from .base import Network

VersionName = Literal[
    "sequential",
    "numpy-sample",
    "numpy-naive",
    "numpy",
    "numba-sample",
    "numba-tile",
    "numba-wavefront",
    "numba-fused",
    "cuda-v1",
    "cuda-v2",
    "cuda-v3",
    "cuda-fused",
    "cuda-epoch",
    "cuda-persistent",
]


@dataclass(frozen=True)
class Version:
    """A version; the four fields after `target` are columns of the source's table."""

    name: VersionName
    summary: str
    made_by: str  # its class, in a file of this folder
    target: str = "cpu"  # or "gpu"
    mini_batch_on: str = "CPU"
    sample_on: str = "CPU"
    thread_positioning: bool = False
    transfer_optimised: bool = False

    def load(self) -> type["Network"]:
        """Its class, imported."""
        module, _, name = self.made_by.partition(".")
        return getattr(import_module(f".{module}", __package__), name)

    @property
    def why_unavailable(self) -> str | None:
        """None when the version can run here, else the reason."""
        if self.name.startswith(("numpy", "sequential")):
            return None
        if why := why_not_compiled():
            return why
        return self.load().why_unavailable() if self.target == "gpu" else None


_BOTH = "gpu", "CPU+GPU", "CPU+GPU"  # where the source's versions keep what they use
_GPU = "gpu", "GPU", "GPU", True, True
_VERSIONS = (
    Version("sequential", "plain Python loops", "sequential.Sequential"),
    Version("numpy-sample", "NumPy, one sample at a time", "numpy_sample.NumpySample"),
    Version(
        "numpy-naive", "NumPy, a product per gate and operand", "numpy_naive.NumpyNaive"
    ),
    Version(
        "numpy", "NumPy, combined products: the reference", "numpy_batched.NumpyBatched"
    ),
    Version("numba-sample", "threads over the samples", "numba_sample.NumbaSample"),
    Version("numba-tile", "a register tile in plain Numba", "numba_tile.NumbaTile"),
    Version("numba-wavefront", "threads over layers", "numba_wavefront.NumbaWavefront"),
    Version("numba-fused", "register tiles, cells fused in", "numba_fused.NumbaFused"),
    Version("cuda-v1", "quick port: one thread of the GPU", "cuda_v1.CudaV1", *_BOTH),
    Version("cuda-v2", "a thread per sample", "cuda_v2.CudaV2", *_BOTH, True),
    Version("cuda-v3", "transfers by hand", "cuda_v3.CudaV3", *_BOTH, True, True),
    Version(
        "cuda-fused", "the network stays on the GPU", "cuda_fused.CudaFused", *_GPU
    ),
    Version("cuda-epoch", "an epoch is one launch", "cuda_epoch.CudaEpoch", *_GPU),
    Version(
        "cuda-persistent",
        "weights stay on the chip",
        "cuda_persistent.CudaPersistent",
        *_GPU,
    ),
)


def versions() -> tuple[Version, ...]:
    """Every version, from the slowest up, as a tuple of Version."""
    return _VERSIONS


def network(
    name: VersionName, params: Params, *, threads: int | None = None, **options: Any
) -> "Network":
    """Make a network of version `name` with a copy of `params`. It takes x time first,
    (T, B, D).

    threads: how many to use; None: as many as the cores that this process may use. A
    version that is not parallel uses one. options: those of the version, which the
    docstring of its class explains: subnormals of the numba versions; schedules of
    numba-wavefront. Raises ValueError, TypeError, or UnavailableError with the reason.
    """
    by_name = {version.name: version for version in _VERSIONS}
    version = by_name[check_choice("name", name, by_name)]
    if version.why_unavailable:
        raise UnavailableError(
            f"name: {name!r} cannot run here: {version.why_unavailable}"
        )
    make = version.load()
    parameters = inspect.signature(make).parameters.values()
    known = ["threads", *(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)]
    for option in options:
        if option not in known:
            want = f"options of {name}: {', '.join(known)}"
            raise TypeError(f"network: got option {option!r}, want {want}")
    return make(params, threads=threads, **options)

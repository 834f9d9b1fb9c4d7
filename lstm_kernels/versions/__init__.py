"""The registry of versions: the ladder from plain loops to the machine's limit.

A version is a file in this folder; its docstring says what is parallel, what changed
from the rung below and what bounds it. Nothing is imported before it is asked for.
"""

import importlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import UnavailableError, check_choice
from ..params import Params

if TYPE_CHECKING:
    from .base import Network


@dataclass(frozen=True)
class Version:
    """A rung of the ladder; the four fields after `target` are columns of the source's
    table.
    """

    name: str
    summary: str
    target: str  # "cpu" or "gpu"
    mini_batch_on: str
    sample_on: str
    thread_positioning: bool
    transfer_optimised: bool
    module: str
    network: str
    several_ways: bool = False  # whether CPUs run it in different ways

    @cached_property
    def why_unavailable(self) -> str | None:
        """None when the version can run here, else the reason."""
        if self.target == "cpu":
            return None
        return importlib.import_module("..gpu.device", __package__).why_unavailable()

    @cached_property
    def way(self) -> str | None:
        """Which of its ways this CPU takes, in words; None where there is but one."""
        if not self.several_ways:
            return None
        return importlib.import_module(f".{self.module}", __package__).way_in_words()


def _cpu(name, summary, module, network, **more):
    return Version(
        name, summary, "cpu", "CPU", "CPU", False, False, module, network, **more
    )


def _gpu(name, summary, module, network, positioned, optimised):
    stays = name in ("cuda-fused", "cuda-epoch")
    where = ("GPU", "GPU") if stays else ("CPU+GPU", "CPU+GPU")
    return Version(name, summary, "gpu", *where, positioned, optimised, module, network)


_VERSIONS = (
    _cpu("sequential", "plain Python loops", "sequential", "Sequential"),
    _cpu("numpy-sample", "NumPy, one sample at a time", "numpy_sample", "NumpySample"),
    _cpu(
        "numpy-naive",
        "NumPy, a product per gate and operand",
        "numpy_naive",
        "NumpyNaive",
    ),
    _cpu(
        "numpy",
        "NumPy, combined products: the reference",
        "numpy_batched",
        "NumpyBatched",
    ),
    _cpu("numba-sample", "threads over the samples", "numba_sample", "NumbaSample"),
    _cpu("numba-wavefront", "threads over layers", "numba_wavefront", "NumbaWavefront"),
    _cpu("numba-fused", "register tiles, cells fused in", "numba_fused", "NumbaFused"),
    _cpu(
        "numba-bf16",
        "products in bfloat16, half the bytes",
        *("numba_bf16", "NumbaBf16"),
        several_ways=True,
    ),
    _gpu(
        "cuda-v1",
        "quick port: one thread of the GPU",
        "cuda_v1",
        "CudaV1",
        False,
        False,
    ),
    _gpu("cuda-v2", "a thread per sample", "cuda_v2", "CudaV2", True, False),
    _gpu("cuda-v3", "transfers by hand", "cuda_v3", "CudaV3", True, True),
    _gpu(
        "cuda-fused",
        "the network stays on the GPU",
        "cuda_fused",
        "CudaFused",
        True,
        True,
    ),
    _gpu("cuda-epoch", "an epoch is one launch", "cuda_epoch", "CudaEpoch", True, True),
)


def versions() -> tuple[Version, ...]:
    """Every version, from the slowest rung up, as a tuple of Version."""
    return _VERSIONS


def network(name: str, params: Params, *, threads: int | None = None) -> "Network":
    """Make a network of version `name` with a copy of `params`.

    threads: how many to use; None is `cores.cores()`. A version that is not parallel
    uses one. Raises ValueError (unknown name, bad params), TypeError, or
    UnavailableError with the reason.
    """
    by_name = {version.name: version for version in _VERSIONS}
    version = by_name[check_choice("name", name, by_name)]
    if version.why_unavailable:
        raise UnavailableError(
            f"name: {name!r} cannot run here: {version.why_unavailable}"
        )
    module = importlib.import_module(f".{version.module}", __package__)
    return getattr(module, version.network)(params, threads=threads)

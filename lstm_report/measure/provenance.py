"""What a measurement was taken on: the machine, its libraries and the kernel set BLAS
chose.
"""

import ctypes
import datetime
import os
import platform
import re
import shutil
import subprocess
import sys
import timeit
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import llvmlite.binding
import psutil
import threadpoolctl

from lstm_kernels import cores

from .timing import clock

PACKAGE = Path(__file__).parents[1]
SOURCES = ("lstm_kernels", PACKAGE.name)  # what a measurement depends on
PACKAGES = (
    *("numpy", "scipy", "numba", "llvmlite", "pandas", "matplotlib", "numba-cuda"),
    *("torch", "nvidia-cudnn-cu13"),
)
BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}  # flags of units that multiply it
CYCLES = 1_000_000  # of a loop by which the clock is measured
# Variables that make a BLAS library choose other kernels than the machine deserves.
DISTORTING = (
    *("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"),
    *("MKL_DEBUG_CPU_TYPE", "NVPL_BLAS_DEBUG_CPU_TYPE"),
)


def machine(preset: str | None = None) -> dict[str, Any]:
    """What a run is measured on, as a dict: the machine (name, cpu, LLVM's name of its
    core, family and model, clock as the system tells it and as measured, cores, memory,
    caches, vectors and whether they multiply bfloat16), the software (blas, packages,
    commit) and the run (threads by default, preset, date).
    """
    cpu, vectors = _cpu(), ("avx512f", "avx2", "asimd")
    flags = cpu["flags"].split()
    return {
        "name": machine_name(cpu),
        "cpu": cpu["model name"],
        "core": llvmlite.binding.get_host_cpu_name(),
        "family": cpu.get("cpu family"),
        "model": cpu.get("model"),
        "clock_ghz": _clock(),
        "measured_ghz": measured_clock(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "caches": _caches(),
        "vectors": next((v for v in vectors if v in flags), "unknown"),
        "bfloat16": not BFLOAT16.isdisjoint(flags),
        "gpu": gpu(),
        "blas": blas(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "threads": cores.cores(),
        "distorting_variables": distorting_variables(),
        "preset": preset,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    } | commit()


_clock = cache(clock)  # one number for all captions of a process


@cache
def measured_clock() -> float:
    """GHz of a core, measured: the most of some loops of a few hundred microseconds.

    Each operation needs the result of the one before, and takes one cycle on every
    processor; a virtual machine's own word for its clock may be any.
    """
    # Here, because Numba must not be imported before `simulate_without_gpu`.
    from numba import njit

    from lstm_kernels import kernels

    chain = kernels.cached(njit, dependent)
    chain(1, 3, 5, 7)
    taken = timeit.repeat(lambda: chain(CYCLES // 2, 3, 5, 7), number=1, repeat=30)
    return CYCLES / min(taken) / 1e9


def dependent(rounds, value, a, b):
    """A chain of two operations a round, which no compiler shortens."""
    for _ in range(rounds):
        value = (value + a) ^ b
    return value


def machine_name(cpu: Mapping[str, str] | None = None) -> str:
    """The folder under data/results/ of this machine: CPU, its family and model, cores,
    GPU.
    """
    cpu = cpu or _cpu()
    parts = [cpu["model name"], *(cpu.get(key, "") for key in ("cpu family", "model"))]
    parts += [f"{os.cpu_count()}cores", (gpu() or {}).get("name", "")]
    return re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")


def simulate_without_gpu() -> bool:
    """Where there is no CUDA driver, let Numba simulate a GPU; whether it does.

    Has an effect only before Numba is imported: it reads the variable then.
    """
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")
    return os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"


@cache
def gpu() -> dict[str, Any] | None:
    """The GPU as a dict, with its driver; None where there is none that kernels can run
    on.
    """
    from lstm_kernels.gpu import available, device

    if device.SIMULATED or available.why_unavailable():
        return None
    card, context = device.cuda.get_current_device(), device.cuda.current_context()
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = _printed(words, PACKAGE) if shutil.which(words[0]) else None
    return {
        "name": device.name_of(card),
        "capability": device.numbered(card.compute_capability),
        "multiprocessors": card.MULTIPROCESSOR_COUNT,
        "memory_gib": round(context.get_memory_info()[1] / 2**30, 1),
        "clock_mhz": card.CLOCK_RATE / 1000,
        "memory_clock_mhz": card.MEMORY_CLOCK_RATE / 1000,
        "memory_bus_bits": card.GLOBAL_MEMORY_BUS_WIDTH,
        "shared_kib_per_block": card.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN / 1024,
        "driver": driver.splitlines()[0] if driver else "unknown",
    }


def blas() -> list[dict[str, Any]]:
    """What each loaded BLAS library is: name, version, kernel set, threads."""
    pools = threadpoolctl.threadpool_info()
    names = {"library": "internal_api", "version": "version"}
    names |= {"kernels": "architecture", "threads": "num_threads"}
    return [
        {name: pool.get(key) for name, key in names.items()}
        for pool in sorted(pools, key=lambda pool: str(pool["version"]))
        if pool["user_api"] == "blas"
    ]


def distorting_variables(
    libraries: Iterable[str] | None = None, variables: Mapping[str, str] = os.environ
) -> list[str]:
    """Those that steer a BLAS library away from its own choice; libraries: names, None
    of those that are loaded.
    """
    names = [b["library"] for b in blas()] if libraries is None else libraries
    steering = tuple(name.upper() for name in names)
    known = [name for name in DISTORTING if name.startswith(steering)]
    return [f"{name}={variables[name]}" for name in known if name in variables]


def warnings() -> list[str]:
    """What would distort or disturb a measurement in this process, in words."""
    words = [f"{setting} steers BLAS; unset it" for setting in distorting_variables()]
    if cores.cores() < cores.allowed():
        pause = "threads of packages that take every core will pause"
        words.append(f"{cores.why()}; {pause}")
    return words


def _cpu():
    """The first core's lines of /proc/cpuinfo."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().split("\n\n")[0].splitlines() if info.exists() else []
    cpu = {"model name": platform.processor() or platform.machine(), "flags": ""}
    for line in lines:
        key, _, value = line.partition(":")
        cpu[key.strip().replace("Features", "flags")] = value.strip()
    return cpu


def _caches():
    """Sizes of the caches that the first core sees, as the system names them."""
    sizes, letters = {}, {"Instruction": "i", "Data": "d"}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        files = (index / name for name in ("level", "type", "size"))
        level, kind, size = (file.read_text().strip() for file in files)
        sizes[f"L{level}{letters.get(kind, '')}"] = size
    return sizes


def _version(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def checkout(package: Path = PACKAGE) -> Path | None:
    """The folder of this project in which the package stands; None where it is
    installed alone.
    """
    project = package.parent / "pyproject.toml"
    about = tomllib.loads(project.read_text()) if project.exists() else {}
    named = about.get("project", {}).get("name") == "lstm-kernels"
    return package.parent if named else None


def _printed(words, folder):
    """What a command prints in a folder; None where it fails."""
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def commit(package: Path = PACKAGE) -> dict[str, Any]:
    """The commit of the project's own repository, and whether SOURCES differ from it.
    Where there is none, or another project's holds the environment, what
    LSTM_KERNELS_COMMIT says, else None: a copy of the packages may run on a machine
    without their repository.
    """
    root = checkout(package)
    if root and shutil.which("git"):
        top = _printed(["git", "rev-parse", "--show-prefix"], root)
        commit = _printed(["git", "rev-parse", "--short", "HEAD"], root)
        changes = _printed(["git", "status", "--porcelain", "--", *SOURCES], root)
        if top == "" and commit and changes is not None:
            return {"commit": commit, "dirty": bool(changes)}
    return {"commit": os.environ.get("LSTM_KERNELS_COMMIT"), "dirty": None}

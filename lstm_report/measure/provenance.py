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
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import llvmlite.binding
import threadpoolctl

from lstm_kernels import cores

PACKAGE = Path(__file__).parents[1]
PREFIX = f"{PACKAGE.name}/"  # of the package in its own repository
PACKAGES = ("numpy", "scipy", "numba", "llvmlite", "pandas", "matplotlib", "numba-cuda")
# Variables that make a BLAS library choose other kernels than the machine deserves.
DISTORTING = (
    *("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"),
    *("MKL_DEBUG_CPU_TYPE", "NVPL_BLAS_DEBUG_CPU_TYPE"),
)


def machine(preset=None):
    """What a run is measured on, as a dict: the machine (name, cpu, LLVM's name of its
    core, family and model, the clock of a busy core, cores, memory, caches), the
    software (blas, packages, commit) and the run (threads by default, preset, date).
    """
    cpu = _cpu()
    return {
        "name": machine_name(cpu),
        "cpu": cpu["model name"],
        "core": llvmlite.binding.get_host_cpu_name(),
        "family": cpu.get("cpu family"),
        "model": cpu.get("model"),
        "clock_ghz": clock(),
        "cores": os.cpu_count(),
        "memory_gib": round(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        )
        if hasattr(os, "sysconf")
        else None,
        "caches": _caches(),
        "vectors": next(
            (v for v in ("avx512f", "avx2", "asimd") if v in cpu["flags"]), "unknown"
        ),
        "gpu": gpu(),
        "blas": blas(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "threads": cores.cores(),
        "distorting_variables": distorting_variables(),
        "preset": preset,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    } | _commit()


def dependent(count, a, b):
    """2 * count operations of one cycle each, of which every one waits for the one
    before.
    """
    x = a
    for _ in range(count):
        x = (x + a) ^ b
    return x


@cache
def clock(count=1_000_000, runs=20):
    """GHz at which a busy core runs, from the fastest of some runs of `dependent` (each
    takes half a millisecond); None where that is no clock of a CPU: the loop is
    emulated or always disturbed.
    """
    from lstm_kernels.kernels import native  # which imports Numba

    function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(
        native(dependent, "clock")
    )
    seconds = min(timeit.repeat(lambda: function(count, 3, 5), number=1, repeat=runs))
    frequency = 2 * count / seconds / 1e9
    return frequency if 0.2 < frequency < 10 else None


def machine_name(cpu=None):
    """The folder under data/results/ of this machine: CPU, its family and model, cores,
    GPU.
    """
    cpu = cpu or _cpu()
    parts = [cpu["model name"], *(cpu.get(key, "") for key in ("cpu family", "model"))]
    parts += [f"{os.cpu_count()}cores", (gpu() or {}).get("name", "")]
    return re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")


def simulate_without_gpu():
    """Where there is no CUDA driver, let Numba simulate a GPU; whether it does.

    Has an effect only before Numba is imported: it reads the variable then.
    """
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")
    return os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"


@cache
def gpu():
    """The GPU as a dict, with its driver; None where there is none that kernels can run
    on.
    """
    from lstm_kernels.gpu import device

    if device.SIMULATED or device.why_unavailable():
        return None
    words, driver = ["--query-gpu=driver_version", "--format=csv,noheader"], []
    if tool := shutil.which("nvidia-smi"):
        driver = subprocess.run(
            [tool, *words], capture_output=True, text=True
        ).stdout.splitlines()
    return device.describe() | {"driver": driver[0] if driver else None}


def blas():
    """What each loaded BLAS library is: name, version, kernel set, threads."""
    pools = [
        pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"
    ]
    names = {"library": "internal_api", "version": "version"}
    names |= {"kernels": "architecture", "threads": "num_threads"}
    return [
        {name: pool.get(key) for name, key in names.items()}
        for pool in sorted(pools, key=lambda pool: str(pool["version"]))
    ]


def distorting_variables():
    """The environment variables that steer a loaded BLAS library away from its own
    choice.
    """
    loaded = tuple(pool["library"].upper() for pool in blas())
    return [
        f"{name}={os.environ[name]}"
        for name in DISTORTING
        if name in os.environ and name.startswith(loaded)
    ]


def warnings():
    """What would distort or disturb a measurement in this process, in words."""
    said = [f"{setting} steers BLAS; unset it" for setting in distorting_variables()]
    if cores.cores() < cores.allowed():
        said.append(
            f"{cores.why()}; threads of packages that take every core will pause"
        )
    return said


def _cpu():
    """The first core's lines of /proc/cpuinfo."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().split("\n\n")[0].splitlines() if info.exists() else []
    pairs = (line.partition(":") for line in lines)
    read = {
        key.strip().replace("Features", "flags"): value.strip()
        for key, _, value in pairs
    }
    return {
        "model name": platform.processor() or platform.machine(),
        "flags": "",
    } | read


def _caches():
    """Sizes of the caches that the first core sees, as the system names them."""
    sizes = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (
            (index / f).read_text().strip() for f in ("level", "type", "size")
        )
        sizes[
            f"L{level}{'i' if kind == 'Instruction' else 'd' if kind == 'Data' else ''}"
        ] = size
    return sizes


def _version(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def checkout(package=PACKAGE):
    """The folder of this project in which the package stands; None where it is
    installed alone.
    """
    project = package.parent / "pyproject.toml"
    about = tomllib.loads(project.read_text()) if project.exists() else {}
    return (
        package.parent
        if about.get("project", {}).get("name") == "lstm-kernels"
        else None
    )


def _commit(package=PACKAGE):
    """The commit of the package's own repository, and whether the package differs from
    it. Where there is none, or another project's holds the environment, what
    LSTM_KERNELS_COMMIT says, else None: a copy of the package may run on a machine
    without its repository.
    """

    def git(*words):
        done = subprocess.run(
            ["git", *words], cwd=package, capture_output=True, text=True
        )
        return done.stdout.strip() if done.returncode == 0 else None

    about = {"commit": os.environ.get("LSTM_KERNELS_COMMIT"), "dirty": None}
    if (
        shutil.which("git")
        and checkout(package)
        and git("rev-parse", "--show-prefix") == PREFIX
    ):
        commit, changes = (
            git("rev-parse", "--short", "HEAD"),
            git("status", "--porcelain", "."),
        )
        if commit and changes is not None:
            about = {"commit": commit, "dirty": bool(changes)}
    return about

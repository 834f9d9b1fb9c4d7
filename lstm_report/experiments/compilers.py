"""Compilers on a CPU: speed and compile time of one LSTM layer as users write it,
compiled and not. For JAX and PyTorch the layer is written once (`measure.peers`).
"""

import importlib
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib import metadata
from importlib.util import find_spec
from itertools import pairwise, product

import pandas as pd
from threadpoolctl import threadpool_limits

from lstm_kernels import reference
from lstm_kernels.errors import UnavailableError, check_choice, check_int
from lstm_kernels.versions import network

from ..measure.comparer import compare_outputs
from ..measure.peers import Jax, Torch
from ..measure.process import with_caches
from ..measure.runner import chosen_threads, rounds, rows_of, timed
from ..measure.timing import REST, together
from ..measure.workloads import Workload

SIZES = (10, 16, 32, 64, 128, 256, 512, 1024)
# Enough steps for the loop to show and few enough for each to be compiled by itself; a
# mini-batch between the single sample, which reads weights only, and the reference
# workload's 64.
T, B = 20, 32


def numpy(params, threads):
    """The reference; BLAS's own threads."""
    return lambda x: reference.forward(params, x)[0]


def fused(params, threads):
    net = network("numba-fused", params, threads=threads)
    return lambda x: net.forward(x)[0]


def peer(kind, form, params, threads):
    return kind(params, threads, form).predict


@dataclass(frozen=True)
class Compiler:
    """A way to run the layer: the package; the form that it is compared with, itself
    where nothing is compiled; the program, a function of Params and a thread count that
    returns a function of x.
    """

    package: str
    plain: str
    program: Callable


COMPILERS = {
    "numpy": Compiler("numpy", "numpy", numpy),
    "numba-fused": Compiler("numba", "numpy", fused),
    "jax-eager": Compiler("jax", "jax-eager", partial(peer, Jax, "eager")),
    "jax-scan": Compiler("jax", "jax-eager", partial(peer, Jax, "scan")),
    "jax-unrolled": Compiler("jax", "jax-eager", partial(peer, Jax, "unrolled")),
    "pytorch-eager": Compiler("torch", "pytorch-eager", partial(peer, Torch, "eager")),
    "pytorch-compiled": Compiler(
        "torch", "pytorch-eager", partial(peer, Torch, "compiled")
    ),
}
COMPILED = [name for name, compiler in COMPILERS.items() if compiler.plain != name]
KEEPS = [*COMPILED, "jax-eager"]  # compiled code, if only of single operations


@cache
def why_unavailable(name):
    """None when a compiler of COMPILERS can run here, else the reason."""
    package = COMPILERS[check_choice("name", name, COMPILERS)].package
    if not find_spec(package):
        return f"{package} is not installed"
    if name == "pytorch-compiled":
        import torch

        try:
            torch.compile(torch.tanh)(torch.ones(2))
        except RuntimeError as error:  # it needs a C++ compiler, and Python's headers
            return f"torch.compile: {str(error).strip().partition(chr(10))[0]}"
    return None


def gaps():
    """The compilers that cannot run here: name -> reason."""
    return {name: why for name in COMPILERS if (why := why_unavailable(name))}


def _chosen(names):
    """`names`, or those that can run here; raises for one that cannot."""
    if names is None:
        return [name for name in COMPILERS if not why_unavailable(name)]
    if not names:
        choices = ", ".join(COMPILERS)
        raise ValueError(f"names: got {names!r}, want at least one of {choices}")
    for name in names:
        if why := why_unavailable(name):
            raise UnavailableError(f"names: {name!r} cannot run here: {why}")
    return list(names)


def _inferences(sizes):
    """The workload of each cell size: one layer of H units and inputs."""
    if not len(sizes):
        raise ValueError(f"sizes: got {sizes!r}, want at least one")
    return [Workload(L=1, T=T, D=check_int("sizes", H), H=H, B=B) for H in sizes]


def _rows(times, work, threads):
    """Rows of a results file; the variant is the package's release."""
    rows = rows_of(times, work).assign(threads=threads)
    packages = [COMPILERS[name].package for name in rows["version"]]
    return rows.assign(variant=[metadata.version(package) for package in packages])


def speeds(sizes=SIZES, repeats=20, *, names=None, threads=None, **options):
    """Time inference at each cell size, all compilers in one loop, verified before and
    after; rows of a results file, stage "forward".

    names: of COMPILERS; None takes those that can run here. threads: for everyone, None
    is every core, and JAX takes no other number. options: as `interleaved` takes them.
    Raises UnavailableError for a name that cannot run, MismatchError for wrong outputs.
    """
    threads, parts = chosen_threads(threads), []
    for work in _inferences(sizes):
        params, (x, _) = work.params(), work.example()
        programs = {n: COMPILERS[n].program(params, threads) for n in _chosen(names)}
        cases = {name: partial(program, x) for name, program in programs.items()}
        check = partial(compare_outputs, cases, params, x)
        options = {"rest": REST} | options
        with threadpool_limits(threads, user_api="blas"):
            times = timed({"forward": cases}, check, repeats=repeats, **options)
        parts.append(_rows(times, work, threads))
    return together(parts)


def first_call(name, sizes, threads):
    """Seconds that the first call of a program takes beyond a later one, its making
    included, and its largest error; in a new process, where nothing is compiled yet.
    """
    compiler, work = COMPILERS[name], Workload(**sizes)
    importlib.import_module(compiler.package)
    threadpool_limits(threads, user_api="blas")
    params, (x, _) = work.params(), work.example()
    times = [time.perf_counter()]
    program = compiler.program(params, threads)
    for _ in range(4):
        program(x)
        times.append(time.perf_counter())
    first, *later = (after - before for before, after in pairwise(times))
    error = compare_outputs({name: partial(program, x)}, params, x)[name]
    return first - min(later), error


def compile_times(sizes=SIZES, *, names=None, threads=None):
    """What the first call in a new process costs beyond a later one, with the making of
    the program; rows of a results file, for an empty and a filled cache of compiled
    code (stages "compile" and "load"; what keeps no compiled code has the first alone,
    for `break_even`).

    The package is imported before; PyTorch's compiler imports the rest of itself in the
    call. Arguments as of `speeds`. Raises ProcessError for a process that fails or
    computes otherwise than the reference.
    """
    threads, parts = chosen_threads(threads), []
    for work, name in product(_inferences(sizes), _chosen(names)):
        arguments = [name, asdict(work), threads]
        stages = ("compile", "load") if name in KEEPS else ("compile",)
        calls = with_caches(f"{__name__}:first_call", arguments, stages=stages)
        rows = [(name, stage, 0, *call) for stage, call in calls.items()]
        columns = ["case", "stage", "repeat", "seconds", "max_err"]
        parts.append(_rows(pd.DataFrame(rows, columns=columns), work, threads))
    return together(parts)


def speedups(rows):
    """How many times as fast each compiled form is as its plain form, round by round: a
    table of version, H, repeat, ratio from the rows of `speeds`.
    """
    forward = rows[rows["stage"] == "forward"]
    keys = ["H", "repeat"]
    seconds = forward.pivot_table(index=keys, columns="version", values="seconds")
    parts = [pd.DataFrame(columns=[*keys, "ratio", "version"])]
    for name in COMPILED:
        plain = COMPILERS[name].plain
        if {name, plain} <= set(seconds):
            ratio = (seconds[plain] / seconds[name]).dropna().rename("ratio")
            parts.append(ratio.reset_index().assign(version=name))
    return pd.concat(parts[1:] or parts)


def break_even(rows):
    """After how many calls compiling is earned back: a table of version, H, calls from
    the rows of `speeds` and `compile_times` of one machine.

    The least n for which n calls take no longer, the first call's extra cost included,
    than n of the plain form: n = (C - C_plain) / (s_plain - s), C the extra seconds of
    the first call with an empty cache, s those of a later one; infinite where a call is
    not faster.
    """
    table, keys = [], ["stage", "version", "H"]
    medians = rows.groupby(keys)["seconds"].median().to_dict()
    for name, H in product(COMPILED, sorted(rows["H"].unique())):
        plain = COMPILERS[name].plain
        cost, call, plain_cost, plain_call = (
            medians.get((stage, version, H), math.nan)
            for version in (name, plain)
            for stage in ("compile", "forward")
        )
        cost, earned = cost - plain_cost, plain_call - call  # at first, by each call
        if not math.isnan(cost + earned):
            calls = max(1, math.ceil(cost / earned)) if earned > 0 else math.inf
            table.append((name, H, calls))
    return pd.DataFrame(table, columns=["version", "H", "calls"])


def measure(preset="paper"):
    """All of it, as rows of a results file; who is left out, and why, is said on
    stderr.
    """
    for name, why in gaps().items():
        print(f"warning: {name} is left out: {why}", file=sys.stderr)
    sizes = SIZES if preset == "paper" else SIZES[:2]
    return together([speeds(sizes, **rounds(preset)), compile_times(sizes)])

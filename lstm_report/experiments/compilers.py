"""Compilers on a CPU: speed, compile time and memory of the layer in `programs.py`,
compiled and not.
"""

import importlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import astuple
from functools import partial
from importlib import metadata
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from lstm_kernels.errors import UnavailableError, check_int

from ..measure.comparer import compare_outputs
from ..measure.runner import chosen_threads, each, rounds, rows_of, timed
from ..measure.timing import REST, together
from ..measure.workloads import Workload
from .programs import COMPILED, COMPILERS, KEEPS, check_gradients, gaps, why_unavailable

SIZES = (10, 16, 32, 64, 128, 256, 512, 1024)
# Enough steps for the loop to show and few enough for each to be compiled by itself; a
# mini-batch between the single sample, which reads weights only, and the reference
# workload's 64.
T, B = 20, 32
# A training step whose tape is some hundred megabytes: more than a package's own code
# takes.
TRAINING = Workload(L=1, T=100, D=512, H=512, B=64)
SMALL_TRAINING = Workload(L=1, T=5, D=16, H=16, B=4)
# Where each package keeps compiled code from one process to the next; JAX keeps none by
# default.
CACHES = ("NUMBA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")
KEEP_ALL = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
CHILD = """
import sys, time
start = time.perf_counter()
from lstm_report.measure import compilers
compilers.child(start, *sys.argv[1:])
"""


def _chosen(names):
    """`names`, or those that can run here; raises for one that cannot."""
    if names is None:
        return [name for name in COMPILERS if not why_unavailable(name)]
    if not names:
        raise ValueError(
            f"names: got {names!r}, want at least one of {', '.join(COMPILERS)}"
        )
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
    """Rows of a results file; the variant is the package's version."""
    rows = rows_of(times, work).assign(threads=threads)
    rows["variant"] = [
        metadata.version(COMPILERS[name].package) for name in rows["version"]
    ]
    return rows


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
        cases = {"forward": each(programs, lambda program, x=x: program.predict(x))}
        check = partial(compare_outputs, cases["forward"], params, x)
        with threadpool_limits(threads, user_api="blas"):
            times = timed(cases, check, repeats=repeats, rest=REST, **options)
        parts.append(_rows(times, work, threads))
    return together(parts)


def peak(status="/proc/self/status"):
    """The most memory that this process has held, in bytes, as the operating system
    counted.
    """
    # On Linux ru_maxrss begins with what the parent held when it started this process.
    text = Path(status).read_text() if Path(status).exists() else ""
    if found := re.search(r"^VmHWM:\s*(\d+) kB$", text, re.MULTILINE):
        return 1024 * int(found[1])
    import resource  # not on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def child(start, what, name, threads, *sizes):
    """The part of `compile_times` ("calls") or `memory` ("memory") that a process of
    its own does; prints a line of JSON: stage -> seconds and bytes, and the largest
    error.
    """
    compiler, work = COMPILERS[name], Workload(*map(int, sizes))
    importlib.import_module(compiler.package)
    found = {"import": [time.perf_counter() - start, peak()]}
    threadpool_limits(int(threads), user_api="blas")
    params, (x, target) = work.params(), work.example()
    times = [time.perf_counter()]
    program = compiler.program(params, int(threads))
    if what == "calls":
        for _ in range(4):
            program.predict(x)
            times.append(time.perf_counter())
        first, *later = np.diff(times)
        found["first"] = [first - min(later), None]
        outputs = {name: partial(program.predict, x)}
        found["max_err"] = compare_outputs(outputs, params, x)[name]
    else:
        for _ in range(2):
            got = program.gradients(x, target)
        found["memory"] = [time.perf_counter() - times[0], peak()]
        found["max_err"] = check_gradients(got, params, x, target)
    print(json.dumps(found))


def _in_child(what, name, work, threads, folder):
    """What `child` prints, in a new process whose packages keep compiled code in
    `folder`.
    """
    words = [
        sys.executable,
        "-c",
        CHILD,
        what,
        name,
        str(threads),
        *map(str, astuple(work)),
    ]
    env = os.environ | KEEP_ALL | dict.fromkeys(CACHES, folder)
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["nothing on stderr"]
        raise RuntimeError(
            f"{name}: the process ended with {done.returncode}: {said[0]}"
        )
    return json.loads(done.stdout.splitlines()[-1])


def _runs(what, name, work, threads, stages):
    """What `child` prints in one process after another that share a cache, empty at
    first: by stage, one for each; those that keep no compiled code run once, as the
    first stage.
    """
    with tempfile.TemporaryDirectory() as folder:
        return {
            stage: _in_child(what, name, work, threads, folder)
            for stage in (stages if name in KEEPS else stages[:1])
        }


def compile_times(sizes=SIZES, *, names=None, threads=None):
    """What the first call in a new process costs beyond a later one, with the making of
    the program; rows of a results file, for an empty and a filled cache of compiled
    code (stages "compile" and "load"; what keeps no compiled code has the first alone,
    for `break_even`).

    The package is imported before; PyTorch's compiler imports the rest of itself in the
    call. Arguments as of `speeds`. Raises RuntimeError for a process that fails or
    computes otherwise than the reference.
    """
    threads, parts = chosen_threads(threads), []
    for work, name in product(_inferences(sizes), _chosen(names)):
        for stage, found in _runs(
            "calls", name, work, threads, ("compile", "load")
        ).items():
            row = {
                "case": name,
                "stage": stage,
                "repeat": 0,
                "seconds": found["first"][0],
            }
            times = pd.DataFrame([row | {"max_err": found["max_err"]}])
            parts.append(_rows(times, work, threads))
    return together(parts)


def memory(work=TRAINING, *, names=None, threads=None):
    """The most memory, in column `bytes`, that a process of its own has held: once it
    has imported the package (stage "import"), and once it has twice computed the
    gradients of a mini-batch, its code compiled before (stage "memory") or compiled in
    this process (stage "compiling"); rows of a results file. `seconds` is what the
    imports, or all after them, took.

    NumPy, pandas and Numba are among everyone's imports; a C++ compiler that a process
    starts is not counted. Other arguments as of `speeds`; RuntimeError as of
    `compile_times`.
    """
    threads, parts = chosen_threads(threads), []
    for name in _chosen(names):
        runs = _runs("memory", name, work, threads, ("compiling", "memory"))
        if len(runs) == 1:
            runs = {"memory": runs["compiling"]}  # nothing was compiled
        rows = [(name, "import", 0, *runs["memory"]["import"], math.nan)]
        rows += [
            (name, s, 0, *found["memory"], found["max_err"])
            for s, found in runs.items()
        ]
        columns = ["case", "stage", "repeat", "seconds", "bytes", "max_err"]
        parts.append(_rows(pd.DataFrame(rows, columns=columns), work, threads))
    return together(parts)


def speedups(rows):
    """How many times as fast each compiled form is as its plain form, round by round: a
    table of version, H, repeat, ratio from the rows of `speeds`.
    """
    forward = rows[rows["stage"] == "forward"]
    seconds = forward.pivot_table(
        index=["H", "repeat"], columns="version", values="seconds"
    )
    pairs = {name: COMPILERS[name].plain for name in COMPILED}
    parts = [
        (seconds[plain] / seconds[name])
        .dropna()
        .rename("ratio")
        .reset_index()
        .assign(version=name)
        for name, plain in pairs.items()
        if {name, plain} <= set(seconds)
    ]
    return (
        pd.concat(parts)
        if parts
        else pd.DataFrame(columns=["H", "repeat", "ratio", "version"])
    )


def break_even(rows):
    """After how many calls compiling is earned back: a table of version, H, calls from
    the rows of `speeds` and `compile_times` of one machine.

    The least n for which n calls take no longer, the first call's extra cost included,
    than n of the plain form: n = (C - C_plain) / (s_plain - s), C the extra seconds of
    the first call with an empty cache, s those of a later one; infinite where a call is
    not faster.
    """
    median, found = rows.groupby(["stage", "version", "H"])["seconds"].median(), []
    for name, H in product(COMPILED, sorted(rows["H"].unique())):
        keys = product(("compile", "forward"), (name, COMPILERS[name].plain))
        cost, plain_cost, call, plain_call = (
            median.get((*key, H), math.nan) for key in keys
        )
        earned = plain_call - call  # by each call
        if not math.isnan(cost - plain_cost + earned):
            calls = (
                max(1, math.ceil((cost - plain_cost) / earned))
                if earned > 0
                else math.inf
            )
            found.append((name, H, calls))
    return pd.DataFrame(found, columns=["version", "H", "calls"])


def measure(preset="paper"):
    """All of it, as rows of a results file; who is left out, and why, is said on
    stderr.
    """
    for name, why in gaps().items():
        print(f"warning: {name} is left out: {why}", file=sys.stderr)
    paper = preset == "paper"
    sizes, work = (SIZES, TRAINING) if paper else (SIZES[:2], SMALL_TRAINING)
    return together(
        [speeds(sizes, **rounds(preset)), compile_times(sizes), memory(work)]
    )

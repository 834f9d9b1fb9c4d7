"""`make gpu`: verify the GPU versions on the device, measure them, and check them.

What carries claims comes first, each in a process of its own, so that one that fails or
hangs leaves the others. Results are written after each: data/results/<machine>/gpu.csv
holds the rows, gpu-checks.json what came of every part.
"""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from lstm_kernels.errors import UnavailableError
from lstm_kernels.gpu import build, device
from lstm_kernels.versions import versions

from ..measure import provenance, results
from ..measure.comparer import compare_to_reference
from ..measure.runner import available, network, rounds
from ..measure.timing import together
from ..measure.workloads import AIRLINE, Workload, airline_dataset
from . import gpu
from .gpu import CPU, GPU, HUNDREDS, LARGE, SLOW, STAY

SLOWER = 10 if device.SIMULATED else 1  # how many times as long a simulator may take
WATCHED = Workload(L=2, T=4, D=3, H=9, B=37)


def plan(preset):
    """The comparisons in the order of their worth: name -> (most seconds, function)."""
    paper, here = (
        preset == "paper",
        {*available(), *available("gpu")},
    )
    names = [name for name in (*CPU, *GPU) if name in here]
    fast = [
        n for n in ("numba-fused", "cuda-v3", "cuda-fused", "cuda-epoch") if n in names
    ]
    stay = [name for name in fast if name in STAY]
    work = HUNDREDS if paper else Workload(1, 3, 1, 4, 8)
    big = LARGE if paper else Workload(2, 3, 4, 6, 8)
    many, few = rounds(preset), rounds(preset, 5)
    powers = [round(10 ** (p / 2)) for p in range(4, 13)] if paper else [8, 16]
    sizes, N = ([16, 64, 256, 1024, 4096, 16384], 16384) if paper else ([4, 8], 16)
    units, steps = ([8, 16, 32, 64, 128, 256], 8) if paper else ([2, 4], 1)
    count = {"epochs": 5 if paper else 1}
    airline = (AIRLINE, airline_dataset()) if paper else (work, work.dataset(8))

    def several_hundreds():
        more, some = (
            replace(work, B=work.B * 75 // 32),
            [n for n in names if n not in SLOW],
        )
        how = {"batches": steps} | count | many
        return together(
            [gpu.hundreds(names, work, **how), gpu.hundreds(some, more, **how)]
        )

    return {
        "hundreds": (70, several_hundreds),
        "windows": (60, lambda: gpu.windows(fast, powers, work, **few)),
        "sums": (20, lambda: gpu.sums(work, steps=steps, **many)),
        "batch": (40, lambda: gpu.batches(fast, sizes, N, work, **few)),
        "hidden": (60, lambda: gpu.hidden(fast, units, work, **few)),
        "transfers": (
            20,
            lambda: gpu.transfers([n for n in names if n in GPU], work, **many),
        ),
        "large": (40, lambda: gpu.large(stay, big, **few)),
        "table": (70, lambda: gpu.table(names, *airline, **count, **many)),
    }


def probed(preset):
    """(version, workload) of the kernels that the comparisons use, each once."""
    if preset != "paper":
        return [(name, Workload(1, 3, 1, 4, 8)) for name in GPU]
    units = [replace(HUNDREDS, H=H) for H in (8, 16, 64, 128, 256)]
    works = [HUNDREDS, replace(HUNDREDS, B=4096), *units]
    pairs = [("cuda-v1", replace(HUNDREDS, B=16))]
    pairs += [(name, work) for work in works for name in ("cuda-v3", *STAY)]
    pairs += [(name, replace(LARGE, T=4)) for name in STAY]
    return [*pairs, *((name, WATCHED) for name in ("cuda-v3", *STAY))]


def verified(pair):
    """Compare passes, a step and an epoch of a (version, workload) with the reference;
    its kernels are on disk afterwards. The largest error, the seconds, how many kernels
    were asked for; or, a text, what went wrong.
    """
    (name, work), start, before = pair, time.perf_counter(), build.asked
    try:
        (x, target), params = work.example(), work.params()
        few = np.ascontiguousarray(x[:, :300])
        error = compare_to_reference(name, params, few)
        net, reference = network(name, params), network("numpy", params)
        losses = [n.step(x, target, 0.1) for n in (net, reference)]
        dataset, order = work.dataset(work.B), np.arange(work.B)
        losses += [n.epoch(dataset, order, work.B, 0.1)[-1] for n in (net, reference)]
        np.testing.assert_allclose(losses[::2], losses[1::2], rtol=1e-4)
    except Exception as wrong:  # the others are still worth their seconds
        return f"{type(wrong).__name__}: {device.first_line(wrong)}"
    return error, time.perf_counter() - start, build.asked - before


def probe(preset, workers=None):
    """Verify every version with the sizes that are measured, in processes that compile
    side by side. Prints a line for each; returns an exit code.
    """
    pairs, failed = probed(preset), 0
    workers = workers or min(8, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        kernels = 0
        for (name, work), got in zip(pairs, pool.map(verified, pairs), strict=True):
            said = (
                got
                if isinstance(got, str)
                else "error {:.1e}, {:.1f} s, {} kernels".format(*got)
            )
            print(f"{name} {work}: {said}", flush=True)
            failed += isinstance(got, str)
            kernels += 0 if isinstance(got, str) else got[2]
    print(f"{len(pairs) - failed} of {len(pairs)} networks right, {kernels} kernels")
    return 1 if failed else 0


def checks():
    """Command lines of the checks that follow the comparisons: name -> (most seconds,
    words).
    """
    words, commands = (
        [sys.executable, "-m", "pytest", "-q", "-W", "default", "-k", "cuda"],
        {},
    )
    if (
        results.ROOT
    ):  # the tests come with the repository, not with an installed package
        tests = [f"tests/test_{name}.py" for name in ("cuda", "versions", "bad_input")]
        # Compiling takes most of the time.
        words += ["-n", str(min(16, os.cpu_count() or 1))] if find_spec("xdist") else []
        commands["tests on the device"] = 200, [*words, *tests]
    if tool := shutil.which("compute-sanitizer"):
        for kind in ("memcheck", "racecheck"):
            watch = [
                tool,
                "--tool",
                kind,
                "--report-api-errors",
                "no",
                "--error-exitcode",
                "9",
            ]
            code = "from lstm_report.experiments.gpu_run import watched; watched()"
            commands[f"compute-sanitizer {kind}"] = (
                60,
                [*watch, sys.executable, "-c", code],
            )
    return commands


def watched():
    """What compute-sanitizer watches: passes, a step, an epoch of each kind of kernels,
    small.
    """
    for name in ("cuda-v3", *STAY):
        if isinstance(said := verified((name, WATCHED)), str):
            sys.exit(f"{name}: {said}")
    print("nothing found")


def run(words, limit):
    """Run a command in a process group of its own for at most `limit` seconds: its exit
    status, None at the limit, and its output. Nothing of the group is left.
    """
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(words, cwd=results.ROOT, start_new_session=True, **how)
    try:
        said, code = process.communicate(timeout=limit)[0], process.returncode
    except subprocess.TimeoutExpired:
        code = None
    finally:
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        else:  # Windows knows no groups
            process.kill()
    return code, process.communicate()[0] if code is None else said


def own_process(name, preset, limit, path):
    """Run a comparison of `plan`, or the probe, in a process of its own, which pickles
    its rows to `path`: exit status and output, as of `run`.
    """
    code = f"from lstm_report.experiments.gpu_run import child; child({name!r}, {preset!r}, {str(path)!r})"
    return run([sys.executable, "-c", code], limit)


def child(name, preset, path):
    """What `own_process` runs."""
    if name == "probe":
        sys.exit(probe(preset))
    rows = plan(preset)[name][1]()
    Path(path).write_bytes(pickle.dumps(rows))


def refuse():
    """Raise UnavailableError where no kernel can run, before anything is measured."""
    for version in versions():
        if version.target == "gpu" and version.why_unavailable:
            raise UnavailableError(f"{version.name}: {version.why_unavailable}")


def main(preset="paper", folder=None, minutes=8.0):
    """Verify, measure and check, in at most so many minutes; yields (name, what came of
    it, path) after each: rows of a comparison, or a sentence. All results so far are
    written.

    One that fails leaves the others to run; RuntimeError names it at the end.
    """
    refuse()
    place = results.place(("gpu",), preset=preset, folder=folder)
    end, parts, failed, said = time.monotonic() + 60 * minutes, [], [], {}
    now = provenance.machine(preset)
    said |= {key: now[key] for key in ("date", "commit", "dirty")}
    measured = plan(preset)
    tasks = {"probe": (90, None)} | measured | checks()
    with tempfile.TemporaryDirectory() as scratch:
        for name, (most, words) in tasks.items():
            limit, path = (
                min(most * SLOWER, end - time.monotonic()),
                Path(scratch, "rows"),
            )
            if limit < 2:
                code, output = None, ""
            elif name in measured or name == "probe":
                code, output = own_process(name, preset, limit, path)
            else:
                code, output = run(words, limit)
            last = (output.strip().splitlines() or ["no output"])[-1]
            state = {None: f"not finished in {max(0, limit):.0f} s", 0: "passed"}.get(
                code, "failed"
            )
            rows = code == 0 and name in measured
            said[name] = (
                "measured" if rows else state if code is None else f"{state}: {last}"
            )
            if code != 0:
                failed.append(f"{name} ({said[name]})")
                print(output[-6000:], file=sys.stderr, flush=True)
            checked = place / "gpu-checks.json"
            results.replace(checked, json.dumps(said, indent=1) + "\n")
            if rows:
                parts.append(pickle.loads(path.read_bytes()))
                written = results.write(
                    "gpu", together(parts), preset=preset, folder=folder
                )
            yield name, parts[-1] if rows else said[name], written if rows else checked
    if failed:
        raise RuntimeError("; ".join(failed))

"""`make gpu`: verify the GPU versions on the device, measure them, and check them.

What carries claims comes first, each in a process of its own, so that one that fails or
hangs leaves the others. Results are written after each: data/results/<machine>/gpu.csv
holds the rows, gpu-checks.json what came of every part.
"""

import json
import os
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context

import numpy as np
import pandas as pd

from lstm_kernels.errors import UnavailableError
from lstm_kernels.gpu import device
from lstm_kernels.versions import versions

from ..measure import provenance, results
from ..measure.comparer import compare_to_reference
from ..measure.process import ProcessError, in_process, run
from ..measure.runner import network
from ..measure.timing import together
from ..measure.workloads import Workload
from . import gpu
from .gpu import GPU, HUNDREDS, LARGE, SMALL, STAY

# The most seconds of each part, of a comparison by its name in `gpu.plan`; the checks
# come last. A simulator may take longer.
LIMITS = {"probe": 120, "hundreds": 70, "windows": 60, "large": 40, "table": 70}
CHECK_LIMITS = {"tests": 200, "memcheck": 60, "racecheck": 60}
SLOWER = 10 if device.SIMULATED else 1
WATCHED = Workload(L=2, T=4, D=3, H=9, B=37)


def probed(preset):
    """(version, workload) of the kernels that the comparisons use, each once."""
    if preset != "paper":
        return [(name, SMALL) for name in GPU]
    works = [HUNDREDS, replace(HUNDREDS, B=4096)]
    pairs = [("cuda-v1", replace(HUNDREDS, B=16))]  # V2's kernels are V3's
    pairs += [(name, work) for work in works for name in ("cuda-v3", *STAY)]
    pairs += [(name, replace(LARGE, T=4)) for name in STAY]
    return [*pairs, *((name, WATCHED) for name in ("cuda-v3", *STAY))]


def verified(pair):
    """Compare passes, a step and an epoch of a (version, workload) with the reference;
    its kernels are on disk afterwards. What came of it, a text, and whether it is
    right.
    """
    name, work = pair
    start = time.perf_counter()
    try:
        x, target = work.example()
        params = work.params()
        few = np.ascontiguousarray(x[:, :300])
        error = compare_to_reference(name, params, few)
        dataset, order = work.dataset(work.B), np.arange(work.B)
        losses = []
        for net in (network(name, params), network("numpy", params)):
            loss = net.step(x, target, 0.1)
            losses.append([loss, *net.epoch(dataset, order, work.B, 0.1)])
        np.testing.assert_allclose(*losses, rtol=1e-4)
    except Exception as wrong:  # the others are still worth their seconds
        text = f"{type(wrong).__name__}: {device.first_line(wrong)}"
        return f"{name} {work}: {text}", False
    seconds = time.perf_counter() - start
    return f"{name} {work}: error {error:.1e}, {seconds:.1f} s", True


def probe(preset, workers=None):
    """Verify every version with the sizes that are measured, in processes that compile
    side by side. How many are right; RuntimeError if one is not.
    """
    pairs = probed(preset)
    workers = workers or min(8, os.cpu_count() or 1)
    right = 0
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for text, is_right in pool.map(verified, pairs):
            print(text, flush=True)
            right += is_right
    total = f"{right} of {len(pairs)} networks right"
    if right < len(pairs):
        raise RuntimeError(total)
    return total


def watched():
    """What compute-sanitizer watches: passes, a step, an epoch of each kind of kernels,
    small.
    """
    for name in ("cuda-v3", *STAY):
        text, right = verified((name, WATCHED))
        if not right:
            sys.exit(text)
    print("nothing found")


def checks():
    """Command lines of the checks that follow the comparisons: name -> words."""
    commands = {}
    if results.ROOT and find_spec("pytest"):  # the tests come with the repository
        words = [sys.executable, "-m", "pytest", "-q", "-W", "default", "-k", "cuda"]
        # Compiling takes most of the time.
        words += ["-n", str(min(16, os.cpu_count() or 1))] if find_spec("xdist") else []
        tests = [f"tests/test_{name}.py" for name in ("cuda", "versions", "bad_input")]
        commands["tests"] = [*words, *(str(results.ROOT / test) for test in tests)]
    if tool := shutil.which("compute-sanitizer"):
        code = "from lstm_report.experiments.gpu_run import watched; watched()"
        # Its own calls of the driver may fail and mean nothing.
        options = ["--report-api-errors", "no", "--error-exitcode", "9"]
        for kind in ("memcheck", "racecheck"):
            words = [tool, "--tool", kind, *options, sys.executable, "-c", code]
            commands[kind] = words
    return commands


def rows_as_json(name, preset):
    """The rows of a comparison and what disturbed them."""
    rows = gpu.plan(preset)[name]()
    conditions = rows.attrs.get("conditions", {})
    return {
        "rows": rows.to_json(orient="records", double_precision=15),
        "conditions": conditions,
    }


def comparison(name, preset, *, limit):
    """`rows_as_json` of a process of its own, as a DataFrame."""
    call = f"{__name__}:rows_as_json"
    result = in_process(call, [name, preset], limit=limit)
    rows = pd.DataFrame(json.loads(result["rows"]))
    rows.attrs["conditions"] = result["conditions"]
    return rows


def command(words, *, limit):
    """The last line that a command prints; ProcessError if it fails."""
    code, output = run(words, limit=limit)
    last = (output.strip().splitlines() or ["no output"])[-1]
    if code is None:
        raise ProcessError(f"not finished in {limit:.0f} s", output)
    if code:
        raise ProcessError(f"failed: {last}", output)
    return last


def tasks(preset):
    """What is run, in order: name -> (most seconds, function of a limit)."""
    parts = {"probe": partial(in_process, f"{__name__}:probe", [preset])}
    parts |= {name: partial(comparison, name, preset) for name in gpu.plan(preset)}
    parts |= {name: partial(command, words) for name, words in checks().items()}
    limits = LIMITS | CHECK_LIMITS
    return {name: (limits[name] * SLOWER, part) for name, part in parts.items()}


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
    end = time.monotonic() + 60 * minutes
    machine = provenance.machine(preset)
    outcomes = {key: machine[key] for key in ("date", "commit", "dirty")}
    rows, failed = [], []
    for name, (most, task) in tasks(preset).items():
        limit = min(most, end - time.monotonic())
        path = place / "gpu-checks.json"
        try:
            if limit < 2:
                raise ProcessError("no time was left")
            result = task(limit=limit)
        except ProcessError as error:
            result = str(error)
            failed.append(f"{name} ({result})")
            print(error.output[-6000:], file=sys.stderr, flush=True)
        measured = isinstance(result, pd.DataFrame)
        outcomes[name] = "measured" if measured else result
        results.replace(path, json.dumps(outcomes, indent=1) + "\n")
        if measured:
            rows.append(result)
            path = results.write("gpu", together(rows), preset=preset, folder=folder)
        yield name, result, path
    if failed:
        raise RuntimeError("; ".join(failed))

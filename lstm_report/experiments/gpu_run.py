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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec

import numpy as np
import pandas as pd

from lstm_kernels.errors import UnavailableError
from lstm_kernels.gpu import device
from lstm_kernels.versions import network, versions

from ..measure import provenance, results
from ..measure.comparer import compare_to_reference
from ..measure.process import ProcessError, in_process, run
from ..measure.timing import together
from ..measure.workloads import Workload
from . import gpu
from .gpu import DEPTHS, HUNDREDS, LARGE, LARGE_ONLY, LAYER, SMALL, STACK, STAY

# The most seconds of each part, of a comparison by its name in `gpu.plan`; what one
# leaves the next ones have. A simulator may take longer.
LIMITS = {"probe": 150, "airline": 40, "large": 45, "large 16": 25, "large 1": 20}
LIMITS |= {"table": 50, "hundreds": 30, "windows": 35, "layers": 30, "stacks": 15}
LIMITS |= {"units": 10, "threads": 40, "tests": 20, "memcheck": 15, "racecheck": 15}
ONE_NETWORK = 75  # seconds of the probe
SIDE_BY_SIDE = {"OPENBLAS_NUM_THREADS": "2"}  # of processes that share the cores
SLOWER = 10 if device.SIMULATED else 1
if device.SIMULATED:  # its threads are Python's, and often wait for each other
    sys.setswitchinterval(1e-4)
WATCHED = Workload(L=2, T=4, D=3, H=9, B=37)


def probed(preset):
    """(version, Workload, cell) of the kernels that the comparisons use, each once; the
    newest kernels come last, so that those that hang take no turn of others.
    """
    if preset != "paper":
        names = gpu.here(None, ["cuda-v1", "cuda-v2", "cuda-v3", *STAY])
        return [(name, SMALL, "lstm") for name in names]
    first = [name for name in STAY if name != LARGE_ONLY]
    works = HUNDREDS, replace(HUNDREDS, B=4096), WATCHED
    stacks = [replace(LAYER, L=L) for L in DEPTHS]
    large, stack = replace(LARGE, T=20), replace(STACK, T=20)
    pairs = [("cuda-v1", replace(HUNDREDS, B=16))]  # V2's kernels are V3's
    pairs += [(name, work) for name in ("cuda-v3", *first) for work in works]
    pairs += [("numba-fused", HUNDREDS), ("numba-wavefront", stack)]
    pairs += [("cuda-fused", work) for work in (large, *stacks)]
    works = [large, replace(large, B=16), replace(large, B=1), *stacks, WATCHED]
    pairs += [(LARGE_ONLY, work) for work in works]
    here = gpu.here(None, {name for name, _ in pairs})
    cases = [(name, work, "lstm") for name, work in pairs if name in here]
    return [("numba-fused", SMALL, "rnn"), *cases]


def verified(cases):
    """Compare passes, a step and an epoch of each (version, sizes, cell) with the
    reference; its kernels are on disk afterwards. What came of each, a text, and
    whether it is right.
    """
    return [_verified(name, Workload(**sizes), cell) for name, sizes, cell in cases]


def _verified(name, work, cell):
    start = time.perf_counter()
    try:
        x, target = work.example()
        params = work.params(cell=cell)
        few = np.ascontiguousarray(x[:, :300])
        error = compare_to_reference(name, params, few)
        dataset, order = work.dataset(work.B), np.arange(work.B)
        losses = []
        for net in (network(name, params), network("numpy", params)):
            step = net.step(x, target, 0.1)
            losses.append([step, *net.epoch(dataset, order, work.B, 0.1)])
        np.testing.assert_allclose(*losses, rtol=1e-4)
    except Exception as wrong:  # the others are still worth their seconds
        return f"{type(wrong).__name__}: {device.first_line(wrong)}", False
    return f"error {error:.1e}, {time.perf_counter() - start:.1f} s", True


def probe(preset, wrong, workers=None, *, limit, cases=None):
    """Verify every version with the sizes that are measured, in processes that compile
    side by side. How many are right; adds (version, H) of the others to `wrong`, and
    raises ProcessError.
    """
    end, cases = time.monotonic() + limit, probed(preset) if cases is None else cases
    jobs = [[case] for case in cases] if preset == "paper" else [cases]

    def verify(job):
        sizes = [(name, asdict(work), cell) for name, work, cell in job]
        most = min(ONE_NETWORK * SLOWER, max(1.0, end - time.monotonic()))
        try:
            call = f"{__name__}:verified"
            said = in_process(call, [sizes], env=SIDE_BY_SIDE, limit=most)
        except ProcessError as error:
            said = [(str(error), False)] * len(job)
        for (name, work, cell), (text, right) in zip(job, said, strict=True):
            print(f"{name} {work} {cell}: {text}", flush=True)
            if not right:
                wrong.append((name, work.H))

    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool:
        list(pool.map(verify, jobs))
    total = f"{len(cases) - len(wrong)} of {len(cases)} networks right"
    if wrong:
        raise ProcessError(f"{total}; not {wrong}")
    return total


def watched():
    """What compute-sanitizer watches: passes, a step, an epoch of each kind of kernels,
    small.
    """
    for name in gpu.here(None, ["cuda-v3", *STAY]):
        text, right = _verified(name, WATCHED, "lstm")
        if not right:
            sys.exit(f"{name}: {text}")
    print("nothing found")


def checks():
    """Command lines of the checks that follow the comparisons: name -> words."""
    commands = {}
    if results.ROOT and find_spec("pytest"):  # the tests come with the repository
        names = "cuda", "persistent", "gpu_kernels", "versions", "bad_input"
        paths = (results.ROOT / f"tests/test_{name}.py" for name in names)
        words = [sys.executable, "-m", "pytest", "-q", "-W", "default"]
        words += ["-k", " or ".join(names[:3])]
        # Compiling takes most of the time.
        words += ["-n", str(min(16, os.cpu_count() or 1))] if find_spec("xdist") else []
        commands["tests"] = [*words, *(str(path) for path in paths if path.exists())]
    if tool := shutil.which("compute-sanitizer"):
        code = "from lstm_report.experiments.gpu_run import watched; watched()"
        # Its own calls of the driver may fail and mean nothing.
        options = ["--report-api-errors", "no", "--error-exitcode", "9"]
        for kind in ("memcheck", "racecheck"):
            words = [tool, "--tool", kind, *options, sys.executable, "-c", code]
            commands[kind] = words
    return commands


def rows_as_json(name, preset, wrong):
    """The rows of a comparison, what disturbed them, and who is left out."""
    rows = gpu.plan(preset, wrong)[name]()
    return {
        "rows": rows.to_json(orient="records", double_precision=15),
        "conditions": rows.attrs.get("conditions", {}),
        "left_out": gpu.left_out,
    }


def comparison(name, preset, wrong, *, limit):
    """`rows_as_json` of a process of its own, as a DataFrame."""
    call = f"{__name__}:rows_as_json"
    result = in_process(call, [name, preset, wrong], limit=limit)
    rows = pd.DataFrame(json.loads(result["rows"]))
    rows.attrs |= {key: result[key] for key in ("conditions", "left_out")}
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
    """What is run, in order: name -> function of a limit. What the probe finds wrong is
    compared with nothing.
    """
    wrong = []
    parts = {"probe": partial(probe, preset, wrong)}
    parts |= {n: partial(comparison, n, preset, wrong) for n in gpu.plan(preset)}
    if preset == "paper":
        parts |= {name: partial(command, words) for name, words in checks().items()}
    return parts


def refuse():
    """Raise UnavailableError where no kernel can run, before anything is measured."""
    for version in versions():
        if version.target == "gpu" and version.why_unavailable:
            raise UnavailableError(f"{version.name}: {version.why_unavailable}")


def main(
    preset="paper",
    folder=None,
    minutes=9.0,
    only=(),
    *,
    parts=None,
    clock=time.monotonic,
):
    """Verify, measure and check, in at most so many minutes; yields (name, what came of
    it, path) after each part: rows of a comparison, or a sentence. All results so far
    are written. only: names of parts; none is all. parts: name -> function of a limit
    in seconds; None is `tasks`. clock: returns seconds.

    One that fails leaves the others to run; RuntimeError names it at the end.
    """
    refuse()
    place = results.place(("gpu",), preset=preset, folder=folder)
    end = clock() + 60 * minutes
    machine = provenance.machine(preset)
    outcomes = {key: machine[key] for key in ("date", "commit", "dirty")}
    rows, failed, path = [], [], place / "gpu-checks.json"
    parts = tasks(preset) if parts is None else parts
    parts = {n: task for n, task in parts.items() if n in only or not only}
    due = sum(map(LIMITS.get, parts))  # seconds of what is left to do
    for name, task in parts.items():
        due, left = due - LIMITS[name], end - clock()
        limit = max(min(LIMITS[name] * SLOWER, left), left - due)
        try:
            if limit < 2:
                raise ProcessError("no time was left")
            result = task(limit=limit)
        except ProcessError as error:
            result = str(error)
            failed.append(f"{name} ({result})")
            print(error.output[-6000:], file=sys.stderr, flush=True)
        outcomes[name], written = result, path
        if isinstance(result, pd.DataFrame):
            left = "; ".join(result.attrs["left_out"])
            outcomes[name] = f"measured without {left}" if left else "measured"
            failed += [f"{name} (without {left})"] if left else []
            rows.append(result)
            written = results.write("gpu", together(rows), preset=preset, folder=folder)
        results.replace(path, json.dumps(outcomes, indent=1) + "\n")
        yield name, result, written
    if failed:
        raise RuntimeError("; ".join(failed))

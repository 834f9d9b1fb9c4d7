"""`make gpu`: verify the GPU versions on the device, measure them, and check them.

What is worth most comes first, each part in a process of its own, so that one that
fails or hangs leaves the others. Results are written after each:
data/results/<machine>/gpu.csv holds the rows, gpu-checks.json what came of every part.
"""

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import pandas as pd

from lstm_kernels.errors import UnavailableError
from lstm_kernels.gpu import available, device
from lstm_kernels.versions import network, versions

from ..measure import provenance, results
from ..measure.comparer import compare_to_reference
from ..measure.evidence import PROCESSES
from ..measure.process import ProcessError, in_process, run
from ..measure.timing import together
from ..measure.workloads import Workload
from . import gpu

PROBE, ONE_NETWORK = 120, 75  # the most seconds of all networks, and of one
CHECKS = {"tests": 40, "memcheck": 20, "racecheck": 20}  # the most seconds of each
SIDE_BY_SIDE = {"OPENBLAS_NUM_THREADS": "2"}  # of processes that share the cores
SLOWER = 10 if device.SIMULATED else 1
if device.SIMULATED:  # its threads are Python's, and often wait for each other
    sys.setswitchinterval(1e-4)
WATCHED = Workload(L=2, T=4, D=3, H=9, B=37)


def verified(cases):
    """Compare passes, a step and an epoch of each (version, sizes) with the reference;
    its kernels are on disk afterwards. What came of each, a text, and whether it is
    right; None for what this device cannot run.
    """
    return [_verified(name, Workload(**sizes)) for name, sizes in cases]


def _verified(name, work):
    start = time.perf_counter()
    try:
        x, target = work.example()
        params = work.params()
        few = np.ascontiguousarray(x[:, :300])
        error = compare_to_reference(name, params, few)
        dataset, order = work.dataset(work.B), np.arange(work.B)
        losses = []
        for net in (network(name, params), network("numpy", params)):
            step = net.step(x, target, 0.1)
            losses.append([step, *net.epoch(dataset, order, work.B, 0.1)])
        np.testing.assert_allclose(*losses, rtol=1e-4)
    except Exception as wrong:  # the others are still worth their seconds
        unfit = isinstance(wrong, UnavailableError) or "params:" in str(wrong)[:7]
        return device.told(wrong), None if unfit else False
    return f"error {error:.1e}, {time.perf_counter() - start:.1f} s", True


def probe(preset, wrong, cases, workers=None, *, limit):
    """Verify networks (version, Workload) in processes that compile side by side; those
    that found no time compile later. How many are right; adds (version, H) of those
    that are not to `wrong`, and raises ProcessError.
    """
    end, late, unfit = time.monotonic() + limit, [], []
    jobs = [[case] for case in cases] if preset == "paper" else [cases]

    def verify(job):
        sizes = [(name, asdict(work)) for name, work in job]
        left, most = end - time.monotonic(), ONE_NETWORK * SLOWER
        call = f"{__name__}:verified"
        try:
            if left < 2:
                raise ProcessError("no time was left")
            how = {"env": SIDE_BY_SIDE, "limit": min(left, most)}
            said = in_process(call, [sizes], **how)
        except ProcessError as error:
            ended = "not finished" in str(error) or left < 2
            if left < most and ended:  # by the probe's own end
                late.extend(job)
                return
            said = [(str(error), False)] * len(job)
        for (name, work), (text, right) in zip(job, said, strict=True):
            print(f"{name} {work}: {text}", flush=True)
            if right is None:
                unfit.append(name)
            elif not right:
                wrong.append((name, work.H))

    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        list(pool.map(verify, jobs))
    right = len(cases) - len(wrong) - len(late) - len(unfit)
    total = f"{right} of {len(cases)} networks right"
    total += f", {len(late)} not reached" if late else ""
    total += f", {len(unfit)} too large for this device" if unfit else ""
    if wrong:
        raise ProcessError(f"{total}; not {wrong}")
    return total


def watched():
    """What compute-sanitizer watches: passes, a step, an epoch of each kind of kernels,
    small.
    """
    for name in gpu.here(["cuda-v3", *gpu.STAY]):
        text, right = _verified(name, WATCHED)
        if not right:
            sys.exit(f"{name}: {text}")
    print("nothing found")


def checks():
    """Command lines of the checks that follow the comparisons: name -> words."""
    commands = {}
    if results.ROOT and find_spec("pytest"):  # the tests come with the repository
        names = "cuda", "gpu_kernels", "versions", "bad_input"
        paths = (results.ROOT / f"tests/test_{name}.py" for name in names)
        words = [sys.executable, "-m", "pytest", "-q", "-W", "default"]
        words += ["-p", "no:benchmark", "-p", "no:cacheprovider"]
        words += ["-k", " or ".join(names[:2])]
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
    rows = gpu.plan(preset, wrong)[name].run()
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


class Task(NamedTuple):
    """What is run, of at most so many seconds; `again` in further processes, too."""

    run: Callable[..., pd.DataFrame | str]
    seconds: float
    again: bool = False


def tasks(preset, only=()):
    """What is run, in order: name -> Task. What the probe finds wrong is compared with
    nothing. only: names of comparisons and checks; none is all.
    """
    wrong, plan = [], gpu.plan(preset)
    plan = {name: part for name, part in plan.items() if name in only or not only}
    # Each kernel once; the newest come last: those that hang take no turn of others.
    cases = dict.fromkeys(case for part in plan.values() for case in part.networks)
    cases = sorted(cases, key=lambda case: case[0] == gpu.LARGE_ONLY)
    parts = {"probe": Task(partial(probe, preset, wrong, cases), PROBE)}
    for name, part in plan.items():
        run = partial(comparison, name, preset, wrong)
        parts[name] = Task(run, part.seconds, part.claimed)
    if preset == "paper":
        found = {n: words for n, words in checks().items() if n in only or not only}
        parts |= {n: Task(partial(command, w), CHECKS[n]) for n, w in found.items()}
    return parts


def refuse():
    """Raise UnavailableError where no kernel can run, before anything is measured."""
    if why := available.why_unavailable():
        raise UnavailableError(f"no GPU is measured here: {why}")


def main(
    preset="paper",
    folder=None,
    minutes=9.0,
    only=(),
    *,
    parts=None,
    clock=time.monotonic,
    slower=SLOWER,
):
    """Verify, measure and check, in at most so many minutes; yields (name, what came of
    it, path) after each part: rows of a comparison, or a sentence. All results so far
    are written. What claims rest on is measured in further processes while there is
    time. only: names of parts; none is all. parts: name -> Task; None is `tasks`.
    clock: returns seconds. slower: so many times as long may a part take here.

    One that fails leaves the others to run; RuntimeError names it at the end.
    """
    refuse()
    if not 0 < minutes < math.inf:
        raise ValueError(f"minutes: got {minutes}, want a number above 0")
    parts = tasks(preset, only) if parts is None else parts
    if missing := sorted({*only} - {*parts}):
        raise ValueError(f"only: got {missing}, want some of {[*parts]}")
    place = results.place(("gpu",), preset=preset, folder=folder)
    end = clock() + 60 * minutes
    machine = provenance.machine(preset)
    outcomes = {key: machine[key] for key in ("date", "commit", "dirty")}
    outcomes["versions"] = {
        version.name: version.why_unavailable or "runs here"
        for version in versions()
        if version.target == "gpu"
    }
    outcomes |= {"preset": preset, "rows": 0, "ended": False}
    rows, failed, path = [], [], place / "gpu-checks.json"
    due = sum(task.seconds for task in parts.values())  # of what is left to do
    took = {}

    def turns():
        """(name, process, Task), the claimed ones once more each round."""
        for name, task in parts.items():
            yield name, 0, task
        for process in range(1, PROCESSES):
            for name, task in parts.items():
                if task.again and took.get(name, math.inf) < end - clock():
                    yield name, process, task

    for name, process, task in turns():
        began = clock()
        left, due = end - began, due - (0 if process else task.seconds)
        limit = max(min(task.seconds * slower, left), left - due)
        if name == "probe":  # something has to be left for what it prepares
            limit = min(limit, 24 * minutes)
        label = f"{name}, process {process + 1}" if process else name
        try:
            if limit < 2:
                raise ProcessError("no time was left")
            result = task.run(limit=limit)
            took[name] = 1.1 * (clock() - began)
            if isinstance(result, pd.DataFrame) and result.empty:
                raise ProcessError("no rows")
        except Exception as error:  # the others are still worth their seconds
            known = isinstance(error, ProcessError)
            result = str(error) if known else device.told(error)
            failed += [] if process else [f"{name} ({result})"]
            print(getattr(error, "output", "")[-6000:], file=sys.stderr, flush=True)
        outcomes[label], written = result, path
        if isinstance(result, pd.DataFrame):
            left = "; ".join(result.attrs.get("left_out", ()))
            outcomes[label] = f"measured without {left}" if left else "measured"
            failed += [f"{label} (without {left})"] if left else []
            rows.append(result.assign(process=process))
            rows[-1].attrs = result.attrs
            written = results.write("gpu", together(rows), preset=preset, folder=folder)
            outcomes["rows"] = sum(map(len, rows))
        results.replace(path, json.dumps(outcomes, indent=1) + "\n")
        yield label, result, written
    results.replace(path, json.dumps(outcomes | {"ended": True}, indent=1) + "\n")
    if failed:
        raise RuntimeError("; ".join(failed))

"""The GPUs of which the report has times: which there is, what it can run, and the rows
that pages show, measured here or recorded.
"""

import json
import math
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from lstm_kernels.gpu import available
from lstm_kernels.versions import versions

from .experiments import gpu_run
from .measure import provenance, results
from .measure.results import plain
from .measure.timing import disturbance

NONE = "no GPU time of it"  # why something is not told
MINUTES = 5.0  # that a page takes at most
# Lanes for float32 of a multiprocessor, by compute capability; others have 128.
LANES = {"6.0": 64, "7.0": 64, "7.5": 64, "8.0": 64}
# What gpu-checks.json has besides parts.
ABOUT = "date", "commit", "dirty", "versions", "preset", "rows", "ended"


def named(gpu: Mapping[str, Any]) -> str:
    """A device with its driver, `plain`."""
    return plain(f"{gpu['name']}, driver {gpu['driver']}")


def told(folder: results.Folder = None, *, recorded: bool = False) -> str:
    """A sentence: the GPUs of which there are times, recorded or, if not `recorded`
    alone, of this machine.
    """
    found = []
    for path in results.find("*/gpu.csv", folder):
        about = results.record("gpu", path.parent.name, folder)
        if not about["gpu"]:
            raise ValueError(f"record: {path} is of no GPU, want its name and driver")
        found.append(f"{named(about['gpu'])}, {about['date']}")
    if not recorded and (here := provenance.gpu()):
        found.append(f"{named(here)}, in this run")
    if not found:
        return "No GPU has been at hand, so this report has no time of one."
    return f"GPUs that were measured: {'; '.join(found)}."


def able() -> pd.DataFrame:
    """What each GPU version can do here: a table of versions and reasons."""
    why = {
        f"`{version.name}`": plain(version.why_unavailable or "runs here")
        for version in versions()
        if version.target == "gpu"
    }
    return pd.DataFrame({"here": why}).rename_axis("version")


def rows(nb: Any, only: tuple[str, ...] = (), keep: Path | None = None) -> pd.DataFrame:
    """The rows of `gpu.plan`, measured now where there is a GPU, else recorded ones,
    else none. Says of which device, and what came of each part.

    only: names of parts that the page needs, for a page that stands alone; with the
    repository all are measured once for all pages. keep: where results are left; None:
    in the build folder, if there is one.
    """
    if provenance.gpu():
        keep = keep or (nb.build / "gpu" if nb.build else None)
        with tempfile.TemporaryDirectory() as alone:
            return _measured(nb, () if keep else only, keep or Path(alone))
    if keep:
        why = available.why_unavailable() or "Numba simulates the GPU here"
        nb.say(f"**Nothing was measured:** {plain(why)}.")
        return pd.DataFrame(columns=results.COLUMNS)
    try:
        found = nb.recorded("gpu", brief=bool(only))
    except ValueError:
        if results.find("*/gpu.csv"):  # which cannot be read
            raise
        return pd.DataFrame(columns=[*results.COLUMNS, "machine"])
    return found.assign(process=found["process"].fillna(0))


def _measured(nb, only, folder):
    """Rows of this run in `folder`: those that are there, if a run of this preset ended
    with some and no code is newer.
    """
    checks = place(folder) / "gpu-checks.json"
    came = json.loads(checks.read_text()) if checks.exists() else {}
    is_new = bool(came) and checks.stat().st_mtime > results.newest_code()
    done = came.get("ended") and came.get("rows") and came["preset"] == nb.preset
    if not (is_new and done):
        show, came = nb.progress(), {}
        show("Measuring on the GPU; first, kernels are compiled and verified.")
        with suppress(RuntimeError):  # some parts failed, and are in `came`
            for part, result, _ in gpu_run.main(nb.preset, folder, MINUTES, only):
                came[part] = result if isinstance(result, str) else "measured"
                show(_listed(came))
        came = json.loads(checks.read_text())
    nb.say(_listed({k: text for k, text in came.items() if k not in ABOUT}))
    if not came["rows"]:
        return pd.DataFrame(columns=results.COLUMNS)
    return results.read("gpu", folder).drop(columns="machine")


def _listed(came: Mapping[str, str]) -> str:
    return "\n".join(f"- {plain(part)}: {plain(text)}" for part, text in came.items())


def place(folder: Path) -> Path:
    """This machine's results in `folder`."""
    return folder / provenance.machine_name()


def about(rows: pd.DataFrame, folder: results.Folder = None) -> dict[str, Any]:
    """What `rows` were measured on: their record; of rows of this run the machine."""
    if "machine" not in rows or rows.empty:
        return provenance.machine()
    return results.record("gpu", rows["machine"].iloc[0], folder)


def conditions(rows: pd.DataFrame, folder: results.Folder = None) -> dict[str, str]:
    """For claims: date, GPU and driver of recorded rows, "" for others, and what
    disturbed.
    """
    if "machine" not in rows or rows.empty:
        return {"recorded": "", "disturbed": disturbance(rows)}
    record = about(rows, folder)
    recorded = f"{record['date']}, {named(record['gpu'])}"
    return {"recorded": recorded, "disturbed": record.get("disturbance", "")}


def rates(rows: pd.DataFrame, folder: results.Folder = None) -> tuple[float, float]:
    """By what the driver says of the device of `rows`: the most GFLOP/s in float32, a
    multiply-add two operations, and the most GB/s of its memory; NaN without a device.
    """
    gpu = about(rows, folder)["gpu"]
    if not gpu:
        return math.nan, math.nan
    lanes = gpu["multiprocessors"] * LANES.get(gpu["capability"], 128)
    memory = 2 * gpu["memory_clock_mhz"] * gpu["memory_bus_bits"] / 8
    return 2 * lanes * gpu["clock_mhz"] / 1e3, memory / 1e3

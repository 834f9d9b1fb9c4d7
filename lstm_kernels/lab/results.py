"""Results files: tidy CSV, a row per repeat, in a folder of the machine they were measured on."""

import json
import os
from pathlib import Path

import pandas as pd

from . import provenance

FOLDER = Path(__file__).parents[2] / "data" / "results"
COLUMNS = [
    *("experiment", "version", "variant", "L", "T", "B", "D", "H", "dtype"),
    *("stage", "repeat", "seconds", "max_err", "threads", "ranks", "N", "bytes"),
    "instruction_set",
]
# What makes two measurements those of one machine.
IDENTITY = ("name", "cpu", "cores", "gpu")


def write(experiment, rows, *, preset, folder=FOLDER):
    """Write the rows of an experiment and machine.json beside them; returns the path of the CSV.

    rows: a DataFrame with some of COLUMNS, at least version, stage, repeat, seconds. Files are
    written beside and renamed; other machines' folders are not touched. Raises ValueError for
    unknown columns, or when the folder belongs to another machine.
    """
    unknown = sorted(set(rows.columns) - set(COLUMNS))
    missing = sorted({"version", "stage", "repeat", "seconds"} - set(rows.columns))
    if unknown or missing:
        raise ValueError(
            f"rows: got unknown columns {unknown}, lacks {missing}, want some of {COLUMNS}"
        )
    machine = provenance.machine(preset)
    place = Path(folder) / machine["name"]
    record = place / "machine.json"
    if record.exists():
        before = json.loads(record.read_text())
        if any(before.get(key) != machine[key] for key in IDENTITY):
            raise ValueError(f"folder: {place} belongs to another machine of the same name")
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{experiment}.csv"
    rows = rows.assign(experiment=experiment).reindex(columns=COLUMNS)
    replace(path, rows.to_csv(index=False, float_format="%.9g"))
    replace(record, json.dumps(machine, indent=1) + "\n")
    return path


def read(experiment, folder=FOLDER):
    """Every machine's rows of an experiment, with a column `machine`; ValueError for none."""
    paths = sorted(Path(folder).glob(f"*/{experiment}.csv"))
    if not paths:
        raise ValueError(f"experiment: got {experiment!r}, want one with a CSV file under {folder}")
    return pd.concat([pd.read_csv(path).assign(machine=path.parent.name) for path in paths])


def machine(name, folder=FOLDER):
    """The machine.json of a machine, as a dict."""
    return json.loads((Path(folder) / name / "machine.json").read_text())


def replace(path, text):
    """Write a file beside its place and rename it."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(text)
    os.replace(beside, path)

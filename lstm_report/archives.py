"""Measurements of a GPU as one file: packed where they were taken, checked and taken
over where the report is.
"""

import datetime
import hashlib
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .measure import results

FILES = "gpu.csv", "gpu.json", "gpu-checks.json"
MACHINE = re.compile(r"[a-z0-9][a-z0-9-]{0,150}")
NAME = re.compile(r"[A-Za-z0-9][\w .,/-]{0,60}", re.ASCII)  # of a version, a part
MOST_BYTES, MOST_LETTERS = 4 << 20, 2000  # of a file, and of a text in it
# What a record must hold, and of what kind.
RECORD: dict[str, Any] = {
    "name": str,
    "cpu": str,
    "cores": int,
    "gpu": dict,
    "preset": str,
}
RECORD |= {"date": str, "sha256": str, "packages": dict, "blas": list}
RECORD |= {"distorting_variables": list, "dirty": bool | None, "commit": str | None}
NUMBERS = ["L", "T", "B", "D", "H", "repeat", "process", "max_err", "N", "seconds"]


def pack(place: Path, path: Path) -> Path:
    """Write the results of a GPU in `place`, a machine's folder, as an archive; returns
    its path. FileNotFoundError where nothing was measured.
    """
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in FILES:
            archive.writestr(f"{place.name}/{name}", (place / name).read_bytes())
    results.replace(path, raw.getvalue())
    return path


def take(path: Path, folder: results.Folder = None) -> Path:
    """Put the results of an archive into `folder`, by default data/results/; returns
    the machine's folder.

    Raises ValueError for a file that `pack` has not made, or that was changed since;
    for results of another machine of that name, and for those that are older than what
    is there. Nothing is written then.
    """
    machine, texts = _opened(Path(path))
    record = _record(texts["gpu.json"], machine)
    if hashlib.sha256(texts["gpu.csv"]).hexdigest() != record["sha256"]:
        raise _wrong("gpu.csv", "other rows than gpu.json is of", "those rows")
    _check_rows(texts["gpu.csv"])
    _check_texts("gpu-checks.json", _json("gpu-checks.json", texts["gpu-checks.json"]))
    where = Path(results.FOLDER if folder is None else folder) / machine
    for before in sorted(where.glob("*.json")):
        there = _json(before.name, before.read_bytes())
        if before.with_suffix(".csv").exists():
            other = [k for k in results.IDENTITY if there.get(k) != record.get(k)]
            if other:
                got = f"{', '.join(other)} of another machine than {where} has"
                raise _wrong("gpu.json", got, "that machine's, or a name of its own")
        if before.name == "gpu.json" and there["date"] > record["date"]:
            got = f"results of {record['date']}"
            raise _wrong("gpu.json", got, f"later ones than {where} has")
    where.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        results.replace(where / name, texts[name])
    return where


def _wrong(name, got, want):
    return ValueError(f"archive: {name}: got {got}, want {want}")


def _opened(path):
    """The machine that an archive names, and its files, bytes by name."""
    made = "a file that `python -m lstm_report gpu --archive` or gpu.ipynb made"
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            machine = entries[0].filename.partition("/")[0] if entries else ""
            names = sorted(entry.filename for entry in entries)
            if not MACHINE.fullmatch(machine) or names != sorted(
                f"{machine}/{name}" for name in FILES
            ):
                raise _wrong(path.name, f"entries {names[:5]}", made)
            texts = {}
            for entry in entries:
                with archive.open(entry) as file:  # what it says of its size may lie
                    content = file.read(MOST_BYTES + 1)
                if len(content) > MOST_BYTES:
                    got = f"more than {MOST_BYTES} bytes"
                    raise _wrong(entry.filename, got, "less")
                texts[entry.filename.rpartition("/")[2]] = content
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise _wrong(path.name, f"no archive ({error})", made) from None
    return machine, texts


def _json(name, content):
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _wrong(name, f"no JSON ({error})", "an object") from None
    if not isinstance(found, dict):
        raise _wrong(name, f"a {type(found).__name__}", "an object")
    return found


def _record(content, machine):
    record = _json("gpu.json", content)
    for key, kind in RECORD.items():
        if not isinstance(record.get(key), kind):
            got = f"{key} {str(record.get(key))[:50]!r}"
            raise _wrong("gpu.json", got, getattr(kind, "__name__", str(kind)))
    _check_texts("gpu.json", record)
    card = record["gpu"]
    if not all(isinstance(card.get(key), str) for key in ("name", "driver")):
        raise _wrong("gpu.json", f"gpu {sorted(card)}", "its name and its driver")
    if record["name"] != machine or record["preset"] != "paper":
        got = f"results of {record['name']!r}, preset {record['preset']!r}"
        raise _wrong("gpu.json", got, f"those of {machine!r}, preset 'paper'")
    try:
        datetime.date.fromisoformat(record["date"])
    except ValueError as error:
        raise _wrong(
            "gpu.json", f"date {record['date']!r} ({error})", "a day"
        ) from None
    return record


def _check_texts(name: str, value: Any, depth: int = 0) -> None:
    """ValueError for texts that are long or hold what is not printed, and for lists in
    lists without end.
    """
    if depth > 5:
        raise _wrong(name, "lists in lists", f"at most {depth}")
    if isinstance(value, str) and (
        len(value) > MOST_LETTERS or not value.isprintable()
    ):
        raise _wrong(name, f"the text {value[:50]!r}", "a short line of letters")
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    for part in parts if isinstance(parts, dict | list) else ():
        _check_texts(name, part, depth + 1)


def _check_rows(content):
    """ValueError for what `results.write` would not have written of a GPU."""
    try:
        rows = pd.read_csv(io.BytesIO(content), encoding="utf-8")
    except (ValueError, pd.errors.ParserError) as error:
        raise _wrong("gpu.csv", f"no table ({error})", "rows of results") from None
    if list(rows) != results.COLUMNS or rows.empty:
        got = f"columns {list(rows)[:5]}..., {len(rows)} rows"
        raise _wrong("gpu.csv", got, f"rows with the columns {results.COLUMNS}")
    if set(rows["experiment"]) != {"gpu"}:
        raise _wrong("gpu.csv", f"experiments {set(rows['experiment'])}", "gpu")
    for column in rows:
        given = rows[column].dropna()
        if column in NUMBERS:
            if not pd.api.types.is_numeric_dtype(given):
                raise _wrong("gpu.csv", f"texts in {column}", "numbers")
            if not (np.isfinite(given) & (given >= 0)).all():
                raise _wrong("gpu.csv", f"{column} {given.min()}", "at least 0, finite")
        for text in set(given) if given.dtype.kind not in "iufb" else ():
            if not isinstance(text, str) or not NAME.fullmatch(text):
                raise _wrong("gpu.csv", f"{str(text)[:50]!r} in {column}", "a name")
    if rows["seconds"].isna().any() or not (rows["seconds"] > 0).all():
        raise _wrong("gpu.csv", "seconds that no clock gives", "more than 0")


def packed(place: Path, path: Path) -> str:
    """`pack` in a sentence, or why there is nothing to pack."""
    try:
        size = pack(place, path).stat().st_size
    except FileNotFoundError:
        return "Nothing was measured here, so there is no archive."
    return f"Packed: `{path}`, {size / 1000:.0f} kB."

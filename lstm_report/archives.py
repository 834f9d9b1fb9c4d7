"""Measurements of a GPU as one file: packed where they were taken, checked and taken
over where the report is.
"""

import datetime
import hashlib
import io
import json
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lstm_kernels.files import check_path

from .measure import results

FILES = "gpu.csv", "gpu.json", "gpu-checks.json"
MACHINE = re.compile(r"[a-z0-9][a-z0-9-]{0,150}")
NAME = re.compile(r"[A-Za-z0-9][\w .,/-]{0,60}", re.ASCII)  # of a version, a part
ROWS = re.compile(rb"[ -~\n]*")
PACKINGS = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
BROKEN = zipfile.BadZipFile, zlib.error, UnicodeDecodeError, RuntimeError, EOFError
MOST_BYTES, MOST_LETTERS = 4 << 20, 2000  # of a file, and of a text in it
MOST = 10**18  # numbers in a record are less
# What a record must hold, and of what kind.
RECORD: dict[str, Any] = {
    **dict.fromkeys(("name", "cpu", "preset", "date", "sha256"), str),
    **dict.fromkeys(("gpu", "packages"), dict),
    **dict.fromkeys(("blas", "distorting_variables"), list),
    "cores": int,
    "dirty": bool | None,
    "commit": str | None,
}
SIZES = ["L", "T", "B", "D", "H", "N"]  # whole numbers; "N" may be missing
NUMBERS = [*SIZES, "repeat", "process", "max_err", "seconds"]


def pack(place: Path, path: Path) -> Path:
    """Write the results of a GPU in `place`, a machine's folder, as an archive; returns
    its path. FileNotFoundError where nothing was measured.
    """
    if not json.loads((place / "gpu-checks.json").read_bytes()).get("rows", 1):
        raise FileNotFoundError(f"no rows of the last run in {place}")
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in FILES:
            archive.writestr(f"{place.name}/{name}", (place / name).read_bytes())
    results.replace(path, raw.getvalue())
    return path


def take(
    path: Path, folder: results.Folder = None, *, replace: bool = False
) -> tuple[Path, str]:
    """Put the results of an archive into `folder`, by default data/results/; returns
    the machine's folder, and in words what is in it.

    replace: whether fewer parts than are there, or other rows of the same day, may take
    their place. Raises ValueError for a file that `pack` has not made, or that was
    changed since; for results of another machine of that name, for those that are older
    than what is there, and for what `replace` allows. Nothing is written then. A call
    that is killed between two files leaves rows of another record, which
    `results.record` refuses and the next call puts right.
    """
    machine, texts = _opened(check_path("archive", path))
    record = _record(texts["gpu.json"], machine)
    if hashlib.sha256(texts["gpu.csv"]).hexdigest() != record["sha256"]:
        raise wrong("gpu.csv", "rows changed since they were packed", "them as packed")
    rows = _checked_rows(texts["gpu.csv"])
    parts = {*rows["variant"].dropna()}
    check_values(
        "gpu-checks.json", checked_json("gpu-checks.json", texts["gpu-checks.json"])
    )
    where = Path(results.FOLDER if folder is None else folder) / machine
    _check_place(where, record, parts, replace)
    where.mkdir(parents=True, exist_ok=True)
    for name in reversed(FILES):  # a table without its record would be refused
        results.replace(where / name, texts[name])
    card = record["gpu"]["name"]
    return where, f"{card}, {len(parts)} parts, {len(rows)} rows"


def _check_place(where, record, parts, replace):
    """ValueError for what `take` must not replace in a machine's folder."""
    if where.is_symlink() or (where.exists() and not where.is_dir()):
        raise wrong(where.name, "a place that is no folder", "one")
    for rows_there in sorted(where.glob("*.csv")):
        if not rows_there.with_suffix(".json").exists():
            got = f"{rows_there} without its record"
            raise wrong(where.name, got, "a record beside")
    for before in sorted(where.glob("*.json")):
        if not before.with_suffix(".csv").exists():
            continue
        there = checked_json(before.name, before.read_bytes())
        if other := results.differing(there, record):
            got = f"{', '.join(other)} of another machine than {where} has"
            raise wrong("gpu.json", got, "that machine's, or a name of its own")
        if before.name == "gpu.json" and str(there.get("date")) > record["date"]:
            got = f"results of {record['date']}"
            raise wrong("gpu.json", got, f"those of {there.get('date')} or later")
        if before.name == "gpu.json" and not replace:
            kept = results.table(before.with_suffix(".csv").read_bytes())
            if lacks := sorted({*kept["variant"].dropna()} - parts):
                got = f"no rows of {', '.join(lacks)}"
                raise wrong("gpu.csv", got, f"what {where} has, or --replace")
            same = there.get("sha256") == record["sha256"]
            if there.get("date") == record["date"] and not same:
                got = f"other rows of {record['date']}"
                raise wrong("gpu.csv", got, f"those that {where} has, or --replace")


def wrong(name, got, want):
    """What is raised for a file that is not as it was made."""
    return ValueError(f"archive: {name[:200]}: got {got[:500]}, want {want}")


def _opened(path):
    """The machine that an archive names, and its files, bytes by name."""
    made = "a file that `python -m lstm_report gpu --archive` or gpu.ipynb made"
    if (size := path.stat().st_size) > len(FILES) * MOST_BYTES:
        raise wrong(path.name, f"{size} bytes", made)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            machine = entries[0].filename.partition("/")[0] if entries else ""
            names = sorted(entry.filename for entry in entries)
            if not MACHINE.fullmatch(machine) or names != sorted(
                f"{machine}/{name}" for name in FILES
            ):
                raise wrong(path.name, f"entries {names[:5]}", made)
            texts = {}
            for entry in entries:
                if entry.compress_type not in PACKINGS:
                    got = f"compression {entry.compress_type}"
                    raise wrong(entry.filename, got, "none, or deflate")
                with archive.open(entry) as file:  # what it says of its size may lie
                    content = file.read(MOST_BYTES + 1)
                if len(content) > MOST_BYTES:
                    got = f"more than {MOST_BYTES} bytes"
                    raise wrong(entry.filename, got, "less")
                texts[entry.filename.rpartition("/")[2]] = content
    except BROKEN as error:
        raise wrong(path.name, f"no archive ({error})", made) from None
    return machine, texts


def checked_json(name, content):
    """The object that JSON holds; ValueError for anything else."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise wrong(name, f"no JSON ({error})", "an object") from None
    if not isinstance(found, dict):
        raise wrong(name, f"a {type(found).__name__}", "an object")
    return found


def _record(content, machine):
    record = checked_json("gpu.json", content)
    check_values("gpu.json", record)
    for key, kind in RECORD.items():
        if not isinstance(record.get(key), kind):
            got = f"{key} {str(record.get(key))[:50]!r}"
            raise wrong("gpu.json", got, getattr(kind, "__name__", str(kind)))
    card = record["gpu"]
    if not all(isinstance(card.get(key), str) for key in ("name", "driver")):
        raise wrong("gpu.json", f"gpu {sorted(card)}", "its name and its driver")
    if record["name"] != machine or record["preset"] != "paper":
        got = f"results of {record['name']!r}, preset {record['preset']!r}"
        raise wrong("gpu.json", got, f"those of {machine!r}, preset 'paper'")
    tomorrow = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(1)
    try:
        day = datetime.date.fromisoformat(record["date"])
    except ValueError:
        day = None
    if not day or day.isoformat() != record["date"] or day > tomorrow:
        got = f"date {record['date'][:50]!r}"
        raise wrong("gpu.json", got, "a day that was, as 2026-01-31")
    try:  # as pages will tell of it
        results.caption(record)
    except Exception as error:
        got = f"what cannot be told ({type(error).__name__})"
        raise wrong("gpu.json", got, "a record as `gpu` writes it") from None
    return record


def check_values(name: str, value: Any, depth: int = 0) -> None:
    """ValueError for texts that are long or hold what is not printed, for numbers that
    no page could show, and for lists in lists without end.
    """
    if depth > 5:
        raise wrong(name, "lists in lists", f"at most {depth}")
    if isinstance(value, str) and (
        len(value) > MOST_LETTERS or not value.isprintable()
    ):
        raise wrong(name, f"the text {value[:50]!r}", "a short line of letters")
    if isinstance(value, int | float) and not -MOST < value < MOST:
        raise wrong(name, f"the number {str(value)[:50]}", "at most 18 digits")
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    for part in parts if isinstance(parts, dict | list) else ():
        check_values(name, part, depth + 1)


def _checked_rows(content):
    """The rows; ValueError for what `results.write` would not have written of a
    GPU.
    """
    header, wanted = content.partition(b"\n")[0], ",".join(results.COLUMNS)
    if header != wanted.encode():
        raise wrong("gpu.csv", f"columns {header[:80]!r}", f"rows with {wanted}")
    try:
        if not ROWS.fullmatch(content):
            raise ValueError("a byte that is no letter of ASCII")
        rows = results.table(content)
    except ValueError as error:
        raise wrong("gpu.csv", f"no table ({error})", "rows of results") from None
    if rows.empty:
        raise wrong("gpu.csv", "0 rows", "some")
    if set(rows["experiment"]) != {"gpu"}:
        raise wrong("gpu.csv", f"experiments {set(rows['experiment'])}", "gpu")
    for column in rows:
        given = rows[column].dropna()
        if column in NUMBERS:
            if not pd.api.types.is_numeric_dtype(given):
                raise wrong("gpu.csv", f"texts in {column}", "numbers")
            if not (np.isfinite(given) & (given >= 0)).all():
                raise wrong("gpu.csv", f"{column} {given.min()}", "at least 0, finite")
        for text in set(given) if column not in NUMBERS else ():
            is_name = isinstance(text, str) and NAME.fullmatch(text)
            if given.dtype.kind not in "iuf" and (
                not is_name or text != results.plain(text)
            ):
                raise wrong("gpu.csv", f"{str(text)[:50]!r} in {column}", "a name")
    for column in (*SIZES, "repeat", "process"):
        least = 0 if column in ("repeat", "process") else 1
        given = rows[column].dropna() if column == "N" else rows[column]
        if not ((given % 1 == 0) & given.between(least, 10**9)).all():
            want = f"whole numbers from {least} to 10^9"
            raise wrong("gpu.csv", f"{column} {[*given[:3]]}", want)
    for column in ("version", "variant", "stage"):
        if not rows[column].map(lambda text: isinstance(text, str)).all():
            raise wrong("gpu.csv", f"no name in {column}", "one in every row")
    if (
        rows["seconds"].dtype.kind not in "if"
        or not rows["seconds"].between(1e-9, 1e6).all()
    ):
        raise wrong("gpu.csv", "seconds that no clock gives", "1e-9 to 1e6")
    return rows


def packed(place: Path, path: Path) -> str:
    """`pack` in a sentence, or why there is nothing to pack."""
    try:
        size = pack(place, path).stat().st_size
    except FileNotFoundError:
        return "There is no archive: nothing was measured."
    return f"Packed: `{path}`, {size / 1000:.0f} kB."

"""Results files: tidy CSV, a row per repeat, each with the record of its own run beside
it.

<folder>/<machine>/<experiment>.csv holds the rows, <experiment>.json what they were
measured on.
"""

import csv
import hashlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lstm_kernels.files import writing

from . import provenance
from .timing import disturbance

Folder = Path | str | None
# None where the package is installed without its repository.
ROOT = provenance.checkout()
FOLDER = ROOT / "data" / "results" if ROOT else Path("results")
# What a package without its repository may bring of FOLDER; see tools/standalone.py.
BROUGHT = provenance.PACKAGE / "recorded"
# Where measurements go by default; small sizes replace nothing that is recorded.
SMOKE = ROOT / "build/smoke/results" if ROOT else FOLDER / "smoke"
FOLDERS = {"paper": FOLDER, "smoke": SMOKE}
# What Markdown would not show as it stands there. A character that is escaped already
# stays: a text may come by here twice.
MARKUP = re.compile(
    r"&#\d+;|[][&<>|`*~#$\\{}]|(?<!\w)_++|_++(?![^\W_])"
    r"|^\d+[.)](?= |$)|^[-+=]+(?= |$)|^%|(?<=\))=$"  # what begins a list, a title
)
COLUMNS = [
    *("experiment", "version", "variant", "L", "T", "B", "D", "H", "dtype"),
    *("stage", "repeat", "seconds", "max_err", "threads", "ranks", "N", "bytes"),
    "process",
]
VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2", "asimd": "NEON"}
# What a processor's name holds beside its name.
NO_NAME = re.compile(r"\((R|TM)\)|\b(CPU|Processor)\b|@.*", re.IGNORECASE)
# What makes two measurements those of one machine.
IDENTITY = ("name", "cpu", "cores", "gpu")


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """What of IDENTITY tells two machines apart; a GPU's driver may be another."""

    def known(record, key):
        value = record.get(key)
        if isinstance(value, dict):
            value = {k: v for k, v in value.items() if k != "driver"}
        return value

    return [key for key in IDENTITY if known(one, key) != known(other, key)]


def place(experiments: Iterable[str], *, preset: str, folder: Folder = None) -> Path:
    """The folder for this machine's results, made if need be: call it before measuring.

    folder: None is that of the preset, "paper" or "smoke". Raises ValueError when it
    belongs to another machine, or when smoke would replace rows of one of `experiments`
    that are not smoke's; OSError where nothing can be written.
    """
    machine = provenance.machine(preset)
    where = Path(FOLDERS[preset] if folder is None else folder) / machine["name"]
    for path in sorted(where.glob("*.csv")):
        about = path.with_suffix(".json")
        before = _about(about) if about.exists() else {}
        if before and differing(before, machine):
            other = "another machine of the same name"
            raise ValueError(f"folder: {where} belongs to {other}")
        if path.stem in experiments and preset == "smoke" != before.get("preset"):
            must = "smoke must not replace it"
            raise ValueError(f"folder: {path} is of preset paper, {must}")
    where.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=where):  # it can be written to
        return where


def write(
    experiment: str, rows: pd.DataFrame, *, preset: str, folder: Folder = None
) -> Path:
    """Write the rows of an experiment and the record of their run; returns the path of
    the CSV.

    rows: a DataFrame with some of COLUMNS, at least version, stage, repeat, seconds.
    Other experiments and other machines' folders are not touched. Raises ValueError for
    unknown or missing columns, and what `place` raises.
    """
    unknown = sorted(set(rows.columns) - set(COLUMNS))
    missing = sorted({"version", "stage", "repeat", "seconds"} - set(rows.columns))
    if unknown or missing:
        got = f"got unknown columns {unknown}, lacks {missing}"
        raise ValueError(f"rows: {got}, want some of {COLUMNS}")
    path = place([experiment], preset=preset, folder=folder) / f"{experiment}.csv"
    about = provenance.machine(preset) | {"disturbance": disturbance(rows)}
    rows = rows.assign(experiment=experiment).reindex(columns=COLUMNS)
    text = rows.to_csv(index=False, float_format="%.9g", lineterminator="\n")
    about["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    replace(path, text)
    replace(path.with_suffix(".json"), json.dumps(about, indent=1) + "\n")
    return path


def fill(
    plan: Mapping[str, Callable[[], pd.DataFrame]],
    *,
    preset: str,
    folder: Folder = None,
) -> Iterator[tuple[str, pd.DataFrame, Path]]:
    """Run each experiment of a plan, name -> function that returns rows, and write its
    file; yields (name, rows, path). What would distort or disturb the measurements is
    said on stderr.
    """
    place(plan, preset=preset, folder=folder)
    for warning in provenance.warnings():
        print(f"warning: {warning}", file=sys.stderr)
    for experiment, run in plan.items():
        rows = run()
        if signs := disturbance(rows):
            print(f"warning: {experiment} was disturbed: {signs}", file=sys.stderr)
        yield experiment, rows, write(experiment, rows, preset=preset, folder=folder)


def newest_code(root: Path | None = ROOT) -> float:
    """When the newest file was written of what a page's numbers follow from: both
    packages, the series and the recorded results. Folders count too, since they tell of
    files that are gone.
    """
    found = [*root.glob("lstm_*/**/*.*"), *root.glob("data/**/*")] if root else []
    read = [path for path in found if path.parent.name != "__pycache__"]
    return max((path.stat().st_mtime for path in read), default=0.0)


def find(pattern: str, folder: Folder = None) -> list[Path]:
    """The files of results that match, in order: those in `folder`; None: those in
    FOLDER, and what BROUGHT has besides. Names that begin with a dot are files that are
    being written.
    """
    folders = [BROUGHT, FOLDER] if folder is None else [Path(folder)]
    paths = {p.relative_to(root): p for root in folders for p in root.glob(pattern)}
    return [paths[name] for name in sorted(paths) if not str(name).startswith(".")]


def table(content: bytes) -> pd.DataFrame:
    """The rows of a CSV file; ValueError where one has not as many fields as the
    header: of a longer one pandas would make an index, or leave fields out.
    """
    rows = csv.reader(io.StringIO(content.decode(), newline=""), strict=True)
    try:
        columns = len(next(rows, []))
        for row in rows:
            if len(row) != columns:
                got = f"{len(row)} fields in line {rows.line_num}"
                raise ValueError(f"got {got}, want {columns} as in the header")
    except csv.Error as error:
        raise ValueError(f"line {rows.line_num}: {error}, want fields") from None
    return pd.read_csv(io.BytesIO(content), index_col=False)


def read(experiment: str, folder: Folder = None) -> pd.DataFrame:
    """Every machine's rows of an experiment, with a column `machine`; ValueError for
    none.
    """
    rows = recorded(experiment, folder)
    if rows.empty:
        where = FOLDER if folder is None else folder
        want = f"want one with a CSV file under {where}"
        if not ROOT:
            want += "; recorded results come with the repository, not the package"
        raise ValueError(f"experiment: got {experiment!r}, {want}")
    return rows


def recorded(experiment: str, folder: Folder = None) -> pd.DataFrame:
    """The same; an empty table where there are none. ValueError for a folder, a column
    or a text that is not `plain`: they are names, which stand in tables, figures and
    sentences as they are.
    """
    parts = []
    for path in find(f"*/{experiment}.csv", folder):
        try:
            rows = table(path.read_bytes()).assign(machine=path.parent.name)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        for column in rows:
            for text in (column, *rows[column].unique()):
                if isinstance(text, str) and text != plain(text):
                    raise ValueError(f"{path}: got {text!r}, want a name, no markup")
        parts.append(rows)
    return pd.concat(parts) if parts else pd.DataFrame(columns=[*COLUMNS, "machine"])


def record(experiment: str, machine: str, folder: Folder = None) -> dict[str, Any]:
    """What an experiment was measured on, a dict as of `provenance.machine`, with what
    disturbed it and with `recorded` True; its texts are `plain`.

    Raises ValueError where there is none, where it cannot be read, or where it is of
    other rows.
    """
    name = f"{machine}/{experiment}.csv"
    where = FOLDER if folder is None else Path(folder)
    (path,) = find(name, folder)[:1] or [where / name]
    beside = path.with_suffix(".json")
    if not beside.exists():
        lacks = f"{path} lacks {beside.name}, want what it was measured on"
        raise ValueError(f"record: {lacks}")
    about = _about(beside)
    if about.get("sha256") != hashlib.sha256(path.read_bytes()).hexdigest():
        raise ValueError(f"record: {beside} is of other rows than {path.name} holds")
    return _plain_texts(about) | {"recorded": True}


def _plain_texts(value):
    """What JSON holds, with each text `plain`."""
    if isinstance(value, dict):
        return {key: _plain_texts(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain_texts(one) for one in value]
    return plain(value) if isinstance(value, str) else value


def _about(path):
    """The record at `path`, a dict."""
    try:
        about = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        wrong = f"{path} cannot be read ({error}), want JSON"
        raise ValueError(f"record: {wrong}") from None
    if not isinstance(about, dict):
        kind = type(about).__name__
        raise ValueError(f"record: {path} holds a {kind}, want an object")
    return about


def plain(text: object) -> str:
    """A text as Markdown that shows it letter by letter, in one line: what a machine
    says of itself may be anything.
    """
    line = "".join(letter if letter.isprintable() else " " for letter in str(text))
    return MARKUP.sub(_escaped, " ".join(line.split()))


def _escaped(match):
    if match[0].startswith("&#"):
        return match[0]
    letters = (c if c.isalnum() else f"&#{ord(c)};" for c in match[0])
    return "".join(letters)


def label(record: Mapping[str, Any]) -> str:
    """A machine by its maker and by what it can do, `plain`: `Intel Xeon, AVX-512
    without bfloat16, 48 KiB L1 and 1.25 MiB L2 a core, 2 cores`; of a record that was
    read with `, recorded` and the date.

    A hypervisor's names of core and model and its clock are left out: they need not be
    the machine's. What the record does not hold is not said.
    """
    parts = [brand(record["cpu"])]
    if vectors := VECTORS.get(record.get("vectors", "")):
        known: dict[Any, str] = {True: " with bfloat16", False: " without bfloat16"}
        parts.append(vectors + known.get(record.get("bfloat16", ""), ""))
    caches = record.get("caches") or {}
    sizes = ((caches.get(key), name) for key, name in (("L1d", "L1"), ("L2", "L2")))
    if told := [f"{_size(size)} {name}" for size, name in sizes if size]:
        parts.append(f"{' and '.join(told)} a core")
    parts.append(f"{record['cores']} cores")
    if card := record.get("gpu"):
        parts.append(f"{card['name']} (driver {card['driver']})")
    parts += [f"recorded {record['date']}"] if record.get("recorded") else []
    return plain(", ".join(parts))


def clock(record: Mapping[str, Any]) -> str:
    """The clock that was measured, in words; "" where it was not. It differs from run
    to run by some hundredths, so it is no part of a machine's label.
    """
    ghz = record.get("measured_ghz")
    return f"{ghz:.1f} GHz measured" if ghz else ""


def brand(cpu: str) -> str:
    """A processor's name without signs of trade, "Processor" and a nominal clock."""
    bare = re.sub(r"&#\d+;", lambda m: chr(int(m[0][2:-1])), cpu)
    return " ".join(NO_NAME.sub(" ", bare).split()) or cpu


def _size(text):
    """A cache's size in words: "1280K" is "1.25 MiB"."""
    found = re.fullmatch(r"(\d+)K", text)
    if not found:
        return text
    size = int(found[1])
    return f"{size} KiB" if size < 1024 else f"{size / 1024:.3g} MiB"


def caption(record: Mapping[str, Any]) -> str:
    """The machine, its measured clock, its BLAS, and which code measured it when, in a
    line, `plain`; what disturbed it.
    """
    blas = sorted({f"{b['library']} ({b['kernels']} kernels)" for b in record["blas"]})
    code = f"commit {record['commit']}" if record["commit"] else "no commit recorded"
    code += " with changes" if record["dirty"] else ""
    parts = [label(record), *filter(None, [clock(record)]), *blas]
    parts += [f"Numba {record['packages']['numba']}"]
    parts += [code] if record.get("recorded") else [record["date"], code]
    parts += [f"preset {record['preset']}"] if record["preset"] != "paper" else []
    parts += [f"BLAS steered by {name}" for name in record["distorting_variables"]]
    if record.get("disturbance"):
        parts.append(f"noisy run: {record['disturbance']}")
    return plain(", ".join(parts))


def replace(path: Path, data: str | bytes) -> None:
    """Write text or bytes beside its place and rename it."""
    with writing(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)

"""Whole runs of the report, one file each: the machine, and what became of each claim.
The last runs of every machine lie beside each other in data/results/, so that a claim
has its verdicts by machine and a headline its range over days.
"""

import json
import re
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd

from lstm_kernels.files import check_path

from .archives import MACHINE, check_values, checked_json, wrong
from .measure import results
from .measure.evidence import Interval

KEPT = 5  # runs of a machine
FOLDER = "runs"
COMMIT = re.compile(r"[0-9a-f]{7,40}")
MOST_BYTES = 1 << 20
VERDICTS = "Held", "Did not hold", "Not measured"
KEYS = {"time": str, "machine": dict, "claims": list, "numbers": dict}
CLAIM = {"page", "sentence", "verdict", "numbers"}
N = r"(\d+(?:\.\d+)?)"
MEDIAN = re.compile(rf"{N}x? ?(?:%|\S{{1,7}})? \({N}x? to {N}x?\)", re.ASCII)


def write(path: Path, machine: Mapping[str, Any], pages: Mapping[str, Any]) -> None:
    """Write a run. machine: of `provenance.machine`. pages: by name the claims and the
    named numbers of an executed notebook.
    """
    claims = [
        {"page": page} | {key: claim[key] for key in CLAIM - {"page"}}
        for page, (of_page, _) in pages.items()
        for claim in of_page
        if "recorded" not in claim
    ]
    numbers = {name: told for _, named in pages.values() for name, told in named}
    now = time.strftime("%H:%M:%S")
    about = {"time": now, "machine": dict(machine)}
    run = about | {"claims": claims, "numbers": numbers}
    results.replace(path, json.dumps(run, indent=1, ensure_ascii=False) + "\n")


def checked(path: Path) -> tuple[dict[str, Any], datetime]:
    """A run and when it ended; ValueError for a file that `write` has not made, or of
    small sizes.
    """
    if (size := check_path("archive", path).stat().st_size) > MOST_BYTES:
        raise wrong(path.name, f"{size} bytes", f"at most {MOST_BYTES}")
    run = checked_json(path.name, path.read_bytes())
    check_values(path.name, run)
    for key, kind in KEYS.items():
        if not isinstance(run.get(key), kind):
            raise wrong(path.name, f"no {key}", "a run as `make report` leaves it")
    machine, claims = run["machine"], run["claims"]
    name, when = str(machine.get("name")), f"{machine.get('date')}T{run['time']}"
    try:
        ended = datetime.strptime(when, "%Y-%m-%dT%H:%M:%S")
    except ValueError:
        ended = datetime.max
    if not MACHINE.fullmatch(name) or ended > datetime.now() + timedelta(days=1):
        got = f"machine {name[:50]!r}, {when[:30]!r}"
        raise wrong(path.name, got, "its name, a day and a time that are over")
    commit = machine.get("commit")
    if commit is not None and not COMMIT.fullmatch(str(commit)):
        raise wrong(path.name, f"commit {str(commit)[:50]!r}", "its hash")
    if machine.get("preset") != "paper":
        raise wrong(path.name, f"preset {machine.get('preset')!r}", "'paper'")
    known = []
    for claim in claims:
        texts = isinstance(claim, dict) and all(
            isinstance(t, str) for t in claim.values()
        )
        if not texts or set(claim) != CLAIM or claim["verdict"] not in VERDICTS:
            raise wrong(path.name, f"claim {str(claim)[:300]}", f"{sorted(CLAIM)}")
        known.append(claim["sentence"])
    if not known or len({*known}) < len(known):
        raise wrong(path.name, f"{len(known)} claims", "each sentence once, and one")
    for told in run["numbers"].values():
        if not isinstance(told, str):
            raise wrong(path.name, f"number {str(told)[:50]}", "a text")
    try:
        results.label(machine)  # as pages will tell of it
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise wrong(path.name, f"machine ({error!r})", "its record") from None
    return run, ended


def take(path: Path, folder: results.Folder = None) -> tuple[Path, str]:
    """Put a run into `folder`, by default data/results/, beside the last ones of its
    machine; returns its file, and in words what it is. ValueError for what `checked`
    refuses, and for a run that is older than all that are kept.
    """
    run, ended = checked(path)
    machine = run["machine"]
    name, commit = machine["name"], (machine.get("commit") or "none")[:12]
    where = Path(results.FOLDER if folder is None else folder) / name / FOLDER
    kept = where / f"{ended:%Y-%m-%dT%H%M%S}-{commit}.json"
    before = sorted(where.glob("*.json"))[-KEPT:]
    if len(before) == KEPT and kept.name < before[0].name:
        raise wrong(path.name, f"a run of {ended}", f"a newer one than the {KEPT} kept")
    where.mkdir(parents=True, exist_ok=True)
    results.replace(kept, path.read_bytes())
    for old in sorted(where.glob("*.json"))[:-KEPT]:
        old.unlink()
    return kept, f"a run of {ended:%Y-%m-%d}, {len(run['claims'])} claims"


def read(folder: results.Folder = None) -> list[dict[str, Any]]:
    """All runs, the oldest of each machine first."""
    return [
        json.loads(path.read_bytes())
        for path in results.find(f"*/{FOLDER}/*.json", folder)
    ]


def by_machine(runs: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """A table: each sentence of the newest run, its page, and by machine in how many of
    its runs the sentence held.
    """
    runs = sorted(runs, key=lambda run: (run["machine"]["date"], run["time"]))
    if not runs:
        return pd.DataFrame()
    lines = [(c["page"][:2], c["sentence"]) for c in runs[-1]["claims"]]
    table = pd.DataFrame(lines, columns=["page", "sentence"]).set_index("sentence")
    for name in dict.fromkeys(run["machine"]["name"] for run in runs):
        own = [run for run in runs if run["machine"]["name"] == name]
        verdicts = [{c["sentence"]: c["verdict"] for c in run["claims"]} for run in own]
        cells = {}
        for sentence in table.index:
            known = [one[sentence] for one in verdicts if sentence in one]
            judged = [verdict == "Held" for verdict in known if verdict != VERDICTS[2]]
            cells[sentence] = f"{sum(judged)} of {len(judged)}" if judged else "-"
        about = own[-1]["machine"] | {"recorded": False}
        table[results.label(about)] = pd.Series(cells)
    return table


def over_days(name: str, runs: Iterable[Mapping[str, Any]]) -> Interval | None:
    """A named number over runs: its least, median and largest median; None for none."""
    told = (MEDIAN.match(run["numbers"].get(name, "")) for run in runs)
    found = [float(one[1]) for one in told if one]
    return Interval.of(found) if found else None


def outside(before: str, now: str) -> tuple[int, int]:
    """Of the medians with a range in two texts of a page, on lines that say the same of
    them: how many of the second lie outside the range of the first, and how many there
    are.
    """
    said, found = {MEDIAN.sub("#", line): line for line in before.splitlines()}, []
    for line in now.splitlines():
        old = MEDIAN.findall(said.get(MEDIAN.sub("#", line), ""))
        for (_, low, high), (new, *_) in zip(old, MEDIAN.findall(line), strict=False):
            found.append(float(low) <= float(new) <= float(high))
    return found.count(False), len(found)

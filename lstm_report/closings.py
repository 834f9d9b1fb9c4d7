"""What became of the goals of the five projects, as the pages that answer them say at
their end: read from the executed pages, for page 0 and the appendix.
"""

import json
from pathlib import Path

from .measure import results
from .notebook import Notebook

PAGES = {  # project: the page that answers it
    "CSC14116": "03_cpu_ladder.ipynb",
    "Layer-parallel": "05_layers.ipynb",
    "15-418": "07_handover.ipynb",
    "Optim-LSTM": "06_optimisations.ipynb",
    "MXNet page": "08_devices.ipynb",
}
Goals = list[list[str]]  # a goal, what was found, the verdict; the main one first
FILE = "closings.json"  # of a package without its repository: what `stored` gave


def shown(path: Path) -> Goals:
    """Those that `Notebook.goals` showed in an executed notebook; none of one that asks
    for more cores than there are.
    """
    for cell in json.loads(path.read_bytes())["cells"]:
        for output in cell.get("outputs", ()):
            ours = output.get("metadata", {}).get("lstm_kernels", {})
            if "goals" in ours:
                return ours["goals"]["lines"]
    return []


def goals_of(path: Path) -> Goals:
    """Those of a stored page; ValueError for none."""
    if goals := shown(path):
        return goals
    raise ValueError(f"{path.name}: got no goals, want a page that was executed")


def stored(folder: Path | None = None) -> dict[str, Goals]:
    """Those of the pages in `folder`, by project, and of the stored pages of what is
    not executed there.
    """
    assert results.ROOT is not None, "without a repository there are no stored pages"
    found = {}
    for project, page in PAGES.items():
        path = folder and folder / page
        goals = shown(path) if path and path.exists() else []
        found[project] = goals or goals_of(results.ROOT / "notebooks" / page)
    return found


def closings(nb: Notebook) -> dict[str, tuple[str, Goals]]:
    """By project the page, and its goals: of the pages that were executed with this
    state of the code and could show them, else of the stored ones.
    """
    if nb.build is None:
        (path,) = results.find(FILE)
        known = json.loads(path.read_bytes())
        return {project: (page, known[project]) for project, page in PAGES.items()}
    found = {}
    for project, page in PAGES.items():
        path = nb.build / page
        new = path.exists() and path.stat().st_mtime > results.newest_code()
        kept = nb.build.parents[1] / "notebooks" / page
        found[project] = page, (new and shown(path)) or goals_of(kept)
    return found

"""Which notebooks the report has, and which one is meant. It needs no package: `make`
asks it before it makes an environment.

python tools/chosen.py NUMBER smoke
"""

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRESETS = "paper", "smoke"
LAST = "lesson, appendix"
OF_LETTER = {"L": "lesson", "A": "appendix"}  # as their figures are numbered


class ReportError(ValueError):
    """The report cannot be built; the message says what to change."""


def sources(root=ROOT):
    """The report's notebooks in order: by number, then those of LAST."""
    found = sorted(root.glob("notebooks/*.ipynb"))
    return sorted(found, key=lambda path: LAST.find(path.stem))


def chosen(every, only):
    """The notebook of a number or name among `every`; all where it is empty."""
    if not only:
        return every
    name = OF_LETTER.get(only, only)
    wanted = re.compile(rf"0*{re.escape(name.lstrip('0'))}(_|$)")
    found = [path for path in every if wanted.match(path.stem)]
    if not found:
        names = ", ".join(path.stem for path in every)
        raise ReportError(f"NB: got {only!r}, want the number or name of {names}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("number")
    parser.add_argument("preset")
    given = parser.parse_args()
    try:
        chosen(sources(), given.number)
        if given.preset not in PRESETS:
            want = " or ".join(PRESETS)
            raise ReportError(f"PRESET: got {given.preset!r}, want {want}")
    except ReportError as error:
        parser.exit(2, f"report: {error}\n")

"""Print the part of requirements.lock that some packages and their needs make up.

python tools/locked.py NAME...

Versions, markers and hashes stay as locked, so that pip installs from it what `make test` has.
Standard library only, because it runs in an environment where nothing is installed yet.
"""

import re
import sys
from pathlib import Path

LOCK = Path(__file__).parents[1] / "requirements.lock"


def part(lock: str, names: list[str]) -> str:
    """The entries of `names` and, through the comments `# via`, of all that they need.

    lock: text as uv writes it. Needs of other systems are among them: their markers rule them out
    later. Raises ValueError for a name that is not locked.
    """
    entries = re.split(r"^(?=[\w.-]+==)", lock, flags=re.MULTILINE)[1:]
    name_of = {entry: entry.partition("==")[0] for entry in entries}
    missing = sorted(set(names) - set(name_of.values()))
    if missing:
        raise ValueError(f"names: {', '.join(missing)} not locked")
    # Comments follow the hashes: "# via numba", or "# via" and one "#   name" a line.
    needed_by = {entry: set(re.findall(r"^ +#(?: via)? +(\S+)", entry, re.M)) for entry in entries}
    wanted, before = set(names), 0
    while len(wanted) > before:
        before = len(wanted)
        wanted |= {name_of[entry] for entry in entries if needed_by[entry] & wanted}
    return "".join(entry for entry in entries if name_of[entry] in wanted)


if __name__ == "__main__":
    sys.stdout.write(part(LOCK.read_text(), sys.argv[1:]))

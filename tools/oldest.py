"""Print the requirements of `make test-oldest`: each lower bound of pyproject.toml, exactly.

The test tools themselves (the dev extra) are not pinned: they are not what is tested.
Standard library only, because it runs in an environment where nothing is installed yet.
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
LOWER_BOUND = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)>=(?P<version>[0-9.]+)")


def pins(project: dict) -> list[str]:
    """`name==version` of every dependency, then the dev extra as it stands."""
    pinned = []
    for requirement in project["dependencies"]:
        match = LOWER_BOUND.fullmatch(requirement)
        if match is None:
            raise ValueError(f"dependencies: got {requirement!r}, want 'name>=version'")
        pinned.append(f"{match['name']}=={match['version']}")
    return pinned + project["optional-dependencies"]["dev"]


if __name__ == "__main__":
    sys.stdout.write("\n".join(pins(tomllib.loads(PROJECT.read_text())["project"])) + "\n")

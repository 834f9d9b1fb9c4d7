"""Print the requirements of `make test-oldest`: each lower bound of pyproject.toml, exactly.

The test tools themselves (the rest of the dev extra) are not pinned: they are not what is tested.
Standard library only, because it runs in an environment where nothing is installed yet.
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
LOWER_BOUND = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)>=(?P<version>[0-9.]+)")


def pins(project: dict) -> list[str]:
    """`name==version` of what the package and the report need, then the tools of the tests."""
    extras, pinned = project["optional-dependencies"], []
    for requirement in project["dependencies"] + extras["report"]:
        match = LOWER_BOUND.fullmatch(requirement)
        if match is None:
            raise ValueError(f"dependencies: got {requirement!r}, want 'name>=version'")
        pinned.append(f"{match['name']}=={match['version']}")
    return pinned + [tool for tool in extras["dev"] if not tool.startswith(project["name"])]


if __name__ == "__main__":
    sys.stdout.write("\n".join(pins(tomllib.loads(PROJECT.read_text())["project"])) + "\n")

"""The house: an import points down, there is no circle, and a room stays a room."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import lstm_kernels

ROOT = Path(lstm_kernels.__file__).parents[1]
# From the ground up; a folder's files may import each other. The report may import all
# of the package, which never imports the report.
ROOMS = (
    "lstm_kernels",
    "lstm_kernels.cpu",
    "lstm_kernels.gpu",
    "lstm_kernels.versions",
    "lstm_kernels.torch",
    "lstm_kernels.ranks",
    "lstm_report.ptx_machine",
    "lstm_report.measure",
    "lstm_report.studies",
    "lstm_report.experiments",
    "lstm_report",
    "lstm_report.lesson",
    "lstm_report.pages",
)
# May import everything of their package.
ROOF = {"lstm_kernels", "lstm_kernels.__main__", "lstm_report.__main__"}


def modules():
    for package in ("lstm_kernels", "lstm_report"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(modules())


def imports(name, path):
    """The modules of these packages that one imports, wherever in its text."""
    inside = name.split(".")[: None if path.name == "__init__.py" else -1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in MODULES)
        if not isinstance(node, ast.ImportFrom):
            continue
        base = inside[: len(inside) - node.level + 1] if node.level else []
        base = ".".join([*base, *filter(None, [node.module])])
        for alias in node.names:
            full = f"{base}.{alias.name}"
            if full in MODULES or base in MODULES:
                yield full if full in MODULES else base


GRAPH = {name: set(imports(name, path)) - {name} for name, path in MODULES.items()}


def room(name):
    return name if name in ROOMS else name.rpartition(".")[0]


def arrows_up(graph):
    return sorted(
        f"{name} imports {other}"
        for name in graph
        for other in graph[name]
        if (name.startswith("lstm_kernels") and other.startswith("lstm_report"))
        or (
            name not in ROOF
            and (
                (other in ROOF and name.startswith("lstm_kernels"))
                or other == "lstm_report.__main__"
                or ROOMS.index(room(other)) > ROOMS.index(room(name))
            )
        )
    )


def test_an_import_points_down():
    assert not arrows_up(GRAPH)


def test_no_import_goes_in_a_circle():
    TopologicalSorter(GRAPH).prepare()  # raises CycleError, which names them


PLANTED = [
    ("lstm_kernels.cells", "lstm_kernels.cpu.stages"),
    ("lstm_kernels.ranks.world", "lstm_report.measure.comparer"),
    ("lstm_kernels.__main__", "lstm_report.measure.comparer"),
    ("lstm_report.measure.timing", "lstm_report.experiments.ladder"),
]


@pytest.mark.parametrize(("name", "other"), PLANTED)
def test_these_tests_see_an_arrow_up(name, other):
    planted = GRAPH | {name: {other}}
    assert f"{name} imports {other}" in arrows_up(planted)


def test_these_tests_see_a_circle():
    planted = GRAPH | {"lstm_kernels.cells": {"lstm_kernels.reference"}}
    with pytest.raises(ValueError, match="cycle"):
        TopologicalSorter(planted).prepare()


def test_a_notebook_may_choose_simulated_gpus_after_the_reports_imports():
    # simulate_without_gpu sets what Numba reads once, as it is imported
    program = "import sys, lstm_report.notebook; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


# Lines of each room of the package: a ceiling that only falls, to the target behind it.
# Who needs more deletes something.
CEILINGS = {
    "lstm_kernels": (3099, 2413),
    "lstm_kernels.cpu": (3319, 2100),
    "lstm_kernels.gpu": (2429, 2300),
    "lstm_kernels.versions": (2086, 1820),
    "lstm_kernels.torch": (484, 300),
    "lstm_kernels.ranks": (855, 850),
}


def lines_of_rooms():
    lines = dict.fromkeys(CEILINGS, 0)
    for name, path in MODULES.items():
        if name.startswith("lstm_kernels"):
            lines[room(name)] += len(path.read_text().splitlines())
    return lines


def test_no_room_grows_and_a_ceiling_falls_with_its_room():
    for name, lines in lines_of_rooms().items():
        ceiling, target = CEILINGS[name]
        assert lines <= ceiling, f"{name}: {lines - ceiling} lines over its ceiling"
        assert ceiling <= max(target, lines), f"{name}: lower its ceiling to {lines}"

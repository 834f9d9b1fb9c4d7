"""The house: an import points down, there is no circle, and a room stays a room."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import lstm_kernels

PACKAGE = Path(lstm_kernels.__file__).parent
# From the ground up; a folder's files may import each other. `None` is the top folder's own files.
ROOMS = (None, "cpu", "gpu", "versions", "study", "bench", "distributed", "report")
ROOF = {"lstm_kernels", "lstm_kernels.__main__"}  # may import everything


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(modules())


def imports(name, path):
    """The modules of this package that one imports, wherever in its text."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = package[: len(package) - node.level + 1] + (node.module or "").split(".")
        base = ".".join(part for part in base if part)
        for alias in node.names:
            yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base


GRAPH = {name: set(imports(name, path)) - {name} for name, path in MODULES.items()}


def room(name):
    parts = name.split(".")
    return parts[1] if len(parts) > 2 or (PACKAGE / parts[-1]).is_dir() else None


def arrows_up(graph):
    return sorted(
        f"{name} imports {other}"
        for name in graph.keys() - ROOF
        for other in graph[name]
        if other in ROOF or ROOMS.index(room(other)) > ROOMS.index(room(name))
    )


def test_an_import_points_down():
    assert not arrows_up(GRAPH)


def test_no_import_goes_in_a_circle():
    TopologicalSorter(GRAPH).prepare()  # raises CycleError, which names them


def test_these_tests_see_an_arrow_up_and_a_circle():
    planted = GRAPH | {"lstm_kernels.cells": {"lstm_kernels.bench.comparer"}}
    assert arrows_up(planted) == ["lstm_kernels.cells imports lstm_kernels.bench.comparer"]
    with pytest.raises(ValueError, match="cycle"):
        TopologicalSorter(planted).prepare()


def test_what_the_networks_need_is_imported_absolutely_nowhere():
    """An absolute import would escape these tests."""
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            named = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            named += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not [name for name in named if name.startswith("lstm_kernels")], path


def test_no_room_outgrows_the_house():
    lines = {}
    for name, path in MODULES.items():
        count = len(path.read_text().splitlines())
        assert count <= 400, name
        lines[room(name)] = lines.get(room(name), 0) + count
    assert max(lines.values()) < sum(lines.values()) / 3, lines

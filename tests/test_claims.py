"""Every function of a page is called by the test of that page, or its cell checks it."""

import ast
from pathlib import Path

import nbformat
import pages
import pytest

BOOKS = [path for path in pages.NOTEBOOKS.glob("*.ipynb") if path.stem != "lesson"]
KINDS = ast.FunctionDef, ast.ClassDef
# A cell that has one of these fails where what it computes is wrong.
CHECKS = {"compare", "AssertionError"}


def names(tree):
    """The names that stand in a tree."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def taken(tree):
    """What a test takes from its `page`."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {node.attr for node in nodes if getattr(node.value, "id", "") == "page"}


def checked(path):
    """The names, and the texts, of what runs in cells that check what they compute."""
    found = set()
    for cell in nbformat.read(path, 4).cells:
        tree = ast.parse(cell.source if cell.cell_type == "code" else "")
        run = [node for node in tree.body if not isinstance(node, KINDS)]
        words = {getattr(node, "attr", "") for node in ast.walk(tree)} | names(tree)
        asserts = any(isinstance(node, ast.Assert) for node in ast.walk(tree))
        if asserts or words & CHECKS:
            parts = [part for node in run for part in ast.walk(node)]
            found |= {part.id for part in parts if isinstance(part, ast.Name)}
            found |= {part.value for part in parts if isinstance(part, ast.Constant)}
    return found


@pytest.mark.parametrize("path", sorted(BOOKS), ids=lambda path: path.stem)
def test_a_test_calls_every_function_of_its_page(path):
    page = path.stem.partition("_")[0]
    defined = {n.name: names(n) for n in pages.statements(path) if isinstance(n, KINDS)}
    test = Path(__file__).with_name(f"test_page_{page}.py").read_text("utf-8")
    called = (taken(ast.parse(test)) | checked(path)) & set(defined)
    while more := {n for f in called for n in defined[f] & set(defined)} - called:
        called |= more
    # What measures is run by `make smoke`, and its rows are made here.
    missing = {n for n in set(defined) - called if not n.startswith("measure_")}
    assert not missing

"""Every function of a page is called by the test of that page."""

import ast
from pathlib import Path

import pages
import pytest

# What no test calls, since the page's cells run it on sizes of their own, as `make smoke`
# does: besides these, all that begins with `measure_`.
RUN_BY_CELLS = {
    "01": {"cifg", "counted", "one_step"},
    "02": {"ahead", "descend", "pair", "rules", "watched"},
    "03": {"excerpt", "share_of_products"},
    "04": {"gpu_rows", "sample", "states", "v1", "v2", "worst_error", "wrong"},
    "08": {"part_of"},
    "09": {"figure_formats", "told", "told_recorded"},
    "10": {"airline", "chosen_table", "count_sweeps", "figure_sweeps", "keeping"}
    | {"trained"},
    "appendix": {"ours"},
}
BOOKS = [path for path in pages.NOTEBOOKS.glob("*.ipynb") if path.stem != "lesson"]


def names(tree):
    """The names that stand in a tree."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def taken(tree):
    """What a test takes from its `page`."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {node.attr for node in nodes if getattr(node.value, "id", "") == "page"}


@pytest.mark.parametrize("path", sorted(BOOKS), ids=lambda path: path.stem)
def test_a_test_calls_every_function_of_its_page(path):
    page, kinds = path.stem.partition("_")[0], (ast.FunctionDef, ast.ClassDef)
    defined = {n.name: names(n) for n in pages.statements(path) if isinstance(n, kinds)}
    test = Path(__file__).with_name(f"test_page_{page}.py").read_text("utf-8")
    called = taken(ast.parse(test)) & set(defined)
    while more := {n for f in called for n in defined[f] & set(defined)} - called:
        called |= more
    missing = {
        name for name in set(defined) - called if not name.startswith("measure_")
    }
    assert missing == RUN_BY_CELLS.get(page, set())

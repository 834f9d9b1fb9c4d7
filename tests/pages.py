"""The functions of a notebook, to be tested on made rows."""

import ast
from pathlib import Path
from types import SimpleNamespace

import nbformat

from lstm_report import plots

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def functions(page):
    """What the code cells of a notebook define and import: functions, classes, imports
    and constants in capitals; nothing is measured. `page`: the start of its name.
    """
    (path,) = NOTEBOOKS.glob(f"{page}*.ipynb")
    notebook = nbformat.read(path, 4)
    kept = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            kept += filter(_defines, ast.parse(cell.source).body)
    plots.style()  # as a page's first cell does
    space = {"__name__": "page"}
    exec(compile(ast.Module(kept, []), str(path), "exec"), space)
    return SimpleNamespace(**space)


def _defines(node):
    """A definition, an import, or a constant whose value is written out."""
    if isinstance(node, ast.Assign):
        names = [n.id for n in ast.walk(node.targets[0]) if isinstance(n, ast.Name)]
        calls = any(isinstance(n, ast.Call) for n in ast.walk(node.value))
        return not calls and all(name.isupper() and name != "PRESET" for name in names)
    kinds = ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom
    return isinstance(node, kinds)

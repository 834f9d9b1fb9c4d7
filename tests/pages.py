"""What the pages say, on made rows: the functions of a notebook, rows of processes that
differ, and tables of cases for claims and for words.
"""

import ast
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from lstm_report import plots

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
# Of a process, and of a round: what all its cases take longer. Their medians are 1, and
# ratios within a round do not see them; powers of two round nothing.
OF_PROCESS, OF_ROUND = (1.0, 2.0, 0.5), (1.0, 4.0, 0.5)


def functions(page):
    """What the code cells of a notebook define and import: functions, classes, imports
    and constants in capitals; nothing is measured. `page`: the start of its name.
    """
    (path,) = NOTEBOOKS.glob(f"{page}*.ipynb")
    kept = [node for node in statements(path) if _defines(node)]
    plots.style()  # as a page's first cell does
    space = {"__name__": "page"}
    exec(compile(ast.Module(kept, []), str(path), "exec"), space)
    return SimpleNamespace(**space)


def statements(path):
    """The statements of the code cells of a notebook."""
    cells = nbformat.read(path, 4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    return [node for source in code for node in ast.parse(source).body]


def _defines(node):
    """A definition, an import, or a constant whose value is written out."""
    if isinstance(node, ast.Assign):
        names = [n.id for n in ast.walk(node.targets[0]) if isinstance(n, ast.Name)]
        calls = any(isinstance(n, ast.Call) for n in ast.walk(node.value))
        return not calls and all(name.isupper() and name != "PRESET" for name in names)
    kinds = ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom
    return isinstance(node, kinds)


def rows(times, by="case", **columns):
    """Rows of three processes, three rounds each, as `interleaved` and `fresh` give
    them.

    times: seconds by case, a number or one of each process, in the round and process
    that are neither slow nor fast. by: the name of the column of cases; columns: what
    all rows have.
    """
    made = [
        (case, process, repeat, taken * slow * slower)
        for case, each in times.items()
        for process, (taken, slow) in enumerate(
            zip(np.broadcast_to(each, 3), OF_PROCESS, strict=True)
        )
        for repeat, slower in enumerate(OF_ROUND)
    ]
    names = [by, "process", "repeat", "seconds"]
    return pd.DataFrame(made, columns=names).assign(**columns)


def claims(*table):
    """A test of a page's claims: (function, its argument or a tuple of them, verdict,
    words of its sentence, numbers or reason). ValueError for a claim of which not both
    verdicts are asked.
    """
    for function in {case[0] for case in table}:
        asked = {held for one, _, held, *_ in table if one is function}
        if not {True, False} <= asked:
            raise ValueError(f"{function.__name__}: want rows for both verdicts")

    def test(function, arguments, held, words):
        claim = _call(function, arguments)
        assert claim["held"] == held, claim
        has(words, " ".join(claim[name] for name in ("sentence", "numbers", "why")))

    cases = [(f, a, held, words) for f, a, held, *words in table]
    return _test(test, "function, arguments, held, words", cases)


def says(*table):
    """A test of sentences, tables and figures: (function, its argument or a tuple of
    them, words). A word that begins with "no: " must be missing.
    """

    def test(function, arguments, words):
        has(words, text_of(_call(function, arguments)))

    return _test(test, "function, arguments, words", [(f, a, w) for f, a, *w in table])


def _call(function, given):
    return function(*given) if isinstance(given, tuple) else function(given)


def _test(test, names, cases):
    ids = [f"{function.__name__}-{k}" for k, (function, *_) in enumerate(cases)]
    return pytest.mark.parametrize(names, cases, ids=ids)(test)


def has(words, text):
    """Fail where the text has some of the words, or has one that it must not."""
    missing = [
        word
        for word in words
        if (word.removeprefix("no: ") in text) == word.startswith("no: ")
    ]
    assert not missing, f"{missing} in: {text}"


def text_of(result):
    """A sentence in one line; a figure as `plots.words` says it, with its alternative
    text; a row of a table as its cells with commas, name first.
    """
    if isinstance(result, Figure):
        return f"{plots.words(result)} {getattr(result, 'alt', '')}"
    if isinstance(result, pd.DataFrame):
        return "\n".join(", ".join(map(str, row)) for row in result.itertuples())
    if isinstance(result, dict):
        return "\n".join(f"{name}: {value}" for name, value in result.items())
    return " ".join(result.split())


def bars(ax):
    """The ends of all error bars of axes, a pair of numbers each."""
    drawn = (one for one in ax.collections if isinstance(one, LineCollection))
    return [tuple(bar[:, 1]) for one in drawn for bar in one.get_segments()]

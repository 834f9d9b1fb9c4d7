"""What the pages say, on synthetic rows: the cells of a page that depend on
measurements are run as they stand, with rows that a test made in the place of measured
ones. The whole text, the page's own and what its cells show, is held to
approved/<page>.md; `make approve` writes it anew, to be read as a diff.
"""

import ast
import difflib
import importlib
import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from lstm_report import plots
from lstm_report.measure import results
from lstm_report.notebook import Notebook

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
APPROVED = Path(__file__).parent / "approved"
APPROVE = "LSTM_KERNELS_APPROVE"  # set: the texts are written instead of compared
# Of a process, and of a round: what all its cases take longer. Their medians are 1, and
# ratios within a round do not see them; powers of two round nothing.
OF_PROCESS, OF_ROUND = (1.0, 2.0, 0.5), (1.0, 4.0, 0.5)
MEASURES = {"processes", "shared", "recorded"}  # of a Notebook
JUST = 1.002  # times a limit is on its other side


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


def machine(roof=100.0, sgemm=80.0, line=2e-7, read=50.0):
    """Rows of `facts.measure_machine`: GFLOP/s on registers and in an SGEMM, seconds of
    a hand-over, GB/s, in the process that is neither slow nor fast.
    """
    took = {"registers": 1 / np.array(roof), "SGEMM": 1 / np.array(sgemm), "line": line}
    return rows(took | {"read": 1 / read})


def of_card(variant, stage, times, **sizes):
    """Rows of a comparison on a GPU; times: seconds by version."""
    columns = {"variant": variant, "stage": stage, "N": 0} | sizes
    return rows(times, by="version", **columns)


def uneven(rows):
    """The same rows, each case of each process up to 3 % slower, all differently."""
    if isinstance(rows, list):
        return [uneven(one) for one in rows]
    if not isinstance(rows, pd.DataFrame) or "seconds" not in rows or rows.empty:
        return rows
    shared = {"seconds", "repeat"}
    by = [name for name in rows if name not in shared and rows[name].nunique() > 1]
    number = rows.groupby(by, sort=False, dropna=False).ngroup() if by else 0
    return rows.assign(seconds=rows["seconds"] * (1.015 + 0.015 * np.sin(7 * number)))


MACHINE = {
    "name": "synthetic",
    "cpu": "Synthetic CPU",
    "cores": 2,
    "vectors": "avx512f",
    "bfloat16": True,
    "caches": {"L1d": "32K", "L2": "1024K"},
    "gpu": None,
    "blas": [],
    "packages": {"numba": "0"},
    "memory_gib": 8,
    "system": "Linux",
    "python": "Python",
    "preset": "smoke",
    "date": "2026-01-02",
    "distorting_variables": [],
    "measured_ghz": 3.0,
}


class Told(Notebook):
    """A Notebook that is told its rows, by the name of the function that would measure
    them or of the records; it keeps what is shown.
    """

    def __init__(self, made, page=None):
        machine = {"machine": lambda *_: MACHINE}
        super().__init__("smoke", page, display=self._take, root=None, **machine)
        self.made = {"gpu": pd.DataFrame(columns=results.COLUMNS)} | {
            name: [*rows] if isinstance(rows, list) else rows
            for name, rows in made.items()
        }
        self.said, self.claims = [], ""

    def _take(self, data, metadata=None, raw=False, display_id=False):
        self.said.append(data["text/plain"] if raw else data.data)
        return SimpleNamespace(update=self.said.append) if display_id else None

    def recorded(self, name, *_, **__):
        made = self.made[name]
        return made.pop(0) if isinstance(made, list) else made

    def processes(self, measure, **_):
        return self.recorded(measure.__name__)

    def shared(self, what):
        return self.recorded(what.measure.__name__)

    def in_place_of(self, module):
        """A module whose functions return what is made, where it is."""
        names = vars(module) | {"__name__": "told"}
        for name in {*self.made} & {*names}:
            if isinstance(names[name], FunctionType):
                names[name] = partial(self.recorded, name)
                names[name].__name__ = name
        return SimpleNamespace(**names)

    def claim(self, sentence, held, numbers, **options):
        super().claim(sentence, held, numbers, **options)
        self.claims += {True: "T", False: "F", None: "-"}[held]

    def show(self, figure, name, caption="", *_, **__):
        assert not cut_off(figure)
        drawn = "\n".join(["", *drawings(figure)])
        self.said.append(f"[Figure {name}: {text_of(figure)}] {caption}{drawn}")
        plots.plt.close(figure)

    @property
    def text(self):
        said = (getattr(one, "data", one) for one in self.said)
        return "\n".join(" ".join(one.split()) for one in said)


def loaded(node):
    """The names that a statement reads, in functions too."""
    names = (one for one in ast.walk(node) if isinstance(one, ast.Name))
    return {one.id for one in names if isinstance(one.ctx, ast.Load)}


def bound(node):
    """The names that a statement binds."""
    names = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            names.add(one.id)
        if isinstance(one, ast.FunctionDef | ast.ClassDef):
            names.add(one.name)
        if isinstance(one, ast.alias):
            names.add((one.asname or one.name).partition(".")[0])
        part = isinstance(one, ast.Subscript | ast.Attribute)
        if part and isinstance(one.ctx, ast.Store):  # what it is a part of
            names |= {n.id for n in ast.walk(one.value) if isinstance(n, ast.Name)}
    return names


def attributes(node):
    return {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def measures(node):
    """Whether a statement asks its Notebook, or its module, for rows."""
    asked = (one for one in ast.walk(node) if isinstance(one, ast.Attribute))
    return any(
        (getattr(one.value, "id", "") == "nb" and one.attr in MEASURES)
        or (getattr(one.value, "id", "") == "cards" and one.attr == "rows")
        or one.attr.startswith("measure_")
        for one in asked
    )


class Page:
    """A page by the start of its name, and its module."""

    def __init__(self, start):
        (self.path,) = NOTEBOOKS.glob(f"{start}*.ipynb")
        number = self.path.stem.partition("_")[0]
        name = f"lstm_report.pages.page_{number}"  # none of a page without its own
        self.module = find_spec(name) and importlib.import_module(name)
        self.cells = nbformat.read(self.path, 4).cells
        code = [cell.source for cell in self.cells if cell.cell_type == "code"]
        nodes = [node for source in code for node in ast.parse(source).body]
        self.statements = [n for n in nodes if not {"nb", "PRESET"} & bound(n)]

    def chosen(self, made):
        """The statements that depend on rows, or on another function that `made`
        names, and those that they need, in order.
        """
        depend, names = set(), set()
        for k, node in enumerate(self.statements):
            asks = measures(node) or attributes(node) & {*made}
            if asks or names & loaded(node):
                depend.add(k)
                names |= bound(node)
        wanted = set().union(*(loaded(self.statements[k]) for k in depend))
        for k in reversed(range(len(self.statements))):
            if k not in depend and wanted & bound(self.statements[k]):
                depend.add(k)
                wanted |= loaded(self.statements[k])
        return [self.statements[k] for k in sorted(depend)]

    def told(self, statements=None, **made):
        """The Notebook after its cells, or these statements, ran on made rows; functions
        of the pages' modules that are named return what is made.
        """
        nb = Told(made)
        space = {"__name__": "page", "nb": nb, "PRESET": "smoke"}
        for node in self.chosen(made) if statements is None else statements:
            self._run(node, space)
        return nb

    def _run(self, node, space):
        code = compile(ast.Module([node], []), f"<{self.path.stem}>", "exec")
        exec(code, space)
        for name, module in space.items():
            if getattr(module, "__name__", "").startswith("lstm_report."):
                space[name] = space["nb"].in_place_of(module)

    def text(self, **made):
        """The whole page: its Markdown, and what its cells show of such rows."""
        nb = Told(made, self.path.stem.partition("_")[0])
        space = {"__name__": "page", "nb": nb, "PRESET": "smoke"}
        chosen = iter([*self.chosen(made), None])
        node, parts = next(chosen), []
        for cell in self.cells:
            if cell.cell_type == "markdown":
                parts.append(cell.source)
                continue
            shown = len(nb.said)
            own = {ast.dump(one) for one in ast.parse(cell.source).body}
            while node is not None and ast.dump(node) in own:
                self._run(node, space)
                node = next(chosen)
            parts += [f"> {one}".replace("\n", "\n> ") for one in nb.said[shown:]]
        assert node is None, "a statement ran in no cell"
        return "\n\n".join(parts) + "\n"

    def unreached(self):
        """The functions of its module that no cell and no measurement of smoke
        reaches.
        """
        tree = ast.parse(Path(self.module.__file__).read_text("utf-8"))
        kinds = ast.FunctionDef, ast.ClassDef
        defined = {n.name: loaded(n) for n in tree.body if isinstance(n, kinds)}
        of_module = (n for n in tree.body if not isinstance(n, kinds))
        reached = set().union(
            *map(attributes, self.statements), *map(loaded, of_module)
        )
        reached |= {name for name in defined if name.startswith("measure_")}
        reached &= set(defined)
        while more := {n for f in reached for n in defined[f]} & set(defined) - reached:
            reached |= more
        return set(defined) - reached

    def approved(self, made, edges=()):
        """Three tests of a page: that its text on synthetic rows is the approved one;
        that what has a limit changes there; that every claim has a limit among them and
        every function is reached. Assign them to names that begin with `test_`.

        made: rows by the name of what measures them. edges: (claim, limit, function)
        that makes such rows of three numbers, one of each process, all of which have to
        reach the limit, or with ("most", limit) must not pass it; without a claim,
        None, the function says whether it is reached.
        """
        path = APPROVED / f"{self.path.stem}.md"

        def test_text():
            made_uneven = {name: uneven(rows) for name, rows in made.items()}
            text = self.text(**made_uneven)
            if APPROVE in os.environ:
                path.write_text(text)
            said = different(path.read_text(), text)
            assert not said, f"{said}\n`make approve` writes it, where this is right"

        def test_all():
            claims = {claim for claim, *_ in edges if claim is not None}
            left = {*range(len(self.told(**made).claims))} ^ claims
            assert not left, f"EDGES: want a limit of each claim, got none of {left}"
            assert not (left := self.module and self.unreached()), left

        return test_text, self.test_edges(edges), test_all

    def test_edges(self, edges):
        """A test of each of these, just on both sides of its limit."""

        @pytest.mark.parametrize("number", range(len(edges)))
        def test_edge(number):
            claim, limit, function = edges[number]
            way, limit = limit if isinstance(limit, tuple) else ("least", limit)
            just = JUST if way == "least" else 1 / JUST
            for near in (limit * just, limit / just):
                result = function((limit * just**40, near, limit * just**80))
                if claim is not None:
                    result = self.told(**result).claims[claim] == "T"
                assert result == (near == limit * just), f"near {limit}: {near}"

        return test_edge


def different(before, after):
    """Two texts as a diff; "" where they are the same."""
    lines = before.splitlines(), after.splitlines()
    return "\n".join(difflib.unified_diff(*lines, "approved", "now", lineterm=""))


def drawings(figure):
    """A line for each thing drawn with numbers: its places, three digits each."""
    found = []
    for ax in figure.axes:
        boxes = [patch for patch in ax.patches if hasattr(patch, "get_width")]
        found += [line.get_xydata() for line in ax.lines]
        found += [points.get_offsets() for points in ax.collections]
        found += [(*box.get_xy(), box.get_width(), box.get_height()) for box in boxes]
    numbers = (np.ma.filled(np.ma.asarray(one, float), np.nan).ravel() for one in found)
    told = (" ".join(f"{n:.3g}" for n in each) for each in numbers if each.any())
    return [*dict.fromkeys(told)]


def has(words, text):
    """Fail where the text lacks some of the words, or has one after "no: "."""
    missing = [
        word
        for word in words
        if (word.removeprefix("no: ") in text) == word.startswith("no: ")
    ]
    assert not missing, f"{missing} in: {text}"


def cut_off(figure):
    """The titles and other words that a figure's right edge cuts off."""
    figure.draw_without_rendering()
    texts = [t for ax in figure.axes for t in ax.get_children() if isinstance(t, Text)]
    edge = figure.bbox.x1 + 1
    ends = ((t.get_text(), t.get_window_extent().x1) for t in texts if t.get_text())
    return [text for text, end in ends if end > edge]


def text_of(result):
    """A sentence in one line; a figure as `plots.words` says it, with its alternative
    text; a row of a table as its cells with commas, name first.
    """
    if isinstance(result, Figure):
        return f"{plots.words(result)} {getattr(result, 'alt', '')}"
    if isinstance(result, pd.DataFrame):
        return "\n".join(", ".join(map(str, row)) for row in result.itertuples())
    return " ".join(result.split())


def bars(ax):
    """The ends of all error bars of axes, a pair of numbers each."""
    drawn = (one for one in ax.collections if isinstance(one, LineCollection))
    return [tuple(bar[:, 1]) for one in drawn for bar in one.get_segments()]

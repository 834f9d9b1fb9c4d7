"""What the pages say, on made rows: the cells of a page that depend on measurements are
run as they stand, with rows that a test made in the place of measured ones.
"""

import ast
import importlib
from pathlib import Path
from types import SimpleNamespace

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
# Of a process, and of a round: what all its cases take longer. Their medians are 1, and
# ratios within a round do not see them; powers of two round nothing.
OF_PROCESS, OF_ROUND = (1.0, 2.0, 0.5), (1.0, 4.0, 0.5)
MEASURES = {"processes", "shared", "recorded"}  # of a Notebook


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


def machine(roof=100.0, sgemm=80.0, line=2e-7):
    """Rows of `facts.measure_machine`: GFLOP/s on registers and in an SGEMM, seconds of
    a hand-over, in the process that is neither slow nor fast.
    """
    took = {"registers": 1 / np.array(roof), "SGEMM": 1 / np.array(sgemm), "line": line}
    return rows(took)


NO_CARD = pd.DataFrame(columns=results.COLUMNS)


def of_card(variant, stage, times, **sizes):
    """Rows of a comparison on a GPU; times: seconds by version."""
    columns = {"variant": variant, "stage": stage, "N": 0} | sizes
    return rows(times, by="version", **columns)


class Told(Notebook):
    """A Notebook that is told its rows, by the name of the function that would measure
    them or of the records; it keeps what is shown.
    """

    def __init__(self, made):
        super().__init__("smoke", display=self._take, root=None)
        self.made, self.said, self.claims = made, [], []

    def _take(self, data, metadata=None, raw=False, display_id=False):
        self.said.append(data["text/plain"] if raw else data.data)
        return SimpleNamespace(update=self.said.append) if display_id else None

    def _rows(self, name):
        found = self.made[name]
        return found.pop(0) if isinstance(found, list) else found

    def processes(self, measure, **_):
        return self._rows(measure.__name__)

    def shared(self, what):
        return self._rows(what.measure.__name__)

    def recorded(self, experiment, folder=None):
        if experiment == "gpu" and experiment not in self.made:
            return NO_CARD
        return self._rows(experiment)

    def claim(self, sentence, held, numbers, **how):
        super().claim(sentence, held, numbers, **how)
        self.claims.append({True: "T", False: "F", None: "-"}[held])

    def show(self, figure, name, caption="", *_, **__):
        assert isinstance(figure, Figure)
        self.said.append(text_of(figure) + " " + caption)
        assert not cut_off(figure)
        plots.plt.close(figure)

    @property
    def text(self):
        said = (getattr(one, "data", one) for one in self.said)
        return "\n".join(" ".join(one.split()) for one in said)


def loaded(node):
    """The names that a statement reads, in functions too."""
    found = (one for one in ast.walk(node) if isinstance(one, ast.Name))
    return {one.id for one in found if isinstance(one.ctx, ast.Load)}


def bound(node):
    """The names that a statement binds."""
    found = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            found.add(one.id)
        if isinstance(one, ast.FunctionDef | ast.ClassDef):
            found.add(one.name)
        if isinstance(one, ast.alias):
            found.add((one.asname or one.name).partition(".")[0])
    return found


def measures(node):
    """Whether a statement asks its Notebook, or its module, for rows."""
    asked = (one for one in ast.walk(node) if isinstance(one, ast.Attribute))
    return any(
        (getattr(one.value, "id", "") == "nb" and one.attr in MEASURES)
        or (getattr(one.value, "id", "") == "cards" and one.attr == "rows")
        or one.attr.startswith("measure_")
        for one in asked
    )


def stand_in(nb, name):
    """What a page calls in the place of a function of its module that measures."""

    def measure(*_, **__):
        return nb._rows(name)

    measure.__name__ = name
    return measure


class Page:
    """A page by the start of its name, and its module."""

    def __init__(self, start):
        (self.path,) = NOTEBOOKS.glob(f"{start}*.ipynb")
        number = self.path.stem.partition("_")[0]
        self.module = importlib.import_module(f"lstm_report.pages.page_{number}")
        cells = nbformat.read(self.path, 4).cells
        self.code = [cell.source for cell in cells if cell.cell_type == "code"]
        nodes = [node for source in self.code for node in ast.parse(source).body]
        self.statements = [n for n in nodes if not {"nb", "PRESET"} & bound(n)]
        self.chosen = self._chosen()

    def _chosen(self):
        """The statements that depend on rows, and those that they need, in order."""
        depend, names = set(), set()
        for k, node in enumerate(self.statements):
            if measures(node) or names & loaded(node):
                depend.add(k)
                names |= bound(node)
        wanted = set().union(*(loaded(self.statements[k]) for k in depend))
        for k in reversed(range(len(self.statements))):
            if k not in depend and wanted & bound(self.statements[k]):
                depend.add(k)
                wanted |= loaded(self.statements[k])
        return [self.statements[k] for k in sorted(depend)]

    def told(self, **made):
        """The Notebook after its cells ran on made rows."""
        nb = Told(dict(made))
        code = compile(ast.Module(self.chosen, []), str(self.path), "exec")
        with pytest.MonkeyPatch.context() as patch:
            for name in made:
                if name.startswith("measure_") and hasattr(self.module, name):
                    patch.setattr(self.module, name, stand_in(nb, name))
            exec(code, {"__name__": "page", "nb": nb, "PRESET": "smoke"})
        return nb

    def uses(self, also=()):
        """The functions of its module that the chosen cells reach, those of `also`, and
        what measures, which smoke runs; and all that there are.
        """
        tree = ast.parse(Path(self.module.__file__).read_text("utf-8"))
        kinds = ast.FunctionDef, ast.ClassDef
        defined = {n.name: loaded(n) for n in tree.body if isinstance(n, kinds)}
        seen = [one for n in self.chosen for one in ast.walk(n)]
        found = {one.attr for one in seen if isinstance(one, ast.Attribute)}
        found |= {*also, *(name for name in defined if name.startswith("measure_"))}
        found &= set(defined)
        while more := {n for f in found for n in defined[f] & set(defined)} - found:
            found |= more
        return found, set(defined)

    def tests(self, cases, also=()):
        """Three tests of a page: that its claims have these verdicts and its outputs
        these words; that each claim was seen to hold and not to hold; that every
        function is reached. Assign them to names that begin with `test_`.

        cases: name -> (rows by the name of what measures them, or a function without
        arguments that makes them; verdicts of the claims in order, "T", "F", "-" for
        not measured; words: that begin with "no: " must be missing). also: names of
        functions that the test file calls itself.
        """

        @pytest.mark.parametrize("name", cases)
        def test_page(name):
            made, verdicts, *words = cases[name]
            nb = self.told(**(made() if callable(made) else made))
            assert "".join(nb.claims) == verdicts, nb.text
            has(words, nb.text)

        def test_both():
            columns = zip(
                *(verdicts for _, verdicts, *_ in cases.values()), strict=True
            )
            for place, seen in enumerate(columns, start=1):
                assert {"T", "F"} <= set(seen), f"claim {place}: want both verdicts"

        def test_reached():
            found, defined = self.uses(also)
            assert not defined - found, f"want a test of {sorted(defined - found)}"

        return test_page, test_both, test_reached


def has(words, text):
    """Fail where the text has some of the words, or has one that it must not."""
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
    if isinstance(result, dict):
        return "\n".join(f"{name}: {value}" for name, value in result.items())
    return " ".join(result.split())


def bars(ax):
    """The ends of all error bars of axes, a pair of numbers each."""
    drawn = (one for one in ax.collections if isinstance(one, LineCollection))
    return [tuple(bar[:, 1]) for one in drawn for bar in one.get_segments()]

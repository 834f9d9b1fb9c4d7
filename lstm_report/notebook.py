"""What every notebook of the report does the same way: presets, figures with alt text,
computed sentences.
"""

import inspect
import io
import os
import pickle
import re
import time
from collections.abc import Callable
from contextlib import suppress
from difflib import SequenceMatcher
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple, TypeVar

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import Markdown, display
from matplotlib.figure import Figure

from lstm_kernels.errors import check_choice

from . import plots
from .measure import evidence, provenance, results

Value = TypeVar("Value")
NOQA = re.compile(r"(?<=# )noqa: \w+ - | +# noqa: \w+$", re.MULTILINE)
# What ends a cell of a table in Markdown, or begins markup that no page writes in one.
CELL = str.maketrans({"|": r"\|", "<": "&#60;", "{": "&#123;"})
GOALS = "reached", "partly", "not reached", "not measured"  # what becomes of a goal
VERDICTS = {True: "Held", False: "Did not hold", None: "Not measured"}


class Shared(NamedTuple):
    """A measurement whose rows several pages use: the function, and its arguments by
    preset.
    """

    measure: Callable[..., pd.DataFrame]
    smoke: dict[str, Any]
    paper: dict[str, Any]


def _marked(disturbed: str) -> str:
    return f"Noisy run: {disturbed}."


class Notebook:
    """A notebook in one of two presets: "paper" runs everything in full, "smoke" every
    cell on small sizes. `page`: its number or letter, for the figures' numbers.

    display, machine, root: what shows, what tells of the machine, and where the
    repository is, None without one. Raises ValueError for another preset.
    """

    def __init__(
        self,
        preset: str,
        page: int | str | None = None,
        *,
        display: Callable[..., Any] = display,
        machine: Callable[..., dict[str, Any]] = provenance.machine,
        root: Path | None = results.ROOT,
    ) -> None:
        self.preset = check_choice("PRESET", preset, ("smoke", "paper"))
        self.page, self.shown = page, 0
        self._numbers: dict[str, str] = {}  # named since the last sentence
        self._display, self._machine = display, machine
        plots.style()
        pd.set_option("display.max_colwidth", None)  # a table shows its texts whole
        # Without the repository nothing is written beside the notebook.
        self.build = root / "build" / preset if root else None
        self.figures = self.build / "figures" if self.build else None

    def pick(self, *, smoke: Value, paper: Value) -> Value:
        """The value for this notebook's preset."""
        return smoke if self.preset == "smoke" else paper

    def machine(self) -> str:
        """This machine in words, for captions."""
        return results.label(self._machine())

    def processes(self, measure: Callable, **arguments: Any) -> pd.DataFrame:
        """The rows of a measurement from five fresh processes, two in smoke, with a
        column `process`, as `evidence.fresh` gives them. arguments: its own, and `env`.
        """
        count = self.pick(smoke=2, paper=evidence.PROCESSES)
        return evidence.fresh(measure, count, **arguments)

    def shared(self, what: Shared) -> pd.DataFrame:
        """The rows of a measurement that other pages use too: those in the build folder
        where they are of this state of the code, else measured now, and kept there.
        """
        measure = what.measure
        arguments = what.smoke if self.preset == "smoke" else what.paper
        if self.build is None:
            return self.processes(measure, **arguments)
        kept = self.build / "shared" / f"{measure.__module__}.{measure.__name__}"
        if kept.exists() and kept.stat().st_mtime > results.newest_code():
            with suppress(Exception):  # a damaged file is measured anew
                return pickle.loads(kept.read_bytes())
        began = time.time()
        rows = self.processes(measure, **arguments)
        kept.parent.mkdir(parents=True, exist_ok=True)
        results.replace(kept, pickle.dumps(rows))
        os.utime(kept, (began, began))  # code that has changed meanwhile is newer
        return rows

    def progress(self) -> Callable[[str], None]:
        """A function that shows a text, Markdown, in the place of the one before."""
        shown = self._display(Markdown(""), display_id=True)
        return lambda text: shown.update(Markdown(text)) if shown else None

    def named(self, name: str, number: str) -> str:
        """A number that several pages tell, as it is told; a test compares the pages by
        its name.
        """
        self._numbers[name] = number
        return number

    def _named(self) -> dict[str, Any]:
        """For the metadata of an output: the numbers named since the last one."""
        numbers, self._numbers = self._numbers, {}
        return {"numbers": numbers} if numbers else {}

    def show(
        self,
        figure: Figure,
        name: str,
        caption: str = "",
        disturbed: str = "",
    ) -> None:
        """Show a figure with its number and its caption, and save it as `name`.svg and
        `name`.png; its alternative text is the attribute `alt`, or what is written in
        it.

        caption: what is drawn, Markdown; the title says what was found.

        disturbed: what `bench.disturbance` said of the times in it; not empty, it is
        written below. Raises ValueError for texts that a telephone would show too
        small.
        """
        if disturbed:
            note, size = fill(_marked(disturbed), 80), plots.SMALLEST
            figure.supxlabel(note, x=0.01, ha="left", fontsize=size, color=plots.RED)
        data = {}
        for kind, written in (("svg", {"Date": None}), ("png", {"Software": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, metadata=written)
            data[kind] = buffer.getvalue()
        alt = getattr(figure, "alt", None) or plots.words(figure)  # once it is drawn
        alt += f" {_marked(disturbed)}" if disturbed else ""
        if small := plots.too_small(figure):
            most = f"{plots.SMALLEST:g} points or more, {plots.WIDTH:g} inches wide"
            raise ValueError(f"figure: got small letters in {small}, want {most}")
        plt.close(figure)
        if self.figures:
            self.figures.mkdir(parents=True, exist_ok=True)
            for kind, content in data.items():
                results.replace(self.figures / f"{name}.{kind}", content)
        ours = {"figure": name} | self._named()
        about = {"image/png": {"alt": alt}, "lstm_kernels": ours}
        shown = {"image/png": data["png"], "text/plain": alt}
        self._display(shown, metadata=about, raw=True)
        if self.page is not None:
            self.shown += 1
            number = f"Figure {self.page}.{self.shown}."
            self._display(Markdown(f"**{number}** {caption}".rstrip()))

    def say(self, text: str, disturbed: str = "") -> None:
        """Show a sentence computed from results, as Markdown; with what
        `bench.disturbance` said of their times.
        """
        mark = f" **{_marked(disturbed)}**" if disturbed else ""
        named = self._named()
        how = {"metadata": {"lstm_kernels": named}} if named else {}
        self._display(Markdown(inspect.cleandoc(text) + mark), **how)

    def claim(
        self,
        sentence: str,
        held: bool | np.bool_ | None,
        numbers: str,
        *,
        why: str,
        disturbed: str = "",
        recorded: str = "",
    ) -> None:
        """Show a claim and whether it held; the site's list of claims has them all.

        sentence: one that could be false, with its condition. held: True, False, or
        None where it was not measured. numbers: what it rests on, Markdown. why: the
        measured reason, shown where it did not hold. disturbed: what `disturbance` said
        of its times. recorded: date and machine of rows that were not measured now.
        Raises TypeError for another `held`, ValueError for an empty sentence or reason.
        """
        if held is not None and not isinstance(held, bool | np.bool_):
            kind = type(held).__name__
            raise TypeError(f"held: got {kind}, want True, False or None")
        for name, text in (("sentence", sentence), ("why", why)):
            if not text.strip():
                raise ValueError(f"{name}: got an empty text, want a sentence")
        held, recorded = None if held is None else bool(held), results.plain(recorded)
        run = f"the recorded run of {recorded}" if recorded else "this run"
        claim = {"sentence": sentence, "verdict": VERDICTS[held], "numbers": numbers}
        claim |= {"why": why} if held is False else {}
        claim |= {"recorded": recorded} if recorded else {}
        shown = f"{sentence.rstrip('.')} ({numbers})." if numbers else sentence
        text = f"**{VERDICTS[held]} in {run}.** {shown}"
        text += f" {why}" if held is False else ""
        if disturbed:
            claim["disturbed"] = disturbed
            text += f" **{_marked(disturbed)}**"
        data = {"text/markdown": f"> {text}", "text/plain": text}
        about = {"lstm_kernels": {"claim": claim} | self._named()}
        self._display(data, metadata=about, raw=True)

    def table(self, frame: pd.DataFrame, about: dict[str, Any] | None = None) -> None:
        """Show a DataFrame of Markdown and numbers as a table, its index first; numbers
        have three significant digits and stand to the right. about: for the metadata of
        the output.
        """
        shown = frame.map(lambda v: v if isinstance(v, str) else evidence.digits(v))
        cells = shown.rename_axis(frame.index.name or "case").reset_index()
        numbers = (pd.api.types.is_numeric_dtype(frame[name]) for name in frame)
        rule = ["---", *("---:" if number else "---" for number in numbers)]
        lines = [
            [" ".join(str(cell).split()).translate(CELL) for cell in line]
            for line in ([*cells.columns], rule, *cells.to_numpy().tolist())
        ]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        how = {"metadata": {"lstm_kernels": about}} if about else {}
        self._display(Markdown(text), **how)

    def goals(
        self, project: str, goals: dict[str, tuple[str, str]], **numbers: str
    ) -> None:
        """Show what became of a project's goals: goal -> (what was found, verdict), the
        main one first. Page 0 and the appendix read them from the page.

        numbers: what stands in braces in the texts. verdict: one of GOALS, written for
        the stored run; of a text that is "not measured" that. Raises ValueError for
        another verdict.
        """
        lines = []
        for goal, (text, verdict) in goals.items():
            check_choice("verdict", verdict, GOALS)
            found = text.format(**numbers)
            lines.append([goal, found, GOALS[-1] if found == GOALS[-1] else verdict])
        frame = pd.DataFrame(lines, columns=["goal", "found", "verdict"])
        about = {"goals": {"project": project, "lines": lines}} | self._named()
        self.table(frame.set_index("goal"), about)

    def source(self, *objects: Any) -> None:
        """Show the source of functions of the package, without the marks for its
        linter.
        """
        for item in objects:
            shown = NOQA.sub("", inspect.getsource(item))
            self._display(Markdown(f"```python\n{shown}```"))

    def changes(self, old: Callable, new: Callable) -> None:
        """Show the source of the function `new` whole; a `+` marks each line that `old`
        has not.

        Lines that differ in their indentation alone count as the same.
        """
        before, after = (
            [line for line in inspect.getsource(item).splitlines() if line.strip()]
            for item in (old, new)
        )
        bare, new_bare = ([line.strip() for line in lines] for lines in (before, after))
        same = SequenceMatcher(None, bare, new_bare)
        unchanged = {
            b + k for _, b, size in same.get_matching_blocks() for k in range(size)
        }
        marked = [
            f"{' ' if k in unchanged else '+'} {line}" for k, line in enumerate(after)
        ]
        self._display(Markdown("```diff\n" + "\n".join(marked) + "\n```"))

    def recorded(
        self, experiment: str, folder: Path | None = None, *, brief: bool = False
    ) -> pd.DataFrame:
        """The rows that were recorded of an experiment on this machine, else on the one
        with the most comparisons, and of these the last; says which, `brief` in a few
        words. ValueError where there are none.
        """
        rows = results.read(experiment, folder)
        known = {
            name: results.record(experiment, name, folder)
            for name in set(rows["machine"])
        }
        name = self._machine()["name"]
        if name not in known:
            parts = rows.groupby("machine")["variant"].nunique()
            name = max(known, key=lambda name: (parts[name], known[name]["date"], name))
        about = known[name]
        noise = about["disturbance"] if brief else ""  # a caption has it
        told = results.label(about) if brief else f"Recorded: {results.caption(about)}"
        self.say(f"{told}.", noise)
        return rows[rows["machine"] == name]

    def environment(self) -> None:
        """Show what this notebook ran on."""
        m = self._machine(self.preset)
        packages = (f"{name} {got}" for name, got in m["packages"].items() if got)
        blas = (
            f"{b['library']} {b['version']} ({b['kernels']} kernels)" for b in m["blas"]
        )
        lines = {
            "Machine": f"{results.label(m)}, {m['memory_gib']} GiB, {m['system']}",
            "Clock": results.clock(m),
            "BLAS": ", ".join(blas),
            "Python": ", ".join([m["python"], *packages]),
            "Preset": f"{m['preset']}, {m['date']}",
            "BLAS is slowed by": ", ".join(m["distorting_variables"]),
        }
        shown = (f"- {k}: {results.plain(told)}" for k, told in lines.items() if told)
        self._display(Markdown("\n".join(shown)))

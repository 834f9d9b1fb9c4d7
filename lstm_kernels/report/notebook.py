"""What every notebook of the report does the same way: presets, figures with alt text, computed
sentences.
"""

import inspect
import io
from difflib import SequenceMatcher
from pathlib import Path

import matplotlib.pyplot as plt
from IPython.display import Markdown, display

from ..bench import provenance, results
from ..errors import check_choice
from . import plots


class Notebook:
    """A notebook in one of two presets: "paper" runs everything in full, "smoke" every cell on
    small sizes.

    Raises ValueError for another preset.
    """

    def __init__(self, preset):
        self.preset = check_choice("PRESET", preset, ("smoke", "paper"))
        plots.style()
        root = Path(".." if Path.cwd().name == "notebooks" else ".")
        self.figures = root / "figures" if preset == "paper" else root / "build/smoke/figures"

    def pick(self, *, smoke, paper):
        """The value for this notebook's preset."""
        return smoke if self.preset == "smoke" else paper

    def show(self, figure, name, alt=None):
        """Show a figure with its alternative text, and save it as `name`.svg and `name`.png.

        alt: the text; None takes the figure's attribute `alt`. Raises ValueError without one.
        """
        alt = getattr(figure, "alt", "") if alt is None else alt
        if not alt.strip():
            raise ValueError(
                "alt: got an empty text, want a sentence that says what the figure shows"
            )
        self.figures.mkdir(parents=True, exist_ok=True)
        data = {}
        for kind in ("svg", "png"):
            buffer = io.BytesIO()
            figure.savefig(
                buffer,
                format=kind,
                metadata={"Date": None} if kind == "svg" else {"Software": None},
            )
            data[kind] = buffer.getvalue()
            results.replace(self.figures / f"{name}.{kind}", data[kind])
        plt.close(figure)
        display(
            {"image/png": data["png"], "text/plain": alt},
            metadata={"image/png": {"alt": alt}},
            raw=True,
        )

    @staticmethod
    def say(text):
        """Show a sentence computed from results, as Markdown."""
        display(Markdown(inspect.cleandoc(text)))

    @staticmethod
    def claim(sentence, held, numbers=""):
        """Show a claim and whether it held in this run; `tools/report.py` lists the claims of all.

        sentence: one that could be false, with its condition. held: True, False, or None where this
        run did not measure it. numbers: what it rests on, as text. Returns held.
        """
        if held not in (True, False, None):
            raise TypeError(f"held: got {type(held).__name__}, want True, False or None")
        verdict = {True: "Held", False: "Did not hold", None: "Not measured"}[held]
        text = f"> **{verdict} in this run.** {sentence}" + (f" ({numbers})" if numbers else "")
        claim = {"sentence": sentence, "verdict": verdict, "numbers": numbers}
        display(
            {"text/markdown": text, "text/plain": text},
            metadata={"lstm_kernels": {"claim": claim}},
            raw=True,
        )
        return held

    @staticmethod
    def source(*objects):
        """Show the source of functions of the package."""
        for item in objects:
            display(Markdown(f"```python\n{inspect.getsource(item)}```"))

    @staticmethod
    def changes(old, new):
        """Show the source of the function `new` whole; a `+` marks each line that `old` has not.

        Lines that differ in their indentation alone count as the same.
        """
        before, after = (
            [line for line in inspect.getsource(item).splitlines() if line.strip()]
            for item in (old, new)
        )
        same = SequenceMatcher(None, *(list(map(str.strip, lines)) for lines in (before, after)))
        kept = {b + k for _, b, size in same.get_matching_blocks() for k in range(size)}
        marked = [f"{' ' if k in kept else '+'} {line}" for k, line in enumerate(after)]
        display(Markdown("```diff\n" + "\n".join(marked) + "\n```"))

    def environment(self):
        """Show what this notebook ran on."""
        m = provenance.machine(self.preset)
        blas = ", ".join(
            f"{b['library']} {b['version']} ({b['kernels']} kernels)" for b in m["blas"]
        )
        packages = ", ".join(f"{name} {number}" for name, number in m["packages"].items())
        lines = [
            f"- Machine: {m['cpu']}, {m['cores']} cores, {m['memory_gib']} GiB, {m['system']}",
            f"- Vectors: {m['vectors']}; BLAS: {blas}",
            *([f"- GPU: {m['gpu']['name']}, driver {m['gpu']['driver']}"] if m["gpu"] else []),
            f"- Python {m['python']}, {packages}",
            f"- Preset {m['preset']}, {m['date']}",
        ]
        if m["distorting_variables"]:
            lines.append(f"- **BLAS is slowed by {', '.join(m['distorting_variables'])}**")
        display(Markdown("\n".join(lines)))

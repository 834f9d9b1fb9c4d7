"""What executed notebooks hold, and the one form in which they are stored.

Cells are numbered from 1.
"""

import base64
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# In an output's metadata: what lstm_report/notebook.py says of it.
OURS = "lstm_kernels"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
METADATA = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
# What folds a cell in Colab, in JupyterLab, and on Kaggle.
FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}}
FOLDED |= {"_kg_hide-input": True}
# To a file: its text, and the file's place.
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#]+)[^)]*\)")


def notebooks(folder):
    """The notebooks of a folder in order: by number, the lesson, its lab, the
    appendix.
    """
    last = {"lab": 1, "appendix": 2}
    paths = folder.glob("*.ipynb")
    return sorted(paths, key=lambda path: (last.get(path.stem, 0), path.stem))


def read(path):
    import nbformat  # here, for standalone.py, which has Python alone

    return nbformat.read(path, as_version=4)


def dumps(book):
    """The text that is stored: sorted keys, indented by one, a newline at the end."""
    import nbformat

    return nbformat.writes(book).rstrip("\n") + "\n"


def tags(cell):
    return cell.metadata.get("tags", [])


def outputs(book):
    """Triples (number of the cell, output, what lstm_report/notebook.py says of it)."""
    for number, cell in enumerate(book.cells, start=1):
        for output in cell.get("outputs", ()):
            yield number, output, output.get("metadata", {}).get(OURS, {})


def claims(book):
    """The claims that `nb.claim` showed: dicts with sentence, verdict, numbers."""
    return [ours["claim"] for *_, ours in outputs(book) if "claim" in ours]


def numbers(book):
    """The numbers that `nb.named` showed: pairs of a name and a text."""
    named = (ours.get("numbers", {}) for *_, ours in outputs(book))
    return [pair for pairs in named for pair in pairs.items()]


class Figure(NamedTuple):
    """A figure that `nb.show` showed; `caption` begins with its number, and is the
    alternative text where there is none.
    """

    name: str
    png: bytes
    caption: str


def figures(book):
    """The figures of an executed notebook, in order."""
    shown = []
    for _, output, ours in outputs(book):
        text = output.get("data", {}).get("text/markdown", "")
        if "figure" in ours:
            png = base64.b64decode(output.data["image/png"])
            alt = output.metadata["image/png"]["alt"]
            shown.append(Figure(ours["figure"], png, " ".join(alt.split())))
        elif number := shown and re.match(r"\*\*Figure \S+\*\*", text):
            words = text[number.end() :].split() or [shown[-1].caption]
            shown[-1] = shown[-1]._replace(caption=" ".join([number[0], *words]))
    return shown


def head(name, book):
    """The title of a page, after its number."""
    title = book.cells[0].source.partition("\n")[0].lstrip("# ")
    return f"{name[:2]} {title}" if name[0].isdigit() else title


def preset(book):
    """The value of PRESET in the cell tagged `parameters`, or None."""
    sources = [cell.source for cell in book.cells if "parameters" in tags(cell)]
    value = re.search(r"^PRESET = [\"'](\w+)", "\n".join(sources), re.MULTILINE)
    return value and value[1]


def unlinked(text):
    """Markdown whose links to files are their texts."""
    return LINK.sub(r"\1", text)


def stored(book, preset):
    """An executed notebook in the form that is stored: what a reader sees, with the
    preset in the cell tagged `parameters` and not in papermill's own.
    """
    book.cells = [c for c in book.cells if "injected-parameters" not in tags(c)]
    executed = (cell for cell in book.cells if cell.get("execution_count"))
    for count, cell in enumerate(executed, start=1):
        for part in (cell, *cell.outputs):
            if "execution_count" in part:
                part.execution_count = count
    for cell in book.cells:
        if "parameters" in tags(cell):
            value = re.compile(r"(?<=^PRESET = )\S+", re.MULTILINE)
            cell.source = value.sub(f'"{preset}"', cell.source)
        kept = {"tags": tags(cell)} if tags(cell) else {}
        cell.metadata = kept | (FOLDED if "hide-input" in kept.get("tags", []) else {})
    for _, output, _ in outputs(book):
        texts = output.get("data", output)
        for kind in [kind for kind in texts if kind.startswith("text")]:
            texts[kind] = texts[kind].replace(f"{ROOT}/", "").replace(str(ROOT), ".")
    book.metadata = METADATA
    return book

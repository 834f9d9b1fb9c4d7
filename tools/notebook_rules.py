"""Executed notebooks: what they hold, and the one form in which they are stored.

Cells are numbered from 1.
"""

import base64
import re
from typing import NamedTuple

import nbformat
from chosen import ROOT, ReportError

# In an output's metadata: what lstm_report/notebook.py says of it.
OURS = "lstm_kernels"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
METADATA = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
# What folds a cell in Colab, in JupyterLab, and on Kaggle.
FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}}
FOLDED |= {"_kg_hide-input": True}
SCHEMES = "", "http", "https", "mailto"  # of links; "" is a path
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)[./]*([^)\s#]+)(#[^)]*)?\)")


def read(path):
    """The notebook at `path`, in format 4; ReportError for what is none."""
    try:
        return nbformat.read(path, as_version=4)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError) as error:
        raise ReportError(f"{path}: damaged: {str(error)[:60]}; remove it") from None


def dumps(notebook):
    """The text that is stored: sorted keys, indented by one, a newline at the end."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def tags(cell):
    return cell.metadata.get("tags", [])


def linked(text, names=()):
    """Markdown whose links to files lead to those of `names`, at the root; a link to
    anything else but the net is its text.
    """

    def link(match):
        name = match[2].removeprefix("notebooks/")
        return f"[{match[1]}](/{name}{match[3] or ''})" if name in names else match[1]

    return LINK.sub(link, text)


def scheme(address):
    """That of an address as browsers read it, which skip blanks and control characters;
    "" for a path.
    """
    found = re.match(r"[^/?#:]*(?=:)", re.sub(r"[\x00-\x20]", "", address))
    return found[0].lower() if found else ""


def outputs(notebook):
    """Triples (number of the cell, output, what lstm_report/notebook.py says of it)."""
    for number, cell in enumerate(notebook.cells, start=1):
        for output in cell.get("outputs", ()):
            yield number, output, output.get("metadata", {}).get(OURS, {})


def claims(notebook):
    """The claims that `nb.claim` showed: dicts with sentence, verdict, numbers."""
    return [ours["claim"] for *_, ours in outputs(notebook) if "claim" in ours]


def numbers(notebook):
    """The numbers that `nb.named` showed, by name, a list of pairs."""
    told = (ours.get("numbers", {}) for *_, ours in outputs(notebook))
    return [pair for one in told for pair in one.items()]


class Figure(NamedTuple):
    """A figure that `nb.show` showed: its name, its picture, and its number and
    caption, or where it has no caption what it shows in words.
    """

    name: str
    png: bytes
    told: str


def figures(notebook):
    """The figures of an executed notebook, in order."""
    found = []
    for _, output, ours in outputs(notebook):
        text = output.get("data", {}).get("text/markdown", "")
        if "figure" in ours:
            png = base64.b64decode(output.data["image/png"])
            alt = output.metadata["image/png"]["alt"]
            found.append(Figure(ours["figure"], png, " ".join(alt.split())))
        elif number := found and re.match(r"\*\*Figure \S+\*\* *", text):
            caption = text[number.end() :] or found[-1].told
            told = f"{number[0].strip()} {' '.join(caption.split())}"
            found[-1] = found[-1]._replace(told=told)
    return found


def head(name, book):
    """The title of a page, after its number."""
    title = book.cells[0].source.partition("\n")[0].lstrip("# ")
    return f"{name[:2]} {title}" if name[0].isdigit() else title


def written(path):
    """What was written of a notebook, but for its parameters."""
    book = read(path)
    return [cell.source for cell in book.cells if "parameters" not in tags(cell)]


def preset(notebook):
    """The value of PRESET in the cell tagged `parameters`, or None."""
    cells = [cell.source for cell in notebook.cells if "parameters" in tags(cell)]
    found = re.search(r"^PRESET = [\"'](\w+)", "\n".join(cells), re.MULTILINE)
    return found and found[1]


def with_preset(notebook, preset):
    """A notebook that papermill executed, without the cell that it put in: the cell
    tagged `parameters` says the preset.
    """
    value = re.compile(r"(?<=^PRESET = )\S+", re.MULTILINE)
    kept = [cell for cell in notebook.cells if "injected-parameters" not in tags(cell)]
    executed = [cell for cell in kept if cell.get("execution_count")]
    for count, cell in enumerate(executed, start=1):
        for part in (cell, *cell.outputs):
            if "execution_count" in part:
                part.execution_count = count
        if "parameters" in tags(cell):
            cell.source = value.sub(f'"{preset}"', cell.source)
    notebook.cells = kept
    return notebook


def environment(notebook):
    """What `nb.environment` told of the machine that executed a notebook, and when."""
    data = (output.get("data", {}) for _, output, _ in outputs(notebook))
    texts = [one.get("text/markdown", "") for one in data]
    told = re.findall(r"^- (?:Machine|Preset): (.+)$", "\n".join(texts), re.MULTILINE)
    return "; ".join(told) or "a machine that is not named"


def took(notebook):
    """What executing a notebook took, a dict, empty where that is unknown: `seconds`,
    those of its `cells` in a text, and by the name of a measurement that it `shared`
    with others the cell that asked for it, its seconds, and whether it was made then.
    """
    return notebook.metadata.get(OURS, {})


def without_shared(notebook):
    """What `Notebook.shared` told of measurements, taken out of the outputs."""
    found = {}
    for number, output, ours in [*outputs(notebook)]:
        if "shared" in ours:
            name, *told = ours["shared"]
            found.setdefault(name, [number, *told])
            notebook.cells[number - 1].outputs.remove(output)
    return found


def expected(notebook, there):
    """The seconds of a notebook's cells where the shared measurements of `there` are
    taken and the others are made; one number for all where it has other cells now.
    """
    known = {"seconds": 0, "cells": "", "shared": {}} | took(notebook)
    cells = [int(seconds) for seconds in known["cells"].split()]
    same = len(cells) == len(notebook.cells)
    cells = cells if same else [0]
    cells[0] += known["seconds"] - sum(cells)
    for name, (cell, seconds, made) in known["shared"].items():
        cells[cell - 1 if same else 0] += seconds * ((name not in there) - made)
    return cells


def folded(cell):
    """A cell's metadata in the stored form: its tags; what is tagged hide-input is
    folded in JupyterLab, Colab and Kaggle too.
    """
    kept = {"tags": tags(cell)} if tags(cell) else {}
    return kept | (FOLDED if "hide-input" in tags(cell) else {})


def stored(notebook, took):
    """A notebook in the form that is stored: only what a reader sees, and what it
    `took`.
    """
    for cell in notebook.cells:
        cell.metadata = folded(cell)
    for _, output, _ in outputs(notebook):
        texts = output.get("data", output)
        for kind in [kind for kind in texts if kind.startswith("text")]:
            texts[kind] = texts[kind].replace(f"{ROOT}/", "").replace(str(ROOT), ".")
    notebook.metadata = METADATA | {OURS: took}
    return notebook

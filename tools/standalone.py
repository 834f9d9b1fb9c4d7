"""Make notebooks that stand alone, each one file for Colab, Kaggle or an empty folder.

python tools/standalone.py OUT NOTEBOOK...

The first cell of each carries both packages, and the recorded results that the notebook
names, as text. It needs no network, no pip and no repository.
"""

import base64
import hashlib
import io
import lzma
import re
import sys
import textwrap
import zipfile
from functools import cache
from pathlib import Path

import notebook_rules as rules
from nbformat.v4 import new_code_cell
from notebook_rules import ROOT

from lstm_kernels import __version__

CELL = Path(__file__).with_name("standalone_cell.py")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!\w+:|#)[^)\s]+\)")
# Folded in Colab, in JupyterLab, and on Kaggle.
FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}}
FOLDED |= {"_kg_hide-input": True, "tags": ["package"]}


def carried(notebook):
    """What a notebook brings, by its place: the files of both packages, and of the
    recorded results those of the experiments that its code names.
    """
    results = ROOT / "data" / "results"
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    named = {
        re.sub(r"\.csv$", "", name) for name in re.findall(r"[\"']([\w.-]+)[\"']", code)
    }
    files = {}
    for package in ("lstm_kernels", "lstm_report"):
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                files[path.relative_to(ROOT).as_posix()] = path
    for path in results.rglob("*"):
        if path.suffix in (".csv", ".json") and path.stem in named:
            # Where `measure.results` looks when there is no repository.
            files[f"lstm_report/recorded/{path.relative_to(results).as_posix()}"] = path
    return dict(sorted(files.items()))


@cache
def packed(files):
    """Pairs (place, path) as an archive, compressed as one; the same bytes for the same
    files.
    """
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as target:
        for name, path in files:
            target.writestr(zipfile.ZipInfo(name), path.read_bytes())
    return lzma.compress(raw.getvalue(), preset=9)


def standalone(path):
    """The text of the notebook at `path`, not executed, after its first cell."""
    notebook = rules.read(path)
    archive = packed(tuple(carried(notebook).items()))
    # Editors are slow with one line of it all.
    lines = textwrap.wrap(base64.b85encode(archive).decode(), 4000)
    source = CELL.read_text(encoding="utf-8").replace("<TEXT>", "\n".join(lines))
    source = source.replace("<SHA256>", hashlib.sha256(archive).hexdigest())
    source = source.replace("<VERSION>", __version__)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
        else:  # links to files beside it lead nowhere
            cell.source = LINK.sub(r"\1", cell.source)
    notebook.cells.insert(1, new_code_cell(source, id="package", metadata=FOLDED))
    text = rules.dumps(notebook)
    return text.replace("<SIZE>", f"{len(text.encode()) // 1000}", 1)


def make(out, notebooks):
    """Write each notebook to the folder `out`; others there are of another state, and
    are removed.
    """
    out.mkdir(parents=True, exist_ok=True)
    for path in out.glob("*.ipynb"):
        path.unlink()
    for path in notebooks:
        (out / path.name).write_text(standalone(path), encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
    for path in sorted(Path(sys.argv[1]).iterdir()):
        print(f"{path}: {path.stat().st_size // 1000} KB")

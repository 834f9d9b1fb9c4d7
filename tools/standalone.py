"""Make notebooks that stand alone, each one file for Colab, Kaggle or an empty folder.

python tools/standalone.py OUT NOTEBOOK...

The first cell of each carries both packages, and the recorded results that the notebook
names, as text. It needs no network, no pip and no repository.
"""

import argparse
import base64
import io
import lzma
import re
import textwrap
import zipfile
from functools import cache
from hashlib import sha256
from pathlib import Path

import notebook_rules as rules
from nbformat.v4 import new_code_cell
from notebook_rules import ROOT

from lstm_kernels import __version__

# How to go on, at a page's end: other pages are files that may lie elsewhere.
ONWARDS = re.compile(r"^(?:## )?How to (?:go|read) on.*", re.MULTILINE | re.DOTALL)
PAGE = re.compile(r"\[([^\]]+)\]\((\w+\.ipynb)\)")
CELL = Path(__file__).with_name("standalone_cell.py")


def carried(notebook):
    """What a notebook brings, by its place: the files of both packages, and of the
    recorded results those of the experiments that its code names.
    """
    results = ROOT / "data" / "results"
    code = "".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    for module in ROOT.glob("lstm_report/pages/*.py"):  # those that it imports
        if re.search(rf"\b{module.stem}\b", code):
            code += module.read_text("utf-8")
    named = re.findall(r"[\"']([\w-]+)(?:\.csv)?[\"']", code)
    packages = [*ROOT.glob("lstm_kernels/**/*"), *ROOT.glob("lstm_report/**/*")]
    files = {path.relative_to(ROOT).as_posix(): path for path in packages}
    for path in results.glob("**/*.*"):
        if path.stem in named:  # where `measure.results` looks without a repository
            place = Path("lstm_report", "recorded", path.relative_to(results))
            files[place.as_posix()] = path
    return {
        name: path
        for name, path in sorted(files.items())
        if path.is_file() and "__pycache__" not in name
    }


@cache
def packed(files):
    """Pairs (place, path) as an archive, compressed as one: the same bytes for the same
    files.
    """
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as target:
        for name, path in files:
            target.writestr(zipfile.ZipInfo(name), path.read_bytes())
    return lzma.compress(raw.getvalue(), preset=9)


def standalone(path):
    """The text of the notebook at `path`, not executed, after its first cell."""
    notebook = rules.read(path)
    archive = packed(tuple(carried(notebook).items()))
    # Editors are slow with one line of it all.
    lines = textwrap.wrap(base64.b85encode(archive).decode(), 4000)
    given = {"TEXT": "\n".join(lines), "VERSION": __version__}
    source = CELL.read_text("utf-8")
    for name, value in (given | {"SHA256": sha256(archive).hexdigest()}).items():
        source = source.replace(f"<{name}>", value)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
        else:  # links to files beside it lead nowhere
            told = ONWARDS.sub(lambda m: PAGE.sub(r"\1 (`\2`)", m[0]), cell.source)
            cell.source = rules.linked(told)
    about = rules.FOLDED | {"tags": ["package"]}
    cell = new_code_cell(source, id="package", metadata=about)
    notebook.cells.insert(1, cell)
    text = rules.dumps(notebook)
    return text.replace("<SIZE>", f"{len(text.encode()) // 1000}", 1)


def make(out, notebooks):
    """Write each notebook to the folder `out`; others there are of another state, and
    are removed.
    """
    texts = {path.name: standalone(path) for path in notebooks}
    out.mkdir(parents=True, exist_ok=True)
    for path in out.glob("*.ipynb"):
        path.unlink()
    for name, text in texts.items():
        (out / name).write_text(text, "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the folder for them")
    parser.add_argument("notebooks", type=Path, nargs="+")
    given = parser.parse_args()
    make(given.out, given.notebooks)
    for path in sorted(given.out.iterdir()):
        print(f"{path}: {path.stat().st_size // 1000} KB")

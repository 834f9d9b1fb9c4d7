"""Make notebooks that stand alone, each one file for Colab, Kaggle or an empty folder.

python tools/standalone.py OUT NOTEBOOK...

The first cell of each carries both packages and the recorded results as text. It needs
no network, no pip and no repository.
"""

import base64
import io
import json
import lzma
import sys
import textwrap
import zipfile
from functools import cache
from hashlib import sha256
from pathlib import Path

import notebook_rules as rules
from nbformat.v4 import new_code_cell
from notebook_rules import ROOT

from lstm_kernels import __version__
from lstm_report import closings

CELL = Path(__file__).with_name("standalone_cell.py")
# Where files lie, by where `measure.results` and imports look without a repository.
ROOMS = {"lstm_kernels": "lstm_kernels", "lstm_report": "lstm_report"}
ROOMS |= {"lstm_report/recorded": "data/results"}


@cache
def packed(folder):
    """What a notebook of a folder brings, as an archive that is compressed as one: the
    same bytes for the same files.
    """
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name, room in ROOMS.items():
            for path in sorted(ROOT.glob(f"{room}/**/*")):
                if path.is_file() and path.parent.name != "__pycache__":
                    place = Path(name, path.relative_to(ROOT / room))
                    archive.writestr(zipfile.ZipInfo(str(place)), path.read_bytes())
        place = f"lstm_report/recorded/{closings.FILE}"
        archive.writestr(zipfile.ZipInfo(place), json.dumps(closings.stored(folder)))
    return lzma.compress(raw.getvalue(), preset=9)


def standalone(path):
    """The text of the notebook at `path`, not executed, after its first cell."""
    book, archive = rules.read(path), packed(path.parent)
    # Editors are slow with one line of it all.
    lines = textwrap.wrap(base64.b85encode(archive).decode(), 4000)
    source = CELL.read_text("utf-8").replace("<TEXT>", "\n".join(lines))
    source = source.replace("<VERSION>", __version__)
    source = source.replace("<SHA256>", sha256(archive).hexdigest())
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
        else:  # links to files beside it lead nowhere
            cell.source = rules.unlinked(cell.source)
    about = rules.FOLDED | {"tags": ["package"]}
    book.cells.insert(1, new_code_cell(source, id="package", metadata=about))
    text = rules.dumps(book)
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
    out, *notebooks = map(Path, sys.argv[1:])
    if not notebooks:
        sys.exit("want OUT NOTEBOOK...; other notebooks in OUT are removed")
    make(out, notebooks)
    for path in sorted(out.iterdir()):
        print(f"{path}: {path.stat().st_size // 1000} KB")

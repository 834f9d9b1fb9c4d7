"""Make notebooks that stand alone, each one file for Colab, Kaggle or an empty folder.

python tools/standalone.py OUT NOTEBOOK...

The first cell of each carries both packages as text. It needs no network, no pip and no
repository, and does nothing where they can be imported.
"""

import argparse
import base64
import hashlib
import io
import lzma
import os
import re
import sys
import tempfile
import textwrap
import zipfile
from pathlib import Path

import notebook_rules as rules
from flit_core.wheel import make_wheel_in
from nbformat.v4 import new_code_cell

CELL = Path(__file__).with_name("standalone_cell.py")
FIRST = "#@title Run me first: the packages travel in this cell, {size} KB of text\n"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!\w+:|#)[^)\s]+\)")
# Folded in Colab, in JupyterLab, and on Kaggle.
FOLDED = {
    "cellView": "form",
    "jupyter": {"source_hidden": True},
    "_kg_hide-input": True,
}
# What of a recorded run the notebooks read: its rows, and what they were measured on.
RECORDED = ("*.csv", "*/*.csv", "*/*.json")


def make_wheel(folder: Path) -> Path:
    """The wheel of the package, for pip; the same bytes for the same files."""
    before = os.environ.get("SOURCE_DATE_EPOCH")
    os.environ["SOURCE_DATE_EPOCH"] = "315532800"  # the first day that a zip file knows
    try:
        return folder / make_wheel_in(rules.ROOT / "pyproject.toml", folder).file.name
    finally:
        del os.environ["SOURCE_DATE_EPOCH"]
        if before is not None:
            os.environ["SOURCE_DATE_EPOCH"] = before


def carried() -> dict[str, bytes]:
    """What a notebook brings, by its place: both packages, and the recorded results
    where `measure.results` looks when there is no repository.
    """
    root, files = rules.ROOT, {}
    for package in ("lstm_kernels", "lstm_report"):
        for path in (root / package).rglob("*"):
            inside = path.relative_to(root)
            hidden = any(part.startswith((".", "__pycache__")) for part in inside.parts)
            if path.is_file() and not hidden:
                files[inside.as_posix()] = path.read_bytes()
    results = root / "data" / "results"
    for pattern in RECORDED:
        for path in results.glob(pattern):
            place = Path("lstm_report", "recorded", path.relative_to(results))
            files[place.as_posix()] = path.read_bytes()
    return files


def packed(files: dict[str, bytes]) -> bytes:
    """Files as an archive, compressed as one, not one by one."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as target:
        for name, content in sorted(files.items()):
            target.writestr(zipfile.ZipInfo(name), content)  # no time of its own
    return lzma.compress(raw.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def first_cell(archive: bytes):
    """The cell that unpacks `archive`."""
    text = base64.b85encode(archive).decode()
    # Editors are slow with one line of them all
    lines = "\n".join(textwrap.wrap(text, 4000))
    source = CELL.read_text(encoding="utf-8")
    for name, value in {
        "TEXT": lines,
        "SHA256": hashlib.sha256(archive).hexdigest(),
    }.items():
        source = source.replace(f"<{name}>", value)
    title = FIRST.format(size=len(text) // 1000)
    cell = new_code_cell(
        title + source, id="package", metadata={**FOLDED, "tags": ["package"]}
    )
    return cell


def standalone(path: Path, cell) -> str:
    """The text of the notebook at `path`, not executed, after `cell`."""
    notebook = rules.normalised(rules.read(path), name=path.name)
    for other in notebook.cells:
        if other.cell_type == "code":
            other.update(outputs=[], execution_count=None)
        else:  # links to files beside it lead nowhere
            other.source = LINK.sub(r"\1", other.source)
    # Where it reads best: under the title.
    notebook.cells.insert(1, cell)
    return rules.dumps(notebook)


def make(out: Path, notebooks: list[Path]) -> dict[str, int]:
    """Write each notebook, and the wheel for pip beside them, to the folder `out`;
    returns their sizes in bytes. Other notebooks and wheels there are of another state,
    and are removed.
    """
    with tempfile.TemporaryDirectory() as folder:
        wheel = make_wheel(Path(folder))
        cell = first_cell(packed(carried()))
        made = {path.name: standalone(path, cell).encode() for path in notebooks}
        made[wheel.name] = wheel.read_bytes()
    rules.write_all({out / name: content for name, content in made.items()})
    for path in [*out.glob("*.ipynb"), *out.glob("*.whl")]:
        if path.name not in made:
            path.unlink()
    return {name: len(content) for name, content in made.items()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the folder to write to")
    parser.add_argument("notebooks", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    for name, size in make(given.out, given.notebooks).items():
        print(f"{given.out / name}: {size / 1000:.0f} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Make notebooks that stand alone, each one file for Colab, Kaggle or an empty folder.

python3 tools/standalone.py                    those of colab/, with what each needs
python3 tools/standalone.py OUT NOTEBOOK...    any, with both packages and all results

The first cell of each carries the packages' files as text. It needs no network, no pip
and no repository, and this program needs Python alone. Other notebooks that it made are
removed from the folder.
"""

import ast
import base64
import bz2
import json
import re
import sys
import textwrap
import tomllib
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # which `python3 -I` leaves out

import notebook_rules as rules
from notebook_rules import ROOT

# What colab/ holds: a notebook, and what it reads of data/results/.
COLAB = {
    "notebooks/lesson.ipynb": (),
    "notebooks/lab.ipynb": (),
    "tools/gpu.ipynb": (),
    "notebooks/03_cpu_ladder.ipynb": ("*/gpu.*",),
}
PACKAGES = "lstm_kernels", "lstm_report"
# Where `measure.results` looks without a repository.
RECORDED = Path("lstm_report", "recorded")
PAGE = re.compile(r"(?:page )?\[(\d\d)\]\([^)]+\.ipynb[^)]*\)")  # a link to one
MADE = '"id": "package"'  # in the text of what this makes
CELL = Path(__file__).with_name("standalone_cell.py")


def read(path):
    """The notebook in a file, as JSON has it; ValueError for what is none, or stands
    alone already.
    """
    try:
        book = json.loads(text := path.read_text("utf-8"))
        book["cells"], book["nbformat"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"NOTEBOOK: got {path}, want a notebook's file") from None
    if MADE in text:
        raise ValueError(f"NOTEBOOK: got {path}, which stands alone already")
    return book


def imports(text, package=""):
    """The names of what a module of `package` may import, wherever in its text, also in
    programs that it holds as strings.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")
            above = above[: len(above) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Constant) and "import " in str(node.value):
            with suppress(SyntaxError):  # of a sentence
                yield from imports(str(node.value))


def modules(code):
    """The files of what a notebook's code may import of the packages."""
    # The registry imports a version by its name, which stands in no import.
    versions = ROOT.glob("lstm_kernels/versions/*.py")
    names = [f"lstm_kernels.versions.{path.stem}" for path in versions]
    found, names = set(), [*names, *imports(code)]
    while names:
        parts = names.pop().split(".")
        for count in range(1, len(parts) + 1 if parts[0] in PACKAGES else 0):
            place = ROOT.joinpath(*parts[:count])
            for path in (place / "__init__.py", place.with_suffix(".py")):
                if path.is_file() and path not in found:
                    found.add(path)
                    room = ".".join(path.parent.relative_to(ROOT).parts)
                    names += imports(path.read_text("utf-8"), room)
    return found


def goals(folder):
    """What `closings.stored(folder)` returns; this program cannot import that."""
    paths = [p for f in (ROOT / "notebooks", folder) for p in f.glob("*.ipynb")]
    cells = (cell for path in paths for cell in read(path)["cells"])
    outputs = (output for cell in cells for output in cell.get("outputs", ()))
    ours = (output.get("metadata", {}).get(rules.OURS, {}) for output in outputs)
    shown = [one["goals"] for one in ours if "goals" in one]
    return {goals["project"]: goals["lines"] for goals in shown if goals["lines"]}


def carried(book, recorded, folder):
    """What a notebook of `folder` brings: place -> text. recorded: patterns of what it
    reads of data/results/; None: all of that, and both packages whole.
    """
    results, texts = ROOT / "data" / "results", {}
    if recorded is None:
        paths, recorded = {*ROOT.glob("lstm_*/**/*")}, ["**/*"]
        texts[f"{RECORDED}/closings.json"] = json.dumps(goals(folder))
    else:
        code = ("".join(c["source"]) for c in book["cells"] if c["cell_type"] == "code")
        paths = modules("\n".join(code)) | {*ROOT.glob("lstm_kernels/series/*")}
        paths |= {other for path in paths for other in path.parent.glob("*.c")}
    places = {path: path.relative_to(ROOT) for path in paths}
    found = (path for pattern in recorded for path in results.glob(pattern))
    places |= {path: RECORDED / path.relative_to(results) for path in found}
    for path, place in places.items():
        if path.is_file() and path.parent.name != "__pycache__":
            texts[place.as_posix()] = path.read_text("utf-8")
    return texts


def standalone(path, recorded=None):
    """The text of the notebook at `path`, not executed, after its first cell: the same
    bytes for the same files. recorded: as `carried` takes it.
    """
    book = read(path)
    texts = carried(book, recorded, path.parent)
    files = json.dumps(texts, sort_keys=True, ensure_ascii=False).encode()
    # Smaller than what lzma makes of it, and the same in every release.
    archive = base64.b85encode(bz2.compress(files)).decode()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    source = CELL.read_text("utf-8").replace("<SHA256>", sha256(files).hexdigest())
    source = source.replace("<VERSION>", project["version"])
    # Editors are slow with one line of it all.
    source = source.replace("<TEXT>", "\n".join(textwrap.wrap(archive, 4000)))
    for cell in book["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
        else:  # links to files beside it lead nowhere
            text = rules.unlinked(PAGE.sub(r"page \1 of the report", text))
            cell["source"] = text.splitlines(keepends=True)
    about = {"metadata": rules.FOLDED | {"tags": ["package"]}, "id": "package"}
    about |= {"cell_type": "code", "execution_count": None, "outputs": []}
    book["cells"].insert(1, about | {"source": source.splitlines(keepends=True)})
    # As `notebook_rules.dumps` writes it.
    return json.dumps(book, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


def stale(out, notebooks):
    """The notebooks of the folder `out` that are to be written, name -> text, or
    removed, name -> None. notebooks: path -> what `standalone` takes. ValueError for a
    notebook there that this did not make.
    """
    texts = {path.name: standalone(path, known) for path, known in notebooks.items()}
    if len(texts) < len(notebooks):
        raise ValueError("NOTEBOOK: got two of one name, want a name each")
    there = {path.name: path.read_text("utf-8") for path in out.glob("*.ipynb")}
    for name, text in there.items():
        if MADE not in text:
            raise ValueError(f"OUT: got {out}, with {name}, which was not made by this")
    names = sorted({*there, *texts})
    return {n: texts.get(n) for n in names if there.get(n) != texts.get(n)}


def make(out, notebooks):
    """Write what is `stale` in `out`, each file beside its place and renamed."""
    changed = stale(out, notebooks)
    out.mkdir(parents=True, exist_ok=True)
    for name, text in changed.items():
        if text is None:
            (out / name).unlink()
            continue
        part = out / f"{name}.part"
        part.write_bytes(text.encode())
        part.replace(out / name)
    return [*changed]


def colab():
    """Renew colab/; the names of what was not as it had to be."""
    return make(ROOT / "colab", {ROOT / name: COLAB[name] for name in COLAB})


if __name__ == "__main__":
    try:
        if not sys.argv[1:]:
            print("renewed in colab/:", ", ".join(colab()) or "nothing")
        elif len(sys.argv) == 2:
            raise ValueError(f"NOTEBOOK: got none. Usage:\n{__doc__}")
        else:
            make(Path(sys.argv[1]), dict.fromkeys(map(Path, sys.argv[2:])))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)

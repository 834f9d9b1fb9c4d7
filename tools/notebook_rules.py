"""What a notebook of the report must be, and the one form in which it is stored.

Cells are numbered from 1, without the cell that papermill injects: as in the source
notebook.
"""

import ast
import base64
import os
import re
import signal
from contextlib import ExitStack, contextmanager
from pathlib import Path

import nbformat
from nbconvert.preprocessors import CoalesceStreamsPreprocessor

from lstm_kernels.files import writing

ROOT = Path(__file__).resolve().parents[1]
INJECTED = "injected-parameters"
PROGRESS = re.compile(r"\d+%\|.*\||\bit/s\b|\bs/it\b")
WIDGET = "application/vnd.jupyter.widget-view+json"
IMAGES = ("image/png", "image/svg+xml", "image/jpeg")
OURS = "lstm_kernels"  # in an output's metadata: what report/notebook.py says of it
LINE = 88  # characters of a line of code that a page and a code host show whole
START = re.compile(r"# .+\n\n\*\*[^*]+\*\*\n\n.*\bNeeds:.*\bminutes?\b", re.DOTALL)
END = ["What we learned", "Exercises", "Environment"]
CITATION = re.compile(
    r"\bet al\.|[A-Z][\w-]+ (?:&|and) [A-Z][\w-]+,? \(?(?:19|20)\d\d\b"
)
MACHINE_PATH = re.compile(
    r"(?<![\w.])(/(?:root|home|tmp|Users|private|var/folders)/[^\s'\"<>]*)"
)
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
STYLER_ID = re.compile(r"\bT_[0-9a-f]{5}(?=_|\b)")  # pandas.Styler draws one at random
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {
        "file_extension": ".py",
        "name": "python",
        "pygments_lexer": "ipython3",
    },
}


class ReportError(ValueError):
    """The report cannot be built; the message says what to change."""


def write(path: Path, text: str) -> None:
    """Write beside and rename: `path` is whole or untouched."""
    write_all({path: text.encode()})


def write_all(contents: dict[Path, bytes]) -> None:
    """Write every file beside its place, then rename all of them; an interrupt changes
    none, or comes when all are renamed.
    """
    with ExitStack() as after, ExitStack() as files:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            file = files.enter_context(writing(path))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # a full disk says so now
        after.enter_context(_interrupts_later())


@contextmanager
def _interrupts_later():
    """Ctrl-C, and the signal that ends a process, wait for the end of the block."""
    caught = []
    before = {
        number: signal.signal(number, lambda number, _: caught.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if caught:
            signal.raise_signal(caught[0])


def read(path: Path) -> nbformat.NotebookNode:
    """The notebook at `path`, in format 4."""
    return nbformat.read(path, as_version=4)


def tags(cell) -> list[str]:
    return cell.metadata.get("tags", [])


def numbered(notebook):
    """Pairs (number, cell), without the injected cell."""
    cells = [cell for cell in notebook.cells if INJECTED not in tags(cell)]
    return list(enumerate(cells, start=1))


def outputs(notebook):
    """Triples (number, cell, output), progress bars left out."""
    for number, cell in numbered(notebook):
        for output in cell.get("outputs", ()):
            if not is_progress(output):
                yield number, cell, output


def is_progress(output) -> bool:
    """Whether all that `output` shows is a progress bar, as text or as a widget."""
    if output.output_type == "stream" and output.name == "stderr":
        return all(PROGRESS.search(line) for line in _lines(output.text))
    return WIDGET in output.get("data", {})


def _lines(text: str) -> list[str]:
    """The lines that are not blank; a progress bar writes many over each other."""
    return [line for line in re.split(r"[\r\n]", text) if line.strip()]


def claims(notebook) -> list:
    """The claims that `nb.claim` showed: sentence, verdict, numbers, perhaps
    disturbed.
    """
    about = (out.get("metadata", {}).get(OURS, {}) for _, _, out in outputs(notebook))
    return [ours["claim"] for ours in about if "claim" in ours]


def figures(notebook) -> dict[str, bytes]:
    """The PNG of each figure that `nb.show` showed, by name."""
    return {
        output.metadata[OURS]["figure"]: base64.b64decode(output.data["image/png"])
        for _, _, output in outputs(notebook)
        if "figure" in output.get("metadata", {}).get(OURS, {})
    }


def only_says(cell) -> bool:
    """Whether a code cell does nothing but show sentences: pages fold it away."""
    calls = [getattr(line, "value", None) for line in ast.parse(cell.source).body]
    return bool(calls) and all(
        isinstance(call, ast.Call) and ast.unparse(call.func) in ("nb.say", "nb.claim")
        for call in calls
    )


def folds(notebook) -> dict[int, str]:
    """What pages call the code that they fold away, by the number of its cell:
    parameters and set-up, which stand before the first section, and sentences.
    """
    names, section = {}, False
    for number, cell in numbered(notebook):
        if cell.cell_type == "markdown":
            section |= bool(re.search(r"^## ", cell.source, re.MULTILINE))
        elif "parameters" in tags(cell):
            names[number] = "Parameters"
        elif only_says(cell):
            names[number] = "Code of these sentences"
        elif not section and re.search(r"^(import|from) ", cell.source, re.MULTILINE):
            names[number] = "Set-up"
    return names


def parameters(notebook) -> dict:
    """Names and values set by the cells tagged `parameters`, then by the injected
    one.
    """
    values = {}
    for cell in notebook.cells:
        if {"parameters", INJECTED} & set(tags(cell)):
            for statement in ast.parse(cell.source).body:
                if isinstance(statement, ast.Assign):
                    for target in statement.targets:
                        values[ast.unparse(target)] = ast.unparse(statement.value)
    return values


def preset(notebook) -> str | None:
    """The value of PRESET the notebook was executed with."""
    value = parameters(notebook).get("PRESET")
    return None if value is None else ast.literal_eval(value)


def problems_of_execution(notebook) -> list[str]:
    """Cells that did not run, raised, or wrote to stderr."""
    problems = [
        f"cell {number} is not executed"
        for number, cell in numbered(notebook)
        if cell.cell_type == "code"
        and cell.source.strip()
        and cell.execution_count is None
    ]
    stderr = []
    for number, _, output in outputs(notebook):
        if output.output_type == "error":
            problems.append(f"cell {number} raised {output.ename}: {output.evalue}")
        elif output.output_type == "stream" and output.name == "stderr":
            loud = [line for line in _lines(output.text) if not PROGRESS.search(line)]
            stderr.append(f"cell {number}: {loud[0].strip()}")
    if stderr:
        where = "; ".join(stderr)
        problems.append(f"{len(stderr)} stderr outputs, want none ({where})")
    return problems


def problems_of_images(notebook) -> list[str]:
    """Image outputs that have no alt text."""
    return [
        f"cell {number}: {kind} output without alt text "
        f"(output.metadata[{kind!r}]['alt'])"
        for number, _, output in outputs(notebook)
        for kind in IMAGES
        if kind in output.get("data", {})
        and not str(output.metadata.get(kind, {}).get("alt", "")).strip()
    ]


def problems_of_form(notebook) -> list[str]:
    """Departures from the house's form: order of cells and sections, long lines."""
    cells = [cell for _, cell in numbered(notebook)]
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    cites = CITATION.search(text)
    problems = []
    if not START.match(cells[0].source):
        problems.append(
            "cell 1: want title, bold claim, what it covers, 'Needs:' and the minutes"
        )
    if "parameters" not in tags(cells[1]) or "PRESET" not in parameters(notebook):
        problems.append("cell 2: want the cell tagged 'parameters', which sets PRESET")
    if [name for name in sections if name in END] != END:
        problems.append(f"sections: got {sections}, want {', '.join(END)} at the end")
    if cites and "References" not in sections:
        problems.append(f"cites {cites[0]}, want a section 'References'")
    for number, cell in numbered(notebook):
        lines = cell.source.splitlines() if cell.cell_type == "code" else []
        problems += [
            f"cell {number}: a line of {len(line)} characters, want at most {LINE}: "
            f"{line.strip()[:40]}"
            for line in lines
            if len(line) > LINE
        ]
    return problems


def normalised(notebook, *, name: str):
    """A copy in the stored form: only what a reader sees, the same bytes for the same
    results.
    """
    cells = []
    for number, cell in numbered(notebook):
        cell = nbformat.from_dict(dict(cell))
        cell["metadata"] = {"tags": tags(cell)} if tags(cell) else {}
        if cell.cell_type == "code":
            cell["outputs"] = [
                output for output in cell.outputs if not is_progress(output)
            ]
            # How a stream is cut into messages is a matter of timing.
            CoalesceStreamsPreprocessor().preprocess_cell(cell, {}, number)
            for output in cell.outputs:
                _clean(output, f"{name}, cell {number}")
        cells.append(cell)
    executed = [cell for cell in cells if cell.get("execution_count") is not None]
    for count, cell in enumerate(executed, start=1):
        for part in (cell, *cell.outputs):
            if "execution_count" in part:
                part["execution_count"] = count
    took = seconds(notebook)
    metadata = METADATA | ({OURS: {"seconds": took}} if took else {})
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


def seconds(notebook) -> int | None:
    """What executing a notebook took, as papermill or its stored form says; None:
    unknown.
    """
    took = notebook.metadata.get("papermill", {}).get("duration")
    return round(took) if took else notebook.metadata.get(OURS, {}).get("seconds")


def dumps(notebook) -> str:
    """The text that is stored: sorted keys, indented by one, a newline at the end."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def normalised_text(notebook, *, name: str) -> str:
    """`normalised` as text; random ids inside outputs are numbered in order of
    appearance.
    """
    text = dumps(normalised(notebook, name=name))
    order = {}
    return STYLER_ID.sub(lambda m: order.setdefault(m[0], f"T_{len(order):05x}"), text)


def _clean(output, place: str) -> None:
    texts = output.get("data", output)
    for kind, value in texts.items():
        if isinstance(value, str) and kind.startswith(("text", "image/svg")):
            texts[kind] = _portable(value, place)
    if "metadata" in output:
        known = {kind: output.metadata.get(kind) for kind in (*IMAGES, OURS)}
        output["metadata"] = {kind: value for kind, value in known.items() if value}


def _portable(text: str, place: str) -> str:
    """`text` with paths inside the checkout made relative; any other machine path is an
    error.
    """
    text = text.replace(f"{ROOT}/", "").replace(str(ROOT), ".")
    text = ADDRESS.sub(" at 0x0", text)
    path = MACHINE_PATH.search(text)
    if path:
        raise ReportError(
            f"{place}: the output names a path of this machine: {path[1]}"
        )
    return text

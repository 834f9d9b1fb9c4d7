"""Small notebooks for the tests of the report: cells, outputs, files."""

import nbformat
import notebook_rules as rules
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

# A picture of one point.
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAA"
    "AABJRU5ErkJggg=="
)
TITLE = "# Title\n\n**The claim, with $x^2$.**"


def text(source):
    return new_markdown_cell(source)


def code(source, *outputs, count=1, tags=()):
    cell = new_code_cell(source, execution_count=count, outputs=list(outputs))
    cell.metadata.tags = list(tags)
    return cell


def parameters(value="paper"):
    return code(f'PRESET = "{value}"', tags=["parameters"])


def stream(content, name="stdout"):
    return new_output("stream", text=content, name=name)


def claim(sentence="One is two.", verdict="Held", **more):
    """The output of `nb.claim`."""
    about = {"sentence": sentence, "verdict": verdict, "numbers": "1, 2"} | more
    data = {"text/markdown": f"> **{verdict} in this run.** {sentence}"}
    return new_output(
        "display_data", data=data, metadata={"lstm_kernels": {"claim": about}}
    )


def drawn(name):
    """The output of `nb.show`."""
    about = {"image/png": {"alt": "A line"}, "lstm_kernels": {"figure": name}}
    return new_output("display_data", data={"image/png": PNG}, metadata=about)


def save(path, *cells):
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=list(cells), metadata=rules.METADATA), path)
    return path

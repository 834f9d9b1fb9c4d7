"""Small notebooks for the tests of the report: cells, outputs, files."""

import notebook_rules as rules
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

# A picture of one point.
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAA"
    "AABJRU5ErkJggg=="
)
TITLE = new_markdown_cell("# Title\n\n**The claim, with $x^2$.**")


def code(source, *outputs, count=1, tags=()):
    cell = new_code_cell(source, execution_count=count, outputs=list(outputs))
    cell.metadata = {"tags": list(tags)} if tags else {}
    return cell


def parameters(value="paper"):
    return code(f'PRESET = "{value}"', tags=["parameters"])


def markdown(text, **about):
    """A Markdown output; `about`: what lstm_report/notebook.py says of it."""
    metadata = {"lstm_kernels": about}
    return new_output("display_data", {"text/markdown": text}, metadata=metadata)


def claim(sentence="One is two.", verdict="Held", **more):
    """The output of `nb.claim`."""
    about = {"sentence": sentence, "verdict": verdict, "numbers": "1, 2"} | more
    return markdown(f"> **{verdict} in this run.** {sentence}", claim=about)


def drawn(name, alt="A line"):
    """The output of `nb.show`."""
    about = {"image/png": {"alt": alt}, "lstm_kernels": {"figure": name}}
    return new_output("display_data", {"image/png": PNG}, metadata=about)


def save(path, *cells):
    path.parent.mkdir(parents=True, exist_ok=True)
    book = new_notebook(cells=list(cells), metadata=rules.METADATA)
    path.write_text(rules.dumps(book))
    return path

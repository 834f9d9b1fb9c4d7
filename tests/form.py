"""The form that every page of the report has."""

import ast
import re

import notebook_rules as rules

LONG = 15  # lines of a cell that is neither a kernel nor an exercise
VISIBLE = 150  # lines of code of a page that are not folded
FREE = {"kernel", "exercise"}  # tags of cells whose code is the subject
LINE = 88  # characters of a line of code that a page and a code host show whole
START = re.compile(r"# .+\n\n\*\*[^*]+\*\*\n\n.*\bNeeds:.*\bminutes?\b", re.DOTALL)
END = ["What we learned", "Exercises", "Environment"]
HEAD = re.compile(r"^\|(.+)\|\n\|[-:| ]+\|$", re.MULTILINE)  # of a table in Markdown
CITATION = re.compile(r"\bet al\.|[A-Z]\w+ (?:&|and) [A-Z]\w+,? \(?(?:19|20)\d\d\b")
# What belongs in a function, which a test calls.
COMPUTES = {ast.BinOp: "arithmetic", ast.AugAssign: "arithmetic"}
COMPUTES |= {ast.Compare: "a comparison"}


def code_cells(book):
    """Pairs (number from 1, cell)."""
    cells = enumerate(book.cells, start=1)
    return [(number, cell) for number, cell in cells if cell.cell_type == "code"]


def problems_of_form(book):
    """Departures from it: order of cells and sections, columns of tables without a
    name, long lines, pictures without a text.
    """
    texts = [cell.source for cell in book.cells if cell.cell_type == "markdown"]
    text = "\n".join(texts)
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    if not START.match(book.cells[0].source):
        yield "cell 1: want title, bold claim, what it covers, 'Needs:' and the minutes"
    if "parameters" not in rules.tags(book.cells[1]) or not rules.preset(book):
        yield "cell 2: want the cell tagged 'parameters', which sets PRESET"
    if [name for name in sections if name in END] != END:
        yield f"sections: got {sections}, want {', '.join(END)} at the end"
    if (cites := CITATION.search(text)) and "References" not in sections:
        yield f"cites {cites[0]}, want a section 'References'"
    for head in HEAD.findall(text):
        if not all(name.strip() for name in head.split("|")):
            yield f"a column without a name: |{head}|"
    for number, cell in code_cells(book):
        for line in cell.source.splitlines():
            if len(line) > LINE:
                yield f"cell {number}: {len(line)} characters: {line}"
    for number, output, _ in rules.outputs(book):
        about = output.get("metadata", {}).get("image/png", {})
        if "image/png" in output.get("data", {}) and not about.get("alt", "").strip():
            yield f"cell {number}: an image without alternative text"


def computed(tree):
    """What code does outside functions, classes and lambdas, with its line."""
    kinds = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, kinds):
            continue
        if isinstance(node, ast.FormattedValue) and node.format_spec:
            yield node.lineno, "a format"
        elif type(node) in COMPUTES:
            yield node.lineno, COMPUTES[type(node)]
        yield from computed(node)


def problems_of_code(book):
    """Departures of its code: long cells, more than a page shows, arithmetic,
    comparisons and formats outside functions.
    """
    visible = 0
    for number, cell in code_cells(book):
        lines, tags = len(cell.source.splitlines()), set(rules.tags(cell))
        visible += 0 if "hide-input" in tags else lines
        if FREE & tags:
            continue
        if lines > LONG:
            yield f"cell {number}: {lines} lines, want at most {LONG}"
        for line, what in computed(ast.parse(cell.source)):
            yield f"cell {number}, line {line}: {what} outside a function"
    if visible > VISIBLE:
        yield f"{visible} lines of code in view, want at most {VISIBLE}"

"""The form that every page of the report has; cells are numbered from 1."""

import re

import notebook_rules as rules

LONG = 25  # lines of a cell that is neither a kernel nor an exercise
FREE = {"kernel", "exercise"}  # tags of cells whose code is the subject
LINE = 88  # characters of a line of code that a page and a code host show whole
START = re.compile(r"# .+\n\n\*\*[^*]+\*\*\n\n.*\bNeeds:.*\bminutes?\b", re.DOTALL)
END = ["What we learned", "Exercises"]
HEAD = re.compile(r"^\|(.+)\|\n\|[-:| ]+\|$", re.MULTILINE)  # of a table in Markdown
CITATION = re.compile(r"\bet al\.|[A-Z]\w+ (?:&|and) [A-Z]\w+,? \(?(?:19|20)\d\d\b")


def problems_of_form(book):
    """Departures from it: order of cells and sections, works that are not listed,
    columns of tables without a name, pictures without a text.
    """
    problems = []
    texts = [cell.source for cell in book.cells if cell.cell_type == "markdown"]
    text = "\n".join(texts)
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    if not START.match(book.cells[0].source):
        want = "title, bold claim, what it covers, 'Needs:' and the minutes"
        problems.append(f"cell 1: want {want}")
    if "parameters" not in rules.tags(book.cells[1]) or not rules.preset(book):
        problems.append("cell 2: want the cell tagged 'parameters', which sets PRESET")
    if [name for name in sections if name in END] != END:
        problems.append(f"sections: got {sections}, want {', '.join(END)} at the end")
    if (cites := CITATION.search(text)) and "References" not in sections:
        problems.append(f"cites {cites[0]}, want a section 'References'")
    for head in HEAD.findall(text):
        if not all(name.strip() for name in head.split("|")):
            problems.append(f"a column without a name: |{head}|")
    for number, output, _ in rules.outputs(book):
        about = output.get("metadata", {}).get("image/png", {})
        if "image/png" in output.get("data", {}) and not about.get("alt", "").strip():
            problems.append(f"cell {number}: an image without alternative text")
    return problems


def problems_of_code(book):
    """Departures of its code: long cells and long lines."""
    problems = []
    for number, cell in enumerate(book.cells, start=1):
        lines = cell.source.splitlines() if cell.cell_type == "code" else []
        if len(lines) > LONG and not FREE & {*rules.tags(cell)}:
            problems.append(f"cell {number}: {len(lines)} lines, want at most {LONG}")
        wide = [line for line in lines if len(line) > LINE]
        problems += [f"cell {number}: {len(line)} characters: {line}" for line in wide]
    return problems

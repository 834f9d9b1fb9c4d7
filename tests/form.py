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


def problems_of_form(notebook):
    """Departures from it: order of cells and sections, columns of tables without a
    name, long lines, pictures without a text; cells are numbered from 1.
    """
    cells, problems = notebook.cells, []
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    if not START.match(cells[0].source):
        want = "title, bold claim, what it covers, 'Needs:' and the minutes"
        problems.append(f"cell 1: want {want}")
    if "parameters" not in rules.tags(cells[1]) or not rules.preset(notebook):
        problems.append("cell 2: want the cell tagged 'parameters', which sets PRESET")
    if [name for name in sections if name in END] != END:
        problems.append(f"sections: got {sections}, want {', '.join(END)} at the end")
    if (cites := CITATION.search(text)) and "References" not in sections:
        problems.append(f"cites {cites[0]}, want a section 'References'")
    for head in HEAD.findall(text):
        if not all(name.strip() for name in head.split("|")):
            problems.append(f"a column without a name: |{head}|")
    for number, cell in enumerate(cells, start=1):
        lines = cell.source.splitlines() if cell.cell_type == "code" else []
        long = [line for line in lines if len(line) > LINE]
        problems += [f"cell {number}: {len(line)} characters: {line}" for line in long]
    for number, output, _ in rules.outputs(notebook):
        about = output.get("metadata", {}).get("image/png", {})
        if "image/png" in output.get("data", {}) and not about.get("alt", "").strip():
            problems.append(f"cell {number}: an image without alternative text")
    return problems


def outside_functions(tree):
    """The nodes of a cell that stand in no function, class or lambda."""
    kinds = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, kinds):
            yield node
            yield from outside_functions(node)


def computes(node):
    """What a node does that belongs in a function, which a test calls; None."""
    if isinstance(node, ast.BinOp | ast.AugAssign):
        return "arithmetic"
    if isinstance(node, ast.Compare):
        return "a comparison"
    if isinstance(node, ast.FormattedValue) and node.format_spec:
        return "a format"
    return None


def problems_of_code(notebook):
    """Departures of its code: long cells, more than a page shows, arithmetic,
    comparisons and formats outside functions.
    """
    problems, visible = [], 0
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type != "code":
            continue
        lines, tags = len(cell.source.splitlines()), set(rules.tags(cell))
        visible += 0 if "hide-input" in tags else lines
        if FREE & tags:
            continue
        if lines > LONG:
            problems.append(f"cell {number}: {lines} lines, want at most {LONG}")
        for node in outside_functions(ast.parse(cell.source)):
            if what := computes(node):
                place = f"cell {number}, line {node.lineno}"
                problems.append(f"{place}: {what} outside a function")
    if visible > VISIBLE:
        problems.append(f"{visible} lines of code in view, want at most {VISIBLE}")
    return problems

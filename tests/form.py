"""The form that every page of the report has."""

import re

import notebook_rules as rules

LINE = 88  # characters of a line of code that a page and a code host show whole
START = re.compile(r"# .+\n\n\*\*[^*]+\*\*\n\n.*\bNeeds:.*\bminutes?\b", re.DOTALL)
END = ["What we learned", "Exercises", "Environment"]
CITATION = re.compile(r"\bet al\.|[A-Z]\w+ (?:&|and) [A-Z]\w+,? \(?(?:19|20)\d\d\b")


def problems_of_form(notebook):
    """Departures from it: order of cells and sections, alternative texts, long lines;
    cells are numbered from 1.
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
    for number, cell in enumerate(cells, start=1):
        lines = cell.source.splitlines() if cell.cell_type == "code" else []
        long = [line for line in lines if len(line) > LINE]
        problems += [f"cell {number}: {len(line)} characters: {line}" for line in long]
    for number, output, _ in rules.outputs(notebook):
        about = output.get("metadata", {}).get("image/png", {})
        if "image/png" in output.get("data", {}) and not about.get("alt", "").strip():
            problems.append(f"cell {number}: an image without alternative text")
    return problems

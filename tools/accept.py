"""What a run drew and told takes the place of what is stored."""

import re

import notebook_rules as rules
from notebook_rules import ROOT, ReportError

from lstm_report.measure.results import newest_code

FIGURES = """# Figures

Every figure of the stored pages, as SVG, written by `make accept`; those that README
shows are here as PNG too."""


def accepted(build, sources, root=ROOT):
    """What is to be stored: the content of each file by its path, None for a file that
    goes. ReportError where a page is not fit.

    That is the executed notebooks of `build`, every figure as SVG, those that README
    shows as PNG, and a list of them. A page that was executed before this build keeps
    its drawings.
    """
    contents, books, problems = {}, {}, []
    for source in sources:
        built = build / source.name
        if not built.exists() or rules.preset(rules.read(built)) != "paper":
            problems.append(f"{source.name}: not executed with PRESET 'paper'")
        elif rules.written(built) != rules.written(source):
            problems.append(f"{source.name}: edited since it was executed")
        elif built.stat().st_mtime <= newest_code(root):
            why = "the code has changed since it was executed"
            problems.append(f"{source.name}: {why}")
        else:
            contents[source] = built.read_bytes()
            books[source] = rules.read(built)
    folder, drawn = root / "figures", {}
    for source, book in books.items():
        stored = {
            figure.name: figure.png for figure in rules.figures(rules.read(source))
        }
        for name, png, _ in rules.figures(book):
            if name in drawn:
                problems.append(f"{source.name}: {name} is drawn twice")
            drawn[name] = png
            place = folder / f"{name}.svg"
            fresh = build / "figures" / place.name
            beside = fresh.with_suffix(".png")
            if fresh.exists() and beside.exists() and beside.read_bytes() == png:
                contents[place] = fresh.read_bytes()
            elif stored.get(name) == png and place.exists():
                contents[place] = place.read_bytes()
            else:
                problems.append(f"{source.name}: {fresh} is not of this run")
    text = (root / "README.md").read_text("utf-8")
    for name in re.findall(r"\(figures/([\w-]+)\.png\)", text):
        contents[folder / f"{name}.png"] = drawn.get(name)
        problems += [] if name in drawn else [f"README.md: no notebook draws {name}"]
    if problems:
        raise ReportError("\n  ".join(["nothing is accepted:", *problems]))
    contents[folder / "README.md"] = listed(books).encode()
    return contents | dict.fromkeys({*folder.glob("*.*")} - {*contents})


def listed(books):
    """figures/README.md: the figures of each notebook with number and caption; where a
    figure has none, what it shows in words.
    """
    parts = [FIGURES]
    for source, book in books.items():
        if figures := rules.figures(book):
            title = rules.head(source.stem, book)
            lines = [
                f"- [{figure.name}]({figure.name}.svg): {rules.linked(figure.told)}"
                for figure in figures
            ]
            parts += [f"## [{title}](../notebooks/{source.name})", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"

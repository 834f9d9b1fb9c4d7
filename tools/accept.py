"""Take over what `make report` made: notebooks, figures, README's results; and renew
colab/, which is made of notebooks.

python tools/accept.py [BUILD]: without one README's results alone.
"""

import os
import re
import sys
from pathlib import Path

import notebook_rules as rules
import standalone
from nbformat.v4 import new_notebook

from lstm_report import machines, runs
from lstm_report.measure.results import replace

FIGURES = """# Figures

Every figure of the stored pages, as SVG, written by `make accept`; those that README
shows are here as PNG too."""


def accept(build, root=rules.ROOT):
    """Store the notebooks executed to `build`, each of their figures as SVG, those that
    README shows as PNG, and a list of them; other figures go. SystemExit, and nothing
    is changed, where a page is not executed in full, or a figure is not of the run that
    its page shows.
    """
    contents, books, pictures = {}, {}, {}
    for source in rules.notebooks(root / "notebooks"):
        built = build / source.name
        books[source], contents[source] = rules.read(built), built.read_bytes()
        cells = [c for c in books[source].cells if c.cell_type == "code" and c.source]
        whole = all(cell.execution_count is not None for cell in cells)
        if rules.preset(books[source]) == "smoke" or not whole:
            sys.exit(f"nothing is accepted: {built} is not executed in full")
        for figure in rules.figures(books[source]):
            drawn = build / "figures" / figure.name
            if drawn.with_suffix(".png").read_bytes() != figure.png:
                sys.exit(f"nothing is accepted: {drawn}.png is not of {built}")
            svg = root / "figures" / f"{figure.name}.svg"
            contents[svg] = drawn.with_suffix(".svg").read_bytes()
            pictures[figure.name] = figure.png
    readme = (root / "README.md").read_text("utf-8")
    for name in re.findall(r"\(figures/([\w-]+)\.png\)", readme):
        contents[root / "figures" / f"{name}.png"] = pictures[name]
    contents[root / "figures" / "README.md"] = listed(books).encode()
    (root / "figures").mkdir(exist_ok=True)
    for path, content in contents.items():
        replace(path, content)
    for path in {*root.glob("figures/*")} - {*contents}:
        path.unlink()
    for source in books:  # for make no newer than what was executed
        times = (build / source.name).stat()
        os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))


def changed(before, now):
    """In lines: each claim whose verdict is another than in the stored page, and how
    the paragraphs begin that stand in its section.
    """
    verdicts = {claim["sentence"]: claim["verdict"] for claim in rules.claims(before)}
    lines, paragraphs = [], []
    for cell in now.cells:
        if cell.cell_type == "markdown":
            _, heading, rest = cell.source.rpartition("\n## ")
            paragraphs = [rest] if heading else [*paragraphs, cell.source]
        for claim in rules.claims(new_notebook(cells=[cell])):
            was = verdicts.get(claim["sentence"], claim["verdict"])
            if was != claim["verdict"]:
                lines.append(f"{was}, now {claim['verdict']}: {claim['sentence']}")
                lines += [f"    read again: {p.strip()[:100]}" for p in paragraphs]
    return lines


def listed(books):
    """figures/README.md: the captions of the figures of each notebook, by its path."""
    parts = [FIGURES]
    for source, book in books.items():
        if figures := rules.figures(book):
            title = rules.head(source.stem, book)
            lines = [
                f"- [{name}]({name}.svg): {rules.unlinked(caption)}"
                for name, _, caption in figures
            ]
            parts += [f"## [{title}](../notebooks/{source.name})", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def checked(build, root=rules.ROOT):
    """The file of the run in `build`; SystemExit where it is not that of its pages."""
    path, told = build / "run.json", []
    for source in rules.notebooks(root / "notebooks"):
        for claim in rules.claims(rules.read(build / source.name)):
            if "recorded" not in claim:
                told.append((source.stem, claim["sentence"], claim["verdict"]))
    try:
        run, _ = runs.checked(path)
    except (OSError, ValueError) as error:
        sys.exit(f"nothing is accepted: {error}")
    kept = ((c["page"], c["sentence"], c["verdict"]) for c in run["claims"])
    if sorted(told) != sorted(kept):
        sys.exit(f"nothing is accepted: {path} is not of these pages: `make report`")
    return path


def renewed(root=rules.ROOT):
    """README with the numbers of page 00 and the recorded results."""
    overview = rules.read(rules.notebooks(root / "notebooks")[0])
    text = (root / "README.md").read_text("utf-8")
    return machines.renewed(text, dict(rules.numbers(overview)))


if __name__ == "__main__":
    if sys.argv[1:]:
        build = Path(sys.argv[1])
        for source in rules.notebooks(rules.ROOT / "notebooks"):
            now = rules.read(build / source.name)
            for line in changed(rules.read(source), now):
                print(line)
        run = checked(build)
        accept(build)
        kept, _ = runs.take(run)
        made = min(path.stat().st_mtime_ns for path in build.glob("*.ipynb"))
        for path in (kept, kept.parent):  # for make no newer than what was executed
            os.utime(path, ns=(made, made))
        standalone.colab()
    replace(rules.ROOT / "README.md", renewed())

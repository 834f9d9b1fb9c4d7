"""The folder that Sphinx makes the site of: executed notebooks, documents and generated
pages, as they lie in the repository.

python tools/website.py BUILD SOURCE [COLAB]: the address that opens what colab/ holds
"""

import json
import re
import shutil
import sys
from base64 import b64decode
from collections import Counter
from functools import partial
from pathlib import Path

import notebook_rules as rules
import standalone
from notebook_rules import ROOT
from summary import verdicts

from lstm_report import machines

# The page that drew README's figure and told the numbers of its headline.
OVERVIEW, HEADLINE = "00_overview", "<!-- end of headline -->"
STORED = "Figure and sentence are those of the stored run."
DOCUMENTS = "[!R]*.md", "data/*.md", "notebooks/*.md"
FENCE = "`" * 8
# A class of the site's style for each verdict.
KINDS = {"Held": "held", "Did not hold": "failed", "Not measured": "open"}
CLASS = """Two hours' class, a file each: download
[lesson.ipynb](colab/lesson.ipynb) or [lab.ipynb](colab/lab.ipynb), and upload it to
Colab or Kaggle; the [teacher's page](notebooks/teacher.md) has the timetables.
[gpu.ipynb](colab/gpu.ipynb) measures a GPU there in five minutes."""
BIBLIOGRAPHY = f"""# Bibliography

{FENCE}{{bibliography}}
:all:
:list: enumerated
{FENCE}"""
API = """API
===

.. automodule:: lstm_kernels
   :members:

.. autoclass:: lstm_kernels.versions.base.Network
   :members:
"""


def make(build, source, colab=""):
    """Write to the folder `source` what Sphinx reads of the notebooks executed to
    `build`. colab: where the web opens notebooks of colab/; "" leaves those links out.
    """
    built = rules.notebooks(build)
    if not built:
        sys.exit(f"{build}: no notebook is executed")
    books = {path.stem: rules.read(path) for path in built}
    shutil.rmtree(source, ignore_errors=True)
    for room in ("data", "executed", "figures", "notebooks"):
        (source / room).mkdir(parents=True)
    found = [path for pattern in DOCUMENTS for path in ROOT.glob(pattern)]
    names = sorted(path.relative_to(ROOT).as_posix() for path in found)
    for name in names:
        shutil.copy(ROOT / name, source / name)
    for path in ROOT.glob("figures/*.png"):  # what README shows
        shutil.copy(path, source / "figures")
    for path in built:
        shutil.copy(path, source / "executed")
    standalone.make(source / "anywhere", dict.fromkeys(built))
    shutil.copytree(ROOT / "colab", source / "colab")
    texts = {"claims.md": claims(books), "results.md": machines.page()}
    texts |= {"bibliography.md": BIBLIOGRAPHY, "api.rst": API}
    texts["index.md"] = index(books, [*texts, *names], colab)
    for name, book in books.items():
        shown = page(name, book, source / "figures")
        texts[f"notebooks/{name}.ipynb"] = rules.dumps(shown)
    for name, text in texts.items():
        (source / name).write_text(text, "utf-8")
    for path in source.rglob("*.md"):  # a link to what is no page is its text
        known = partial(linked, path.parent)
        path.write_text(rules.LINK.sub(known, path.read_text("utf-8")), "utf-8")


def linked(folder, link):
    """A match of `LINK` in a document in `folder`: the link, or its text alone."""
    if not (folder / link[2]).exists():
        return link[1]
    download = "colab/" in link[2]  # which is no page
    return f"[{link[1]}](path:{link[2]})" if download else link[0]


def page(name, book, figures):
    """A notebook as Sphinx reads it: figures have their texts, claims their boxes."""
    count = 0
    for _, output, ours in rules.outputs(book):
        count += "claim" in ours
        if "image/png" in output.get("data", {}):
            text = picture(output, ours, figures)
            output.data = {"text/markdown": text}
        elif "claim" in ours:
            text = boxed(ours, output.data["text/markdown"], f"claim-{name}-{count}")
            output.data = {"text/markdown": text}
    book.cells[0].source += (
        f"\n\nDownload [this page as a notebook](path:../executed/{name}.ipynb), or as "
        f"[one file that runs anywhere](path:../anywhere/{name}.ipynb)."
    )
    return book


def picture(output, ours, folder):
    """An image as a figure with its alternative text."""
    name = ours["figure"]
    (folder / f"{name}.png").write_bytes(b64decode(output.data["image/png"]))
    alt = json.dumps(output.metadata["image/png"]["alt"], ensure_ascii=False)
    return f"{FENCE}{{figure}} /figures/{name}.png\n:alt: {alt}\n{FENCE}"


def boxed(ours, text, place=""):
    """A claim in a box of its verdict, with a place to link to."""
    kind = KINDS[ours["claim"]["verdict"]]
    target = f"({place})=\n" if place else ""
    return f"{target}{FENCE}{{container}} claim {kind}\n{text}\n{FENCE}"


def front(readme, overview):
    """What README says of the report, to where it tells of the package, with the
    numbers of `overview`, the executed page that drew its figure, or None.
    """
    numbers = dict(rules.numbers(overview)) if overview else None
    text = machines.renewed(readme, numbers).partition("\n## Use it")[0]
    return text if overview else text.replace(HEADLINE, f"{STORED}\n\n{HEADLINE}")


def index(books, more, colab=""):
    """The first page: what README says of the report, the files of a class, every page
    with its sentence, and what executed them.
    """
    readme = (ROOT / "README.md").read_text("utf-8")
    parts = [front(readme, books.get(OVERVIEW)), CLASS]
    if colab:
        links = (f"[{Path(n).name}]({colab}/{Path(n).name})" for n in standalone.COLAB)
        parts[-1] += f" Open in Colab: {', '.join(links)}."
    parts.append("## Pages")
    for name, book in books.items():
        bold = re.search(r"\*\*(.+?)\*\*", book.cells[0].source, re.DOTALL)
        sentence = rules.unlinked(" ".join(bold[1].split())) if bold else ""
        title = rules.head(name, book)
        parts.append(f"- [{title}](notebooks/{name}.ipynb)\n\n  {sentence}")
    parts.append(f"{verdicts(books.values())} [The list](claims.md).")
    ran = Counter(environment(book) for book in books.values())
    runs = [f"- {machine}: {count} of the pages" for machine, count in ran.items()]
    parts += ["Executed on", "\n".join(runs)]
    pages = [f"{rules.head(n, book)} <notebooks/{n}>" for n, book in books.items()]
    for title, names in (("Pages", pages), ("More", more)):
        lines = [f"{FENCE}{{toctree}}", ":hidden:", f":caption: {title}", "", *names]
        parts.append("\n".join([*lines, FENCE]))
    return "\n\n".join(parts)


def environment(book):
    """What `nb.environment` told of the machine that executed a notebook, and when."""
    data = (output.get("data", {}) for _, output, _ in rules.outputs(book))
    texts = "\n".join(one.get("text/markdown", "") for one in data)
    lines = re.findall(r"^- (?:Machine|Preset): (.+)$", texts, re.MULTILINE)
    return "; ".join(lines) or "a machine that is not named"


def claims(books):
    """The page of claims: what each says on its page, with a link to it."""
    parts = ["# Claims", verdicts(books.values())]
    for name, book in books.items():
        shown = [(out, ours) for _, out, ours in rules.outputs(book) if "claim" in ours]
        parts += [f"## {rules.head(name, book)}"] if shown else []
        for number, (output, ours) in enumerate(shown, start=1):
            text = " ".join(output.data["text/markdown"].lstrip("> ").split())
            link = f"[On its page](#claim-{name}-{number})"
            parts.append(boxed(ours, f"{text} {link}"))
    return "\n\n".join(parts)


if __name__ == "__main__":
    make(*map(Path, sys.argv[1:3]), *sys.argv[3:])

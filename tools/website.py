"""The site: executed notebooks, documents and generated pages, put together for Sphinx.

Raw HTML in Markdown is text (page/conf.py); tables of outputs are written anew here.
"""

import json
import re
import shutil
import tempfile
from base64 import b64decode
from collections import Counter
from pathlib import Path

import bs4
import notebook_rules as rules
import standalone
from notebook_rules import ROOT, ReportError
from pybtex.database import parse_file
from sphinx.cmd.build import build_main

from lstm_report import machines

CONF = Path(__file__).with_name("page")
WORKS = ROOT / "notebooks" / "references.bib"
PLACES = {"doi": "https://doi.org/", "eprint": "https://arxiv.org/abs/", "url": ""}
FENCE = "`" * 8
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)[./]*([^)\s#]+)(#[^)]*)?\)")
DETAILS = re.compile(r"<details>\s*<summary>(.*?)</summary>(.*?)</details>", re.DOTALL)
KEPT = "table", "thead", "tbody", "tr", "th", "td", "colspan", "rowspan", "scope"
WORKS_PAGE = "# Bibliography\n\n```{bibliography}\n:all:\n:list: enumerated\n```\n"
API = "API\n===\n\n.. automodule:: lstm_kernels\n   :members:\n\n"
API += ".. autoclass:: lstm_kernels.versions.base.Network\n   :members:\n"


def make(built, site):
    """Write the site of the executed notebooks `built` to the folder `site`."""
    if not built:
        raise ReportError(f"{site}: no notebook is executed")
    books = {path.stem: rules.read(path) for path in built}
    found = [*ROOT.glob("*.md"), *ROOT.glob("data/*.md"), *WORKS.parent.glob("*.md")]
    found = {_name(path.relative_to(ROOT).as_posix()): path for path in sorted(found)}
    del found["README.md"]
    names = {*found, *(path.name for path in built)}
    texts = {
        name: linked(path.read_text("utf-8"), names) for name, path in found.items()
    }
    texts |= {"claims.md": linked(claims(books), names)}
    texts |= {"index.md": index(books, [*found])}
    texts |= {"results.md": machines.page(), "works.md": WORKS_PAGE, "api.rst": API}
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "source"), Path(folder, "site")
        standalone.make(source / "anywhere", built)
        for name in ("data", "executed", "figures"):
            (source / name).mkdir()
        for path in built:
            shutil.copy(path, source / "executed")
            book = page(path.stem, books[path.stem], names, source / "figures")
            texts[path.name] = rules.dumps(book)
        for name, text in texts.items():
            (source / name).write_text(text, "utf-8")
        words = ["-c", str(CONF), "-d", f"{folder}/trees", "-q", "-W", "--keep-going"]
        if build_main([*words, str(source), str(out)]):
            raise ReportError("Sphinx did not build the site")
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(out, site)


def _name(place):
    return place.removeprefix("notebooks/")


def linked(text, names):
    """Markdown whose links to files lead to pages of `names`; a link to what is not on
    the site is its text.
    """

    def link(match):
        name = _name(match[2])
        return f"[{match[1]}](/{name}{match[3] or ''})" if name in names else match[1]

    return LINK.sub(link, text)


def page(name, book, names, figures):
    """A notebook as Sphinx reads it: code that prepares or only says is folded, so are
    solutions; works of references.bib are linked; outputs are as `shown`.
    """
    works, sections, count = cited(), False, 0
    for cell in book.cells:
        if cell.cell_type == "code":
            starts = not sections and "import" in cell.source
            says = cell.source.startswith(("nb.say(", "nb.claim("))
            if "parameters" in rules.tags(cell) or starts or says:
                cell.metadata["tags"] = [*rules.tags(cell), "hide-input"]
            for output in cell.outputs:
                ours = output.get("metadata", {}).get(rules.OURS, {})
                count += "claim" in ours
                show(output, ours, f"claim-{name}-{count}", figures)
                if "text/markdown" in output.get("data", {}):
                    text = linked(output.data["text/markdown"], names)
                    output.data["text/markdown"] = text
        else:
            sections |= "\n## " in f"\n{cell.source}"
            text = DETAILS.sub(rf"{FENCE}{{dropdown}} \1\n\2\n{FENCE}", cell.source)
            text = re.sub(r"\*([^*\n]+)\*", lambda title: work(title, works), text)
            cell.source = linked(text, names)
    book.cells[0].source += (
        f"\n\nDownload [this page as a notebook](path:executed/{name}.ipynb), or as "
        f"[one file that runs anywhere](path:anywhere/{name}.ipynb)."
    )
    return book


def show(output, ours, claim, figures):
    """Make an output what Sphinx can show: a figure with its alternative text, a claim
    with a place to link to, a table of nothing but text.
    """
    data = output.get("data", {})
    if "image/png" in data:
        name = ours.get("figure", claim)
        (figures / f"{name}.png").write_bytes(b64decode(data["image/png"]))
        alt = json.dumps(output.metadata["image/png"]["alt"], ensure_ascii=False)
        options = f":alt: {alt}\n:figclass: {ours.get('interactive', 'still')}"
        figure = f"{FENCE}{{figure}} figures/{name}.png\n{options}\n{FENCE}"
        output.data = {"text/markdown": figure}
    elif "claim" in ours:
        data["text/markdown"] = f"({claim})=\n{data['text/markdown']}"
    elif "text/html" in data:
        soup = bs4.BeautifulSoup(data["text/html"], "html.parser")
        for part in soup.find_all(["style", "script"]) + soup.find_all(string=_comment):
            part.extract()
        for tag in soup.find_all(True):
            tag.attrs = {key: tag[key] for key in tag.attrs if key in KEPT}
            if tag.name not in KEPT:
                tag.unwrap()
            elif tag.name == "th" and not tag.text.strip():
                tag.name = "td"  # which heads nothing
        data["text/html"] = str(soup).replace("<table>", '<table class="table">')


def _comment(text):
    return isinstance(text, bs4.Comment)


def cited():
    """Where each work of references.bib is on the net, or nothing, by the letters of
    its title.
    """
    found = {}
    for entry in parse_file(WORKS).entries.values():
        places = [
            PLACES[key] + entry.fields[key] for key in PLACES if key in entry.fields
        ]
        found[letters(entry.fields["title"])] = (*places, "")[0]
    return found


def letters(text):
    return re.sub(r"\W", "", text.casefold())


def work(title, works):
    """A title in italics, linked where it is one of `works`."""
    place = works.get(letters(title[1]))
    return f"[{title[0]}]({place})" if place else title[0]


def head(name, book):
    """The title of a page, after its number."""
    title = book.cells[0].source.partition("\n")[0].lstrip("# ")
    return f"{name[:2]} {title}" if name[0].isdigit() else title


def index(books, documents):
    """The first page: every page with its sentence, and what executed them."""
    parts = ["# Parallel LSTMs"]
    for name, book in books.items():
        bold = re.search(r"\*\*(.+?)\*\*", book.cells[0].source, re.DOTALL)
        sentence = " ".join(bold[1].split()) if bold else ""
        parts.append(f"- [{head(name, book)}]({name}.ipynb)\n\n  {sentence}")
    parts += ["## Claims", f"{rules.counted(books.values())}: [the list](claims.md)."]
    ran = Counter(rules.environment(book) for book in books.values())
    parts += ["## Executed on"]
    parts += [f"- {machines.plain(one)}: {number} pages" for one, number in ran.items()]
    pages = [f"{head(name, book)} <{name}>" for name, book in books.items()]
    for name, of in {
        "Pages": pages,
        "More": ["claims", "results", *documents, "works", "api"],
    }.items():
        lines = ["```{toctree}", ":hidden:", f":caption: {name}", "", *of, "```"]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def claims(books):
    """The page of claims: sentence, verdict and numbers, with a link to each."""
    parts = ["# Claims", f"{rules.counted(books.values())}."]
    for name, book in books.items():
        found = rules.claims(book)
        parts += [f"## {head(name, book)}"] if found else []
        for number, claim in enumerate(found, start=1):
            words = {key: " ".join(str(text).split()) for key, text in claim.items()}
            run = words.get("recorded")
            run = f" in the recorded run of {run}" if run else ""
            link = f"[{words['sentence']}](#claim-{name}-{number})"
            more = f" ({words['numbers']})" if words["numbers"] else ""
            more += f" {words['why']}" if "why" in words else ""
            more += (
                f" Disturbed run: {words['disturbed']}." if "disturbed" in words else ""
            )
            parts.append(f"- **{words['verdict']}{run}**: {link}{more}")
    return "\n\n".join(parts)

"""The site: executed notebooks, documents and generated pages, put together for Sphinx.

Markup in Markdown is text (page/conf.py); tables of outputs are written anew here; and
browsers run no script that stands in a page's own text (`guarded`).
"""

import json
import re
import shutil
import tempfile
from base64 import b64decode, b64encode
from collections import Counter
from hashlib import sha256
from pathlib import Path

import bs4
import notebook_rules as rules
import standalone
from interrupts import told_as
from notebook_rules import ROOT, ReportError
from pybtex.database import parse_file
from sphinx.cmd.build import build_main
from summary import verdicts

from lstm_kernels.errors import counted
from lstm_report import machines

CONF = Path(__file__).with_name("page")
WORKS = ROOT / "notebooks" / "references.bib"
PLACES = {"doi": "https://doi.org/", "eprint": "https://arxiv.org/abs/", "url": ""}
# The page that drew README's figure and told the numbers of its headline.
OVERVIEW, HEADLINE = "00_overview", "<!-- end of headline -->"
STORED = "Figure and sentence are those of the stored run."
FENCE = "`" * 8
TABLE = '<table class="table dataframe">'
DETAILS = re.compile(r"<details>\s*<summary>(.*?)</summary>(.*?)</details>", re.DOTALL)
TAGS = "table", "caption", "thead", "tbody", "tr", "th", "td"
SPANS = "colspan", "rowspan", "scope"
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)]+)\)\n*")
# A figure that a text names; not in bold, as below itself, nor in a link or in code.
NUMBER = re.compile(r"(?<![*\[`])\bFigure (\w{1,2}\.\d+)(?![\]`])")
# A class of the site's style for each verdict.
KINDS = {"Held": "held", "Did not hold": "failed", "Not measured": "open"}
WHOLE = ":all:\n:list: enumerated"
BIBLIOGRAPHY = f"# Bibliography\n\n{FENCE}{{bibliography}}\n{WHOLE}\n{FENCE}"
API = """API
===

.. automodule:: lstm_kernels
   :members:

.. autoclass:: lstm_kernels.versions.base.Network
   :members:
"""
# The theme and MathML have styles in their tags.
POLICY = "default-src 'none'; script-src 'self'{}; style-src 'self' 'unsafe-inline'; "
POLICY += "img-src 'self' data:; font-src 'self'; connect-src 'self'; "
POLICY += "form-action 'self'; base-uri 'none'"


def make(built, site):
    """Write the site of the executed notebooks `built` to the folder `site`."""
    if not built:
        raise ReportError(f"{site}: no notebook is executed")
    books = {path.stem: rules.read(path) for path in built}
    found = [*ROOT.glob("*.md"), *ROOT.glob("data/*.md"), *WORKS.parent.glob("*.md")]
    texts = {one.relative_to(ROOT).as_posix(): one.read_text("utf-8") for one in found}
    texts = {name.removeprefix("notebooks/"): text for name, text in texts.items()}
    names = [*sorted({*texts} - {"README.md"}), *(path.name for path in built)]
    more = {"claims.md": claims(books), "results.md": machines.page()}
    more |= {"bibliography.md": BIBLIOGRAPHY, "api.rst": API}
    readme = front(texts.pop("README.md"), books.get(OVERVIEW))
    texts |= more | {"index.md": index(books, [*more, *sorted(texts)], readme)}
    texts = {name: rules.linked(text, names) for name, text in texts.items()}
    places = {
        number[1]: f"figure-{figure.name}"
        for book in books.values()
        for figure in rules.figures(book)
        if (number := re.match(r"\*\*Figure (\w+\.\d+)\.", figure.told))
    }
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "source"), Path(folder, "site")
        for name in ("data", "executed", "figures"):
            (source / name).mkdir(parents=True)
        for path in ROOT.glob("figures/*.png"):  # what README shows
            shutil.copy(path, source / "figures")
        standalone.make(source / "anywhere", built)
        for path in built:
            shutil.copy(path, source / "executed")
            book = page(path.stem, books[path.stem], names, source / "figures", places)
            texts[path.name] = rules.dumps(book)
        for name, text in texts.items():
            (source / name).write_text(text, "utf-8")
        for path in sphinx(source, out):
            path.write_text(guarded(path.read_text("utf-8")), "utf-8")
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(out, site)


def sphinx(source, out):
    """Build the pages of a folder; their paths."""
    trees = f"{out}-trees"
    words = ["-c", str(CONF), "-d", trees, "-q", "-W", "--keep-going"]
    interrupts = []

    def interrupt(*_):  # Sphinx catches what it raises
        interrupts.append(True)
        raise KeyboardInterrupt

    with told_as(interrupt):
        failed = build_main([*words, str(source), str(out)])
    if interrupts:
        raise KeyboardInterrupt
    if failed:
        raise ReportError("Sphinx did not build the site")
    return [path for path in out.rglob("*.html") if "_static" not in path.parts]


def guarded(text):
    """A page with the policy that browsers hold its content to: of scripts only files
    of the site run, and those that the theme writes before the article.
    """
    before = bs4.BeautifulSoup(text.partition("<article")[0], "html.parser")
    scripts = (one.text.encode() for one in before.find_all("script", src=False))
    hashes = (b64encode(sha256(one).digest()).decode() for one in scripts)
    policy = POLICY.format("".join(f" 'sha256-{one}'" for one in hashes))
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return text.replace("<head>", f"<head>\n    {meta}", 1)


def page(name, book, names, figures, places):
    """A notebook as Sphinx reads it: parameters and what is tagged hide-input are
    folded, so are solutions; works of references.bib are linked, and figures by their
    numbers in `places`; outputs are as `show` makes them.
    """
    count = 0
    book.metadata = rules.METADATA  # other entries would be settings of the page
    for cell in book.cells:
        tags = rules.tags(cell)
        cell.metadata = {"tags": tags}
        if cell.cell_type == "code":
            if {"parameters", "hide-input"} & {*tags}:
                cell.metadata["tags"] = sorted({*tags, "hide-input"})
                bar = "code_prompt_show", "code_prompt_hide"
                cell.metadata["mystnb"] = dict.fromkeys(bar, folded(cell))
        else:
            text = DETAILS.sub(rf"{FENCE}{{dropdown}} \1\n\2\n{FENCE}", cell.source)
            cell.source = rules.linked(numbered(cited(text), places), names)
    for _, output, ours in rules.outputs(book):
        count += "claim" in ours
        show(output, ours, f"claim-{name}-{count}", figures)
        if text := output.get("data", {}).get("text/markdown"):
            text = text if "figure" in ours else numbered(text, places)
            output.data["text/markdown"] = rules.linked(text, names)
    book.cells[0].source += (
        f"\n\nDownload [this page as a notebook](path:executed/{name}.ipynb), or as "
        f"[one file that runs anywhere](path:anywhere/{name}.ipynb)."
    )
    return book


def folded(cell):
    """What the bar of a folded cell says: its title, else what it defines."""
    if "parameters" in rules.tags(cell):
        return "Code: the size of the run"
    if title := re.match(r"# @title (.+)", cell.source):
        return f"Code: {title[1]}"
    names = re.findall(r"^(?:def|class) (\w+)", cell.source, re.MULTILINE)
    return f"Code: {', '.join(names[:3])}" if names else "Code"


def numbered(text, places):
    """Markdown in which figures that are named lead to where they are."""
    return NUMBER.sub(
        lambda m: f"[{m[0]}](#{places[m[1]]})" if m[1] in places else m[0], text
    )


def show(output, ours, claim, figures):
    """Make an output what Sphinx can show: a figure with its alternative text, a claim
    with a place to link to, a table of nothing but text, else Markdown or text.
    """
    data = output.get("data", {})
    known = "image/png", "text/html", "text/markdown", "text/plain"
    for kind in [kind for kind in data if kind not in known]:
        del data[kind]
    if "image/png" in data:
        name = ours.get("figure", claim)
        (figures / f"{name}.png").write_bytes(b64decode(data["image/png"]))
        told = {"alt": output.metadata["image/png"]["alt"]}
        told["figclass"] = ours.get("interactive", "still")
        quoted = {key: json.dumps(told[key], ensure_ascii=False) for key in told}
        options = "\n".join(f":{key}: {value}" for key, value in quoted.items())
        figure = f"{FENCE}{{figure}} figures/{name}.png\n{options}\n{FENCE}"
        place = f"(figure-{name})=\n" if "figure" in ours else ""
        output.data = {"text/markdown": f"{place}{figure}"}
    elif "claim" in ours:
        output.data = {"text/markdown": boxed(ours, data["text/markdown"], claim)}
    elif "text/html" in data:
        soup = bs4.BeautifulSoup(data["text/html"], "html.parser")
        notes = soup.find_all(string=lambda text: isinstance(text, bs4.Comment))
        for part in [*soup.find_all(["style", "script"]), *notes]:
            part.extract()
        for tag in soup.find_all(True):
            tag.attrs = {key: tag[key] for key in tag.attrs if key in SPANS}
            if tag.name not in TAGS:
                tag.unwrap()
            elif tag.name == "th" and not tag.text.strip():
                tag.name = "td"  # which heads nothing
        data["text/html"] = str(soup).replace("<table>", TABLE)


def boxed(ours, text, place=""):
    """A claim in a box of its verdict, with a place to link to."""
    kind = KINDS.get(ours["claim"]["verdict"], "open")
    target = f"({place})=\n" if place else ""
    return f"{target}{FENCE}{{container}} claim {kind}\n{text}\n{FENCE}"


def works():
    """Where each work of references.bib is on the net, or None, by its title."""
    for entry in parse_file(WORKS).entries.values():
        known = entry.fields
        found = [PLACES[key] + known[key] for key in PLACES if key in known]
        title = re.sub(r"[{}]", "", entry.fields["title"]).replace("--", "–")
        yield title, next(iter(found), None)


def cited(text):
    """Markdown whose titles of works, in italics, are linked to where they are."""
    for title, place in works():
        named = re.compile(rf"\*{re.escape(title)}\*", re.IGNORECASE)
        text = named.sub(rf"[\g<0>]({place})", text) if place else text
    return text


def front(readme, overview):
    """What README says of the report, to where it tells of the package: with numbers of
    `overview`, the executed page that drew its figure, or None, and without pictures
    that are not here.
    """
    told = dict(rules.numbers(overview)) if overview else None
    text = machines.renewed(readme, told).partition("\n## Use it")[0].strip()
    text = text if overview else text.replace(HEADLINE, f"{STORED}\n\n{HEADLINE}")
    here = {f"figures/{path.name}" for path in ROOT.glob("figures/*.png")}
    return PICTURE.sub(lambda m: m[0] if m[1] in here else "", text)


def index(books, more, readme):
    """The first page: what `front` says of the report, every page with its sentence,
    and what executed them.
    """
    parts = [readme, "## Pages"]
    for name, book in books.items():
        bold = re.search(r"\*\*(.+?)\*\*", book.cells[0].source, re.DOTALL)
        sentence = " ".join(bold[1].split()) if bold else ""
        parts.append(f"- [{rules.head(name, book)}]({name}.ipynb)\n\n  {sentence}")
    parts.append(f"{verdicts(books.values())} [The list](claims.md).")
    ran = Counter(rules.environment(book) for book in books.values())
    told = [f"- {machines.plain(k)}: {counted(n, 'page')}" for k, n in ran.items()]
    parts += ["Executed on", "\n".join(told)]
    pages = [f"{rules.head(name, book)} <{name}>" for name, book in books.items()]
    for title, names in (("Pages", pages), ("More", more)):
        lines = [f"{FENCE}{{toctree}}", ":hidden:", f":caption: {title}", "", *names]
        parts.append("\n".join([*lines, FENCE]))
    return "\n\n".join(parts)


def claims(books):
    """The page of claims: what each says on its page, with a link to it."""
    parts = ["# Claims", verdicts(books.values())]
    for name, book in books.items():
        told = [(out, ours) for _, out, ours in rules.outputs(book) if "claim" in ours]
        parts += [f"## {rules.head(name, book)}"] if told else []
        for number, (output, ours) in enumerate(told, start=1):
            text = " ".join(output.data["text/markdown"].lstrip("> ").split())
            link = f"[On its page](#claim-{name}-{number})"
            parts.append(boxed(ours, f"{text} {link}"))
    return "\n\n".join(parts)

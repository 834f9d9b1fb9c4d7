"""HTML pages of executed notebooks that need no network: formulas as MathML, images inside."""

import datetime
import importlib.metadata
import os
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import bs4
import jinja2
import latex2mathml.converter
import notebook_rules as rules
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from notebook_rules import ReportError
from pygments.formatters import HtmlFormatter

TEMPLATES = Path(__file__).with_name("page")
ARITY = {
    **dict.fromkeys(("mfrac", "mroot", "msub", "msup", "mover", "munder"), 2),
    **dict.fromkeys(("msubsup", "munderover"), 3),
}


@dataclass
class Page:
    """One notebook's page, and what the index says about it; texts but for `name` are HTML."""

    name: str
    title: str
    summary: str
    body: str
    contents: list[tuple[str, str]]  # the sections: id and heading
    claims: list[dict]  # id, sentence, verdict, numbers, perhaps disturbed
    preset: str | None
    seconds: float
    finished: str


def formula(latex: str, display: str = "inline") -> str:
    """`latex` as MathML, or ReportError with its source."""
    # The converter knows align* but not aligned, which is the same inside a formula.
    source = latex.strip().replace("{aligned}", "{align*}")
    try:
        mathml = latex2mathml.converter.convert(source, display=display)
        _check(ElementTree.fromstring(mathml))
    except Exception as error:  # the converter raises a dozen kinds, among them IndexError
        reason = f"{type(error).__name__} {error}".strip()
        raise ReportError(f"formula does not convert ({reason}): {latex.strip()}") from error
    return mathml


def _check(element) -> None:
    """The converter passes on what it does not know: unknown commands, a missing argument."""
    tag = element.tag.rsplit("}", 1)[-1]
    if tag in ARITY and len(element) != ARITY[tag]:
        raise ValueError(f"{tag} has {len(element)} arguments, wants {ARITY[tag]}")
    if tag != "mtext" and "\\" in (element.text or ""):
        raise ValueError(f"unknown command {element.text}")
    if element.get("linebreak") == "newline":
        raise ValueError("a line break outside an environment")
    for child in element:
        _check(child)


class Renderer(IPythonRenderer):
    """Markdown to HTML: formulas become MathML, local images data, links lead to pages."""

    def __init__(self, notebooks: Path, pages: Path, **options):
        super().__init__(escape=False, embed_images=True, path=str(notebooks), **options)
        self.notebooks, self.pages = notebooks, pages

    def inline_math(self, body: str) -> str:
        return formula(body)

    def block_math(self, body: str) -> str:
        return f'<span class="formula">{formula(body, "block")}</span>'

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(rf"\begin{{{name}}}{body}\end{{{name}}}")

    def link(self, text: str, url: str, title: str | None = None) -> str:
        parts = urlsplit(url)
        if not parts.scheme and not parts.netloc and parts.path:
            path = self.notebooks / parts.path
            if not path.exists():
                raise ReportError(f"link to {url}: no such file")
            beside = path.parent.resolve() == self.notebooks.resolve()
            if beside and (self.pages.parent / path.name).exists():  # it has a page too
                url = f"{path.stem}.html"
            else:
                url = Path(os.path.relpath(path, self.pages)).as_posix()
            url += f"#{parts.fragment}" if parts.fragment else ""
        return super().link(text, url, title)


class Exporter(HTMLExporter):
    """nbconvert's exporter with our template and our markdown."""

    def __init__(self, notebooks: Path, pages: Path):
        self.renderer = Renderer(notebooks, pages, anchor_link_text="#")
        super().__init__(
            extra_loaders=[jinja2.FileSystemLoader(TEMPLATES)],
            template_name="basic",
            template_file="notebook.html.j2",
            exclude_input_prompt=True,
            exclude_output_prompt=True,
        )

    def default_filters(self):
        yield from super().default_filters()
        yield "markdown2html", self.markdown
        yield "latex2mathml", self.latex_output

    def markdown(self, source: str) -> str:
        return MarkdownWithMath(renderer=self.renderer).render(source)

    def inline(self, source: str) -> str:
        """A sentence, without the paragraph around it."""
        return self.markdown(source).strip().removeprefix("<p>").removesuffix("</p>")

    def latex_output(self, source: str) -> str:
        return formula(source.strip().strip("$"), "block")


def render(path: Path, notebooks: Path, pages: Path) -> Page:
    """The page of the executed notebook at `path`; its links are relative to `notebooks`."""
    notebook = rules.read(path)
    problems = rules.problems_of_execution(notebook) + rules.problems_of_images(notebook)
    if problems:
        raise ReportError("\n  ".join([path.name, *problems]))
    exporter = Exporter(notebooks, pages)
    title, summary = _title_and_summary(notebook, path)
    shown = rules.normalised(notebook, name=path.name)
    claims = rules.claims(shown)
    for number, claim in enumerate(claims, start=1):
        claim["id"] = f"claim-{number}"
    for number, cell in rules.numbered(shown):  # first alone: an error then names its cell
        cell.metadata["fold"] = rules.only_says(cell)
        if cell.cell_type == "markdown":
            try:
                exporter.markdown(cell.source)
            except ReportError as error:
                raise ReportError(f"{path.name}, cell {number}: {error}") from error
    about = notebook.metadata.get("papermill", {})
    body = exporter.from_notebook_node(shown)[0]
    return Page(
        name=f"{path.stem}.html",
        title=title,
        summary=exporter.inline(summary),
        body=body,
        contents=contents(body),
        claims=[
            claim | {name: exporter.inline(claim[name]) for name in ("sentence", "numbers")}
            for claim in claims
        ],
        preset=rules.preset(notebook),
        seconds=about.get("duration") or 0.0,
        finished=about.get("end_time") or "",
    )


def contents(body: str) -> list[tuple[str, str]]:
    """The sections of a page: the id and the heading of each."""
    found = []
    for heading in bs4.BeautifulSoup(body, "html.parser").find_all("h2", id=True):
        for anchor in heading.select(".anchor-link"):
            anchor.decompose()
        found.append((heading["id"], heading.decode_contents()))
    return found


def _title_and_summary(notebook, path: Path) -> tuple[str, str]:
    text = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    title = re.search(r"^# +(.+)$", text, re.MULTILINE)
    if title is None:
        raise ReportError(f"{path.name}: no first heading ('# ...')")
    summary = re.compile(r"\*\*(.+?)\*\*", re.DOTALL).search(text, title.end())
    if summary is None:
        raise ReportError(f"{path.name}: no claim (a bold sentence) after the title")
    return title[1].strip(), " ".join(summary[1].split())


def check_page(name: str, page: str) -> None:
    """A page that would fetch anything, or shows an image without words, is an error."""
    soup = bs4.BeautifulSoup(page, "html.parser")
    for tag in soup.find_all(["script", "iframe", "object", "embed"]):
        raise ReportError(f"{name}: <{tag.name}> is not allowed: {str(tag)[:80]}")
    for tag in soup.find_all(["img", "link", "source", "audio", "video", "image", "use", "input"]):
        named = ("src", "href", "xlink:href", "srcset", "poster")
        for source in [tag[key] for key in named if tag.get(key)]:
            if not source.startswith(("data:", "#")):
                raise ReportError(f"{name}: <{tag.name}> fetches {source!r}, want it in the page")
        if tag.name == "img" and not tag.get("alt", "").strip():
            raise ReportError(f"{name}: image without alt text")
    styles = [tag.text for tag in soup("style")] + [tag["style"] for tag in soup(style=True)]
    if re.search(r"@import|url\(\s*['\"]?(?!data:|#|\s|['\"])", " ".join(styles)):
        raise ReportError(f"{name}: a style fetches a file, want it in the page")


def duration(seconds: float) -> str:
    """`40 s`, `12 min`: for readers."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def make(built: list[Path], notebooks: Path, pages: Path, about: str | None = None) -> None:
    """Write one page for each notebook of `built` and index.html into the folder `pages`.

    about: the machine in words; None is this one. A page of another notebook is removed.
    """
    from lstm_kernels.bench import provenance, results  # slow to import

    if not built:
        raise ReportError(f"{pages.parent}: no notebook is executed, run `make report`")
    found = [render(path, notebooks, pages) for path in built]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True
    )
    environment.filters["duration"] = duration
    style = (TEMPLATES / "style.css").read_text() + HtmlFormatter().get_style_defs(".highlight")
    template, texts = environment.get_template("page.html.j2"), {}
    for before, page, after in zip([None, *found], found, [*found[1:], None], strict=False):
        texts[page.name] = template.render(page=page, style=style, previous=before, next=after)
    texts["index.html"] = environment.get_template("index.html.j2").render(
        title=importlib.metadata.metadata("lstm-kernels")["Summary"],
        pages=found,
        verdicts=Counter(claim["verdict"] for page in found for claim in page.claims),
        style=style,
        presets=", ".join(sorted({str(page.preset) for page in found})),
        date=max(page.finished for page in found)[:10] or str(datetime.date.today()),
        machine=about or results.label(provenance.machine()),
        seconds=sum(page.seconds for page in found),
    )
    for name, text in texts.items():
        check_page(name, text)
    rules.write_all({pages / name: text.encode() for name, text in texts.items()})
    for path in pages.glob("*.html"):
        if path.name not in texts:
            path.unlink()

"""HTML pages of executed notebooks that need no network: formulas as MathML, images inside."""

import base64
import datetime
import html
import importlib.metadata
import mimetypes
import os
import re
import shutil
import xml.etree.ElementTree as ElementTree
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
    """One notebook's page, and what the index says about it."""

    title: str
    claim: str  # HTML
    name: str
    body: str
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
        super().__init__(escape=False, **options)
        self.notebooks, self.pages = notebooks, pages

    def inline_math(self, body: str) -> str:
        return formula(body)

    def block_math(self, body: str) -> str:
        return f'<span class="formula">{formula(body, "block")}</span>'

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(rf"\begin{{{name}}}{body}\end{{{name}}}")

    def image(self, text: str, url: str, title: str | None = None) -> str:
        if not text.strip():
            raise ReportError(f"image without alt text: {url}")
        path = self.notebooks / url
        if not path.is_file():
            raise ReportError(f"image {url}: no such file beside the notebooks")
        kind = mimetypes.guess_type(path.name)[0]
        data = base64.b64encode(path.read_bytes()).decode()
        return f'<img src="data:{kind};base64,{data}" alt="{html.escape(text)}">'

    def link(self, text: str, url: str, title: str | None = None) -> str:
        parts = urlsplit(url)
        if not parts.scheme and not parts.netloc and parts.path:
            path = self.notebooks / parts.path
            if not path.exists():
                raise ReportError(f"link to {url}: no such file")
            if path.parent.resolve() == self.notebooks.resolve() and path.suffix == ".ipynb":
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

    def latex_output(self, source: str) -> str:
        return formula(source.strip().strip("$"), "block")


def render(path: Path, notebooks: Path, pages: Path) -> Page:
    """The page of the executed notebook at `path`; its links are relative to `notebooks`."""
    notebook = rules.read(path)
    problems = rules.problems_of_execution(notebook) + rules.problems_of_images(notebook)
    if problems:
        raise ReportError("\n  ".join([path.name, *problems]))
    exporter = Exporter(notebooks, pages)
    title, claim = _title_and_claim(notebook, path)
    shown = rules.normalised(notebook, name=path.name)
    for number, cell in rules.numbered(shown):  # first alone: an error then names its cell
        if cell.cell_type == "markdown":
            try:
                exporter.markdown(cell.source)
            except ReportError as error:
                raise ReportError(f"{path.name}, cell {number}: {error}") from error
    about = notebook.metadata.get("papermill", {})
    return Page(
        title=title,
        claim=exporter.markdown(claim).removeprefix("<p>").removesuffix("</p>\n"),
        name=f"{path.stem}.html",
        body=exporter.from_notebook_node(shown)[0],
        preset=rules.preset(notebook),
        seconds=about.get("duration") or 0.0,
        finished=about.get("end_time") or "",
    )


def _title_and_claim(notebook, path: Path) -> tuple[str, str]:
    text = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    title = re.search(r"^# +(.+)$", text, re.MULTILINE)
    if title is None:
        raise ReportError(f"{path.name}: no first heading ('# ...')")
    claim = re.compile(r"\*\*(.+?)\*\*", re.DOTALL).search(text, title.end())
    if claim is None:
        raise ReportError(f"{path.name}: no claim (a bold sentence) after the title")
    return title[1].strip(), " ".join(claim[1].split())


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


def machine() -> dict:
    """The machine the notebooks ran on: the one that makes the pages."""
    from lstm_kernels.bench import provenance

    return provenance.machine()


def machine_in_words(about: dict) -> str:
    """`AMD EPYC 9B14, 2 cores` from the record of a machine; what it lacks is left out."""
    words = [str(about[key]) for key in ("cpu",) if about.get(key)]
    words += [f"{about[key]} {key}" for key in ("cores",) if about.get(key)]
    return ", ".join(words) or "a machine that its record does not describe"


def duration(seconds: float) -> str:
    """`40 s`, `12 min`: for readers."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def make(built: list[Path], notebooks: Path, pages: Path, about: dict | None = None) -> None:
    """Write one page for each notebook of `built` and index.html into the folder `pages`."""
    missing = [path.name for path in built if not path.exists()]
    if missing:
        raise ReportError(f"not executed: {', '.join(missing)}")
    found = [render(path, notebooks, pages) for path in built]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True
    )
    environment.filters["duration"] = duration
    style = (TEMPLATES / "style.css").read_text() + HtmlFormatter().get_style_defs(".highlight")
    texts = {}
    for at, page in enumerate(found):
        around = {
            "previous": found[at - 1] if at else None,
            "next": found[at + 1] if at + 1 < len(found) else None,
        }
        template = environment.get_template("page.html.j2")
        texts[page.name] = template.render(page=page, style=style, **around)
    texts["index.html"] = environment.get_template("index.html.j2").render(
        title=importlib.metadata.metadata("lstm-kernels")["Summary"],
        pages=found,
        style=style,
        presets=", ".join(sorted({str(page.preset) for page in found})),
        date=max(page.finished for page in found)[:10] or str(datetime.date.today()),
        machine=machine_in_words(machine() if about is None else about),
        seconds=sum(page.seconds for page in found),
    )
    for name, text in texts.items():
        check_page(name, text)
    # A folder of its own, swapped in whole: no page of a notebook that is gone stays behind.
    fresh = pages.with_name(f".{pages.name}.part")
    shutil.rmtree(fresh, ignore_errors=True)
    for name, text in texts.items():
        rules.write(fresh / name, text)
    shutil.rmtree(pages, ignore_errors=True)
    os.replace(fresh, pages)

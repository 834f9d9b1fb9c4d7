"""The site of executed notebooks: a folder of HTML pages that need no network and no
other file.
"""

import base64
import datetime
import hashlib
import importlib.metadata
import re
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
import notebook_rules as rules
import site_html
from nbconvert.exporters import HTMLExporter
from notebook_rules import ReportError
from site_html import check as check_page
from site_markdown import Names, Renderer, formula

TEMPLATES = Path(__file__).with_name("page")
HEADLINE = "00-factors"  # the figure that the index shows large


@dataclass
class Page:
    """One page, and what the index says about it; texts but for `name` and `title` are
    HTML.
    """

    name: str
    title: str
    summary: str
    body: str
    # The sections: id, heading and those below
    contents: list = field(default_factory=list)
    # Of notebook_rules.claims, with id and text
    claims: list[dict] = field(default_factory=list)
    # By name: src, alt, width, height
    pictures: dict[str, dict] = field(default_factory=dict)
    references: list[str] = field(default_factory=list)
    # What its interactive figures need
    scripts: list[str] = field(default_factory=list)
    preset: str | None = None
    seconds: int | None = None
    finished: str = ""

    @property
    def number(self) -> str:
        """`03` of `03_versions.html`, or nothing."""
        return re.match(r"\d*", self.name)[0]

    @property
    def verdicts(self) -> Counter:
        return Counter(claim["verdict"] for claim in self.claims)


class Exporter(HTMLExporter):
    """nbconvert's exporter with our template and our markdown."""

    def __init__(self, renderer: Renderer):
        self.renderer = renderer
        super().__init__(
            extra_loaders=[jinja2.FileSystemLoader(TEMPLATES)],
            template_name="basic",
            template_file="notebook.html.j2",
            exclude_input_prompt=True,
            exclude_output_prompt=True,
        )

    def default_filters(self):
        yield from super().default_filters()
        yield "markdown2html", self.renderer.markdown
        yield "latex2mathml", lambda source: formula(source.strip().strip("$"), "block")


def render(path: Path, notebooks: Path, names: Names | None = None) -> Page:
    """The page of the executed notebook at `path`; its links are relative to
    `notebooks`.

    names: the pages that links lead to; none without it.
    """
    notebook = rules.read(path)
    problems = rules.problems_of_execution(notebook) + rules.problems_of_images(
        notebook
    )
    if problems:
        raise ReportError("\n  ".join([path.name, *problems]))
    renderer = Renderer(notebooks, Names(notebooks) if names is None else names)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    title, summary = _title_and_summary("\n\n".join(cells), path)
    if not summary:
        raise ReportError(f"{path.name}: no claim (a bold sentence) after the title")
    shown = rules.normalised(notebook, name=path.name)
    claims = rules.claims(shown)
    for number, claim in enumerate(claims, start=1):
        claim["id"] = f"claim-{number}"
    pictures = _place_figures(shown, path.parent / "figures")
    folds = rules.folds(shown)
    # First alone: an error then names its cell
    for number, cell in rules.numbered(shown):
        cell.metadata["fold"] = folds.get(number)
        if cell.cell_type == "markdown":
            try:
                renderer.markdown(cell.source)
            except ReportError as error:
                raise ReportError(f"{path.name}, cell {number}: {error}") from error
    body = Exporter(renderer).from_notebook_node(shown)[0]
    for claim in claims:  # after the notebook is rendered: its metadata holds them too
        told = {name: renderer.inline(claim[name]) for name in ("sentence", "numbers")}
        claim |= {"text": claim["sentence"], **told}
    return _page(
        path,
        body,
        title=title,
        summary=renderer.inline(summary),
        claims=claims,
        pictures=pictures,
        preset=rules.preset(notebook),
        seconds=rules.seconds(notebook),
        finished=notebook.metadata.get("papermill", {}).get("end_time") or "",
    )


def render_text(path: Path, names: Names) -> Page:
    """The page of the Markdown file at `path`."""
    source, renderer = path.read_text(encoding="utf-8"), Renderer(path.parent, names)
    title, summary = _title_and_summary(source, path)
    try:
        body = f'<div class="text_cell_render">{renderer.markdown(source)}</div>'
    except ReportError as error:
        raise ReportError(f"{path.name}: {error}") from error
    page = _page(path, body, title=title, summary=renderer.inline(summary))
    page.name = names.of(path)
    return page


def _page(path: Path, body: str, **about) -> Page:
    check_page(path.name, body)
    soup = site_html.tidy(path.name, body)
    return Page(
        name=f"{path.stem}.html",
        body=soup.decode(),
        contents=site_html.contents(soup),
        references=site_html.references(soup),
        scripts=sorted(
            {tag["data-interactive"] for tag in soup.select("[data-interactive]")}
        ),
        **about,
    )


def _title_and_summary(text: str, path: Path) -> tuple[str, str]:
    """The first heading, and the first bold sentence after it, or nothing."""
    title = re.search(r"^# +(.+)$", text, re.MULTILINE)
    if title is None:
        raise ReportError(f"{path.name}: no first heading ('# ...')")
    summary = re.compile(r"\*\*(.+?)\*\*", re.DOTALL).search(text, title.end())
    return title[1].strip(), " ".join(summary[1].split()) if summary else ""


def _place_figures(notebook, folder: Path) -> dict[str, dict]:
    """Give every PNG its size, and put the SVG of the same drawing in its place; the
    figures.
    """
    found = {}
    for _, _, output in rules.outputs(notebook):
        png = output.get("data", {}).get("image/png")
        if not png:
            continue
        name = output.metadata.get(rules.OURS, {}).get("figure")
        kind, content = "image/png", base64.b64decode(png)
        about = {"alt": output.metadata[kind]["alt"]}
        if content[12:16] == b"IHDR":
            about["width"], about["height"] = struct.unpack(">II", content[16:24])
        drawn = folder / f"{name}.png"
        # Of another run, the drawing would not be that of the numbers beside it.
        if name and drawn.exists() and drawn.read_bytes() == content:
            svg = drawn.with_suffix(".svg").read_text(encoding="utf-8")
            points = re.search(
                r'<svg[^>]*?\bwidth="([\d.]+)pt" height="([\d.]+)pt"', svg
            )
            if points:
                kind, content = "image/svg+xml", svg.encode()
                about["width"], about["height"] = (
                    round(float(p) * 4 / 3) for p in points.groups()
                )
        about["src"] = f"data:{kind};base64,{base64.b64encode(content).decode()}"
        output.metadata["picture"] = about
        if name:
            found[name] = about
    return found


def duration(seconds: float) -> str:
    """`40 s`, `12 min`: for readers."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def sentence(text: str) -> str:
    """The first sentence."""
    return re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0]


def scripts(page: Page) -> list[str]:
    """The scripts of a page: the site's, and those of its interactive figures."""
    texts = []
    for name in ["site", *page.scripts]:
        path = TEMPLATES / f"{name}.js"
        if not path.exists():
            raise ReportError(
                f"{page.name}: interactive figure {name!r}: no script {path.name}"
            )
        texts.append(path.read_text(encoding="utf-8"))
        if "</script" in texts[-1].lower():
            raise ReportError(
                f"{path.name}: </script> ends it in the page, want it without"
            )
    return texts


def make(
    built: list[Path], notebooks: Path, pages: Path, about: str | None = None
) -> list[Page]:
    """Write one page for each notebook of `built` and each Markdown file of
    `notebooks`, with the index and the bibliography, into the folder `pages`; the pages
    of the notebooks.

    about: the machine in words; None is this one. Any other page in the folder is
    removed.
    """
    from lstm_report.measure import provenance, results  # slow to import

    if not built:
        raise ReportError(f"{pages}: no notebook is executed, run `make report`")
    documents = sorted(notebooks.glob("*.md"))
    names = Names(
        notebooks.parent, [*(notebooks / path.name for path in built), *documents]
    )
    found = [render(path, notebooks, names) for path in built]
    texts = {path.resolve(): render_text(path, names) for path in documents}
    while more := [
        path for path in names if path.suffix == ".md" and path not in texts
    ]:
        texts |= {path: render_text(path, names) for path in more}
    # One file of each notebook to run elsewhere, where `report.py html` has put them.
    files = {
        path.with_suffix(".html").name: path
        for path in (pages / "files").glob("*.ipynb")
    }
    # Without its clock, which is not that of the runs.
    machine = about or results.label(provenance.machine() | {"clock_ghz": None})
    written = _fill(found, list(texts.values()), machine, files)
    rules.write_all({pages / name: text.encode() for name, text in written.items()})
    for path in pages.glob("*.html"):
        if path.name not in written:
            path.unlink()
    return found


def _fill(
    found: list[Page], documents: list[Page], machine: str, files: dict
) -> dict[str, str]:
    """The pages as they are written, by name."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True
    )
    environment.filters |= {"duration": duration, "sentence": sentence}
    site, _, subtitle = importlib.metadata.metadata("lstm-kernels")[
        "Summary"
    ].partition(": ")
    environment.globals |= {"site": site, "machine": machine, "documents": documents}
    environment.globals["files"] = {
        name: {"name": f"files/{path.name}", "kb": round(path.stat().st_size / 1000)}
        for name, path in files.items()
    }
    environment.globals["style"] = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    works = site_html.bibliography(found)
    environment.globals["works"] = works
    written = {}

    def write(template, page, **given):
        texts = scripts(page)
        digests = (hashlib.sha256(text.encode()).digest() for text in texts)
        text = environment.get_template(template).render(
            page=page,
            scripts=texts,
            hashes=[base64.b64encode(digest).decode() for digest in digests],
            **given,
        )
        check_page(page.name, text, texts)
        written[page.name] = text

    for before, page, after in zip(
        [None, *found], found, [*found[1:], None], strict=False
    ):
        write("page.html.j2", page, previous=before, next=after)
    for page in documents:
        write("page.html.j2", page)
    if works:
        write("bibliography.html.j2", Page("bibliography.html", "Bibliography", "", ""))
    write(
        "index.html.j2",
        Page("index.html", site, subtitle[:1].upper() + subtitle[1:], ""),
        pages=found,
        headlines=[
            (page, page.pictures[HEADLINE])
            for page in found
            if HEADLINE in page.pictures
        ],
        verdicts=sum((page.verdicts for page in found), Counter()),
        presets=", ".join(sorted({str(page.preset) for page in found})),
        date=max(page.finished for page in found)[:10] or str(datetime.date.today()),
        seconds=sum(page.seconds or 0 for page in found),
    )
    return written

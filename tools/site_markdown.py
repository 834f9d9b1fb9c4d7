"""Markdown to HTML for the site: formulas become MathML, local images data, links lead
to pages.
"""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from urllib.parse import urlsplit

import latex2mathml.converter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from notebook_rules import ReportError

ARITY = {
    **dict.fromkeys(("mfrac", "mroot", "msub", "msup", "mover", "munder"), 2),
    **dict.fromkeys(("msubsup", "munderover"), 3),
}


def formula(latex: str, display: str = "inline") -> str:
    """`latex` as MathML, or ReportError with its source."""
    # The converter knows align* but not aligned, which is the same inside a formula.
    source = latex.strip().replace("{aligned}", "{align*}")
    try:
        mathml = latex2mathml.converter.convert(source, display=display)
        _check(ElementTree.fromstring(mathml))
    # The converter raises a dozen kinds, among them IndexError
    except Exception as error:
        reason = f"{type(error).__name__} {error}".strip()
        raise ReportError(
            f"formula does not convert ({reason}): {latex.strip()}"
        ) from error
    return mathml


def _check(element) -> None:
    """The converter passes on what it does not know: unknown commands, a missing
    argument.
    """
    tag = element.tag.rsplit("}", 1)[-1]
    if tag in ARITY and len(element) != ARITY[tag]:
        raise ValueError(f"{tag} has {len(element)} arguments, wants {ARITY[tag]}")
    if tag != "mtext" and "\\" in (element.text or ""):
        raise ValueError(f"unknown command {element.text}")
    if element.get("linebreak") == "newline":
        raise ValueError("a line break outside an environment")
    for child in element:
        _check(child)


class Names(dict):
    """The pages of the site: the name of each by the source's path. A Markdown file
    that a page links to gets one too.
    """

    def __init__(self, root: Path, sources=()):
        self.root = root.resolve()
        super().__init__({path.resolve(): f"{path.stem}.html" for path in sources})

    def of(self, path: Path) -> str | None:
        """The page of `path`, or None: `data/README.md` of the project is
        `data-readme.html`.
        """
        path = path.resolve()
        if path not in self and path.suffix == ".md" and path.is_relative_to(self.root):
            parts = path.relative_to(self.root).with_suffix(".html").parts
            self[path] = "-".join(parts).lower()
        return self.get(path)


class Renderer(IPythonRenderer):
    """The renderer of the texts of `folder`; a link to a file without a page is its
    text alone.
    """

    def __init__(self, folder: Path, names: Names):
        super().__init__(
            escape=False, embed_images=True, path=str(folder), anchor_link_text="#"
        )
        self.folder, self.names = folder, names

    def markdown(self, source: str) -> str:
        return MarkdownWithMath(renderer=self).render(source)

    def inline(self, source: str) -> str:
        """A sentence, without the paragraph around it."""
        return self.markdown(source).strip().removeprefix("<p>").removesuffix("</p>")

    def inline_math(self, body: str) -> str:
        return formula(body)

    def block_math(self, body: str) -> str:
        return f'<span class="formula">{formula(body, "block")}</span>'

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(rf"\begin{{{name}}}{body}\end{{{name}}}")

    def block_code(self, code: str, info: str | None = None) -> str:
        shown = super().block_code(code, info)
        return (
            shown.replace('"highlight"', '"highlight diff"', 1)
            if info == "diff"
            else shown
        )

    def _html_embed_images(self, html: str) -> str:
        # nbconvert's would parse all of it, and so close a <details> whose end is
        # another piece.
        embedded = super()._html_embed_images
        return re.sub(r"<img\b[^>]*>", lambda tag: embedded(tag[0]), html)

    def link(self, text: str, url: str, title: str | None = None) -> str:
        parts = urlsplit(url)
        if not parts.scheme and not parts.netloc and parts.path:
            path = self.folder / parts.path
            if not path.exists():
                raise ReportError(f"link to {url}: no such file")
            url = self.names.of(path)
            if url is None:  # on a host there is nothing but the pages
                return text
            url += f"#{parts.fragment}" if parts.fragment else ""
        return super().link(text, url, title)

"""Sphinx: the theme, formulas as MathML, which browsers draw without a script, and what
Markdown cannot do here: whatever a stranger wrote into a page is text.
"""

import re
import sys
from functools import wraps
from html import unescape
from inspect import unwrap
from pathlib import Path
from xml.etree.ElementTree import tostring

from docutils import nodes
from docutils.nodes import image, reference
from latex2mathml.converter import convert_to_element
from myst_parser.mdit_to_docutils.base import DocutilsRenderer
from sphinx.addnodes import download_reference

sys.path.insert(0, str(Path(__file__).parents[1]))
from notebook_rules import SCHEMES, scheme

project = html_title = "Parallel LSTMs"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx_design"]
extensions += ["sphinxcontrib.bibtex"]
exclude_patterns = ["anywhere", "executed"]  # downloads
templates_path = ["."]
nb_execution_mode = "off"
nb_render_markdown_format = "myst"
nb_code_prompt_show = nb_code_prompt_hide = "Code"
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_disable_syntax = ["myst_role", "myst_line_comment"]
myst_heading_anchors = 3
default_role = "code"
add_module_names = False
bibtex_bibfiles = [str(Path(__file__).parents[2] / "notebooks" / "references.bib")]
html_theme = "pydata_sphinx_theme"
html_theme_options = {"navbar_center": [], "secondary_sidebar_items": ["page-toc"]}
html_theme_options |= {"navbar_persistent": ["search-button"]}
html_theme_options |= {"footer_start": [], "footer_end": []}
html_sidebars = {"**": ["pages.html"]}
html_context = {"default_mode": "auto"}
html_static_path = ["style.css", "schedules.js", "wide.js"]
html_css_files, html_js_files = ["style.css"], ["schedules.js", "wide.js"]
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_copy_source = False
html_math_renderer = "mathml"

# What website.py writes.
DIRECTIVES = "bibliography", "container", "dropdown", "figure", "toctree"
ADDRESSES = {reference: "refuri", image: "uri", download_reference: "reftarget"}
render = unwrap(DocutilsRenderer.render_directive)


@wraps(render)
def directive(self, token, name="eval-rst", *arguments, **options):
    """Other directives than DIRECTIVES are text: some read files, import modules or
    write HTML.
    """
    if name in DIRECTIVES:
        return render(self, token, name, *arguments, **options)
    shown = nodes.literal_block(token.content, token.content, language="text")
    self.current_node.append(shown)


DocutilsRenderer.render_directive = directive
DocutilsRenderer.render_restructuredtext = directive  # that of eval-rst


# What browsers show nothing of.
UNSEEN = r"<!--(-?>|.*?-->)|<\?.*?\?>|<!\[CDATA\[.*?\]\]>|<![a-z].*?>"


def markup(self, token):
    """Comments are nothing, other markup is text."""
    text = re.sub(UNSEEN, "", token.content, flags=re.DOTALL | re.IGNORECASE)
    if token.type == "html_inline":
        self.current_node.append(nodes.Text(text))
    elif text.strip():
        self.current_node.append(nodes.paragraph("", text.strip()))


DocutilsRenderer.render_html_inline = DocutilsRenderer.render_html_block = markup


def led(app, doctree):
    """Links lead to SCHEMES; pictures and downloads come out of the folder of the
    pages: else they are text.
    """
    for node in list(doctree.findall(lambda node: type(node) in ADDRESSES)):
        address, links = node.get(ADDRESSES[type(node)], ""), type(node) is reference
        outside = not links and ".." in Path(address).parts
        if outside or scheme(address) not in (SCHEMES if links else [""]):
            node.replace_self(node.children or nodes.Text(address))


PRIMES = "\N{PRIME}", "\N{DOUBLE PRIME}"


def mathml(text, **how):
    """A formula as MathML; commands that would write attributes are text. The converter
    has entities in its texts, and to keep them would leave markup as it is.
    """
    text = re.sub(r"\\(href|style|class)(?![a-zA-Z])", r"\\text", text)
    formula = convert_to_element(text, **how)
    for part in formula.iter():
        part.text = part.text and unescape(part.text)
        if part.text in PRIMES:  # as small as an index it would be a speck
            part.set("class", "prime")
    return tostring(formula, encoding="unicode")


def inline(self, node):
    self.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def block(self, node):
    # The converter knows align*, which is the same inside a formula.
    text = node.astext().replace("{aligned}", "{align*}")
    formula = mathml(text, display="block")
    self.body.append(f'<div class="math" tabindex="0">{formula}</div>')
    raise nodes.SkipNode


def completed(app, name, template, context, doctree):
    """What folds code is called by its text alone, which screen readers say; the pages
    before and after have their numbers.
    """
    label = ' aria-label="Toggle hidden content"'
    context["body"] = context.get("body", "").replace(label, "")
    for way in ("prev", "next"):
        number = re.match(r"(\d\d)_", (context.get(way) or {}).get("link", ""))
        if number:
            context[way]["title"] = f"{number[1]} {context[way]['title']}"


def setup(app):
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.connect("html-page-context", completed)
    app.connect("doctree-read", led, priority=1)  # before pictures are looked for
    # Docstrings are reStructuredText, which has more ways to markup and to files.
    only_text = {"raw_enabled": False, "file_insertion_enabled": False}
    app.connect("builder-inited", lambda app: app.env.settings.update(only_text))

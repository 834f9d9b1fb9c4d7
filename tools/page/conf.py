"""Sphinx: the theme, and formulas as MathML, which browsers draw without a script."""

import sys
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

project = html_title = "Parallel LSTMs"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton"]
extensions += ["sphinxcontrib.bibtex"]
exclude_patterns = ["anywhere", "colab", "executed"]  # downloads
templates_path = ["."]
nb_execution_mode = "off"
nb_render_markdown_format = "myst"
nb_code_prompt_show = nb_code_prompt_hide = "Code"
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]  # links to files that are no pages
default_role = "code"
add_module_names = False
bibtex_bibfiles = [str(ROOT / "notebooks" / "references.bib")]
html_theme = "pydata_sphinx_theme"
html_theme_options = {"navbar_center": [], "secondary_sidebar_items": ["page-toc"]}
html_theme_options |= {"navbar_persistent": ["search-button"]}
html_theme_options |= {"footer_start": [], "footer_end": []}
html_sidebars = {"**": ["pages.html"]}
html_context = {"default_mode": "auto"}
html_static_path = html_css_files = ["style.css"]
html_copy_source = False
html_math_renderer = "mathml"


def inline(self, node):
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block(self, node):
    # The converter knows align*, which is the same inside a formula.
    text = node.astext().replace("{aligned}", "{align*}")
    formula = convert(text, display="block")
    self.body.append(f'<div class="math" tabindex="0">{formula}</div>')
    raise nodes.SkipNode


def named(app, name, template, context, doctree):
    """What folds code is called by its text alone, which screen readers say."""
    label = ' aria-label="Toggle hidden content"'
    context["body"] = context.get("body", "").replace(label, "")


def setup(app):
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.connect("html-page-context", named)

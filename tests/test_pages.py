"""The pages of the site, from small notebooks."""

import base64
import hashlib
import re
import shutil
from pathlib import Path

import notebook_pages as pages
import notebook_rules as rules
import pandas as pd
import pytest
import report
import site_html
from made import PNG, TITLE, claim, code, drawn, error, image, parameters, save, text
from nbformat.v4 import new_output
from notebook_rules import ReportError

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob(report.NAMES))
SITE_SCRIPT = (pages.TEMPLATES / "site.js").read_text()


def page_of(tmp_path, *cells, about="a machine"):
    """The HTML page and the index of one notebook with these cells after its title."""
    path = save(tmp_path / "build" / "01_a.ipynb", text(TITLE), *cells)
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir(exist_ok=True)
    out = tmp_path / "build" / "html"
    pages.make([path], notebooks, out, about=about)
    return (out / "01_a.html").read_text(), (out / "index.html").read_text()


def test_page_has_formulas_links_and_figures_and_fetches_nothing(tmp_path):
    save(tmp_path / "notebooks" / "01_a.ipynb", text(TITLE))
    save(tmp_path / "notebooks" / "03_c.ipynb", text(TITLE))
    source = "see [this](01_a.ipynb#data), [later](03_c.ipynb)"
    aligned = "$$\\begin{aligned} a &= b \\\\ c &= d \\end{aligned}$$"
    shown = code("f()", image(alt="A line"), count=1)
    latex = new_output("display_data", data={"text/latex": r"$\frac{a}{b}$"})
    page, index = page_of(
        tmp_path,
        parameters(),
        *(text(source), text(aligned), shown, code("g()", latex)),
        about="Some CPU, 2 cores",
    )
    assert '<html lang="en">' in page
    assert "<title>Title</title>" in page
    assert 'href="01_a.html#data"' in page
    assert "<p>see" in page
    assert ", later</p>" in page  # which is not executed: a host has the pages alone
    assert page.count("<math") == 3
    assert "<mfrac>" in page
    text_of_page = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)
    assert "$" not in text_of_page
    assert 'alt="A line"' in page
    assert not re.search(
        r"<(link rel=.(?!icon)|iframe)\b|\bsrc=\W?http|@import", page + index
    )
    assert "default-src 'none'" in page
    assert '<a href="01_a.html"><span class="number">01</span> Title</a>' in index
    assert "The claim, with <math" in index
    assert "preset paper on Some CPU, 2 cores" in index


def policy_of(page):
    """The content policy of a page: directive -> its sources."""
    text = re.search(r'Security-Policy" content="(.*?)"', page)[1]
    parts = (part.split() for part in text.split(";"))
    return {name: sources for name, *sources in parts}


def test_a_browser_runs_the_scripts_of_the_site_alone(tmp_path):
    page, index = page_of(tmp_path, text("text"))
    for shown in (page, index):
        (script,) = re.findall(r"<script>(.*?)</script>", shown, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy = policy_of(shown)
        assert policy["script-src"] == [f"'sha256-{digest}'"]
        for name in ("default-src", "base-uri", "form-action"):
            assert policy[name] == ["'none'"]


HOSTILE = """<img src=x onerror="f()"> & "a" 'b' <b>c</b>"""


def test_hostile_texts_are_texts(tmp_path):
    """In a title, in the alt text of a figure, in the name of a machine."""
    picture = code("f()", drawn("01-x"))
    picture.outputs[0].metadata["image/png"]["alt"] = HOSTILE
    path = save(
        tmp_path / "build" / "01_a.ipynb", text(f"# {HOSTILE}\n\n**A claim.**"), picture
    )
    (tmp_path / "notebooks").mkdir()
    # In the body of a page a title is Markdown, of which this is what is refused.
    with pytest.raises(ReportError, match="<img> fetches 'x'"):
        pages.make([path], tmp_path / "notebooks", tmp_path / "html", about=HOSTILE)
    words = """1 < 2 & "a" 'b'"""
    save(path, text(f"# {words}\n\n**A claim.**"), parameters(), picture)
    pages.make([path], tmp_path / "notebooks", tmp_path / "html", about=HOSTILE)
    for name in ("01_a.html", "index.html"):
        soup = site_html.parsed((tmp_path / "html" / name).read_text())
        assert words in soup.get_text()
        (figure, *_) = soup("img")
        assert figure["alt"] in (HOSTILE, HOSTILE + ".")
        assert not soup("b", string="c")
        assert HOSTILE in soup.find("footer").get_text()


def test_a_claim_may_compare(tmp_path):
    shown = claim('1 < 2 & 3 > 2, "a"', disturbed="<b>load</b>")
    _, index = page_of(tmp_path, code("nb.claim()", shown))
    assert '1 &lt; 2 &amp; 3 &gt; 2, "a"' in index.replace("&quot;", '"')
    assert "<b>" not in index


def test_a_folded_solution_holds_its_text_and_images(tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "x.png").write_bytes(base64.b64decode(PNG))
    inside = '*x*\n\n<img src="x.png" alt="A line">'
    source = text(
        f"<details><summary>Solution</summary>\n\n{inside}\n\n</details>\n\nafter"
    )
    page, _ = page_of(tmp_path, source)
    folded = re.search(r"<details><summary>Solution.*?</details>", page, re.DOTALL)[0]
    assert "<em>x</em>" in folded
    assert f'src="data:image/png;base64,{PNG}"' in folded
    assert "after" not in folded


def test_a_page_lists_its_sections_and_folds_code_that_only_says(tmp_path):
    sections = text("## One, `a`\n\n### Below\n\n## Two")
    said = code("nb.say(f'{x}')\nnb.claim('A.', True)")
    made = code("x = f()\nnb.say(x)")
    start = parameters(), code("import math\n\nnb = f()")
    page, _ = page_of(tmp_path, *start, sections, said, made, code("import late"))
    listed = re.search(r'<nav class="contents".*?</nav>', page, re.DOTALL)[0]
    assert re.findall(r'<a href="#(.+?)">(.+?)</a>', listed) == [
        ("One,-a", "One, <code>a</code>"),
        ("Below", "Below"),
        ("Two", "Two"),
    ]
    assert 'id="One,-a"' in page
    folded = re.findall(
        r'<details class="fold"><summary>(.*?)</summary>(.*?)</details>', page, 16
    )
    names = ["Parameters", "Set-up", "Code of these sentences"]
    assert [name for name, _ in folded] == names
    assert "claim" in folded[2][1]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "### Late",
            "01_a.ipynb: heading 'Late' is of level 3, want at most level 2 here",
        ),
        ("## A\n\n#### B", "heading 'B' is of level 4, want at most level 3 here"),
        ("# Again", "heading 'Again' is of level 1, want one title alone"),
    ],
)
def test_headings_out_of_order_are_an_error(tmp_path, source, message):
    with pytest.raises(ReportError, match=re.escape(message)):
        page_of(tmp_path, text(source))


def test_headings_of_one_name_are_two_places(tmp_path):
    page, _ = page_of(tmp_path, text("## A\n\n## A"))
    assert re.findall(r'<h2 id="(.+?)"', page) == ["A", "A-2"]
    assert page.count('href="#A-2"') == 3  # contents, twice, and the heading's own mark


def test_tables_have_headers_that_name_their_cells(tmp_path):
    frame = pd.DataFrame({"ms": [1.5, 2.0], "what": ["fast", "2 x"]}, index=["a", "b"])
    shown = new_output(
        "display_data", data={"text/html": frame.rename_axis("case").to_html()}
    )
    page, _ = page_of(tmp_path, code("f()", shown))
    table = re.search(r'<div [^>]*aria-label="Table 1".*?</table>', page, re.DOTALL)[0]
    assert 'tabindex="0"' in table
    heads = re.search(r"<thead>(.*)</thead>", table, re.DOTALL)[1]
    assert re.findall(r"<th[^>]*>", heads) == [
        '<th class="words" scope="col">',
        '<th scope="col">',
        '<th class="words" scope="col">',
    ]
    assert re.findall(r">(\w+)<", heads) == ["case", "ms", "what"]
    assert table.count('scope="row"') == 2
    assert "<td>1.5</td>" in table
    unnamed = new_output("display_data", data={"text/html": frame.to_html()})
    page, _ = page_of(tmp_path, code("f()", unnamed))
    assert "<th></th>" not in page


SVG = '<svg width="144pt" height="72pt"><path d="M0 0"/></svg>'


@pytest.mark.parametrize("same", [True, False])
def test_a_figure_is_shown_as_its_drawing_when_both_are_of_one_run(tmp_path, same):
    folder = tmp_path / "build" / "figures"
    folder.mkdir(parents=True)
    (folder / "01-x.svg").write_text(SVG)
    (folder / "01-x.png").write_bytes(
        base64.b64decode(PNG) if same else b"of another run"
    )
    page, index = page_of(tmp_path, code("f()", drawn("01-x")))
    kind, content = (
        ("svg+xml", base64.b64encode(SVG.encode()).decode()) if same else ("png", PNG)
    )
    size = ' width="192" height="96"' if same else ""
    assert '<img alt="A line" ' in page
    assert f'src="data:image/{kind};base64,{content}"' in page
    assert (' width="192"' in page) == same
    assert f'<img src="data:image/{kind};base64,{content}" alt="A line"{size}>' in index


def test_an_interactive_figure_brings_its_script_once(tmp_path, monkeypatch):
    site = tmp_path / "page"
    shutil.copytree(pages.TEMPLATES, site)
    monkeypatch.setattr(pages, "TEMPLATES", site)
    moving = drawn("01-x")
    moving.metadata["lstm_kernels"]["interactive"] = "stand-in"
    with pytest.raises(
        ReportError, match=r"01_a.html: .* 'stand-in': no script stand-in.js"
    ):
        page_of(tmp_path, code("f()", moving))
    (site / "stand-in.js").write_text("'a stand-in';")
    page, index = page_of(tmp_path, code("f()", moving, moving))
    assert (
        page.count('<div class="figure interactive" data-interactive="stand-in">') == 2
    )
    assert page.count("<script>'a stand-in';</script>") == 1
    assert "stand-in" not in index
    (site / "stand-in.js").write_text("'</script>'")
    with pytest.raises(ReportError, match="want it without"):
        page_of(tmp_path, code("f()", moving))


def test_the_index_lists_every_claim_and_whether_it_held(tmp_path):
    shown = [
        claim(),
        claim("$x^2$ is *less*.", "Did not hold", disturbed="the clock fell"),
        claim("A GPU is faster.", "Not measured"),
        claim(),
    ]
    cells = [code("nb.claim()", one) for one in shown]
    page, index = page_of(tmp_path, *cells)
    for number, name in ((1, "held"), (2, "did-not-hold"), (3, "not-measured")):
        assert f'<div class="claim {name}" id="claim-{number}">' in page
        assert f'<a href="01_a.html#claim-{number}">' in index
        assert f'<td class="verdict {name}"><span aria-hidden="true">' in index
    assert "Held: 2. Did not hold: 1. Not measured: 1." in index
    card = re.search(r'<ol class="cards">.*?</ol>', index, re.DOTALL)[0]
    words = re.sub(
        r"<.*?>", "", re.search(r'<p class="made">(.*?)</p>', card, re.DOTALL)[1]
    )
    assert words.strip() == "✓ 2 held, ✗ 1 did not hold, ○ 1 not measured"
    assert "Did not hold, disturbed run</td>" in index
    assert "<em>less</em>" in index
    assert "<td>1, 2</td>" in index
    stored = rules.normalised(rules.read(tmp_path / "build" / "01_a.ipynb"), name="n")
    assert [dict(one) for one in rules.claims(stored)] == [
        one.metadata["lstm_kernels"]["claim"] for one in shown
    ]


def site_of(tmp_path, notebooks, texts=()):
    """The site of notebooks and Markdown files: cells or source by name; pages and
    folder.
    """
    folder, out = tmp_path / "notebooks", tmp_path / "site"
    built = [
        save(tmp_path / "build" / f"{name}.ipynb", *cells)
        for name, cells in notebooks.items()
    ]
    folder.mkdir(exist_ok=True)
    for name, source in texts:
        (folder / name).write_text(source)
    return pages.make(built, folder, out, about="a machine"), out


def test_make_returns_the_pages_with_their_claims_in_plain_words(tmp_path):
    cells = [text(TITLE), code("nb.claim()", claim("$x$ is *less*."))]
    [page], _ = site_of(tmp_path, {"01_a": cells})
    assert page.claims[0]["text"] == "$x$ is *less*."
    assert page.claims[0]["sentence"].startswith("<math")
    assert page.verdicts == {"Held": 1}


def test_the_index_opens_with_the_headline_figure_and_its_sentence(tmp_path):
    shown = drawn(pages.HEADLINE)
    shown.metadata["image/png"]["alt"] = (
        "From 613 ms to 0.35 ms: 1740x. idea against speed."
    )
    _, out = site_of(tmp_path, {"00_a": [text(TITLE), code("f()", shown)]})
    index = (out / "index.html").read_text()
    assert "<figcaption>From 613 ms to 0.35 ms: 1740x. Each bar" in index
    assert (
        index.index("The claim, with") < index.index("<figure>") < index.index("<h3>")
    )


def test_documents_and_notebooks_without_a_number_have_pages(tmp_path):
    (tmp_path / "NOTATION.md").write_text("# Symbols\n\nSee [code](tools.py).")
    (tmp_path / "tools.py").write_text("")
    linking = text("[symbols](../NOTATION.md#sizes) and [teaching](teacher.md)")
    notebooks = {name: [text(TITLE)] for name in ("01_a", "02_b")}
    notebooks["classroom"] = [text("# Class\n\n**A lesson.**"), linking]
    _, out = site_of(
        tmp_path, notebooks, [("teacher.md", "# Teaching\n\n## A\n\ntext")]
    )
    names = {path.name: path.read_text() for path in out.iterdir()}
    documents = {"teacher.html", "notation.html"}
    assert set(names) == documents | {
        "01_a.html",
        "02_b.html",
        "classroom.html",
        "index.html",
    }
    assert '<a href="classroom.html">Class</a>' in names["index.html"]
    assert 'href="notation.html#sizes"' in names["classroom.html"]
    assert "See code.</p>" in names["notation.html"]
    for name in documents:
        assert f'<a href="{name}">' in names["index.html"]
        assert 'rel="' not in names[name].replace('rel="icon"', "")
    around = {
        name: re.findall(r'rel="(prev|next)" href="(.*?)"', names[name])
        for name in names
    }
    assert set(around["02_b.html"]) == {
        ("prev", "01_a.html"),
        ("next", "classroom.html"),
    }
    assert len(around["02_b.html"]) == 4  # above and below


def test_the_bibliography_has_every_work_once(tmp_path):
    def citing(*entries):
        return [
            text(
                f"{TITLE}\n\n## References\n\n"
                + "\n".join(entries)
                + "\n\n## Environment"
            )
        ]

    first = citing(
        "- P. R. Winters, *A Method*, Science 6(3), 1960: the baseline.", "- ACM: *B*."
    )
    second = citing(
        "1. P. R. Winters, *a method*, Science 6(3), 1960: season.", "2. Z. Abel, *C*."
    )
    third = citing("- P. R. Winters, *A method*, second edition, 1976.")
    found, out = site_of(tmp_path, {"01_a": first, "02_b": second, "03_c": third})
    works = [
        (re.sub("<.*?>", "", entry), [page.number for page in citing])
        for entry, citing in site_html.bibliography(found)
    ]
    assert works == [
        ("Z. Abel, C.", ["02"]),
        ("ACM: B.", ["01"]),
        ("P. R. Winters, A Method, Science 6(3), 1960.", ["01", "02"]),
        ("P. R. Winters, A method, second edition, 1976.", ["03"]),
    ]
    page = (out / "bibliography.html").read_text()
    assert '<a href="02_b.html#References">02' in page
    assert '<a href="bibliography.html">' in (out / "index.html").read_text()


def test_pages_of_notebooks_that_are_gone_go(tmp_path):
    page_of(tmp_path, parameters())
    old = tmp_path / "build" / "html" / "02_b.html"
    old.write_text("old")
    page_of(tmp_path, parameters())
    assert sorted(path.name for path in old.parent.iterdir()) == [
        "01_a.html",
        "index.html",
    ]


@pytest.mark.parametrize(
    "latex",
    [
        r"\frac{a}",
        r"\nosuchcommand{x}",
        r"\begin{aligned} a",
        "a & b",
        r"\left( x",
        "x^{",
        r"a \\ b",
    ],
)
def test_a_bad_formula_is_an_error_with_its_source(tmp_path, latex):
    with pytest.raises(rules.ReportError) as caught:
        page_of(tmp_path, text(f"so ${latex}$ is"))
    assert latex in str(caught.value)
    assert "01_a.ipynb, cell 2" in str(caught.value)


@pytest.mark.parametrize(
    "latex",
    [
        r"\bar{i}_t = U_i x_t + W_i h_{t-1} + b_i",
        r"\hat{y}, \tilde{c}, \mathbf{W}^\top \in \mathbb{R}^{T \times B}",
        r"\begin{bmatrix} 1 & 0 \\ 0 & 1 \end{bmatrix}",
        r"\sum_{t=1}^{T} \frac{\partial L}{\partial W}",
        r"\left\lVert \frac{1}{2} \right\rVert \le \max\{a, b\}",
        r"f(x) = \begin{cases} 1 & x > 0 \\ 0 & \text{otherwise} \end{cases}",
    ],
)
def test_formulas_of_the_report_convert(latex):
    assert pages.formula(latex).startswith("<math")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (code("f()", image()), "cell 2: image/png output without alt text"),
        (text("![](x.png)"), "<img> fetches 'x.png'"),
        (text('<img src="data:image/png;base64,AA" alt="">'), "image without alt text"),
        (text("![a](https://example.org/x.png)"), "<img> fetches"),
        (text('<img src="https://example.org/x.png" alt="a">'), "<img> fetches"),
        (
            text('<script src="https://example.org/x.js"></script>'),
            "<script> is not allowed",
        ),
        (text("<style>@import 'https://example.org/x.css'</style>"), "a style fetches"),
        (text("<style>p { background: url( x.png) }</style>"), "a style fetches"),
        (text('<p style="background: url(x.png)">a</p>'), "a style fetches"),
        (text('<video poster="x.png"></video>'), "<video> fetches 'x.png'"),
        (text('<svg><image href="x.png"/></svg>'), "<image> fetches 'x.png'"),
        (text('<form action="x"></form>'), "<form> is not allowed"),
        *(
            (text(f'<p {handler}="f()">a</p>'), "<p> runs a script")
            for handler in ("onclick", "onload", "onerror", "onfocus", "ontoggle")
        ),
        *(
            (text(f'<a href="{scheme}script:f()">a</a>'), "<a> runs a script")
            for scheme in (" java", "JAVA", "java&#9;", "\x01java")
        ),
        (text('<svg><a xlink:href="javascript:f()">a</a></svg>'), "<a> runs a script"),
        (text("<script>f()</script>"), "<script> is not allowed"),
        (text(f"<script>{SITE_SCRIPT}</script>"), "<script> is not allowed"),
        (text("[a](09_gone.ipynb)"), "link to 09_gone.ipynb: no such file"),
        (code("f()", error()), "cell 2 raised ValueError"),
        (code("f()", count=None), "cell 2 is not executed"),
    ],
)
def test_what_a_page_must_not_have_is_an_error(tmp_path, cell, message):
    with pytest.raises(rules.ReportError, match=re.escape(message)):
        page_of(tmp_path, cell)
    assert not (tmp_path / "build" / "html").exists()


def test_a_notebook_without_a_claim_or_a_result_is_an_error(tmp_path):
    path = save(tmp_path / "01_a.ipynb", text("# Title"))
    with pytest.raises(rules.ReportError, match="no claim"):
        pages.render(path, tmp_path)
    with pytest.raises(
        rules.ReportError, match="no notebook is executed, run `make report`"
    ):
        pages.make([], tmp_path, tmp_path / "html")

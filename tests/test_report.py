"""The tools that build the report, on small notebooks; then the rules, on the real ones."""

import base64
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import notebook_pages as pages
import notebook_rules as rules
import numpy as np
import pandas as pd
import papermill
import pytest
import report
import site_html
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from notebook_rules import ReportError

from lstm_kernels.report import Notebook, notebook

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob(report.NAMES))
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
SITE_SCRIPT = (pages.TEMPLATES / "site.js").read_text()
TITLE = "# Title\n\n**The claim, with $x^2$.**"


def text(source):
    return new_markdown_cell(source)


def code(source, *outputs, count=1, tags=()):
    cell = new_code_cell(source, execution_count=count, outputs=list(outputs))
    cell.metadata.tags = list(tags)
    return cell


def parameters(value="paper"):
    return code(f'PRESET = "{value}"', tags=["parameters"])


def stream(content, name="stdout"):
    return new_output("stream", text=content, name=name)


def image(**about):
    return new_output("display_data", data={"image/png": PNG}, metadata={"image/png": about})


def claim(sentence="One is two.", verdict="Held", **more):
    """The output of `nb.claim`."""
    about = {"sentence": sentence, "verdict": verdict, "numbers": "1, 2"} | more
    data = {"text/markdown": f"> **{verdict} in this run.** {sentence}"}
    return new_output("display_data", data=data, metadata={"lstm_kernels": {"claim": about}})


def drawn(name):
    """The output of `nb.show`."""
    about = {"image/png": {"alt": "A line"}, "lstm_kernels": {"figure": name}}
    return new_output("display_data", data={"image/png": PNG}, metadata=about)


def error():
    return new_output("error", ename="ValueError", evalue="no", traceback=[])


def save(path, *cells):
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=list(cells), metadata=rules.METADATA), path)
    return path


def page_of(tmp_path, *cells, about="a machine"):
    """The HTML page and the index of one notebook with these cells after its title."""
    path = save(tmp_path / "build" / "01_a.ipynb", text(TITLE), *cells)
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir(exist_ok=True)
    out = tmp_path / "build" / "html"
    pages.make([path], notebooks, out, about=about)
    return (out / "01_a.html").read_text(), (out / "index.html").read_text()


# --- executing


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A notebook executed with PRESET smoke, and one that fails in cell 3: (good, bad, message)."""
    folder = tmp_path_factory.mktemp("executed")
    last = "print(PRESET)\nprint('in', os.getcwd().endswith('notebooks'))"
    loud = "import os\nfrom lstm_kernels.kernels import report_compiling\n"
    loud += "report_compiling(9, 'x')"
    start = (text(TITLE), parameters())
    good = save(folder / "notebooks" / "01_a.ipynb", *start, code(loud), code(last))
    bad = save(folder / "notebooks" / "02_b.ipynb", *start, code("a = 1\n1 / 0"), code("2"))
    run = [sys.executable, ROOT / "tools" / "report.py", "execute"]
    outs = folder / "build" / good.name, folder / "build" / bad.name
    subprocess.run([*run, good, outs[0], "-p", "PRESET", "smoke"], check=True)
    done = subprocess.run([*run, bad, outs[1]], capture_output=True, text=True)
    assert done.returncode == 1
    return *outs, done.stderr


def test_execute_runs_in_the_notebooks_folder_with_the_parameters(executed):
    notebook = rules.read(executed[0])
    assert rules.preset(notebook) == "smoke"
    assert notebook.cells[-1].outputs[0].text == "smoke\nin True\n"
    assert [path.name for path in executed[0].parent.glob("01*")] == ["01_a.ipynb"]


def test_execute_keeps_the_line_about_compiling_out_of_the_report(executed):
    assert rules.problems_of_execution(rules.read(executed[0])) == []


def test_a_failing_cell_is_reported_and_leaves_no_result(executed):
    _, bad, message = executed
    assert "02_b.ipynb, cell 3 failed: ZeroDivisionError: division by zero" in message
    assert "a = 1" in message
    assert not bad.exists()
    assert bad.with_name("02_b.failed.ipynb").exists()


def test_normalise_of_a_real_run_drops_what_changes_from_run_to_run(executed):
    notebook = rules.read(executed[0])
    stored = rules.normalised_text(notebook, name="01_a")
    assert "papermill" in rules.dumps(notebook)
    for noise in ("papermill", "iopub", "injected", "start_time", "3.1"):
        assert noise not in stored
    assert len(nbformat.reads(stored, 4).cells) == len(notebook.cells) - 1


def test_unknown_parameter_is_an_error_that_names_the_known_ones(tmp_path, capsys):
    notebook = save(tmp_path / "01_a.ipynb", text(TITLE), parameters())
    out = tmp_path / "out.ipynb"
    assert report.main(["execute", str(notebook), str(out), "-p", "PRESTO", "smoke"]) == 1
    message = capsys.readouterr().err
    assert "'PRESTO'" in message
    assert "known are PRESET" in message
    assert not out.exists()


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (code("f()", stream("Warning: x\n", "stderr")), r"failed\n  1 stderr outputs.*Warning: x"),
        (code("f()", error()), "cell 1 raised ValueError"),
        (code("f()", count=None), "cell 1 is not executed"),
        (None, "no kernel"),
    ],
)
def test_a_failed_run_leaves_no_old_result(tmp_path, monkeypatch, cell, message):
    def execute_notebook(_, out, **how):
        if cell is None:
            raise ReportError("no kernel")
        nbformat.write(new_notebook(cells=[cell]), out)
        return new_notebook(cells=[cell])

    monkeypatch.setattr(papermill, "execute_notebook", execute_notebook)
    monkeypatch.setattr(report, "_own_kernel_only", lambda settings: None)
    notebook, out = save(tmp_path / "01_a.ipynb", text(TITLE)), tmp_path / "build" / "01_a.ipynb"
    save(out, text("an old result"))
    with pytest.raises(ReportError, match=message):
        report.execute(notebook, out, {})
    assert [path.name for path in out.parent.iterdir()] == ["01_a.failed.ipynb"] * (
        cell is not None
    )


def test_stderr_is_a_problem_and_a_progress_bar_is_not():
    bar = stream("\r 50%|#####     | 5/10 [00:01<00:01, 4.9it/s]", "stderr")
    fine = new_notebook(cells=[code("1", bar)])
    assert rules.problems_of_execution(fine) == []
    after = stream("\r 50%|#####     | 5/10 [00:01<00:01, 4.9it/s]\nWarning: x\n", "stderr")
    for output in (stream("Warning: x\n", "stderr"), after):
        loud = new_notebook(cells=[code("1", bar, output)])
        wanted = ["1 stderr outputs, want none (cell 1: Warning: x)"]
        assert rules.problems_of_execution(loud) == wanted
        assert "Warning: x" in rules.dumps(rules.normalised(loud, name="n"))


# --- normalising


def noisy():
    injected = code("PRESET = 'paper'", tags=["injected-parameters"])
    run = code(
        "f()",
        stream("a"),
        stream("\r 50%|#####     | 5/10 [00:01<00:01, 4.9it/s]", "stderr"),
        stream("b\r10%\r20%\n"),
        stream(f"see {ROOT}/data/x.csv, <function f at 0x7f12ab>\n"),
        image(alt="A line", width=3),
        new_output("display_data", data={rules.WIDGET: {}, "text/plain": "  0%"}),
        new_output("execute_result", data={"text/html": '<p id="T_1a2b3_row0">'}),
        count=7,
    )
    run.metadata.execution = {"iopub.execute_input": "2026-01-01T00:00:00"}
    run.metadata.papermill = {"duration": 1.0}
    cells = [text(TITLE), parameters(), injected, run, text("same"), text("same")]
    notebook = new_notebook(cells=cells)
    notebook.metadata.papermill = {"start_time": "2026"}
    return notebook


def test_normalised_keeps_what_a_reader_sees():
    stored = nbformat.reads(rules.normalised_text(noisy(), name="n"), 4)
    assert dict(stored.metadata) == rules.METADATA
    kinds = [cell.cell_type[0] for cell in stored.cells]
    assert kinds == ["m", "c", "c", "m", "m"]  # the injected cell is gone
    run = stored.cells[2]
    assert run.metadata == {}
    assert run.execution_count == 2
    printed, picture, result = run.outputs
    assert printed.text == "20%\nsee data/x.csv, <function f at 0x0>\n"
    assert picture.metadata == {"image/png": {"alt": "A line", "width": 3}}
    assert result.data["text/html"] == '<p id="T_00000_row0">'
    assert result.execution_count == 2


def test_normalised_is_idempotent_and_the_same_for_other_random_ids():
    notebook = noisy()
    first = rules.normalised_text(notebook, name="n")
    notebook.cells[3].outputs[-1].data["text/html"] = '<p id="T_4d5e6_row0">'
    assert rules.normalised_text(notebook, name="n") == first
    assert rules.normalised_text(nbformat.reads(first, 4), name="n") == first


@pytest.mark.parametrize("folder", ["root", "home", "tmp", "Users", "private", "var/folders"])
def test_a_path_of_the_machine_in_an_output_is_an_error(folder):
    path = "/".join(["", folder, "me", "x.py"])
    shown = new_output("display_data", data={"text/html": f"<p>{path}</p>"})
    for output in (stream(f"at {path}:3\n"), shown):
        with pytest.raises(rules.ReportError, match=f"n, cell 1.*{path}"):
            rules.normalised(new_notebook(cells=[code("1", output)]), name="n")


# --- pages


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
    assert not re.search(r"<(link rel=.(?!icon)|iframe)\b|\bsrc=\W?http|@import", page + index)
    assert "default-src 'none'" in page
    assert '<a href="01_a.html"><span class="number">01</span> Title</a>' in index
    assert "The claim, with <math" in index
    assert "preset paper on Some CPU, 2 cores" in index


def test_a_folded_solution_holds_its_text_and_images(tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "x.png").write_bytes(base64.b64decode(PNG))
    inside = '*x*\n\n<img src="x.png" alt="A line">'
    source = text(f"<details><summary>Solution</summary>\n\n{inside}\n\n</details>\n\nafter")
    page, _ = page_of(tmp_path, source)
    folded = re.search(r"<details><summary>Solution.*?</details>", page, re.DOTALL)[0]
    assert "<em>x</em>" in folded
    assert f'src="data:image/png;base64,{PNG}"' in folded
    assert "after" not in folded


def test_a_page_lists_its_sections_and_folds_code_that_only_says(tmp_path):
    sections = text("## One, `a`\n\n### Below\n\n## Two")
    said, made = code("nb.say(f'{x}')\nnb.claim('A.', True)"), code("x = f()\nnb.say(x)")
    start = parameters(), code("import math\n\nnb = f()")
    page, _ = page_of(tmp_path, *start, sections, said, made, code("import late"))
    listed = re.search(r'<nav class="contents".*?</nav>', page, re.DOTALL)[0]
    assert re.findall(r'<a href="#(.+?)">(.+?)</a>', listed) == [
        ("One,-a", "One, <code>a</code>"),
        ("Below", "Below"),
        ("Two", "Two"),
    ]
    assert 'id="One,-a"' in page
    folded = re.findall(r'<details class="fold"><summary>(.*?)</summary>(.*?)</details>', page, 16)
    names = ["Parameters", "Set-up", "Code of these sentences"]
    assert [name for name, _ in folded] == names
    assert "claim" in folded[2][1]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("### Late", "01_a.ipynb: heading 'Late' is of level 3, want at most level 2 here"),
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
    shown = new_output("display_data", data={"text/html": frame.rename_axis("case").to_html()})
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
    (folder / "01-x.png").write_bytes(base64.b64decode(PNG) if same else b"of another run")
    page, index = page_of(tmp_path, code("f()", drawn("01-x")))
    kind, content = ("svg+xml", base64.b64encode(SVG.encode()).decode()) if same else ("png", PNG)
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
    with pytest.raises(ReportError, match=r"01_a.html: .* 'stand-in': no script stand-in.js"):
        page_of(tmp_path, code("f()", moving))
    (site / "stand-in.js").write_text("'a stand-in';")
    page, index = page_of(tmp_path, code("f()", moving, moving))
    assert page.count('<div class="figure interactive" data-interactive="stand-in">') == 2
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
    words = re.sub(r"<.*?>", "", re.search(r'<p class="made">(.*?)</p>', card, re.DOTALL)[1])
    assert words.strip() == "✓ 2 held, ✗ 1 did not hold, ○ 1 not measured"
    assert "Did not hold, disturbed run</td>" in index
    assert "<em>less</em>" in index
    assert "<td>1, 2</td>" in index
    stored = rules.normalised(rules.read(tmp_path / "build" / "01_a.ipynb"), name="n")
    assert [dict(one) for one in rules.claims(stored)] == [
        one.metadata["lstm_kernels"]["claim"] for one in shown
    ]


def site_of(tmp_path, notebooks, texts=()):
    """The site of notebooks and Markdown files: cells or source by name; pages and folder."""
    folder, out = tmp_path / "notebooks", tmp_path / "site"
    built = [
        save(tmp_path / "build" / f"{name}.ipynb", *cells) for name, cells in notebooks.items()
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
    shown.metadata["image/png"]["alt"] = "From 613 ms to 0.35 ms: 1740x. idea against speed."
    _, out = site_of(tmp_path, {"00_a": [text(TITLE), code("f()", shown)]})
    index = (out / "index.html").read_text()
    assert "<figcaption>From 613 ms to 0.35 ms: 1740x. Each bar" in index
    assert index.index("The claim, with") < index.index("<figure>") < index.index("<h3>")


def test_documents_and_notebooks_without_a_number_have_pages(tmp_path):
    (tmp_path / "NOTATION.md").write_text("# Symbols\n\nSee [code](tools.py).")
    (tmp_path / "tools.py").write_text("")
    linking = text("[symbols](../NOTATION.md#sizes) and [teaching](teacher.md)")
    notebooks = {name: [text(TITLE)] for name in ("01_a", "02_b")}
    notebooks["classroom"] = [text("# Class\n\n**A lesson.**"), linking]
    _, out = site_of(tmp_path, notebooks, [("teacher.md", "# Teaching\n\n## A\n\ntext")])
    names = {path.name: path.read_text() for path in out.iterdir()}
    documents = {"teacher.html", "notation.html"}
    assert set(names) == documents | {"01_a.html", "02_b.html", "classroom.html", "index.html"}
    assert '<a href="classroom.html">Class</a>' in names["index.html"]
    assert 'href="notation.html#sizes"' in names["classroom.html"]
    assert "See code.</p>" in names["notation.html"]
    for name in documents:
        assert f'<a href="{name}">' in names["index.html"]
        assert 'rel="' not in names[name].replace('rel="icon"', "")
    around = {name: re.findall(r'rel="(prev|next)" href="(.*?)"', names[name]) for name in names}
    assert set(around["02_b.html"]) == {("prev", "01_a.html"), ("next", "classroom.html")}
    assert len(around["02_b.html"]) == 4  # above and below


def test_the_bibliography_has_every_work_once(tmp_path):
    def citing(*entries):
        return [text(f"{TITLE}\n\n## References\n\n" + "\n".join(entries) + "\n\n## Environment")]

    first = citing("- P. R. Winters, *A Method*, Science 6(3), 1960: the baseline.", "- ACM: *B*.")
    second = citing("1. P. R. Winters, *a method*, Science 6(3), 1960: season.", "2. Z. Abel, *C*.")
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
    assert sorted(path.name for path in old.parent.iterdir()) == ["01_a.html", "index.html"]


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
        (text('<script src="https://example.org/x.js"></script>'), "<script> is not allowed"),
        (text("<style>@import 'https://example.org/x.css'</style>"), "a style fetches"),
        (text("<style>p { background: url( x.png) }</style>"), "a style fetches"),
        (text('<p style="background: url(x.png)">a</p>'), "a style fetches"),
        (text('<video poster="x.png"></video>'), "<video> fetches 'x.png'"),
        (text('<svg><image href="x.png"/></svg>'), "<image> fetches 'x.png'"),
        (text('<form action="x"></form>'), "<form> is not allowed"),
        (text('<p onclick="f()">a</p>'), "<p> runs a script"),
        (text('<a href=" javascript:f()">a</a>'), "<a> runs a script"),
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
    with pytest.raises(rules.ReportError, match="no notebook is executed, run `make report`"):
        pages.make([], tmp_path, tmp_path / "html")


# --- what a notebook shows


@pytest.fixture
def shown(monkeypatch):
    """What is displayed: data and metadata."""
    found = []
    monkeypatch.setattr(
        notebook, "display", lambda data, metadata, raw: found.append((data, metadata))
    )
    return found


@pytest.mark.parametrize(
    ("held", "verdict"),
    [(True, "Held"), (np.False_, "Did not hold"), (None, "Not measured")],
)
def test_a_claim_says_whether_it_held_and_on_what_it_rests(shown, held, verdict):
    assert Notebook.claim("One is two.", held, "1, 2", disturbed="load") is None
    (data, metadata) = shown[0]
    told = f"> **{verdict} in this run.** One is two (1, 2). **Disturbed run: load.**"
    assert data["text/markdown"] == told
    about = {"sentence": "One is two.", "verdict": verdict, "numbers": "1, 2"}
    assert metadata["lstm_kernels"]["claim"] == about | {"disturbed": "load"}
    Notebook.claim("One is two.", held)
    assert shown[1][0]["text/plain"] == f"**{verdict} in this run.** One is two."
    assert "disturbed" not in shown[1][1]["lstm_kernels"]["claim"]


def test_a_claim_needs_a_sentence_and_a_verdict(shown):
    with pytest.raises(TypeError, match="held: got str, want True, False or None"):
        Notebook.claim("One is two.", "yes")
    with pytest.raises(ValueError, match="sentence: got an empty text"):
        Notebook.claim(" ", True)
    assert not shown


def test_the_environment_names_the_packages_that_are_there(monkeypatch):
    machine = notebook.provenance.machine("smoke")
    machine["packages"] |= {"numba": "9.8.7", "numba-cuda": None}
    told = []
    monkeypatch.setattr(notebook.provenance, "machine", lambda preset: machine | {"preset": preset})
    monkeypatch.setattr(notebook, "display", lambda markdown: told.append(markdown.data))
    Notebook("smoke").environment()
    assert "numba 9.8.7" in told[0]
    assert "numba-cuda" not in told[0]


@pytest.mark.parametrize("preset", ["smoke", "paper"])
def test_figures_go_to_build_and_say_when_their_run_was_disturbed(
    shown, tmp_path, monkeypatch, preset
):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    monkeypatch.chdir(folder)
    figure, _ = plt.subplots()
    figure.alt = "A line."
    Notebook(preset).show(figure, "trial", disturbed="load " * 30)
    (data, metadata) = shown[0]
    assert metadata["lstm_kernels"] == {"figure": "trial"}
    assert metadata["image/png"]["alt"].startswith("A line. Disturbed run: load")
    written = sorted((tmp_path / "build" / preset / "figures").iterdir())
    assert [path.name for path in written] == ["trial.png", "trial.svg"]
    assert written[0].read_bytes() == data["image/png"]
    assert "Disturbed run: load" in written[1].read_text()
    assert not list(folder.iterdir())


# --- accepting


def project(tmp_path, *built, overview=()):
    """A project of two notebooks and a README, and what was executed of them in build/."""
    start, last = (text(TITLE), parameters()), code("f()", count=None)
    said = code("nb.say('new')", tags=["readme"], count=None)
    save(tmp_path / "nb" / "00_overview.ipynb", *start, said)
    source = save(tmp_path / "nb" / "01_a.ipynb", *start, last)
    new = new_output("display_data", data={"text/markdown": "the new table"})
    said = code("nb.say('new')", new, *overview, tags=["readme"])
    save(tmp_path / "build" / "00_overview.ipynb", *start, said)
    if built:
        save(tmp_path / "build" / source.name, text(TITLE), *built)
    readme = "![A](figures/00-x.png)\n\n<!-- run: -->\n\nold\n\n<!-- end of run -->\n\nrest\n"
    (tmp_path / "README.md").write_text(readme)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "00-x.png").write_bytes(b"old")
    return source


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("built", "message"),
    [
        ([parameters(), code("f()", error())], "cell 3 raised ValueError"),
        ([parameters(), code("f()", count=None)], "cell 3 is not executed"),
        ([parameters(), code("f()", stream("x", "stderr"))], "1 stderr outputs"),
        ([parameters("smoke"), code("f()")], "PRESET 'smoke', want 'paper'"),
        ([code("f()")], "PRESET None, want 'paper'"),
        ([parameters(), code("f(2)")], "edited since"),
        ([parameters(), code("f()")], "README.md: no notebook draws 00-x"),
        ([], "01_a.ipynb: not executed"),
    ],
)
def test_accept_refuses_and_changes_nothing(tmp_path, capsys, built, message):
    project(tmp_path, *built)
    before = content(tmp_path)
    assert report.main(["accept", str(tmp_path / "build"), str(tmp_path / "nb")]) == 1
    assert message in capsys.readouterr().err
    assert content(tmp_path) == before


FINE = parameters(), code("f()", stream("42\n"))


def test_accept_renews_notebooks_figures_and_readme_of_one_run(tmp_path):
    source = project(tmp_path, *FINE, overview=[drawn("00-x"), drawn("00-y")])
    os.utime(source, (1000, 1000))
    wanted = {"00_overview.ipynb", "01_a.ipynb", "00-x.png", "README.md"}
    assert set(report.accept(tmp_path / "build", tmp_path / "nb")) == wanted
    stored = source.read_text()
    assert "42" in stored
    assert rules.normalised_text(rules.read(source), name=source.name) == stored
    assert source.stat().st_mtime == 1000
    figures = content(tmp_path / "figures")
    assert figures == {tmp_path / "figures" / "00-x.png": base64.b64decode(PNG)}
    readme = (tmp_path / "README.md").read_text()
    assert "\n\nthe new table\n\n<!-- end of run -->\n\nrest\n" in readme
    assert "old" not in readme
    assert report.accept(tmp_path / "build", tmp_path / "nb") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["while writing", "while renaming"])
def test_an_interrupted_accept_renews_all_or_nothing(tmp_path, monkeypatch, number, when):
    project(tmp_path, *FINE, overview=[drawn("00-x")])
    before, replaced, real = content(tmp_path), [], os.replace

    def replace(source, target):
        if not replaced and when == "while renaming":
            os.kill(os.getpid(), number)
        replaced.append(real(source, target))

    def flush(file):
        if when == "while writing":
            os.kill(os.getpid(), number)

    def stop(number, frame):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "fsync", flush)
    handlers = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(KeyboardInterrupt):
            report.accept(tmp_path / "build", tmp_path / "nb")
        assert all(signal.getsignal(n) is stop for n in handlers)
    finally:
        for n, handler in handlers.items():
            signal.signal(n, handler)
    assert len(replaced) == (4 if when == "while renaming" else 0)
    assert content(tmp_path).keys() == before.keys()
    old = [path for path, text in content(tmp_path).items() if text == before[path]]
    assert len(old) == (2 if when == "while renaming" else 6)  # the executed notebooks, or all


# --- the notebooks of the report


def test_the_form_is_checked():
    long = "\n".join(f"a{i} = {i}" for i in range(26))
    found = rules.problems_of_form(new_notebook(cells=[code(long), code("1")]))
    for wanted in (
        "PRESET",
        "2 cells",
        "got 0 text cells, want at least 2",
        "median",
        "9 in 10",
        "longest has 26",
    ):
        assert any(wanted in problem for problem in found), wanted


def test_the_order_and_the_lines_are_checked():
    needs = "What this covers: x.\n\nNeeds: nothing. Runs in a minute."
    start = [text(f"{TITLE}\n\n{needs}"), parameters()]
    end = [text(f"## {name}") for name in ("What we learned", "Exercises", "Environment")]
    order = {"cell 1: ", "cell 2: ", "sections: ", "cites ", "cell 3: "}

    def problems(*cells):
        found = rules.problems_of_form(new_notebook(cells=list(cells)))
        return {name for name in order if any(problem.startswith(name) for problem in found)}

    assert problems(*start, *end) == set()
    assert problems(*start[::-1], *end) == {"cell 1: ", "cell 2: "}
    assert problems(text(TITLE), *start[1:], *end) == {"cell 1: "}
    assert problems(*start, *end[::-1]) == {"sections: "}
    cited = text("As Gers et al. show, and (Hochreiter & Schmidhuber 1997) before.")
    assert problems(*start, cited, *end) == {"cites "}
    assert problems(*start, cited, *end[:2], text("## References"), end[2]) == set()
    assert problems(*start, code("a" * 89), *end) == {"cell 3: "}
    assert problems(*start, code("a" * 88), *end) == set()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_executed_in_form_and_makes_a_page(path):
    notebook = rules.read(path)
    problems = rules.problems_of_execution(notebook) + rules.problems_of_form(notebook)
    if rules.preset(notebook) != "paper":
        problems.append(f"PRESET is {rules.preset(notebook)!r}, want 'paper'")
    if rules.normalised_text(notebook, name=path.name) != path.read_text(encoding="utf-8"):
        problems.append("not in the stored form: want `make accept`")
    assert not problems, "\n".join(problems)
    pages.render(path, path.parent)

"""Tools that execute, store and accept notebooks, on small ones; then the rules, on all
of ours.
"""

import ast
import base64
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import notebook_rules as rules
import numpy as np
import pandas as pd
import pytest
import report
import website
import yaml
from filed import filed, rows_of
from form import computes, outside_functions, problems_of_code, problems_of_form
from made import PNG, TITLE, claim, code, drawn, parameters, save, stream, text
from nbformat.v4 import new_output
from notebook_rules import ReportError
from summary import summary

from lstm_kernels.versions import numba_sample
from lstm_report.lesson import mistakes
from lstm_report.measure import provenance
from lstm_report.notebook import Notebook, Shared

ROOT = Path(__file__).parents[1]
NOTEBOOKS = report.sources()


# --- executing, and the stored form


def test_execute_runs_in_the_notebooks_folder_and_stores_what_a_reader_sees(tmp_path):
    loud = "import os\nfrom lstm_kernels.notes import note\nnote('x', 'it is loud')"
    last = f"print(PRESET, {f'{ROOT}/data'!r})\n"
    last += "print('in', os.getcwd().endswith('notebooks'))"
    folded = code(loud, tags=["hide-input"])
    cells = text(TITLE), parameters(), folded, code(last)
    source = save(tmp_path / "notebooks" / "01_a.ipynb", *cells)
    began = []
    report.execute(source, tmp_path / "01_a.ipynb", "smoke", began.append)
    assert began == [1, 2, 3, 4]
    book = rules.read(tmp_path / "01_a.ipynb")
    assert not [out for _, out, _ in rules.outputs(book) if out.get("name") == "stderr"]
    assert rules.preset(book) == "smoke"
    assert book.cells[-1].outputs[0].text == "smoke data\nin True\n"
    assert rules.dumps(book) == (tmp_path / "01_a.ipynb").read_text()
    assert book.metadata == rules.METADATA | {rules.OURS: book.metadata[rules.OURS]}
    assert len(rules.expected(book, ())) == len(book.cells)
    assert book.cells[2].metadata == {"tags": ["hide-input"]} | rules.FOLDED
    assert all(set(cell.metadata) <= {"tags"} for cell in book.cells[3:])


def test_what_goes_to_stderr_is_a_failure_that_leaves_no_result(tmp_path):
    loud = code("import sys\nprint('loud', file=sys.stderr)")
    path = save(tmp_path / "01_a.ipynb", text(TITLE), parameters(), loud)
    out = save(tmp_path / "out.ipynb", text("an old result"))
    with pytest.raises(ReportError, match=r"01_a\.ipynb, cell 3 wrote to stderr: loud"):
        report.execute(path, out)
    assert [one.name for one in tmp_path.iterdir()] == ["01_a.ipynb"]


# What two pages use, and measuring takes two seconds.
SHARED = """
import time
from pathlib import Path
from lstm_report.notebook import Notebook, Shared
nb = Notebook(PRESET, root=Path(".."))
nb.processes = lambda measure, seconds: measure(seconds) or "rows"
rows = nb.shared(Shared(time.sleep, {"seconds": 2}, {}))
"""


def test_what_rows_of_other_pages_take_is_told_whoever_measures_them(tmp_path):
    books = []
    for name in ("01_a.ipynb", "02_b.ipynb"):
        cells = text(TITLE), parameters(), text("a"), code(SHARED.lstrip())
        path = save(tmp_path / "notebooks" / name, *cells)
        report.execute(path, tmp_path / name, "smoke")
        books.append(rules.read(tmp_path / name))
    name = "time.sleep"
    assert [rules.took(book)["shared"] for book in books] == [
        {name: [4, 2, True]},
        {name: [4, 2, False]},
    ]
    for book in books:
        alone, taken = rules.expected(book, ()), rules.expected(book, [name])
        more = [one - other for one, other in zip(alone, taken, strict=True)]
        assert more == [0, 0, 0, 2]
        assert not [*rules.outputs(book)]


@pytest.mark.parametrize("content", [b"", b"damaged", None])
def test_shared_rows_that_are_damaged_or_older_than_the_code_are_measured_anew(
    shown, tmp_path, content
):
    nb, asked = shown.notebook(root=tmp_path), []
    nb.processes = lambda measure, steps: asked.append(steps) or "rows"
    what = Shared(sorted, {"steps": 1}, {"steps": 7})
    for _ in range(2):
        assert nb.shared(what) == "rows"
    assert asked == [7]
    (kept,) = (tmp_path / "build" / "paper" / "shared").iterdir()
    if content is None:
        os.utime(kept, (1, 1))
    else:
        kept.write_bytes(content)
    assert nb.shared(what) == "rows"
    assert asked == [7, 7]


# --- what a notebook shows


class Shown(list):
    """What a notebook shows: pairs of data and metadata, Markdown as its text."""

    def notebook(self, preset="paper", **how):
        return Notebook(preset, display=self.take, **how)

    def take(self, data, metadata=None, raw=False):
        self.append((data if raw else data.data, metadata))


@pytest.fixture
def shown():
    return Shown()


@pytest.mark.parametrize("recorded", ["", "2026-01-02, a machine"])
@pytest.mark.parametrize(
    ("held", "verdict"),
    [(True, "Held"), (np.False_, "Did not hold"), (None, "Not measured")],
)
def test_a_claim_says_whether_it_held_in_which_run_and_why_not(
    shown, held, verdict, recorded
):
    how = {"why": "Two is more.", "disturbed": "load", "recorded": recorded}
    shown.notebook().claim("One is two.", held, "1, 2", **how)
    [(data, metadata)] = shown
    run = f"the recorded run of {recorded}" if recorded else "this run"
    why = " Two is more." if verdict == "Did not hold" else ""
    told = f"> **{verdict} in {run}.** One is two (1, 2).{why} **Disturbed run: load.**"
    assert data["text/markdown"] == told
    about = metadata["lstm_kernels"]["claim"]
    assert (about["verdict"], about["disturbed"]) == (verdict, "load")
    assert ("why" in about, about.get("recorded", "")) == (bool(why), recorded)


@pytest.mark.parametrize(
    ("sentence", "held", "why", "said"),
    [
        ("One is two.", "yes", "x", "held: got str, want True, False or None"),
        (" ", True, "x", "sentence: got an empty text"),
        ("One is two.", True, "", "why: got an empty text"),
    ],
)
def test_a_claim_needs_a_sentence_a_verdict_and_a_reason(
    shown, sentence, held, why, said
):
    with pytest.raises((TypeError, ValueError), match=said):
        shown.notebook().claim(sentence, held, "", why=why)
    assert not shown


def test_a_sentence_says_what_disturbed_its_times(shown):
    shown.notebook().say("\n    One\n    two.")
    shown.notebook().say("Three.", "quartiles 40 % apart")
    disturbed = "Three. **Disturbed run: quartiles 40 % apart.**"
    assert shown == [("One\ntwo.", None), (disturbed, None)]


@pytest.mark.parametrize(("here", "seconds"), [("a", 2.0), ("c", 5.0)])
def test_recorded_rows_are_of_this_machine_or_of_the_last(
    shown, tmp_path, here, seconds
):
    filed(tmp_path, rows_of(2.0), machine="a", date="2026-02-01")
    filed(tmp_path, rows_of(5.0), machine="b", date="2026-05-01")
    nb = shown.notebook(machine=lambda: {"name": here})
    assert nb.recorded("trial", tmp_path)["seconds"].to_list() == [seconds]
    [(told, _)] = shown
    assert told.startswith("Recorded: ")
    assert f"recorded 2026-0{seconds:.0f}-01" in told


BAD = "<b>x</b> [y](z) `q`\n\n# t"
WELL = "&#60;b&#62;x&#60;/b&#62; &#91;y&#93;(z) &#96;q&#96; &#35; t"


def test_what_a_machine_says_of_itself_is_text(shown):
    here = provenance.machine("paper") | dict.fromkeys(("cpu", "system"), BAD)
    here |= {"gpu": {"name": BAD, "driver": BAD}, "distorting_variables": [BAD]}
    nb = shown.notebook(machine=lambda preset=None: here)
    assert nb.machine().startswith(f"{WELL}, ")
    nb.environment()
    lines = shown.pop()[0].splitlines()
    assert all(re.match(r"- [A-Z][\w ]+: ", line) for line in lines)
    assert sum(line.count(WELL) for line in lines) == 5
    nb.claim("One is two.", True, "", why="x", recorded=BAD)
    assert f"Held in the recorded run of {WELL}." in shown[0][0]["text/markdown"]


def test_a_cell_of_a_table_stays_one_cell(shown):
    cells = {"a | b": ["one\n\n# two", "{c}`d` <e>"], "f": [0.123456, 7.0]}
    shown.notebook().table(pd.DataFrame(cells, index=["`g`", "[h](i)"]))
    assert shown[0][0].splitlines() == [
        r"| case | a \| b | f |",
        "| --- | --- | ---: |",
        "| `g` | one # two | 0.123 |",
        "| [h](i) | &#123;c}`d` &#60;e> | 7 |",
    ]


def linted():
    one = lambda: 1  # noqa: E731 - a name
    return one


def test_sources_are_shown_without_marks_and_with_the_lines_that_changed(shown):
    shown.notebook().source(linted)
    lines = "def linted():\n    one = lambda: 1  # a name\n    return one\n"
    assert shown.pop() == (f"```python\n{lines}```", None)
    shown.notebook().changes(mistakes.forward_steps, numba_sample.forward_samples)
    marked = [line for line in shown[0][0].splitlines() if line.startswith("+")]
    assert "+     for s in prange(B):" in marked
    assert not any("add_product" in line for line in marked)  # indented alike or not


@pytest.mark.parametrize("standalone", [False, True])
def test_figures_go_to_build_and_nowhere_without_the_repository(
    shown, tmp_path, standalone
):
    figure, _ = plt.subplots()
    figure.alt = "A line."
    about = {"disturbed": "load " * 30, "interactive": "schedules"}
    nb = shown.notebook(page=5, root=None if standalone else tmp_path)
    nb.show(figure, "trial", "It falls.", **about)
    (data, metadata), (caption, _) = shown
    assert metadata["lstm_kernels"] == {"figure": "trial", "interactive": "schedules"}
    assert metadata["image/png"]["alt"].startswith("A line. Disturbed run: load")
    assert caption == "**Figure 5.1.** It falls."
    written = content(tmp_path)
    folder = tmp_path / "build" / "paper" / "figures"
    names = [] if standalone else ["trial.png", "trial.svg"]
    assert set(written) == {folder / name for name in names}
    assert standalone or written[folder / "trial.png"] == data["image/png"]


def test_a_figure_with_letters_that_a_telephone_shows_too_small_is_refused(shown):
    figure, ax = plt.subplots()
    ax.set_title("Small", fontsize=9)
    with pytest.raises(ValueError, match=r"figure: got small letters in \['Small'\]"):
        shown.notebook(root=None).show(figure, "trial")
    assert not shown


@pytest.mark.parametrize("alt", ['"A" first', "two\nlines", "a # b", "it's: \\d"])
def test_an_alternative_text_stays_one_option_of_its_figure(tmp_path, alt):
    output = drawn("01-x")
    output.metadata["image/png"]["alt"] = alt
    website.show(output, {"figure": "01-x"}, "claim-1", tmp_path)
    place, _, *lines, _ = output.data["text/markdown"].splitlines()
    assert place == "(figure-01-x)="
    told = yaml.safe_load("\n".join(line.removeprefix(":") for line in lines))
    assert told == {"alt": alt, "figclass": "still"}


# --- accepting


DRAWN = {"00-x": "<svg>new</svg>", "00-y": "<svg>y</svg>"}


def project(folder, *built, overview=(), old=(), drawn=DRAWN):
    """A project of two notebooks and a README, and what was executed and drawn of
    them.
    """
    start = text(TITLE), parameters()
    save(folder / "notebooks" / "00_o.ipynb", *start, code("f()", *old))
    save(folder / "notebooks" / "01_a.ipynb", *start, code("f()", count=None))
    save(folder / "build" / "00_o.ipynb", *start, code("f()", *overview))
    if built:
        save(folder / "build" / "01_a.ipynb", text(TITLE), *built)
    (folder / "README.md").write_text("![A](figures/00-x.png)\n")
    (folder / "figures").mkdir()
    for name in ("00-x.png", "00-x.svg", "gone.svg", "gone.png"):
        (folder / "figures" / name).write_bytes(b"old")
    (folder / "build" / "figures").mkdir()
    for name, svg in drawn.items():
        (folder / "build" / "figures" / f"{name}.svg").write_text(svg)
        png = folder / "build" / "figures" / f"{name}.png"
        png.write_bytes(base64.b64decode(PNG))


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def caption(words):
    return new_output("display_data", data={"text/markdown": words})


OVERVIEW = [
    drawn("00-x"),
    caption("**Figure 0.1.** As [01](01_a.ipynb) says."),
    drawn("00-y"),
    caption("**Figure 0.2.**"),
]
DONE = parameters(), code("f()", stream("42\n"))


@pytest.mark.parametrize(
    ("built", "overview", "message"),
    [
        (
            [parameters("smoke"), code("f()")],
            [],
            "01_a.ipynb: not executed with PRESET",
        ),
        ([parameters(), code("f(2)")], [], "01_a.ipynb: edited since it was executed"),
        (DONE, [], "README.md: no notebook draws 00-x"),
        (DONE, [drawn("00-x"), drawn("00-z")], r"00-z.svg is not of this run"),
        (DONE, [drawn("00-x"), drawn("00-x")], "00-x is drawn twice"),
        ([], [], "01_a.ipynb: not executed"),
    ],
)
def test_accept_refuses_and_changes_nothing(tmp_path, built, overview, message):
    project(tmp_path, *built, overview=overview)
    before = content(tmp_path)
    with pytest.raises(ReportError, match=message):
        report.accept(tmp_path / "build", tmp_path)
    assert content(tmp_path) == before


def test_accept_refuses_pages_of_older_code(tmp_path):
    project(tmp_path, *DONE, overview=OVERVIEW)
    for page in (tmp_path / "build").glob("*.ipynb"):
        os.utime(page, (1, 1))
    before = content(tmp_path)
    (tmp_path / "lstm_report").mkdir()
    (tmp_path / "lstm_report" / "a.py").write_text("")
    with pytest.raises(ReportError, match=r"01_a.ipynb: the code has changed since"):
        report.accept(tmp_path / "build", tmp_path)
    after = content(tmp_path)
    assert {path: after[path] for path in before} == before


def test_accept_renews_notebooks_and_figures_of_one_run(tmp_path):
    project(tmp_path, *DONE, overview=OVERVIEW)
    notebooks = {"00_o.ipynb", "01_a.ipynb"}
    figures = {"00-x.png", "00-x.svg", "00-y.svg", "README.md"}
    gone = {"gone.svg", "gone.png"}
    changed = report.accept(tmp_path / "build", tmp_path)
    assert sorted(changed) == sorted(notebooks | figures | gone)
    for name in notebooks:
        built = (tmp_path / "build" / name).read_bytes()
        assert (tmp_path / "notebooks" / name).read_bytes() == built
    assert {path.name for path in (tmp_path / "figures").iterdir()} == figures
    picture = (tmp_path / "figures" / "00-x.png").read_bytes()
    assert picture == base64.b64decode(PNG)
    for name, svg in DRAWN.items():
        assert (tmp_path / "figures" / f"{name}.svg").read_text() == svg
    lines = (tmp_path / "figures" / "README.md").read_text().splitlines()
    assert lines[-4:] == [
        "## [00 Title](../notebooks/00_o.ipynb)",
        "",
        "- [00-x](00-x.svg): **Figure 0.1.** As 01 says.",
        "- [00-y](00-y.svg): **Figure 0.2.** A line",
    ]
    assert report.accept(tmp_path / "build", tmp_path) == []


def test_a_page_that_was_executed_before_this_build_keeps_its_drawing(tmp_path):
    project(tmp_path, *DONE, overview=OVERVIEW[:2], old=OVERVIEW[:2], drawn={})
    report.accept(tmp_path / "build", tmp_path)
    assert (tmp_path / "figures" / "00-x.svg").read_bytes() == b"old"


# --- the end of a run


PLACE = "build/site/00_o.html#claim-00_o"


def ended(folder, **how):
    """The lines at the end of a run of the project."""
    return summary(folder / "build", report.sources(folder), **how).splitlines()


def test_the_summary_counts_claims_and_tells_what_came_out_otherwise(tmp_path):
    failed = claim("B.", "Did not hold", why="It is 3.")
    gpu = claim("E.", "Not measured", numbers="no GPU")
    new = claim("A."), failed, claim("C."), claim("D.", "Held"), gpu
    old = claim("A."), claim("B."), claim("C.", "Not measured")
    project(tmp_path, overview=new, old=old)
    assert ended(tmp_path, site="build/site") == [
        "Claims: 3 held, 1 did not, 1 not measured.",
        "2 claims came out otherwise than in the stored run; a result, not an error: "
        "times vary with the machine.",
        "00_o: 0 s",
        "  claim 2, did not hold, stored run: held: B.",
        "    It is 3.",
        f"    {PLACE}-2",
        "  claim 3, held, stored run: not measured: C.",
        f"    {PLACE}-3",
        "  claim 5, not measured (no GPU): E.",
        f"    {PLACE}-5",
        "01_a: not executed",
    ]


def test_one_page_is_summed_up_alone_and_what_is_as_stored_is_not_told(tmp_path):
    project(tmp_path, *DONE, overview=[claim("A.")], old=[claim("A.")])
    [first, second] = report.sources(tmp_path)
    lines = summary(tmp_path / "build", [second]).splitlines()
    assert lines == ["Claims: none.", "01_a: 0 s"]
    lines = summary(tmp_path / "build", [first]).splitlines()
    assert lines == ["Claims: 1 held.", "00_o: 0 s"]


def test_the_stored_run_counts_what_it_took_from_other_pages_if_this_one_did_not(
    tmp_path,
):
    project(tmp_path, *DONE)
    for place, seconds, made in (("notebooks", 16, False), ("build", 380, True)):
        book = rules.read(tmp_path / place / "01_a.ipynb")
        took = {"seconds": seconds, "shared": {"a.b": [2, 350, made]}}
        book = rules.stored(book, took)
        report.write(tmp_path / place / "01_a.ipynb", rules.dumps(book))
    assert ended(tmp_path)[-1] == "01_a: 380 s, stored run 366 s"


def test_small_sizes_are_compared_with_nothing(tmp_path):
    failed = claim("B.", "Did not hold")
    project(tmp_path, parameters("smoke"), code("f()", failed), overview=[claim("A.")])
    [told, *lines] = ended(tmp_path)
    assert "no number says anything about speed" in told
    assert lines == ["00_o: 0 s", "01_a: 0 s"]


# --- commands


@pytest.mark.parametrize("command", ["bench", "gpu"])
def test_a_command_without_its_packages_names_the_extra(command):
    program = "import runpy, sys; sys.modules['psutil'] = None; "
    program += "runpy.run_module('lstm_report', run_name='__main__')"
    words = [sys.executable, "-c", program, command]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode != 0
    [line] = done.stderr.splitlines()
    assert "[report]" in line


# --- the notebooks of the report


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("a = 2 * b", "arithmetic"),
        ("a += 1", "arithmetic"),
        ("nb.claim('One.', gain > 1, '')", "a comparison"),
        ("nb.say(f'{1e3 * a} ms')", "arithmetic"),
        ("nb.say(f'{a:.3g} ms')", "a format"),
        ("if len(a) == 2:\n    nb.say(a)", "a comparison"),
        ("a = [2 * b for b in c]", "arithmetic"),
        ("nb.claim(f'{speed(gain)}', at_least(gain, 1.6), ms(a))", None),
        ("def double(a):\n    return 2 * a", None),
    ],
)
def test_what_a_cell_computes_is_seen(source, what):
    found = map(computes, outside_functions(ast.parse(source)))
    assert next(filter(None, found), None) == what


def test_long_cells_and_much_code_are_seen():
    line = "nb.say(a)\n"
    many = [code(16 * line), *(code(15 * line) for _ in range(9))]
    folded = code(15 * line, tags=["hide-input"])
    kernel = code(20 * line, tags=["kernel"])
    found = problems_of_code(rules.nbformat.v4.new_notebook(cells=[*many, folded]))
    assert found == [
        "cell 1: 16 lines, want at most 15",
        "151 lines of code in view, want at most 150",
    ]
    assert not problems_of_code(rules.nbformat.v4.new_notebook(cells=[folded, kernel]))


def test_a_column_without_a_name_is_not_in_form():
    book = rules.read(NOTEBOOKS[0])
    before = problems_of_form(book)
    book.cells[0].source += "\n\n| goal | | page |\n|---|---|---|\n| a | b | c |"
    (more,) = set(problems_of_form(book)) - set(before)
    assert more == "a column without a name: | goal | | page |"
    book.cells[0].source = book.cells[0].source.replace("| |", "| state |")
    assert set(problems_of_form(book)) == set(before)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_executed_in_form_and_its_links_lead_somewhere(path):
    book = rules.read(path)
    before = path.read_text(encoding="utf-8")
    problems = problems_of_form(book)
    if list(ROOT.glob(f"lstm_report/pages/page_{path.stem.partition('_')[0]}.py")):
        problems += problems_of_code(book)
    problems += [
        f"cell {number} is not executed"
        for number, cell in enumerate(book.cells, start=1)
        if cell.cell_type == "code" and cell.source and cell.execution_count is None
    ]
    if rules.preset(book) != "paper":
        problems.append(f"PRESET is {rules.preset(book)!r}, want 'paper'")
    if rules.dumps(rules.stored(book, rules.took(book))) != before:
        problems.append("not in the stored form: want `make accept`")
    for cell in book.cells:
        if cell.cell_type == "markdown":
            links = re.findall(r"\]\((?!\w+:|#)([^)\s#]+)", cell.source)
            problems += [link for link in links if not (path.parent / link).exists()]
    assert not problems, "\n".join(problems)
    assert nbformat.validate(book) is None

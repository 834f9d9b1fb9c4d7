"""What notebooks of the report show, how results are summed up and taken over, and the
form of every page.
"""

import base64
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import accept
import matplotlib.pyplot as plt
import nbformat
import notebook_rules as rules
import numpy as np
import pandas as pd
import pytest
from filed import filed, rows_of
from form import problems_of_code, problems_of_form
from made import PNG, TITLE, claim, code, drawn, markdown, parameters, save
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from summary import summary

from lstm_kernels.versions import numba_sample
from lstm_report import runs
from lstm_report.lesson import mistakes
from lstm_report.measure import provenance
from lstm_report.notebook import Notebook, Shared

NOTEBOOKS = rules.notebooks(Path(__file__).parents[1] / "notebooks")


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


def test_shared_rows_that_are_damaged_or_older_than_the_code_are_measured_anew(
    shown, tmp_path
):
    nb, asked = shown.notebook(root=tmp_path), []
    nb.processes = lambda measure, steps: asked.append(steps) or "rows"
    rows = partial(nb.shared, Shared(sorted, {"steps": 1}, {"steps": 7}))
    assert rows() == rows() == "rows"
    assert asked == [7]
    (kept,) = (tmp_path / "build" / "paper" / "shared").iterdir()
    kept.write_bytes(b"damaged")
    assert rows() == rows() == "rows"
    assert asked == [7, 7]
    os.utime(kept, (1, 1))
    assert rows() == "rows"
    assert asked == [7, 7, 7]
    assert not shown


@pytest.mark.parametrize(
    ("held", "verdict", "why"),
    [
        (True, "Held", ""),
        (np.False_, "Did not hold", " Two is more."),
        (None, "Not measured", ""),
    ],
)
def test_a_claim_says_whether_it_held_in_which_run_and_why_not(
    shown, held, verdict, why
):
    about = {"why": "Two is more.", "disturbed": "load"}
    shown.notebook().claim("One is two.", held, "1, 2", **about)
    shown.notebook().claim("One.", held, "", why="x.", recorded="2026, <b>")
    (data, metadata), (recorded, _) = shown
    said = f"One is two (1, 2).{why} **Noisy run: load.**"
    assert data["text/markdown"] == f"> **{verdict} in this run.** {said}"
    run = f"**{verdict} in the recorded run of 2026, &#60;b&#62;.**"
    assert recorded["text/markdown"].startswith(f"> {run} One.")
    claimed = metadata["lstm_kernels"]["claim"]
    assert (claimed["verdict"], claimed["disturbed"]) == (verdict, "load")
    assert claimed.get("why", "") == why.strip()


@pytest.mark.parametrize(
    ("claimed", "said"),
    [
        (("One is two.", "yes", "x"), "held: got str, want True, False or None"),
        ((" ", True, "x"), "sentence: got an empty text"),
        (("One is two.", True, ""), "why: got an empty text"),
    ],
)
def test_a_claim_needs_a_sentence_a_verdict_and_a_reason(shown, claimed, said):
    sentence, held, why = claimed
    with pytest.raises((TypeError, ValueError), match=said):
        shown.notebook().claim(sentence, held, "", why=why)
    assert not shown


def test_a_sentence_says_what_disturbed_its_times(shown):
    shown.notebook().say("\n    One\n    two.", "quartiles 40 % apart")
    said = "One\ntwo. **Noisy run: quartiles 40 % apart.**"
    assert shown == [(said, None)]


def test_recorded_rows_are_of_this_machine_or_of_the_last(shown, tmp_path):
    filed(tmp_path, rows_of(2.0), machine="a", date="2026-02-01")
    filed(tmp_path, rows_of(5.0), machine="b", date="2026-05-01")
    for here, seconds in (("a", 2.0), ("c", 5.0)):
        nb = shown.notebook(machine={"name": here}.copy)
        assert nb.recorded("trial", tmp_path)["seconds"].to_list() == [seconds]
        assert f"recorded 2026-0{seconds:.0f}-01" in shown.pop()[0]


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


def test_figures_go_to_build_and_nowhere_without_the_repository(shown, tmp_path):
    for root in (None, tmp_path):
        figure, _ = plt.subplots()
        figure.alt = "A line."
        nb = shown.notebook(page=5, root=root)
        nb.show(figure, "trial", "It falls.", disturbed="load " * 30)
        assert bool(content(tmp_path)) == bool(root)
    (data, metadata), (caption, _) = shown[2:]
    assert metadata["lstm_kernels"] == {"figure": "trial"}
    assert metadata["image/png"]["alt"].startswith("A line. Noisy run: load")
    assert caption == "**Figure 5.1.** It falls."
    folder, written = tmp_path / "build" / "paper" / "figures", content(tmp_path)
    assert {*written} == {folder / "trial.png", folder / "trial.svg"}
    assert written[folder / "trial.png"] == data["image/png"]


def test_a_figure_with_letters_that_a_telephone_shows_too_small_is_refused(shown):
    figure, ax = plt.subplots()
    ax.set_title("Small", fontsize=9)
    with pytest.raises(ValueError, match=r"figure: got small letters in \['Small'\]"):
        shown.notebook(root=None).show(figure, "trial")
    assert not shown


# --- what is taken over, and the end of a run


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def project(tmp_path):
    """A project of two pages, README and old figures; what was executed and drawn."""
    captions = [markdown(f"**Figure 0.{k}.**{said}") for k, said in CAPTIONS.items()]
    outputs = drawn("00-x"), captions[0], drawn("00-y"), captions[1], *NEW
    for folder, first in (("notebooks", OLD), ("build", outputs)):
        save(tmp_path / folder / "00_o.ipynb", TITLE, parameters(), code("f()", *first))
        save(tmp_path / folder / "01_a.ipynb", TITLE, parameters(), code("f()"))
    (tmp_path / "README.md").write_text("![A](figures/00-x.png)\n")
    for name in ("figures/00-x.png", "figures/gone.svg", "build/figures/00-z.svg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"old")
    for name in ("00-x", "00-y"):
        (tmp_path / "build" / "figures" / f"{name}.svg").write_text(f"<svg>{name}")
        (tmp_path / "build" / "figures" / f"{name}.png").write_bytes(DRAWN)
    return tmp_path


CAPTIONS = {1: " As [01](01_a.ipynb) says.", 2: ""}
DRAWN = base64.b64decode(PNG)
NEW = claim("A."), claim("B.", "Did not hold"), claim("C."), claim("D.")
NEW += (claim("E.", "Not measured"),)
OLD = claim("A."), claim("B."), claim("C.", "Not measured")


def test_accept_renews_notebooks_and_figures_of_one_run(project):
    build, figures = project / "build", project / "figures"
    os.utime(build / "00_o.ipynb", (7, 7))
    accept.accept(build, project)
    for name in ("00_o.ipynb", "01_a.ipynb"):
        stored = project / "notebooks" / name
        assert stored.read_bytes() == (build / name).read_bytes()
    assert (project / "notebooks" / "00_o.ipynb").stat().st_mtime == 7  # make: not new
    names = {path.name for path in figures.iterdir()}
    assert names == {"00-x.png", "00-x.svg", "00-y.svg", "README.md"}
    assert (figures / "00-x.png").read_bytes() == DRAWN
    assert (figures / "00-y.svg").read_text() == "<svg>00-y"
    assert (figures / "README.md").read_text().splitlines()[-4:] == [
        "## [00 Title](../notebooks/00_o.ipynb)",
        "",
        "- [00-x](00-x.svg): **Figure 0.1.** As 01 says.",
        "- [00-y](00-y.svg): **Figure 0.2.** A line",
    ]


def test_accept_takes_no_page_that_is_not_executed_in_full(project):
    before = content(project / "notebooks")
    for cell in (parameters("smoke"), new_code_cell("g()")):
        save(project / "build" / "01_a.ipynb", TITLE, cell)
        with pytest.raises(SystemExit, match=r"01_a.ipynb is not executed in full"):
            accept.accept(project / "build", project)
    assert content(project / "notebooks") == before


def test_accept_takes_no_run_of_other_pages(project):
    build = project / "build"
    with pytest.raises(SystemExit, match=r"nothing is accepted: .*run.json"):
        accept.checked(build, project)
    told = rules.claims(rules.read(build / "00_o.ipynb"))
    machine = provenance.machine("paper") | {"name": "one", "commit": None}
    for claims, ok in ((told, True), (told[1:], False)):
        runs.write(build / "run.json", machine, {"00_o": (claims, [])})
        if ok:
            assert accept.checked(build, project) == build / "run.json"
        else:
            with pytest.raises(SystemExit, match="is not of these pages"):
                accept.checked(build, project)


def test_accept_takes_no_figure_of_another_run_and_changes_nothing(project):
    (project / "build" / "figures" / "00-y.png").write_bytes(b"of Jupyter")
    before = content(project)
    with pytest.raises(SystemExit, match=r"nothing is accepted: .*00-y.png is not of"):
        accept.accept(project / "build", project)
    assert content(project) == before


def test_paragraphs_beside_a_claim_that_came_out_otherwise_are_named():
    text = [new_markdown_cell(f"{t}\n\n## {t} again") for t in ("Before.", "Here.")]
    said = code("f()", claim("A."), claim("B."))
    before = new_notebook(cells=[*text, said])
    now = new_notebook(
        cells=[*text, code("f()", claim("A."), claim("B.", "Not measured"))]
    )
    assert accept.changed(before, before) == []
    assert accept.changed(before, now) == [
        "Held, now Not measured: B.",
        "    read again: Here. again",
    ]


def test_the_summary_counts_claims_and_tells_what_came_out_otherwise(project):
    sources = rules.notebooks(project / "notebooks")
    (project / "build" / "01_a.ipynb").unlink()
    place = "    site/notebooks/00_o.html#claim-00_o"
    assert summary(project / "build", "site", sources) == [
        "Claims: 3 held, 1 did not, 1 not measured.",
        "Claims that came out otherwise than in the stored run: 2; a result, not an "
        "error: times vary with the machine.",
        "Medians outside the range of the stored run: 0 of 0.",
        "00_o: did not hold, stored run: held: B.",
        f"{place}-2",
        "00_o: held, stored run: not measured: C.",
        f"{place}-3",
        "00_o: not measured: E.",
        f"{place}-5",
        "01_a: not executed",
    ]
    assert summary(project / "build", "site", sources[1:]) == [
        "Claims: none.",
        "Medians outside the range of the stored run: 0 of 0.",
        "01_a: not executed",
    ]


def test_small_sizes_are_compared_with_nothing(project):
    failed = code("f()", claim("B.", "Did not hold"))
    save(project / "build" / "01_a.ipynb", TITLE, parameters("smoke"), failed)
    sources = rules.notebooks(project / "notebooks")
    (said,) = summary(project / "build", "site", sources)
    assert "no number says anything about speed" in said


def test_a_command_without_its_packages_names_the_extra():
    program = "import runpy, sys; sys.modules['psutil'] = None; "
    program += "runpy.run_module('lstm_report', run_name='__main__')"
    words = [sys.executable, "-c", program, "gpu"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode != 0
    [line] = done.stderr.splitlines()
    assert "[report]" in line


# --- the notebooks of the report


def test_departures_of_a_page_are_seen():
    line, tags = "nb.say(a)\n", {"tags": ["kernel"]}
    cells = [code(26 * line), code(25 * line), code(26 * line, **tags), code("a" * 89)]
    assert problems_of_code(new_notebook(cells=cells)) == [
        "cell 1: 26 lines, want at most 25",
        f"cell 4: 89 characters: {'a' * 89}",
    ]
    book = rules.read(NOTEBOOKS[0])
    book.cells[0].source = "# A\n\n| goal | |\n|---|---|\n\nOne and Two 1997"
    book.cells[1].source = ""
    book.cells.append(code("f()", drawn("x", alt=" ")))
    book.cells = [cell for cell in book.cells if "## Exercises" not in cell.source]
    said = "\n".join(problems_of_form(book))
    wants = "bold claim", "sets PRESET", "sections: got", "a section 'References'"
    for want in (*wants, "column without a name: | goal | |", "without alternative"):
        assert want in said


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_executed_in_form_and_its_links_lead_somewhere(path):
    book, text = rules.read(path), path.read_text(encoding="utf-8")
    problems = problems_of_form(book) + problems_of_code(book)
    for number, cell in enumerate(book.cells, start=1):
        if cell.cell_type == "code" and cell.source and cell.execution_count is None:
            problems.append(f"cell {number} is not executed")
        if cell.cell_type == "markdown":
            links = re.findall(r"\]\((?!\w+:|#)([^)\s#]+)", cell.source)
            problems += [link for link in links if not (path.parent / link).exists()]
    assert not problems, "\n".join(problems)
    nbformat.validate(book)
    assert rules.dumps(rules.stored(book, "paper")) == text, "want `make accept`"

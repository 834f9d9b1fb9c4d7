"""Tools that execute, store and accept notebooks, on small ones; then the rules, on all
of ours.
"""

import base64
import builtins
import os
import re
import signal
import subprocess
import symtable
import sys
import time
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
from form import problems_of_form
from made import PNG, TITLE, claim, code, drawn, parameters, save, stream, text
from nbformat.v4 import new_notebook
from notebook_rules import ReportError

from lstm_report import notebook
from lstm_report.notebook import Notebook

ROOT = Path(__file__).parents[1]
NOTEBOOKS = report.sources()


# --- executing


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A notebook executed with PRESET smoke, and one that fails in cell 3: (good, bad,
    message).
    """
    folder = tmp_path_factory.mktemp("executed")
    last = "print(PRESET)\nprint('in', os.getcwd().endswith('notebooks'))"
    loud = "import os\nfrom lstm_kernels.kernels import report_compiling\n"
    loud += "report_compiling(9, 'x')"
    start = (text(TITLE), parameters())
    good = save(folder / "notebooks" / "01_a.ipynb", *start, code(loud), code(last))
    bad = save(folder / "notebooks" / "02_b.ipynb", *start, code("1 / 0"), code("2"))
    run = [sys.executable, ROOT / "tools" / "report.py", "execute"]
    outs = folder / "build" / good.name, folder / "build" / bad.name
    save(outs[1], text("an old result"))
    subprocess.run([*run, good, outs[0], "-p", "PRESET", "smoke"], check=True)
    done = subprocess.run([*run, bad, outs[1]], capture_output=True, text=True)
    assert done.returncode == 1
    return *outs, done.stderr


def test_execute_runs_in_the_notebooks_folder_with_the_preset(executed):
    book = rules.read(executed[0])
    assert not [out for _, out, _ in rules.outputs(book) if out.get("name") == "stderr"]
    assert rules.preset(book) == "smoke"
    assert book.cells[-1].outputs[0].text == "smoke\nin True\n"
    assert rules.dumps(book) == executed[0].read_text()
    assert set(book.metadata) == {*rules.METADATA, rules.OURS}
    assert all(set(cell.metadata) <= {"tags"} for cell in book.cells)


def test_a_failing_cell_is_reported_and_leaves_no_result(executed):
    _, bad, message = executed
    assert message.endswith(
        "02_b.ipynb, cell 3 failed: ZeroDivisionError: division by zero\n"
    )
    assert not list(bad.parent.glob("02*"))


def test_what_goes_to_stderr_is_a_failure(tmp_path):
    cells = (
        text(TITLE),
        parameters(),
        code("import sys\nprint('loud', file=sys.stderr)"),
    )
    path = save(tmp_path / "01_a.ipynb", *cells)
    with pytest.raises(ReportError, match=r"01_a\.ipynb, cell 3 wrote to stderr: loud"):
        report.execute(path, tmp_path / "out.ipynb")
    assert [one.name for one in tmp_path.iterdir()] == ["01_a.ipynb"]


@pytest.mark.parametrize("seconds", [0.5, 3])
def test_an_interrupt_is_a_line_without_a_traceback(tmp_path, seconds):
    cells = text(TITLE), parameters(), code("import time\ntime.sleep(60)")
    path = save(tmp_path / "01_a.ipynb", *cells)
    words = [sys.executable, "tools/report.py", "execute", path, tmp_path / "out.ipynb"]
    process = subprocess.Popen(
        words,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=30)[1]
    assert said == "report: interrupted; the same call goes on from here\n"
    assert process.returncode == 130
    assert [path.name for path in tmp_path.iterdir()] == ["01_a.ipynb"]


# --- the stored form


def test_the_stored_form_is_the_same_everywhere():
    cell = code("1", stream(f"in {ROOT}/data\n"), tags=["a"])
    cell.metadata["collapsed"] = True
    book = rules.stored(new_notebook(cells=[cell]), seconds=1.4)
    assert book.cells[0].outputs[0].text == "in data\n"
    assert book.cells[0].metadata == {"tags": ["a"]}
    assert book.metadata == rules.METADATA | {rules.OURS: {"seconds": 1}}
    text = rules.dumps(book)
    assert rules.dumps(rules.stored(book, seconds=rules.seconds(book))) == text


# --- what a notebook shows


@pytest.fixture
def shown(monkeypatch):
    """What is displayed: data and metadata."""
    found = []
    monkeypatch.setattr(
        notebook,
        "display",
        lambda data, metadata=None, raw=False: found.append((data, metadata)),
    )
    return found


@pytest.mark.parametrize("held", [True, np.False_, None])
@pytest.mark.parametrize("recorded", ["", "2026-01-02, a machine"])
def test_a_claim_says_whether_it_held_in_which_run_and_why_not(shown, held, recorded):
    how = {"why": "Two is more.", "disturbed": "load", "recorded": recorded}
    assert Notebook.claim("One is two.", held, "1, 2", **how) is None
    (data, metadata) = shown[0]
    verdict = notebook.VERDICTS[None if held is None else bool(held)]
    run = f"the recorded run of {recorded}" if recorded else "this run"
    why = " Two is more." if verdict == "Did not hold" else ""
    told = f"> **{verdict} in {run}.** One is two (1, 2).{why} **Disturbed run: load.**"
    assert data["text/markdown"] == told
    about = metadata["lstm_kernels"]["claim"]
    assert (about["verdict"], about["disturbed"]) == (verdict, "load")
    assert ("why" in about, about.get("recorded", "")) == (bool(why), recorded)


def test_a_sentence_says_what_disturbed_its_times(shown):
    Notebook.say("""
    One
    two.""")
    Notebook.say("Three.", "quartiles 40 % apart")
    told = [data.data for data, _ in shown]
    assert told == ["One\ntwo.", "Three. **Disturbed run: quartiles 40 % apart.**"]


BAD = "<b>x</b> [y](z) `q`\n\n# t"
WELL = "&#60;b&#62;x&#60;/b&#62; &#91;y&#93;(z) &#96;q&#96; &#35; t"


def test_recorded_rows_are_of_one_machine_and_its_record_is_text(shown, monkeypatch):
    rows = [("a", 2.0), ("a", 3.0), ("b", 5.0), ("b", 7.0)]
    table = pd.DataFrame(rows, columns=["machine", "seconds"])
    asked = []
    record = notebook.provenance.machine("paper") | {"cpu": BAD, "recorded": True}
    monkeypatch.setattr(notebook.results, "read", lambda name: table)
    monkeypatch.setattr(
        notebook.results, "record", lambda *name: asked.append(name) or record
    )
    for here, machine, seconds in (("b", "b", [5, 7]), ("c", "a", [2, 3])):
        monkeypatch.setattr(notebook.provenance, "machine_name", lambda name=here: name)
        found = Notebook("smoke").recorded("peers")
        assert found["seconds"].to_list() == seconds
        assert asked.pop() == ("peers", machine)
        assert shown.pop()[0].data.startswith(f"Recorded: {WELL}, ")


def test_what_a_machine_says_of_itself_is_text(shown, monkeypatch):
    here = notebook.provenance.machine("paper")
    here |= {"cpu": BAD, "gpu": {"name": BAD, "driver": BAD}, "system": BAD}
    here |= {"distorting_variables": [BAD]}
    monkeypatch.setattr(notebook.provenance, "machine", lambda preset=None: here)
    nb = Notebook("paper")
    assert nb.machine().startswith(f"{WELL}, ")
    nb.environment()
    lines = shown[0][0].data.splitlines()
    assert all(re.match(r"- [A-Z][\w ]+: ", line) for line in lines)
    assert sum(line.count(WELL) for line in lines) == 5
    Notebook.claim("One is two.", True, "", why="x", recorded=BAD)
    assert shown[1][0]["text/markdown"].startswith(
        f"> **Held in the recorded run of {WELL}."
    )


def test_a_cell_of_a_table_stays_one_cell(shown):
    cells = {"a | b": ["one\n\n# two", "{c}`d` <e>"], "f": [0.123456, 7.0]}
    Notebook.table(pd.DataFrame(cells, index=["`g`", "[h](i)"]))
    assert shown[0][0].data.splitlines() == [
        r"| case | a \| b | f |",
        "| --- | --- | ---: |",
        "| `g` | one # two | 0.123 |",
        "| [h](i) | &#123;c}`d` &#60;e> | 7 |",
    ]


def test_a_claim_needs_a_sentence_and_a_verdict(shown):
    with pytest.raises(TypeError, match="held: got str, want True, False or None"):
        Notebook.claim("One is two.", "yes", "", why="x")
    with pytest.raises(ValueError, match="sentence: got an empty text"):
        Notebook.claim(" ", True, "", why="x")
    assert not shown


@pytest.mark.parametrize("standalone", [False, True])
def test_figures_go_to_build_and_nowhere_without_the_repository(
    shown, tmp_path, monkeypatch, standalone
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(notebook.results, "ROOT", None if standalone else tmp_path)
    figure, _ = plt.subplots()
    figure.alt = "A line."
    about = {"disturbed": "load " * 30, "interactive": "schedules"}
    Notebook("paper", page=5).show(figure, "trial", "It falls.", **about)
    (data, metadata), (caption, _) = shown
    assert metadata["lstm_kernels"] == {"figure": "trial", "interactive": "schedules"}
    assert metadata["image/png"]["alt"].startswith("A line. Disturbed run: load")
    assert caption.data == "**Figure 5.1.** It falls."
    written = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    if standalone:
        assert not written
    else:
        folder = tmp_path / "build" / "paper" / "figures"
        assert written == [folder / "trial.png", folder / "trial.svg"]
        assert written[0].read_bytes() == data["image/png"]


@pytest.mark.parametrize("alt", ['"A" first', "two\nlines", "a # b", "it's: \\d"])
def test_an_alternative_text_stays_one_option_of_its_figure(tmp_path, alt):
    output = drawn("01-x")
    output.metadata["image/png"]["alt"] = alt
    website.show(output, {"figure": "01-x"}, "claim-1", tmp_path)
    lines = output.data["text/markdown"].splitlines()[1:-1]
    told = yaml.safe_load("\n".join(line.removeprefix(":") for line in lines))
    assert told == {"alt": alt, "figclass": "still"}


# --- accepting, and what differs


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Makes a project of two notebooks and a README, and what was executed of them."""
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(report, "NOTEBOOKS", tmp_path / "notebooks")

    def made(*built, overview=(), old=()):
        start = text(TITLE), parameters()
        save(tmp_path / "notebooks" / "00_o.ipynb", *start, code("f()", *old))
        save(tmp_path / "notebooks" / "01_a.ipynb", *start, code("f()", count=None))
        save(tmp_path / "build" / "00_o.ipynb", *start, code("f()", *overview))
        if built:
            save(tmp_path / "build" / "01_a.ipynb", text(TITLE), *built)
        (tmp_path / "README.md").write_text("![A](figures/00-x.png)\n")
        (tmp_path / "figures").mkdir()
        (tmp_path / "figures" / "00-x.png").write_bytes(b"old")
        return tmp_path

    return made


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("built", "message"),
    [
        ([parameters("smoke"), code("f()")], "01_a.ipynb: not executed with PRESET"),
        ([parameters(), code("f(2)")], "01_a.ipynb: edited since it was executed"),
        ([parameters(), code("f()")], "README.md: no notebook draws 00-x"),
        ([], "01_a.ipynb: not executed"),
    ],
)
def test_accept_refuses_and_changes_nothing(project, capsys, built, message):
    folder = project(*built)
    before = content(folder)
    assert report.main(["accept", str(folder / "build")]) == 1
    assert message in capsys.readouterr().err
    assert content(folder) == before


def test_accept_renews_notebooks_and_figures_of_one_run(project):
    folder = project(
        parameters(), code("f()", stream("42\n")), overview=[drawn("00-x")]
    )
    wanted = {"00_o.ipynb", "01_a.ipynb", "00-x.png"}
    assert set(report.accept(folder / "build")) == wanted
    for name in ("00_o.ipynb", "01_a.ipynb"):
        built = (folder / "build" / name).read_bytes()
        assert (folder / "notebooks" / name).read_bytes() == built
    assert (folder / "figures" / "00-x.png").read_bytes() == base64.b64decode(PNG)
    assert report.accept(folder / "build") == []


def test_the_summary_counts_claims_and_tells_what_changed(project):
    new = claim("A."), claim("B.", "Did not hold"), claim("C."), claim("D.", "Held")
    old = claim("A."), claim("B."), claim("C.", "Not measured")
    folder = project(overview=new, old=old)
    assert report.summary(folder / "build").splitlines() == [
        "Claims: 3 held, 1 did not hold",
        "00_o: 0 s, stored 0 s",
        "  did not hold, stored: held: B.",
        "  held, stored: not measured: C.",
        "01_a: not executed",
    ]


# --- the notebooks of the report


def test_the_form_is_checked():
    needs = "What this covers: x.\n\nNeeds: nothing. Runs in a minute."
    start = [text(f"{TITLE}\n\n{needs}"), parameters()]
    end = [
        text(f"## {name}") for name in ("What we learned", "Exercises", "Environment")
    ]

    def problems(*cells):
        found = problems_of_form(new_notebook(cells=list(cells)))
        return {re.match(r"\w+( \d)?", problem)[0] for problem in found}

    assert problems(*start, *end) == set()
    assert problems(*start[::-1], *end) == {"cell 1", "cell 2"}
    assert problems(text(TITLE), *start[1:], *end) == {"cell 1"}
    assert problems(*start, *end[::-1]) == {"sections"}
    cited = text("As Gers et al. show, and (Hochreiter & Schmidhuber 1997) before.")
    assert problems(*start, cited, *end) == {"cites"}
    assert problems(*start, cited, *end[:2], text("## References"), end[2]) == set()
    assert problems(*start, code("a" * 89), *end) == {"cell 3"}
    assert problems(*start, code("a" * 88), *end) == set()
    picture = drawn("01-x")
    picture.metadata["image/png"]["alt"] = " "
    assert problems(*start, code("f()", picture), *end) == {"cell 3"}


def test_the_order_of_pages():
    order = [path.stem for path in NOTEBOOKS]
    assert order[-2:] == ["lesson", "appendix"]
    assert order[:-2] == sorted(order[:-2])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_defines_or_imports_each_name_that_it_uses(path):
    """So that it runs as a plain script too, where no shell brings names."""
    cells = [c.source for c in rules.read(path).cells if c.cell_type == "code"]
    table = symtable.symtable("\n\n".join(cells), path.name, "exec")
    tables, used = [table], set()
    defined = {*dir(builtins), "__name__", "__file__"}
    for one in tables:
        tables += one.get_children()
        for symbol in one.get_symbols():
            own = one is table and (symbol.is_assigned() or symbol.is_imported())
            defined |= {symbol.get_name()} if own else set()
            free = symbol.is_global() or one is table
            used |= {symbol.get_name()} if free and symbol.is_referenced() else set()
    assert used - defined == set()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_executed_in_form_and_its_links_lead_somewhere(path):
    book = rules.read(path)
    before = path.read_text(encoding="utf-8")
    problems = problems_of_form(book)
    problems += [
        f"cell {number} is not executed"
        for number, cell in enumerate(book.cells, start=1)
        if cell.cell_type == "code" and cell.source and cell.execution_count is None
    ]
    if rules.preset(book) != "paper":
        problems.append(f"PRESET is {rules.preset(book)!r}, want 'paper'")
    if rules.dumps(rules.stored(book, seconds=rules.seconds(book))) != before:
        problems.append("not in the stored form: want `make accept`")
    for cell in book.cells:
        if cell.cell_type == "markdown":
            links = re.findall(r"\]\((?!\w+:|#)([^)\s#]+)", cell.source)
            problems += [link for link in links if not (path.parent / link).exists()]
    assert not problems, "\n".join(problems)
    assert nbformat.validate(book) is None

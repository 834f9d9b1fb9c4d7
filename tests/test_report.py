"""Tools that execute, store and accept notebooks, on small ones; then the rules, on all
of ours.
"""

import base64
import os
import signal
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import notebook_pages as pages
import notebook_rules as rules
import numpy as np
import papermill
import pytest
import report
from made import PNG, TITLE, code, drawn, error, image, parameters, save, stream, text
from nbformat.v4 import new_notebook, new_output
from notebook_rules import ReportError

from lstm_report import notebook
from lstm_report.notebook import Notebook

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob(report.NAMES))


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
    bad = save(
        folder / "notebooks" / "02_b.ipynb", *start, code("a = 1\n1 / 0"), code("2")
    )
    run = [sys.executable, ROOT / "tools" / "report.py", "execute"]
    outs = folder / "build" / good.name, folder / "build" / bad.name
    subprocess.run([*run, good, outs[0], "-p", "PRESET", "smoke"], check=True)
    done = subprocess.run([*run, bad, outs[1]], capture_output=True, text=True)
    assert done.returncode == 1
    return *outs, done.stderr


def test_execute_runs_in_the_notebooks_folder_with_the_parameters(executed):
    notebook = rules.read(executed[0])
    assert rules.problems_of_execution(notebook) == []  # not even the line of compiling
    assert rules.preset(notebook) == "smoke"
    assert notebook.cells[-1].outputs[0].text == "smoke\nin True\n"
    assert [path.name for path in executed[0].parent.glob("01*")] == ["01_a.ipynb"]


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
    assert (
        report.main(["execute", str(notebook), str(out), "-p", "PRESTO", "smoke"]) == 1
    )
    message = capsys.readouterr().err
    assert "'PRESTO'" in message
    assert "known are PRESET" in message
    assert not out.exists()


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (
            code("f()", stream("Warning: x\n", "stderr")),
            r"failed\n  1 stderr outputs.*Warning: x",
        ),
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
    notebook = save(tmp_path / "01_a.ipynb", text(TITLE))
    out = tmp_path / "build" / "01_a.ipynb"
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
    after = stream(
        "\r 50%|#####     | 5/10 [00:01<00:01, 4.9it/s]\nWarning: x\n", "stderr"
    )
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


@pytest.mark.parametrize(
    "folder", ["root", "home", "tmp", "Users", "private", "var/folders"]
)
def test_a_path_of_the_machine_in_an_output_is_an_error(folder):
    path = "/".join(["", folder, "me", "x.py"])
    shown = new_output("display_data", data={"text/html": f"<p>{path}</p>"})
    for output in (stream(f"at {path}:3\n"), shown):
        with pytest.raises(rules.ReportError, match=f"n, cell 1.*{path}"):
            rules.normalised(new_notebook(cells=[code("1", output)]), name="n")


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


def test_a_source_is_shown_without_the_marks_of_its_linter(monkeypatch):
    told, mark = [], "# " + "noqa"
    source = f"f = 1  {mark}: E731 - a name\ng = 2  {mark}: B007\n"
    monkeypatch.setattr(notebook.inspect, "getsource", lambda item: source)
    monkeypatch.setattr(
        notebook, "display", lambda markdown: told.append(markdown.data)
    )
    Notebook.source(None)
    assert told == ["```python\nf = 1  # a name\ng = 2\n```"]


def test_an_interactive_figure_names_its_script(shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (None, "schedules"):
        Notebook("smoke").show(plt.figure(), "a", interactive=name)
    about = [metadata["lstm_kernels"] for _, metadata in shown]
    assert about == [{"figure": "a"}, {"figure": "a", "interactive": "schedules"}]


def test_the_environment_names_the_packages_that_are_there(monkeypatch):
    machine = notebook.provenance.machine("smoke")
    machine["packages"] |= {"numba": "9.8.7", "numba-cuda": None}
    told = []
    monkeypatch.setattr(
        notebook.provenance, "machine", lambda preset: machine | {"preset": preset}
    )
    monkeypatch.setattr(
        notebook, "display", lambda markdown: told.append(markdown.data)
    )
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
    """A project of two notebooks and a README, and what was executed of them in
    build/.
    """
    start, last = (text(TITLE), parameters()), code("f()", count=None)
    save(tmp_path / "nb" / "00_overview.ipynb", *start, last)
    source = save(tmp_path / "nb" / "01_a.ipynb", *start, last)
    save(tmp_path / "build" / "00_overview.ipynb", *start, code("f()", *overview))
    if built:
        save(tmp_path / "build" / source.name, text(TITLE), *built)
    (tmp_path / "README.md").write_text("![A](figures/00-x.png)\n")
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


def test_accept_renews_notebooks_and_figures_of_one_run(tmp_path):
    source = project(tmp_path, *FINE, overview=[drawn("00-x"), drawn("00-y")])
    os.utime(source, (1000, 1000))
    wanted = {"00_overview.ipynb", "01_a.ipynb", "00-x.png"}
    assert set(report.accept(tmp_path / "build", tmp_path / "nb")) == wanted
    stored = source.read_text()
    assert "42" in stored
    assert rules.normalised_text(rules.read(source), name=source.name) == stored
    assert source.stat().st_mtime == 1000
    figures = content(tmp_path / "figures")
    assert figures == {tmp_path / "figures" / "00-x.png": base64.b64decode(PNG)}
    assert report.accept(tmp_path / "build", tmp_path / "nb") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["while writing", "while renaming"])
def test_an_interrupted_accept_renews_all_or_nothing(
    tmp_path, monkeypatch, number, when
):
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
    assert len(replaced) == (3 if when == "while renaming" else 0)
    assert content(tmp_path).keys() == before.keys()
    old = [path for path, text in content(tmp_path).items() if text == before[path]]
    # README and the executed notebooks, or all.
    assert len(old) == (3 if when == "while renaming" else 6)


# --- the notebooks of the report


def test_the_form_is_checked():
    needs = "What this covers: x.\n\nNeeds: nothing. Runs in a minute."
    start = [text(f"{TITLE}\n\n{needs}"), parameters()]
    end = [
        text(f"## {name}") for name in ("What we learned", "Exercises", "Environment")
    ]
    order = {"cell 1: ", "cell 2: ", "sections: ", "cites ", "cell 3: "}

    def problems(*cells):
        found = rules.problems_of_form(new_notebook(cells=list(cells)))
        return {
            name for name in order if any(problem.startswith(name) for problem in found)
        }

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
    if rules.normalised_text(notebook, name=path.name) != path.read_text(
        encoding="utf-8"
    ):
        problems.append("not in the stored form: want `make accept`")
    assert not problems, "\n".join(problems)
    pages.render(path, path.parent)

"""Results files, each with the record of its run, and what is recorded."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from filed import filed, rows_of
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.myst_blocks import myst_block_plugin
from mdit_py_plugins.myst_role import myst_role_plugin

import lstm_kernels
import lstm_report
from lstm_report import measure as bench
from lstm_report.measure import provenance, results

ROW, NONE = rows_of(1.0), {"commit": None, "dirty": None}


def by_machine(folder):
    rows = results.read("trial", folder)
    return dict(zip(rows["machine"], rows["seconds"], strict=True))


def test_results_are_filed_by_machine_each_with_the_record_of_its_run(tmp_path):
    name, exact = bench.machine()["name"], 1.23456789e-5
    path = filed(tmp_path, rows_of(exact), preset="smoke")
    assert path == tmp_path / name / "trial.csv"
    record = results.record("trial", name, tmp_path)
    assert record["preset"] == "smoke"
    keys = {"cpu", "cores", "blas", "packages", "commit", "dirty", "date", "threads"}
    assert keys | {"distorting_variables", "python"} <= set(record)
    filed(tmp_path, rows_of(3.0), "other")
    assert results.record("trial", name, tmp_path) == record
    path.parent.rename(tmp_path / "b")
    filed(tmp_path, rows_of(2.0))
    assert by_machine(tmp_path) == {"b": exact, name: 2.0}
    assert list(results.read("trial", tmp_path)) == [*results.COLUMNS, "machine"]
    # Two folders, three pairs, nothing left beside
    assert len(list(tmp_path.rglob("*"))) == 8


OTHER, PAPER = "belongs to another machine", r"is of preset paper, smoke must not"


@pytest.mark.parametrize("key", ["name", "cpu", "cores", "gpu", None])
def test_what_is_recorded_is_not_overwritten(tmp_path, key):
    """By another machine of the same name, not even beside; nor by small sizes."""
    filed(tmp_path, ROW, **({key: "other", "preset": "smoke"} if key else {}))
    write = partial(results.write, rows=rows_of(2.0), preset="smoke", folder=tmp_path)
    with pytest.raises(ValueError, match=OTHER if key else rf"trial\.csv {PAPER}"):
        write("trial")
    with pytest.raises(ValueError, match=OTHER) if key else nullcontext():
        write("second")
    assert results.read("trial", tmp_path)["seconds"].to_list() == [1.0]


UNREADABLE = {"{": r"trial\.json cannot be read .*, want JSON", "[1]": "holds a list"}
UNREADABLE["[" * 100_000] = "want JSON"


@pytest.mark.parametrize("text", [*UNREADABLE, "other rows", ""], ids=len)
def test_a_record_is_whole_and_of_its_rows(tmp_path, text):
    path = filed(tmp_path, ROW)
    name, beside = ("trial", path.parent.name, tmp_path), path.with_suffix(".json")
    if text in UNREADABLE:
        beside.write_text(text)
    elif text:
        path.write_text(path.read_text().replace("1", "2"))
    else:
        beside.unlink()
    said = UNREADABLE.get(text, r"trial\.json is of other" if text else "lacks trial")
    with pytest.raises(ValueError, match=said):
        results.record(*name)
    with pytest.raises(ValueError, match=said) if text in UNREADABLE else nullcontext():
        filed(tmp_path, ROW)  # which repairs what can be read
        assert results.record(*name)


PATHS = sorted(results.FOLDER.glob("*/*.csv"))


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_recorded_results_have_every_column_and_their_own_record(path):
    # A file stays as it was written: what a release before wrote columns for is empty.
    held = pd.read_csv(path).dropna(axis="columns", how="all")
    assert (
        {"version", "stage", "repeat", "seconds"} <= set(held) <= set(results.COLUMNS)
    )
    record = results.record(path.stem, path.parent.name)
    assert (record["name"], record["preset"]) == (path.parent.name, "paper")


def test_rows_of_other_columns_are_refused(tmp_path):
    bad = ROW.rename(columns={"seconds": "time"})
    with pytest.raises(ValueError, match=r"columns \['time'\], lacks \['seconds'\]"):
        results.write("trial", bad, preset="smoke", folder=tmp_path)
    with pytest.raises(ValueError, match="experiment: got 'trial'"):
        results.read("trial", tmp_path)
    path = filed(tmp_path, ROW)
    header, row, _ = path.read_text().split("\n")
    for longer in (f"x,{row}", f"{row},x"):  # which no reader may cut
        path.write_text(f"{header}\n{longer}\n")
        with pytest.raises(
            ValueError, match=r"trial.csv: got 19 fields in line 2, wan"
        ):
            results.read("trial", tmp_path)


def test_a_caption_says_what_disturbs():
    record = bench.machine("paper") | {"distorting_variables": [], "dirty": False}
    record |= {"commit": "abc", "measured_ghz": 3.349}
    assert results.caption(record).startswith(results.label(record))
    assert ", 3.3 GHz measured, " in results.caption(record)
    assert "GHz" not in results.caption(record | {"measured_ghz": None})
    assert "no commit recorded" in results.caption(record | NONE)
    for about, end in (
        ({}, ""),
        ({"dirty": True}, " with changes"),
        ({"preset": "smoke"}, ", preset smoke"),
        ({"distorting_variables": ["A=1"]}, ", BLAS steered by A=1"),
        ({"disturbance": "load"}, ", noisy run: load"),
    ):
        caption = results.caption(record | about)
        assert caption.endswith(f"{record['date']}, commit abc{end}")


def test_a_label_says_what_a_machine_can_do_and_what_is_recorded():
    record = {"cpu": "Intel(R) Xeon(R) Processor @ 2.80GHz", "vectors": "avx512f"}
    record |= {"core": "icelake-server", "family": "6", "clock_ghz": 2.79, "cores": 2}
    record |= {"caches": {"L1d": "48K", "L2": "1280K"}, "date": "2026-11-22"}
    live = "Intel Xeon, AVX-512{} 48 KiB L1 and 1.25 MiB L2 a core, 2 cores"
    for known, said in ((True, " with bfloat16,"), (False, " without bfloat16,")):
        assert results.label(record | {"bfloat16": known}) == live.format(said)
    told = results.label(record | {"recorded": True})
    assert told == live.format(",") + ", recorded 2026-11-22"
    few = {"cpu": "AMD EPYC", "vectors": "unknown", "caches": {}, "cores": 3}
    assert results.label(few) == "AMD EPYC, 3 cores"
    assert 0.3 < bench.machine()["measured_ghz"] < 9


MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
MARKDOWN.use(dollarmath_plugin).use(myst_role_plugin).use(myst_block_plugin)
SIGNS = st.text("ab1 _*`~#$\\|[](){}<>&;!-+.=:%\"'\n\t\u202e", max_size=30)


def read_by_people(markdown):
    """The text of a paragraph, and whether it is nothing but text."""
    shown = MARKDOWN.render(markdown).strip()
    found = re.fullmatch(r"<p>([^<>]*)</p>", shown)
    return html.unescape(found[1]) if found else shown


@given(SIGNS)
def test_a_plain_text_is_read_letter_by_letter(text):
    plain = results.plain(text)
    assert results.plain(plain) == plain
    kept = " ".join(text.replace("\u202e", " ").split())
    want = html.unescape(re.sub(r"&(?!#\d+;)", "&amp;", kept))
    assert read_by_people(plain) == want if want else plain == ""
    assert read_by_people(f"A {plain}.") == f"A {want}."


@pytest.mark.parametrize("where", ["folder", "column", "version", "variant"])
def test_names_in_results_are_no_markup(tmp_path, where):
    path = filed(tmp_path, ROW, machine="`a`" if where == "folder" else None)
    if where != "folder":
        table = pd.read_csv(path)
        name, text = ("`a`", "a") if where == "column" else (where, "`a`")
        table[name] = text
        table.to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"trial\.csv: got '`a`', want a name, no m"):
        results.read("trial", tmp_path)


def test_what_disturbed_a_run_is_recorded(tmp_path, capsys):
    plan = {"quiet": lambda: ROW, "wild": lambda: rows_of(1.0, 1.0, 2.0, 2.0)}
    for name, _, path in results.fill(plan, preset="paper", folder=tmp_path):
        record = results.record(name, path.parent.name, tmp_path)
        assert record["disturbance"] == "quartiles 100 % apart" * (name == "wild")
    assert "wild was disturbed: quartiles 100 % apart" in capsys.readouterr().err


def test_a_folder_is_opened_before_anything_is_measured(tmp_path):
    (tmp_path / "file").write_text("")
    plan = {"trial": lambda: pytest.fail("measured before the folder was opened")}
    with pytest.raises(OSError, match="file"):
        list(results.fill(plan, preset="smoke", folder=tmp_path / "file"))


INSTALLED = """
import json
from filed import rows_of
from lstm_report.measure import provenance, results
try:
    results.read("grid")
except ValueError as error:
    told = {"missing": str(error), "at": results.__file__}
for preset in ("smoke", "paper"):
    path = results.write("trial", rows_of(1.0), preset=preset)
    told[preset] = str(path.resolve())
told["read"] = results.read("trial")["seconds"].to_list()
told["other"] = results.record("trial", "b")["recorded"]
print(json.dumps(told | {"commit": provenance.machine()["commit"]}))
"""


def test_an_installed_package_writes_to_the_working_directory(tmp_path):
    """Even where its environment and the working directory are in somebody's
    repository; what it brings of other machines is read beside.
    """
    site, work = tmp_path / "venv" / "site-packages", tmp_path / "work"
    ignore = shutil.ignore_patterns("__pycache__")
    for package in (lstm_kernels, lstm_report):
        folder = Path(package.__file__).parent
        shutil.copytree(folder, site / folder.name, ignore=ignore)
    work.mkdir()
    brought = site / "lstm_report" / "recorded"
    filed(brought, rows_of(3.0), machine="b")
    filed(brought, rows_of(2.0))
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\n')
    committed(tmp_path)
    env = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{Path(__file__).parent}"}
    words = [sys.executable, "-c", INSTALLED]
    told = json.loads(subprocess.check_output(words, cwd=work, env=env, text=True))
    assert Path(told.pop("at")).is_relative_to(site)
    assert "come with the repository, not the package" in told.pop("missing")
    file = f"{bench.machine()['name']}/trial.csv"
    assert told == {
        "paper": str(work / "results" / file),
        "smoke": str(work / "results" / "smoke" / file),
        "read": [1.0, 3.0],  # its own before those it brings
        "other": True,
        "commit": None,
    }
    root = Path(lstm_kernels.__file__).parents[1]  # a checkout's own folders
    paper, smoke = root / "data/results", root / "build/smoke/results"
    assert {"paper": paper, "smoke": smoke} == results.FOLDERS


def test_distorting_variables_are_reported_for_the_library_in_use():
    names = ["OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "MKL_DEBUG_CPU_TYPE"]
    names += ["NVPL_BLAS_DEBUG_CPU_TYPE"]
    steering = dict.fromkeys(names, "1")
    every = {"openblas": names[:2], "mkl": names[2:3], "nvpl": names[3:], "blis": []}
    for library, those in every.items():
        told = provenance.distorting_variables([library], steering)
        assert told == [f"{name}=1" for name in those]


def committed(folder):
    """Make a folder a repository with one commit, of all that is in it."""
    for words in (["init"], ["add", "."], ["commit", "-m", "a"]):
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        words = ["git", *author, *words]
        subprocess.run(words, cwd=folder, check=True, capture_output=True)


def repository(folder, place="lstm_report", project="lstm-kernels"):
    """The package in a repository that holds lstm_kernels beside it and their
    pyproject.toml.
    """
    package = folder / place
    for each in (package, package.parent / "lstm_kernels"):
        each.mkdir(parents=True)
        (each / "code.py").write_text("1")
    (package.parent / "pyproject.toml").write_text(f'[project]\nname = "{project}"\n')
    committed(folder)
    return package


def test_a_commit_is_recorded_with_whether_a_package_differs_from_it(tmp_path):
    package = repository(tmp_path / "own")
    clean = provenance.commit(package)
    assert (len(clean["commit"]), clean["dirty"]) == (7, False)
    (package.parent / "notes").write_text("beside the packages")
    assert provenance.commit(package) == clean
    for changed in ("lstm_kernels", "lstm_report"):
        file = package.parent / changed / "code.py"
        file.write_text("2")
        assert provenance.commit(package) == clean | {"dirty": True}
        file.write_text("1")

    # One around the environment, or of another project, is not recorded.
    for where in (("venv/lib/lstm_report", "lstm-kernels"), ("lstm_report", "other")):
        package = repository(tmp_path / "other" / where[1], *where)
        assert provenance.commit(package) == NONE

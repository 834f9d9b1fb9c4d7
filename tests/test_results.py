"""Results files, each with the record of its run, and what is recorded."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
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


def rows(seconds=1.0):
    return pd.DataFrame(
        {"version": ["numpy"], "stage": ["step"], "repeat": [0], "seconds": [seconds]}
    )


def test_results_are_filed_by_machine_each_with_the_record_of_its_run(
    tmp_path, monkeypatch
):
    path = results.write("trial", rows(), preset="smoke", folder=tmp_path)
    name = bench.machine()["name"]
    assert path == tmp_path / name / "trial.csv"
    record = results.record("trial", name, tmp_path)
    assert record["preset"] == "smoke"
    keys = {"cpu", "cores", "blas", "packages", "commit", "dirty", "date", "threads"}
    assert keys | {"distorting_variables", "python"} <= set(record)
    assert results.read("trial", tmp_path)["seconds"].to_list() == [1.0]
    assert list(results.read("trial", tmp_path).columns) == [
        *results.COLUMNS,
        "machine",
    ]

    later = {"date": "2099-01-01", "commit": "later", "preset": "paper"}
    here = provenance.machine
    monkeypatch.setattr(provenance, "machine", lambda preset=None: here(preset) | later)
    results.write("other", rows(3.0), preset="paper", folder=tmp_path)
    assert results.record("trial", name, tmp_path) == record
    assert results.record("other", name, tmp_path).items() >= later.items()

    monkeypatch.setattr(
        provenance, "machine", lambda preset=None: here(preset) | {"name": "b"}
    )
    results.write("trial", rows(2.0), preset="smoke", folder=tmp_path)
    assert sorted(results.read("trial", tmp_path)["seconds"]) == [1.0, 2.0]
    # Two folders, three pairs, nothing left beside
    assert len(list(tmp_path.rglob("*"))) == 8


def test_rows_come_back_as_they_were(tmp_path):
    results.write("trial", rows(1.23456789e-5), preset="smoke", folder=tmp_path)
    assert results.read("trial", tmp_path)["seconds"].to_list() == [1.23456789e-5]


@pytest.mark.parametrize("key", ["name", "cpu", "cores", "gpu"])
def test_a_folder_of_another_machine_is_not_overwritten(tmp_path, monkeypatch, key):
    path = results.write("trial", rows(), preset="smoke", folder=tmp_path)
    record = path.with_suffix(".json")
    other = json.loads(record.read_text()) | {key: "other"}
    record.write_text(json.dumps(other))
    for experiment in ("trial", "second"):
        with pytest.raises(ValueError, match="belongs to another machine"):
            results.write(experiment, rows(2.0), preset="smoke", folder=tmp_path)
    assert results.read("trial", tmp_path)["seconds"].to_list() == [1.0]


def test_smoke_does_not_replace_paper(tmp_path, monkeypatch):
    assert results.FOLDERS["paper"] == results.FOLDER
    assert not results.FOLDERS["smoke"].is_relative_to(results.FOLDER)
    monkeypatch.setattr(
        results, "FOLDERS", {p: tmp_path / p for p in ("smoke", "paper")}
    )
    for preset in ("paper", "smoke"):
        assert (
            tmp_path / preset in results.write("trial", rows(), preset=preset).parents
        )
    with pytest.raises(
        ValueError, match=r"trial\.csv is of preset paper, smoke must not replace"
    ):
        results.write("trial", rows(2.0), preset="smoke", folder=tmp_path / "paper")
    results.write("second", rows(2.0), preset="smoke", folder=tmp_path / "paper")
    assert results.read("trial", tmp_path / "paper")["seconds"].to_list() == [1.0]


def test_a_record_of_other_rows_is_refused(tmp_path):
    path = results.write("trial", rows(), preset="smoke", folder=tmp_path)
    path.write_text(path.read_text().replace("1", "2"))
    with pytest.raises(
        ValueError, match=r"trial\.json is of other rows than trial\.csv holds"
    ):
        results.record("trial", path.parent.name, tmp_path)
    for text, said in (
        ("{", r"cannot be read .*, want JSON"),
        ("[1]", "holds a list"),
    ):
        path.with_suffix(".json").write_text(text)
        with pytest.raises(ValueError, match=rf"trial\.json {said}"):
            results.record("trial", path.parent.name, tmp_path)
        with pytest.raises(ValueError, match=rf"trial\.json {said}"):
            results.write("trial", rows(), preset="smoke", folder=tmp_path)
    path.with_suffix(".json").unlink()
    with pytest.raises(ValueError, match=r"trial\.csv lacks trial\.json"):
        results.record("trial", path.parent.name, tmp_path)
    results.write("trial", rows(), preset="paper", folder=tmp_path)  # which repairs it
    assert results.record("trial", path.parent.name, tmp_path)["preset"] == "paper"


PATHS = sorted(results.FOLDER.glob("*/*.csv"))


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_recorded_results_have_every_column_and_their_own_record(path):
    header = path.read_text().partition("\n")[0].split(",")
    # Those recorded before there were several processes lack the last one.
    assert header in (results.COLUMNS, results.COLUMNS[:-1])
    record = results.record(path.stem, path.parent.name)
    assert (record["name"], record["preset"]) == (path.parent.name, "paper")


def test_results_refuse_unknown_columns_and_experiments(tmp_path):
    with pytest.raises(ValueError, match=r"unknown columns \['time'\]"):
        results.write("trial", rows().assign(time=1), preset="smoke", folder=tmp_path)
    with pytest.raises(ValueError, match=r"lacks \['seconds'\]"):
        results.write(
            "t", rows().drop(columns="seconds"), preset="smoke", folder=tmp_path
        )
    with pytest.raises(ValueError, match="experiment: got 'none'"):
        results.read("none", tmp_path)


def test_a_caption_says_what_disturbs(monkeypatch):
    record = bench.machine("paper") | {
        "commit": "abc",
        "dirty": False,
        "distorting_variables": [],
    }
    clean = results.caption(record)
    assert clean.endswith(f"{record['date']}, commit abc")
    assert clean.startswith(results.label(record))
    disturbed = results.caption(record | {"disturbance": "quartiles 31 % apart"})
    assert disturbed == f"{clean}, disturbed: quartiles 31 % apart"
    assert results.caption(record | {"dirty": True}) == f"{clean} with changes"
    assert results.caption(record | {"preset": "smoke"}) == f"{clean}, preset smoke"
    steered = results.caption(record | {"distorting_variables": ["A=1"]})
    assert steered == f"{clean}, BLAS steered by A=1"
    assert "no commit recorded" in results.caption(
        record | {"commit": None, "dirty": None}
    )


def test_a_label_names_family_model_and_clock_and_what_is_recorded(tmp_path):
    record = {
        "cpu": "AMD EPYC",
        "core": "znver5",
        "family": "26",
        "model": "2",
        "cores": 2,
    }
    record |= {"clock_ghz": 4.4912, "date": "2026-11-22"}
    live = "AMD EPYC, znver5, family 26, model 2, 4.49 GHz, 2 cores"
    assert results.label(record) == live
    assert results.label(record | {"recorded": True}) == f"{live}, recorded 2026-11-22"
    path = results.write("trial", rows(), preset="paper", folder=tmp_path)
    read = results.record("trial", path.parent.name, tmp_path)
    assert f"recorded {read['date']}" in results.caption(read)
    assert "recorded" not in results.label(bench.machine())
    if Path("/proc/cpuinfo").exists() and read["family"]:
        assert f"family {read['family']}, model {read['model']}" in results.label(read)


def test_records_without_family_and_model_have_them_from_the_name(tmp_path):
    path = results.write("trial", rows(), preset="paper", folder=tmp_path)
    old = json.loads(path.with_suffix(".json").read_text())
    for key in ("family", "model", "core", "clock_ghz", "disturbance"):
        del old[key]
    old["name"] = "amd-epyc-25-17-2cores"
    path.with_suffix(".json").write_text(json.dumps(old))
    read = results.record("trial", path.parent.name, tmp_path)
    assert (read["family"], read["model"], read["disturbance"]) == ("25", "17", "")
    named = {results.label(results.record(p.stem, p.parent.name)) for p in PATHS}
    assert len({text.partition(", recorded")[0] for text in named}) >= len(
        {p.parent.name for p in PATHS}
    )


MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
MARKDOWN.use(dollarmath_plugin).use(myst_role_plugin).use(myst_block_plugin)
SIGNS = st.text("ab1 _*`~#$\\|[](){}<>&;!-+.=:%\"'\n\t\u202e", max_size=30)
HARDWARE = [
    "Intel(R) Core(TM)2 Duo CPU T7100 @ 1.80GHz",
    "AMD Ryzen 7 PRO 4750U with Radeon Graphics",
    "Intel64 Family 6 Model 142 Stepping 10, GenuineIntel",
    "ARMv7 Processor rev 4 (v7l)",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    "Linux x86_64, 50 % of 2/3, a = -1 + 2.5",
]


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


@pytest.mark.parametrize("text", HARDWARE)
def test_what_hardware_is_called_stays_as_it_is(text):
    assert results.plain(text) == text


BAD = ["`a`", "<b>a</b>", "[a](b)", "$a$", "_a_", "a\n\n# b"]


@pytest.mark.parametrize("bad", BAD)
def test_what_a_record_says_is_text_wherever_it_is_read(tmp_path, bad):
    path = results.write("trial", rows(), preset="paper", folder=tmp_path)
    about = json.loads(path.with_suffix(".json").read_text())
    about |= {"cpu": bad, "gpu": {"name": bad}, "distorting_variables": [bad]}
    path.with_suffix(".json").write_text(json.dumps(about))
    read = results.record("trial", path.parent.name, tmp_path)
    shown = results.plain(bad)
    assert bad != shown == read["cpu"] == read["gpu"]["name"]
    assert read["distorting_variables"] == [shown]
    own = bench.machine() | {"cpu": bad, "recorded": True}
    assert results.label(own).startswith(shown)
    assert results.caption(own | {"preset": bad}).count(shown) == 2


@pytest.mark.parametrize("bad", [*BAD[:-1], "a  b"])
@pytest.mark.parametrize("where", ["folder", "column", "version", "variant"])
def test_names_in_results_are_no_markup(tmp_path, bad, where):
    path = results.write("trial", rows(), preset="paper", folder=tmp_path)
    table = pd.read_csv(path)
    if where == "folder":
        name = bad.replace("/", "")
        path = path.parent.rename(tmp_path / name) / path.name
    else:
        table[bad if where == "column" else where] = bad
        table.to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"trial\.csv: got .*, want a name, no markup"):
        results.read("trial", tmp_path)


def test_what_disturbed_a_run_is_recorded(tmp_path):
    times = pd.concat([rows(s) for s in (1.0, 1.0, 2.0, 2.0)], ignore_index=True)
    path = results.write("trial", times, preset="paper", folder=tmp_path)
    record = results.record("trial", path.parent.name, tmp_path)
    assert record["disturbance"] == "quartiles 100 % apart"
    plan = {"quiet": rows, "disturbed": lambda: times}
    for name, _, path in results.fill(plan, preset="paper", folder=tmp_path):
        record = results.record(name, path.parent.name, tmp_path)
        assert bool(record["disturbance"]) == (name == "disturbed")


INSTALLED = """
import json, sys
import pandas as pd
from lstm_report.measure import provenance, results
rows = pd.DataFrame({"version": ["a"], "stage": ["step"], "repeat": [0]})
rows["seconds"] = 1.0
try:
    results.read("grid")
except ValueError as error:
    missing = str(error)
paths = {}
for preset in ("smoke", "paper"):
    paths[preset] = str(results.write("trial", rows, preset=preset).resolve())
about = {"missing": missing, "paths": paths, "at": results.__file__}
print(json.dumps(about | {"commit": provenance.machine()["commit"]}))
"""


def test_an_installed_package_writes_to_the_working_directory(tmp_path):
    """Even where its environment and the working directory are in somebody's
    repository.
    """
    packages = [Path(module.__file__).parent for module in (lstm_kernels, lstm_report)]
    site, work = tmp_path / "venv" / "site-packages", tmp_path / "work"
    for package in packages:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, site / package.name, ignore=ignored)
    work.mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\n')
    for words in (["init"], ["add", "."], ["commit", "-m", "a"]):
        git(tmp_path, *words)
    said = subprocess.check_output(
        [sys.executable, "-c", INSTALLED],
        cwd=work,
        env=os.environ | {"PYTHONPATH": str(site)},
        text=True,
    )
    told, name = json.loads(said), bench.machine()["name"]
    assert Path(told["at"]).is_relative_to(site)
    assert told["commit"] is None
    assert "grid" in told["missing"]
    assert (
        "recorded results come with the repository, not the package" in told["missing"]
    )
    assert told["paths"] == {
        "paper": str(work / "results" / name / "trial.csv"),
        "smoke": str(work / "results" / "smoke" / name / "trial.csv"),
    }
    assert not list(site.rglob("trial.csv"))


def test_a_checkout_writes_to_its_own_folders():
    root = Path(lstm_kernels.__file__).parents[1]
    assert provenance.checkout() == root
    assert {
        "paper": root / "data/results",
        "smoke": root / "build/smoke/results",
    } == results.FOLDERS


def test_results_that_a_package_brings_are_read_beside_ones_own(tmp_path, monkeypatch):
    own, brought = tmp_path / "own", tmp_path / "brought"
    for folder, name, seconds in (
        (own, "a", 1.0),
        (brought, "a", 2.0),
        (brought, "b", 3.0),
    ):
        monkeypatch.setattr(
            provenance, "machine_name", lambda cpu=None, name=name: name
        )
        row = {"version": "numpy", "stage": "step", "repeat": 0, "seconds": seconds}
        results.write("trial", pd.DataFrame([row]), preset="paper", folder=folder)
    monkeypatch.setattr(results, "FOLDER", own)
    monkeypatch.setattr(results, "BROUGHT", brought)
    rows = results.read("trial")
    assert dict(zip(rows["machine"], rows["seconds"], strict=True)) == {
        "a": 1.0,
        "b": 3.0,
    }
    assert results.record("trial", "b")["name"] == "b"
    assert [path.parent.parent.name for path in results.find("*/trial.json")] == [
        "own",
        "brought",
    ]
    assert set(results.read("trial", brought)["seconds"]) == {2.0, 3.0}


def test_distorting_variables_are_reported_for_the_library_in_use(monkeypatch):
    for name in provenance.DISTORTING:
        monkeypatch.setenv(name, "1")
    for library in ("openblas", "mkl", "nvpl", "blis"):
        monkeypatch.setattr(
            provenance, "blas", lambda library=library: [{"library": library}]
        )
        named = [
            name for name in provenance.DISTORTING if name.startswith(library.upper())
        ]
        assert provenance.distorting_variables() == [f"{name}=1" for name in named]
        assert bool(named) == (library != "blis")
    for name in provenance.DISTORTING:
        monkeypatch.delenv(name)
    assert provenance.distorting_variables() == []


def test_warnings_say_what_distorts_and_what_pauses(monkeypatch):
    monkeypatch.setattr(provenance, "distorting_variables", lambda: ["A=1"])
    monkeypatch.setattr(provenance.cores, "cores", lambda: 1)
    monkeypatch.setattr(provenance.cores, "why", lambda: "1 thread: a quota")
    for allowed, count in ((1, 1), (2, 2)):
        monkeypatch.setattr(
            provenance.cores, "allowed", lambda allowed=allowed: allowed
        )
        said = provenance.warnings()
        assert said[0] == "A=1 steers BLAS; unset it"
        assert len(said) == count
    assert said[1].startswith("1 thread: a quota; ")


def git(folder, *words):
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(
        ["git", *author, *words], cwd=folder, check=True, capture_output=True
    )


def repository(folder, package, project="lstm-kernels"):
    """A repository in `folder` with one commit, which holds a package, lstm_kernels
    beside it and their pyproject.toml.
    """
    for each in (package, package.parent / "lstm_kernels"):
        each.mkdir(parents=True)
        (each / "code.py").write_text("1")
    (package.parent / "pyproject.toml").write_text(f'[project]\nname = "{project}"\n')
    for words in (["init"], ["add", "."], ["commit", "-m", "a"]):
        git(folder, *words)
    return package


@pytest.mark.parametrize("changed", ["lstm_kernels", "lstm_report"])
def test_a_commit_is_recorded_with_whether_a_package_differs_from_it(
    tmp_path, monkeypatch, changed
):
    package = repository(tmp_path, tmp_path / "lstm_report")
    clean = provenance._commit(package)
    assert (len(clean["commit"]), clean["dirty"]) == (7, False)
    (tmp_path / "notes").write_text("beside the packages")
    assert provenance._commit(package) == clean
    (tmp_path / changed / "code.py").write_text("2")
    assert provenance._commit(package) == clean | {"dirty": True}
    monkeypatch.setenv("PATH", "")
    assert provenance._commit(package) == {"commit": None, "dirty": None}


@pytest.mark.parametrize(
    ("place", "project"),
    [("venv/lib/lstm_report", "lstm-kernels"), ("lstm_report", "other")],
)
def test_a_repository_around_the_environment_is_not_recorded(tmp_path, place, project):
    package = repository(tmp_path, tmp_path / place, project)
    assert provenance._commit(package) == {"commit": None, "dirty": None}
    (package.parent / "pyproject.toml").unlink()
    assert provenance._commit(package) == {"commit": None, "dirty": None}

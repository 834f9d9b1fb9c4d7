"""Results files, each with the record of its run, and what is recorded."""

import json
import subprocess

import pandas as pd
import pytest

from lstm_kernels import bench
from lstm_kernels.bench import provenance, results


def rows(seconds=1.0):
    return pd.DataFrame(
        {"version": ["numpy"], "stage": ["step"], "repeat": [0], "seconds": [seconds]}
    )


def test_results_are_filed_by_machine_each_with_the_record_of_its_run(tmp_path, monkeypatch):
    path = results.write("trial", rows(), preset="smoke", folder=tmp_path)
    name = bench.machine()["name"]
    assert path == tmp_path / name / "trial.csv"
    record = results.record("trial", name, tmp_path)
    assert record["preset"] == "smoke"
    keys = {"cpu", "cores", "blas", "packages", "commit", "dirty", "date", "threads"}
    assert keys | {"distorting_variables", "python"} <= set(record)
    assert results.read("trial", tmp_path)["seconds"].to_list() == [1.0]
    assert list(results.read("trial", tmp_path).columns) == [*results.COLUMNS, "machine"]

    later = {"date": "2099-01-01", "commit": "later", "preset": "paper"}
    here = provenance.machine
    monkeypatch.setattr(provenance, "machine", lambda preset=None: here(preset) | later)
    results.write("other", rows(3.0), preset="paper", folder=tmp_path)
    assert results.record("trial", name, tmp_path) == record
    assert results.record("other", name, tmp_path).items() >= later.items()

    monkeypatch.setattr(provenance, "machine", lambda preset=None: here(preset) | {"name": "b"})
    results.write("trial", rows(2.0), preset="smoke", folder=tmp_path)
    assert sorted(results.read("trial", tmp_path)["seconds"]) == [1.0, 2.0]
    assert len(list(tmp_path.rglob("*"))) == 8  # two folders, three pairs, nothing left beside


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
    monkeypatch.setattr(results, "FOLDERS", {p: tmp_path / p for p in ("smoke", "paper")})
    for preset in ("paper", "smoke"):
        assert tmp_path / preset in results.write("trial", rows(), preset=preset).parents
    with pytest.raises(ValueError, match=r"trial\.csv is of preset paper, smoke must not replace"):
        results.write("trial", rows(2.0), preset="smoke", folder=tmp_path / "paper")
    results.write("second", rows(2.0), preset="smoke", folder=tmp_path / "paper")
    assert results.read("trial", tmp_path / "paper")["seconds"].to_list() == [1.0]


def test_a_record_of_other_rows_is_refused(tmp_path):
    path = results.write("trial", rows(), preset="smoke", folder=tmp_path)
    path.write_text(path.read_text().replace("1", "2"))
    with pytest.raises(ValueError, match=r"trial\.json is of other rows than trial\.csv holds"):
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


@pytest.mark.parametrize("path", sorted(results.FOLDER.glob("*/*.csv")), ids=lambda p: p.stem)
def test_recorded_results_have_every_column_and_their_own_record(path):
    assert path.read_text().partition("\n")[0].split(",") == results.COLUMNS
    record = results.record(path.stem, path.parent.name)
    assert (record["name"], record["preset"]) == (path.parent.name, "paper")


def test_results_refuse_unknown_columns_and_experiments(tmp_path):
    with pytest.raises(ValueError, match=r"unknown columns \['time'\]"):
        results.write("trial", rows().assign(time=1), preset="smoke", folder=tmp_path)
    with pytest.raises(ValueError, match=r"lacks \['seconds'\]"):
        results.write("t", rows().drop(columns="seconds"), preset="smoke", folder=tmp_path)
    with pytest.raises(ValueError, match="experiment: got 'none'"):
        results.read("none", tmp_path)


def test_a_caption_says_what_disturbs(monkeypatch):
    record = bench.machine("paper") | {"commit": "abc", "dirty": False, "distorting_variables": []}
    clean = results.caption(record)
    assert clean.endswith(f"{record['date']}, commit abc")
    assert clean.startswith(f"{record['cpu']}")
    assert results.caption(record | {"dirty": True}) == f"{clean} with changes"
    assert results.caption(record | {"preset": "smoke"}) == f"{clean}, preset smoke"
    steered = results.caption(record | {"distorting_variables": ["A=1"]})
    assert steered == f"{clean}, BLAS steered by A=1"
    assert "no commit recorded" in results.caption(record | {"commit": None, "dirty": None})


def test_distorting_variables_are_reported_for_the_library_in_use(monkeypatch):
    for name in provenance.DISTORTING:
        monkeypatch.setenv(name, "1")
    for library in ("openblas", "mkl", "nvpl", "blis"):
        monkeypatch.setattr(provenance, "blas", lambda library=library: [{"library": library}])
        named = [name for name in provenance.DISTORTING if name.startswith(library.upper())]
        assert provenance.distorting_variables() == [f"{name}=1" for name in named]
        assert bool(named) == (library != "blis")
    for name in provenance.DISTORTING:
        monkeypatch.delenv(name)
    assert provenance.distorting_variables() == []


def git(folder, *words):
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True)


def repository(folder, package, project="lstm-kernels"):
    """A repository in `folder` with one commit, which holds a package and its pyproject.toml."""
    package.mkdir(parents=True)
    (package / "code.py").write_text("1")
    (package.parent / "pyproject.toml").write_text(f'[project]\nname = "{project}"\n')
    for words in (["init"], ["add", "."], ["commit", "-m", "a"]):
        git(folder, *words)
    return package


def test_a_commit_is_recorded_with_whether_the_package_differs_from_it(tmp_path, monkeypatch):
    package = repository(tmp_path, tmp_path / "lstm_kernels")
    clean = provenance._commit(package)
    assert (len(clean["commit"]), clean["dirty"]) == (7, False)
    (tmp_path / "notes").write_text("beside the package")
    assert provenance._commit(package) == clean
    (package / "code.py").write_text("2")
    assert provenance._commit(package) == clean | {"dirty": True}
    monkeypatch.setenv("PATH", "")
    assert provenance._commit(package) == {"commit": None, "dirty": None}


@pytest.mark.parametrize(
    ("place", "project"), [("venv/lib/lstm_kernels", "lstm-kernels"), ("lstm_kernels", "other")]
)
def test_a_repository_around_the_environment_is_not_recorded(tmp_path, place, project):
    package = repository(tmp_path, tmp_path / place, project)
    assert provenance._commit(package) == {"commit": None, "dirty": None}
    (package.parent / "pyproject.toml").unlink()
    assert provenance._commit(package) == {"commit": None, "dirty": None}

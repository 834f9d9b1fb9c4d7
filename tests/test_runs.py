"""Runs of the report: what `make report` leaves, and what `take` keeps of it."""

import json

import pytest

from lstm_report import machines, runs
from lstm_report.measure import provenance

MACHINE = provenance.machine("paper") | {"name": "one", "date": "2026-01-01"}


def claim(sentence, verdict="Held"):
    return {"sentence": sentence, "verdict": verdict, "numbers": "2x (1x to 3x)"}


def written(path, verdicts, median=2000, time=None, **machine):
    claims = [claim(sentence, verdict) for sentence, verdict in verdicts.items()]
    named = [("over plain loops", f"{median}x ({median - 10}x to {median + 10}x)")]
    runs.write(path, MACHINE | machine, {"03_cpu_ladder": (claims, named)})
    if time:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"time": time}))
    return path


@pytest.fixture
def folder(tmp_path):
    """Two machines: one with runs of two days, on the second of which a claim fell."""
    run, folder = tmp_path / "run.json", tmp_path / "results"
    both = {"A.": "Held", "B.": "Held"}
    runs.take(written(run, both), folder)
    later = {"A.": "Held", "B.": "Did not hold"}
    runs.take(written(run, later, 2200, date="2026-01-02"), folder)
    other = {"A.": "Did not hold", "B.": "Not measured"}
    runs.take(written(run, other, 1000, name="two", cores=16), folder)
    return folder


def test_a_table_has_where_each_claim_held(folder):
    table = runs.by_machine(runs.read(folder))
    assert table["page"].to_list() == ["03"] * 2
    assert table.iloc[:, 1].to_list() == ["2 of 2", "1 of 2"]
    assert table.iloc[:, 2].to_list() == ["0 of 1", "-"]


def test_a_headline_has_its_range_over_days(folder):
    days = runs.over_days("over plain loops", runs.read(folder))
    assert days == (1000, 2000, 2200)
    told = {"over plain loops": "5x", "over NumPy": "2x"}
    assert "Over 3 runs on 2 machines that median was 1000x to 2200x" in (
        machines.headline(told, folder)
    )


def test_the_last_runs_of_a_machine_are_kept(folder, tmp_path):
    for day in range(10, 20):
        path = written(tmp_path / "run.json", {"A.": "Held"}, date=f"2026-02-{day}")
        kept, said = runs.take(path, folder)
    days = [one.name[8:10] for one in sorted(kept.parent.iterdir())]
    assert days == ["15", "16", "17", "18", "19"]
    assert said == "a run of 2026-02-19, 1 claims"


def test_of_a_day_the_later_runs_are_kept_whatever_their_commit(tmp_path):
    run, folder = tmp_path / "run.json", tmp_path / "results"
    for hour in range(9, 9 + runs.KEPT + 1):
        late = {"time": f"{hour:02}:00:00", "commit": f"{90 - hour}abcdef"}
        runs.take(written(run, {f"At {hour}.": "Held"}, **late), folder)
    assert [*runs.by_machine(runs.read(folder)).index] == ["At 14."]
    with pytest.raises(ValueError, match="want a newer one than the 5 kept"):
        runs.take(written(run, {"A.": "Held"}, time="08:00:00"), folder)
    assert len(runs.read(folder)) == runs.KEPT


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"time": "noon"}, "noon"),
        ({"date": "2099-01-01"}, "2099-01-01"),
        ({"date": "2026-13-45"}, "2026-13-45"),
        ({"commit": "../../../gpu"}, "commit '../../../gpu'"),
        ({"caches": [1]}, "machine"),
        ({"cores": None, "cpu": 3}, "machine"),
        ({"preset": "smoke"}, "preset 'smoke'"),
        ({"name": "../up"}, "machine '../up'"),
        ({"date": "yesterday"}, "'yesterdayT"),
        ({"cpu": "x" * 3000}, "the text"),
    ],
)
def test_what_is_no_run_of_the_report_is_refused(tmp_path, changed, message):
    path = written(tmp_path / "run.json", {"A.": "Held"}, **changed)
    with pytest.raises(ValueError, match=f"^archive: run.json: got .*{message}"):
        runs.take(path, tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"machine": {}, "claims": 1}'])
def test_another_file_is_refused(tmp_path, text):
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^archive: run.json: got "):
        runs.take(path, tmp_path)


@pytest.mark.parametrize(
    "claims",
    [
        [],
        [3],
        [[*runs.CLAIM]],
        [{**claim("A."), "page": "03"}, {**claim("A."), "page": "04"}],
        [{**claim("A.", "Always holds"), "page": "03"}],
        [{**claim("A."), "page": 3}],
        [{**claim(["A."]), "page": "03"}],
    ],
)
def test_claims_that_were_changed_are_refused(tmp_path, claims):
    path = written(tmp_path / "run.json", {"A.": "Held"})
    path.write_text(json.dumps(json.loads(path.read_text()) | {"claims": claims}))
    with pytest.raises(ValueError, match=r"^archive: run.json: got "):
        runs.take(path, tmp_path)


def test_medians_outside_the_ranges_of_another_run_are_counted():
    before = "2x (1.5x to 3x), 4 % (3 to 5) and 7 µs (6 to 8).\na 1x (1x to 1x)\nb"
    now = "a 9x (1x to 9x) b\n3.1x (1.5x to 4x), 4.9 % (3 to 5) and 5 µs (6 to 8)."
    assert runs.outside(before, now) == (2, 3)

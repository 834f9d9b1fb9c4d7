"""The reader's machine beside recorded ones, from rows with known times."""

import pandas as pd
import pytest

from lstm_report.lesson import your_machine
from lstm_report.measure import results
from lstm_report.measure.workloads import AIRLINE

LABEL = "this one"


def rows(fused, others=1.0, repeats=4, spread=1.0):
    """Training steps of every version; every second repeat takes `spread` times as
    long.
    """
    times = dict.fromkeys(your_machine.VERSIONS, others) | {"numba-fused": fused}
    lines = [
        {
            "version": name,
            "stage": "step",
            "variant": None,
            "repeat": repeat,
            **AIRLINE.columns(),
        }
        | {"seconds": seconds * (spread if repeat % 2 else 1)}
        for name, seconds in times.items()
        for repeat in range(repeats)
    ]
    return pd.DataFrame(lines)


@pytest.fixture
def recorded(monkeypatch):
    """Recorded rows of four machines, the second disturbed; beside them what is no
    training step of the airline network.
    """
    parts = []
    for number in range(4):
        part = rows(1e-6 * (number + 1))
        other = (
            part.assign(stage="forward", seconds=9.0),
            part.assign(H=64, seconds=9.0),
        )
        buffers = part.assign(variant="buffers", seconds=9.0)
        parts += [p.assign(machine=f"m{number}") for p in (part, *other, buffers)]
    monkeypatch.setattr(results, "recorded", lambda experiment: pd.concat(parts))

    def record(experiment, machine):
        about = {"cpu": machine.upper(), "cores": 2, "recorded": True}
        about |= {"date": f"2026-0{machine[1:]}-01", "family": None, "model": None}
        return about | {"disturbance": "a storm" if machine == "m1" else ""}

    monkeypatch.setattr(results, "record", record)


def test_the_latest_machines_stand_beside_this_one(recorded):
    others = your_machine.recorded()
    table = your_machine.table(rows(3e-6), others, LABEL)
    assert list(table.index) == [
        ("measured in this run", "this one"),
        ("recorded", "M3, 2 cores, recorded 2026-03-01"),
        ("recorded", "M2, 2 cores, recorded 2026-02-01"),
        ("recorded", "M1, 2 cores, recorded 2026-01-01, disturbed"),
    ]
    assert list(table["numba-fused"]) == ["3", "4", "3", "2"]
    assert list(table["numpy"]) == ["1000000"] * 4


def test_nothing_recorded_is_no_obstacle(monkeypatch):
    monkeypatch.setattr(
        results, "recorded", lambda experiment: rows(1.0)[:0].assign(machine="")
    )
    assert your_machine.recorded() == {}
    assert len(your_machine.table(rows(1.0), {}, LABEL)) == 1


def test_the_verdict_tells_a_quiet_run_from_a_disturbed_one():
    assert "quartiles of a version are 0.0% apart" in your_machine.verdict(rows(1.0))
    loud = your_machine.verdict(rows(1.0, spread=3.0))
    assert "This run was disturbed (quartiles 200 % apart)" in loud
    assert "repeat the cell" in loud


class Said(list):
    """A notebook that keeps what it says."""

    preset = "smoke"
    say = list.append

    @staticmethod
    def machine():
        return LABEL


def test_the_cell_says_how_much_faster_this_machine_is(recorded, monkeypatch):
    monkeypatch.setattr(your_machine, "measured", lambda preset: rows(3e-6))
    monkeypatch.setattr(your_machine, "display", lambda frame: None)
    said = Said()
    your_machine.show(said)
    assert "is here 1.33x as fast as on M3, 2 cores, recorded 2026-03-01" in said[0]
    assert "33 % slower than on M1, 2 cores" in said[0]
    assert "This run was not disturbed" in said[0]


def test_it_measures_here_and_compares_with_the_reference():
    measured = your_machine.measured("smoke")
    assert set(measured["version"]) == set(your_machine.VERSIONS)
    assert measured["max_err"].max() < 1e-5
    assert (measured["seconds"] > 0).all()

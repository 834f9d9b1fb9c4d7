"""A GPU in the report, before there is one: its parts and times are made, the rest is
what a reader's card goes through, from the measurement to the pages of another machine.
"""

import json
import os
import shutil
from contextlib import chdir
from functools import partial

import nbformat
import pandas as pd
import pytest
from pages import Told
from test_cuda import simulated

from lstm_report import archives, cards
from lstm_report.experiments import gpu_run
from lstm_report.experiments.gpu_run import Task
from lstm_report.measure import provenance, results
from lstm_report.measure.process import ProcessError
from lstm_report.pages import page_04

T4 = {"name": "Tesla T4", "capability": "7.5", "multiprocessors": 40, "driver": "550.1"}
T4 |= {"clock_mhz": 1590.0, "memory_clock_mhz": 5000.0, "memory_bus_bits": 256}
MADE = {  # seconds by version, of (variant, stage, sizes)
    ("airline", "epoch", 1600): {"cuda-epoch": 4e-3, "pytorch-graph": 8e-3},
    ("hundreds", "step", 256): {"numpy": 6e-3, "numpy-sample": 0.3, "cuda-v3": 3e-3},
    ("table", "5 epochs", 107): {"sequential": 40, "numpy-sample": 8, "cuda-v3": 2},
    ("large", "forward on device", 64): {"cuda-persistent": 6e-3, "pytorch": 9e-3},
    ("layers", "inference", 1): {
        "layers_in_turn": 0.08,
        "wavefront": 0.02,
        "numba-wavefront": 0.005,
    },
    ("units", "inference", 1): {"rnn": 0.04, "rnn_grid": 0.01, "numba-fused": 0.02},
}


def rows_of_part(key, left_out=()):
    variant, stage, N = key
    made = [
        {"version": version, "repeat": repeat, "seconds": seconds}
        for version, seconds in MADE[key].items()
        for repeat in range(3)
    ]
    sizes = {"L": 4, "T": 12, "B": min(N, 256), "D": 1, "H": 512, "N": N}
    sizes |= {"B": 16} if variant == "airline" else {}
    made = pd.DataFrame(made).assign(variant=variant, stage=stage, **sizes)
    made.attrs |= {"conditions": {"spread": 0.0}, "left_out": list(left_out)}
    return made


def fails(reason, *, limit):
    raise ProcessError(reason)


@pytest.fixture
def card(monkeypatch):
    """A function that puts a T4 here, whose parts return made rows; it takes other
    Tasks by name.
    """

    def put(**others):
        parts = {"probe": Task(lambda limit: "9 of 9 networks right", 9)}
        for key in MADE:
            parts[key[0]] = Task(lambda limit, key=key: rows_of_part(key), 9)
        parts |= others

        def tasks(preset, only=()):
            return {name: parts[name] for name in parts if name in only or not only}

        monkeypatch.setattr(gpu_run, "tasks", tasks)
        monkeypatch.setattr(provenance, "gpu", lambda: T4)

    return put


def measured(keep, only=()):
    nb = Told({})
    nb.preset = "paper"
    return cards.rows(nb, only, keep=keep), nb


@simulated
def test_a_card_fills_every_table_that_waits_for_one(card, tmp_path):
    card()
    rows, nb = measured(tmp_path / "kept")
    assert "- table: measured" in nb.text
    assert cards.told(tmp_path).endswith("ed: Tesla T4, driver 550.1, in this run.")
    small = page_04.small(rows)
    assert small["table"]["cuda-v3"] == pytest.approx(2 / 5)  # an epoch of one step
    assert small["airline"]["cuda-epoch"] == pytest.approx(4e-5)
    assert page_04.large(rows)["inference"]["pytorch"] == 9e-3
    gain = page_04.ratio_of(rows[rows["variant"] == "hundreds"], "cuda-v3", "numpy")
    assert gain.middle == pytest.approx(2)
    assert cards.conditions(rows)["recorded"] == ""
    assert cards.rates(rows) == pytest.approx((2 * 40 * 64 * 1.59, 2 * 5 * 32.0))
    rows, nb = measured(None, ("units",))  # a page that stands alone
    assert set(rows["variant"]) == {"units"}
    assert "table" not in nb.text


@simulated
def test_a_part_that_dies_is_named_and_leaves_the_others(card, tmp_path):
    (large,) = (key for key in MADE if key[0] == "large")
    left_out = ["cuda-persistent (L=4): UnavailableError: capability 6.0"]
    card(
        table=Task(partial(fails, "not finished in 40 s"), 9),
        large=Task(lambda limit: rows_of_part(large, left_out), 9),
    )
    rows, nb = measured(tmp_path)
    assert "- table: not finished in 40 s" in nb.text
    assert "- large: measured without cuda-persistent (L=4)" in nb.text
    assert not page_04.small(rows).empty
    card(**{key[0]: Task(partial(fails, "CUDA_ERROR_UNKNOWN"), 9) for key in MADE})
    rows, nb = measured(tmp_path / "none")
    assert rows.empty
    assert nb.said[-1].count("CUDA_ERROR_UNKNOWN") == len(MADE)
    assert page_04.power(rows) is None


UNFINISHED = {"interrupted": {"ended": False}, "smoke": {"preset": "smoke"}}
UNFINISHED |= {"failed": {"rows": 0}}


@simulated
@pytest.mark.parametrize("change", ["", "code is newer", *UNFINISHED])
def test_pages_share_a_finished_measurement_of_the_same_code(card, tmp_path, change):
    card()
    measured(tmp_path)
    (path,) = tmp_path.glob("*/gpu-checks.json")
    checks = json.loads(path.read_text()) | UNFINISHED.get(change, {})
    path.write_text(json.dumps(checks))
    if change == "code is newer":
        os.utime(path, (0, 0))
    card(table=Task(lambda limit: "again", 9))
    rows, nb = measured(tmp_path)
    assert len(rows)
    assert ("- table: again" if change else "- table: measured") in nb.text


@simulated
def test_what_a_strangers_card_brings_back_is_on_the_pages(card, tmp_path):
    """One file: measured, packed, taken over elsewhere, shown there."""
    card()
    measured(tmp_path / "there")
    path = archives.pack(cards.place(tmp_path / "there"), tmp_path / "a.zip")
    where, what = archives.take(path, here := tmp_path / "here")
    assert what.startswith("Tesla T4, 6 parts, ")
    assert "tesla-t4" in where.name
    date = json.loads((where / "gpu.json").read_text())["date"]
    label = f"Tesla T4, driver 550.1, {date}"
    assert cards.told(here, recorded=True) == f"GPUs that were measured: {label}."
    rows = results.recorded("gpu", here)
    recorded = cards.conditions(rows, here)["recorded"]
    assert recorded == f"{date}, Tesla T4, driver 550.1"
    assert page_04.large(rows)["inference"]["cuda-persistent"] == 6e-3
    shutil.rmtree(where)
    assert cards.told(here, recorded=True).startswith("No GPU has been at hand")


@simulated
@pytest.mark.parametrize("there_is_one", [True, False])
def test_the_notebook_that_measures_leaves_one_file(
    card, tmp_path, capsys, there_is_one
):
    """Its cells as they stand, with a card and without one."""
    if there_is_one:
        card()
    cells = nbformat.read(results.ROOT / "tools/gpu.ipynb", 4).cells
    space = {}
    with chdir(tmp_path):
        for cell in cells:
            if cell.cell_type == "code":
                exec(cell.source, space)
    if there_is_one:
        where, _ = archives.take(tmp_path / "gpu-results.zip", tmp_path / "there")
        assert "tesla-t4" in where.name
    else:
        assert not any(tmp_path.iterdir())
        assert "None" not in capsys.readouterr().out
        assert len(cards.able()["here"]) == 6

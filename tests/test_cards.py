"""A GPU in the report, before there is one: its parts and times are made, the rest is
what a reader's card goes through, from the measurement to the pages of another machine.
"""

import json
import shutil
from functools import partial
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from pages import Page, Told
from test_cuda import simulated

from lstm_report import archives, cards
from lstm_report.experiments import gpu_run
from lstm_report.experiments.gpu_run import Task
from lstm_report.measure import provenance, results
from lstm_report.measure.process import ProcessError
from lstm_report.pages import page_03, page_04, page_05, page_07

T4 = {"name": "Tesla T4", "capability": "7.5", "multiprocessors": 40, "driver": "550.1"}
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


def rows_of_part(key, slower=1.0, left_out=()):
    variant, stage, N = key
    made = [
        {"version": version, "repeat": repeat, "seconds": slower * seconds}
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

    def put(slower=None, **others):
        tasks = {"probe": Task(lambda limit: "9 of 9 networks right", 9)}
        for key in MADE:
            run = partial(rows_of_part, key, (slower or {}).get(key[0], 1.0))
            tasks[key[0]] = Task(lambda limit, run=run: run(), 9)
        tasks |= others
        monkeypatch.setattr(
            gpu_run,
            "tasks",
            lambda preset, only=(): {
                name: task for name, task in tasks.items() if name in only or not only
            },
        )
        monkeypatch.setattr(provenance, "gpu", lambda: T4)
        return tasks

    return put


def measured(keep, only=()):
    nb = Told({})
    nb.preset = "paper"
    rows = cards.rows(nb, only, keep=keep)
    return rows, nb


@simulated
def test_a_card_fills_every_table_that_waits_for_one(card, tmp_path):
    card()
    rows, nb = measured(tmp_path / "kept")
    assert "- table: measured" in nb.text
    assert cards.told(tmp_path).endswith("ed: Tesla T4, driver 550.1, in this run.")
    took = page_03.on_card(rows)
    assert took["sequential"] / took["cuda-v3"] == pytest.approx(20)
    assert page_04.small_table(rows).iloc[:, 0]["cuda-v3"] == "100x"
    assert page_04.large_table(rows).iloc[0, 0] == "6"
    assert "gains 4x by running them" in page_05.say_gpu(rows)
    assert "gain 4x to 4x over one" in page_07.say_gpu(rows)
    assert cards.conditions(rows)["recorded"] == ""
    assert cards.name_of(rows) == "Tesla T4"


@simulated
@pytest.mark.parametrize(("slower", "verdict"), [({}, True), ({"hundreds": 3}, None)])
def test_claims_are_judged_by_what_was_measured(card, tmp_path, slower, verdict):
    card(slower)
    rows, _ = measured(tmp_path)
    rows.loc[rows["version"] == "numpy", "seconds"] = 6e-3  # the CPU's is the same
    assert page_04.at_least_as_fast(page_04.step_gain(rows), 1)[0] is (verdict or False)
    assert page_04.at_least_as_fast(page_04.cudnn_gain(rows), 1)[0] is True


@simulated
def test_a_part_that_dies_is_named_and_leaves_the_others(card, tmp_path):
    card(
        table=Task(partial(fails, "not finished in 40 s"), 9),
        large=Task(
            lambda limit: rows_of_part(
                ("large", "forward on device", 64),
                left_out=["cuda-persistent (L=4): UnavailableError: capability 6.0"],
            ),
            9,
        ),
    )
    rows, nb = measured(tmp_path)
    assert "- table: not finished in 40 s" in nb.text
    assert "- large: measured without cuda-persistent (L=4)" in nb.text
    assert page_03.on_card(rows).empty
    assert not page_04.small_table(rows).empty


@simulated
def test_a_card_on_which_all_fails_leaves_the_page(card, tmp_path):
    card(**{key[0]: Task(partial(fails, "CUDA_ERROR_UNKNOWN"), 9) for key in MADE})
    rows, nb = measured(tmp_path)
    assert rows.empty
    assert nb.said[-1].count("CUDA_ERROR_UNKNOWN") == len(MADE)
    assert page_04.step_gain(rows) is page_04.power(rows) is None
    assert "not measured (no GPU time of it)" in page_05.say_gpu(rows)


@simulated
def test_a_page_that_stands_alone_measures_what_it_needs(card, monkeypatch):
    card()
    nb = Told({})
    nb.preset = "paper"
    rows = cards.rows(nb, ("units",))
    assert set(rows["variant"]) == {"units"}
    assert "table" not in nb.text


@simulated
def test_pages_share_a_measurement_of_the_same_code(card, tmp_path, monkeypatch):
    tasks = card()
    measured(tmp_path)
    calls = []
    for name in list(tasks):
        tasks[name] = Task(lambda limit, name=name: calls.append(name) or "done", 9)
    rows, nb = measured(tmp_path)
    assert not calls
    assert len(rows)
    assert "- table: measured" in nb.text
    monkeypatch.setattr(results, "newest_code", lambda: 4e9)  # code that is newer
    measured(tmp_path)
    assert calls


@simulated
@pytest.mark.parametrize("change", ["interrupted", "of small sizes", "failed"])
def test_an_unfinished_run_is_not_taken_for_this_one(card, tmp_path, change):
    card()
    measured(tmp_path)
    (path,) = tmp_path.glob("*/gpu-checks.json")
    checks = json.loads(path.read_text())
    checks |= {
        "interrupted": {"ended": False},
        "of small sizes": {"preset": "smoke"},
        "failed": {"rows": 0},
    }[change]
    path.write_text(json.dumps(checks))
    seen = []
    card(table=Task(lambda limit: seen.append(1) or "again", 9))
    rows, nb = measured(tmp_path)
    assert seen
    assert len(rows)
    assert "- table: again" in nb.text


@simulated
def test_what_a_strangers_card_brings_back_is_on_the_pages(card, tmp_path, monkeypatch):
    """One file: measured, packed, taken over elsewhere, shown there, removed again."""
    card()
    measured(tmp_path / "there")
    path = archives.pack(cards.place(tmp_path / "there"), tmp_path / "a.zip")
    here = tmp_path / "here"
    where, what = archives.take(path, here)
    assert what.startswith("Tesla T4, 6 parts, ")
    assert where.parent == here
    assert "tesla-t4" in where.name
    monkeypatch.setattr(provenance, "gpu", lambda: None)  # of another machine
    monkeypatch.setattr(results, "FOLDER", here)
    date = json.loads((where / "gpu.json").read_text())["date"]
    label = f"Tesla T4, driver 550.1, {date}"
    assert cards.told() == f"GPUs that were measured: {label}."
    nb = Told({})
    shown = []
    nb.recorded = lambda name: shown.append(name) or results.read(name)
    rows = cards.rows(nb)
    assert shown == ["gpu"]
    assert cards.conditions(rows)["recorded"] == f"{date}, Tesla T4, driver 550.1"
    assert page_04.large_table(rows).iloc[0, 0] == "6"
    for path in results.ROOT.glob("data/results/ptx-machine*.csv"):
        shutil.copy(path, here)
    page = Page("04_gpu_ladder")
    told = page.told(gpu=rows)
    assert "**Held in the recorded run of" in told.text
    assert "Tesla T4, driver 550.1" in told.text
    shutil.rmtree(where)
    assert cards.told().startswith("No GPU has been at hand")
    assert cards.rows(Told({})).empty


@simulated
@pytest.mark.parametrize("found", [True, False])
def test_the_notebook_that_measures_leaves_one_file(
    card, tmp_path, monkeypatch, capsys, found
):
    """Its cells as they stand, with a card and without one."""
    if found:
        card()
    monkeypatch.chdir(tmp_path)
    path = results.ROOT / "tools/gpu.ipynb"
    space = {}
    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == "code":
            exec(cell.source, space)
    assert Path("gpu-results.zip").exists() is found
    if found:
        where, _ = archives.take(Path("gpu-results.zip"), tmp_path / "there")
        assert "tesla-t4" in where.name
    else:
        assert not any(tmp_path.iterdir())
        assert "None" not in capsys.readouterr().out


def test_what_can_run_here_is_said_with_reasons(monkeypatch):
    table = cards.able()["here"]
    assert len(table) == 6
    assert Path(cards.place(Path("x"))).name == provenance.machine_name()

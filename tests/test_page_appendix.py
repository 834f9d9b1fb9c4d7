"""The appendix on synthetic rows of two machines and three compilers."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from filed import filed
from pages import Page, rows, text_of

from lstm_report.measure.workloads import MODELS

PAGE = Page("appendix")
page = PAGE.module


def peers(variant=np.nan):
    """How many times as fast as PyTorch `numba-fused` is on two machines, and how long
    it takes in the round between the others.
    """
    ratios = [("one", 1, 8, "forward", 0.9), ("one", 1, 8, "step", 3.0)]
    ratios += [("one", 2, 16, "forward", 1.5), ("two", 1, 8, "forward", 0.7)]
    ratios += [("two", 1, 8, "step", 5.0)]
    parts = []
    for machine, L, H, stage, ratio in ratios:
        made = rows({"numba-fused": 1, "pytorch": ratio}, machine=machine, stage=stage)
        made = made[made["process"] == 0].rename(columns={"case": "version"})
        parts.append(made.assign(L=L, H=H, T=10, D=4, B=2))
    made = pd.concat(parts)
    ours = made["version"] == "numba-fused"
    return made.assign(variant=np.where(ours, variant, None))


def models():
    """A model with each layer, on one thread and on two; flushed is between."""
    parts = []
    for work, threads in product([MODELS["airline"], MODELS["long"]], (1, 2)):
        for stage, ours in (("step", 0.02 / threads), ("forward", 0.01)):
            took = {"numba-fused": 0.005, "pytorch": 0.03, "pytorch-flush": 0.025}
            made = rows(took | {"pytorch-fused": ours}, by="version", stage=stage)
            made = made[made["process"] == 0].assign(threads=threads)
            parts.append(made.assign(**work.columns()))
    return pd.concat(parts)


def compilers():
    """Medians of compilers: seconds of a pass at 16, 128 and 512 units, of compiling;
    MiB before, after and while they do it.
    """
    times = {
        "jax-eager": ((2e-3, 3e-3, 7e-3), 0.1, (100, 164, 210)),
        "jax-scan": ((4e-4, 1e-3, 5e-3), 0.3, (100, 148, 190)),
        "jax-unrolled": ((2e-4, 9e-4, 6e-3), 0.5, (100, 292, 400)),
        "pytorch-eager": ((3e-4, 1e-3, 22e-3), 0.002, (300, 330, np.nan)),
        "pytorch-compiled": ((1e-4, 5e-4, 11e-3), 8.0, (300, 320, 390)),
    }
    made = []
    for name, (passes, start, held) in times.items():
        for H, seconds in zip((16, 128, 512), passes, strict=True):
            made += [(name, "forward", H, seconds, np.nan, 20)]
            made += [(name, "compile", H, start, np.nan, 20)]
        for stage, mib in zip(("import", "memory", "compiling"), held, strict=True):
            made += [(name, stage, 512, 1.0, mib * 2**20, 100)]
    return pd.DataFrame(made, columns=COLUMNS)


COLUMNS = ["version", "stage", "H", "seconds", "bytes", "T"]


def made():
    """Rows of machines and compilers, goals of two projects, errors of differences."""
    goals = {
        "CSC14116": ("03_cpu_ladder.ipynb", [["10x", "`cuda-v3`: 24x", "reached"]]),
        "15-418": (
            "07_handover",
            [["CUDA", "28 ms", "partly"], ["MPI", "", "reached"]],
        ),
    }
    curves = {"one-sided": [0.04, 4e-5, 9e-4], "central": [3e-4, 2e-9, 3e-4]}
    curves |= {"complex": [2e-4, 3e-12, 4e-16]}
    return {
        "closings": goals,
        "compared_with_pytorch": page.compared_with_pytorch(peers()),
        "labels": {"one": "First machine", "two": "Second"},
        "captions": "- First machine.\n- Second.",
        "compilers": compilers(),
        "models": models(),
        "errors_of_differences": pd.DataFrame(curves, index=[0.1, 1e-5, 1e-10]),
        "tanh_error": 7.7e-8,
        "gru_error": 5.9e-10,
    }


test_text, _, test_all = PAGE.approved(made())
TABLE = page.compared_with_pytorch(peers())


def test_each_machine_is_compared_with_pytorch_and_drawn():
    assert TABLE["ratio"].to_list() == pytest.approx([0.9, 3.0, 1.5, 0.7, 5.0])
    figure = page.figure_machines(TABLE, {"one": "First", "two": "Second"})
    left, _ = figure.axes
    assert [text.get_text() for text in left.get_yticklabels()] == [
        "1x8, 10 steps, B 2",
        "2x16, 10 steps, B 2",
    ]
    drawn = {line.get_label(): line.get_xydata().tolist() for line in left.lines}
    assert drawn["First"] == [[pytest.approx(0.9), 0], [pytest.approx(1.5), 1]]
    assert drawn["Second"] == [[pytest.approx(0.7), 0]]
    # A kernel without its call is no peer.
    assert page.compared_with_pytorch(peers("kernel")).empty


def test_a_model_is_compared_with_its_layer_of_pytorch():
    table = page.inside_pytorch(models())
    assert table.index.to_list() == ["airline", "airline", "long", "long"]
    assert table.iloc[1].to_dict() == {
        "threads": "2",
        "training step: ms": "10",
        "training step: over torch.nn": "3x",
        "training step: over flushed": "2.5x",
        "inference: ms": "10",
        "inference: over torch.nn": "3x",
        "inference: over flushed": "2.5x",
        "numba-fused by itself": "6x",
    }


def test_machines_are_named_by_what_they_can_do(tmp_path):
    made = rows({"numpy": 1.0}, by="version", stage="step")
    own_name = page.provenance.machine_name()
    for name in ("other", own_name):
        filed(tmp_path, made, "peers", machine=name, cpu=f"Chip {name[:5]}", cores=3)
    other, own = page.labels(["other", own_name], tmp_path).values()
    assert other.startswith("Chip other, ")
    assert "recorded" not in other
    assert own.endswith("3 cores (the pages' machine)")
    said = page.captions(["other", own_name], tmp_path).splitlines()
    assert [line.startswith("- Chip") for line in said] == [True, True]


def test_differences_and_tanh():
    curves = page.errors_of_differences(np.random.default_rng(1), 3.0)
    said = text_of(page.figure_differences(curves))
    assert "A central difference is best at a step of 1e-04." in said
    assert 0 < page.tanh_error(50) < 1.2e-7
    assert 0 < page.gru_error(np.random.default_rng(0)) < 1e-8
    with pytest.raises(ValueError, match="error: got nan, want at most 1"):
        page.within(np.nan, 1)

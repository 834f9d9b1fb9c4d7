"""The appendix: its figures and tables on made rows."""

import numpy as np
import pandas as pd
import pytest
from pages import functions

page = functions("appendix")


def peers(ratios):
    """Rows of one machine: (L, H, stage) -> how many times as fast as PyTorch."""
    rows = [
        (*key, version, repeat, seconds)
        for key, ratio in ratios.items()
        for version, seconds in (("numba-fused", 1.0), ("pytorch", ratio))
        for repeat in range(3)
    ]
    names = ["L", "H", "stage", "version", "repeat", "seconds"]
    made = pd.DataFrame(rows, columns=names)
    return made.assign(T=10, D=4, B=2, variant=np.nan, machine="one")


def test_a_machine_is_compared_with_pytorch_and_drawn():
    rows = peers({(1, 8, "forward"): 0.9, (1, 8, "step"): 3.0, (2, 16, "forward"): 1.5})
    table = page.compared_with_pytorch(rows)
    assert table["ratio"].to_list() == pytest.approx([0.9, 3.0, 1.5])
    figure = page.figure_machines(table)
    left, right = figure.axes
    assert left.get_title("left") == "Inference: 0.9x or more"
    assert right.get_title("left") == "Training: 3x or more"
    names = [label.get_text() for label in left.get_yticklabels()]
    assert names == ["1x8, 10 steps, B 2", "2x16, 10 steps, B 2"]
    (drawn,) = (line for line in left.lines if line.get_label() == "one")
    assert list(drawn.get_xdata()) == pytest.approx([0.9, 1.5])
    assert list(drawn.get_ydata()) == [0, 1]
    assert left.get_xlabel() == "times as fast as PyTorch"


def test_a_kernel_without_its_call_is_no_peer():
    rows = peers({(1, 8, "forward"): 2.0})
    rows["variant"] = np.where(rows["version"] == "numba-fused", "kernel", None)
    assert page.compared_with_pytorch(rows).empty


def test_the_table_of_compilers_has_each_unit():
    stages = {"compile": 2.0, "load": 0.5, "forward": 0.004}
    rows = [("jax-scan", stage, seconds, np.nan) for stage, seconds in stages.items()]
    rows += [("jax-scan", "import", 1.0, 100 * 2**20)]
    rows += [("jax-scan", "memory", 1.0, 164 * 2**20)]
    made = pd.DataFrame(rows, columns=["version", "stage", "seconds", "bytes"])
    table = page.table_compilers(made.assign(H=512), 512)
    assert table.loc["JAX, a scan compiled"].to_list() == ["2", "0.5", "4", "64"]
    assert table.loc["NumPy, this package"].to_list() == ["-"] * 4
    assert list(table)[2:] == ["a pass (ms)", "memory beyond import (MiB)"]


def test_the_differences_as_drawn():
    etas = np.array([1e-2, 1e-4, 1e-6])
    curves = {"central": [1e-4, 1e-8, 1e-6], "complex": [1e-4, 1e-8, 1e-12]}
    (ax,) = page.figure_differences(etas, curves).axes
    assert (
        ax.get_title("left") == "A central difference is most exact at a step of 1e-04"
    )
    assert "relative" in ax.get_ylabel()
    assert [list(line.get_ydata()) for line in ax.lines] == list(curves.values())
    assert {text.get_text() for text in ax.texts} == set(curves)

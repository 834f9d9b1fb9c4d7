"""The appendix: its figures and tables on made rows of two machines."""

import numpy as np
import pandas as pd
import pytest
from pages import functions, rows, says

page = functions("appendix")


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


def compilers():
    """Rows of JAX's scan, at two sizes."""
    stages = {"compile": 2.0, "load": 0.5, "forward": 0.004, "import": 1, "memory": 1}
    memory = {"import": 100 * 2**20, "memory": 164 * 2**20}
    made = [
        ("jax-scan", stage, H * seconds / 512, memory.get(stage, np.nan), H)
        for stage, seconds in stages.items()
        for H in (512, 64)
    ]
    names = ["version", "stage", "seconds", "bytes", "H"]
    return pd.DataFrame(made, columns=names)


TABLE = page.compared_with_pytorch(peers())
ETAS = np.array([1e-2, 1e-4, 1e-6])
CURVES = {"central": [1e-4, 1e-8, 1e-6], "complex": [1e-4, 1e-8, 1e-12]}
test_words = says(
    (page.figure_machines, TABLE, "Inference: 0.7x or more. "),
    (page.figure_machines, TABLE, "Training: 3x or more. "),
    (page.table_compilers, (compilers(), 512), "JAX, a scan compiled, 2, 0.5, 4, 64"),
    (page.table_compilers, (compilers(), 512), "NumPy, this package, -, -, -, -"),
    (page.figure_differences, (ETAS, CURVES), "is most exact at a step of 1e-04. "),
)


def test_each_machine_is_compared_with_pytorch_and_drawn():
    assert TABLE["ratio"].to_list() == pytest.approx([0.9, 3.0, 1.5, 0.7, 5.0])
    left, _ = page.figure_machines(TABLE).axes
    names = [label.get_text() for label in left.get_yticklabels()]
    assert names == ["1x8, 10 steps, B 2", "2x16, 10 steps, B 2"]
    drawn = {line.get_label(): line.get_xydata().tolist() for line in left.lines}
    assert drawn["one"] == [[pytest.approx(0.9), 0], [pytest.approx(1.5), 1]]
    assert drawn["two"] == [[pytest.approx(0.7), 0]]


def test_a_kernel_without_its_call_is_no_peer():
    assert page.compared_with_pytorch(peers("kernel")).empty

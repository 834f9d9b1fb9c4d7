"""Tables of results by machine, from known rows."""

import re

import pandas as pd
import pytest
from filed import filed

from lstm_report import machines
from lstm_report.measure import ceilings
from lstm_report.measure.workloads import AIRLINE, GRID

FAST = {"numba-fused": 1.0, "pytorch": 2.0, "jax": 3.0, "onnxruntime": 0.5}
FAST |= {"pytorch-flush": 1.5}


def compared(work=AIRLINE, **seconds):
    """Rows of three rounds of a workload, by version; a round is twice the one
    before, a step thrice an inference.
    """
    return pd.DataFrame(
        [
            work.columns()
            | {"version": name, "variant": "1" if name in machines.PEERS else None}
            | {"stage": stage, "repeat": r, "seconds": factor * value * 2**r}
            for stage, factor in (("forward", 1), ("step", 3))
            for name, value in seconds.items()
            for r in range(3)
        ]
    )


def test_tables_come_from_their_rows():
    gemm = {"version": "sgemm", "stage": "ceiling", "repeat": 0}
    gemm |= {"seconds": ceilings.SGEMM_GFLOP}  # of 1 GFLOP/s
    rows = pd.concat([compared(**FAST), pd.DataFrame([gemm])])
    [line] = machines.peers(rows, "step")
    rate = AIRLINE.step_gflop / 6  # the median is the second of three rounds
    assert line == {
        "workload": "airline",
        "ms": "6000",
        "GFLOP/s": f"{rate:.3g}",
        "of SGEMM": f"{rate:.0%}",
        "vs PyTorch": "2x",
        "vs PyTorch, flushed": "1.5x",
        "vs JAX": "3x",
        "vs ONNX Runtime": "50 % slower",
    }
    [bare] = machines.peers(compared(**{"numba-fused": 1.0}), "forward")
    assert "JAX" not in machines.markdown([bare])
    parts = [compared(work, numpy=0.5, sequential=4.0) for work in GRID.values()]
    lines = list(machines.grid(pd.concat(parts), "forward"))
    assert len(lines) == 6
    assert lines[0] == {"workload": "airline", "sequential": "8000", "numpy": "1000"}


def test_readme_and_the_page_hold_the_rows_of_each_machine(tmp_path):
    """README those of the machine that was measured last, the page all of them."""
    for machine, date, factor in (("a", "2026-02-01", 1), ("b", "2026-01-01", 3)):
        rows = compared(**{name: factor * s for name, s in FAST.items()})
        about = {"date": date, "cpu": f"Chip {machine}"}
        filed(tmp_path, rows, "peers", machine=machine, **about)
    filed(tmp_path, compared(numpy=1.0), "grid", machine="c", cpu="Chip c")
    places = ("headline", "gpu", "results")
    parts = [f"<!-- {n}: x -->\nold\n<!-- end of {n} -->\n" for n in places]
    text, told = (
        "a\n{}b\n{}c\n{}".format(*parts),
        {"over plain loops": "9x (8x to 10x)"},
    )
    with pytest.raises(ValueError, match="want also over NumPy"):
        machines.renewed(text, told, tmp_path)
    told["over NumPy"] = "3.5x"
    renewed = machines.renewed(text, told, tmp_path)
    assert "9x (8x to 10x) as fast as plain loops and 3.5x as fast as NumPy" in renewed
    assert "| airline | 2000 | 2x | 1.5x | 6000 | 2x | 1.5x |" in renewed
    assert "recorded 2026-02-01" in renewed
    assert "old" not in renewed
    assert machines.renewed(renewed, told, tmp_path) == renewed
    for name in places:
        without = text.replace(f"<!-- end of {name} -->", "")
        with pytest.raises(ValueError, match=f"README.md: got 0 places for {name}"):
            machines.renewed(without, told, tmp_path)
    parts = machines.page(tmp_path).split("\n## ")[1:]
    titles = ["Other packages: Chip a", "Other packages: Chip b", "Versions: Chip c"]
    assert [part.partition(",")[0] for part in parts] == titles
    for part, ms in zip(parts, (2, 6, 2), strict=True):
        rows = re.findall(r"^\| airline \| (\d+) \|", part, re.MULTILINE)
        assert rows == [f"{ms}000", f"{3 * ms}000"]

"""Tables of results by machine, and what a notebook shows of code, from known rows."""

import pandas as pd
import pytest

from lstm_kernels.versions import numba_sample
from lstm_report import machines, notebook
from lstm_report.lesson import mistakes
from lstm_report.measure import ceilings, results
from lstm_report.measure.workloads import AIRLINE, GRID


def compared(machine="here", stages=("forward", "step"), work=AIRLINE, **seconds):
    """Rows of three rounds of a workload, by version; a round is twice the one
    before.
    """
    return pd.DataFrame(
        [
            work.columns()
            | {"version": name, "variant": "1" if name in machines.PEERS else None}
            | {"stage": stage, "repeat": r, "seconds": value * 2**r, "machine": machine}
            for stage in stages
            for name, value in seconds.items()
            for r in range(3)
        ]
    )


FAST = {"numba-fused": 1.0, "pytorch": 2.0, "jax": 3.0, "onnxruntime": 0.5}


def test_tables_of_peers_come_from_their_rows():
    gemm = {"version": "sgemm", "stage": "ceiling", "repeat": 0, "machine": "here"}
    gemm |= {"seconds": ceilings.SGEMM_GFLOP}  # of 1 GFLOP/s
    rows = pd.concat([compared(**FAST), pd.DataFrame([gemm])])
    [line] = machines.peers(rows, "step")
    rate = AIRLINE.step_gflop / 2  # the median is the second of three rounds
    assert line == {
        "workload": "airline",
        "ms": "2000",
        "GFLOP/s": f"{rate:.3g}",
        "of SGEMM": f"{rate:.0%}",
        "vs PyTorch": "2x",
        "vs JAX": "3x",
        "vs ONNX Runtime": "50 % slower",
    }
    [bare] = machines.peers(compared(**{"numba-fused": 1.0}), "forward")
    assert [bare["of SGEMM"], bare["vs JAX"]] == [None, None]
    assert "JAX" not in machines.markdown([bare])


def test_the_grid_has_eight_rows_and_each_version_once():
    parts = [compared(work=work, numpy=0.5, sequential=4.0) for work in GRID.values()]
    lines = list(machines.grid(pd.concat(parts), "forward"))
    assert len(lines) == 8
    assert lines[0] == {"workload": "airline", "sequential": "8000", "numpy": "1000"}


@pytest.fixture
def recorded(monkeypatch):
    """Two machines, the first measured later, and what was said of them."""
    rows = pd.concat([compared("a", **FAST), compared("b", **FAST)])
    dates = {"a": "2026-02-01", "b": "2026-01-01"}
    monkeypatch.setattr(results, "read", lambda experiment: rows)
    monkeypatch.setattr(
        results, "record", lambda _, name: {"date": dates[name]} | ABOUT
    )
    monkeypatch.setattr(results, "caption", lambda record: f"of {record['date']}")


ABOUT = {"cpu": "CPU"}


def test_readme_holds_the_newest_machine(recorded):
    text = "a\n<!-- results: x -->\nold\n<!-- end of results -->\nb\n"
    for marked in (text, text.replace("end of ", "/").replace(": x", "")):
        renewed = machines.renewed(marked)
        assert "| airline | 2000 | 2x | 2000 | 2x |" in renewed
        assert "of 2026-02-01." in renewed
        assert "old" not in renewed
        assert machines.renewed(renewed) == renewed
    with pytest.raises(ValueError, match=r"README\.md: got 0 places for results"):
        machines.renewed("no markers")


def test_the_page_has_every_machine(recorded):
    page = machines.page()
    for title in ("Other packages: a", "Other packages: b", "Versions: a"):
        assert f"## {title}" in page
    assert page.count("of 2026-01-01") == 2


def test_the_lines_that_changed_are_marked(monkeypatch):
    shown = []
    monkeypatch.setattr(notebook, "display", lambda text: shown.append(text.data))
    notebook.Notebook.changes(mistakes.forward_steps, numba_sample.forward_samples)
    marked = [line for line in shown[0].splitlines() if line.startswith("+")]
    assert "+     for s in prange(B):" in marked
    assert not any("add_product" in line for line in marked)  # indented alike or not


def test_a_source_is_shown_without_the_marks_of_its_linter(monkeypatch):
    told, mark = [], "# " + "noqa"
    source = f"f = 1  {mark}: E731 - a name\ng = 2  {mark}: B007\n"
    monkeypatch.setattr(notebook.inspect, "getsource", lambda item: source)
    monkeypatch.setattr(notebook, "display", lambda text: told.append(text.data))
    notebook.Notebook.source(None)
    assert told == ["```python\nf = 1  # a name\ng = 2\n```"]

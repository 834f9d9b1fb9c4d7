"""`make bench-isa`: who is isa, what is measured, and what the tables say of it."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import readme

from lstm_kernels import __main__ as command
from lstm_report.experiments import isa
from lstm_report.figures import tables
from lstm_report.measure import ceilings, peers, provenance, results, runner
from lstm_report.measure.workloads import GRID

PRINT = (
    "from lstm_kernels.cpu import registers; print(registers.vector_registers().name)"
)


def made(machine, name, ratios, *, peer=True, sgemm=100.0):
    """Rows of a machine and instruction set: SGEMM at so many GFLOP/s, ours at half of
    it.

    ratios: PyTorch's time over ours, by (workload, stage); the three rounds' median.
    """
    parts = []
    for (label, stage), ratio in ratios.items():
        work = GRID[label]
        gflop = work.step_gflop if stage == "step" else work.gflop
        ours = np.array([1.0, 2.0, 1.0]) * gflop / (sgemm / 2)
        # In the second round everyone was slow: a ratio of means would see it.
        times = {"numba-fused": ours} | (
            {"pytorch": ours * ratio * [0.5, 1, 3]} if peer else {}
        )
        for case, seconds in times.items():
            columns = {
                "case": case,
                "stage": stage,
                "repeat": range(3),
                "seconds": seconds,
            }
            parts.append(runner.rows_of(pd.DataFrame(columns), work))
    rows = pd.concat(parts, ignore_index=True)
    rows["variant"] = rows["version"].map({"pytorch": "2.0"})
    gemm = {"version": "sgemm", "stage": "ceiling", "variant": "openblas Haswell"}
    gemm |= {"repeat": range(3), "seconds": ceilings.SGEMM_GFLOP / sgemm}
    rows = pd.concat([rows, pd.DataFrame(gemm)], ignore_index=True)
    return rows.assign(threads=2, machine=machine, instruction_set=name)


AHEAD = {
    ("airline", "forward"): 3.0,
    ("airline", "step"): 2.0,
    ("one layer", "forward"): 1.2,
    ("one layer", "step"): 1.4,
    ("reference, 64 samples", "forward"): 1.1,
    ("reference, 64 samples", "step"): 1.3,
}
BEHIND = AHEAD | {("one layer", "forward"): 0.97}


@pytest.fixture
def rows():
    """Two machines and two sets; the narrow one comes first in the file."""
    return pd.concat(
        [
            made("a", "SSE2", BEHIND, sgemm=25.0),
            made("a", "AVX2", AHEAD),
            made("b", "AVX2", AHEAD, peer=False),
            made("b", "SSE2", AHEAD),
        ]
    )


@pytest.fixture
def record(monkeypatch):
    monkeypatch.setattr(
        results, "record", lambda experiment, machine: {"machine": machine}
    )
    monkeypatch.setattr(
        results, "caption", lambda record: f"caption of {record['machine']}"
    )


@pytest.mark.skipif(not isa.NAMES, reason="restricts processes on x86-64 only")
@pytest.mark.parametrize("name", ["AVX2", "SSE2"])
def test_the_child_is_restricted(monkeypatch, name):
    for setting in (*provenance.DISTORTING, *isa.VARIABLES):
        monkeypatch.setenv(setting, "of the user")
    environment = isa.environment(name)
    assert {key: environment[key] for key in isa.VARIABLES} == isa.variables(name)
    others = set(provenance.DISTORTING) - set(isa.VARIABLES)
    assert not others & set(environment)
    said = subprocess.check_output(
        [sys.executable, "-c", PRINT], env=environment, text=True
    )
    assert said.split() == [name]


def test_sets_are_those_of_this_cpu(monkeypatch):
    if isa.NAMES:
        has = isa.features("AVX2") | {"avx512f": False}
        monkeypatch.setattr(isa.llvmlite.binding, "get_host_cpu_features", lambda: has)
        assert isa.sets() == ["AVX2", "SSE2"]
    monkeypatch.setattr(isa, "NAMES", ())  # no x86-64: what it has, unisa
    (own,) = isa.sets()
    assert own == isa.registers.vector_registers().name
    assert not set(isa.VARIABLES) & set(isa.environment(own)) - set(os.environ)


def test_a_process_of_another_set_measures_nothing(monkeypatch):
    with pytest.raises(ValueError, match="want MMX"):
        isa.measure("MMX", "smoke")
    monkeypatch.setattr(isa, "CHILD", "raise SystemExit(3)")
    with pytest.raises(RuntimeError, match="ended with 3"):
        isa.each_set("smoke")


def small_ceilings(threads, repeats, **options):
    cases = [("sgemm", repeat, 1.0) for repeat in range(repeats)]
    frame = pd.DataFrame(cases, columns=["version", "repeat", "seconds"])
    return frame.assign(stage="ceiling", threads=threads)


@pytest.mark.parametrize("peer", [False, True])
def test_rows_of_a_run_with_and_without_pytorch(monkeypatch, tmp_path, capsys, peer):
    if peer:
        pytest.importorskip("torch")
    else:
        monkeypatch.setattr(isa, "find_spec", lambda name: None)
    monkeypatch.setattr(peers, "ceilings", small_ceilings)
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    own = isa.registers.vector_registers().name
    monkeypatch.setattr(isa, "sets", lambda: [own])

    def run(words, **how):
        isa.measure(*words[3:5]).to_pickle(words[5])
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(isa, "subprocess", SimpleNamespace(run=run))
    command.main(["bench-isa", "--preset", "smoke", "--folder", str(tmp_path)])
    said = capsys.readouterr()
    assert ("PyTorch is not installed" in said.err) is not peer
    assert (
        "warning: OPENBLAS_CORETYPE" in said.err
        or provenance.blas()[0]["library"] != "openblas"
    )
    assert f"isa: median seconds, written to {tmp_path}" in said.out
    rows = results.read("isa", tmp_path)
    assert set(rows["instruction_set"]) == {own}
    assert set(rows["stage"]) == {"ceiling", "forward", "step"}
    versions = {"numba-fused", "pytorch"} if peer else {"numba-fused"}
    assert set(rows["version"]) == {"sgemm", *versions}
    assert rows[rows["version"].isin(versions)]["max_err"].between(0, 1e-3).all()
    gemm = rows[rows["version"] == "sgemm"]["variant"].unique()
    assert all(pool["kernels"] in gemm[0] for pool in provenance.blas())
    assert tables.ends(rows, tables.SET).empty is not peer


def test_table_has_a_row_per_machine_set_and_workload(rows):
    table = tables.instruction_sets(rows)
    assert len(table) == 12
    work = GRID["one layer"]
    assert table.loc["a", "AVX2", "one layer"]["inference"].to_dict() == {
        "ms": f"{1e3 * work.gflop / 50:.3g}",
        "GFLOP/s": "50",
        "of SGEMM": "50%",
        "vs PyTorch": "1.20x",
    }
    assert (
        table.loc["a", "SSE2", "one layer"]["inference", "vs PyTorch"] == "3 % slower"
    )
    assert table.loc["a", "SSE2", "one layer"]["training step", "GFLOP/s"] == "12.5"
    assert (
        table.loc["b", "AVX2", "airline"]["training step", "vs PyTorch"]
        == "not measured"
    )


def test_the_ends_are_the_least_and_the_largest_speed(rows):
    table = tables.ends(rows, tables.SET)
    assert list(table.index) == [("a", "AVX2"), ("a", "SSE2"), ("b", "SSE2")]
    ahead, behind = table.loc["a", "AVX2"], table.loc["a", "SSE2"]
    assert ahead["inference"] == "1.10x (reference, 64 samples) to 3.00x (airline)"
    assert ahead["training step"] == "1.30x (reference, 64 samples) to 2.00x (airline)"
    assert behind["inference"] == "3 % slower (one layer) to 3.00x (airline)"


def test_the_caption_names_peers_threads_and_kernels(rows, record):
    assert tables.about("isa", rows[rows["machine"] == "a"]) == (
        "caption of a, pytorch 2.0, 2 threads for everyone, "
        "SGEMM 100 GFLOP/s (AVX2, openblas Haswell), SGEMM 25 GFLOP/s (SSE2, openblas Haswell)."
    )


def test_nothing_recorded_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    assert results.recorded("isa").empty
    assert "not measured yet" in readme.instruction_sets()


def test_the_readme_shows_the_ends(rows, record, monkeypatch):
    monkeypatch.setattr(results, "recorded", lambda name: rows)
    text = readme.instruction_sets()
    assert "| a | SSE2 | 3 % slower (one layer) to 3.00x (airline) |" in text
    assert text.count(", 2 threads for everyone") == 2


def test_what_bounds_a_set():
    table = tables.bounds()
    assert table["instructions for 64 multiply-adds"].to_dict() == {
        "AVX-512": 4,
        "AVX2": 8,
        "SSE2": 32,
        "NEON": 16,
    }

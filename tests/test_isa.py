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
from lstm_kernels.bench import ceilings, isa, peers, provenance, results, runner
from lstm_kernels.bench.workloads import GRID
from lstm_kernels.report import tables_isa

PRINT = "from lstm_kernels.cpu import registers; print(registers.vector_registers().name)"
MACHINES = {
    "a": {"cpu": "CPU A", "family": "25", "model": "17", "cores": 2, "date": "2026-01-02"},
    "b": {"cpu": "CPU B", "family": "6", "model": "85", "cores": 4, "date": "2026-01-03"},
}
for name, record in MACHINES.items():
    record |= {"name": name, "preset": "paper", "recorded": True}
A = "CPU A, family 25, model 17, 2 cores, recorded 2026-01-02"
B = "CPU B, family 6, model 85, 4 cores, recorded 2026-01-03"


def made(machine, name, ratios, *, peer=True, sgemm=100.0):
    """Rows of a machine and instruction set: SGEMM at so many GFLOP/s, ours at half of it.

    ratios: PyTorch's time over ours, by (workload, stage); the three rounds' median.
    """
    parts = []
    for (label, stage), ratio in ratios.items():
        work = GRID[label]
        gflop = work.step_gflop if stage == "step" else work.gflop
        ours = np.array([1.0, 2.0, 1.0]) * gflop / (sgemm / 2)
        # In the second round everyone was slow: a ratio of means would see it.
        times = {"numba-fused": ours} | ({"pytorch": ours * ratio * [0.5, 1, 3]} if peer else {})
        for case, seconds in times.items():
            columns = {"case": case, "stage": stage, "repeat": range(3), "seconds": seconds}
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
    ("airline", "public step"): 1.5,
    ("one layer", "forward"): 1.2,
    ("one layer", "step"): 1.4,
    ("reference, 64 samples", "forward"): 1.1,
    ("reference, 64 samples", "step"): 1.3,
}
BEHIND = AHEAD | {("one layer", "forward"): 0.97, ("airline", "public step"): 0.5}


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


@pytest.mark.skipif(not isa.NAMES, reason="restricts processes on x86-64 only")
@pytest.mark.parametrize("name", ["AVX2", "SSE2"])
def test_the_child_is_restricted(monkeypatch, name):
    for setting in (*provenance.DISTORTING, *isa.VARIABLES):
        monkeypatch.setenv(setting, "of the user")
    environment = isa.environment(name)
    assert {key: environment[key] for key in isa.VARIABLES} == isa.variables(name)
    others = set(provenance.DISTORTING) - set(isa.VARIABLES)
    assert not others & set(environment)
    said = subprocess.check_output([sys.executable, "-c", PRINT], env=environment, text=True)
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
    assert "warning: OPENBLAS_CORETYPE" in said.err or provenance.blas()[0]["library"] != "openblas"
    assert f"isa: median seconds, written to {tmp_path}" in said.out
    rows = tables_isa.recorded(tmp_path)
    assert set(rows["instruction_set"]) == {own}
    assert set(rows["stage"]) == {"ceiling", "forward", "step"}
    versions = {"numba-fused", "pytorch"} if peer else {"numba-fused"}
    assert set(rows["version"]) == {"sgemm", *versions}
    assert rows[rows["version"].isin(versions)]["max_err"].between(0, 1e-3).all()
    gemm = rows[rows["version"] == "sgemm"]["variant"].unique()
    assert all(pool["kernels"] in gemm[0] for pool in provenance.blas())
    text = tables_isa.sentences(rows, tables_isa.records(rows, tmp_path))
    assert ("PyTorch was not installed" in text) is not peer


def test_table_has_a_row_per_machine_set_and_workload(rows):
    table = tables_isa.instruction_sets(rows, MACHINES)
    assert len(table) == 12
    assert list(dict.fromkeys((m, n) for m, n, _ in table.index)) == [
        (A, "AVX2"),
        (A, "SSE2"),
        (B, "AVX2"),
        (B, "SSE2"),
    ]
    work = GRID["one layer"]
    assert table.loc[A, "AVX2", "one layer"]["inference"].to_dict() == {
        "ms": f"{1e3 * work.gflop / 50:.3g}",
        "GFLOP/s": "50",
        "of SGEMM": "50%",
        "vs PyTorch": "1.20x",
    }
    assert table.loc[A, "SSE2", "one layer"]["inference", "vs PyTorch"] == "3 % slower"
    assert table.loc[A, "SSE2", "one layer"]["training", "GFLOP/s"] == "12.5"
    assert table.loc[B, "AVX2", "airline"]["training", "vs PyTorch"] == "not measured"


def test_summary_shows_the_worst_ratio_and_two_workloads(rows):
    table = tables_isa.summary(rows, MACHINES)
    assert table["machine"].to_list() == [A, A, B, B, "aarch64"]
    by_key = table.set_index(["machine", "instruction set"])
    ahead, behind = by_key.loc[(A, "AVX2")], by_key.loc[(A, "SSE2")]
    assert ahead["inference vs PyTorch"] == "1.10x to 3.00x"
    assert ahead["training vs PyTorch"] == "1.30x to 2.00x"
    assert ahead["reference, 64 samples"] == "1.10x, 1.30x"
    assert behind["inference vs PyTorch"] == "3 % slower to 3.00x"
    assert behind["one layer"] == "3 % slower, 1.40x"
    assert (ahead["SGEMM (GFLOP/s)"], behind["SGEMM (GFLOP/s)"]) == ("100", "25")
    assert by_key.loc[(B, "AVX2")]["one layer"] == "not measured"
    assert "results checked under emulation, not timed" in table.iloc[-1].to_list()
    assert all(isinstance(value, str) for value in table.to_numpy().ravel())
    timed = tables_isa.summary(rows.assign(instruction_set="NEON"), MACHINES)
    assert "aarch64" not in set(timed["machine"])


def test_sentences_say_where_it_is_ahead_and_where_behind(rows):
    lines = tables_isa.sentences(rows, MACHINES).splitlines()
    assert lines == [
        f"- {A}, AVX2: `numba-fused` is ahead of PyTorch at every size, from 1.10x (inference, "
        "reference, 64 samples) to 3.00x (inference, airline).",
        f"- {A}, SSE2: `numba-fused` is behind PyTorch in forward and backward of airline (50 % "
        "slower); inference of one layer (3 % slower); ahead in 5 of 7 measurements, at most "
        "3.00x (inference, airline).",
        f"- {B}, AVX2: not compared, PyTorch was not installed.",
        f"- {B}, SSE2: `numba-fused` is ahead of PyTorch at every size, from 1.10x (inference, "
        "reference, 64 samples) to 3.00x (inference, airline).",
    ]
    said = tables_isa.rates(rows, MACHINES).splitlines()
    assert "100 GFLOP/s with AVX2, 25 GFLOP/s with SSE2" in said[0]
    assert "50%, 50% of these" in said[0]


def test_the_caption_names_the_machine_and_a_disturbed_run(rows):
    mine = rows[rows["machine"] == "a"].reset_index(drop=True)
    text = tables_isa.about(mine, MACHINES["a"])
    for part in (A, "2026-01-02", "2 threads", "PyTorch 2.0", "SSE2 openblas Haswell"):
        assert part in text
    assert "Disturbed" not in text
    gemm = mine.index[(mine["version"] == "sgemm") & (mine["instruction_set"] == "SSE2")]
    mine.loc[gemm[0], "seconds"] *= 3
    assert "SSE2 100%" in tables_isa.about(mine, MACHINES["a"])


def test_nothing_recorded_is_said(tmp_path, monkeypatch):
    rows = tables_isa.recorded(tmp_path)
    assert rows.empty
    assert tables_isa.records(rows, tmp_path) == {}
    assert "Not measured yet" in tables_isa.sentences(rows, {})
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(tables_isa, "recorded", lambda: rows)
    assert "not measured yet" in readme.instruction_sets()


def test_the_readme_shows_the_summary(rows, monkeypatch):
    monkeypatch.setattr(tables_isa, "recorded", lambda: rows)
    monkeypatch.setattr(tables_isa, "records", lambda rows: MACHINES)
    text = readme.instruction_sets()
    assert f"| {A} | SSE2 | 25 | 3 % slower to 3.00x |" in text
    assert text.count(", 2 threads for everyone") == 2


def test_what_bounds_a_set():
    table = tables_isa.bounds()
    assert table["instructions for 64 multiply-adds"].to_dict() == {
        "AVX-512": 4,
        "AVX2": 8,
        "SSE2": 32,
        "NEON": 16,
    }

"""Tables and sentences of the report, from rows with known answers."""

import pandas as pd
import pytest

from lstm_kernels.versions import numba_sample
from lstm_report import notebook
from lstm_report.experiments import layers
from lstm_report.figures import gpu as figures_gpu
from lstm_report.figures import layers as figures_layers
from lstm_report.figures import tables
from lstm_report.figures import versions as figures_versions
from lstm_report.lesson import mistakes
from lstm_report.measure import ceilings, peers, results
from lstm_report.measure.workloads import AIRLINE


def compared(machine="here", stages=("forward", "step"), **seconds):
    """Rows of three rounds of the airline workload, by version; a round is twice the
    one before.
    """
    return pd.DataFrame(
        [
            AIRLINE.columns()
            | {"version": name, "variant": "1" if name in peers.PEERS else None}
            | {"stage": stage, "repeat": r, "seconds": value * 2**r, "machine": machine}
            for stage in stages
            for name, value in seconds.items()
            for r in range(3)
        ]
    )


FAST = {"numba-fused": 1.0, "pytorch": 2.0, "jax": 3.0, "onnxruntime": 4.0}
SLOW = {"numba-fused": 2.0, "pytorch": 1.0, "jax": 8.0}


def test_tables_of_peers_come_from_their_rows():
    rows = compared(**FAST)
    extra = {"version": "sgemm", "stage": "ceiling", "repeat": 0, "seconds": 1.0}
    rows = pd.concat([rows, pd.DataFrame([extra])])
    ratios = tables.measured(rows, "forward").loc[("here", "airline")]
    assert ratios[["pytorch", "jax", "onnxruntime"]].to_list() == [2.0, 3.0, 4.0]
    shown = tables.peers(rows, "forward").loc["airline"]
    assert shown["vs JAX"] == "3.00x"
    assert shown["ms"] == "2000"


def test_rates_of_peers_are_of_the_same_rows():
    rows = compared(**FAST)
    gemm = {"version": "sgemm", "stage": "ceiling", "repeat": 0, "machine": "here"}
    gemm |= {"seconds": ceilings.SGEMM_GFLOP}
    shown = tables.peers(pd.concat([rows, pd.DataFrame([gemm])]), "step").loc["airline"]
    rate = AIRLINE.step_gflop / 2  # GFLOP/s; SGEMM has one
    assert (shown["GFLOP/s"], shown["of SGEMM"]) == (f"{rate:.3g}", f"{rate:.0%}")
    assert tables.ceiling(pd.DataFrame([gemm])) == 1


def test_the_worst_peer_is_the_fastest_one_of_each_machine():
    said = tables.worst_peer(pd.concat([compared("a", **FAST), compared("b", **SLOW)]))
    assert said == (
        "Recorded speed compared with the best peer. "
        "a, inference: 2.00x (airline) to 2.00x (airline); "
        "a, training step: 2.00x (airline) to 2.00x (airline); "
        "b, inference: 50 % slower (airline) to 50 % slower (airline); "
        "b, training step: 50 % slower (airline) to 50 % slower (airline)."
    )


def test_deep_networks_are_compared_machine_by_machine(monkeypatch):
    deep = {"L": 8, "T": 500, "D": 256, "H": 256, "B": 1}
    rows = [
        compared(
            machine, **{"numba-wavefront": ours, "numba-fused": 3.0, "pytorch": 2.0}
        )
        for machine, ours in (("a", 1.0), ("b", 4.0))
    ]
    monkeypatch.setattr(results, "read", lambda name: pd.concat(rows).assign(**deep))
    monkeypatch.setattr(
        results, "record", lambda name, machine: {"cpu": machine, "cores": 2}
    )
    told = figures_layers.deep_peers()
    first, second = (results.label({"cpu": machine, "cores": 2}) for machine in "ab")
    assert told.loc[(first, "inference")].to_dict() == {
        "numba-wavefront": "2e+03",
        "numba-fused": "6e+03",
        "pytorch": "4e+03",
        "numba-wavefront vs PyTorch": "2.00x",
    }
    assert len(told) == 4
    assert told.loc[(second, "training step")].iloc[-1] == "50 % slower"


def test_gpus_are_told_machine_by_machine(monkeypatch):
    rows = compared("a", **FAST), compared("b", **SLOW)
    monkeypatch.setattr(
        results, "read", lambda name: pd.concat(rows).assign(variant="sums")
    )
    monkeypatch.setattr(figures_gpu, "where", lambda machine: machine)
    said = figures_gpu.each("sums", lambda part: ",".join(part["machine"].unique()))
    assert said == "a: a\n\nb: b"


def test_speeds_are_multiples_of_the_slower():
    table = pd.DataFrame({"seconds": {"plain": 8000.0, "numpy": 4000.0, "fast": 1.0}})
    shown = figures_versions.with_ratios(table, "plain", "numpy")
    assert shown["vs sequential"].to_list() == ["1.00x", "2.00x", "8000x"]
    assert shown["vs NumPy"].to_list() == ["50 % slower", "1.00x", "4000x"]


def test_the_source_s_size_is_where_numpy_leads_by_as_much():
    H = pd.Index([1, 2, 4, 8, 16])
    steps = pd.DataFrame(
        {"sequential": 1e-6 * H.to_numpy() ** 2, "numpy-sample": 1e-6}, index=H
    )
    units, count = figures_versions.source_size(steps, 36.0, 1.0)
    assert (units, count) == (pytest.approx(6), pytest.approx(1e6 / 36))


def test_the_lines_that_changed_are_marked(monkeypatch):
    shown = []
    monkeypatch.setattr(notebook, "display", lambda text: shown.append(text.data))
    notebook.Notebook.changes(mistakes.forward_steps, numba_sample.forward_samples)
    marked = [line for line in shown[0].splitlines() if line.startswith("+")]
    assert "+     for s in prange(B):" in marked
    assert not any("add_product" in line for line in marked)  # indented alike or not


def test_small_calls_are_told_as_far_as_they_were_timed():
    public, kernel, ours, torch = (
        compared(stages=[stage], **{version: seconds}).assign(variant=variant)
        for stage, version, seconds, variant in (
            ("forward", "numba-fused", 10e-6, "public call"),
            ("forward", "numba-fused", 8e-6, "kernel"),
            ("epoch", "numba-fused", 100e-6, None),
            ("epoch", "pytorch", 400e-6, None),
        )
    )
    calls, epoch = pd.concat([public, kernel]), pd.concat([ours, torch])
    said = tables.small_calls(calls)
    assert "20.0 us by the public call, of which 4.0 us are its checks" in said
    assert "epoch" not in said
    assert (
        "200 us in compiled code, 800 us with PyTorch's SGD: 4.00x"
        in tables.small_calls(epoch)
    )
    assert (
        tables.small_calls(pd.concat([calls, epoch]))
        == f"{said} {tables.small_calls(epoch)}"
    )


def test_two_threads_are_compared_with_one():
    keys = [("layers", "forward", threads, 4) for threads in (1, 2)]
    times = [(str(key), r, (3.0 - key[2]) * 2**r) for key in keys for r in range(3)]
    columns = ["sweep", "way", "how", "size", "predicted"]

    class Found:
        passes = dict.fromkeys(keys)
        table = pd.DataFrame([(*keys[0], 6.0), (*keys[1], 4.0)], columns=columns)

    Found.times = pd.DataFrame(times, columns=["case", "repeat", "seconds"])
    rows = figures_layers.layer_speedups(Found).to_dict("records")
    assert (
        rows == [{"way": "forward", "layers": 4, "measured": 2, "predicted": 1.5}] * 3
    )


def test_the_chunk_length_that_the_model_picks_is_told():
    rows = [
        ("point-to-point", 5, 2.0, 1.5),
        ("point-to-point", 9, 1.0, 3.0),
        ("barrier", 7, 0, 0),
    ]
    table = pd.DataFrame(rows, columns=["how", "size", "predicted", "measured"])
    best, said = figures_layers.chunk_lengths(table.assign(way="forward"))
    assert best == {"forward": 9}
    assert (
        "chunks of 9 steps, 3 ms measured; the fastest measured are 5, 1.5 ms" in said
    )


def test_hand_overs_that_were_not_seen_are_not_measured():
    assert layers.handovers("barrier", count=20, patience=0).size == 0

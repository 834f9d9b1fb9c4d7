"""The GPU versions on the PTX machine, beside the reference: without a fault, and with
faults planted in their compiled code.
"""

import json
import os

import gpu_cases
import pandas as pd
import ptx
import pytest
from test_ptx import without_simulator
from test_ptx_machine import pytestmark  # noqa: F401 - where there is a C compiler

from lstm_report.ptx_machine import ORDERS

hostile = pytest.mark.skipif(
    "LSTM_KERNELS_HOSTILE" not in os.environ, reason="takes minutes: make test-hostile"
)


def rows_of(*words):
    """What a process without the simulator prints that runs cases, or plants faults."""
    return [json.loads(line) for line in without_simulator("-m", "gpu_cases", *words)]


def check(*words):
    """Each case is right, without a fault, and has the same bits in every order."""
    bits, rows = {}, rows_of(*words)
    for row in rows:
        assert row["wrong"] is None, row
        assert row["faults"] == []
        assert row["accesses"] > 0
        assert bits.setdefault(row["case"], row["bits"]) == row["bits"]
    return rows


def test_versions_agree_with_the_reference_without_a_fault():
    """Each kind of kernels once; epochs in tiles of samples."""
    rows = check("random", *gpu_cases.TESTED)
    assert len({row["version"] for row in rows}) == 6  # V2's kernels are V1's


@hostile
@pytest.mark.parametrize("name", gpu_cases.CASES)
def test_all_cases_in_every_order(name):
    check(*ORDERS, name)


@hostile
@pytest.mark.parametrize("name", gpu_cases.PLANTED)
def test_planted_faults_are_reported_or_harmless(name):
    kinds = pd.DataFrame(rows_of("plant", name)).groupby("planted")["outcome"].agg(set)
    flags = {"a release less", "a plain flag", "a wait less", "an acquire less"}
    assert flags <= {*kinds.index} or name != "persistent"
    # A wait's first try never succeeds: what it acquires does not matter.
    some = {"a barrier less", "an acquire less"}
    assert all("reported" in outcomes for outcomes in kinds)
    assert all(kinds[planted] == {"reported"} for planted in {*kinds.index} - some)


def test_the_record_is_of_these_kernels():
    recorded = pd.read_csv(gpu_cases.PATH)
    assert set(recorded["sources"]) == {ptx.sources()}, "want `make ptx`"
    assert (recorded["faults"] == 0).all()
    assert (recorded[["passes", "parameters"]] < 2e-5).all(axis=None)

"""Every GPU kernel compiles and fits, found without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import ptx
import pytest

# Each kind of kernels, and each cell and capability, once.
SOME = [
    ("cuda-v1", "thread per sample", "gru", "float32", (7, 5)),
    ("cuda-fused", "1 sample, 8 parts, 32 units", "lstm", "float32", (6, 0)),
    ("cuda-fused", "1 sample, 512 units", "rnn", "float64", (8, 0)),
    ("cuda-fused", "4 samples, 512 units", "lstm", "float32", (9, 0)),
    ("cuda-persistent", "8 samples, 512 units", "gru", "float32", (8, 0)),
]
CODE = """
import json, sys
import ptx
if __name__ == "__main__":
    builds = [(*build[:4], tuple(build[4])) for build in json.loads(sys.argv[1])]
    print(json.dumps(ptx.table(builds).to_dict("records")))
"""
GOOD = {"version": "cuda-fused", "variant": "v", "cell": "lstm", "dtype": "float32"}
GOOD |= {"capability": "9.0", "kernel": "step", "registers": 250}
GOOD |= {"shared": 0, "stack": 0, "spills": 0}


def without_simulator(*words):
    """The lines that a Python prints which has no simulator, with the tools at hand;
    skips the test where kernels cannot be compiled.
    """
    tools = Path(ptx.__file__).parent
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0"}
    environment |= {"PYTHONPATH": f"{tools}{os.pathsep}{tools.parent}"}
    how = {"capture_output": True, "text": True, "env": environment}
    ask = [sys.executable, "-c", "import ptx; print(ptx.why_unavailable() or '')"]
    if reason := subprocess.run(ask, check=True, **how).stdout.strip():
        pytest.skip(reason)
    done = subprocess.run([sys.executable, *words], check=False, **how)
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


def test_kernels_compile_and_fit(tmp_path):
    script = tmp_path / "compile_kernels.py"  # which processes of it import
    script.write_text(CODE)
    rows = without_simulator(str(script), json.dumps(SOME))[-1]
    rows = pd.DataFrame(json.loads(rows))
    assert len(rows) == sum(len(ptx.ENTRIES[build[0]]) for build in SOME)
    ptx.check(rows)
    recorded = pd.read_csv(ptx.PATH, dtype={"capability": str})
    keys = ["version", "variant", "cell", "dtype", "capability", "kernel"]
    both = rows.merge(recorded, on=keys, suffixes=("", "_recorded"))
    assert len(both) == len(rows)
    # Another release of the compiler may allot a few registers more or less.
    assert (both["registers"] - both["registers_recorded"]).abs().max() <= 32


def test_the_record_is_of_these_kernels():
    recorded = pd.read_csv(ptx.PATH, dtype={"capability": str})
    assert set(recorded["sources"]) == {ptx.sources()}, "want `make ptx`"
    builds = ptx.every_build()
    assert len(recorded) == sum(len(ptx.ENTRIES[build[0]]) for build in builds)
    ptx.check(recorded)


@pytest.mark.parametrize(
    "change", [{"spills": 4}, {"stack": 8}, {"registers": 256}, {"shared": 16}]
)
def test_the_budget_fails_when_exceeded(change):
    ptx.check(pd.DataFrame([GOOD]))
    with pytest.raises(ptx.OverBudgetError) as caught:
        ptx.check(pd.DataFrame([GOOD, GOOD | change]))
    # The one that is over, and its place.
    *_, header, row = str(caught.value).splitlines()
    assert row.split()[0] == "1"
    found = dict(zip(header.split(), row.split()[1:], strict=True))
    assert all(found[name] == str(value) for name, value in change.items())

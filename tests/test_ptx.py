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
CODE = f"""
import ptx
if __name__ == "__main__":
    print(ptx.table({SOME}).to_json(orient="records"))
"""
KEYS = ["version", "variant", "cell", "dtype", "capability", "kernel"]


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


def recorded():
    return pd.read_csv(ptx.PATH, dtype={"capability": str})


def test_kernels_compile_and_fit_as_recorded(tmp_path):
    script = tmp_path / "compile_kernels.py"  # which processes of it import
    script.write_text(CODE)
    rows = pd.DataFrame(json.loads(without_simulator(str(script))[-1]))
    assert len(rows) == sum(len(ptx.ENTRIES[build[0]]) for build in SOME)
    assert ptx.over_budget(rows).empty
    both = rows.merge(recorded(), on=KEYS, suffixes=("", "_recorded"))
    assert len(both) == len(rows)
    # Another release of the compiler may allot a few registers more or less.
    assert (both["registers"] - both["registers_recorded"]).abs().max() <= 32


def test_the_record_is_of_these_kernels_and_all_fit():
    rows = recorded()
    assert set(rows["sources"]) == {ptx.sources()}, "want `make ptx`"
    builds = ptx.every_build()
    assert len(rows) == sum(len(ptx.ENTRIES[build[0]]) for build in builds)
    assert ptx.over_budget(rows).empty
    for change in ({"spills": 4}, {"stack": 8}, {"registers": 256}, {"shared": 16}):
        over = ptx.over_budget(rows.head(3).assign(**change))
        assert len(over) == 3

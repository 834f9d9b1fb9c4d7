"""Every GPU kernel compiles and fits, found without a GPU."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import ptx
import pytest

# One cell for each capability, the two kinds of V1 to V3, and the two ends of the tile kernels.
SOME = [
    (name, variant, cell, "float32", capability)
    for (cell, capability), (name, variant) in itertools.product(
        zip(("lstm", "gru", "rnn", "lstm"), ptx.CAPABILITIES, strict=True),
        [
            ("cuda-v1", "one thread"),
            ("cuda-v2", "thread per sample"),
            ("cuda-fused", "1 to a thread, weights in device memory, ordered"),
            ("cuda-fused", "4 to a thread, weights shared, ordered"),
        ],
    )
]
CODE = """
import json, sys
import ptx
if __name__ == "__main__":
    reason = ptx.why_unavailable()
    builds = [(*build[:4], tuple(build[4])) for build in json.loads(sys.argv[1])]
    rows = None if reason else ptx.table(builds).to_dict("records")
    print(json.dumps([reason, rows]))
"""
GOOD = {"version": "cuda-fused", "variant": "v", "cell": "lstm", "dtype": "float32"}
GOOD |= {"capability": "9.0", "kernel": "step", "registers": 250}
GOOD |= {"shared": 0, "stack": 0, "spills": 0}


def test_kernels_compile_and_fit(tmp_path):
    script = tmp_path / "compile_kernels.py"
    script.write_text(CODE)
    tools = Path(ptx.__file__).parent
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0"}
    environment |= {"PYTHONPATH": f"{tools}{os.pathsep}{tools.parent}"}
    words = [sys.executable, str(script), json.dumps(SOME)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    reason, rows = json.loads(done.stdout.splitlines()[-1])
    if reason:
        pytest.skip(reason)
    rows = pd.DataFrame(rows)
    assert len(rows) == 3 * len(SOME)
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
    assert len(recorded) == 3 * len(ptx.every_build())
    ptx.check(recorded)


@pytest.mark.parametrize(
    "change", [{"spills": 4}, {"stack": 8}, {"registers": 256}, {"shared": 16}]
)
def test_the_budget_fails_when_exceeded(change):
    ptx.check(pd.DataFrame([GOOD]))
    with pytest.raises(ptx.OverBudgetError) as caught:
        ptx.check(pd.DataFrame([GOOD, GOOD | change]))
    *_, header, row = str(caught.value).splitlines()  # the one that is over, and its place
    assert row.split()[0] == "1"
    found = dict(zip(header.split(), row.split()[1:], strict=True))
    assert all(found[name] == str(value) for name, value in change.items())

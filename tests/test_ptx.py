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
    reason = ptx.why_unavailable()
    builds = [(*build[:4], tuple(build[4])) for build in json.loads(sys.argv[1])]
    rows = None if reason else ptx.table(builds).to_dict("records")
    print(json.dumps([reason, rows]))
"""
# Linked for a device that is only named: with what the grid's barrier needs.
LINK = """
import numpy as np, ptx
from numba.cuda.cudadrv import devices
from numba.cuda.dispatcher import _Kernel
from lstm_kernels.gpu import build, layout
device = type("Device", (), {"compute_capability": (9, 0), "id": 0})
devices.get_context = lambda *which: type("Context", (), {"device": device})
sizes = layout.Sizes(1, 0, 0, 1, 32, 1, 4)
how = "lstm", np.float32, build.TILES, ("epoch", "update"), sizes
with ptx.stand_in((9, 0)):
    for function, types in build.build(*how, compile=lambda *both: both, R=4).values():
        kernel = _Kernel(function, types, **build.OPTIONS)
        cubin = kernel._codelibrary.get_cubin(cc=(9, 0))
        print(kernel.cooperative, len(getattr(cubin, "code", cubin)) > 5_000)
"""
GOOD = {"version": "cuda-fused", "variant": "v", "cell": "lstm", "dtype": "float32"}
GOOD |= {"capability": "9.0", "kernel": "step", "registers": 250}
GOOD |= {"shared": 0, "stack": 0, "spills": 0}


def compiling(folder, code, *words):
    """The lines that a program prints which is no simulator's, with the tools at
    hand.
    """
    script, tools = folder / "compile_kernels.py", Path(ptx.__file__).parent
    script.write_text(code)
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0"}
    environment |= {"PYTHONPATH": f"{tools}{os.pathsep}{tools.parent}"}
    words = [sys.executable, str(script), *words]
    done = subprocess.run(
        words, capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.splitlines()


def test_an_epoch_is_a_cooperative_launch(tmp_path):
    (reason,) = compiling(tmp_path, "import ptx; print(ptx.why_unavailable() or '')")
    if reason:
        pytest.skip(reason)
    assert compiling(tmp_path, LINK) == ["True True", "False True"]


def test_kernels_compile_and_fit(tmp_path):
    reason, rows = json.loads(compiling(tmp_path, CODE, json.dumps(SOME))[-1])
    if reason:
        pytest.skip(reason)
    rows = pd.DataFrame(rows)
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
    *_, header, row = str(
        caught.value
    ).splitlines()  # the one that is over, and its place
    assert row.split()[0] == "1"
    found = dict(zip(header.split(), row.split()[1:], strict=True))
    assert all(found[name] == str(value) for name, value in change.items())

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

# One cell for each capability, the two kinds of V1 to V3, and the two ends of the tile
# kernels.
SOME = [
    (name, variant, cell, "float32", capability)
    for (cell, capability), (name, variant) in itertools.product(
        zip(("lstm", "gru", "rnn", "lstm"), ptx.CAPABILITIES, strict=True),
        [
            ("cuda-v1", "one thread"),
            ("cuda-v2", "thread per sample"),
            (
                "cuda-fused",
                "1 to a thread, weights in device memory, gradients by all blocks",
            ),
            ("cuda-fused", "4 to a thread, weights shared, gradients by tile"),
        ],
    )
]
CODE = """
import json, sys
import ptx
if __name__ == "__main__":
    reason = ptx.why_unavailable()
    builds = [(*build[:4], tuple(build[4])) for build in json.loads(sys.argv[1])]
    rows = loops = None
    if not reason:
        rows = ptx.table(ptx.described, builds).to_dict("records")
        counted = [build[:3] for build in builds if build[4] == (9, 0)][1:]
        loops = ptx.pd.concat([ptx.examples(), ptx.table(ptx.census, counted)]).to_dict("records")
    print(json.dumps([reason, rows, loops]))
"""
# Linked for a device that is only named: with what the grid's barrier needs.
LINK = """
import numpy as np, ptx
from numba.cuda.cudadrv import devices
from numba.cuda.dispatcher import _Kernel
from lstm_kernels.gpu import build, plans
device = type("Device", (), {"compute_capability": (9, 0), "id": 0})
devices.get_context = lambda *which: type("Context", (), {"device": device})
sizes, names = ptx.BUILDS["cuda-fused"]["4 to a thread, weights shared, gradients by tile"]
how = "lstm", np.float32, plans.MODULES, ("epoch", "update"), sizes
with ptx.stand_in((9, 0)):
    for function, types in build.build(*how, compile=lambda *both: both, **names).values():
        kernel = _Kernel(function, types, **build.OPTIONS)
        cubin = kernel._codelibrary.get_cubin(cc=(9, 0))
        print(kernel.cooperative, len(getattr(cubin, "code", cubin)) > 10_000)
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
    reason, rows, loops = json.loads(compiling(tmp_path, CODE, json.dumps(SOME))[-1])
    if reason:
        pytest.skip(reason)
    rows, loops = pd.DataFrame(rows), pd.DataFrame(loops)
    assert len(rows) == sum(len(ptx.ENTRIES[build[0]]) for build in SOME)
    ptx.check(rows)
    ptx.budget(loops)
    named = ["version", "variant", "cell", "loop"]
    both = loops.merge(
        pd.read_csv(ptx.CENSUS_PATH), on=named, suffixes=("", "_recorded")
    )
    assert len(both) == len(loops) == len(ptx.CHANGES) + 6 + 4 + 6
    # Another release of the compiler may unroll more or less of a loop.
    each = [
        both[f"instructions{s}"] / both[f"multiply_adds{s}"] for s in ("", "_recorded")
    ]
    assert (each[0] / each[1]).between(0.8, 1.25).all()
    recorded = pd.read_csv(ptx.PATH, dtype={"capability": str})
    keys = ["version", "variant", "cell", "dtype", "capability", "kernel"]
    both = rows.merge(recorded, on=keys, suffixes=("", "_recorded"))
    assert len(both) == len(rows)
    # Another release of the compiler may allot a few registers more or less.
    assert (both["registers"] - both["registers_recorded"]).abs().max() <= 32


def test_the_record_is_of_these_kernels():
    recorded, loops = (
        pd.read_csv(ptx.PATH, dtype={"capability": str}),
        pd.read_csv(ptx.CENSUS_PATH),
    )
    for rows in (recorded, loops):
        assert set(rows["sources"]) == {ptx.sources()}, "want `make ptx`"
    assert len(recorded) == sum(
        len(ptx.ENTRIES[build[0]]) for build in ptx.every_build()
    )
    assert {*zip(loops["version"], loops["variant"], loops["cell"], strict=True)} >= {
        *ptx.COUNTED
    }
    ptx.check(recorded)
    ptx.budget(loops)


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


SASS = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDS.128 R4, [R2] ;
.L_x_2:
        /*0020*/              @!P0 LDG.E R8, desc[UR4][R2.64] ;
        /*0030*/                   FFMA R5, R4.reuse, R8, R5 ;
        /*0040*/                   FFMA R6, R4, R9, R6 ;
        /*0050*/               @P1 BRA `(.L_x_2) ;
        /*0060*/                   FADD R6, R5, R6 ;
        /*0070*/              @!P2 BRA `(.L_x_1) ;
        /*0080*/                   BRA `(.L_x_3) ;
.L_x_3:
        /*0090*/                   EXIT ;
"""


def test_innermost_loops_are_counted():
    (loop,) = ptx.inner_loops(SASS)
    assert loop[0].startswith("LDG")
    assert ptx.count(loop) == {"instructions": 4, "multiply_adds": 2, "loads": 1}


@pytest.mark.parametrize(("cell", "least"), [("lstm", 0.5), ("rnn", 0.25)])
def test_the_budget_of_loops_fails_when_exceeded(cell, least):
    row = {"version": "cuda-fused", "variant": "v", "cell": cell, "loop": "h W"}
    enough = row | {"instructions": 100, "multiply_adds": int(100 * least), "loads": 1}
    ptx.budget(pd.DataFrame([enough]))
    with pytest.raises(ptx.OverBudgetError, match="h W"):
        ptx.budget(pd.DataFrame([enough, enough | {"instructions": 101}]))


def test_the_disassembly_gets_shorter_with_each_change():
    rows = pd.read_csv(ptx.CENSUS_PATH).query("version == 'example'")
    assert list(rows["variant"]) == list(ptx.CHANGES)
    each = rows["instructions"] / rows["multiply_adds"]
    assert each.is_monotonic_decreasing
    assert each.iloc[0] > 5 * each.iloc[-1]

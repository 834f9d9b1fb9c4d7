"""Page 4 from its first cell to its last on the PTX machine, as on devices of several
capabilities, and the lesson's kernel; what the page measures takes made times.
"""

import json
import re
import sys
from argparse import Namespace
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from itertools import count
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import test_ptx_machine
from pages import Page, has, rows
from test_ptx import without_simulator

from lstm_kernels import __main__ as command
from lstm_report import notebook
from lstm_report.experiments import gpu_run
from lstm_report.lesson.classroom import on_gpu
from lstm_report.measure.comparer import compare
from lstm_report.measure.process import ProcessError

pytestmark = test_ptx_machine.pytestmark
OWN = np.array([1, 0.8, 1.25])  # how long versions take in some process
# Seconds in which V3 takes a step of 256 samples, `cuda-epoch` an airline epoch, and
# `cuda-persistent` the reference workload; the power with which epochs grow.
WON, LOST = (0.5, 1.6e-3, 0.02, 0.7), (1.6, 12.8e-3, 0.1, 1.1)
FAST = "| 4.6x | 500000 |", "(1.6x (1.28x to 2x))", "| 20 |", "(4x (3.2x to 5x))"
FAST += ("to the power 0.7 (0.652 to 0.748)",)
SLOW = "| 1.44x | 1600000 |", "(50 % slower (0.4x to 0.625x))", "| 160 |"
SLOW += "to the power 1.1 (1.05 to 1.15)", "workload: `cuda-persistent` 100 ms"
CASES = {
    "6.0": (WON, "TTT-", *FAST, "no: (2.5x", "(no GPU time of it)"),
    "7.5": (LOST, "FFFF", *SLOW),
    "8.0": (WON, "TTTT", *FAST, "(2.5x (2x to", "| cuda-persistent | 20 |"),
    "9.0": (LOST, "FFFF", *SLOW),
}
LETTERS = {"Held": "T", "Did not hold": "F", "Not measured": "-"}
OLD = "PTX machine has compute capability 6.0, want 7.0 or newer"
MISSING = "cuda-v2 (L=1, H=32, B=256): MismatchError: y"
ALWAYS = "run in this machine's GPU", "Caught: h: ", "- Preset: paper"
ALWAYS += "- layers: ended with -11", f"- hundreds: measured without {MISSING}"


def tasks(capability):
    """Parts that return rows, one that leaves somebody out, one that dies."""
    v3, epoch, persistent, power = CASES[capability][0]
    large = {"pytorch": 0.05, "cuda-persistent": OWN * persistent}
    if capability == "6.0":
        del large["cuda-persistent"]
    v3 = {"numpy": 0.8, "numpy-sample": 2.3, "cuda-v3": OWN * v3}
    epoch = {"cuda-epoch": OWN * epoch, "pytorch-graph": 6.4e-3}
    made = pd.concat(
        rows(times, "version", variant=variant, stage=stage, B=B, N=N)
        for variant, stage, B, N, times in (
            ("hundreds", "step", 256, 256, v3),
            ("airline", "epoch", 16, 1280, epoch),
            ("large", "step", 64, 64, large),
            ("large", "forward on device", 64, 64, large),
            ("windows", "epoch", 10, 80, {"cuda-epoch": 1}),
            ("windows", "epoch", 1000, 8000, {"cuda-epoch": OWN * 100**power}),
        )
    )
    parts = {"layers": gpu_run.Task(dies, 5)}
    for name, found in made.groupby("variant"):
        found.attrs["conditions"] = {"spread": 0.0}
        found.attrs["left_out"] = [MISSING] if name == "hundreds" else []
        run = partial(of_process, found, count())
        parts[name] = gpu_run.Task(run, 5, again=True)
    return parts


def of_process(found, turns, *, limit):
    return found[found["process"] == next(turns) % len(OWN)]


def dies(*, limit):
    raise ProcessError("ended with -11", "Segmentation fault")


def thread(block, index, size, x, U, W, b, h, c, gates):
    s = block * size + index
    if s < x.shape[1]:
        walk(s, x, U, W, b, h, c, gates)  # noqa: F821 - the lesson's


def executed(capability):
    """What the page shows on the machine, what the ladder prints, and faults."""
    from ptx_machine.device import Cuda, stand_in  # which has no simulator
    from ptx_machine.machine import Machine

    page, memory, shown = Page("04_gpu_ladder"), Machine(), []

    def display(what, raw=False, **_):
        shown.append(" ".join((what["text/plain"] if raw else what.data).split()))

    book = partial(notebook.Notebook, display=display, root=None)
    stand = Cuda(memory, capability=tuple(map(int, capability.split("."))))
    with (
        stand_in(stand),
        patch.object(notebook, "Notebook", book),
        patch.object(gpu_run, "tasks", lambda *_: tasks(capability)),
        redirect_stdout(StringIO()) as ladder,
    ):
        space = {}
        for cell in page.code:
            exec(cell, space)
            if "cuda" in space:  # Numba's, once it is imported
                space["cuda"] = stand
        command.ladder(Namespace())
        layer = space["params"].layers[0]
        h = on_gpu(thread)(space["x"], layer.U, layer.W, layer.b)["h"]
        compare({"h": h[1:]}, space["right"], 1e-5)
    faults = [(kernel, kind) for kernel, _, kind in memory.faults]
    told = [line for line in ladder.getvalue().splitlines() if line.startswith("cuda")]
    return {"text": "\n".join(shown), "ladder": told, "faults": faults}


LATER = [pytest.param(each, marks=test_ptx_machine.hostile) for each in ("7.5", "8.0")]


@pytest.mark.parametrize("capability", ["6.0", "9.0", *LATER])
def test_the_page_on_a_device(capability):
    done = json.loads(without_simulator(__file__, capability)[-1])
    _, verdicts, *words = CASES[capability]
    found = re.findall(r"\*\*([A-Z][a-z ]+) in this run\.\*\*", done["text"])
    assert "".join(map(LETTERS.get, found)) == verdicts, done["text"]
    able = [line.split()[0] for line in done["ladder"] if line.endswith(" runs here")]
    words += [*ALWAYS, f"All {len(able)} agree"]
    if capability == "6.0":
        assert done["ladder"].pop().endswith(f" no: {OLD}")
        words.append(f"`cuda-persistent` cannot run here: {OLD}.")
    assert len(able) == len(done["ladder"])
    has(words, done["text"])
    # The kernel that computes samples twice is meant to be wrong.
    assert done["faults"]
    assert all("wrong" in name and kind == "race" for name, kind in done["faults"])


if __name__ == "__main__":
    print(json.dumps(executed(sys.argv[1])))

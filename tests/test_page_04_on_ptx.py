"""Page 4 from its first cell to its last on the PTX machine, as on devices of two
capabilities, and the lesson's kernel; what the page measures takes made times.
"""

import json
import os
import re
import sys
from argparse import Namespace
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from unittest.mock import patch

import pytest
import test_ptx_machine
from pages import Page, has, of_card
from test_ptx import without_simulator

from lstm_kernels import __main__ as command
from lstm_report import notebook
from lstm_report.experiments import gpu_run
from lstm_report.lesson.classroom import on_gpu
from lstm_report.measure.comparer import compare
from lstm_report.measure.process import ProcessError

pytestmark = test_ptx_machine.pytestmark
OLD = "PTX machine has compute capability 6.0, want 7.0 or newer"
MISSING = "cuda-v2 (L=1, H=32, B=256): MismatchError: y"
SHOWN = "Caught: h: ", "- layers: ended with -11"
SHOWN += f"- hundreds: measured without {MISSING}", "(1.6x (1.6x to 1.6x); the"
SHOWN += (
    "power not measured, where 1 is proportional",
    "(not measured; the threshold is 1",
)


def dies(*, limit):
    raise ProcessError("ended with -11", "Segmentation fault")


def hundreds(*, limit):
    """Rows of a part that leaves a version out."""
    times = {"cuda-v2": 0.8, "numpy-sample": 2.3, "cuda-v3": 0.5}
    rows = of_card("hundreds", "step", times, B=256, N=256)
    rows.attrs |= {"conditions": {"spread": 0.0}, "left_out": [MISSING]}
    return rows


PARTS = {"layers": gpu_run.Task(dies, 5), "hundreds": gpu_run.Task(hundreds, 5)}


def thread(block, index, size, x, U, W, b, h, c, gates):
    s = block * size + index
    if s < x.shape[1]:
        walk(s, x, U, W, b, h, c, gates)  # noqa: F821 - the lesson's


def executed(capability):
    """What the page shows on the machine, what the ladder prints, and faults."""
    import gpu_cases  # which has no simulator

    from lstm_report.ptx_machine.machine import Machine

    page, memory, shown = Page("04_gpu_ladder"), Machine(), []

    def display(what, raw=False, **_):
        shown.append(" ".join((what["text/plain"] if raw else what.data).split()))

    book = partial(notebook.Notebook, display=display, root=None)
    numbers = tuple(map(int, capability.split(".")))
    with (
        gpu_cases.on_machine(memory, capability=numbers) as stand,
        patch.object(notebook, "Notebook", book),
        patch.object(gpu_run, "tasks", lambda *_: PARTS),
        redirect_stdout(StringIO()) as ladder,
    ):
        space = {}
        for cell in page.cells:
            if cell.cell_type == "code":
                exec(cell.source, space)
            if "cuda" in space:  # Numba's, once it is imported
                space["cuda"] = stand
        command.ladder(Namespace())
        layer = space["params"].layers[0]
        h = on_gpu(thread)(space["x"], layer.U, layer.W, layer.b)["h"]
        compare({"h": h[1:]}, space["right"], 1e-5)
    faults = [(kernel, kind) for kernel, _, kind in memory.faults]
    lines = [line for line in ladder.getvalue().splitlines() if line.startswith("cuda")]
    return {"text": "\n".join(shown), "ladder": lines, "faults": faults}


old = pytest.mark.skipif(
    "LSTM_KERNELS_HOSTILE" not in os.environ, reason="as long again: make test-hostile"
)


@pytest.mark.parametrize("capability", [pytest.param("6.0", marks=old), "9.0"])
def test_the_page_and_the_ladder_run_on_a_device(capability):
    done = json.loads(without_simulator(__file__, capability)[-1])
    verdicts = re.findall(r"\*\*([A-Z][a-z ]+) in this run\.\*\*", done["text"])
    assert verdicts == ["Held", *["Not measured"] * 2], done["text"]
    able = [line.split()[0] for line in done["ladder"] if line.endswith(" runs here")]
    words = [*SHOWN, f"All {len(able)} agree"]
    if capability == "6.0":
        assert done["ladder"].pop().endswith(f" no: {OLD}")
    assert len(able) == len(done["ladder"])
    has(words, done["text"])
    # The kernel that computes samples twice is meant to be wrong.
    assert done["faults"]
    assert all("wrong" in name and kind == "race" for name, kind in done["faults"])


if __name__ == "__main__":
    print(json.dumps(executed(sys.argv[1])))

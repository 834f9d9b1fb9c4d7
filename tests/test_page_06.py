"""Page 6 on synthetic rows, and that its cases are what they are called."""

import numpy as np
import pandas as pd
import pytest
from pages import Page, rows
from planted import planted

from lstm_report.experiments.switches import COMBINATIONS
from lstm_report.measure import MismatchError
from lstm_report.measure.workloads import SMALL_REFERENCE, Workload

PAGE = Page("06_optimisations")
page = PAGE.module
GAINS = {"combine": 1.05, "concurrent": 1.04, "pointwise": 1.1, "layout": 1.2}
GAINS |= {"wavefront": 0.95, "kernel": 1.3}
BATCHES = {1: {"baseline": 0.3, "all": (0.25, 0.2, 0.24), "numba-fused": 0.13}}
BATCHES[224] = {"baseline": 7.0, "all": (3.5, 2.8, 3.7)}


def seconds(on):
    """Of a pass: a second, less by each switch; the kernel alone loses."""
    gain = np.prod([GAINS[switch] for switch in on])
    alone = "kernel" in on and not {"combine", "concurrent", "wavefront"} & {*on}
    return (2 if alone else 1) / gain


def passes(**changed):
    """Seconds of each combination; the best round of the peak would take a fifth of a
    second, of waking 0.1 ms. changed: other seconds, by name.
    """
    each = {page.name(on): seconds(on) for on in COMBINATIONS} | {"numba-fused": 0.5}
    parts = [rows(each | changed, part="pass", B=SMALL_REFERENCE.B)]
    parts += [rows(times, part="pass", B=B) for B, times in BATCHES.items()]
    once = {"peak": 0.4 / SMALL_REFERENCE.gflop, "wake": 2e-4}
    parts += [rows({name: t}, part=name, B=0) for name, t in once.items()]
    return pd.concat(parts)


CARD = pd.Series({0: 0.09, 1: 0.05, 3: 0.06, 7: 0.02, 15: 0.015, 31: 0.017})


def made(**changed):
    return {"measure_passes": passes(**changed), "nvidia": (CARD, 66_000.0)}


EDGES = [
    (0, ("most", 1.0), lambda times: made(pointwise=times[1])),
    (
        1,
        ("most", seconds(("layout", "wavefront"))),
        lambda times: made(**{"layout + wavefront + kernel": times[1]}),
    ),
    (1, seconds(("layout",)), lambda times: made(**{"layout + kernel": times[1]})),
]
test_text, test_edge, test_all = PAGE.approved(made(), EDGES)


def test_the_picture_of_the_cores_has_all_work_once():
    counts = {form: len(list(page.boxes(form))) for form in page.FORMS}
    # Each product on both cores, point-wise on one; or all of a cell on one.
    assert list(counts.values()) == [2 * 8 + 1, 2 * 2 + 1, 8 + 1, 2 * (8 + 1)]
    page.plots.style()
    assert "of two layers" in page.figure_cores().axes[-1].get_title("left")


def test_the_measurement_is_verified():
    work = Workload(2, 4, 5, 9, 4)
    wrong = planted(page, "v=v: v.forward(x)", "v=v: 2 * v.forward(x)")
    with pytest.raises(MismatchError, match=": y"):
        wrong.differ(work)
    wrong = planted(page, "p=p: p(x)", "p=p: 2 * p(x)")
    with pytest.raises(MismatchError, match=": y"):
        wrong.measure_passes(work, batches=(1, 3), rounds=1)

"""Page 0: its cells on made rows, its own and those of the pages that it sums up."""

import numpy as np
import pandas as pd
from pages import Page, rows
from test_page_03 import GAINS, ladder
from test_page_05 import gaining, stacks
from test_page_06 import passes

PAGE = Page("00")
page = PAGE.module
LARGE = "1 x 512 units, 100 steps, 1 sample"
SMALL = "1 x 32 units, 12 steps, 16 samples"
# Networks that are the worst and the best by their median, not in every process.
WIDE = {"2 x 32 units, 12 steps, 1 sample": (0.3, 0.6, 1.2)}
WIDE |= {"4 x 64 units, 12 steps, 1 sample": (0.9, 3, 4)}


def forms(large=(2.4, 1.6, 2.72), small=(1.5, 1, 1.7), rnn=(0.75, 0.5, 0.85)):
    """How many times as fast two threads are, in each process."""

    def two(network, gains, *chosen):
        made = rows({"1": 1, "2": 1 / np.array(gains)}, network=network)
        return made.assign(found=made["process"].map(dict(enumerate(chosen))))

    made = [two(LARGE, large, "units", "units", "layers")]
    made += [two(name, gains, *["one thread"] * 3) for name, gains in WIDE.items()]
    made += [two(SMALL, small, *["samples"] * 3)]
    return pd.concat([*made, two(page.RNN, rnn, *["units"] * 3)])


def made(ladder=ladder(), stacks=stacks(), passes=passes(), **of_forms):  # noqa: B008
    return {
        "measure_ladder": ladder,
        "measure_stacks": stacks,
        "measure_passes": passes,
        "measure_forms": forms(**of_forms),
    }


def verdicts(**changed):
    kinds = "ladder", "stacks", "forms", "passes"
    table = page.answers(*(made(**changed)[f"measure_{kind}"] for kind in kinds))
    return table["verdict"]


def compiled(gain):
    """A ladder whose last rung trains so many times as fast as plain loops."""
    over_loops = np.prod([*GAINS.values()][1:])
    return ladder(first=np.array(gain) / over_loops)


CASES = {
    "held": (
        made(),
        "TT",
        "worst level (0.3x to 1.2x), best 2.4x (1.6x to 2.72x)",
        "One core: 4830 times as fast",
        "NumPy 647x",
        f"{LARGE} | by units of a step (2), by layers (1) | 2.4x",
        "by samples: 1 x 32 units, 12 steps, 16 samples.",
    )
}
EDGES = [
    (0, 100, lambda gain: made(ladder=compiled(gain))),
    (0, 4, lambda gain: made(ladder=ladder(numpy=gain))),
    (1, 1.5, lambda gain: made(large=gain)),
    (1, 1, lambda gain: made(small=(0.7, gain[1], 0.6))),  # in the best process
    (None, 10, lambda gain: verdicts(ladder=compiled(gain)).iloc[0] == "reached"),
    (None, 1.6, lambda gain: "reached" in verdicts(stacks=gaining(gain)).iloc[1]),
    (None, 1, lambda gain: verdicts(rnn=gain).iloc[2] == "threads pay"),
    (
        None,
        7.98,
        lambda gain: (
            verdicts(passes=passes(all=1 / np.array(gain))).iloc[3] == "reached"
        ),
    ),
]
test_page, test_edge, test_all = PAGE.tests(__file__, CASES, EDGES)


def test_one_core_leaves_two_projects_open():
    told = page.answers(ladder(), None, None, passes())["verdict"]
    assert told.to_list()[:3] == ["reached", "open", "open"]
    assert page.RNN not in page.rules(forms())

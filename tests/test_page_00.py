"""Page 0: its cells on made rows, its own and those of the pages that it sums up."""

import numpy as np
import pandas as pd
from pages import Page, rows
from test_page_03 import GAINS, ladder
from test_page_05 import stacks
from test_page_06 import passes

PAGE = Page("00")
page = PAGE.module
LARGE, SMALL = (
    "1 x 512 units, 100 steps, 1 sample",
    "1 x 32 units, 12 steps, 16 samples",
)
# Networks that are the worst and the best by their median, not in every process.
WIDE = {"2 x 32 units, 12 steps, 1 sample": (0.3, 0.6, 1.2)}
WIDE |= {"4 x 64 units, 12 steps, 1 sample": (0.9, 3, 4)}


def forms(large=1.6, small=1, rnn=0.5):
    """How many times as fast two threads are in the worst process; 5 and 7 parts in 10
    more in the others.
    """

    def two(network, gains, *found):
        gains = np.array(gains)
        made = rows({"1": 1, "2": 1 / gains}, network=network)
        return made.assign(found=made["process"].map(dict(enumerate(found))))

    spread = np.array([1.5, 1, 1.7])
    made = [two(LARGE, large * spread, "units", "units", "layers")]
    made += [two(name, gains, *["one thread"] * 3) for name, gains in WIDE.items()]
    made += [two(SMALL, small * spread, *["samples"] * 3)]
    return pd.concat([*made, two(page.RNN, rnn * spread, *["units"] * 3)])


def made(gains=GAINS, **how):
    return lambda: {
        "measure_ladder": ladder(small=gains),
        "measure_stacks": stacks(),
        "measure_passes": passes(),
        "measure_forms": forms(**how),
    }


SLOW = dict(zip(page.page_03.IDEAS, (30, 3, *[1] * 9), strict=True))  # 90 in all
CASES = {
    "held": (
        made(),
        "TT",
        *(
            "worst level (0.3x to 1.2x), best 2.4x (1.6x to 2.72x)",
            "4830x",
            "NumPy 647x",
        ),
        *(
            f"{LARGE} | by units of a step (2), by layers (1) | 2.4x",
            "25 % slower (0.5x",
        ),
        *(
            "by samples: 1 x 32 units, 12 steps, 16 samples.",
            "| reached |",
            "not pay here",
        ),
        *("One core: 4830 times as fast", "a CPU gains less"),
    ),
    "large just": (made(large=1.5), "TT"),
    "large slow": (made(large=1.49), "TF"),
    "small just": (made(small=0.59), "TT", "worst level (0.59x to 1x)"),
    "small slow": (made(small=0.58), "TF", "worst 13 % slower"),
    "threads pay": (made(rnn=1.1), "TT", "threads pay"),
    "one core slow": (made(SLOW), "FT", "90x"),
}
test_page, test_both, test_reached = PAGE.tests(CASES)


def test_one_core_leaves_two_projects_open():
    given = made()()
    ladder, passes = given["measure_ladder"], given["measure_passes"]
    told = page.answers(ladder, None, None, passes)["verdict"]
    assert told.to_list()[:3] == ["reached", "open", "open"]


def test_every_network_of_the_table_is_in_a_rule():
    found = forms()
    assert all(name in page.rules(found) for name in page.networks(found))
    assert page.RNN not in page.rules(found)

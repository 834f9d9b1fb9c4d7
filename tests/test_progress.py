"""The progress of `make report`, by a clock that is set by hand."""

import io
import re

import pytest
from progress import Page, Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


PAGES = [
    Page("01_a", [0, 20], 2),
    Page("02_b", [0, 10, 90], 3),
    Page("03_c", [300], 4),
]


def run(clock, stream, until):
    """Pages 0 and 1 to the last cell: a cell takes 2 times the seconds of the stored
    run.
    """
    progress = Progress(PAGES, stream=stream, clock=clock)
    with progress.page():
        progress.cell(1)
        progress.cell(2)
        clock.now = 40.0
    with progress.page():
        for number in (1, 2, 3)[:until]:
            progress.cell(number)
            clock.now += 2 * PAGES[1].cells[number - 1]
        yield progress


def test_what_is_left_is_learnt_from_this_run():
    clock = Clock()
    [progress] = run(clock, Terminal(), until=2)
    assert clock.now == 60
    for progress in run(Clock(), Terminal(), until=2):
        assert progress.left() == 2 * (90 + 300)
    clock = Clock()
    for progress in run(clock, Terminal(), until=3):
        assert progress.left() == 2 * 300
        clock.now -= 30
        assert progress.left() == 30 + 2 * 300
        clock.now += 500  # longer than foreseen
        assert progress.left() == 2 * 300


def test_a_page_with_other_cells_counts_as_a_whole():
    clock = Clock()
    pages = [Page("01_a", [100], 3)]
    progress = Progress(pages, stream=Terminal(), clock=clock)
    with progress.page():
        progress.cell(3)
        clock.now = 30.0
        assert progress.left() == 70


def test_on_a_terminal_one_line_is_written_anew():
    clock, stream = Clock(), Terminal()
    for progress in run(clock, stream, until=2):
        clock.now = 62.0
        told = "02_b (2 of 3): cell 2 of 3, 0:22, about 13 min left"
        assert progress.line() == told
    text = stream.getvalue()
    lines = [line.rpartition("\r\x1b[K")[2] for line in text.split("\n")[:-1]]
    assert lines == ["01_a (1 of 3) took 40 s", "02_b (2 of 3) took 22 s"]
    assert "02_b (2 of 3): cell 1 of 3, 0:00" in text


def test_a_page_that_fails_says_so():
    stream = Terminal()
    progress = Progress(PAGES[:1], stream=stream, clock=Clock())
    with pytest.raises(ValueError, match="x"), progress.page():
        raise ValueError("x")
    assert stream.getvalue().endswith("01_a (1 of 1) failed after 0 s\n")


def test_elsewhere_a_page_has_a_line_where_it_starts_and_where_it_ends():
    stream = io.StringIO()
    list(run(Clock(), stream, until=3))
    assert stream.getvalue().splitlines() == [
        "01_a (1 of 3) starts, about 7 min left",
        "01_a (1 of 3) took 40 s",
        "02_b (2 of 3) starts, about 13 min left",
        "02_b (2 of 3) took 200 s",
    ]
    assert not re.search("\x1b|\r", stream.getvalue())

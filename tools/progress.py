"""What `make report` shows while it runs: on a terminal one line that is written anew,
else a line where a page starts and one where it ends.

What is left is the time of the stored run, as much longer or shorter as this run has
been until now: small sizes too, which a first run spends compiling, begin with that.
"""

import sys
import threading
import time
from contextlib import contextmanager
from typing import NamedTuple

# Seconds of the stored run that have to be over before this run is compared with it.
ENOUGH = 10


class Page(NamedTuple):
    """A page: its name, the seconds that its cells would take in the stored run, or of
    all together where they are unknown, and how many cells there are.
    """

    name: str
    cells: list
    count: int


class Progress:
    """The progress of a run over pages, each a context.

    stream: where it is shown; clock: tells seconds.
    """

    def __init__(self, pages, *, stream=None, clock=time.monotonic):
        self.pages, self._place = pages, -1
        self._stream, self._clock = stream or sys.stdout, clock
        self._live, self._start = self._stream.isatty(), clock()

    @contextmanager
    def page(self):
        """The next page; a line stays when it ends."""
        self._place += 1
        self._page, self._page_start = self.pages[self._place], self._clock()
        self.cell(1)
        ended, result = threading.Event(), "failed after"
        thread = threading.Thread(target=self._tick, args=[ended], daemon=True)
        if self._live:
            thread.start()
        else:
            self._write(f"{self._named()} starts, {self._told()}\n")
        try:
            yield
            result = "took"
        finally:
            ended.set()
            if self._live:
                thread.join()
            seconds = self._clock() - self._page_start
            self._write(f"{self._named()} {result} {seconds:.0f} s\n")

    def cell(self, number):
        """Cell `number` of the page begins, from 1."""
        self._cell = number
        if number <= len(self._page.cells):
            self._known, self._began = number, self._clock()
        self._show()

    def left(self):
        """Seconds until the run ends, about."""
        here, *after = self._page.cells[self._known - 1 :]
        every = [sum(page.cells) for page in self.pages]
        before = sum(every[: self._place + 1]) - here - sum(after)
        rate = (self._began - self._start) / before if before >= ENOUGH else 1
        rest = max(rate * here - (self._clock() - self._began), 0)
        return rest + rate * (sum(every) - before - here)

    def line(self):
        """What is to be said now, in a line."""
        elapsed = int(self._clock() - self._page_start)
        told = f"{self._named()}: cell {self._cell} of {self._page.count}"
        return f"{told}, {elapsed // 60}:{elapsed % 60:02}, {self._told()}"

    def _named(self):
        return f"{self._page.name} ({self._place + 1} of {len(self.pages)})"

    def _told(self):
        left = self.left()
        told = f"{left:.0f} s" if left < 100 else f"{left / 60:.0f} min"
        return f"about {told} left"

    def _tick(self, ended):
        while not ended.wait(1):
            self._show()

    def _show(self):
        if self._live:
            self._write(self.line())

    def _write(self, text):
        over = "\r\x1b[K" if self._live else ""  # what stood in the line
        self._stream.write(f"{over}{text}")
        self._stream.flush()

"""What `make report` shows while it runs: on a terminal one line that is written anew,
else a line for each page.

What is left is the time of the stored run, as much longer or shorter as this run has
been until now.
"""

import sys
import threading
import time
from itertools import accumulate
from typing import NamedTuple

# Seconds of the stored run that have to be over before this run is compared with it.
ENOUGH = 10


class Page(NamedTuple):
    """A page of the stored run: its name, its seconds, those of its cells ([] where
    they are unknown), and how many cells it has now.
    """

    name: str
    seconds: float
    cells: list
    count: int

    def before(self, number):
        """Seconds of the stored run before cell `number`, from 1; 0 where the page has
        other cells now.
        """
        known = self.cells if len(self.cells) == self.count else []
        return next(iter([0, *accumulate(known)][number - 1 : number]), 0)


class Progress:
    """The progress of a run over pages, each a context.

    compares: whether this run is of the sizes of the stored one. stream: where it is
    shown; clock: tells seconds.
    """

    def __init__(self, pages, *, compares=True, stream=None, clock=time.monotonic):
        self.pages, self.compares = pages, compares
        self._stream, self._clock = stream or sys.stdout, clock
        self._live = self._stream.isatty()
        self._place, self._cell = -1, 1
        self._over = self._took = 0.0  # of the pages that are done, there and here

    def page(self):
        """The context of the next page; a line stays when it ends."""
        self._place, self._cell, self.result = self._place + 1, 1, "failed after"
        self._page = self.pages[self._place]
        self._start = self._began = self._clock()
        return self

    def cell(self, number):
        """Cell `number` of the page begins, from 1."""
        self._cell, self._began = number, self._clock()
        self._show()

    def done(self):
        """The page is executed."""
        self.result = "took"

    def left(self):
        """Seconds until the run ends, about."""
        before, after = map(self._page.before, (self._cell, self._cell + 1))
        over, took = self._over + before, self._took
        took += self._began - self._start if before else 0
        rate = took / over if over >= ENOUGH else 1
        here = after - before if after else self._page.seconds - before
        every = sum(page.seconds for page in self.pages)
        rest = max(rate * here - (self._clock() - self._began), 0)
        return rest + rate * max(every - over - here, 0)

    def line(self):
        """What is to be said now, in a line."""
        elapsed = int(self._clock() - self._start)
        told = f"{self._named()}: cell {self._cell} of {self._page.count}"
        told += f", {elapsed // 60}:{elapsed % 60:02}"
        return told + (f", about {self._minutes()} left" if self.compares else "")

    def __enter__(self):
        if self._live:
            self._ended = threading.Event()
            self._thread = threading.Thread(target=self._tick, daemon=True)
            self._thread.start()
        else:
            told = f"{self._named()} starts"
            if self.compares:
                told += f"; the stored run took {self._page.seconds} s"
                told += f", about {self._minutes()} left"
            print(told, file=self._stream, flush=True)
        return self

    def __exit__(self, *error):
        self._over += self._page.seconds
        self._took += self._clock() - self._start
        if self._live:
            self._ended.set()
            self._thread.join()
            seconds = self._clock() - self._start
            self._write(f"{self._named()} {self.result} {seconds:.0f} s\n")

    def _named(self):
        return f"{self._page.name} ({self._place + 1} of {len(self.pages)})"

    def _minutes(self):
        left = self.left()
        return f"{left:.0f} s" if left < 100 else f"{left / 60:.0f} min"

    def _tick(self):
        self._show()
        while not self._ended.wait(1):
            self._show()

    def _show(self):
        if self._live and not self._ended.is_set():
            self._write(self.line())

    def _write(self, text):
        self._stream.write(f"\r\x1b[K{text}")  # over what stood in the line
        self._stream.flush()

"""What is said without being asked: on stderr, or in a notebook's cell.

Saying it never fails a call: there may be no stderr, or one that takes text alone.
LSTM_KERNELS_QUIET keeps all of it back.
"""

import os
import sys
from contextlib import suppress

_told: set[str] = set()


def note(what: str, message: str) -> None:
    """A line, once for each `what`."""
    if what in _told or "LSTM_KERNELS_QUIET" in os.environ:
        return
    _told.add(what)
    line = f"lstm_kernels: {message}."
    with suppress(Exception):
        if shell := _notebook():  # which shows stderr in red, as an error
            shell.display_pub.publish(data={"text/plain": line})
        else:
            print(line, file=sys.stderr, flush=True)


def is_watched() -> bool:
    """Does somebody read what is said now, in a terminal or a notebook?"""
    with suppress(Exception):
        return _notebook() is not None or sys.stderr.isatty()
    return False


def _notebook():
    """IPython's shell of the notebook that runs this, or None."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell if hasattr(shell, "kernel") else None

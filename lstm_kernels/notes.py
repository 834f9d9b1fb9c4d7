"""What is said without being asked: on stderr, or in a notebook.

Saying it never fails a call: there may be no stderr, or one that takes text alone.
LSTM_KERNELS_QUIET keeps all of it back.
"""

import os
import sys
from contextlib import suppress

_told = set()
_shown_in = None  # the cell of a notebook that shows what goes on


def note(what, message):
    """A line on stderr, once for each `what`: what went wrong and was made good."""
    if what not in _told:
        _told.add(what)
        with suppress(Exception):
            if "LSTM_KERNELS_QUIET" not in os.environ:
                print(f"lstm_kernels: {message}.", file=sys.stderr, flush=True)


def is_terminal():
    """Does somebody read stderr now?"""
    with suppress(Exception):
        return sys.stderr.isatty()
    return False


def notebook():
    """IPython's shell of the notebook that runs this, or None."""
    with suppress(Exception):
        shell = sys.modules["IPython"].get_ipython()
        return shell if hasattr(shell, "kernel") else None
    return None


def show(shell, message):
    """A line in the running cell of a notebook, over the one that was shown there."""
    global _shown_in
    with suppress(Exception):
        if "LSTM_KERNELS_QUIET" in os.environ:
            return
        cell = shell.execution_count
        shell.display_pub.publish(
            data={"text/plain": f"lstm_kernels: {message}."},
            transient={"display_id": f"lstm_kernels {os.getpid()} {cell}"},
            update=cell == _shown_in,
        )
        _shown_in = cell

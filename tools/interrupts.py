"""Interrupts of a command: one line, whatever runs."""

import os
import signal
import sys
from contextlib import contextmanager

INTERRUPTED = "report: interrupted; the same call goes on from here"


def end(*_):
    """End this process: modules that are being imported would show a traceback, or hide
    the interrupt.
    """
    print(INTERRUPTED, file=sys.stderr, flush=True)
    os._exit(130)


def end_at_once():
    """An interrupt ends the process from here on."""
    signal.signal(signal.SIGINT, end)


@contextmanager
def told_as(handler):
    """An interrupt calls `handler`."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

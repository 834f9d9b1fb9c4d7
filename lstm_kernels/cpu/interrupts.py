"""Long calls of machine code that answer Ctrl-C.

Python runs the handler of a signal in the main thread, between its own instructions:
not inside machine code. So a long call runs on another thread, while the main one waits
for a lock, which a signal interrupts. If the handler raises, the call is told to stop:
it reads a word between its tasks. Then the exception goes on its way.
"""

import _thread
import os
import threading
from functools import partial

from .team import team

LONG = 2e9  # operations: from there on, another thread costs less than a hundredth


def run_on(work, operations, function, *arguments):
    """function(*arguments), a region or a flow on a Work; a signal ends a long one,
    and the next one gets records whose stop word is new (`Work.enter`).
    """
    if operations < LONG:
        return function(*arguments)
    return interruptible(partial(function, *arguments), work.stop, team().drain)


def interruptible(call, stop, drain=lambda: None):
    """call(), which leaves soon when stop[0] is 1; its result, or the exception of a
    signal, after drain() once call() has ended.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return call()  # no signal will come here
    outcome, errors = [], []
    turn, done = _thread.allocate_lock(), _thread.allocate_lock()
    done.acquire()

    def work():
        if not turn.acquire(blocking=False):
            return  # the caller has given up already
        try:
            outcome.append(call())
            if stop[0]:
                drain()
        except BaseException as error:
            errors.append(error)
        finally:
            done.release()

    process, alone = os.getpid(), False
    try:
        try:
            _thread.start_new_thread(work, ())
        except RuntimeError:  # the system gives no more threads
            alone = turn.acquire(blocking=False)
            if not alone:
                raise
        while not alone and not done.acquire(timeout=1):
            if os.getpid() != process:  # a handler forked: the thread is the parent's
                raise ChildProcessError(
                    "a call that was forked in the middle ends in its parent"
                )
    except BaseException:
        stop[0] = 1
        while (
            os.getpid() == process
            and not turn.acquire(blocking=False)
            and not _end(done)
        ):
            pass
        raise
    if alone:
        return call()
    if errors:
        raise errors[0]
    return outcome[0]


def _end(done):
    """Whether `done` could be taken; a second interrupt ends the waiting, not the
    call.
    """
    try:
        return done.acquire()
    except BaseException:  # the first one is on its way already
        return False

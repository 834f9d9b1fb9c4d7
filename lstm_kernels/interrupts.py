"""Calls of machine code, and of the compiler, that answer Ctrl-C and are left whole.

Python runs the handler of a signal in the main thread, between its own instructions:
not inside machine code, where a long call would not hear of it, but anywhere inside
Numba and LLVM, whose locks and registries an exception leaves half changed. So such a
call runs on another thread, to which no signal comes, while the main one waits for a
lock, which a signal interrupts. If the handler raises, the call is told to stop: it
reads a word between its tasks, or it runs to its end. Then the exception goes on its
way.

A handler can raise between a function's return and the instruction that would keep its
result. So nothing rests on a result: who runs the call stands in a dict, that it has
ended in a list, and a lock only wakes who waits.
"""

import _thread
import threading
from functools import partial
from types import BuiltinFunctionType


def undisturbed(call, *arguments):
    """call(*arguments), to its end even if a signal raises meanwhile; its result."""
    return interruptible(partial(call, *arguments), [0])


def interruptible(call, stop, drain=lambda: None, threads=_thread):
    """call(), which leaves soon when stop[0] is 1; its result, or the exception of a
    signal, after drain() once call() has ended. threads: where they come from.
    """
    # No signal comes to another thread. What is not Python's own, as of gevent, starts
    # no thread: the call would run here in any case.
    main = threading.get_ident() == threading.main_thread().ident
    if not main or not isinstance(_thread.start_new_thread, BuiltinFunctionType):
        return call()
    runner, ended, woken = {}, [], threads.allocate_lock()
    woken.acquire()

    def work():
        if runner.setdefault("is", "thread") != "thread":
            return  # the caller has given up already
        result = error = None
        try:
            result = call()
            if stop[0]:
                drain()
        except BaseException as raised:
            error = raised
        ended.append((result, error))
        woken.release()

    try:
        try:
            threads.start_new_thread(work, ())
        except RuntimeError:  # the system gives no more threads
            runner.setdefault("is", "caller")
            return call()
        while not ended:
            woken.acquire(timeout=1)
    except BaseException:
        stop[0] = 1
        waits = True
        while waits:  # another interrupt ends a wait, not the waiting
            try:
                while waits:
                    woken.acquire(timeout=0 if ended else 1)
                    left = runner.setdefault("is", "caller") == "caller"
                    waits = not (ended or left)
            except BaseException:  # the first one is on its way already
                continue
        raise
    result, error = ended[0]
    if error is not None:
        raise error
    return result

"""The one rule for forks: a network belongs to the process that made it.

In a forked child each call of such a network is a RuntimeError that says so
(`versions/base.py`); a child makes networks of its own. What networks share has to be
free there whatever other threads were doing: so a fork waits for locks that a child
needs, and each module says here what a child makes anew.
"""

import os

process = os.getpid()  # this one's number; a call of the system takes six times as long


def at_fork(*, hold=None, renew=None):
    """Register what a fork waits for, a lock, and what a child does first, a function.

    Locks are taken in the reverse order of their registration.
    """
    register = getattr(os, "register_at_fork", lambda **hooks: None)
    if hold is not None:
        after = dict.fromkeys(("after_in_parent", "after_in_child"), hold.release)
        register(before=hold.acquire, **after)
    if renew is not None:
        register(after_in_child=renew)


def _renew():
    global process
    process = os.getpid()


at_fork(renew=_renew)

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
    hooks = {}
    if hold is not None:
        hooks["before"] = hold.acquire
        hooks["after_in_parent"] = hooks["after_in_child"] = hold.release
    if renew is not None:
        hooks["after_in_child"] = renew
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**hooks)


def _renew():
    global process
    process = os.getpid()


at_fork(renew=_renew)

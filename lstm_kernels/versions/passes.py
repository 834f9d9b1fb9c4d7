"""What a pass of a network leaves for the next: tapes, and sums of gradients over
passes.
"""

import weakref
from typing import Any, NamedTuple


class TrainingPass(NamedTuple):
    """A forward pass that `backward` can go back through."""

    shape: tuple[int, ...]  # of x
    thread: int  # the Python thread that ran it
    kept: Any  # what `_forward` kept for `_backward`
    changes: int  # of the network's parameters, before it


class Tape:
    """What one forward pass keeps for `backward`, and the room for it:
    `Network.new_tape`.
    """

    def __init__(self, net):
        self.of, self.rooms = weakref.ref(net), {}
        self.clear("there was none")

    def clear(self, why):
        self.passed: TrainingPass | None = None
        self.missing = why  # while there is none


class GradientSums:
    """Gradients of the parameters, summed over backward passes: `Network.new_sums`."""

    def __init__(self, net):
        self.of, self.room = weakref.ref(net), None
        self.begin()

    def begin(self):
        """The next pass is the first one."""
        self.begun, self.torn = False, False

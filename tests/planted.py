"""A module with a fault planted in it, for the tests of tests."""

import inspect
from types import ModuleType


def planted(module, right, wrong):
    """A copy of `module` that has `wrong` where it has `right`, in one place."""
    source = inspect.getsource(module)
    if source.count(right) != 1:
        raise ValueError(
            f"right: got {right!r} {source.count(right)} times, want it once"
        )
    copy = ModuleType(module.__name__ + "_with_a_fault")
    copy.__file__, copy.__package__ = module.__file__, module.__package__
    exec(compile(source.replace(right, wrong), module.__file__, "exec"), vars(copy))
    return copy

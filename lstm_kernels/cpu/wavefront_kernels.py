"""The tasks of `numba-wavefront`, and what a training step does between its flows of
them.

A flow (`flow.py`) runs each task as machine code. A JOB (`arrays.py`) has the tasks
(n, 4) as layer, start, stop, part, and the number of parts of a mini-batch. The work of
a task is in `block_kernels.py`.
"""

from ..kernels import part
from .block_kernels import (
    backward_steps,
    begin_backward,
    forward_steps,
    gather,
    progress_at,
)
from .instructions import integers


@part
def read_task(job, task):
    """Layer, first step and the one after the last, first sample and the one after the
    last.
    """
    numbers = integers(job.tasks, 4 * task + 4)[4 * task :]
    layer, start, stop, part_ = numbers[0], numbers[1], numbers[2], numbers[3]
    first, last = job.B * part_ // job.parts, job.B * (part_ + 1) // job.parts
    return layer, start, stop, first, last


@part
def forward_task(task, turn, job):
    """A run of steps of a layer, in order."""
    forward_steps(job, *read_task(job, task))
    return 0


@part
def backward_task(task, turn, job):
    """The same back through time, and the gradient of the layer's input."""
    backward_steps(job, *read_task(job, task))
    return 0


@part
def next_batch(p, turn, job):
    """The next mini-batch of `order`."""
    gather(job, progress_at(job.progress, 0).done, 0, job.B)
    return turn


@part
def read_out(p, turn, job):
    """The read-out of a mini-batch, and what its backward pass begins with."""
    begin_backward(job, 0, job.B)
    return turn

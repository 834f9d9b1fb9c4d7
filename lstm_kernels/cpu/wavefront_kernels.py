"""The tasks of `numba-wavefront`, and what a training step does between its flows of
them.

A flow (`flow.py`) runs each task as machine code, perform(task, 0, address of a JOB). A
JOB (`records.py`) has the tasks (n, 4) as layer, start, stop, part, and the number of
parts of a mini-batch. The work of a task is in `block_kernels.py`.
"""

# The free names: functions of `block_kernels.py`, records and arrays at addresses.
forward_steps = backward_steps = gather = begin_backward = job_at = array_of_indices = (
    None
)


def read_task(job, task):
    """Layer, first step and the one after the last, first sample and the one after the
    last.
    """
    numbers = array_of_indices(job.tasks + task * 32, (4,))  # the task's, 8 bytes each
    layer, start, stop, part = numbers[0], numbers[1], numbers[2], numbers[3]
    return (
        layer,
        start,
        stop,
        job.B * part // job.parts,
        job.B * (part + 1) // job.parts,
    )


def forward_task(task, _, address):
    """A run of steps of a layer, in order."""
    job = job_at(address, 0)
    layer, start, stop, first, last = read_task(job, task)
    forward_steps(job, layer, start, stop, first, last)
    return 0


def backward_task(task, _, address):
    """The same back through time, and the gradient of the layer's input."""
    job = job_at(address, 0)
    layer, start, stop, first, last = read_task(job, task)
    backward_steps(job, layer, start, stop, first, last)
    return 0


def fetch(p, turn, address):
    """The next mini-batch of `order`."""
    job = job_at(address, 0)
    gather(job, array_of_indices(job.steps_done, (1,))[0], 0, job.B)
    return turn


def turn_back(p, turn, address):
    """The read-out of a mini-batch, and what its backward pass begins with."""
    job = job_at(address, 0)
    begin_backward(job, 0, job.B)
    return turn

"""The kernels of `numba-wavefront`: what a task of its schedules does, as machine code of its own.

A JOB (`records.py`) has the tasks (n, 4) as layer, start, stop, part, and the number of parts that
the samples are cut into.
"""

TASK = 32  # bytes of a task's four numbers

# The free names: functions of `block_kernels.py`, records and arrays at addresses.
to_and_fro = forward_block = back_block = through_rows = start_rows = ROWS = None
layer_at = job_at = array_of_indices = read = None


def read_task(job, task):
    """Layer, first step and the one after the last, first sample and the one after the last."""
    numbers = array_of_indices(job.tasks + task * TASK, (4,))
    layer, start, stop, part = numbers[0], numbers[1], numbers[2], numbers[3]
    return layer, start, stop, job.B * part // job.parts, job.B * (part + 1) // job.parts


def forward_task(task, _, address):
    """A run of steps of a layer, in order."""
    job = job_at(address, 0)
    layer, start, stop, first, last = read_task(job, task)
    q = layer_at(job.layers, layer)
    for begin in range(start, stop, q.input_steps):
        end = min(begin + q.input_steps, stop)
        for t in range(begin, end):
            if read(job.stop):
                return 1
            for k in range(q.J):
                forward_block(job, layer, to_and_fro(k, q.J, t), t, begin, end, first, last)
    return 0


def backward_task(task, _, address):
    """The same back through time, and the gradient of the layer's input."""
    job = job_at(address, 0)
    layer, start, stop, first, last = read_task(job, task)
    q = layer_at(job.layers, layer)
    for t in range(stop - 1, start - 1, -1):
        if read(job.stop):
            return 1
        for k in range(q.J_wide):
            back_block(q, to_and_fro(k, q.J_wide, t), t, first, last)
        if q.dx and job.parts > 1:
            through_rows(q, t * q.B + first, t * q.B + last)
    if q.dx and job.parts == 1:
        for n in range(start * q.B, stop * q.B, ROWS):
            through_rows(q, n, min(n + ROWS, stop * q.B))
    if q.dh0 and start == 0:
        start_rows(q, first, last)
    return 0

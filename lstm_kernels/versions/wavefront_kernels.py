"""The kernels of `numba-wavefront`: what a task of its schedules does.

work: the plan (`fused_kernels.py`), the tasks (n, 4) as layer, start, stop, part, the number of
parts that the samples are cut into, and forward the four of `keep_state`.
"""

import numpy as np
from numba import prange

# The free names: functions of `fused_kernels.py`.
to_and_fro = forward_block = back_block = through_rows = start_rows = keep_state = None
gradient_rounds = readout_gradient = real = ROWS = None


def forward_task(task, work):
    """A run of steps of a layer, in order."""
    plan, tasks, parts = work[:3]
    layer, start, stop, part = tasks[task]
    q = plan[layer]
    first, last = q.B * part // parts, q.B * (part + 1) // parts
    for begin in range(start, stop, q.chunk):
        end = min(begin + q.chunk, stop)
        for t in range(begin, end):
            for k in range(q.J):
                forward_block(q, to_and_fro(k, q.J, t), t, begin, end, first, last)
    if stop == q.T:
        keep_state(plan, layer, first, last, work[3:])


def backward_task(task, work):
    """The same back through time, and the gradient of the layer's input."""
    plan, tasks, parts = work
    layer, start, stop, part = tasks[task]
    q = plan[layer]
    first, last = q.B * part // parts, q.B * (part + 1) // parts
    for t in range(stop - 1, start - 1, -1):
        for k in range(q.J_wide):
            back_block(q, to_and_fro(k, q.J_wide, t), t, first, last)
        if q.dx and parts > 1:
            through_rows(q, t * q.B + first, t * q.B + last)
    if q.dx and parts == 1:
        for n in range(start * q.B, stop * q.B, ROWS):
            through_rows(q, n, min(n + ROWS, stop * q.B))
    if q.dh0 and start == 0:
        start_rows(q, first, last)


def gradients(plan, sync, threads, rate, descend, y, error, gV, gb_out):
    """All weight gradients times `rate`, added to where the plan says, and those of the read-out
    (an empty `error` for none); the loss. Nothing comes between: parameters change as a whole or
    not at all.
    """
    sync[:] = 0
    if threads == 1:
        gradient_rounds(np.intp(0), plan, sync, np.intp(0), np.intp(0), rate, descend)
    else:
        for p in prange(threads):
            gradient_rounds(np.intp(p), plan, sync, np.intp(0), np.intp(0), rate, descend)
    return readout_gradient(y, error, gV, gb_out, rate) if len(error) else real(0)

"""Inference with factored weights (`versions/factored.py`), in `numba-fused`'s tiles.

A step of a layer is two products: s = x Px + h Ph by a tile of the linear cell, which
leaves sums as they are, then a = s Q + b and the cell by a tile of the network's own.
As in `block_kernels.py`, l is a layer, t a step, j a unit block of h, i one of s; first
and last bound the samples. Slot t of h and of c is the state before step t.
"""

import numpy as np

from ..kernels import part
from .arrays import record
from .instructions import array, place, read, record_at
from .passes import claimed
from .rounds import wait
from .tiles import inputs, single, step, whole

# Of a layer: its sizes, its packed factors and bias, what it reads and writes.
LAYER, _ = record("D D_padded x_width Px Ph Q b x h c")
# I unit blocks of s, of `wide` units; R_padded and H_padded rows of Q and Ph.
SIZES = "L T B H R P J I units wide row R_padded H_padded c_slots input_steps shares"
ADDRESSES = (
    "address layers sync groups stop zero s a ahead inputs step both cell single"
)
JOBS = {
    np.dtype(real): record(SIZES, ADDRESSES, real=real)[0]
    for real in (np.float32, np.float64)
}
layer_at = record_at(LAYER)


@part
def infer(p, turn, job):
    """A forward pass, on shares of the samples."""
    for task in claimed(job.sync, job.groups, turn, p, job.shares):
        first, last = job.B * task // job.shares, job.B * (task + 1) // job.shares
        for l in range(job.L):
            for t in range(job.T):
                if read(job.stop) == 0:
                    factor_step(job, l, t, first, last)
                    cell_step(job, l, t, first, last)
    return wait(job.sync, job.groups, turn, job.shares)


@part
def factor_step(job, l, t, first, last):
    """s = x Px + h Ph of step t."""
    layer = layer_at(job.layers, l)
    x = array(job, layer.x, (job.T, job.B, layer.x_width))
    h = array(job, layer.h, (job.T + 1, job.B, job.P))
    s = array(job, job.s, (job.B, job.P))
    Px = array(job, layer.Px, (job.I, layer.D_padded, job.wide))
    Ph = array(job, layer.Ph, (job.I, job.H_padded, job.wide))
    ahead = array(job, job.ahead, (job.I, job.input_steps, job.B, job.wide))
    since = t % job.input_steps  # steps since inputs were multiplied
    rows = last - first
    for i in range(job.I):
        from_x = place(x, (t, first)), x.strides[1], layer.D, place(Px, (i,))
        from_h = place(h, (t, first)), h.strides[1], job.H, place(Ph, (i,))
        s_i = place(s, (first, i * job.wide))
        cell = s_i, s_i, s_i, s.strides[0], s_i
        if job.input_steps == 1:
            whole(job.both, rows, *from_x, job.zero, *from_h, s_i, *cell)
            continue
        if since == 0:
            steps = min(job.input_steps, job.T - t)
            inputs(job.inputs, steps * job.B, *from_x, job.zero, place(ahead, (i,)))
        step(job.step, rows, *from_h, place(ahead, (i, since)), *cell)


@part
def cell_step(job, l, t, first, last):
    """a = s Q + b and the cell of step t."""
    layer = layer_at(job.layers, l)
    h = array(job, layer.h, (job.T + 1, job.B, job.P))
    c = array(job, layer.c, (job.c_slots, job.B, job.P))
    s = array(job, job.s, (job.B, job.P))
    a = array(job, job.a, (job.J, job.B, job.row))
    Q = array(job, layer.Q, (job.J, job.R_padded, job.row))
    b = array(job, layer.b, (job.J, job.row))
    before, after = min(t, job.c_slots - 1), min(t + 1, job.c_slots - 1)
    row = h.strides[1]
    if last - first == 1:
        cell = place(c, (before, first)), place(c, (after, first))
        from_s = place(s, (first,)), job.R, place(Q, (0,)), Q.strides[0]
        gates = place(b, (0,)), place(a, (0, first)), a.strides[0]
        single(job.single, job.J, *from_s, *gates, *cell, place(h, (t + 1, first)))
        return
    for j in range(job.J):
        k = j * job.units
        nothing = job.s, 0, 0, place(Q, (j,))  # the product of no inputs
        from_s = place(s, (first,)), s.strides[0], job.R, place(Q, (j,))
        h_new = place(h, (t + 1, first, k))
        cell = place(c, (before, first, k)), place(c, (after, first, k)), h_new, row
        gates = place(a, (j, first))
        b_j = place(b, (j,))
        whole(job.cell, last - first, *nothing, b_j, *from_s, gates, *cell, h_new)

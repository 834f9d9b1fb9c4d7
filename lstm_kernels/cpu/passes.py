"""The passes of `numba-fused`: who runs which block when, in rounds of tasks, sample by
sample, or as tasks of a flow.

A region (`team.py`) runs a function of a participant p, the number `turn` of its first
round (`rounds.py`) and a JOB (`arrays.py`); it returns the number of the next round. A
pass is machine code of its own, which others call by its address: so what a network
does not use is not compiled. Steps are in `block_kernels.py`.

A flow (`flow.py`) runs layers at the same time, each task as machine code. A JOB has
its tasks (n, 3) as layer, start, stop.

A pass is left between two steps when `leave` of its PROGRESS is set; what it has
written is lost then. Nobody leaves while parameters change: the word is read once more
before the round that changes them, and whoever read a zero there has waited for all
others.
"""

from ..kernels import part
from .block_kernels import (
    LAST,
    LEAVE,
    ROWS,
    back_block,
    backward_steps,
    begin_backward,
    forward_block,
    forward_steps,
    gather,
    gradient_block,
    initial_gradient,
    input_gradient,
    layer_at,
    progress_at,
    readout_gradient,
    transpose_weights,
)
from .instructions import array, call, exchange, integers, read
from .rounds import claim, finish, wait


@part
def claimed(sync, groups, turn, p, tasks):
    """The tasks of a round that participant p claims, each done when the next is asked
    for. It gets no JOB: a generator would keep a copy of the record.
    """
    task = claim(sync, groups, turn, p, tasks)
    while task >= 0:
        yield task
        finish(sync, groups, turn)
        task = claim(sync, groups, turn, p, tasks)


@part
def forward_samples(first, last, job):
    """Every layer and step of some samples; no other thread has to be waited for."""
    for l in range(job.L):
        forward_steps(job, l, 0, job.T, first, last)
    return 0


@part
def backward_samples(first, last, job):
    """The same back through time."""
    for l in range(job.L - 1, -1, -1):
        backward_steps(job, l, 0, job.T, first, last)
    return 0


@part
def forward_rounds(p, turn, job):
    """Every layer and step in rounds of unit blocks."""
    for l in range(job.L):
        for t in range(job.T):
            if read(job.progress + LEAVE):
                return turn
            begin = t - t % job.input_steps
            end = min(begin + job.input_steps, job.T)
            for j in claimed(job.sync, job.groups, turn, p, job.J):
                forward_block(job, l, j, t, begin, end, 0, job.B)
            turn = wait(job.sync, job.groups, turn, job.J)
    return turn


@part
def backward_rounds(p, turn, job):
    """The same back through time, in rounds of wide unit blocks of some of the
    samples.
    """
    rows = job.T * job.B
    splits = job.splits
    tasks = job.J_wide * splits
    for l in range(job.L - 1, -1, -1):
        for t in range(job.T - 1, -1, -1):
            if read(job.progress + LEAVE):
                return turn
            for task in claimed(job.sync, job.groups, turn, p, tasks):
                w, s = task // splits, task % splits
                first, last = job.B * s // splits, job.B * (s + 1) // splits
                back_block(job, l, w, t, first, last)
            turn = wait(job.sync, job.groups, turn, tasks)
        of_inputs = (rows + ROWS - 1) // ROWS if layer_at(job.layers, l).dx else 0
        tasks_after = of_inputs + (job.dh0 != 0)
        for task in claimed(job.sync, job.groups, turn, p, tasks_after):
            if task < of_inputs:
                input_gradient(job, l, task * ROWS, min(task * ROWS + ROWS, rows))
            else:
                initial_gradient(job, l, 0, job.B)
        turn = wait(job.sync, job.groups, turn, tasks_after)
    return turn


@part
def gradient_rounds(p, turn, job):
    """All weight gradients in one round, a unit block of a layer per task, and the
    read-out's.
    """
    blocks = job.L * job.J
    tasks = blocks + (job.losses != 0)
    for task in claimed(job.sync, job.groups, turn, p, tasks):
        if task < blocks:
            gradient_block(job, task // job.J, task % job.J)
        else:
            loss = readout_gradient(job)
            progress = progress_at(job.progress, 0)
            done = progress.done
            array(job, job.losses, (done + 1,))[done] = loss
            progress.done = done + 1
            if loss - loss != 0:  # it is not finite: this was the last step
                exchange(job.progress + LAST, 0)
    return wait(job.sync, job.groups, turn, tasks)


@part
def run_pass(function, p, turn, job):
    """A forward or backward pass, `function`, on shares of the samples or in rounds."""
    if job.shares == 0:
        return call(function, p, turn, job.address)
    for task in claimed(job.sync, job.groups, turn, p, job.shares):
        first, last = job.B * task // job.shares, job.B * (task + 1) // job.shares
        call(function, first, last, job.address)
    return wait(job.sync, job.groups, turn, job.shares)


@part
def infer(p, turn, job):
    """A forward pass."""
    return run_pass(job.forward, p, turn, job)


@part
def backward(p, turn, job):
    """A backward pass and the weight gradients."""
    turn = run_pass(job.backward, p, turn, job)
    if read(job.progress + LEAVE):
        return turn
    return call(job.gradients, p, turn, job.address)


@part
def train(p, turn, job):
    """The training steps that PROGRESS says, each on a mini-batch of `order`."""
    tasks = max(job.shares, 1)
    step = progress_at(job.progress, 0).first
    while step < read(job.progress + LAST):
        for task in claimed(job.sync, job.groups, turn, p, tasks):
            first, last = job.B * task // tasks, job.B * (task + 1) // tasks
            if job.order:
                gather(job, step, first, last)
            if job.shares:
                call(job.forward, first, last, job.address)
                begin_backward(job, first, last)
                call(job.backward, first, last, job.address)
        turn = wait(job.sync, job.groups, turn, tasks)
        if job.shares == 0:
            turn = call(job.forward, p, turn, job.address)
            for _ in claimed(job.sync, job.groups, turn, p, 1):
                begin_backward(job, 0, job.B)
            turn = wait(job.sync, job.groups, turn, 1)
            turn = call(job.backward, p, turn, job.address)
        if read(job.progress + LEAVE):
            return turn
        turn = call(job.gradients, p, turn, job.address)
        step += 1
    return turn


@part
def pack_transposes(p, turn, job):
    """Write all transposed weights."""
    for l in range(job.L):
        for j in range(job.J):
            transpose_weights(job, l, j)
    return turn


@part
def read_task(job, task):
    """Layer, first step and the one after the last."""
    numbers = integers(job.tasks, 3 * task + 3)[3 * task :]
    return numbers[0], numbers[1], numbers[2]


@part
def forward_task(task, turn, job):
    """A run of steps of a layer, in order."""
    layer, start, stop = read_task(job, task)
    forward_steps(job, layer, start, stop, 0, job.B)
    return 0


@part
def backward_task(task, turn, job):
    """The same back through time, and the gradient of the layer's input."""
    layer, start, stop = read_task(job, task)
    backward_steps(job, layer, start, stop, 0, job.B)
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

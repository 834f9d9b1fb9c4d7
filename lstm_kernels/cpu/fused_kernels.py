"""The passes of `numba-fused`: which block runs when, in rounds of tasks or sample by sample.

A region (`team.py`) runs one of these functions with the address of a JOB (`records.py`): each is
machine code of its own, compiled when something needs it, and calls others by their address. p is a
participant, `turn` the number of a round (`rounds.py`), `first`, `last` are samples of the
mini-batch. The work of a task is in `block_kernels.py`.

A pass is left between two steps when the word `job.stop` is set; what it has written is lost then.
Nobody leaves while parameters change: all steps before are whole, since `stop` is read once more
before the round that changes them, and whoever read a zero there has waited for all others.
"""

ROWS = 96  # rows of (t, sample) of a task of dx

# The free names: functions of `block_kernels.py`, rounds, records and arrays at addresses.
to_and_fro = forward_block = back_block = through_rows = start_rows = gradient_task = None
pack_transposes = readout_gradient = gather = start = claim = finish = wait = call = real = None
read = exchange = layer_at = job_at = array = array_of_indices = None


def forward_samples(first, last, address):
    """Every layer and step of some samples; no other thread has to be waited for."""
    job = job_at(address, 0)
    for l in range(job.L):
        q = layer_at(job.layers, l)
        for t in range(q.T):
            if read(job.stop):
                return 0
            begin = t - t % q.input_steps
            end = min(begin + q.input_steps, q.T)
            for k in range(q.J):
                forward_block(job, l, to_and_fro(k, q.J, t), t, begin, end, first, last)
    return 0


def backward_samples(first, last, address):
    """The same back through time."""
    job = job_at(address, 0)
    for l in range(job.L - 1, -1, -1):
        q = layer_at(job.layers, l)
        for t in range(q.T - 1, -1, -1):
            if read(job.stop):
                return 0
            for k in range(q.J_wide):
                back_block(q, to_and_fro(k, q.J_wide, t), t, first, last)
            if q.dx:
                through_rows(q, t * q.B + first, t * q.B + last)
        if q.dh0:
            start_rows(q, first, last)
    return 0


def forward_rounds(p, turn, address):
    """Every layer and step in rounds of hidden blocks; returns the next round."""
    job = job_at(address, 0)
    sync, groups = job.sync, job.groups
    for l in range(job.L):
        q = layer_at(job.layers, l)
        for t in range(q.T):
            if read(job.stop):
                return turn
            begin = t - t % q.input_steps
            end = min(begin + q.input_steps, q.T)
            j = claim(sync, groups, turn, p, q.J)
            while j >= 0:
                forward_block(job, l, j, t, begin, end, 0, q.B)
                finish(sync, groups, turn)
                j = claim(sync, groups, turn, p, q.J)
            turn = wait(sync, groups, turn, q.J)
    return turn


def backward_rounds(p, turn, address):
    """The same back through time, in rounds of wide blocks of some of the samples."""
    job = job_at(address, 0)
    sync, groups = job.sync, job.groups
    for l in range(job.L - 1, -1, -1):
        q = layer_at(job.layers, l)
        tasks = q.J_wide * q.splits
        for t in range(q.T - 1, -1, -1):
            if read(job.stop):
                return turn
            task = claim(sync, groups, turn, p, tasks)
            while task >= 0:
                j, s = task // q.splits, task % q.splits
                back_block(q, j, t, q.B * s // q.splits, q.B * (s + 1) // q.splits)
                finish(sync, groups, turn)
                task = claim(sync, groups, turn, p, tasks)
            turn = wait(sync, groups, turn, tasks)
        dx_tasks = (q.T * q.B + ROWS - 1) // ROWS if q.dx else 0
        tasks = dx_tasks + (q.dh0 != 0)
        task = claim(sync, groups, turn, p, tasks)
        while task >= 0:
            if task < dx_tasks:
                through_rows(q, task * ROWS, min(task * ROWS + ROWS, q.T * q.B))
            else:
                start_rows(q, 0, q.B)
            finish(sync, groups, turn)
            task = claim(sync, groups, turn, p, tasks)
        turn = wait(sync, groups, turn, tasks)
    return turn


def gradient_rounds(p, turn, address):
    """All weight gradients in one round, a block of a layer per task, and those of the read-out."""
    job = job_at(address, 0)
    sync, groups, J = job.sync, job.groups, layer_at(job.layers, 0).J
    blocks = job.L * J
    tasks = blocks + (job.losses != 0)
    task = claim(sync, groups, turn, p, tasks)
    while task >= 0:
        if task < blocks:
            gradient_task(layer_at(job.layers, task // J), task % J, job.rate, job.descend)
        else:
            step = array_of_indices(job.steps_done, (1,))
            loss = readout_gradient(job, real(job.rate))
            array(job.losses, (job.count,))[step[0]] = loss
            step[0] += 1
            if loss - loss != 0:  # it is not finite: this was the last step
                exchange(job.stop + 8, 0)
        finish(sync, groups, turn)
        task = claim(sync, groups, turn, p, tasks)
    return wait(sync, groups, turn, tasks)


def infer(p, turn, address):
    """A forward pass."""
    job = job_at(address, 0)
    if job.shares == 0:
        return call(job.forward, p, turn, address)
    sync, groups, shares = job.sync, job.groups, job.shares
    task = claim(sync, groups, turn, p, shares)
    while task >= 0:
        call(job.forward, job.B * task // shares, job.B * (task + 1) // shares, address)
        finish(sync, groups, turn)
        task = claim(sync, groups, turn, p, shares)
    return wait(sync, groups, turn, shares)


def backward(p, turn, address):
    """A backward pass and the weight gradients."""
    job = job_at(address, 0)
    sync, groups, shares = job.sync, job.groups, job.shares
    if shares == 0:
        turn = call(job.backward, p, turn, address)
    else:
        task = claim(sync, groups, turn, p, shares)
        while task >= 0:
            call(job.backward, job.B * task // shares, job.B * (task + 1) // shares, address)
            finish(sync, groups, turn)
            task = claim(sync, groups, turn, p, shares)
        turn = wait(sync, groups, turn, shares)
    if read(job.stop):
        return turn
    return call(job.gradients, p, turn, address)


def train(p, turn, address):
    """Up to `count` training steps, one mini-batch of `order` each, while the loss is finite."""
    job = job_at(address, 0)
    sync, groups, B, tasks = job.sync, job.groups, job.B, max(job.shares, 1)
    k = 0
    while k < read(job.stop + 8):
        task = claim(sync, groups, turn, p, tasks)
        while task >= 0:
            first, last = B * task // tasks, B * (task + 1) // tasks
            if job.order:
                gather(job, k, first, last)
            if job.shares:
                call(job.forward, first, last, address)
                start(job, first, last)
                call(job.backward, first, last, address)
            finish(sync, groups, turn)
            task = claim(sync, groups, turn, p, tasks)
        turn = wait(sync, groups, turn, tasks)
        if job.shares == 0:
            turn = call(job.forward, p, turn, address)
            if claim(sync, groups, turn, p, 1) == 0:
                start(job, 0, B)
                finish(sync, groups, turn)
            turn = wait(sync, groups, turn, 1)
            turn = call(job.backward, p, turn, address)
        if read(job.stop):
            return turn
        turn = call(job.gradients, p, turn, address)
        k += 1
    return turn


def fetch(p, turn, address):
    """The next mini-batch of `order`."""
    job = job_at(address, 0)
    if job.order:
        gather(job, array_of_indices(job.steps_done, (1,))[0], 0, job.B)
    return turn


def turn_back(p, turn, address):
    """The read-out of a mini-batch, and what its backward pass begins with."""
    job = job_at(address, 0)
    start(job, 0, job.B)
    return turn


def pack(p, turn, address):
    """Write all transposed weights."""
    job = job_at(address, 0)
    for l in range(job.L):
        q = layer_at(job.layers, l)
        for j in range(q.J):
            pack_transposes(q, j)
    return turn

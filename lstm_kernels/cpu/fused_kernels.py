"""The passes of `numba-fused`: who runs which block when, in rounds of tasks or sample
by sample.

A function that takes the address of a JOB (`records.py`) is machine code of its own and
calls others by their address. A region (`team.py`) runs one for each participant p.
`turn` is the number of a round (`rounds.py`); what takes it returns the next. Tasks are
in `block_kernels.py`.

A pass is left between two steps when the word `job.stop` is set; what it has written is
lost then. Nobody leaves while parameters change: `stop` is read once more before the
round that changes them, and whoever read a zero there has waited for all others.
"""

# The free names: functions of `block_kernels.py`, rounds, records and arrays at
# addresses.
forward_steps = backward_steps = forward_block = back_block = through_rows = (
    initial_rows
) = None
gradient_block = pack_operands = readout_gradient = gather = begin_backward = ROWS = (
    None
)
input_rows = round_rows = paired_rows = pair_rows = None
claim = finish = wait = call = real = read = exchange = layer_at = job_at = array = None
array_of_indices = None


def claimed(sync, groups, turn, p, tasks):
    """The tasks of a round that participant p claims, each done when the next is asked
    for.
    """
    task = claim(sync, groups, turn, p, tasks)
    while task >= 0:
        yield task
        finish(sync, groups, turn)
        task = claim(sync, groups, turn, p, tasks)


def forward_samples(first, last, address):
    """Every layer and step of some samples; no other thread has to be waited for."""
    job = job_at(address, 0)
    for l in range(job.L):
        forward_steps(job, l, 0, job.T, first, last)
    return 0


def backward_samples(first, last, address):
    """The same back through time."""
    job = job_at(address, 0)
    for l in range(job.L - 1, -1, -1):
        backward_steps(job, l, 0, job.T, first, last)
    return 0


def forward_rounds(p, turn, address):
    """Every layer and step in rounds of unit blocks."""
    job = job_at(address, 0)
    tasks = (input_rows(job) + ROWS - 1) // ROWS
    for task in claimed(job.sync, job.groups, turn, p, tasks):
        round_rows(job, task * ROWS, min(task * ROWS + ROWS, input_rows(job)))
    turn = wait(job.sync, job.groups, turn, tasks)
    for l in range(job.L):
        for t in range(job.T):
            if read(job.stop):
                return turn
            begin = t - t % job.input_steps
            end = min(begin + job.input_steps, job.T)
            for j in claimed(job.sync, job.groups, turn, p, job.J):
                forward_block(job, l, j, t, begin, end, 0, job.B)
            turn = wait(job.sync, job.groups, turn, job.J)
    return turn


def backward_rounds(p, turn, address):
    """The same back through time, in rounds of wide unit blocks of some of the
    samples.
    """
    job = job_at(address, 0)
    B, splits, tasks = job.B, job.splits, job.J_wide * job.splits
    for l in range(job.L - 1, -1, -1):
        for t in range(job.T - 1, -1, -1):
            if read(job.stop):
                return turn
            for task in claimed(job.sync, job.groups, turn, p, tasks):
                j, s = task // splits, task % splits
                back_block(job, l, j, t, B * s // splits, B * (s + 1) // splits)
            turn = wait(job.sync, job.groups, turn, tasks)
        dx_tasks = (job.T * B + ROWS - 1) // ROWS if layer_at(job.layers, l).dx else 0
        dx_and_dh0 = dx_tasks + (job.dh0 != 0)
        for task in claimed(job.sync, job.groups, turn, p, dx_and_dh0):
            if task < dx_tasks:
                through_rows(job, l, task * ROWS, min(task * ROWS + ROWS, job.T * B))
            else:
                initial_rows(job, l, 0, B)
        turn = wait(job.sync, job.groups, turn, dx_and_dh0)
    return turn


def gradient_rounds(p, turn, address):
    """All weight gradients in one round, a unit block of a layer per task, and the
    read-out's; what they multiply is prepared in a round before.
    """
    job = job_at(address, 0)
    parts = (paired_rows(job) + ROWS - 1) // ROWS  # of a layer
    for task in claimed(job.sync, job.groups, turn, p, parts * job.L):
        l, first = task // parts, task % parts * ROWS
        pair_rows(job, l, first, min(first + ROWS, paired_rows(job)))
    turn = wait(job.sync, job.groups, turn, parts * job.L)
    blocks = job.L * job.J
    tasks = blocks + (job.losses != 0)
    for task in claimed(job.sync, job.groups, turn, p, tasks):
        if task < blocks:
            gradient_block(job, task // job.J, task % job.J)
        else:
            loss, done = readout_gradient(job), array_of_indices(job.steps_done, (1,))
            array(job.losses + done[0] * job.size, (1,))[0] = loss  # of this step
            done[0] += 1
            if loss - loss != 0:  # it is not finite: this was the last step
                exchange(job.stop + 8, 0)
    return wait(job.sync, job.groups, turn, tasks)


def run_pass(function, p, turn, address):
    """A forward or backward pass, `function`, on shares of the samples or in rounds."""
    job = job_at(address, 0)
    if job.shares == 0:
        return call(function, p, turn, address)
    for task in claimed(job.sync, job.groups, turn, p, job.shares):
        call(
            function,
            job.B * task // job.shares,
            job.B * (task + 1) // job.shares,
            address,
        )
    return wait(job.sync, job.groups, turn, job.shares)


def infer(p, turn, address):
    """A forward pass."""
    return run_pass(job_at(address, 0).forward, p, turn, address)


def backward(p, turn, address):
    """A backward pass and the weight gradients."""
    job = job_at(address, 0)
    turn = run_pass(job.backward, p, turn, address)
    return turn if read(job.stop) else call(job.gradients, p, turn, address)


def train(p, turn, address):
    """As many training steps as `stop` says, each on a mini-batch of `order`."""
    job = job_at(address, 0)
    k, tasks = 0, max(job.shares, 1)
    while k < read(job.stop + 8):
        for task in claimed(job.sync, job.groups, turn, p, tasks):
            first, last = job.B * task // tasks, job.B * (task + 1) // tasks
            if job.order:
                gather(job, k, first, last)
            if job.shares:
                call(job.forward, first, last, address)
                begin_backward(job, first, last)
                call(job.backward, first, last, address)
        turn = wait(job.sync, job.groups, turn, tasks)
        if job.shares == 0:
            turn = call(job.forward, p, turn, address)
            for _ in claimed(job.sync, job.groups, turn, p, 1):
                begin_backward(job, 0, job.B)
            turn = wait(job.sync, job.groups, turn, 1)
            turn = call(job.backward, p, turn, address)
        if read(job.stop):
            return turn
        turn = call(job.gradients, p, turn, address)
        k += 1
    return turn


def pack(p, turn, address):
    """Write all operands that are made of the parameters."""
    job = job_at(address, 0)
    for l in range(job.L):
        for j in range(job.J):
            pack_operands(job, l, j)
    return turn

"""Steps whose unit blocks workers share by other means than the package's loop: for
page 07.
"""

from lstm_kernels.cpu.memory import point
from lstm_kernels.cpu.steps import forward_row
from lstm_kernels.kernels import part
from lstm_kernels.versions import network


def prepared(params, x, record):
    """The Pass of one thread over x, on whose arrays other kernels compute shares of
    it. They find `record` where JOB.order points, which inference does not read.
    """
    way = network("numba-fused", params, threads=1).bare_forward(x)
    point(way.space.work.job, order=record)
    return way


@part
def blocks_of(job, share, shares):
    """The bounds of the unit blocks of a share."""
    return job.J * share // shares, job.J * (share + 1) // shares


@part
def share_of_step(job, t, share, shares):
    """Step t of one share of the unit blocks, for every sample."""
    low, high = blocks_of(job, share, shares)
    forward_row(job, 0, 0, job.T, t, t + 1, low, high, 0, job.B)

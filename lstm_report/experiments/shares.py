"""Steps whose unit blocks workers share by other means than the package's scheduler:
for page 07.
"""

from numba import types

from lstm_kernels.cpu.entries import Item, Reference
from lstm_kernels.cpu.stages import forward_stage
from lstm_kernels.kernels import native, part
from lstm_kernels.versions import network

forward_item = part(forward_stage)


def prepared(params, x):
    """The Pass of one thread over x, on whose arrays other kernels compute shares."""
    return network("numba-fused", params, threads=1).bare_forward(x)


def compiled(kernel, way):
    """The address of a kernel of integers and the Net of a Pass, which comes last."""
    arguments = way.workspace.arguments
    integers = [types.int64] * (kernel.__code__.co_argcount - 1)
    signature = types.int64(*integers, Reference(arguments.type))
    return native(kernel, arguments.values.theta.dtype.name, signature)


@part
def blocks_of(net, share, shares):
    """The bounds of the unit blocks of a share."""
    return net.J * share // shares, net.J * (share + 1) // shares


@part
def share_of_step(net, t, share, shares):
    """Step t of one share of the unit blocks, for every sample."""
    low, high = blocks_of(net, share, shares)
    forward_item(net, Item(0, 0, 0, net.T, t, t + 1, low, high, 0, net.B))


def one_step(share, t, shares, net):
    """Step t of a share: what each thread of an OpenMP region runs."""
    share_of_step(net, t, share, shares)
    return 0

"""Training by several ranks with a GPU each: every rank has the whole network on its
own device.

A mini-batch is shared out over the ranks as `parallel.py` shares it out. Each computes
the gradients of its share on its device; they are summed over the ranks, in the order
of the ranks, and every device lets its own copy of the parameters descend by the same
numbers. With an MPI that takes addresses of device memory (CUDA-aware) the devices'
arrays themselves go through MPI; with another they go through page-locked (pinned)
arrays of the host, which are copied without a second buffer.

So far this has run in Numba's simulator only, with a stand-in for a CUDA-aware MPI; it
has not run on a device.
"""

import ctypes

import numpy as np

from ..errors import UnavailableError
from ..gpu import device
from ..gpu.build import PLACES, build
from ..gpu.layout import Sizes, unpack
from ..gpu.plans import MODULES, MOST_THREADS, plan
from ..schedules import PIPELINES
from ..versions.cuda_fused import CudaFused
from .layers import StageParams, TokenParams
from .parallel import layer_names
from .world import Sum, World

KINDS = "mpi_memory_alloc_kinds"  # MPI 4.1, section 12.4.3


def choose_device(world):
    """Select this rank's GPU, for the calling thread, and return its number.

    Of the ranks on a node the first takes the first GPU that it sees, each further one
    the first that no rank before it has: the ranks may all see every GPU, or a
    scheduler may show each rank its own. It has to come before the first network is
    made: what is on one device cannot be used with another. In the simulator the one
    device serves every rank. Raises ValueError, on every rank of the node, if one finds
    no GPU left; UnavailableError with the reason where a rank sees none at all.
    """
    if device.SIMULATED:
        return 0
    # Not `why_unavailable`, yet: it would open the first device, on every rank.
    found = device.cuda is not None and device.cuda.is_available()
    mine = [gpu.uuid for gpu in device.cuda.gpus] if found else []
    here = world.comm.Split_type(world.MPI.COMM_TYPE_SHARED)
    seen, rank = here.allgather(mine), here.Get_rank()
    here.Free()
    if not all(seen):
        why = (
            "another rank of this node sees no GPU"
            if mine
            else device.why_unavailable()
        )
        raise UnavailableError(f"world: {why}")
    taken = []
    for gpus in seen:
        taken.append(next((gpu for gpu in gpus if gpu not in taken), None))
    if None in taken:
        count = len(set().union(*seen))
        got = f"{len(seen)} ranks on a node of {count} GPU{'s' if count > 1 else ''}"
        raise ValueError(f"world: got {got}, want at most {count}: one for each")
    number = mine.index(taken[rank])
    device.cuda.select_device(number)
    if why := device.why_unavailable():
        raise UnavailableError(f"world: {why}")
    return number


def cuda_aware(MPI):
    """Whether this MPI says that it takes addresses of device memory; what says nothing
    does not.

    Asked is `MPIX_Query_cuda_support` of the loaded library (Open MPI, MPICH), whose
    answer counts where it has one; else the kinds of memory of MPI 4.1: those of
    COMM_WORLD, or of the environment. MPI: the module mpi4py.MPI. In the simulator,
    whose arrays are the host's, False.
    """
    if device.SIMULATED:
        return False
    # Names are looked up in the libraries that mpi4py's own one needs, too.
    query = getattr(ctypes.CDLL(MPI.__file__), "MPIX_Query_cuda_support", None)
    if query is not None:
        return query() == 1
    for info in (MPI.COMM_WORLD.Get_info(), MPI.INFO_ENV):
        if (kinds := info.Get(KINDS)) is not None:
            return any(map(_is_device_memory, kinds.split(",")))
    return False


def _is_device_memory(kind):
    """Of a kind "name:restrictor:...": `cuda:host` would be memory of the host."""
    name, *restrictors = kind.strip().split(":")
    return name == "cuda" and (not restrictors or "device" in restrictors)


class StagedSum:
    """Sums of a device array over all ranks, through a pinned array of the host.

    size: of the array (size,). `staged` counts the bytes copied for it between device
    and host.
    """

    way = "pinned staging"

    def __init__(self, world, gpu, size, dtype):
        self._device, self._host, self.staged = gpu, device.pinned(size, dtype), 0
        self._sum = Sum(world, self._host)

    def run(self, array):
        """Sum now, in place."""
        host = self._device.fetch(
            array, self._host
        )  # waits for the kernels that were launched
        self._sum.run()
        self._device.send_into(array, 0, host)
        self.staged += 2 * host.nbytes


class DeviceSum:
    """Sums of a device array (n,) over all ranks, handed to MPI where it lies; as
    `world.Sum`.

    rows: a device array (ranks, n + 1), flat, for the slices that arrive: that of rank
    r lies in row r, at its place. add: launches a kernel that lets the first row be the
    sum of all of them, from the first on.
    """

    way, staged = "device arrays", 0

    def __init__(self, world, rows, add):
        self._world, self._rows, self._add = world, rows, add
        P, rank, n = world.size, world.rank, rows.size // world.size - 1
        ends = [n * r // P for r in range(P + 1)]
        low, high = ends[rank], ends[rank + 1]
        kind = world.MPI.Datatype.fromcode(rows.dtype.char)
        # Of the array, every rank's slice; of the rows, everyone's of this rank's
        # slice.
        self._slices = (np.diff(ends).tolist(), ends[:-1]), kind
        self._places = ([high - low] * P, [(n + 1) * r + low for r in range(P)]), kind
        self._total = rows[low:high], high - low, kind

    def run(self, array):
        """Sum now, in place."""
        comm = self._world.comm
        device.synchronize()  # MPI does not wait for kernels: without this it sends old numbers
        comm.Alltoallv([array, *self._slices], [self._rows, *self._places])
        self._add()
        device.synchronize()
        comm.Allgatherv([*self._total], [array, *self._slices])


class DeviceReplica(CudaFused):
    """A network on the devices of all ranks; `lstm_kernels.train` takes it as it takes
    a network.

    params: Params with a read-out, the same on every rank. staged: gradients go through
    the host, even where MPI takes device memory. `way` says how they go, "device
    arrays" or "pinned staging", `staged` how many bytes were copied between device and
    host for it; one rank alone hands nothing over.

    `step`, `epoch` and `loss_and_grads` are calls of all ranks, with the same
    arguments: a rank computes its share of the mini-batch, the losses and the gradients
    are those of the whole. A mini-batch may have fewer samples than there are ranks:
    some then have none, and add zeros. A run has the same bits each time, by either
    way, and all ranks have the same parameters. What `epoch` needs of the data set is
    copied to every device, once; `step` copies the whole mini-batch. `forward`,
    `backward` and `predict` are of this rank alone, as are copies of parameters.

    The kernel `update` does all that is done with gradients: it adds up rows, in their
    order, and lets an array descend by a rate. From zeros with the rate -b/B that is
    the share's mean gradient times its part of the mini-batch, b of B samples; over the
    rows of the ranks with a rate of zero, their sum; with the parameters and the
    learning rate, the step.

    Raises TypeError or ValueError for bad parameters, or if ranks disagree about them;
    and as `choose_device` does, which it calls.
    """

    # What a SharedCheckpoint asks of a model of several ranks: one stage, and all have
    # a replica.
    stage, micro_batches, order, loops = 0, 1, PIPELINES[0], 1
    version, loss, apart = CudaFused.name, "last", False

    def __init__(self, params, world=None, *, staged=False):
        self.world = world = world or World()
        self.replica, self.number = world.rank, choose_device(world)
        if isinstance(params, TokenParams):
            raise ValueError("params: got an embedding, want layers and a read-out")
        super().__init__(params)
        self._check_readout()
        world.agree("params", self._params.form)
        self.stages = [len(layer_names(params))]
        gpu, size, ranks = self._device, self._size(), world.size
        # Like theta, for a kernel that keeps the transposed weights up to date there as
        # well.
        self._gradients = gpu.array(
            "gradients", self._theta().size, self._dtype, zero=True
        )
        self._packed = self._gradients[:size]
        self._zeros = gpu.array("zeros", size, self._dtype, zero=True)
        self._no_loss = gpu.array("no loss", 1, self._dtype)
        self._update = self._adder()
        # Every rank takes the same way: that of the one that can do least.
        if all(world.comm.allgather(cuda_aware(world.MPI) and not staged)):
            rows = gpu.array("rows", ranks * (size + 1), self._dtype, zero=True)
            self._sum = DeviceSum(world, rows, lambda: self._add(ranks, rows, rows, 0))
        else:
            self._sum = StagedSum(world, gpu, size, self._dtype)
        self.way = self._sum.way

    def __reduce__(self):
        raise TypeError(
            "a DeviceReplica belongs to its rank and device, want its params() copied"
        )

    @property
    def staged(self):
        """Bytes that this rank has copied between device and host to sum gradients."""
        return self._sum.staged

    def gather(self):
        """A copy of all parameters, on every rank: each has them."""
        return self.params()

    def _adder(self):
        """The kernel `update` with its grid, for rows to be added up.

        A pass of a large network has another, which adds nothing up (`plans`). One
        thread goes through all rows of a number: they are added in the order of the
        ranks.
        """
        n, gpu, kind = Sizes.of(self._params, 0, 1), self._device, self._dtype
        how = plan(n, self._cell, kind, gpu.multiprocessors, gpu.most_shared)
        options = {
            "R": how.R,
            "RESIDENT": how.resident,
            "PRODUCT": False,
            "ATOMIC": False,
        }
        sizes = n._replace(B=0)
        kernels = build(self._cell.name, kind, MODULES, ("update",), sizes, **options)
        blocks = min(gpu.multiprocessors, -(-(self._size() + 1) // MOST_THREADS))
        grid = blocks, (MOST_THREADS, 1), MOST_THREADS * kind.itemsize
        return gpu.configure(kernels["update"], *grid)

    def _add(self, count, rows, theta, rate):
        """theta -= rate * the sum of `count` rows; with a rate of zero, the first row =
        the sum.
        """
        how = self._no_loss, 0, self._dtype.type(rate)
        self._update((0,) * PLACES, count, theta, rows, *how)

    def _steps(self, T, order, batch_size, losses, rate):
        """Launch this rank's share of each mini-batch of `order`, sum, and descend.

        losses: becomes the mean over each share; of no samples, undefined.
        """
        self._on_host &= rate == 0
        self._shares = []  # of each mini-batch: which part of it this rank has
        for batch, first in enumerate(range(0, order.size, batch_size)):
            B = min(batch_size, order.size - first)
            low, high = self.world.share(B)
            share = (high - low) / B
            self._shares.append(share)
            self._packed.copy_to_device(self._zeros)
            if high > low:
                self._of_share(T, high - low, order, first + low, losses, batch, share)
            if self.world.size > 1:
                self._sum.run(self._packed)
            if rate:
                self._add(1, self._gradients, self._theta(), rate)

    def _of_share(self, T, b, order, first, losses, batch, share):
        """The gradients of the b examples order[first:], times `share`, onto zeros."""
        run, (x, target), one = self._pass(T, b), self._examples, self._dtype.type(1)
        # Any rate but zero says that gradients of x are not wanted.
        run.launch(
            "step",
            run.plan.tile,
            first,
            order,
            x,
            target,
            self._theta(),
            run.work(),
            one,
        )
        numbers = self._gradients, run.work(), losses, batch, self._dtype.type(-share)
        run.launch("update", run.plan.blocks, *numbers)

    def _fetch(self, name, size):
        """As CudaFused, but losses become those of the whole mini-batches, on every
        rank.
        """
        found = super()._fetch(name, size)
        if name != "losses":
            return found
        shares = np.array(self._shares)
        own = np.where(shares > 0, found, 0) * shares
        return sum(self.world.comm.allgather(own))  # in the order of the ranks

    def _loss_and_grads(self, x, target):
        """As `Parallel`: the gradients are those of the parameters, without x and the
        states.
        """
        loss = self._step(x, target, 0.0)
        flat = self._fetch("gradients", self._size())
        return loss, StageParams(unpack(flat, self._params), self._cell.name)

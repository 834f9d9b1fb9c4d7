"""Two questions of the sources on a GPU, as kernels short enough to read: layers at the
same time, and the units of an RNN shared by the threads of a block or of the device.

One sample. Arrays lie as on page 04: slot t + 1 of h and c is step t, slot 0 the
initial state. A run reads an input that is on the device, and returns y on the host.
"""

import math
from functools import cache, partial
from itertools import count

import numpy as np
from numba import float32, int32, int64

from lstm_kernels.cores import cores
from lstm_kernels.gpu.build import OPTIONS
from lstm_kernels.gpu.device import SIMULATED, Device, Grid, cuda
from lstm_kernels.gpu.ptx import add_release, load_acquire
from lstm_kernels.params import Params
from lstm_kernels.ranks.rnn import outputs
from lstm_kernels.versions import network

from ..measure.comparer import TOLERANCE, compare
from ..measure.runner import rows_of, timed
from ..measure.timing import together
from ..measure.workloads import Workload

# Threads of a block: a warp; as many as have registers for `wavefront`.
WARP, MOST = (2, 4) if SIMULATED else (32, 512)
ONE = np.float32(1)


def part(function):
    """A function of kernels."""
    is_python = cuda is None or SIMULATED
    return function if is_python else cuda.jit(function, device=True, **OPTIONS)


@part
def sigmoid(a):
    return ONE / (ONE + math.exp(-a))


@part
def step(l, t, h, c, U, W, b):
    """Step t of layer l, of H inputs and H units, which the block's threads share.

    h (L + 1, T + 1, H), in which layer l writes to l + 1; c (L, T + 1, H); U, W (L, H,
    4, H); b (L, 4, H).
    """
    j = cuda.threadIdx.x
    while j < h.shape[2]:
        i, f, g, o = b[l, 0, j], b[l, 1, j], b[l, 2, j], b[l, 3, j]
        for k in range(h.shape[2]):
            below, before = h[l, t + 1, k], h[l + 1, t, k]
            i += below * U[l, k, 0, j] + before * W[l, k, 0, j]
            f += below * U[l, k, 1, j] + before * W[l, k, 1, j]
            g += below * U[l, k, 2, j] + before * W[l, k, 2, j]
            o += below * U[l, k, 3, j] + before * W[l, k, 3, j]
        new = sigmoid(f) * c[l, t, j] + sigmoid(i) * math.tanh(g)
        c[l, t + 1, j] = new
        h[l + 1, t + 1, j] = sigmoid(o) * math.tanh(new)
        j += cuda.blockDim.x


def layers_in_turn(l, h, c, U, W, b):
    """Kernel: one block computes layer l, after the launch for the layer below."""
    for t in range(h.shape[1] - 1):
        step(l, t, h, c, U, W, b)
        cuda.syncthreads()  # every unit of step t is written


def wavefront(earlier, h, c, U, W, b, done):
    """Kernel: block l computes layer l, each step once the layer below has done it.

    done (L,) counts the steps that each layer has done, `earlier` before this launch.
    """
    cuda.cg.this_grid()  # so that all blocks run at the same time
    l, is_first = cuda.blockIdx.x, cuda.threadIdx.x == 0
    for t in range(h.shape[1] - 1):
        if is_first and l > 0:
            while load_acquire(done, l - 1) <= earlier + t:
                pass
        cuda.syncthreads()  # step t of the layer below can be read by all threads
        step(l, t, h, c, U, W, b)
        cuda.syncthreads()  # every unit of step t is written
        if is_first:
            add_release(done, l)


@part
def unit(t, j, x, h, U, W, b):
    """tanh(b + U x_t + W h_{t-1}) of unit j: x (T, D), h (T + 1, H), U (D, H), W (H,
    H).
    """
    a = b[j]
    for k in range(x.shape[1]):
        a += x[t, k] * U[k, j]
    for k in range(h.shape[1]):
        a += h[t, k] * W[k, j]
    return math.tanh(a)


def rnn(x, h, U, W, b):
    """Kernel: the threads of one block share the units."""
    for t in range(x.shape[0]):
        j = cuda.threadIdx.x
        while j < h.shape[1]:
            h[t + 1, j] = unit(t, j, x, h, U, W, b)
            j += cuda.blockDim.x
        cuda.syncthreads()


def rnn_grid(x, h, U, W, b):
    """Kernel: the threads of all blocks share the units."""
    grid = cuda.cg.this_grid()
    for t in range(x.shape[0]):
        j = cuda.grid(1)
        while j < h.shape[1]:
            h[t + 1, j] = unit(t, j, x, h, U, W, b)
            j += cuda.gridsize(1)
        grid.sync()


def softmax(h, V, b_out, y):
    """Kernel: y (T, O) = softmax(b_out + V h_t), block t, thread o."""
    t, o = cuda.blockIdx.x, cuda.threadIdx.x
    a = b_out[o]
    for k in range(h.shape[1]):
        a += h[t + 1, k] * V[k, o]
    y[t, o] = a
    cuda.syncthreads()
    most, total = a, float32(0)
    for k in range(y.shape[1]):
        most = max(most, y[t, k])
    for k in range(y.shape[1]):
        total += math.exp(y[t, k] - most)
    cuda.syncthreads()  # every thread has read them
    y[t, o] = math.exp(a - most) / total


VECTOR, MATRIX = float32[::1], float32[:, ::1]
STACK = float32[:, :, ::1], float32[:, :, ::1], *[float32[:, :, :, ::1]] * 2
STACK = *STACK, float32[:, :, ::1]
SIGNATURES = {
    layers_in_turn: (int64, *STACK),
    wavefront: (int64, *STACK, int32[::1]),
    rnn: (*[MATRIX] * 4, VECTOR),
    rnn_grid: (*[MATRIX] * 4, VECTOR),
    softmax: (MATRIX, MATRIX, VECTOR, MATRIX),
}


@cache
def compiled(kernel):
    """The kernel for the device here."""
    if SIMULATED:
        return cuda.jit(kernel)
    return cuda.jit(SIGNATURES[kernel], **OPTIONS)(kernel)


def launch(device, kernel, blocks, threads, *arguments):
    """Run a kernel. Blocks that wait for each other have to fit on the device; the
    simulator runs one after another, and `wavefront`'s wait for earlier ones alone.
    """
    waits = kernel in (wavefront, rnn_grid) and not SIMULATED
    grid = Grid(blocks, min(threads, MOST), together=waits)
    device.launch(compiled(kernel), grid, *arguments)


def stack_runs(params, x):
    """Runs of an LSTM of L layers over x (T, 1, H), by kernel."""
    device, passes = Device("gpu_kernels"), count()
    L, (T, _, H) = params.num_layers, x.shape
    h = np.zeros((L + 1, T + 1, H), np.float32)
    h[0, 1:] = x[:, 0]
    arrays = {"h": h, "c": np.zeros_like(h[1:])}
    for name, shape in (("U", (H, 4, H)), ("W", (H, 4, H)), ("b", (4, H))):
        layers = [getattr(layer, name).reshape(shape) for layer in params.layers]
        arrays[name] = np.stack(layers)
    stack = [device.send(name, array) for name, array in arrays.items()]
    done, top = device.send("done", np.zeros(L, np.int32)), stack[0][L, 1:]

    def run(kernel):
        if kernel is wavefront:
            launch(device, kernel, L, H, next(passes) * T, *stack, done)
        else:
            for l in range(L):
                launch(device, kernel, 1, H, l, *stack)
        return device.copy_from(top, np.empty((T, H), np.float32))[:, None]

    return {k.__name__: partial(run, k) for k in (layers_in_turn, wavefront)}


def rnn_runs(params, x):
    """Runs of an RNN of one layer and its softmax over x (T, 1, D), by kernel."""
    device, (layer,), T = Device("gpu_kernels"), params.layers, len(x)
    H, O = params.V.shape
    arrays = {"x": x[:, 0], "h": np.zeros((T + 1, H), np.float32)}
    arrays |= {"U": layer.U, "W": layer.W, "b": layer.b}
    arrays |= {"V": params.V, "b_out": params.b_out, "y": np.zeros((T, O), np.float32)}
    sent = [device.send(name, array) for name, array in arrays.items()]
    blocks = 1 if SIMULATED else min(device.multiprocessors, -(-H // WARP))

    def run(kernel, blocks, threads):
        launch(device, kernel, blocks, threads, *sent[:5])
        launch(device, softmax, T, O, sent[1], *sent[5:])
        return device.copy_from(sent[-1], np.empty((T, O), np.float32))[:, None]

    return {
        "rnn": partial(run, rnn, 1, H),
        "rnn_grid": partial(run, rnn_grid, blocks, WARP),
    }


def cpu_run(name, params, x, last=lambda y: y):
    """The run of a version on all cores, by its name and threads."""
    net = network(name, params, threads=cores())
    return {f"{name}/{cores()} threads": lambda: last(net.forward(x)[0])}


def measured(work, runs, want, **options):
    """Rows of runs, whose results are compared with `want` before and after."""

    def check():
        right = {"y": want}, TOLERANCE[want.dtype]
        return {name: compare({"y": run()}, *right) for name, run in runs.items()}

    return rows_of(timed({"inference": runs}, check, **options), work)


def layers(depths=(1, 2, 4, 8, 16), T=100, H=128, **options):
    """Inference of LSTM stacks on the GPU and on all cores of the CPU: rows by L."""
    parts = []
    for L in depths:
        work = Workload(L=L, T=T, D=H, H=H, B=1)
        params, (x, _) = work.params(), work.example()
        runs = stack_runs(params, x)
        for name in ("numba-wavefront", "numba-fused"):
            runs |= cpu_run(name, params, x)
        want, _ = network("numpy", params).forward(x)
        parts.append(measured(work, runs, want, **options))
    return together(parts)


def units(sizes=(256, 512, 1024, 2048, 4096), T=32, D=32, O=32, **options):
    """Inference of RNNs with a softmax on the GPU and on all cores of the CPU: rows by
    H.
    """
    parts = []
    for H in sizes:
        work = Workload(L=1, T=T, D=D, H=H, B=1)
        params, (x, _) = Params.init(D, H, output_size=O, cell="rnn"), work.example()
        last = partial(outputs, params)
        runs = rnn_runs(params, x) | cpu_run("numba-fused", params, x, last)
        want = last(network("numpy", params).forward(x)[0])
        parts.append(measured(work, runs, want, **options))
    return together(parts)

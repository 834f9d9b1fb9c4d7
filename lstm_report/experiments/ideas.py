"""Page 03's study versions: what lies between two versions of the ladder, one idea at a
time, each a training step (or an epoch) of an LSTM layer with an output layer on one
thread.

The kernels are those of `numba-sample` and `numba-tile`, compiled with another product
or another cell; the last two are `numba-fused`, and the same with its sums stored.
"""

import math
from functools import cache, partial

import llvmlite.binding
import numpy as np
from numba import njit

from lstm_kernels import kernels
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import activations, registers, simd
from lstm_kernels.cpu.micro_kernels import MicroKernels, store_accumulators
from lstm_kernels.params import Params
from lstm_kernels.versions import numba_sample, numba_tile
from lstm_kernels.versions.numba_fused import NumbaFused
from lstm_kernels.versions.numba_sample import NumbaSample
from lstm_kernels.versions.numba_tile import add_rows, four

PANEL, SQUARE = 256, 16  # columns of a panel; rows and columns of a square
LSTM, FLOAT32 = CELLS["lstm"], np.dtype(np.float32)


@njit(**kernels.OPTIONS)
def add_row_by_row(out, v, M):
    """out (n,) += v (k,) @ M (k, n), a row at a time: a load and a store for each
    multiply-add.
    """
    for r in range(len(v)):
        v0, M0 = v[r], M[r]
        for j in range(len(out)):
            out[j] += v0 * M0[j]


@njit(**kernels.OPTIONS)
def add_columns(out, first, v, M):
    """out[:4, first : first + w] += v (4, k) @ M (k, w), k a multiple of four: as
    `numba-tile` adds whole rows.
    """
    last = first + M.shape[1]
    out_a, out_b = out[0][first:last], out[1][first:last]
    out_c, out_d = out[2][first:last], out[3][first:last]
    for k in range(0, len(M), 4):
        M0, M1, M2, M3 = four(M, k)
        a, b, c, d = four(v[0], k), four(v[1], k), four(v[2], k), four(v[3], k)
        for j in range(len(M0)):
            m0, m1, m2, m3 = M0[j], M1[j], M2[j], M3[j]
            out_a[j] += a[0] * m0 + a[1] * m1 + a[2] * m2 + a[3] * m3
            out_b[j] += b[0] * m0 + b[1] * m1 + b[2] * m2 + b[3] * m3
            out_c[j] += c[0] * m0 + c[1] * m1 + c[2] * m2 + c[3] * m3
            out_d[j] += d[0] * m0 + d[1] * m1 + d[2] * m2 + d[3] * m3


@njit(**kernels.OPTIONS)
def add_panels(out, v, panels):
    """out (m, n) += v (m, k) @ M (k, n), which is given in panels (p, k, n / p); with
    several of them m and k are multiples of four.
    """
    if len(panels) == 1:
        add_rows(out, v, panels[0])
    else:
        for p in range(len(panels)):
            for r in range(0, len(v), 4):
                add_columns(out[r:], p * panels.shape[2], v[r:], panels[p])


@njit(**kernels.OPTIONS)
def tanh_of_numbers(v):
    """The C library's, a number at a time."""
    return np.float32(math.tanh(v))


@njit(**kernels.OPTIONS)
def sigmoid_of_numbers(v):
    """The logistic function by it: 1 / (1 + exp(-v)) = (1 + tanh(v / 2)) / 2."""
    return np.float32(0.5 + 0.5 * math.tanh(0.5 * v))


@cache
def compiled(kernel, vector=True, parallel=False, **names):
    """A kernel of `numba-sample` or `numba-tile` for an LSTM in float32, with other
    functions under the names that it calls. vector: the cell by the package's own tanh,
    of which the compiler makes vector code; else by the library's, number by number.
    """
    found = [tanh_of_numbers, sigmoid_of_numbers]
    if vector:
        functions = activations.tanh, activations.sigmoid
        found = [simd.of_numbers(f, FLOAT32) for f in functions]
    cells = [njit(f, **kernels.OPTIONS, forceinline=True) for f in LSTM.make(*found)]
    names |= {"cell_forward": cells[0], "cell_backward": cells[1], "K": 4}
    names["NO_GATES"] = (FLOAT32.type(0),) * 4
    parts = ["load", "store", "forward_units", "backward_units"]
    functions = [kernel, *(getattr(numba_sample, name) for name in parts)]
    label = (
        f"ideas_{vector}_{'_'.join(f.__name__ for f in names.values() if callable(f))}"
    )
    space = kernels.fill(functions, names, label, kernels.part)
    made = space[kernel.__name__].py_func
    return kernels.cached(njit, made, parallel=parallel, **kernels.OPTIONS)


class Loops(NumbaSample):
    """The loops of `sequential`, compiled: a sample, a row of the weights, a unit at a
    time.
    """

    vector = False

    def layer_forward(self, *layer):
        return numba_sample.layer_forward(*layer, compiled=self._compiled)

    def layer_backward(self, *layer):
        return numba_sample.layer_backward(*layer, compiled=self._compiled)

    def _compiled(self, kernel, *_):
        product = {"add_product": add_row_by_row}
        return compiled(kernel, self.vector, parallel=True, **product)


class VectorCell(Loops):
    """The same with a tanh of which the compiler makes vector code."""

    vector = True


def panels(M, width=PANEL):
    """A copy of M (k, n) in panels of `width` columns, one where that divides no n."""
    k, n = M.shape
    width = n if n % width else width
    return M.reshape(k, n // width, width).swapaxes(0, 1).copy()


part = partial(kernels.part, _nrt=True)  # these allocate

# Which `stepper` fills in.
forward_pass = backward_pass = weight_product = None


@part
def transpose(M, M_T):
    """The transpose of a matrix in panels, into panels, in squares that stay in the
    first cache.
    """
    width, height = M.shape[2], M_T.shape[2]
    for q in range(len(M_T)):
        for p in range(len(M)):
            for i in range(0, height, SQUARE):
                for j in range(0, width, SQUARE):
                    block = M[p, q * height + i : q * height + min(i + SQUARE, height)]
                    square = block[:, j : j + SQUARE].T
                    row = p * width + j
                    M_T[q, row : row + len(square), i : i + len(block)] = square


@part
def descend(M, gradient, rate):
    """M -= rate times the gradient; M is in panels."""
    width = M.shape[2]
    for p in range(len(M)):
        M[p] -= rate * gradient[:, p * width : (p + 1) * width]


@part
def read_out(y, V, b_out, target, rate, slopes, dy):
    """The mean squared error of y V + b_out (B, 1), a descent step of V and b_out, and
    the gradient of y, to dy.
    """
    B, loss = len(y), rate * 0
    for s in range(B):
        error = b_out[0] - target[s, 0]
        for j in range(len(V)):
            error += y[s, j] * V[j, 0]
        loss += error * error / B
        slopes[s] = error * 2 / B
    for j in range(len(V)):
        total = rate * 0
        for s in range(B):
            dy[s, j] = slopes[s] * V[j, 0]
            total += slopes[s] * y[s, j]
        V[j, 0] -= rate * total
    b_out[0] -= rate * slopes.sum()
    return loss


def train_kept(x, target, rate, weights, kept):
    """A training step on one mini-batch, in one call; the loss before it."""
    U, W, b, V, b_out = weights
    U_T, W_T, h, c, gates, dh, dc, da, dx, dy, z, grad, slopes = kept
    T, D, rows = len(x), x.shape[2], x.shape[0] * x.shape[1]
    forward_pass(x, U, W, b, h, c, gates)
    loss = read_out(h[T], V, b_out, target, rate, slopes, dy[T - 1])
    if dx.shape[2]:
        transpose(U, U_T)
    transpose(W, W_T)
    dh[:], dc[:], grad[:] = 0, 0, 0
    backward_pass(dy, U_T, W_T, c, gates, dh, dc, da, dx)
    z[:, :, :D], z[:, :, D:-1], z[:, :, -1] = x, h[:T], 1
    weight_product(z.reshape(rows, -1), da.reshape(rows, -1), grad)
    descend(U, grad[:D], rate)
    descend(W, grad[D:-1], rate)
    b -= rate * grad[-1]
    return loss


@part
def memory(x, weights, inputs):
    """What `train_kept` keeps; inputs: how many of them get a gradient, all or none."""
    (T, B, D), W = x.shape, weights[1]
    H, width = W.shape[1], min(W.shape[1], W.shape[2])
    K, new = len(W) * W.shape[2], np.zeros((T, B, H), x.dtype)
    return (
        np.empty((1, K, inputs), x.dtype),
        np.empty((H // width, K, width), x.dtype),
        np.zeros((T + 1, B, H), x.dtype),
        np.zeros((T + 1, B, H), x.dtype),
        np.empty((T, B, K), x.dtype),
        np.empty((B, H), x.dtype),
        np.empty((B, H), x.dtype),
        np.empty((T, B, K), x.dtype),
        np.empty((T, B, inputs), x.dtype),
        new,
        np.empty((T, B, D + H + 1), x.dtype),
        np.empty((D + H + 1, K), x.dtype),
        np.empty(B, x.dtype),
    )


def train_anew(x, target, rate, weights, inputs):
    """The same on memory that the step asks for."""
    return train_kept(x, target, rate, weights, memory(x, weights, inputs))


def train_epoch(xs, targets, rate, weights, kept):
    """A step for each mini-batch of xs (N, T, B, D), in one call; the last loss."""
    loss = rate * 0
    for k in range(len(xs)):
        loss = train_kept(xs[k], targets[k], rate, weights, kept)
    return loss


@cache
def stepper(function):
    """One of the functions above, compiled with the kernels of `numba-tile`."""
    names = {
        "forward_pass": compiled(numba_tile.forward_tiles, add_rows=add_panels),
        "backward_pass": compiled(numba_tile.backward_tiles, add_rows=add_panels),
        "weight_product": compiled(numba_tile.product_tiles),
    }
    of = [train_kept, train_anew, train_epoch]
    made = kernels.fill(of, names, "ideas", part)[function.__name__]
    return kernels.cached(njit, made.py_func, **kernels.OPTIONS)


@njit(**kernels.OPTIONS)
def kept_by(x, weights, inputs):
    """`memory`, for a caller in Python."""
    return memory(x, weights, inputs)


class Steps:
    """Training steps of a layer by `train_kept`, with or without what each function
    above adds. params: of one LSTM layer with one output. width: of a panel, None for
    whole rows.

    A case runs a step for each mini-batch of xs (N, T, B, D) and targets (N, B, 1).
    """

    def __init__(self, params: Params, xs, targets, rate, width=None):
        (layer,) = params.layers
        self.xs, self.targets, self.rate = xs, targets, np.float32(rate)
        H = params.hidden_size
        U, W = (panels(M, width or 4 * H) for M in (layer.U, layer.W))
        copied = params.copy()
        self.weights = U, W, copied.layers[0].b, copied.V, copied.b_out

    def one_call_a_step(self, inputs=True):
        """With inputs their gradient too, which a descent step does not need."""
        step, width = stepper(train_anew), self.xs.shape[3] if inputs else 0
        for x, target in zip(self.xs, self.targets, strict=True):
            step(x, target, self.rate, self.weights, width)

    def kept(self):
        """What `memory` holds, once for all steps."""
        return kept_by(self.xs[0], self.weights, 0)

    def one_call_with(self, kept):
        step = stepper(train_kept)
        for x, target in zip(self.xs, self.targets, strict=True):
            step(x, target, self.rate, self.weights, kept)

    def epoch(self, kept):
        stepper(train_epoch)(self.xs, self.targets, self.rate, self.weights, kept)

    def arrays(self):
        """The parameters now, by the names of Params.arrays()."""
        U, W, b, V, b_out = self.weights
        U, W = (np.concatenate(list(M), axis=1) for M in (U, W))
        return dict(zip(NAMES, (U, W, b, V, b_out), strict=True))


NAMES = "layers.0.U", "layers.0.W", "layers.0.b", "V", "b_out"


class StoredKernels(MicroKernels):
    """Micro-kernels that store the sums of a unit block; then the cell reads them
    again.
    """

    def __post_init__(self):
        super().__post_init__()
        self.name += "_stored"

    def cell_forward(self, m, sums, cells, keep, a, *states):
        store_accumulators(m, sums, a)
        sums = [
            [m.variable(a.vector(i, n)) for n in range(len(row))]
            for i, row in enumerate(sums)
        ]
        super().cell_forward(m, sums, cells, keep, a, *states)


class NarrowKernels(MicroKernels):
    """Micro-kernels in vectors as wide as those that Numba's compiler chooses."""

    @staticmethod
    def of_registers():
        return registers.vector_registers()._replace(bytes=compiler_bytes())


class NarrowStoredKernels(NarrowKernels, StoredKernels):
    pass


class NarrowFused(NumbaFused):
    """`numba-fused` in these vectors."""

    micro_kernels = NarrowKernels


class HalfKernels(MicroKernels):
    """Micro-kernels in vectors of 256 bits."""

    @staticmethod
    def of_registers():
        return registers.vector_registers()._replace(bytes=32)


class HalfFused(NumbaFused):
    """`numba-fused` in vectors of 256 bits."""

    micro_kernels = HalfKernels


class StoredFused(NumbaFused):
    """`NarrowFused`, but its sums leave the registers before the cell."""

    micro_kernels = NarrowStoredKernels


def choosing(bits):
    """The environment of a process whose compiler chooses vectors of 256 bits, or of
    512, for loops that would allow both.
    """
    sign = "+" if bits == 256 else "-"
    features = llvmlite.binding.get_host_cpu_features().flatten()
    return {
        "NUMBA_CPU_NAME": llvmlite.binding.get_host_cpu_name(),
        "NUMBA_CPU_FEATURES": f"{features},{sign}prefer-256-bit",
    }


@cache
def compiler_bytes():
    """Bytes of the vectors in which Numba's compiler adds up a product: on Intel's
    servers half of AVX-512's.
    """

    @njit(**kernels.OPTIONS)
    def add(out, v, M):
        for j in range(len(out)):
            out[j] += v[0] * M[0, j] + v[1] * M[1, j]

    add.compile("(f4[::1], f4[::1], f4[:, ::1])")
    (code,) = add.inspect_asm().values()
    widest = registers.vector_registers().bytes
    return 32 if widest == 64 and "%zmm" not in code else widest

"""An LSTM's inference with the optimisations of Optim-LSTM as switches of one code, and
one more that its GPU did not need.

    combine     `_weights`: a product with four gates side by side, or four
    concurrent  `_jobs`: the products of a cell at the same time, or one after another
    pointwise   `forward`: the cell in one pass over memory, or a pass an operation
    layout      `_weights`: transposed beforehand, or as PyTorch stores them
    wavefront   `forward`: the schedule
    kernel      `_product`: the package's register tile, or BLAS

With none of them on, a cell is eight products of BLAS, each divided among BLAS's own
threads, and a pass over memory for each point-wise operation, a layer after the other.
Two pairs are excluded. With `wavefront` every core has a cell of its own, so that
`concurrent` would find none free. The `kernel` reads its weights in panels, which is a
layout.
"""

import threading
import timeit
from contextlib import nullcontext
from functools import cache, partial
from itertools import chain, combinations, pairwise

import numpy as np

from lstm_kernels.blas import at_once, single_threaded
from lstm_kernels.cells import CELLS
from lstm_kernels.cores import cores
from lstm_kernels.cpu import activations, micro_kernels, registers
from lstm_kernels.cpu.micro_kernels import MicroKernels, Panel, multiply_add, passes
from lstm_kernels.cpu.packing import aligned
from lstm_kernels.errors import check_array, check_choice, check_int
from lstm_kernels.params import Params
from lstm_kernels.reference import blocks
from lstm_kernels.schedules import Graph, layer_by_layer, waits_for, wavefront

from .vectors import for_python

SWITCHES = "combine", "concurrent", "pointwise", "layout", "wavefront", "kernel"


def excluded(on):
    """Why a combination of switches makes no sense; "" where it does."""
    if {"concurrent", "wavefront"} <= set(on):
        return "with wavefront no core is free for concurrent"
    return "kernel needs its layout" if "kernel" in on and "layout" not in on else ""


COMBINATIONS = [
    on
    for count in range(len(SWITCHES) + 1)
    for on in combinations(SWITCHES, count)
    if not excluded(on)
]
BASELINE = ()
EVERY = tuple(name for name in SWITCHES if name != "concurrent")
# Steps in a task: long enough for Python's threads, short for the pipeline to fill.
CHUNK = 2
K = 4  # gates


class Variant:
    """LSTM inference with some of the switches on.

    params: lstm_kernels.Params of an LSTM, float32 or float64, copied. on: names of
    SWITCHES. threads: how many to use; None is `cores.cores()`. An object serves one
    Python thread at a time. Raises TypeError or ValueError for bad params, another
    cell, an unknown or repeated switch, a combination that is excluded.
    """

    def __init__(self, params, on=(), *, threads=None):
        params = Params.check(params)
        if params.cell != "lstm":
            raise ValueError(f"params: got cell {params.cell!r}, want 'lstm'")
        if isinstance(on, str) or len(set(on)) < len(on):
            raise ValueError(f"on: got {on!r}, want names of switches, each once")
        on = {check_choice("on", name, SWITCHES) for name in on}
        if why := excluded(on):
            raise ValueError(f"on: {why}")
        self.on = tuple(name for name in SWITCHES if name in on)
        for name in SWITCHES:
            setattr(self, name, name in on)
        self.threads = cores() if threads is None else check_int("threads", threads)
        self._sizes = params.num_layers, params.input_size, params.hidden_size
        self._layout = MicroKernels(CELLS["lstm"], params.dtype, params.hidden_size)
        self._layers = list(map(self._weights, params.layers))
        self._memory = {}

    def __repr__(self):
        return f"Variant: {' + '.join(self.on) or 'baseline'}"

    def _weights(self, layer):
        """A layer's matrices by operand, x and h: one for each of its products; and the
        bias (K, P). The units are padded with zeros to P, whole tiles.
        """
        P = self._layout.padded

        def gates(a):  # (rows, K * H) to K of (rows, P), or with combine one (rows, KP)
            pad = (0, 0), (0, P - a.shape[1] // K)
            wide = [np.pad(gate, pad) for gate in blocks(a, K)]
            return [np.concatenate(wide, axis=1)] if self.combine else wide

        matrices = [[*map(self._laid_out, gates(M))] for M in (layer.U, layer.W)]
        return matrices, np.concatenate(gates(layer.b[None]), axis=1).reshape(K, P)

    def _laid_out(self, matrix):
        """A matrix (rows, N) in the order in which it will lie."""
        if not self.layout:
            return np.ascontiguousarray(matrix.T).T  # a unit's weights are neighbours
        if not self.kernel:
            return np.ascontiguousarray(matrix)
        wide = self._layout.wide  # (N / wide, rows, wide): a tile reads one stream
        shape = matrix.shape[1] // wide, len(matrix), wide
        panels = aligned(shape, matrix.dtype)
        panels[...] = matrix.reshape(len(matrix), -1, wide).swapaxes(0, 1)
        return panels

    def forward(self, x):
        """Outputs from a zero state: x (T, B, D) to y (T, B, H), a view of memory that
        the next call writes over. Raises TypeError or ValueError for bad x.
        """
        L, D, H = self._sizes
        x = check_array("x", x, ("T", "B", D), dtype=self._layout.dtype)
        T, B, _ = x.shape
        h, c, free = self._memory_for(T, B)
        c[:] = 0
        plan, threads = self._plan(T)

        def perform(task):
            sums, l = free.pop(), task.layer
            for t in range(task.start, task.stop):
                operands = h[l - 1, t + 1, :, :H] if l else x[t], h[l, t, :, :H]
                matrices, b = self._layers[l]
                for jobs in self._jobs(operands, matrices, sums, threads):
                    at_once(jobs, threads)
                cell = self._in_one_pass if self.pointwise else self._pass_by_pass
                cell(sums, b, c[l], h[l, t + 1])
            free.append(sums)

        # BLAS divides products that are done one after the other; of several each has a
        # thread.
        several = threads == 1 or self.concurrent
        with single_threaded() if several else nullcontext():
            run(plan, perform)
        return h[L - 1, 1:, :, :H]

    def _plan(self, T):
        """The schedule of T steps, and the threads of a cell."""
        graph = Graph(self._sizes[0], T)
        plan = layer_by_layer(graph)
        if self.wavefront:  # as many layers as threads: each keeps its layer's weights
            plan = wavefront(graph, self.threads, min(CHUNK, T), together=self.threads)
        return plan, max(1, self.threads // plan.employed)

    def _memory_for(self, T, B):
        """h of each layer, from step -1 on; c; for each thread the sums of a cell, by
        operand.
        """
        if self._memory.get("shape") != (T, B):
            L, P = self._sizes[0], self._layout.padded
            new = partial(aligned, dtype=self._layout.dtype)
            sums = (2, B, K, P) if self.combine else (2, K, B, P)
            free = [new(sums) for _ in range(self.threads)]
            arrays = new((L, T + 1, B, P)), new((L, B, P)), free
            self._memory = {"shape": (T, B), "arrays": arrays}
        return self._memory["arrays"]

    def _jobs(self, operands, matrices, sums, threads):
        """The products of a cell, lists of jobs: those of a list run at the same
        time.
        """
        lists = []
        for a, of_gates, out in zip(operands, matrices, sums, strict=True):
            outs = [out.reshape(len(a), -1)] if self.combine else out
            lists += map(partial(self._product, a, threads), of_gates, outs)
        return [[*chain(*lists)]] if self.concurrent else lists

    def _product(self, a, threads, matrix, out):
        """The jobs of out = a matrix, one for each thread that takes part; BLAS's own
        threads are not seen here.
        """
        if not self.kernel:
            return [partial(np.matmul, a, matrix, out)]
        parts, wide = 1 if self.concurrent else threads, self._layout.wide
        cuts = [len(matrix) * k // parts for k in range(parts + 1)]
        return [
            partial(self._by_tile, a, matrix[i:j], out[:, i * wide : j * wide])
            for i, j in pairwise(cuts)
        ]

    def _by_tile(self, a, panels, out):
        """out = a M, M in panels."""
        self._code("multiply")(a, panels, out)

    def _code(self, name):
        return code(self._layout.normalised("backward"), name)

    def _gates(self, sums):
        """Sums as (2, K, B, P), whatever the order they lie in."""
        return sums.swapaxes(1, 2) if self.combine else sums

    def _pass_by_pass(self, sums, b, c, h):
        """The cell, operation by operation, each a pass over memory."""
        functions = (partial(self._apply, name) for name in ("tanh", "sigmoid"))
        forward, _ = CELLS["lstm"].make(*functions)
        of_x, of_h = self._gates(sums)
        *_, h[...], c[...] = forward(*(of_x[k] + of_h[k] + b[k] for k in range(K)), c)

    def _apply(self, name, a):
        """tanh or sigmoid in a pass of its own; `pointwise` has the same."""
        a, out = np.ascontiguousarray(a), np.empty(a.shape, a.dtype)
        self._code(name)(a.reshape(1, -1), out.reshape(1, -1))
        return out

    def _in_one_pass(self, sums, b, c, h):
        """The cell in one pass: sums are read once, nothing between is stored."""
        of_x, of_h = self._gates(sums)
        self._code("cell")(of_x, of_h, b, c, h)

    def runs(self, x):
        """What a pass over x consists of, to be compared: its tasks with their workers,
        the jobs of a cell of layer 0 with shapes and strides, what follows them.
        """
        (plan, threads), (T, B, _) = self._plan(len(x)), x.shape
        h, _, free = self._memory_for(T, B)
        operands = x[0], h[0, 0, :, : self._sizes[2]]
        lists = self._jobs(operands, self._layers[0][0], free[0], threads)

        jobs = tuple(
            (job.func.__name__, *((a.shape, a.strides) for a in job.args))
            for job in chain(*lists)
        )
        return plan.tasks, jobs, tuple(map(len, lists)), free[0].shape, self.pointwise


def run(schedule, perform):
    """Run perform(task) for the tasks of a schedule, chunks of whole steps, on as many
    threads as it has workers with a task: each thread takes the first that nobody has
    begun, once what it waits for is done, and the task of the same worker before it.
    """
    done, last, before = [threading.Event() for _ in schedule.tasks], {}, []
    pairs = zip(schedule.tasks, waits_for(schedule), strict=True)
    for index, (task, needed) in enumerate(pairs):
        before.append((*needed, *last.get(task.worker, ())))
        last[task.worker] = (index,)
    failed = []

    def begin(index):
        try:
            for other in before[index]:
                done[other].wait()
            if not failed:
                perform(schedule.tasks[index])
        except BaseException:
            failed.append(index)  # nobody shall wait for what never comes
            raise
        finally:
            done[index].set()

    at_once([partial(begin, index) for index in range(len(done))], schedule.employed)


def micro_kernel(layout, name):
    """The vector code of a Variant, as of `cpu/micro_kernels.py`."""
    vectors = layout.wide_vectors

    def multiply(
        m,
        a: passes("columns", "stride"),
        panels: passes("blocks", "block"),
        out: passes("rows", "stride"),
    ):
        """out = a M for wide blocks of M in panels."""
        zero, line = m.constant(0.0), vectors * out.vector_bytes
        for j in m.each(panels.blocks):
            M = Panel.of(panels.moved(j * panels.block), stride=line)
            out_j = out.moved(j * line)
            for first, height in m.groups(out.rows, registers.tile_rows(vectors)):
                one_row = range(vectors)
                sums = [[m.variable(zero) for _ in one_row] for _ in range(height)]
                multiply_add(m, sums, a[first], a.columns, M)
                micro_kernels.store_accumulators(m, sums, out_j[first])

    def cell(
        m,
        of_x: passes("block", "stride"),
        of_h: passes("block", "stride"),
        b: passes("stride"),
        c: passes("stride"),
        h: passes("rows", "columns", "stride"),
    ):
        """h and c from the sums of both operands of each gate, and the bias; c over
        c.
        """
        forward, _ = layout.cell.make(*activations.functions(m))
        for i in m.each(h.rows):
            for k in m.each(h.columns, layout.lanes):
                at = k * h.size
                x_i, h_i, c_i = (z[i].moved(at) for z in (of_x, of_h, c))
                bars = []
                for gate in range(K):
                    bar = b[gate].moved(at).vector(0, 0)
                    bar = bar + x_i.moved(x_i.block * gate).vector(0, 0)
                    bars.append(bar + h_i.moved(h_i.block * gate).vector(0, 0))
                *_, h_new, c_new = forward(*bars, c_i.vector(0, 0))
                h[i].moved(at).store(0, 0, h_new)
                c_i.store(0, 0, c_new)

    def passed(m, a: passes("stride"), out: passes("columns", "stride")):
        """A function of each vector of an array."""
        for k in m.each(out.columns, layout.lanes):
            at = k * out.size
            value = getattr(activations, name)(m, a.moved(at).vector(0, 0))
            out.moved(at).store(0, 0, value)

    function = {"multiply": multiply, "cell": cell}.get(name, passed)
    function.__name__ = name
    return function


@cache
def code(layout, name):
    """A micro-kernel as a function of arrays that Python can call without its lock."""
    kernel, label = micro_kernel(layout, name), f"switch_{layout.name}"
    return for_python(kernel, layout.dtype, layout.lanes, label)


def busy(threads, rows):
    """A job for each thread: the tile's loop over one panel and one row, `rows` times,
    in its core's first cache; and the multiply-adds of a job.
    """
    count = 64
    layout = MicroKernels(CELLS["lstm"], np.dtype(np.float32), count).normalised(
        "backward"
    )
    wide, new = layout.wide, partial(aligned, dtype=np.float32)
    multiply = code(layout, "multiply")

    def job(a, panels, out):
        a, out = (np.broadcast_to(z, (rows, z.shape[1])) for z in (a, out))
        return lambda _=None: multiply(a, panels, out)

    jobs = [
        job(new((1, count)), new((1, count, wide)), new((1, wide)))
        for _ in range(threads)
    ]
    return jobs, rows * count * wide


def median_seconds(call, rounds):
    return float(np.median(timeit.repeat(call, number=1, repeat=rounds)))


def peak(threads, rounds=20):
    """GFLOP/s of the tile's loop on so many threads at once, by the median round."""
    jobs, count = busy(threads, 60_000)
    return (
        threads * 2e-9 * count / median_seconds(lambda: at_once(jobs, threads), rounds)
    )


def waking(threads, rounds=100):
    """Seconds that a job of a tenth of a millisecond takes longer where as many threads
    get one each: to wake them, and to wait for all.
    """
    jobs, _ = busy(threads, 1500)
    alone = median_seconds(jobs[0], rounds)
    return median_seconds(lambda: at_once(jobs, threads), rounds) - alone

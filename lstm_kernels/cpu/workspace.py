"""The arrays that a network keeps for mini-batches of one shape, and its passes."""

from functools import partial
from typing import NamedTuple

import numpy as np

from ..blas import single_threaded
from ..interrupts import interruptible
from ..params import Grads, Layer
from . import plan, stages
from .entries import Arguments
from .micro_kernels import codes
from .net import Kernels, Net
from .packing import aligned
from .thread_pool import LINE

# Rows (t, sample) of a layer's input that are multiplied at once where a step has fewer
# samples: enough for the weights to be loaded rarely, few enough for the result to stay
# in L2.
INPUT_ROWS = 64
LONG = 2e9  # operations: from there on, another thread costs less than a hundredth


class Shape(NamedTuple):
    """Layers, steps, samples, unit blocks, wide unit blocks."""

    L: int
    T: int
    B: int
    J: int
    J_wide: int


class Workspace:
    """The arrays of a network for mini-batches (T, B) and its passes over them.

    purpose: "inference"; or all steps are kept, for "gradients", which go to the
    caller, or for "descent", whose gradients go into the parameters. There is memory
    for every partition of a pass.
    """

    def __init__(self, layout, weights, T, B, purpose, threads, fp_mode):
        self._layout, self._weights, self.fp_mode = layout, weights, fp_mode
        self.purpose, self.threads, self.key = purpose, threads, (T, B, purpose)
        L, P = len(weights.inputs), layout.padded
        self.shape = Shape(L, T, B, layout.blocks, P // layout.wide)
        self.net = self._allocate()
        self.arguments = Arguments(self.net)
        arrays = [a for a in self.net if isinstance(a, np.ndarray)]
        self.bytes = sum(a.nbytes for a in arrays if a is not weights.theta)
        self._starts = bool(self.net.starts)
        self._has_state = False
        H = layout.hidden
        self._y = self.net.h[-1].reshape(T + 1, B, P)[1:, :, :H]
        self._h_last = self.net.h[:, T * B :, :H]
        self._c_last = self.net.c[:, T * B :, :H]
        # Of a forward pass, about; a task takes as long as some thousand of them.
        K = len(layout.cell.gates)
        products = [2 * (D + H) * K * H + 100 * H for D in weights.inputs]
        self._operations = T * (B * sum(products) + 2000 * L * layout.blocks)
        self._passes, self.tuners, self.last = {}, {}, {}  # by kind

    def _allocate(self):
        """The Net, with the arrays that passes of this purpose need."""
        layout, weights, (L, T, B, J, _) = self._layout, self._weights, self.shape
        D, H, P, dtype = weights.inputs[0], layout.hidden, layout.padded, layout.dtype
        O = 0 if weights.V is None else len(weights.b_out)
        gradients, descends = (self.purpose == p for p in ("gradients", "descent"))
        training = gradients or descends
        input_steps = max(1, min(T, INPUT_ROWS // B))

        def zeros(*shape, needed=True):
            return aligned(shape if needed else (0,) * len(shape), dtype)

        h, of_weights = zeros(L, (T + 1) * B, P), weights.theta.shape
        has_c = len(layout.cell.state) == 2
        kept = T if training else input_steps
        a = zeros(L, P // layout.units, kept * B, layout.row)
        V, b_out = zeros(H, O), zeros(O)
        if O:
            V, b_out = weights.V, weights.b_out
        return Net(
            T=T,
            B=B,
            H=H,
            J=J,
            units=layout.units,
            wide=layout.wide,
            lanes=layout.lanes,
            input_steps=input_steps,
            back_steps=max(1, min(T, stages.ROWS // B)),
            keeps_gates=int(training),
            has_c=int(has_c),
            # Without an initial state the first step has no product with W: of zeros,
            # it changes at most the sign of a zero, which an LSTM's and a GRU's h never
            # shows.
            starts=int(layout.cell.name not in ("lstm", "gru")),
            descends=int(descends),
            input_gradient=0,
            state_gradient=1,
            has_loss=int(descends),
            kernels=Kernels(**self._codes(input_steps)),
            control=aligned((2 * LINE,), np.int64),
            x=np.zeros((T * B, D), dtype),  # of an epoch; else the caller's
            theta=weights.theta,
            panels=weights.panels,
            offsets=weights.offsets,
            h=h,
            c=zeros(*h.shape) if has_c else h,
            a=a,
            fed=layout.fed(),
            da=a if descends else zeros(*a.shape, needed=gradients),
            dy=zeros(L, T * B, P, needed=training),
            dh=zeros(L, B, P, needed=training),
            dc=zeros(L, B, P, needed=training),
            dh0=zeros(L, B, P, needed=gradients),
            dx=zeros(T * B, layout.pad(D), needed=gradients),
            zeros=zeros(1, layout.wide),
            ones=np.ones((stages.GRAIN, 1), dtype),
            gradient=weights.theta
            if descends
            else zeros(*of_weights, needed=gradients),
            plain=np.empty(weights.plain_size * gradients, dtype),
            plain_first=weights.plain_first,
            target=zeros(B, O),
            V=V,
            b_out=b_out,
            gV=V,
            gb_out=b_out,
            error=zeros(B, O),
            scale=np.ones(1, dtype),
            losses=zeros(1),
            source=zeros(0, 0, 0),
            labels=zeros(0, 0),
            order=np.zeros(0, np.int64),
        )

    def _codes(self, input_steps):
        """The addresses of the micro-kernels that passes need."""
        training = self.purpose != "inference"
        names = ["forward"] + ["inputs"] * (input_steps > 1)
        if training:
            names += ["backward", "gradient_U", "gradient_W", "gradient_b", "transpose"]
            names += ["times_transpose_U"] * (self.shape.L > 1)
        if self.purpose == "gradients":
            few = self._weights.inputs[0] <= stages.FEW
            names += ["small_input_gradient" if few else "times_transpose_U"]
            names += ["times_transpose_W"]
        return codes(self._layout, *names, keep=training)

    def compiled(self, kind, partition, schedule):
        """The plan.Pass of a kind as a partition divides it. kind: "forward",
        "backward" or "train". schedule: a function of a Graph.
        """
        if (kind, partition) not in self._passes:
            more = (
                () if kind == "forward" else (self.threads, self.purpose == "descent")
            )
            stages_of = getattr(plan, kind)
            compiled = plan.Pass(
                stages_of(self.shape, schedule, *more),
                self.arguments,
                self.fp_mode,
                timed=partition.by == "layers",
            )
            compiled.partition = partition
            self._passes[kind, partition] = compiled
        self.last[kind] = self._passes[kind, partition]
        return self.last[kind]

    def run(self, compiled, passes, pool):
        """Run a plan.Pass, so many times, on threads of a pool; a signal ends a long
        run between two steps.
        """
        call = partial(compiled.run, passes, self, pool)
        if self._operations * passes * len(compiled.stages) < LONG:
            call()
        else:
            interruptible(call, self.net.control, pool.drain)

    def timeline(self, kernel):
        """When each part of the stage of a kernel last ran, a Timeline; None if that
        was not by layers.
        """
        lines = [(p.began, p.timeline(kernel)) for p in self.last.values()]
        lines = [(began, line) for began, line in lines if line]
        return max(lines, default=(0, None), key=lambda pair: pair[0])[1]

    def begin(self, x, state=None):
        """Point to the input (T, B, D), which the caller keeps, and take over the
        initial state, (h, c) or (h,) or None.
        """
        self.arguments.point("x", x)
        if state is None and not self._has_state:
            return
        H, B = self._layout.hidden, self.shape.B
        self._has_state = True  # also where an interrupt comes before it is whole
        h, *c = (0, 0) if state is None else state
        self.net.h[:, :B, :H] = h
        if self.net.has_c:
            self.net.c[:, :B, :H] = c[0]
        self._has_state = state is not None
        self.arguments.set("starts", self._starts or self._has_state)

    def outputs(self):
        """y (T, B, H) and the final state, copies."""
        h = self._h_last.copy()
        state = (h, self._c_last.copy()) if self.net.has_c else (h,)
        return self._y.copy(), state

    def begin_backward(self, dy=None, dstate=None):
        """Take over the gradients of y, where None has the pass compute them from its
        loss, and of the final state; all others begin as zero. Returns the arrays that
        gradients of the parameters go to.
        """
        net, H, (_, T, B, *_) = self.net, self._layout.hidden, self.shape
        top = net.dy[-1].reshape(T, B, -1)
        if dy is None:
            top[:-1] = 0
        else:
            top[..., :H] = dy
        for k, array in enumerate((net.dh, net.dc)):
            array.fill(0)
            if dstate is not None and k < len(dstate):
                array[..., :H] = dstate[k]
        if dy is not None and dstate is not None:
            with single_threaded():  # whose arithmetic loses nothing
                top[-1] += net.dh[-1]
        flat, gradients = self._weights.plain()
        if self._weights.V is not None:
            gradients += [np.zeros_like(net.V), np.zeros_like(net.b_out)]
            self.arguments.set("gV", gradients[-2])
            self.arguments.set("gb_out", gradients[-1])
        self.arguments.point("plain", flat)
        self.arguments.set("has_loss", int(dy is None))
        return gradients

    def collect(self, gradients, inputs=True):
        """The gradients as Grads, the caller's own. gradients: what `begin_backward`
        returned. inputs: whether with that of x.
        """
        L, state = self.shape.L, self.state_gradient()
        layers = [Layer(*gradients[3 * l : 3 * l + 3]) for l in range(L)]
        V, b_out = gradients[3 * L :] or (None, None)
        x = self.input_gradient() if inputs else None
        return Grads(layers, V, b_out, self._layout.cell.name, x=x, state=state)

    def input_gradient(self):
        """That of x (T, B, D), a copy."""
        dx = self.net.dx.reshape(self.shape.T, self.shape.B, -1)
        return dx[..., : self._weights.inputs[0]].copy()

    def state_gradient(self):
        """That of the initial state, copies."""
        net, H = self.net, self._layout.hidden
        dh0 = net.dh0[..., :H].copy()
        return (dh0, net.dc[..., :H].copy()) if net.has_c else (dh0,)

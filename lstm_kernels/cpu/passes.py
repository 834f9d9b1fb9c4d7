"""The arrays that a network keeps for mini-batches of one shape, and its passes."""

from typing import NamedTuple

import numpy as np

from ..blas import single_threaded
from ..params import Grads, Layer
from . import plan, stages
from .entries import Arguments
from .interrupts import run_region
from .instructions import FLUSH, KEEP
from .micro_kernels import codes
from .net import Kernels, Net
from .packing import aligned
from .scheduler import CANCEL, WORDS
from .team import team

# Rows (t, sample) of a layer's input that are multiplied at once where a step has fewer
# samples: enough for the weights to be loaded rarely, few enough for the result to stay
# in L2.
INPUT_ROWS = 64


class Shape(NamedTuple):
    """Layers, steps, samples, unit blocks, wide unit blocks."""

    L: int
    T: int
    B: int
    J: int
    J_wide: int


class Workspace:
    """The arrays of a network for mini-batches (T, B), its plans, and what is known of
    their speed.

    purpose: "inference"; or all steps are kept, for "gradients", which go to the
    caller, or for "descent", whose gradients go into the parameters. There is memory
    for every partition of a pass.
    """

    def __init__(self, layout, weights, T, B, purpose, threads, subnormals):
        L, D, H, P = len(weights.inputs), weights.inputs[0], layout.hidden, layout.padded
        self._layout, self._weights, self.threads = layout, weights, threads
        self.purpose, self._fp_env = purpose, KEEP if subnormals else FLUSH
        training, self.descends = purpose != "inference", purpose == "descent"
        self.training, dtype = training, layout.dtype
        self.shape = Shape(L, T, B, layout.blocks, P // layout.wide)
        self.has_c = len(layout.cell.state) == 2
        # Without an initial state the first step has no product with W: of zeros, it
        # changes at most the sign of a zero, which an LSTM's and a GRU's h never shows.
        self._starts = layout.cell.name not in ("lstm", "gru")
        self.has_state, self.in_use = False, False

        def zeros(*shape, wanted=True):
            """Zeros, or an empty array where a pass does not want them."""
            return aligned(shape if wanted else (0,) * len(shape), dtype)

        input_steps = max(1, min(T, INPUT_ROWS // B))
        gradients = purpose == "gradients"
        h = zeros(L, (T + 1) * B, P)
        gate_rows = (T if training else input_steps) * B
        a = zeros(L, P // layout.units, gate_rows, layout.row)
        O, fed = 0 if weights.V is None else len(weights.b_out), layout.fed()
        V, b_out = zeros(H, 0), zeros(0)
        if weights.V is not None:
            V, b_out = weights.V, weights.b_out
        sizes = [[D_l * n * H for D_l, n in zip((D_, H, 1), fed[1], strict=True)]
                 for D_ in weights.inputs]
        self.plain_size = int(np.sum(sizes))
        self._plain_shapes = [
            ((D_l, n * H) if D_l > 1 or k < 2 else (n * H,))
            for D_ in weights.inputs
            for k, (D_l, n) in enumerate(zip((D_, H, 1), fed[1], strict=True))
        ]
        first = np.cumsum([0, *np.ravel(sizes)[:-1]]).reshape(L, 3)
        theta = weights.theta
        self.net = Net(
            T=T,
            B=B,
            H=H,
            J=layout.blocks,
            units=layout.units,
            wide=layout.wide,
            lanes=layout.lanes,
            input_steps=input_steps,
            back_steps=max(1, min(T, stages.ROWS // B)),
            keeps_gates=int(training),
            has_c=int(self.has_c),
            starts=int(self._starts),
            descends=int(self.descends),
            input_gradient=0,
            learns=0,
            kernels=Kernels(**self._codes(input_steps)),
            control=np.zeros(2 * WORDS, np.int64),
            x=zeros(T * B, D),
            theta=theta,
            panels=weights.panels,
            h=h,
            c=zeros(L, (T + 1) * B, P) if self.has_c else h,
            a=a,
            fed=fed[0],
            fed_count=fed[1],
            da=a if self.descends else zeros(*a.shape, wanted=gradients),
            dy=zeros(L, T * B, P, wanted=training),
            dh=zeros(L, B, P, wanted=training),
            dc=zeros(L, B, P, wanted=training),
            dh0=zeros(L, B, P, wanted=gradients),
            dx=zeros(T * B, layout.pad(D), wanted=gradients),
            zeros=zeros(1, max(P, layout.wide)),
            ones=np.ones((stages.GRAIN, 1), dtype),
            gradient=theta if self.descends else zeros(*theta.shape, wanted=gradients),
            plain=zeros(0),
            plain_first=first.astype(np.int64),
            target=zeros(B, O),
            V=V,
            b_out=b_out,
            gV=V,
            gb_out=b_out,
            error=zeros(B, O),
            rate=np.ones(1, dtype),
            losses=zeros(0),
            source=zeros(0, 0, 0),
            labels=zeros(0, 0),
            order=np.zeros(0, np.int64),
        )
        self.arguments = Arguments(self.net)
        arrays = (v for v in self.net if isinstance(v, np.ndarray))
        self.bytes = sum(v.nbytes for v in arrays if v is not theta)
        self.y = h[-1].reshape(T + 1, B, P)[1:, :, :H]
        self._last = slice(T * B, None), slice(H)
        # Of a forward pass, about; a task takes as long as some thousand of them.
        K = len(layout.cell.gates)
        products = [2 * (n + H) * K * H + 100 * H for n in weights.inputs]
        self.operations = T * (B * sum(products) + 2000 * L * layout.blocks)
        self._plans, self.tuners, self.used = {}, {}, {}

    def _codes(self, input_steps):
        """The addresses of the micro-kernels that passes need."""
        names = ["forward"] + ["inputs"] * (input_steps > 1)
        if self.training:
            names += ["backward", "gradient_U", "gradient_W", "gradient_b", "transpose"]
            if self.shape.L > 1:
                names.append("times_transpose_U")
        if self.purpose == "gradients":
            names.append("times_transpose_W")
            few = self._weights.inputs[0] <= stages.FEW
            names.append("small_input_gradient" if few else "times_transpose_U")
        return codes(self._layout, *names, keep=self.training)

    def plan(self, kind, partition, schedule):
        """The Pass of a kind, forward, backward or train, that a partition divides."""
        key = kind, partition
        if key not in self._plans:
            stages_of = getattr(plan, kind)
            rest = () if kind == "forward" else (self.threads, self.descends)
            timed = partition.by == "layers"
            self._plans[key] = plan.Pass(
                stages_of(self.shape, schedule, *rest),
                self.arguments,
                self.net.control,
                self._fp_env,
                timed=timed,
            )
        self.used[kind] = self._plans[key]
        return self._plans[key]

    def begin(self, x, state=None):
        """Take over the input (T, B, D) and the initial state, (h, c) or (h,) or
        None.
        """
        self.arguments.point("x", x)
        if state is None and not self.has_state:
            return
        self.has_state = True  # also where an interrupt comes before it is whole
        B, H = self.shape.B, self._layout.hidden
        for array, value in zip((self.net.h, self.net.c), state or (0, 0), strict=False):
            array[:, :B, :H] = value
        self.has_state = state is not None
        self.arguments.set("starts", self._starts or self.has_state)

    def outputs(self):
        """y (T, B, H) and the final state, copies."""
        h = self.net.h[:, *self._last].copy()
        state = (h, self.net.c[:, *self._last].copy()) if self.has_c else (h,)
        return self.y.copy(), state

    def begin_backward(self, dy=None, dstate=None):
        """Take over the gradients of y and of the final state for a pass without a
        loss; all others begin as zero. Returns the arrays that gradients of the
        parameters go to.
        """
        net, H, (T, B) = self.net, self._layout.hidden, self.shape[1:3]
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
        flat = np.empty(self.plain_size, net.h.dtype)
        self.arguments.set("plain", flat)
        self.arguments.set("learns", 0)
        ends = np.cumsum([int(np.prod(s)) for s in self._plain_shapes])
        parts = np.split(flat, ends[:-1])
        gradients = [g.reshape(s) for g, s in zip(parts, self._plain_shapes, strict=True)]
        output = []
        if self._weights.V is not None:
            output = [np.zeros_like(net.V), np.zeros_like(net.b_out)]
            self.arguments.set("gV", output[0])
            self.arguments.set("gb_out", output[1])
        return gradients + output

    def collect(self, gradients, inputs=True):
        """The gradients as Grads, the caller's own. gradients: what `begin_backward`
        returned. inputs: whether with that of x.
        """
        net, L, H = self.net, self.shape.L, self._layout.hidden
        dh0 = net.dh0[..., :H].copy()
        state = (dh0, net.dc[..., :H].copy()) if self.has_c else (dh0,)
        layers = [Layer(*gradients[3 * l : 3 * l + 3]) for l in range(L)]
        V, b_out = gradients[3 * L :] or (None, None)
        x = None
        if inputs:
            dx = net.dx.reshape(*self.shape[1:3], -1)
            x = dx[..., : self._weights.inputs[0]].copy()
        return Grads(layers, V, b_out, self._layout.cell.name, x=x, state=state)

    def run(self, region, operations=0):
        """Run a plan.Pass in a region of its workers."""
        self.in_use = True
        owner = self, region
        run_region(self.net.control, operations, team().run, *region.region, owner)
        self.in_use = False

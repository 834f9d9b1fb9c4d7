"""The memory of `numba-fused`: packed parameters, and what a mini-batch needs.

Shapes are those of `arrays.py`. What is written here as an address is followed without
a check: an array that a record points to stays where it is as long as the record
(tests/test_fused.py looks every address up).
"""

import numpy as np

from ..blas import single_threaded
from ..params import Grads, Layer
from . import steps
from .arrays import (
    JOB_WORD,
    JOBS,
    LANES,
    LAYER,
    LAYER_WORD,
    PARAMETERS,
    PROGRESS,
    PROGRESS_WORD,
    SPACE,
    TABLE,
    TRANSPOSES,
)
from .instructions import FLUSH, KEEP
from .interrupts import run_on
from .lane_tiles import LaneTiles
from .machine_code import address
from .memory import at, buffer, places, point, views
from .plans import PASSES, Plan
from .team import team
from .tiles import codes

# Rows (t, sample) of a layer's input that are multiplied at once where a step has fewer
# samples: enough for the weights to be loaded rarely, few enough for the result to stay
# in L2.
INPUT_ROWS = 64


class Packed:
    """Parameters, or gradients, in the layout of the tiles (`layout.py`), and those of
    the read-out (H, O), (O,); all in one array, each from the beginning of a cache
    line.
    """

    def __init__(self, tiles, inputs, V=None, b_out=None):
        self._form = tiles, inputs, V, b_out
        shapes = [
            array.of_one(tiles.sizes() | tiles.layer_sizes(D))
            for D in inputs
            for array in PARAMETERS
        ]
        shapes += [] if V is None else [V.shape, b_out.shape]
        line = 64 // tiles.dtype.itemsize
        starts = places(shapes, line)
        self.flat = buffer(starts[-1], dtype=tiles.dtype)
        arrays = iter(views(self.flat, starts, shapes))
        self.layers = [{p.name: next(arrays) for p in PARAMETERS} for _ in inputs]
        self.V, self.b_out = next(arrays, None), next(arrays, None)

    def _views(self, params):
        """Pairs of views (rows, gates, hidden units), of a packed array and of a
        layer's.
        """
        units = self._form[0].units
        for weights, layer in zip(self.layers, params.layers, strict=True):
            for name, packed in weights.items():
                matrix = np.atleast_2d(getattr(layer, name))
                blocks = packed.reshape(
                    len(packed), -1, packed.shape[-1] // units, units
                )
                plain = matrix.reshape(len(matrix), blocks.shape[2], -1)
                for j, block in enumerate(blocks):
                    part = plain[:, :, j * units : (j + 1) * units]  # the last: fewer
                    yield block[: len(matrix), :, : part.shape[2]], part

    def pack(self, params):
        """Take over Params: all in one copy, which no interrupt divides."""
        # Its padding is zero: a descent may leave NaN in this
        new = Packed(*self._form)
        for packed, plain in new._views(params):
            packed[...] = plain
        if self.V is not None:
            new.V[...] = params.V
            new.b_out[...] = params.b_out
        self.flat[...] = new.flat

    def unpack(self, like):
        """Params of the form of `like`."""
        params = like.copy()
        for packed, plain in self._views(params):
            plain[...] = packed
        if self.V is not None:
            params.V[...] = self.V
            params.b_out[...] = self.b_out
        return params


def transposes(tiles, inputs):
    """Room for the transposed weights of each layer."""
    sizes = [tiles.sizes() | tiles.layer_sizes(D) for D in inputs]
    return [
        {a.name: buffer(*a.of_one(of), dtype=tiles.dtype) for a in TRANSPOSES}
        for of in sizes
    ]


def aim(arrays, layers, job):
    """Let records point to arrays of the table, by name."""
    for name, array in arrays.items():
        if TABLE[name].of_layers:
            for layer, one in zip(layers, array, strict=False):
                point(layer, **{name: one})
        else:
            point(job, **{name: array})


def transpose(packed, transposed):
    """Take over the weights of a layer, as arrays by name, transposed."""
    for name in "UW":
        M, MT = packed[name], transposed[f"{name}T"]
        blocks = MT.reshape(len(MT), -1, M.shape[2], MT.shape[2])
        M = M[: blocks.shape[1]].reshape(-1, len(MT), MT.shape[2], M.shape[2])
        blocks[...] = M.transpose(1, 0, 3, 2)


class Work:
    """The records of the passes of a Space: a LAYER for each layer, the JOB, its
    PROGRESS as words. They are written between regions only, and never again once a
    thread may have stayed in one: `renew`. fp_env: what passes compute in.
    """

    def __init__(self, layers, job, fp_env=KEEP):
        self.layers, self.job, self.fp_env = layers, job, fp_env
        self.progress = buffer(1, dtype=PROGRESS).view(np.int64)
        self._entered, self._word = False, buffer(8, dtype=np.int64)
        # What `address` leads to, beside the arrays of the space.
        self.arrays = layers, job, self.progress, self._word
        self.address = at(job)
        # The same memory as words, which Python fills in faster than fields of records.
        self.layer_words = memoryview(layers.view(np.int64))
        self.job_words = memoryview(job.view(np.int64))
        point(job, layers=layers, progress=self.progress)

    def renew(self):
        """Go over to copies, all at once: an interrupt finds the old records or the
        new.
        """
        new = Work(self.layers.copy(), self.job.copy(), self.fp_env)
        new.progress[1:] = self.progress[1:]  # it is not to be left
        vars(self).update(vars(new))

    def repeat(self, first, last):
        """The next region is passes first, ..., last-1: training steps, or sweeps."""
        word = PROGRESS_WORD
        self.progress[word.first], self.progress[word.last] = first, last

    def run(self, plan, owner, operations=0):
        """Run a Plan in a region of its participants.

        owner: what the addresses lead to, beside the records. operations: about how
        many; if many, a signal can end it.
        """
        self.enter()
        if plan.aimed is not self.job:  # new, or the records are
            plan.aim(self)
        if plan.timed:
            plan.spans.fill(0)
        owner = owner, self.arrays, plan, plan.arrays
        self.leave(run_on(self, operations, team().run, *plan.region, owner))

    def run_kernel(self, kernel, owner):
        """Run a kernel (p, turn, job) on this thread."""
        self.enter()
        code = address(kernel, self.job.dtype)
        region = 1, code, self.address, at(self._word), (owner, self.arrays)
        self.leave(team().run(*region))

    def settle(self):
        """Before records are written: an interrupt may have come in the last region, or
        before its `leave`, so that a thread is still there.
        """
        if self._entered:
            team().drain()
            self.renew()

    def enter(self):
        """A region begins."""
        self.settle()
        self._entered = True

    def leave(self, stayed):
        """It has ended; stayed: whether a thread stayed behind, which may still read
        the records.
        """
        if stayed:
            self.renew()
        self._entered = False


class Space:
    """The arrays that a network writes for mini-batches (T, B), and the Work that
    points to them.

    purpose: "inference"; or all steps are kept, for "gradients", which go to the
    caller, or for "descent", whose gradients go into the parameters. How a pass is
    divided says a Plan; there is memory for every division. chunked: the samples are
    chunks of one sequence, and always lanes.
    """

    def __init__(self, net, T, B, purpose, chunked=False):
        tiles, params, states = net.tiles, net._params, len(net._cell.state)
        L, O = params.num_layers, params.output_size or 1
        H, D = tiles.hidden, params.input_size
        self.training = training = purpose != "inference"
        self._tiles, self._lanes = tiles, None
        self._turns_x = D > 1 or chunked  # for lanes, or is it that already?
        self.purpose, self.has_c = purpose, states == 2
        # Without an initial state the first step has no product with W: of zeros, it
        # changes at most the sign of a zero, which an LSTM's and a GRU's h never shows.
        self._starts = chunked or net._cell.name not in ("lstm", "gru")
        self._shape = L, T, B, H
        self._top_shape, self.x_shape = (T + 1, B, H), (T, B)
        self._y_shape = T, B, H
        self._last_step = slice(T, None), slice(None), slice(H)
        self._dtype, self._cell = tiles.dtype, net._cell.name
        # Of the top layer; where a cell has no c, that of a layer is its h.
        words = (LAYER_WORD.h,) if self.has_c else (LAYER_WORD.h, LAYER_WORD.c)
        self._h_words = [(L - 1) * len(LAYER_WORD) + word for word in words]
        # y is a copy where its storage has padding, or is kept.
        self._copies_y = training or tiles.padded != H
        self.started = False  # is an initial state in the arrays?
        self.wants_y = True  # of lanes; else all steps of h
        self.sizes = {**tiles.sizes(), **tiles.layer_sizes(D), "L": L, "T": T, "B": B}
        self.sizes |= {"O": O, "L_h": L if self._copies_y else L - 1}
        self.sizes |= {"L_c": L if self.has_c else 0, "threads": net._threads}
        input_steps = max(1, min(T, INPUT_ROWS // B))
        self.sizes["gate_steps"] = T if training else input_steps
        all_c = chunked or training or not self.has_c
        self.sizes["H_lanes"] = H if chunked else self.sizes["P"]
        self.sizes["c_slots"] = T + 1 if all_c else 2
        self.sizes["lane_slots"] = T + 1 if all_c else 1
        self.arrays = self._allocate(SPACE)
        # Of the final state: h of the layers below the top one, c.
        self._h_last = self.arrays["h"][: L - 1, T, :, :H]
        self._c_last = self.arrays["c"][:, -1, :, :H]
        self.bytes = sum(array.nbytes for array in self.arrays.values())
        # Of a forward pass, about; a task takes as long as some thousand of them.
        K = len(net._cell.gates)
        products = [2 * (n + H) * K * H + 100 * H for n in net.inputs]
        tasks = 2000 * L * self.sizes["J_padded"]
        self.operations = T * (B * sum(products) + tasks)
        layers, job = np.zeros(L, LAYER), np.zeros(1, JOBS[tiles.dtype])
        fields = {name: n for name, n in self.sizes.items() if name in job.dtype.names}
        back_steps = max(1, min(T, steps.ROWS // B))
        point(job, **fields, input_steps=input_steps, back_steps=back_steps)
        point(job, keeps=training, chunked=chunked, starts=self._starts)
        layers["D"], layers["D_padded"] = net.inputs, list(map(tiles.pad, net.inputs))
        layers["D_wide"] = layers["D_padded"] // tiles.wide_units
        layers["x_width"][0] = layers["x_lanes"][0] = D
        layers["x_width"][1:] = self.sizes["P"]
        layers["x_lanes"][1:] = self.sizes["H_lanes"]
        weights = zip(net.packed.layers, net.transposes, strict=True)
        for layer, (packed, transposed) in zip(layers, weights, strict=True):
            point(layer, **packed, **transposed)
        aim(self.arrays, layers, job)
        for layer, h in zip(layers[1:], self.arrays["h"], strict=False):
            point(layer, x=h[1:])
        if not self.has_c:
            layers["c"] = layers["h"]
        used = ("forward", "inputs")[: 1 + (input_steps > 1)]
        point(job, **codes(tiles, *used, keep=training))
        self.work = Work(layers, job, KEEP if net.subnormals else FLUSH)
        if training:
            self._aim_training(net, purpose == "descent")
        self.trials = {}  # of each kind of pass (`divisions.py`)
        self.plans = {}  # of each kind, as it is divided at present
        self._plans, self.used = {}, None  # all; the one that the records are for
        self.sweeps = {}  # of chunks: the first and later ones, by steps of the run-up

    def plan(self, kind, division, schedule, *how):
        """The Plan of a kind of pass as it is divided from now on; schedule: a function
        of a Graph; how: as of `plans.sweep`.
        """
        key = kind, division, *how
        if key not in self._plans:
            stages = PASSES[kind](self.sizes, schedule, division, self.purpose, *how)
            self._plans[key] = Plan(stages, division, timed=division.by == "layers")
        self.plans[kind] = self._plans[key]
        return self._plans[key]

    def use(self, plan):
        """Let the records say what passes need that are divided so."""
        self.used = None  # an interrupt may come before they are whole
        words, division = self.work.layer_words, plan.division
        if self.purpose == "inference":  # layer after layer can use the same memory
            for l in range(self.sizes["L"]):
                place = at(self.arrays["a"][l if plan.layers_overlap else 0])
                words[l * len(LAYER_WORD) + LAYER_WORD.a] = place
        if division.lanes:
            self._aim_lanes()
            rows, vectors = self._tiles, division.lanes // self._tiles.lanes
            tiles = LaneTiles(rows.cell, rows.dtype, rows.hidden, together=vectors)
            names = ("forward", "backward")[: 1 + self.training]
            job = self.work.job_words
            for name, code in codes(tiles, *names, keep=self.training).items():
                job[getattr(JOB_WORD, f"{name}_lanes")] = code
            job[JOB_WORD.width] = division.lanes
        self.used = plan

    def _aim_lanes(self):
        """Let the records point to arrays whose lanes are samples."""
        if self._lanes:
            return
        arrays = self._allocate(LANES)
        self.bytes += sum(array.nbytes for array in arrays.values())
        layers, job = self.work.layers, self.work.job
        aim(arrays, layers, job)
        point(job, **codes(self._tiles, "transpose"))
        for layer, h in zip(layers[1:], arrays["lanes_h"], strict=False):
            point(layer, lanes_x=h[1:])
        if self._turns_x:
            point(layers[0], lanes_x=arrays["x_turned"])
        if not self.has_c:
            layers["lanes_c"] = layers["lanes_h"]
        if self.purpose == "descent":
            layers["lanes_da"] = layers["lanes_a"]
        self._lanes = arrays

    def timeline(self, backward):
        """When each part of the last whole pass forward or back ran, a Timeline; None
        if that was not by layers.
        """
        perform = steps.backward_row if backward else steps.forward_row
        found = [
            (plan.began, plan.timeline(number))
            for plan in self.plans.values()
            for number, stage in enumerate(plan.stages)
            if plan.timed and stage.perform is perform
        ]
        found = [(began, line) for began, line in found if line]
        return max(found, default=(0, None), key=lambda one: one[0])[1]

    def _allocate(self, table):
        """The arrays of a table that these passes need, by name."""
        passes = "all", self.purpose, *["training"] * self.training
        return {
            array.name: buffer(*array.of_all(self.sizes), dtype=self._dtype)
            for array in table
            if array.passes in passes
        }

    def _aim_training(self, net, descends):
        """Let the records point to what a backward pass reads and writes."""
        arrays, job, layers = self.arrays, self.work.job, self.work.layers
        arrays["one"][:] = 1
        # Plain gradients of the parameters lie in one array, a new one for each call.
        self._shapes = [array.shape for array in net._params.arrays().values()]
        self._places = places(self._shapes)
        self.gradients = net.packed if descends else Packed(net.tiles, net.inputs)
        pairs = zip(layers, self.gradients.layers, strict=True)
        for l, (layer, packed) in enumerate(pairs):
            for k, (name, array) in enumerate(packed.items()):
                place = self._dtype.itemsize * self._places[3 * l + k]
                point(layer, **{f"g{name}": array, f"d{name}": place})
        through = {"through_U"} if len(layers) > 1 else set()
        if descends:
            layers["da"] = layers["a"]
        else:
            through |= {"through_W"}
            through |= {"few" if net.inputs[0] <= steps.FEW else "through_U"}
            self.bytes += self.gradients.flat.nbytes
        gradients = "gradient_U", "gradient_W", "gradient_b", "transpose"
        point(job, **codes(net.tiles, "backward", *gradients, *through))
        point(job, descend=descends, rate=1.0)
        if net.packed.V is not None:
            V, b_out = net.packed.V, net.packed.b_out
            point(job, V=V, gV=V, b_out=b_out, gb_out=b_out)

    def begin(self, x, state=None, top=None):
        """Take over the input and the initial state, (h, c) or (h,) or None; returns h
        of the top layer (T+1, B, P), which the pass will write. top: where, zeros in
        its slot 0; None is memory of the caller's own, if y needs no copy.
        """
        words = self.work.layer_words
        words[LAYER_WORD.x] = at(x)
        if top is None and self._copies_y:
            top = self.arrays["h"][-1]
        elif top is None:
            top = np.empty(self._top_shape, self._dtype)
            if self._starts or not self.has_c:
                top[0] = 0
        place = at(top)
        for word in self._h_words:
            words[word] = place
        if state is not None or self.started:
            self._begin_state(top, state)
        return top

    def begin_lanes(self, forward):
        """Before a pass in lanes: where they take x from, and of a forward pass where
        they write y.
        """
        writes_y = forward and self.wants_y
        words = self.work.layer_words
        if not self._turns_x:
            words[LAYER_WORD.lanes_x] = words[LAYER_WORD.x]
        self._y = np.empty(self._y_shape, self._dtype) if writes_y else None
        self.work.job_words[JOB_WORD.y] = at(self._y) if writes_y else 0

    def _begin_state(self, top, state):
        H = self._shape[3]
        self.started = True  # also where an interrupt comes before it is whole
        h, *c = (0, 0) if state is None else state
        self.arrays["h"][:, 0, :, :H] = 0 if state is None else h[: self.sizes["L_h"]]
        top[0, :, :H] = 0 if state is None else h[-1]
        if self.has_c:
            self.arrays["c"][:, 0, :, :H] = c[0]
        self.started = state is not None
        self.work.job_words[JOB_WORD.starts] = self._starts or self.started

    def outputs(self, top):
        """y (T, B, H) and the final state after a pass that wrote `top`: copies, or the
        caller's own.
        """
        L, _, B, H = self._shape
        last = top[self._last_step]
        if L == 1:
            h = last.copy()
        else:
            h = np.empty((L, B, H), self._dtype)
            h[:-1] = self._h_last
            h[-1:] = last
        if self.used.division.lanes:
            y = self._y
        else:
            y = top[1:, :, :H].copy() if self._copies_y else top[1:]
        return y, (h, self._c_last.copy()) if self.has_c else (h,)

    def begin_chunks(self, x, y, state):
        """Take over one sequence x (B T, 1, D), where to have its outputs y (B T, 1,
        H), and its initial state; the other chunks start from zeros. Returns where
        their states are, h and c (L, T+1, H, B) each.
        """
        self.work.layer_words[LAYER_WORD.x] = at(x)
        self.work.job_words[JOB_WORD.y] = at(y)
        self.work.progress[PROGRESS_WORD.done] = 0
        names = ("lanes_h", "lanes_c") if self.has_c else ("lanes_h",)
        slots = [self._lanes[name] for name in names]
        for k, slot in enumerate(slots):
            slot[:, 0] = 0
            if state is not None:
                slot[:, 0, :, 0] = state[k][:, 0]
        return slots

    def begin_backward(self, dy=None, dstate=None):
        """Take over the gradients of y and of the final state for a pass without a
        loss; all others begin as zero. Returns the arrays that gradients of the
        parameters go to.
        """
        arrays, H = self.arrays, self._shape[3]
        top = arrays["dy"][-1]
        if dy is None:
            top[:-1] = 0
        else:
            top[..., :H] = dy
        for k, name in enumerate(("dh", "dc")):
            arrays[name].fill(0)
            if dstate is not None and k < len(dstate):
                arrays[name][..., :H] = dstate[k]
        if dy is not None and dstate is not None:
            with single_threaded():  # whose arithmetic loses nothing
                top[-1] += arrays["dh"][-1]
        job = self.work.job_words  # a region may have gone over to new ones
        job[JOB_WORD.losses] = 0
        flat = np.empty(self._places[-1], self._dtype)
        gradients = views(flat, self._places, self._shapes)
        job[JOB_WORD.plain] = at(flat)
        readout = gradients[3 * self.sizes["L"] :]
        words = JOB_WORD.gV, JOB_WORD.gb_out
        for word, gradient in zip(words, readout, strict=False):
            gradient.fill(0)
            job[word] = at(gradient)
        return gradients

    def collect(self, gradients, inputs=True):
        """The gradients as Grads, the caller's own. gradients: what `begin_backward`
        returned. inputs: whether with that of x.
        """
        L, _, _, H = self._shape
        dh0, dc0 = self.arrays["dh0"][..., :H], self.arrays["dc"][..., :H]
        state = (dh0.copy(), dc0.copy()) if self.has_c else (dh0.copy(),)
        layers = [Layer(*gradients[3 * l : 3 * l + 3]) for l in range(L)]
        V, b_out = gradients[3 * L :] or (None, None)
        x = self.arrays["dx"][..., : self.sizes["D"]].copy() if inputs else None
        return Grads(layers, V, b_out, self._cell, x=x, state=state)

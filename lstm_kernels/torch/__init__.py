"""PyTorch's recurrent layers on the kernels of `numba-fused`.

LSTM, GRU and RNN are subclasses of torch.nn's: constructor, parameters, state_dict,
shapes and results are theirs. On CPU tensors in float32 or float64 a call runs the
fused passes through one autograd Function, on PyTorch's threads of OpenMP, as many as
`torch.get_num_threads()`. The parameters stay PyTorch's: each pass compares them with
what is packed and packs what differs, so that optimizers, `.data` and `load_state_dict`
may change them.

    model = lstm_kernels.torch.replace(model)  # every torch.nn.LSTM, GRU and RNN in it

What the kernels do not have runs as torch.nn's own layer, which a line on stderr says
once: packed sequences, one sequence without a batch axis, other devices and dtypes,
relu, projections, autocast, forward-mode gradients, torch.jit.trace and transforms of
torch.func; and without a word torch.compile, torch.export and modes of dispatch, which
see torch.nn's operations. torch.jit.script, torch.fx and quantization need torch.nn's
layers, as a pickled model does where this package is missing: `restore(model)`.

Gradients of gradients, and batched ones (`is_grads_batched`), are a RuntimeError. A
second backward pass of a retained graph computes the forward pass again, as does the
first where hooks of saved tensors are active, as in a checkpoint. As in every compiled
version, a pass flushes subnormal numbers to zero. What is infinite or NaN stays in its
sample's outputs, but may reach more gradients than in torch.nn; in weight_hh the first
step does not see it where no initial state is given.
"""

import numpy as np
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils.rnn import PackedSequence

from .. import forks
from ..cells import CELLS
from ..errors import check_type
from ..notes import note
from ..params import Params, shapes
from ..versions.numba_fused import NumbaFused
from . import openmp
from .weights import TorchWeights, array_of

__all__ = ["GRU", "LSTM", "RNN", "replace", "restore"]
DTYPES = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}
CELL_OF = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "rnn"}  # of a module's mode


def is_batched(tensor):
    """Is it a batch of tensors, of torch.func or of `is_grads_batched`?"""
    of = torch._C._functorch
    return of.is_batchedtensor(tensor) or of.is_legacy_batchedtensor(tensor)


class Engine(NumbaFused):
    """Layers of one direction, and the weights of PyTorch that a pass is given."""

    packed = TorchWeights
    pool = staticmethod(openmp.pool)

    def __init__(self, cell, D, H, L, dtype, threads):
        of = shapes(CELLS[cell], D, H, L, None)
        zeros = {name: np.zeros(shape, dtype) for name, shape in of.items()}
        threads = min(threads, self.most_threads())
        super().__init__(Params.from_arrays(zeros, cell), threads)

    def run(self, training, x, state, weights):
        """A forward pass over tensors: y and the final state, and with `training` the
        Lease that a backward pass needs.
        """
        x, *state = (array_of(tensor) for tensor in (x, *state))
        with self._held("forward"):
            self.weights.read(weights, compare=True)
            y, state, lease = self._forward(x, tuple(state) or None, training)
        return tuple(map(torch.from_numpy, (y, *state))), lease

    def back(self, lease, dy, dstate, wanted, *saved):
        """Gradients of x, of the initial state and of each layer's U, W and biases, as
        arrays of PyTorch's shapes; dy, dstate: those of y and of the final state.

        lease: of `run`; None, and the forward pass is computed again. wanted: whether
        that of x is, and of the state. saved: x, state and weights of the forward pass.
        """
        if lease is None:
            _, lease = self.run(True, *saved)
        with self._held("backward"):
            # Another call may have packed other weights meanwhile
            self.weights.read(saved[-1], compare=False)
            workspace, lease.workspace = lease.workspace, None
            of_weights = workspace.begin_backward(dy, dstate)
            for name, value in zip(("input", "state"), wanted, strict=True):
                workspace.arguments.set(f"{name}_gradient", value)
            self._run(workspace, "backward")
            of_x = workspace.input_gradient() if wanted[0] else None
            of_state = workspace.state_gradient() if wanted[1] else ()
            lease.workspace = workspace  # free again when the Lease goes
        return of_x, of_state, of_weights


class Pass(torch.autograd.Function):
    """A forward pass of an Engine over x (T, B, D): one operation of a graph."""

    @staticmethod
    def forward(ctx, engine, states, x, *rest):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, *rest)
        ctx.engine, ctx.states = engine, states
        # Hooks of saved tensors want to keep less, or elsewhere: they see no Lease
        keep = torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        result, ctx.lease = engine.run(keep, x, rest[:states], rest[states:])
        return result

    @staticmethod
    def backward(ctx, dy, *dstate):
        got = "create_graph=True" if torch.is_grad_enabled() else None
        if any(d is not None and is_batched(d) for d in (dy, *dstate)):
            got = "batched gradients, as of is_grads_batched"
        if got:
            want = "a layer of torch.nn for these: lstm_kernels.torch.restore(model)"
            raise RuntimeError(f"lstm_kernels.torch: got {got}, want {want}")
        x, *rest = ctx.saved_tensors
        state, weights = rest[: ctx.states], rest[ctx.states :]
        dy, *dstate = (0 if d is None else d.numpy() for d in (dy, *dstate))
        given = any(isinstance(d, np.ndarray) for d in dstate)
        lease, ctx.lease = ctx.lease, None
        _, _, needs_x, *needs = ctx.needs_input_grad
        of_x, of_state, of_weights = ctx.engine.back(
            lease,
            dy,
            tuple(dstate) if given else None,
            (needs_x, any(needs[: ctx.states])),
            x,
            state,
            weights,
        )
        if len(weights) < len(of_weights):  # without biases
            of_weights = [array for array in of_weights if array.ndim == 2]
        arrays = of_x, *(of_state or [None] * ctx.states), *of_weights
        pairs = zip(arrays, (needs_x, *needs), strict=True)
        return None, None, *(torch.from_numpy(a) if n else None for a, n in pairs)


class Fused:
    """What the layers share, before a class of torch.nn in the order of bases."""

    def forward(self, input, hx=None):
        why = self._why_not(input, hx)
        if why is not None:
            if why:
                runs = f"torch.nn.{type(self).__name__} runs calls with"
                note(f"torch: {why}", f"{runs} {why}")
            return super().forward(input, hx)
        x = input.transpose(0, 1) if self.batch_first else input
        y, *state = self._layers(x, self._parts(hx))
        y = y.transpose(0, 1) if self.batch_first else y
        return y, tuple(state) if self.mode == "LSTM" else state[0]

    def _why_not(self, x, hx):
        """Why torch.nn's own layer runs a call, in words; "" where nothing is to be
        said: it raises, or a compiler or a mode looks at its operations. None where the
        call runs here.
        """
        if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
            return ""
        if isinstance(x, PackedSequence):
            return "a packed sequence"
        if self.mode not in CELL_OF or self.proj_size:
            return "a projection" if self.proj_size else "relu"
        pair = hx is None or (isinstance(hx, tuple | list) and len(hx) == 2)
        if self.mode == "LSTM" and not pair:
            return ""
        weights, state = self._weights(), self._parts(hx)
        dtype = getattr(weights[0], "dtype", None)
        for tensor in (x, *state, *weights):
            if type(tensor) not in (torch.Tensor, nn.Parameter):
                return "" if tensor is None else f"a {type(tensor).__name__}"
            if not tensor.is_cpu or dtype not in DTYPES:
                return f"{tensor.dtype} on {tensor.device.type}"
            if tensor.layout is not torch.strided or tensor.is_neg():
                return ""
            if tensor.dtype is not dtype:
                return "autocast" if torch.is_autocast_enabled("cpu") else ""
        if torch.is_autocast_enabled("cpu"):
            return "autocast"
        if forward_ad._current_level >= 0:
            return "a forward-mode gradient"
        if torch.jit.is_tracing() or torch._C._are_functorch_transforms_active():
            return "torch.jit.trace or torch.func"
        if x.dim() != 3:
            return "a sequence without a batch axis" if x.dim() == 2 else ""
        B, directions = x.shape[not self.batch_first], 1 + self.bidirectional
        shape = self.num_layers * directions, B, self.hidden_size
        # torch.nn has the errors, and the results of an empty batch
        valid = x.shape[2] == self.input_size and x.numel() > 0
        return None if valid and all(part.shape == shape for part in state) else ""

    def _weights(self):
        """The weights as they are now, which a parametrization may compute."""
        try:
            return [self._parameters[name] for name in self._flat_weights_names]
        except KeyError:
            self._update_flat_weights()
            return self._flat_weights

    def _parts(self, hx):
        """An initial state as a list of its tensors."""
        return [] if hx is None else [*hx] if self.mode == "LSTM" else [hx]

    def _layers(self, x, state):
        """y (T, B, H) and the final state, as a list, of x (T, B, D)."""
        weights, directions = self._weights(), 1 + self.bidirectional
        count = len(weights) // (self.num_layers * directions)
        dropout = self.dropout if self.training else 0.0
        if directions == 1 and not dropout:
            return self._pass(0, self.num_layers, x, state, weights)
        finals = []
        for layer in range(self.num_layers):
            outputs = []
            for k in range(directions * layer, directions * (layer + 1)):
                back = k % 2 and directions == 2
                of_k = [part[k : k + 1] for part in state]
                some = weights[count * k : count * (k + 1)]
                y, *final = self._pass(k, 1, x.flip(0) if back else x, of_k, some)
                outputs.append(y.flip(0) if back else y)
                finals.append(final)
            x = torch.cat(outputs, 2) if directions == 2 else outputs[0]
            if dropout and layer < self.num_layers - 1:
                x = nn.functional.dropout(x, dropout)
        return [x, *(torch.cat(parts) for parts in zip(*finals, strict=True))]

    def _pass(self, k, L, x, state, weights):
        """The same of layers k, ..., k + L - 1 in one direction, by their Engine."""
        engine = self._engine(k, x.shape[2], L, x.dtype)
        tensors = [tensor.contiguous() for tensor in (x, *state, *weights)]
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return Pass.apply(engine, len(state), *tensors)
        x, *rest = tensors
        return engine.run(False, x, rest[: len(state)], rest[len(state) :])[0]

    def _engine(self, k, D, L, dtype):
        how = torch.get_num_threads(), forks.process
        made, engines = self.__dict__.get("_engines", (None, {}))
        if made != how:  # another process's, or of other threads
            self._engines = how, (engines := {})
        if (k, D, L, dtype) not in engines:
            sizes = D, self.hidden_size, L, DTYPES[dtype], how[0]
            engines[k, D, L, dtype] = Engine(CELL_OF[self.mode], *sizes)
        return engines[k, D, L, dtype]

    def __getstate__(self):
        state = super().__getstate__()
        return {name: state[name] for name in state if name != "_engines"}


class LSTM(Fused, nn.LSTM):
    """torch.nn.LSTM on the kernels of `numba-fused`."""


class GRU(Fused, nn.GRU):
    """torch.nn.GRU on the kernels of `numba-fused`."""


class RNN(Fused, nn.RNN):
    """torch.nn.RNN on the kernels of `numba-fused`; with relu it is torch.nn's own."""


KINDS = {nn.LSTM: LSTM, nn.GRU: GRU, nn.RNN: RNN}


def replace(model: nn.Module) -> nn.Module:
    """Let every torch.nn.LSTM, GRU and RNN in a model, or the model itself, be a layer
    of this module, in place; returns the model. Parameters, hooks and the objects stay,
    so an optimizer that has them goes on. Subclasses stay as they are, which layers
    with a parametrization are too; a line on stderr says once that none was replaced.
    Raises TypeError if `model` is not a torch.nn.Module.
    """
    if not _exchange(model, KINDS):
        name = type(model).__name__
        note("torch: none", f"replace: no torch.nn.LSTM, GRU or RNN in {name}")
    return model


def restore(model: nn.Module) -> nn.Module:
    """Let every layer of this module in a model be torch.nn's again, as `replace` found
    it, in place; returns the model. Raises TypeError if `model` is not a
    torch.nn.Module.
    """
    _exchange(model, {ours: kind for kind, ours in KINDS.items()})
    return model


def _exchange(model, kinds):
    """Exchange the classes of a model's modules; those that were."""
    check_type("model", model, nn.Module, "a torch.nn.Module")
    found = [module for module in model.modules() if type(module) in kinds]
    for module in found:
        module.__class__ = kinds[type(module)]
        module.__dict__.pop("_engines", None)
    return found

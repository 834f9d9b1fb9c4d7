"""One LSTM layer as users of each package write it: the programs that `compilers.py`
compares.

NumPy is the reference, Numba is `numba-fused`. For JAX and PyTorch the layer is written
once, `by_steps`, with the cell of `cells.py`; `jax-scan` has a loop in place of the
unrolled steps. Everyone computes the input product of all steps first, as the reference
does.

A program is made from Params (one LSTM layer and a read-out, float32) and a thread
count. It has `predict(x)`, the outputs y (T, B, H), and `gradients(x, target)`, the
mean squared error and the gradients of the parameters by name, all as NumPy arrays. The
packages are imported where they are used: one that is missing is left out, and `gaps`
says why.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec

import numpy as np

from lstm_kernels import reference
from lstm_kernels.cells import CELLS
from lstm_kernels.cores import allowed
from lstm_kernels.errors import check_choice
from lstm_kernels.versions import network

from ..measure.comparer import compare


class NumPy:
    """The reference; BLAS's own threads."""

    def __init__(self, params, threads):
        self.params = params

    def predict(self, x):
        return reference.forward(self.params, x)[0]

    def gradients(self, x, target):
        loss, grads = reference.loss_and_grads(self.params, x, target)
        return loss, {name: grads.arrays()[name] for name in self.params.arrays()}


class Numba:
    """`numba-fused`."""

    def __init__(self, params, threads):
        self.params, self.net = params, network("numba-fused", params, threads=threads)

    def predict(self, x):
        return self.net.forward(x)[0]

    def gradients(self, x, target):
        loss, grads = self.net.loss_and_grads(x, target)
        return loss, {name: grads.arrays()[name] for name in self.params.arrays()}


def by_steps(xp, cut, sigmoid, theta, x):
    """y (T, B, H) of layer 0 from x (T, B, D), step by step; xp: jax.numpy or torch;
    cut: an array into those of each step; theta: the parameters by name.
    """
    U, W, b = (theta[f"layers.0.{name}"] for name in "UWb")
    cell, _ = CELLS["lstm"].make(xp.tanh, sigmoid)
    h, y = xp.zeros((x.shape[1], W.shape[0])), []
    c = h
    # Cut at once: the gradient of each a[t], by itself, would be an array of all steps.
    for a in cut(x @ U + b):
        *_, h, c = cell(*reference.blocks(a + h @ W, 4), c)
        y.append(h)
    return xp.stack(y)


def by_scan(jax, theta, x):
    """The same as a loop that XLA sees: one step is compiled, whatever T is."""
    U, W, b = (theta[f"layers.0.{name}"] for name in "UWb")
    cell, _ = CELLS["lstm"].make(jax.numpy.tanh, jax.nn.sigmoid)

    def step(state, a):
        h, c = state
        *_, h, c = cell(*reference.blocks(a + h @ W, 4), c)
        return (h, c), h

    zero = jax.numpy.zeros((x.shape[1], W.shape[0]))
    return jax.lax.scan(step, (zero, zero), x @ U + b)[1]


def error_of(outputs, theta, x, target):
    """The mean squared error of y[-1] V + b_out against target (B, O)."""
    error = outputs(theta, x)[-1] @ theta["V"] + theta["b_out"] - target
    return (error * error).mean()


class Jax:
    """JAX: "eager", operation by operation; "unrolled" and "scan" under `jit`, which is
    XLA.

    XLA takes every core this process may run on, so `threads` must be that many.
    """

    def __init__(self, params, threads, way):
        import jax

        if threads != allowed():
            raise ValueError(
                f"threads: got {threads}, want every core: XLA takes no other number"
            )
        self.theta = {name: jax.numpy.asarray(a) for name, a in params.arrays().items()}

        def cut(a):
            return [step[0] for step in jax.numpy.split(a, len(a))]

        steps = partial(by_steps, jax.numpy, cut, jax.nn.sigmoid)
        outputs = partial(by_scan, jax) if way == "scan" else steps
        gradients = jax.value_and_grad(partial(error_of, outputs))
        compiled = (lambda f: f) if way == "eager" else jax.jit
        self._outputs, self._gradients = compiled(outputs), compiled(gradients)

    def predict(self, x):
        return np.asarray(self._outputs(self.theta, x))

    def gradients(self, x, target):
        loss, grads = self._gradients(self.theta, x, target)
        return float(loss), {name: np.asarray(a) for name, a in grads.items()}


class Torch:
    """PyTorch: operation by operation, or `torch.compile`, which writes and compiles
    C++.
    """

    def __init__(self, params, threads, compiled):
        import torch

        torch.set_num_threads(threads)
        self.torch, named = torch, params.arrays()
        self.theta = {
            n: torch.from_numpy(a.copy()).requires_grad_() for n, a in named.items()
        }
        outputs = partial(by_steps, torch, torch.unbind, torch.sigmoid)
        loss = partial(error_of, outputs)
        if compiled:
            # It keeps what it compiled by function, not by object: another size would
            # make it compile for any size, and the ninth run as it stands.
            torch.compiler.reset()
            outputs, loss = (
                torch.compile(f, fullgraph=True, dynamic=False) for f in (outputs, loss)
            )
        self._outputs, self._loss = outputs, loss

    def predict(self, x):
        with self.torch.no_grad():
            return self._outputs(self.theta, self.torch.from_numpy(x)).numpy()

    def gradients(self, x, target):
        loss = self._loss(self.theta, *map(self.torch.from_numpy, (x, target)))
        grads = self.torch.autograd.grad(loss, list(self.theta.values()))
        return loss.item(), {
            name: g.numpy() for name, g in zip(self.theta, grads, strict=True)
        }


@dataclass(frozen=True)
class Compiler:
    """A way to run the layer: the package, the form that it is compared with, itself
    where nothing is compiled, and the program, a function of Params and a thread count.
    """

    package: str
    plain: str
    program: Callable


COMPILERS = {
    "numpy": Compiler("numpy", "numpy", NumPy),
    "numba-fused": Compiler("numba", "numpy", Numba),
    "jax-eager": Compiler("jax", "jax-eager", partial(Jax, way="eager")),
    "jax-scan": Compiler("jax", "jax-eager", partial(Jax, way="scan")),
    "jax-unrolled": Compiler("jax", "jax-eager", partial(Jax, way="unrolled")),
    "pytorch-eager": Compiler("torch", "pytorch-eager", partial(Torch, compiled=False)),
    "pytorch-compiled": Compiler(
        "torch", "pytorch-eager", partial(Torch, compiled=True)
    ),
}
COMPILED = [name for name, compiler in COMPILERS.items() if compiler.plain != name]
KEEPS = [*COMPILED, "jax-eager"]  # compiled code, if only of single operations


@cache
def why_unavailable(name):
    """None when a compiler of COMPILERS can run here, else the reason."""
    package = COMPILERS[check_choice("name", name, COMPILERS)].package
    if not find_spec(package):
        return f"{package} is not installed"
    if name == "pytorch-compiled":
        import torch

        try:
            torch.compile(torch.tanh)(torch.ones(2))
        except RuntimeError as error:  # it needs a C++ compiler, and Python's headers
            return f"torch.compile: {str(error).strip().partition(chr(10))[0]}"
    return None


def gaps():
    """The compilers that cannot run here: name -> reason."""
    return {name: why for name in COMPILERS if (why := why_unavailable(name))}


def check_gradients(got, params, x, target):
    """Largest relative error of what `gradients` returned, against the reference in
    float64; raises MismatchError. Sums over all steps and samples round more than the
    outputs: 1e-4 passes.
    """
    loss, grads = reference.loss_and_grads(
        *(a.astype(np.float64) for a in (params, x, target))
    )
    want = {"loss": loss} | {name: grads.arrays()[name] for name in params.arrays()}
    return compare({"loss": got[0]} | got[1], want, 1e-4)

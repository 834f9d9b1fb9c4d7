"""PyTorch, JAX and ONNX Runtime on the same parameters, compared with `numba-fused`.

A peer is made of Params (LSTM, with an output layer) and a thread count. `predict(x)`
is y (T, B, H), a NumPy array. `step(x, target, rate)`, where the form has one, is a
step of gradient descent on the mean squared error, and its loss before it. The packages
are imported where they are used: the report does not need them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lstm_kernels.cells import CELLS
from lstm_kernels.cores import allowed
from lstm_kernels.errors import UnavailableError
from lstm_kernels.params import Params
from lstm_kernels.reference import blocks
from lstm_kernels.versions import VersionName
from lstm_kernels.versions.base import Network

from . import results
from .ceilings import ceilings
from .comparer import MismatchError, compare
from .runner import each, networks, rounds, rows_of, timed, verify
from .timing import together
from .workloads import AIRLINE, GRID, MODELS, Workload, airline_dataset


def stack(layer: Callable, L: int, theta: Mapping[str, Any], x: Any) -> Any:
    """y (T, B, H) of L layers, each layer(U, W, b, x); theta: parameters by name."""
    for l in range(L):
        x = layer(*(theta[f"layers.{l}.{name}"] for name in "UWb"), x)
    return x


def by_scan(jax: Any, U: Any, W: Any, b: Any, x: Any) -> Any:
    """A layer as a loop that XLA sees: one step is compiled, whatever T is; the
    products of all inputs at once.
    """
    cell, _ = CELLS["lstm"].make(jax.numpy.tanh, jax.nn.sigmoid)

    def step(state, a):
        h, c = state
        *_, h, c = cell(*blocks(a + h @ W, 4), c)
        return (h, c), h

    zero = jax.numpy.zeros((x.shape[1], W.shape[0]), x.dtype)
    return jax.lax.scan(step, (zero, zero), x @ U + b)[1]


class Torch:
    """torch.nn.LSTM (oneDNN on a CPU, cuDNN on a GPU) with torch.optim.SGD. dtype: of
    parameters, inputs and outputs. device: where they are.
    """

    def __init__(
        self, params: Params, threads: int, dtype: str = "float32", device: str = "cpu"
    ) -> None:
        import torch

        torch.set_num_threads(threads)
        self.torch, self.device, self.dtype = torch, device, getattr(torch, dtype)
        nn, sizes = torch.nn, (params.input_size, params.hidden_size)
        net = self.made(nn.LSTM(*sizes, params.num_layers))
        readout = nn.Linear(params.hidden_size, params.output_size)
        self.net, self.readout = (m.to(device, self.dtype) for m in (net, readout))
        self.assign(params)
        # Its second bias stays: two that descend would be one with twice the rate.
        for name, parameter in net.named_parameters():
            parameter.requires_grad_("bias_hh" not in name)
        self.parts = [
            p for m in (net, readout) for p in m.parameters() if p.requires_grad
        ]
        self.optimizer = torch.optim.SGD(self.parts, lr=1e-3)

    def made(self, net: Any) -> Any:
        """The torch.nn.LSTM that it computes with."""
        return net

    def assign(self, params: Params) -> None:
        """Take over other values for the parameters."""
        named = {n: self.tensor(a) for n, a in params.to_torch().items()}
        of_readout = {name: named.pop(f"readout.{name}") for name in ("weight", "bias")}
        self.net.load_state_dict(named)
        self.readout.load_state_dict(of_readout)

    def tensor(self, x: np.ndarray) -> Any:
        """An array as a tensor of the peer's dtype, on its device."""
        return self.torch.from_numpy(x).to(self.device, self.dtype)

    def outputs(self, x: Any) -> Any:
        """y of a tensor x, a tensor."""
        self.net.eval()
        with self.torch.no_grad():
            return self.net(x)[0]

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.outputs(self.tensor(x)).float().cpu().numpy()

    def descend(self, x: Any, target: Any) -> Any:
        """A step on tensors; the loss before it, a tensor."""
        self.net.train()
        self.optimizer.zero_grad(set_to_none=True)
        predicted = self.readout(self.net(x)[0][-1])
        loss = self.torch.nn.functional.mse_loss(predicted, target)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def step(self, x: np.ndarray, target: np.ndarray, rate: float) -> float:
        self.optimizer.param_groups[0]["lr"] = rate
        return self.descend(self.tensor(x), self.tensor(target)).item()


class FlushedTorch(Torch):
    """The same with subnormal numbers flushed to zero during its calls."""

    def outputs(self, x: Any) -> Any:
        return self._flushed(super().outputs, x)

    def descend(self, x: Any, target: Any) -> Any:
        return self._flushed(super().descend, x, target)

    def _flushed(self, call, *arguments):
        if not self.torch.set_flush_denormal(True):
            raise UnavailableError("pytorch-flush: this CPU cannot flush them")
        try:
            return call(*arguments)
        finally:
            self.torch.set_flush_denormal(False)


class FusedTorch(Torch):
    """The same with the layer of `lstm_kernels.torch` in the place of torch.nn's."""

    def made(self, net: Any) -> Any:
        from lstm_kernels.torch import replace

        return replace(net)


class Jax:
    """JAX, a scan under `jit`.

    XLA takes every core this process may run on, so `threads` must be that many.
    """

    def __init__(self, params: Params, threads: int) -> None:
        import jax

        if threads != allowed():
            want = "want every core: XLA takes no other number"
            raise ValueError(f"threads: got {threads}, {want}")
        self.jax, jnp = jax, jax.numpy
        self.theta = {name: jnp.asarray(a) for name, a in params.arrays().items()}

        layer = partial(by_scan, jax)
        outputs = partial(stack, layer, params.num_layers)

        def loss(theta, x, target):
            error = outputs(theta, x)[-1] @ theta["V"] + theta["b_out"] - target
            return jnp.mean(error * error)

        def descend(theta, x, target, rate):
            value, gradient = jax.value_and_grad(loss)(theta, x, target)
            return value, jax.tree.map(lambda p, g: p - rate * g, theta, gradient)

        self._outputs = jax.jit(outputs)
        self._descend = jax.jit(descend, donate_argnums=0)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self._outputs(self.theta, x))

    def step(self, x: np.ndarray, target: np.ndarray, rate: float) -> float:
        loss, self.theta = self._descend(self.theta, x, target, rate)
        self.jax.block_until_ready(self.theta)
        return float(loss)


class OnnxRuntime:
    """A stack of ONNX `LSTM` operators; inference only."""

    def __init__(self, params: Params, threads: int) -> None:
        import onnxruntime
        from onnx import numpy_helper, parser

        H, order = params.hidden_size, (0, 3, 1, 2)  # ONNX orders the gates i, o, f, c
        weights = {"axis": np.array([1])}  # of the direction, one
        lines, name = [], "x"
        for l, layer in enumerate(params.layers):
            W, R, b = (
                np.concatenate([np.split(a, 4, axis=-1)[k].T for k in order])[None]
                for a in (layer.U, layer.W, layer.b)
            )
            weights |= {f"W{l}": W, f"R{l}": R, f"b{l}": np.hstack([b, 0 * b])}
            inputs = f"{name}, W{l}, R{l}, b{l}"
            lines.append(f"y{l} = LSTM <hidden_size = {H}> ({inputs})")
            lines.append(f"h{l} = Squeeze (y{l}, axis)")
            name = f"h{l}"
        model = parser.parse_model(
            f"""<ir_version: 9, opset_import: ["": 17]>
            stack (float[T, B, {params.input_size}] x) => (float[T, B, {H}] {name})
            {{ {" ".join(lines)} }}"""
        )
        arrays = [numpy_helper.from_array(array, key) for key, array in weights.items()]
        model.graph.initializer.extend(arrays)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.session.run(None, {"x": x})[0]


PEERS: dict[str, Any] = {
    "pytorch": Torch,
    "pytorch-flush": FlushedTorch,
    "pytorch-fused": FusedTorch,
    "jax": Jax,
    "onnxruntime": OnnxRuntime,
}
OF_TORCH = "pytorch", "pytorch-flush", "pytorch-fused"
PACKAGES = dict.fromkeys(OF_TORCH, "torch")
PACKAGES |= {"jax": "jax", "onnxruntime": "onnxruntime"}


def installed(names: Iterable[str] = tuple(PEERS)) -> list[str]:
    """Those of PEERS whose package is here."""
    return [name for name in names if find_spec(PACKAGES[name])]


def with_releases(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows whose variant is, of a peer, the release of its package."""
    releases = {
        n: metadata.version(PACKAGES[n]) for n in set(rows["version"]) & set(PACKAGES)
    }
    variant = rows["version"].map(releases).astype(object)
    return rows.assign(variant=variant.where(variant.notna(), rows["variant"]))


def side_by_side(
    work: Workload, names: Iterable[str], threads: int, **options: Any
) -> pd.DataFrame:
    """Rows of a results file: `numba-fused`, `numba-wavefront` where it has something
    to gain, and the peers, in one loop, on one workload.
    """
    deep: list[VersionName] = ["numba-wavefront"] if work.L > 1 and work.B == 1 else []
    nets = networks(["numba-fused", *deep], work, threads=threads)
    peers = {name: PEERS[name](work.params(), threads) for name in names}
    x, target = work.example()
    errors = agreement(nets["numba-fused"], peers, x, target)
    trained = {name: peer for name, peer in peers.items() if hasattr(peer, "step")}
    forward = each(peers, lambda peer: peer.predict(x))
    forward |= each(nets, lambda net: net.forward(x))
    step = each({**trained, **nets}, lambda either: either.step(x, target, 1e-4))
    cases = {"forward": forward, "step": step}
    times = timed(cases, lambda: errors | verify(nets, work), wait=True, **options)
    return with_releases(rows_of(times, work).assign(threads=threads))


def agreement(
    net: Network, peers: Mapping[str, Any], x: np.ndarray, target: np.ndarray
) -> dict[str, float]:
    """Largest relative error of each peer, by name: its outputs and losses compared
    with those of a network with the same parameters, which all take two steps.
    MismatchError names the peer.
    """
    want = {"outputs": net.forward(x)[0]} | descent(net, x, target)
    errors = {}
    for name, peer in peers.items():
        got = {"outputs": peer.predict(x)}
        got |= descent(peer, x, target) if hasattr(peer, "step") else {}
        try:
            errors[name] = compare(got, {key: want[key] for key in got}, 1e-4)
        except MismatchError as error:
            raise MismatchError(f"{name}: {error}") from None
    return errors


def descent(either: Any, x: np.ndarray, target: np.ndarray) -> dict[str, np.ndarray]:
    """The losses before and after a step of gradient descent, by name."""
    whens = ("before", "after")
    losses = (np.asarray(either.step(x, target, 0.01)) for _ in whens)
    return {
        f"loss {when} a step": loss for when, loss in zip(whens, losses, strict=True)
    }


def small_calls(threads: int, **options: Any) -> pd.DataFrame:
    """The airline network by rows: an epoch, compiled as a whole, and PyTorch's steps
    one by one; the forward pass by the public call, and the compiled code in it alone.
    """
    nets = networks(["numba-fused"], AIRLINE, threads=threads)
    net: Any = nets["numba-fused"]  # the version that has `bare_forward`
    (x, _), dataset = AIRLINE.example(), airline_dataset()
    order, B = np.arange(len(dataset)), AIRLINE.B
    epochs: dict[str, Callable] = {
        "numba-fused": lambda: net.epoch(dataset, order, B, 0.05)
    }
    for name in installed(["pytorch"]):
        step = partial(PEERS[name](AIRLINE.params(), threads).step, rate=0.05)
        epochs[name] = partial(dataset.each_batch, order, B, step)
    calls = {
        "numba-fused/public call": lambda: net.forward(x),
        "numba-fused/kernel": net.bare_forward(x),
    }
    cases = {"epoch": epochs, "forward": calls}
    times = timed(cases, partial(verify, nets, AIRLINE), wait=True, **options)
    return rows_of(times, AIRLINE).assign(threads=threads)


def compared(preset: str, names: Iterable[str]) -> pd.DataFrame:
    """Every workload with each peer, small calls, and the ceilings before and after."""
    threads, works = allowed(), GRID.values() if preset == "paper" else [AIRLINE]
    limits = partial(ceilings, threads, **rounds(preset, 9))
    parts = [limits()]
    for work in works:
        options = rounds(preset, work.repeats)
        parts.append(side_by_side(work, names, threads, **options))
    return together([*parts, limits(), small_calls(threads, **rounds(preset))])


def models(preset: str) -> pd.DataFrame:
    """A model of PyTorch with its own layer and with that of `lstm_kernels.torch`, on
    one thread and on all.
    """
    parts = []
    for work in MODELS.values() if preset == "paper" else [AIRLINE]:
        for threads in sorted({1, allowed()}):
            options = rounds(preset, work.repeats)
            parts.append(side_by_side(work, OF_TORCH, threads, **options))
    return together(parts)


def main(
    preset: str = "paper",
    folder: results.Folder = None,
    names: Iterable[str] | None = None,
) -> Iterator[tuple[str, pd.DataFrame, Path]]:
    """Compare with the peers that are installed, or `names`; yields (experiment, rows,
    path) once its file is written. Raises UnavailableError at once for none.
    """
    if names is None:
        names = [name for name in installed() if name != "pytorch-fused"]
    if not names:
        want = "pip install torch jax onnxruntime onnx brings them"
        raise UnavailableError(
            f"bench-peers: none of {', '.join(PEERS)} is here; {want}"
        )
    plan = {"peers": partial(compared, preset, names)}
    if "pytorch" in names:
        plan["models"] = partial(models, preset)
    return results.fill(plan, preset=preset, folder=folder)

"""PyTorch, JAX and ONNX Runtime on the same parameters, compared with `numba-fused`.

Each peer takes Params (LSTM, with a read-out) and a thread count, and has `predict(x)`, the outputs
y (T, B, H) as a NumPy array, and, but for ONNX Runtime, `step(x, target, rate)`, one step of
gradient descent on the mean squared error. Both end when the result is there. The peers' packages
are imported where they are used: the report does not need them.
"""

from functools import partial
from importlib import metadata

import numpy as np

from ..cores import allowed
from ..training import train
from . import results, tail
from .ceilings import ceilings
from .comparer import TOLERANCE, MismatchError, compare
from .runner import each, networks, rounds, rows_of, timed, verify
from .timing import REST, together
from .workloads import AIRLINE, GRID, airline_dataset


class Torch:
    """torch.nn.LSTM (oneDNN on a CPU), and torch.optim.SGD."""

    def __init__(self, params, threads):
        import torch

        torch.set_num_threads(threads)
        self.torch = torch
        self.net = torch.nn.LSTM(params.input_size, params.hidden_size, params.num_layers)
        self.readout = torch.nn.Linear(params.hidden_size, params.output_size)
        state = {name: torch.from_numpy(a.copy()) for name, a in params.to_torch().items()}
        self.readout.load_state_dict(
            {name: state.pop(f"readout.{name}") for name in ("weight", "bias")}
        )
        self.net.load_state_dict(state)
        parts = [*self.net.parameters(), *self.readout.parameters()]
        self.optimizer = torch.optim.SGD(parts, lr=1e-3)

    def predict(self, x):
        with self.torch.inference_mode():
            return self.net(self.torch.from_numpy(x))[0].numpy()

    def step(self, x, target, rate):
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        y, _ = self.net(self.torch.from_numpy(x))
        error = self.readout(y[-1]) - self.torch.from_numpy(target)
        loss = (error * error).mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def gradients(self, x, dy):
        """The forward and backward pass of sum(y * dy); gradients by PyTorch's names."""
        self.optimizer.zero_grad(set_to_none=True)
        y, _ = self.net(self.torch.from_numpy(x))
        y.backward(self.torch.from_numpy(dy))
        return {name: p.grad.numpy() for name, p in self.net.named_parameters()}


class Jax:
    """`lax.scan` under `jit`, inputs of all steps in one product; XLA's own threads.

    XLA takes every core this process may run on, so `threads` must be that many.
    """

    def __init__(self, params, threads):
        import jax

        if threads != allowed():
            raise ValueError(f"threads: got {threads}, want every core: XLA takes no other number")
        self.jax, jnp = jax, jax.numpy
        self.theta = {name: jnp.asarray(a) for name, a in params.arrays().items()}
        L, H = params.num_layers, params.hidden_size

        def outputs(theta, x):
            for layer in range(L):
                U, W, b = (theta[f"layers.{layer}.{name}"] for name in "UWb")

                def cell(state, a, W=W):
                    h, c = state
                    i, f, g, o = jnp.split(a + h @ W, 4, axis=1)
                    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                    h = jax.nn.sigmoid(o) * jnp.tanh(c)
                    return (h, c), h

                zero = jnp.zeros((x.shape[1], H), x.dtype)
                _, x = jax.lax.scan(cell, (zero, zero), x @ U + b)
            return x

        def loss(theta, x, target):
            error = outputs(theta, x)[-1] @ theta["V"] + theta["b_out"] - target
            return jnp.mean(error * error)

        def descend(theta, x, target, rate):
            value, gradient = jax.value_and_grad(loss)(theta, x, target)
            return value, jax.tree.map(lambda p, g: p - rate * g, theta, gradient)

        self._outputs, self._descend = jax.jit(outputs), jax.jit(descend, donate_argnums=0)

    def predict(self, x):
        return np.asarray(self._outputs(self.theta, x))

    def step(self, x, target, rate):
        loss, self.theta = self._descend(self.theta, x, target, rate)
        self.jax.block_until_ready(self.theta)
        return float(loss)


class OnnxRuntime:
    """A stack of ONNX `LSTM` operators; inference only."""

    def __init__(self, params, threads):
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper

        H, order = params.hidden_size, (0, 3, 1, 2)  # ONNX orders the gates i, o, f, c
        nodes, weights, name = [], [], "x"
        for index, layer in enumerate(params.layers):
            W, R, b = (
                np.concatenate([np.split(a, 4, axis=-1)[k].T for k in order])[None]
                for a in (layer.U, layer.W, layer.b)
            )
            arrays = {"W": W, "R": R, "b": np.hstack([b, np.zeros_like(b)])}
            weights += [numpy_helper.from_array(a, f"{n}{index}") for n, a in arrays.items()]
            inputs = [name, *(f"{n}{index}" for n in arrays)]
            nodes.append(helper.make_node("LSTM", inputs, [f"y{index}"], hidden_size=H))
            axes = numpy_helper.from_array(np.array([1]), f"axis{index}")  # one direction
            weights.append(axes)
            name = f"h{index}"
            nodes.append(helper.make_node("Squeeze", [f"y{index}", f"axis{index}"], [name]))
        kind = TensorProto.FLOAT
        graph = helper.make_graph(
            nodes,
            "stack",
            [helper.make_tensor_value_info("x", kind, ["T", "B", params.input_size])],
            [helper.make_tensor_value_info(name, kind, ["T", "B", H])],
            weights,
        )
        opset = helper.make_opsetid("", 17)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=9)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def predict(self, x):
        return self.session.run(None, {"x": x})[0]


PACKAGES = {"pytorch": "torch", "jax": "jax", "onnxruntime": "onnxruntime"}
PEERS = {"pytorch": Torch, "jax": Jax, "onnxruntime": OnnxRuntime}


def side_by_side(work, names, threads, *, versions=None, public=False, **options):
    """Rows of a results file: versions and the peers, in one loop, on one workload.

    versions: None is `numba-fused`, and `numba-wavefront` where it has something to gain. public:
    time forward(x, training=True) and backward(dy) too, beside PyTorch's autograd of the same loss,
    sum(y * dy) (stage "public step").
    """
    if versions is None:
        versions = ["numba-fused", *(["numba-wavefront"] if work.L > 1 and work.B == 1 else [])]
    (x, target), dy = work.example(), work.dy(seed=2) if public else None
    peers = {name: PEERS[name](work.params(), threads) for name in names}
    nets = networks(versions, work, threads=threads)
    errors = agreement(nets["numba-fused"], peers, x, target, dy)

    def forward_and_backward(net):
        net.forward(x, training=True)
        net.backward(dy)

    def some(name):
        return {key: peer for key, peer in peers.items() if hasattr(peer, name)}

    cases = {
        "forward": each(peers, lambda peer: peer.predict(x))
        | each(nets, lambda net: net.forward(x)),
        "step": each(some("step") | nets, lambda either: either.step(x, target, 1e-4)),
    }
    if public:
        autograd = each(some("gradients"), lambda peer: peer.gradients(x, dy))
        cases["public step"] = autograd | each(nets, forward_and_backward)
    times = timed(cases, lambda: errors | verify(nets, work), rest=REST, **options)
    rows = rows_of(times, work).assign(threads=threads)
    rows["variant"] = rows["version"].map(PACKAGES).map(metadata.version, na_action="ignore")
    return rows


def agreement(net, peers, x, target, dy=None):
    """Largest difference of each peer's outputs from a network's; MismatchError if any is not
    rounding, or if its loss differs, or with dy its gradients of sum(y * dy).
    """
    y, _ = net.forward(x)
    errors = {name: float(np.abs(peer.predict(x) - y).max()) for name, peer in peers.items()}
    want, _ = net.loss_and_grads(x, target)
    losses = {name: p.step(x, target, 1e-9) for name, p in peers.items() if hasattr(p, "step")}
    wrong = [name for name, error in errors.items() if not error < 1e-4]
    wrong += [name for name, loss in losses.items() if not abs(loss - want) < 1e-4 * abs(want)]
    if wrong:
        raise MismatchError(f"{', '.join(wrong)}: other outputs or loss than numba-fused")
    for peer in (p for p in peers.values() if dy is not None and hasattr(p, "gradients")):
        net.forward(x, training=True)
        got, grads = peer.gradients(x, dy), net.backward(dy).to_torch()
        compare(got, {name: grads[name] for name in got}, TOLERANCE[x.dtype])
    return errors


def small_calls(threads, **options):
    """The airline network by rows: an epoch, compiled as a whole, by `train`, and PyTorch's steps
    one by one; the forward pass by the public call, and the compiled code in it alone.
    """
    nets, peer = (
        networks(["numba-fused"], AIRLINE, threads=threads),
        Torch(AIRLINE.params(), threads),
    )
    net, (x, _), dataset = nets["numba-fused"], AIRLINE.example(), airline_dataset()
    order, B = np.arange(len(dataset)), AIRLINE.B
    how = {"epochs": 1, "batch_size": B, "learning_rate": 0.05, "progress": False}
    cases = {
        "epoch": {
            "numba-fused": lambda: net.epoch(dataset, order, B, 0.05),
            "numba-fused/train": lambda: train(net, dataset, **how),
            "pytorch": lambda: dataset.each_batch(order, B, partial(peer.step, rate=0.05)),
        },
        "forward": {
            "numba-fused/public call": lambda: net.forward(x),
            "numba-fused/kernel": net.bare_forward(x),
        },
    }
    times = timed(cases, partial(verify, nets, AIRLINE), rest=REST, **options)
    return rows_of(times, AIRLINE).assign(threads=threads)


def compared(preset):
    """Every workload with every peer, and the ceilings before and after."""
    threads, works = allowed(), GRID.values() if preset == "paper" else [AIRLINE]
    parts = [ceilings(threads, **rounds(preset, 9))]
    for work in works:
        options = rounds(preset, work.repeats)
        parts.append(side_by_side(work, list(PEERS), threads, **options))
    parts.append(small_calls(threads, **rounds(preset)))
    return together([*parts, ceilings(threads, **rounds(preset, 9))])


def main(preset="paper", folder=None):
    """Compare, and measure tails; yields (experiment, rows, path) once its file is written."""
    plan = {
        "peers": lambda: compared(preset),
        "tail": lambda: tail.measure(allowed(), tail.CALLS if preset == "paper" else 100),
    }
    return results.fill(plan, preset=preset, folder=folder)

"""PyTorch, JAX and ONNX Runtime on the same parameters, compared with `numba-fused`.

Each peer takes Params (LSTM, with a read-out) and a thread count, and has `predict(x)`,
the outputs y (T, B, H) as a NumPy array, and, but for ONNX Runtime, `step(x, target,
rate)`, one step of gradient descent on the mean squared error. Both end when the result
is there. The peers' packages are imported where they are used: the report does not need
them.
"""

import math
from functools import partial
from importlib import metadata

import numpy as np

from lstm_kernels.cores import allowed
from lstm_kernels.training import train

from ..experiments import tail
from . import results
from .ceilings import ceilings
from .comparer import MismatchError, compare
from .runner import each, networks, rounds, rows_of, timed, verify
from .timing import REST, together
from .workloads import AIRLINE, GRID, airline_dataset


class Torch:
    """torch.nn.LSTM (oneDNN on a CPU), and torch.optim.SGD."""

    def __init__(self, params, threads):
        import torch

        torch.set_num_threads(threads)
        self.torch = torch
        self.net = torch.nn.LSTM(
            params.input_size, params.hidden_size, params.num_layers
        )
        self.readout = torch.nn.Linear(params.hidden_size, params.output_size)
        state = {
            name: torch.from_numpy(a.copy()) for name, a in params.to_torch().items()
        }
        readout = {name: state.pop(f"readout.{name}") for name in ("weight", "bias")}
        self.readout.load_state_dict(readout)
        self.net.load_state_dict(state)
        # Its second bias stays: two that descend would be one with twice the rate.
        parts = [p for name, p in self.net.named_parameters() if "bias_hh" not in name]
        parts += self.readout.parameters()
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


class Jax:
    """`lax.scan` under `jit`, inputs of all steps in one product; XLA's own threads.

    XLA takes every core this process may run on, so `threads` must be that many.
    """

    def __init__(self, params, threads):
        import jax

        if threads != allowed():
            raise ValueError(
                f"threads: got {threads}, want every core: XLA takes no other number"
            )
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

        self._outputs, self._descend = (
            jax.jit(outputs),
            jax.jit(descend, donate_argnums=0),
        )

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
        from onnx import numpy_helper, parser

        H, order = params.hidden_size, (0, 3, 1, 2)  # ONNX orders the gates i, o, f, c
        lines, weights, name = (
            [],
            {"axis": np.array([1])},
            "x",
        )  # axis: of the direction, one
        for index, layer in enumerate(params.layers):
            W, R, b = (
                np.concatenate([np.split(a, 4, axis=-1)[k].T for k in order])[None]
                for a in (layer.U, layer.W, layer.b)
            )
            weights |= {
                f"W{index}": W,
                f"R{index}": R,
                f"b{index}": np.hstack([b, 0 * b]),
            }
            inputs = f"{name}, W{index}, R{index}, b{index}"
            lines.append(f"y{index} = LSTM <hidden_size = {H}> ({inputs})")
            lines.append(f"h{index} = Squeeze (y{index}, axis)")
            name = f"h{index}"
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

    def predict(self, x):
        return self.session.run(None, {"x": x})[0]


PACKAGES = {"pytorch": "torch", "jax": "jax", "onnxruntime": "onnxruntime"}
PEERS = {"pytorch": Torch, "jax": Jax, "onnxruntime": OnnxRuntime}


def side_by_side(work, names, threads, **options):
    """Rows of a results file: `numba-fused`, `numba-wavefront` where it has something
    to gain, and the peers, in one loop, on one workload.
    """
    versions = [
        "numba-fused",
        *(["numba-wavefront"] if work.L > 1 and work.B == 1 else []),
    ]
    peers = {name: PEERS[name](work.params(), threads) for name in names}
    nets, (x, target) = networks(versions, work, threads=threads), work.example()
    errors = agreement(nets["numba-fused"], peers, x, target)
    trained = {
        name: peer for name, peer in peers.items() if hasattr(peer, "step")
    } | nets
    cases = {
        "forward": each(peers, lambda peer: peer.predict(x))
        | each(nets, lambda net: net.forward(x)),
        "step": each(trained, lambda either: either.step(x, target, 1e-4)),
    }
    times = timed(cases, lambda: errors | verify(nets, work), rest=REST, **options)
    rows = rows_of(times, work).assign(threads=threads)
    rows["variant"] = (
        rows["version"].map(PACKAGES).map(metadata.version, na_action="ignore")
    )
    return rows


def descent(either, x, target):
    """The losses before and after a step of gradient descent, by name."""
    return {
        f"loss {when} a step": either.step(x, target, 0.01)
        for when in ("before", "after")
    }


def agreement(net, peers, x, target):
    """Largest relative error of each peer, by name: its outputs and losses compared
    with those of a network with the same parameters, which all take two steps.
    MismatchError names the peer.
    """
    want, errors = {"outputs": net.forward(x)[0]} | descent(net, x, target), {}
    for name, peer in peers.items():
        got = {"outputs": peer.predict(x)}
        got |= descent(peer, x, target) if hasattr(peer, "step") else {}
        try:
            errors[name] = compare(got, {key: want[key] for key in got}, 1e-4)
        except MismatchError as error:
            raise MismatchError(f"{name}: {error}") from None
    return errors


def small_calls(threads, **options):
    """The airline network by rows: an epoch, compiled as a whole, by `train`, and
    PyTorch's steps one by one; the forward pass by the public call, and the compiled
    code in it alone.
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
            "pytorch": lambda: dataset.each_batch(
                order, B, partial(peer.step, rate=0.05)
            ),
        },
        "forward": {
            "numba-fused/public call": lambda: net.forward(x),
            "numba-fused/kernel": net.bare_forward(x),
        },
    }
    times = timed(cases, partial(verify, nets, AIRLINE), rest=REST, **options)
    return rows_of(times, AIRLINE).assign(threads=threads)


def compared(preset, names, *, most=math.inf):
    """Every workload below `most` GFLOP with each peer, and the ceilings before and
    after.
    """
    threads, works = allowed(), GRID.values() if preset == "paper" else [AIRLINE]
    parts = [ceilings(threads, **rounds(preset, 9))]
    for work in works:
        if work.gflop < most:
            parts.append(
                side_by_side(work, names, threads, **rounds(preset, work.repeats))
            )
    return together([*parts, ceilings(threads, **rounds(preset, 9))])


def main(preset="paper", folder=None):
    """Compare, and measure tails; yields (experiment, rows, path) once its file is
    written.
    """
    plan = {
        "peers": lambda: together(
            [compared(preset, list(PEERS)), small_calls(allowed(), **rounds(preset))]
        ),
        "tail": lambda: tail.measure(
            allowed(), tail.CALLS if preset == "paper" else 100
        ),
    }
    return results.fill(plan, preset=preset, folder=folder)

"""PyTorch, JAX and ONNX Runtime on the same parameters: what `make bench-peers` measures us beside.

Each peer takes Params (LSTM, with a read-out) and a thread count, and has `predict(x)`, the outputs
y (T, B, H) as a NumPy array, and, but for ONNX Runtime, `step(x, target, rate)`, one step of
gradient descent on the mean squared error. Both end when the result is there. The peers' packages
are imported where they are used: the report does not need them.
"""

import sys
from functools import partial
from importlib import metadata

import numpy as np
import pandas as pd

from ..cores import allowed, cores, why
from ..training import train
from ..versions import network
from . import experiments, provenance, results, tail
from .comparer import MismatchError
from .timing import interleaved


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
            named = {"W": W, "R": R, "b": np.hstack([b, np.zeros_like(b)])}
            weights += [numpy_helper.from_array(a, f"{n}{index}") for n, a in named.items()]
            inputs = [name, *(f"{n}{index}" for n in named)]
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


# Seconds of sleep before a case, so that the waiting threads of the last one's library are gone.
REST = 0.03


def side_by_side(work, names, threads, repeats, *, mine=None):
    """Rows of a results file: ours and the peers, in one loop, on one workload.

    mine: versions; None is `numba-fused`, and `numba-wavefront` where it has something to gain.
    """
    params, (x, target) = work.params(), work.example()
    nets = {name: PEERS[name](params, threads) for name in names}
    if mine is None:
        mine = ["numba-fused", *(["numba-wavefront"] if work.L > 1 and work.B == 1 else [])]
    ours = {name: network(name, params, threads=threads) for name in mine}
    errors = agreement(ours["numba-fused"], nets, x, target) | experiments.verify(ours, work)
    forward = {name: (lambda net=net: net.predict(x)) for name, net in nets.items()}
    step = {
        name: (lambda net=net: net.step(x, target, 1e-4))
        for name, net in nets.items()
        if hasattr(net, "step")
    }
    forward |= {name: (lambda net=net: net.forward(x)) for name, net in ours.items()}
    step |= {name: (lambda net=net: net.step(x, target, 1e-4)) for name, net in ours.items()}
    parts = []
    for stage, cases in {"forward": forward, "step": step}.items():
        times = interleaved(cases, repeats=repeats, rest=REST)
        parts.append(experiments.rows_of(times, work, stage, errors))
    experiments.verify(ours, work)
    rows = pd.concat(parts, ignore_index=True).assign(threads=threads)
    rows["variant"] = rows["version"].map(PACKAGES).map(metadata.version, na_action="ignore")
    return rows


def agreement(ours, nets, x, target):
    """Largest difference of each peer's outputs from ours; MismatchError if any is not rounding."""
    y, _ = ours.forward(x)
    errors = {name: float(np.abs(net.predict(x) - y).max()) for name, net in nets.items()}
    loss, _ = ours.loss_and_grads(x, target)
    losses = {name: n.step(x, target, 1e-9) for name, n in nets.items() if hasattr(n, "step")}
    wrong = [name for name, error in errors.items() if not error < 1e-4]
    wrong += [name for name, other in losses.items() if not abs(other - loss) < 1e-4 * abs(loss)]
    if wrong:
        raise MismatchError(f"{', '.join(wrong)}: other outputs or loss than numba-fused")
    return errors


def airline_epoch(threads, repeats):
    """An epoch of the airline network: compiled as a whole, and PyTorch's steps one by one."""
    dataset, work = experiments.airline_dataset(), experiments.AIRLINE
    ours, peer = (
        network("numba-fused", work.params(), threads=threads),
        Torch(work.params(), threads),
    )
    order = np.arange(len(dataset))

    cases = {
        "numba-fused": lambda: ours.epoch(dataset, order, work.B, 0.05),
        "numba-fused/train": lambda: train(ours, dataset, 1, work.B, 0.05, progress=False),
        "pytorch": lambda: dataset.each_batch(order, work.B, partial(peer.step, rate=0.05)),
    }
    times = interleaved(cases, repeats=repeats, rest=REST)
    return experiments.rows_of(times, work, "epoch", {}).assign(threads=threads)


def overhead(threads, repeats):
    """The airline forward pass by the public call, and the compiled code in it alone."""
    work = experiments.AIRLINE
    net, (x, _) = network("numba-fused", work.params(), threads=threads), work.example()
    cases = {"public call": lambda: net.forward(x), "kernel": net.bare_forward(x)}
    times = interleaved(cases, repeats=repeats, rest=REST)
    rows = experiments.rows_of(times, work, "forward", {}).assign(version="numba-fused")
    return rows.assign(variant=times["case"], threads=threads)


def ceilings(threads, repeats):
    """Seconds of a 4096 x 4096 SGEMM by BLAS, and of copying 256 MiB, as rows."""
    a = np.random.default_rng(0).standard_normal((4096, 4096), dtype=np.float32)
    out, source, copy = np.empty_like(a), np.ones(2**26, np.float32), np.empty(2**26, np.float32)
    cases = {
        "sgemm": lambda: np.matmul(a, a, out=out),
        "copy": lambda: np.copyto(copy, source),
    }
    times = interleaved(cases, repeats=repeats, rest=REST)
    frame = {"version": times["case"], "stage": "ceiling", "repeat": times["repeat"]}
    return pd.DataFrame(frame | {"seconds": times["seconds"], "threads": threads})


# Operations of the SGEMM and bytes of the copy, read and written.
SGEMM_GFLOP, COPY_GB = 2 * 4096**3 / 1e9, 2 * 2**28 / 1e9


def main(preset="paper", folder=None):
    """Run the comparison on every workload and write peers.csv and tail.csv (`results.write`)."""
    results.place(("peers", "tail"), preset=preset, folder=folder)
    for warning in provenance.distorting_variables():
        print(f"warning: {warning} steers BLAS; unset it", file=sys.stderr)
    if cores() < allowed():
        print(f"warning: {why()}; everyone's threads will pause", file=sys.stderr)
    threads, paper = allowed(), preset == "paper"
    works = experiments.GRID.values() if paper else [experiments.AIRLINE]
    parts = [ceilings(threads, 9 if paper else 2)]
    for work in works:
        repeats = experiments.repeats_for(work) if paper else 2
        parts.append(side_by_side(work, list(PEERS), threads, repeats))
    parts += [part(threads, 20 if paper else 2) for part in (airline_epoch, overhead, ceilings)]
    rows = pd.concat(parts, ignore_index=True)
    worst = tail.measure(threads, tail.CALLS if paper else 100)
    results.write("tail", worst, preset=preset, folder=folder)
    return rows, results.write("peers", rows, preset=preset, folder=folder)

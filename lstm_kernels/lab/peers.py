"""PyTorch, JAX and ONNX Runtime on the same parameters: what `make bench-peers` measures us beside.

Each peer takes Params (LSTM, with a read-out) and a thread count, and has `predict(x)`, the outputs
y (T, B, H) as a NumPy array, and, but for ONNX Runtime, `step(x, target, rate)`, one step of
gradient descent on the mean squared error. Both end when the result is there. The peers' packages
are imported where they are used: the report does not need them.
"""

import os

import numpy as np


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
        return float(loss)


class Jax:
    """`lax.scan` under `jit`, inputs of all steps in one product; XLA's own threads.

    XLA takes every core this process may use, so `threads` must be that many.
    """

    def __init__(self, params, threads):
        import jax

        if threads != len(os.sched_getaffinity(0)):
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


PEERS = {"pytorch": Torch, "jax": Jax, "onnxruntime": OnnxRuntime}

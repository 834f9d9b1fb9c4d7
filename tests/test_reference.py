"""The reference against finite differences, and against PyTorch where that is
installed.
"""

import numpy as np
import pytest
from conftest import example
from test_output_layer import finite_differences

import lstm_kernels as lk
from lstm_kernels import reference
from lstm_kernels.cells import CELLS
from lstm_report.measure.comparer import compare


@pytest.mark.parametrize("shape", [(1, 3, 2, 2, 3), (2, 4, 3, 3, 2)], ids=str)
def test_every_gradient_against_finite_differences(cell, shape):
    params, x, _ = example(shape, cell, np.float64)
    rng = np.random.default_rng(1)
    states = [
        rng.standard_normal((shape[0], shape[2], shape[4])) for _ in CELLS[cell].state
    ]
    weights = [
        rng.standard_normal((*x.shape[:2], shape[4])),
        *map(rng.standard_normal, [s.shape for s in states]),
    ]

    def value():
        y, final, _ = reference.forward(params, x, tuple(states))
        return sum(np.sum(a * w) for a, w in zip((y, *final), weights, strict=True))

    _, _, tapes = reference.forward(params, x, tuple(states))
    got = reference.backward(params, tapes, weights[0], tuple(weights[1:])).arrays()
    inputs = params.arrays() | {"x": x}
    inputs |= {f"state.{n}": a for n, a in zip(CELLS[cell].state, states, strict=True)}
    want = finite_differences(value, inputs)
    compare(got, want, 1e-7)


def test_loss_gradients_of_the_read_out(cell):
    params, x, target = example((1, 3, 4, 2, 3), cell, np.float64)
    _, grads = reference.loss_and_grads(params, x, target)
    read_out = {"V": params.V, "b_out": params.b_out}
    want = finite_differences(
        lambda: reference.loss_and_grads(params, x, target)[0], read_out
    )
    compare({name: grads.arrays()[name] for name in want}, want, 1e-7)


@pytest.mark.parametrize("version", ["numpy", "numpy-naive", "numpy-sample"])
def test_numbers_beyond_the_range_are_no_warning(version, cell):
    """Warnings are errors here; results beyond the range are the caller's to judge."""
    params, x, target = example((1, 3, 4, 2, 3), cell)
    params.layers[0].b[:] = 3.4e38
    params.layers[0].U[:] = 3.4e38
    params.V[:] = 3e38
    net = lk.network(version, params)
    y, _ = net.forward(np.abs(x) + 1, training=True)
    assert y.shape == (3, 4, 3)
    net.backward(np.full_like(y, 3e38))
    net.predict(np.abs(x))
    loss, _ = net.loss_and_grads(np.abs(x), target)
    assert cell == "gru" or not np.isfinite(loss)  # whose gates saturate
    net.step(np.abs(x), target, 3e38)


def test_agrees_with_pytorch(cell):
    torch = pytest.importorskip("torch")
    params, x, _ = example((2, 6, 3, 4, 5), cell, np.float64, output_size=None)
    module = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[cell](
        4, 5, 2
    ).double()
    module.load_state_dict({n: torch.tensor(a) for n, a in params.to_torch().items()})
    x_torch = torch.tensor(x, requires_grad=True)
    y, _ = module(x_torch)
    dy = np.random.default_rng(2).standard_normal(y.shape)
    y.backward(torch.tensor(dy))
    net = lk.network("numpy", params)
    got, _ = net.forward(x, training=True)
    grads = net.backward(dy)
    compare(
        {"y": got, "x": grads.x},
        {"y": y.detach().numpy(), "x": x_torch.grad.numpy()},
        1e-12,
    )
    theirs = {name: a.grad.numpy() for name, a in module.named_parameters()}
    for index, layer in enumerate(grads.layers):
        want = {
            "U": theirs[f"weight_ih_l{index}"].T,
            "W": theirs[f"weight_hh_l{index}"].T,
            "b": theirs[f"bias_ih_l{index}"],
        }
        if cell == "gru":
            want["b"] = np.concatenate([want["b"], theirs[f"bias_hh_l{index}"][10:]])
        compare({"U": layer.U, "W": layer.W, "b": layer.b}, want, 1e-12)
    again = lk.Params.from_torch(module.state_dict())
    compare(again.arrays(), params.arrays(), 0)

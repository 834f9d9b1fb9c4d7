"""The reference from outside: the equations of every cell as their papers write them,
finite differences of these, and PyTorch where that is installed.
"""

import numpy as np
import pytest
from conftest import ALL_CELLS, example

import lstm_kernels as lk
from lstm_kernels import reference
from lstm_kernels.cells import CELLS
from lstm_kernels.output_layer import (
    back,
    cross_entropy_and_dz,
    log_softmax,
    squared_error_and_dz,
)
from lstm_report.measure.comparer import compare


def logistic(x):
    return 1 / (1 + np.exp(-x))


def step_of_the_papers(cell, x, h, c, U, W, b):
    """h and c of a step."""
    if cell == "rnn":
        return np.tanh(x @ U + h @ W + b), c
    H = h.shape[1]
    if cell == "gru":  # the reset gate after the recurrent product
        u, w = np.split(x @ U, 3, axis=1), np.split(h @ W, 3, axis=1)
        b_r, b_z, b_n, b_hn = np.split(b, 4)
        r, z = logistic(u[0] + w[0] + b_r), logistic(u[1] + w[1] + b_z)
        n = np.tanh(u[2] + b_n + r * (w[2] + b_hn))
        return (1 - z) * n + z * h, c
    assert cell in ("lstm", "coupled"), f"{cell}: its equations are missing here"
    a = np.split(x @ U + h @ W + b, U.shape[1] // H, axis=1)
    i, o, g = logistic(a[0]), logistic(a[-1]), np.tanh(a[-2])
    f = logistic(a[1]) if cell == "lstm" else 1 - i  # coupled gates
    c = f * c + i * g
    return o * np.tanh(c), c


def written_out(params, x, state):
    """y and the final state."""
    finals, names = [], CELLS[params.cell].state
    for layer, *initial in zip(params.layers, *state, strict=True):
        h, c, outputs = initial[0], initial[-1], []
        for x_t in x:
            h, c = step_of_the_papers(params.cell, x_t, h, c, *vars(layer).values())
            outputs.append(h)
        x = np.array(outputs)
        finals.append((h, c)[: len(names)])
    return x, tuple(np.array(part) for part in zip(*finals, strict=True))


def finite_differences(value, arrays):
    """The gradient of value() by each number of arrays, by name, in their own
    shapes.
    """
    grads = {name: np.zeros_like(a) for name, a in arrays.items()}
    for name, a in arrays.items():
        for at in np.ndindex(a.shape):
            middle, eps = a[at], 1e-6
            a[at] = middle + eps
            up = value()
            a[at] = middle - eps
            grads[name][at] = (up - value()) / (2 * eps)
            a[at] = middle
    return grads


@pytest.mark.parametrize("shape", [(1, 3, 2, 2, 3), (2, 4, 3, 3, 2)], ids=str)
@pytest.mark.parametrize("cell", ALL_CELLS)
def test_the_reference_is_the_equations_and_their_differences(cell, shape):
    params, x, target = example(shape, cell, np.float64)
    rng, (L, T, B, _, H) = np.random.default_rng(1), shape
    states = [rng.standard_normal((L, B, H)) for _ in CELLS[cell].state]
    dy, *dstate = (rng.standard_normal(a.shape) for a in (np.empty((T, B, H)), *states))
    y, final, tapes = reference.forward(params, x, tuple(states))
    want_y, want_final = written_out(params, x, states)
    want = {"y": want_y} | dict(enumerate(want_final))
    compare({"y": y} | dict(enumerate(final)), want, 1e-13)

    def weighted():
        y, final = written_out(params, x, states)
        return sum(
            np.sum(a * w) for a, w in zip((y, *final), (dy, *dstate), strict=True)
        )

    def loss():
        y, _ = written_out(params, x, [np.zeros_like(a) for a in states])
        return np.mean((y[-1] @ params.V + params.b_out - target) ** 2)

    got = reference.backward(params, tapes, dy, tuple(dstate)).arrays()
    inputs = params.arrays() | {"x": x}
    inputs |= {f"state.{n}": a for n, a in zip(CELLS[cell].state, states, strict=True)}
    compare(got, finite_differences(weighted, inputs), 1e-7)
    got_loss, grads = reference.loss_and_grads(params, x, target)
    assert got_loss == pytest.approx(loss(), rel=1e-12)
    slopes = finite_differences(loss, params.arrays())
    compare({name: grads.arrays()[name] for name in slopes}, slopes, 1e-7)


@pytest.mark.parametrize("version", ["numpy", "numpy-naive", "numpy-sample"])
def test_numbers_beyond_the_range_are_no_warning(version, cell):
    """Warnings are errors here; results beyond the range are the caller's to judge."""
    params, x, target = example((1, 3, 4, 2, 3), cell)
    params.layers[0].b[:] = 3.4e38
    params.layers[0].U[:] = 3.4e38
    params.V[:] = 3e38
    net = lk.network(version, params)
    y, _ = net.forward(np.abs(x) + 1, training=True)
    net.backward(np.full_like(y, 3e38))
    net.predict(np.abs(x))
    loss, _ = net.loss_and_grads(np.abs(x), target)
    assert cell == "gru" or not np.isfinite(loss)  # whose gates saturate
    net.step(np.abs(x), target, 3e38)


def test_agrees_with_pytorch(cell):
    torch = pytest.importorskip("torch")
    params, x, _ = example((2, 6, 3, 4, 5), cell, np.float64, output_size=None)
    module = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[cell]
    module = module(4, 5, 2).double()
    module.load_state_dict({n: torch.tensor(a) for n, a in params.to_torch().items()})
    x_torch = torch.tensor(x, requires_grad=True)
    y, _ = module(x_torch)
    dy = np.random.default_rng(2).standard_normal(y.shape)
    y.backward(torch.tensor(dy))
    tape = lk.network("numpy", params).record(x)
    grads = tape.backward(dy)
    theirs = {name: a.grad.numpy() for name, a in module.named_parameters()}
    got, want = {"y": tape.y, "x": grads.x}, {"y": y.detach().numpy()}
    want["x"] = x_torch.grad.numpy()
    for index, layer in enumerate(grads.layers):
        b = theirs[f"bias_ih_l{index}"]
        if cell == "gru":
            b = np.concatenate([b, theirs[f"bias_hh_l{index}"][10:]])
        got |= {f"U{index}": layer.U, f"W{index}": layer.W, f"b{index}": layer.b}
        want |= {f"U{index}": theirs[f"weight_ih_l{index}"].T, f"b{index}": b}
        want |= {f"W{index}": theirs[f"weight_hh_l{index}"].T}
    compare(got, want, 1e-12)


# Output layers

T, B, H, O, COUNT = 4, 3, 5, 6, 10


def output_example():
    """y (T, B, H), V (H, O), b_out (O,); symbols (T, B), of which five are left out;
    target (B, O).
    """
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s) for s in ((T, B, H), (H, O), (O,), (B, O))]
    symbols = rng.integers(0, O, (T, B))
    symbols[2:, 1], symbols[1:, 2] = -1, -7
    return arrays[:3], symbols, arrays[3]


def nats(y, V, b_out, symbols):
    total = 0.0
    for t, b in np.argwhere(symbols >= 0):
        z = y[t, b] @ V + b_out
        total -= np.log(np.exp(z[symbols[t, b]]) / np.exp(z).sum())
    return total


def squares(y, V, b_out, target):
    return np.sum((y[-1] @ V + b_out - target) ** 2)


@pytest.mark.parametrize("of_symbols", [True, False])
def test_a_loss_and_its_gradients_are_the_definition(of_symbols):
    arrays, symbols, target = output_example()
    definition, loss_and_dz, wanted = squares, squared_error_and_dz, target
    if of_symbols:
        definition, loss_and_dz, wanted = nats, cross_entropy_and_dz, symbols
    named = dict(zip(("y", "V", "b_out"), arrays, strict=True))
    loss = lambda: definition(*arrays, wanted) / COUNT  # noqa: E731
    want = {"loss": loss()} | finite_differences(loss, named)
    before = [a.copy() for a in (*arrays, wanted)]
    got, dz = loss_and_dz(*arrays, wanted, COUNT)
    gradients = zip(named, back(*arrays[:2], dz), strict=True)
    compare({"loss": np.array(got), **dict(gradients)}, want, 1e-8)
    np.testing.assert_equal([*arrays, wanted], before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pre_activations_where_exp_has_no_number(dtype):
    z = np.array([1e4, -1e4, 0, 1e4 - 1], dtype)
    log_p = log_softmax(np.ones((1, 1, 1), dtype), np.zeros((1, 4), dtype), z)
    assert log_p.dtype == dtype
    top = -np.log1p(np.exp(-1.0))
    compare({"p": log_p[0, 0]}, {"p": np.array([0, -2e4, -1e4, -1]) + top}, 1e-6)


def test_steps_without_a_symbol_have_no_part_even_where_they_are_not_finite():
    y, symbols = np.ones((2, 1, 1), np.float32), np.array([[0], [-1]])
    V, b_out = np.array([[2e38, -2e38]], np.float32), np.zeros(2, np.float32)
    want = cross_entropy_and_dz(y, V, b_out, symbols, 1)
    y[1] = 2  # its pre-activations are beyond float32
    got = cross_entropy_and_dz(y, V, b_out, symbols, 1)
    np.testing.assert_equal(got, want)
    assert not want[1][1].any()


def test_a_loss_that_is_not_finite_has_gradients_of_zero_and_no_warning():
    (y, V, b_out), symbols, target = output_example()
    y, V, b_out, target = (
        a.astype(np.float32) for a in (y, V * 0 + 3e38, b_out, target)
    )
    for function, wanted in (
        (cross_entropy_and_dz, symbols),
        (squared_error_and_dz, target),
    ):
        loss, dz = function(np.abs(y), V, b_out, wanted, COUNT)
        assert not np.isfinite(loss)
        assert not any(a.any() for a in back(y, V, dz))

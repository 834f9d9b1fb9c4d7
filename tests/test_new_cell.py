"""A new cell is two functions and a line in CELLS: every version, and what is about
parameters, takes it from there, for any number of gates.

The cell of these tests is an LSTM with coupled gates (Greff et al. 2017): f = 1 - i.
"""

import numpy as np
import pytest
from conftest import VERSIONS

import lstm_kernels as lk
from lstm_kernels.cells import CELLS, Cell
from lstm_report.measure.comparer import TOLERANCE, compare

L, T, B, D, H, O = 2, 4, 3, 2, 7, 2
SIZES = {"num_layers": L, "output_size": O}


def coupled(tanh, sigmoid):
    def forward(i_bar, g_bar, o_bar, c_prev):
        i, o = sigmoid(i_bar), sigmoid(o_bar)
        g = tanh(g_bar)
        c = c_prev + i * (g - c_prev)
        return i, g, o, o * tanh(c), c

    def backward(dh, dc, i, g, o, c_prev, c):
        tanh_c = tanh(c)
        do, dtanh_c = dh * tanh_c, dh * o
        dc = dc + dtanh_c - dtanh_c * tanh_c * tanh_c
        di, dg = dc * (g - c_prev), dc * i
        return (di - di * i) * i, dg - dg * g * g, (do - do * o) * o, dc - dc * i

    return forward, backward


GATES = (0, 1, 2)
CELL = Cell("coupled", ("i", "g", "o"), GATES, GATES, ("h", "c"), coupled)


@pytest.fixture(scope="module", autouse=True)
def registered():
    CELLS["coupled"] = CELL
    yield
    del CELLS["coupled"]


def written_out(arrays, x, h, c):
    """The network in the words of its equations: y, h and c (L, B, H), and what it
    predicts.
    """
    final = []
    for l in range(L):
        U, W, b = (arrays[f"layers.{l}.{part}"] for part in "UWb")
        h_l, c_l, outputs = h[l], c[l], []
        for x_t in x:
            a = x_t @ U + h_l @ W + b
            i, g, o = a[:, :H], a[:, H : 2 * H], a[:, 2 * H :]
            i, o = 1 / (1 + np.exp(-i)), 1 / (1 + np.exp(-o))
            c_l = (1 - i) * c_l + i * np.tanh(g)
            h_l = o * np.tanh(c_l)
            outputs.append(h_l)
        x = np.array(outputs)
        final.append((h_l, c_l))
    h, c = map(np.array, zip(*final, strict=True))
    return x, h, c, x[-1] @ arrays["V"] + arrays["b_out"]


def differences(value, arrays):
    """The gradient of value() by each of `arrays`, by central differences."""
    grads = {}
    for name, a in arrays.items():
        grads[name] = np.zeros_like(a)
        for at in np.ndindex(a.shape):
            middle = a[at]
            a[at] = middle + 1e-6
            up = value()
            a[at] = middle - 1e-6
            grads[name][at] = (up - value()) / 2e-6
            a[at] = middle
    return grads


def draw(*shape):
    return np.random.default_rng(shape).standard_normal(shape)


@pytest.fixture(scope="module")
def example(registered):
    """Inputs, and what the equations and their differences give for them."""
    params = lk.Params.init(D, H, cell="coupled", dtype=np.float64, **SIZES)
    arrays, x, target = params.arrays(), draw(T, B, D), draw(B, O)
    h, c = draw(2, L, B, H)
    weights = draw(T, B, H), *draw(3, L, B, H)[1:]

    def weighted():
        y, *final, _ = written_out(arrays, x, h, c)
        return sum((a * w).sum() for a, w in zip((y, *final), weights, strict=True))

    def loss():
        zero = np.zeros((L, B, H))
        return np.mean((written_out(arrays, x, zero, zero)[-1] - target) ** 2)

    inputs = {n: a for n, a in arrays.items() if n not in ("V", "b_out")}
    inputs |= {"x": x, "state.h": h, "state.c": c}
    passed = differences(weighted, inputs)
    descent = differences(loss, arrays)
    return params, x, target, (h, c), weights, passed, loss(), descent


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", VERSIONS)
def test_every_version_has_it(name, dtype, example):
    if dtype == np.float64 and name not in ("sequential", "numpy", "numba-fused"):
        pytest.skip("compiles for seconds what other cells show of it")
    params, x, target, state, weights, passed, loss, descent = example
    want = written_out(params.arrays(), x, *state)[:3]
    x, target, *rest = (a.astype(dtype) for a in (x, target, *state, *weights))
    state, weights = tuple(rest[:2]), rest[2:]
    net = lk.network(name, params.astype(dtype), threads=2)
    most = max(TOLERANCE[np.dtype(dtype)], 1e-7)  # 1e-7: of the differences
    for training in (False, True):
        y, final = net.forward(x, state, training=training)
        got = dict(zip(("y", "h", "c"), (y, *final), strict=True))
        compare(got, dict(zip(got, want, strict=True)), most)
    grads = net.backward(weights[0], tuple(weights[1:])).arrays()
    compare({n: grads[n] for n in passed}, passed, most)
    got_loss, grads = net.loss_and_grads(x, target)
    grads = grads.arrays()
    compare({n: grads[n] for n in descent}, descent, most)
    assert got_loss == pytest.approx(loss, rel=most)
    assert net.step(x, target, 0.5) == pytest.approx(loss, rel=most)
    arrays = params.arrays()
    moved = {n: arrays[n] - 0.5 * a for n, a in descent.items()}
    compare(net.params().arrays(), moved, most)


def test_files_take_it_and_pytorch_has_none(tmp_path, example):
    params = example[0]
    params.save(tmp_path / "net.npz")
    compare(lk.Params.load(tmp_path / "net.npz").arrays(), params.arrays(), 0)
    with pytest.raises(ValueError, match="cell: got 'coupled', want one that PyTorch"):
        params.to_torch()


def test_weights_of_three_gates_are_pytorchs_gru():
    params = lk.Params.init(D, H, cell="gru", **SIZES)
    again = lk.Params.from_torch(params.to_torch())
    assert again.cell == "gru"
    compare(again.arrays(), params.arrays(), 0)

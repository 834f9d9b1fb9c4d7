"""Low-rank weights: factors, their gradients, and the factored network against the
reference.
"""

import numpy as np
import pytest
from conftest import example

import lstm_kernels as lk
from lstm_kernels import low_rank, reference
from lstm_kernels.versions import factored
from lstm_kernels.versions.factored import FactoredNetwork
from lstm_report.measure.comparer import TOLERANCE, MismatchError, compare

CELLS = ("lstm", "rnn")
SIZES = [
    (1, 1, 1, 1, 1),
    (1, 5, 1, 2, 7),
    (2, 4, 3, 3, 17),
    (3, 3, 9, 70, 64),
    (1, 70, 17, 16, 63),
    (2, 3, 2, 33, 31),
]


def ranks(params):
    """1, ranks around a vector and a wide block, and all."""
    full = low_rank.full_rank(params)
    return sorted({1, full, *(r for r in (15, 16, 17, 33, 65) if r < full)})


def check(net, factors, x, seed=0):
    """Inference from a random state and from zero, against the reference in float64 on
    the product of the factors.
    """
    rng, dense = np.random.default_rng(seed), factors.astype(np.float64).dense()
    size = factors.num_layers, x.shape[1], factors.hidden_size
    names = ("h", "c")[: 2 if factors.cell == "lstm" else 1]
    state = tuple(rng.uniform(-1, 1, size).astype(x.dtype) for _ in names)
    for initial in (state, None):
        y, final = net.forward(x, initial)
        wide = initial and tuple(a.astype(np.float64) for a in initial)
        want, want_final, _ = reference.forward(dense, x.astype(np.float64), wide)
        got = {"y": y, **dict(zip(names, final, strict=True))}
        want = {"y": want, **dict(zip(names, want_final, strict=True))}
        compare(got, want, TOLERANCE[x.dtype])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("cell", CELLS)
def test_inference_agrees_with_the_reference(cell, dtype, monkeypatch):
    monkeypatch.setattr(factored, "LEAST_SHARED", 0)  # threads share passes of any size
    for shape in SIZES:
        params, x, _ = example(shape, cell, dtype)
        for rank in ranks(params):
            factors = low_rank.factor(params, rank)
            for threads in (1, 2):
                check(FactoredNetwork(factors, threads=threads), factors, x, rank)


def test_few_threads_do_not_share_a_small_pass():
    params, x, _ = example((2, 6, 5, 3, 17))
    factors = low_rank.factor(params, 4)
    net = FactoredNetwork(factors, threads=2)
    check(net, factors, x)
    assert net._space.threads == 1


def test_the_comparison_sees_planted_faults():
    params, x, _ = example((2, 4, 3, 3, 17))
    factors = low_rank.factor(params, 5)
    for name in ("layers.0.P", "layers.1.Q", "layers.1.b"):
        other = factors.copy()
        other.arrays()[name][0] *= 1.01
        with pytest.raises(MismatchError):
            check(FactoredNetwork(other), factors, x)


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_through_the_factors_are_those_of_finite_differences(cell):
    params, x, target = example((2, 4, 3, 3, 5), cell, np.float64)
    factors = low_rank.factor(params, 3)
    _, dense = reference.loss_and_grads(factors.dense(), x, target)
    grads = low_rank.through_factors(factors, dense)
    compare({"x": grads.x}, {"x": dense.x}, 0)
    assert "rank" not in repr(dense)
    for name, a in factors.arrays().items():
        for index in list(np.ndindex(a.shape))[:: max(1, a.size // 7)]:
            losses = []
            for step in (1e-6, -1e-6):
                moved = factors.copy()
                moved.arrays()[name][index] += step
                losses.append(reference.loss_and_grads(moved.dense(), x, target)[0])
            want = (losses[0] - losses[1]) / 2e-6
            got = grads.arrays()[name][index]
            assert got == pytest.approx(want, rel=1e-5, abs=1e-8), (name, index)
    for name, state in zip(("h", "c"), grads.state, strict=False):
        np.testing.assert_array_equal(state, dense.arrays()[f"state.{name}"])


def test_a_full_rank_is_the_dense_network_and_lower_ones_are_nearest():
    """Eckart & Young (1936): the error of a rank is that of the singular values that it
    leaves out.
    """
    params, x, _ = example((2, 6, 4, 3, 17))
    matrix = np.vstack([params.layers[0].U, params.layers[0].W]).astype(np.float64)
    values = np.linalg.svd(matrix, compute_uv=False)
    for rank in range(1, 21):
        layer = low_rank.factor(params, rank).layers[0]
        error = np.linalg.norm(matrix - layer.P.astype(np.float64) @ layer.Q)
        want = np.linalg.norm(values[rank:])
        assert error == pytest.approx(want, rel=1e-4, abs=1e-5)
    full = low_rank.factor(params, low_rank.full_rank(params))
    want = lk.network("numba-fused", params).forward(x)[0]
    compare({"y": FactoredNetwork(full).forward(x)[0]}, {"y": want}, 2e-5)
    assert full.rank == 34
    assert full.count == 2 * 4 * 17 + 34 * (20 + 34 + 2 * 68)
    assert not full.layers[0].P[:, 20:].any()  # it has 20 rows


def test_both_factors_take_the_root_of_the_singular_values():
    """So they descend at the same rate: columns of P and rows of Q are as long, and at
    right angles.
    """
    params, _, _ = example((1, 1, 1, 3, 17), dtype=np.float64)
    (layer,) = low_rank.factor(params, 9).layers
    matrix = np.vstack([params.layers[0].U, params.layers[0].W])
    values = np.diag(np.linalg.svd(matrix, compute_uv=False)[:9])
    np.testing.assert_allclose(layer.P.T @ layer.P, values, atol=1e-12)
    np.testing.assert_allclose(layer.Q @ layer.Q.T, values, atol=1e-12)


def test_the_same_bits_for_any_number_of_threads_and_in_every_call():
    for shape in [(2, 9, 5, 3, 33), (1, 70, 1, 64, 64)]:
        params, x, _ = example(shape)
        results = []
        for threads in (1, 2):
            net = FactoredNetwork(low_rank.factor(params, 7), threads=threads)
            results += [net.forward(x)[0], net.forward(x)[0]]
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])


def test_shapes_may_alternate_and_results_are_the_caller_s():
    params, x, _ = example((2, 5, 4, 3, 64))
    factors = low_rank.factor(params, 8)
    net = FactoredNetwork(factors, threads=2)
    results = [(y, *final) for y, final in (net.forward(x), net.forward(x[:, :1]))]
    before = [[a.copy() for a in arrays] for arrays in results]
    for B in (1, 4, 3):
        check(net, factors, np.ascontiguousarray(x[:, :B]))
    for arrays, were in zip(results, before, strict=True):
        for array, was in zip(arrays, were, strict=True):
            assert array.flags.c_contiguous
            np.testing.assert_array_equal(array, was)


def test_an_assignment_starts_anew():
    params, x, target = example((2, 5, 12, 3, 20))
    factors, other = (low_rank.factor(p, 6) for p in (params, params.copy()))
    other.layers[0].Q *= 2
    net = FactoredNetwork(factors)
    net.forward(x)
    net.assign(other)
    check(net, other, x)
    assert net.predict(x).shape == target.shape
    want = "LSTM, 2 layers of 20, 3 inputs, read-out 2, float32, rank 6"
    assert net.params().form == want


def test_bad_input():
    params, x, _ = example((2, 4, 3, 5, 8))
    for rank in (0, 17, -1, 2.0):
        with pytest.raises((TypeError, ValueError), match=f"rank: got {rank}"):
            low_rank.factor(params, rank)
    assert low_rank.full_rank(params) == 16
    factors = low_rank.factor(params, 4)
    half = {name: a.astype(np.float16) for name, a in factors.arrays().items()}
    arrays, layers = factors.arrays(), factors.layers
    net = FactoredNetwork(factors)

    def made(named):
        return lambda: FactoredNetwork(low_rank.Factored.from_arrays(named, "lstm"))

    for call, message in (
        (
            lambda: low_rank.factor(lk.Params.init(3, 4, cell="gru"), 1),
            "params.cell: got 'gru', want one of 'rnn', 'lstm'",
        ),
        (lambda: lk.network("numba-fused", factors), "params: got Factored, want lstm"),
        (lambda: FactoredNetwork(params), "params: got Params, want low_rank.Factored"),
        (made(arrays | {"layers.1.P": layers[1].P[:, :3]}), r"params.layers\[1\].P: "),
        (made(arrays | {"layers.0.Q": layers[0].Q[:3]}), r"params.layers\[0\].Q: got"),
        (
            made(arrays | {"layers.0.P": layers[0].P[:8]}),
            r"params.layers\[0\]: got b o",
        ),
        (made(arrays | {"layers.1.b": layers[1].b[:-4]}), r"params.layers\[1\].b: got"),
        (made(arrays | {"V": factors.V[:5]}), r"params.V: got shape \(5, 2\)"),
        (made(half), "params.* got dtype float16, want float32 or float64"),
        (
            made(arrays | {"layers.1.Q": layers[1].Q.astype(np.float64)}),
            r"params.layers\[1\].Q: got dtype float64, want float32",
        ),
        (lambda: net.forward(x.astype(np.float64)), "x: got dtype float64"),
        (
            lambda: net.assign(low_rank.factor(params, 3)),
            "params: got .* rank 3, want .* rank 4",
        ),
        (lambda: FactoredNetwork(factors, threads=10**6), "threads: got"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^{message}"):
            call()

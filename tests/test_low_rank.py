"""Weights of low rank: factors, and the network of them against the reference."""

import numpy as np
import pytest
from conftest import example

import lstm_kernels as lk
from lstm_kernels import reference
from lstm_report.experiments import ideas
from lstm_report.measure.comparer import TOLERANCE, compare
from lstm_report.studies import low_rank
from lstm_report.studies.low_rank import CompiledCell, LowRank, cut, factor

SIZES = [(1, 1, 1, 1, 1), (2, 4, 3, 3, 17), (3, 3, 9, 20, 8)]


@pytest.mark.parametrize("cell", low_rank.FACTORABLE)
@pytest.mark.parametrize("shape", SIZES)
def test_outputs_and_gradients_are_those_of_the_product(shape, cell):
    """dP = dM Q^T and dQ = P^T dM for M = P Q, from the reference's dU and dW."""
    params, x, target = example(shape, cell)
    for rank in sorted({1, (1 + low_rank.full_rank(params)) // 2}):
        net = LowRank(factor(params, rank))
        factored = net.params()
        wide = factored.dense().astype(np.float64), x.astype(np.float64)
        loss, dense = reference.loss_and_grads(*wide, target.astype(np.float64))
        want = {"y": reference.forward(*wide)[0], "loss": loss}
        want |= {"V": dense.V, "b_out": dense.b_out}
        for l, (layer, grads) in enumerate(
            zip(factored.layers, dense.layers, strict=True)
        ):
            dM = np.vstack([grads.U, grads.W])
            want[f"layers.{l}.P"] = dM @ layer.Q.T
            want[f"layers.{l}.Q"] = layer.P.T @ dM
            want[f"layers.{l}.b"] = grads.b
        loss, grads = net.loss_and_grads(x, target)
        got = {"y": net.forward(x)[0], "loss": loss} | grads.arrays()
        compare(got, want, TOLERANCE[x.dtype])


def test_a_full_rank_is_the_dense_network_and_lower_ones_are_nearest():
    """Eckart & Young (1936): the error of a rank is that of the singular values that it
    leaves out. Both factors take their roots: P^T P = Q Q^T = diag(values).
    """
    params, x, _ = example((2, 6, 4, 3, 17), dtype=np.float64)
    matrix = np.vstack([params.layers[0].U, params.layers[0].W])
    values = np.linalg.svd(matrix, compute_uv=False)
    for rank in range(1, 21):
        layer = factor(params, rank).layers[0]
        error = np.linalg.norm(matrix - layer.P @ layer.Q)
        assert error == pytest.approx(np.linalg.norm(values[rank:]), abs=1e-12)
        roots = np.diag(values[:rank])
        np.testing.assert_allclose(layer.P.T @ layer.P, roots, atol=1e-12)
        np.testing.assert_allclose(layer.Q @ layer.Q.T, roots, atol=1e-12)
    full = factor(params, low_rank.full_rank(params))
    assert [len(layer.Q) for layer in full.layers] == [34, 34]
    assert not full.layers[0].P[:, 20:].any()  # it has 20 rows
    want = lk.network("numpy", params).forward(x)[0]
    compare({"y": LowRank(full).forward(x)[0]}, {"y": want}, 1e-11)


@pytest.mark.parametrize("shape", SIZES)
def test_a_compiled_cell_and_a_lower_rank_give_the_same(shape):
    params, x, _ = example(shape)
    full = low_rank.full_rank(params)
    whole = factor(params, full)
    for rank in range(1, full + 1):
        factored = cut(whole, rank)
        want = LowRank(factored).forward(x)[0]
        compiled = CompiledCell(factored, ideas.compiled(low_rank.cells))
        compare({"y": compiled.forward(x)[0]}, {"y": want}, 1e-6)
        want = factor(params, rank).dense().arrays()
        compare(factored.dense().arrays(), want, 1e-6)


@pytest.mark.parametrize("rank", [0, 17, -1, 2.0])
def test_what_is_no_rank_or_has_none(rank):
    with pytest.raises((TypeError, ValueError), match=f"rank: got {rank}"):
        factor(lk.Params.init(5, 8, num_layers=2, output_size=1), rank)
    with pytest.raises(ValueError, match=r"params\.cell: got 'gru', want one of"):
        factor(lk.Params.init(3, 4, cell="gru", output_size=1), 1)
    with pytest.raises(ValueError, match="params: got no output layer"):
        factor(lk.Params.init(3, 4), 1)

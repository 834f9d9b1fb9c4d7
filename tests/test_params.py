"""Parameters: seeds, files, PyTorch's names."""

import numpy as np
import pytest
from conftest import example

import lstm_kernels as lk
from lstm_kernels.cells import CELLS

SHAPE = (2, 4, 3, 2, 5)


def same(a, b):
    assert a.cell == b.cell
    assert list(a.arrays()) == list(b.arrays())
    for name, value in a.arrays().items():
        assert value.dtype == b.arrays()[name].dtype
        np.testing.assert_array_equal(value, b.arrays()[name])


def test_shapes_follow_the_contract(cell):
    params = lk.Params.init(3, 5, 2, 4, cell)
    G, K = {"rnn": (1, 1), "lstm": (4, 4), "gru": (3, 4)}[cell]
    assert len(CELLS[cell].gates) == K
    assert [layer.U.shape for layer in params.layers] == [(3, G * 5), (5, G * 5)]
    assert [layer.W.shape for layer in params.layers] == [(5, G * 5)] * 2
    assert [layer.b.shape for layer in params.layers] == [(K * 5,)] * 2
    assert params.V.shape == (5, 4)
    assert params.b_out.shape == (4,)
    assert all(a.dtype == np.float32 for a in params.arrays().values())
    assert lk.Params.init(3, 5).V is None


def test_a_seed_gives_the_same_parameters(cell):
    same(lk.Params.init(3, 5, 2, 1, cell, seed=7), lk.Params.init(3, 5, 2, 1, cell, seed=7))
    other = lk.Params.init(3, 5, 2, 1, cell, seed=8)
    assert not np.array_equal(other.V, lk.Params.init(3, 5, 2, 1, cell, seed=7).V)


@pytest.mark.parametrize("output_size", [None, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_save_and_load(tmp_path, cell, dtype, output_size):
    params, _, _ = example(SHAPE, cell, dtype, output_size)
    params.save(tmp_path / "net.npz")
    same(lk.Params.load(tmp_path / "net.npz"), params)
    assert [p.name for p in tmp_path.iterdir()] == ["net.npz"]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    params, _, _ = example(SHAPE)
    path = tmp_path / "net.npz"
    params.save(path)
    monkeypatch.setattr(np, "savez", lambda file, **_: file.write(b"half") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        params.save(path)
    monkeypatch.undo()
    same(lk.Params.load(path), params)
    assert [p.name for p in tmp_path.iterdir()] == ["net.npz"]


def test_corrupt_and_foreign_files_are_refused(tmp_path):
    params, _, _ = example(SHAPE)
    path = tmp_path / "net.npz"
    params.save(path)
    whole = path.read_bytes()
    for content in (b"", b"not a zip", whole[: len(whole) // 2], whole[:-200]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"path: .* is not a whole file"):
            lk.Params.load(path)
    np.savez(path, W=np.zeros(3))
    with pytest.raises(ValueError, match=r"path: .* is not a whole file"):
        lk.Params.load(path)
    np.savez(path, header=np.array('{"format": "other/1"}'))
    with pytest.raises(ValueError, match=r"has format 'other/1', want 'lstm_kernels.params/1'"):
        lk.Params.load(path)
    np.savez(path, pickled=np.array([{}], dtype=object), header=np.array("{}"))
    with pytest.raises(ValueError, match="is not a whole file"):
        lk.Params.load(path)
    with pytest.raises(FileNotFoundError):
        lk.Params.load(tmp_path / "nothing.npz")


@pytest.mark.parametrize("output_size", [None, 3])
def test_torch_names_there_and_back(cell, output_size):
    params, _, _ = example(SHAPE, cell, output_size=output_size)
    named = params.to_torch()
    assert named["weight_ih_l0"].shape == (params.layers[0].U.shape[1], 2)
    same(lk.Params.from_torch(named), params)
    prefixed = {f"model.{name}": a for name, a in named.items()}
    same(lk.Params.from_torch(prefixed), params)


def test_torch_biases_are_added_where_only_their_sum_matters(cell):
    params, _, _ = example(SHAPE, cell)
    named = params.to_torch()
    one = np.ones_like(named["bias_ih_l0"])
    named["bias_ih_l0"] += one
    named["bias_hh_l0"] -= one
    got = lk.Params.from_torch(named).layers[0].b - params.layers[0].b
    want = np.zeros_like(got) if cell != "gru" else np.repeat([0, 0, 1, -1], 5)
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_torch_names_that_do_not_fit_are_refused(cell):
    named = example(SHAPE, cell)[0].to_torch()
    with pytest.raises(ValueError, match="weight_ih_l0_reverse"):
        lk.Params.from_torch(named | {"weight_ih_l0_reverse": named["weight_ih_l0"][:, 0]})
    with pytest.raises(ValueError, match="want one ending in 'weight_ih_l0'"):
        lk.Params.from_torch({})
    short = dict(named)
    del short["weight_hh_l1"]
    with pytest.raises(ValueError, match="want a matrix named 'weight_hh_l1'"):
        lk.Params.from_torch(short)
    with pytest.raises(ValueError, match=r"'weight_hh_l0' got shape \(7, 5\)"):
        lk.Params.from_torch(named | {"weight_hh_l0": np.zeros((7, 5), np.float32)})

"""Parameters: seeds, files, PyTorch's names."""

import copy
import itertools
import pickle
from functools import partial

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
    params = lk.Params.init(3, 5, num_layers=2, output_size=4, cell=cell)
    G, K = {"rnn": (1, 1), "lstm": (4, 4), "gru": (3, 4)}[cell]
    assert len(CELLS[cell].gates) == K
    assert [layer.U.shape for layer in params.layers] == [(3, G * 5), (5, G * 5)]
    assert [layer.W.shape for layer in params.layers] == [(5, G * 5)] * 2
    assert [layer.b.shape for layer in params.layers] == [(K * 5,)] * 2
    assert params.V.shape == (5, 4)
    assert params.b_out.shape == (4,)
    assert all(a.dtype == np.float32 for a in params.arrays().values())
    assert lk.Params.init(3, 5).V is None


def test_arguments_past_the_second_are_named():
    with pytest.raises(TypeError, match="positional arguments"):
        lk.Params.init(1, 32, 2)
    with pytest.raises(TypeError, match="positional arguments"):
        lk.network("numpy", lk.Params.init(1, 2), 1)


def test_parameters_and_gradients_say_their_sizes(cell):
    params, x, target = example(SHAPE, cell)
    sizes = f"{cell.upper()}, 2 layers of 5, 2 inputs, read-out 2, float32"
    assert repr(params) == f"Params: {sizes}"
    assert (
        repr(lk.network("numpy", params).loss_and_grads(x, target)[1])
        == f"Grads: {sizes}"
    )
    assert (
        repr(lk.Params.init(1, 3, dtype=float))
        == "Params: LSTM, 1 layer of 3, 1 input, float64"
    )


def test_a_seed_gives_the_same_parameters(cell):
    init = partial(lk.Params.init, 3, 5, num_layers=2, output_size=1, cell=cell)
    same(init(seed=7), init(seed=7))
    assert not np.array_equal(init(seed=8).V, init(seed=7).V)


def test_numbers_are_drawn_from_pytorchs_range(cell):
    """U(-1/sqrt(H), 1/sqrt(H)), whatever D is: the extremes of 7000 come near."""
    params = lk.Params.init(100, 25, output_size=3, cell=cell)
    for layer in params.layers:
        for a in (layer.U, layer.W):
            assert 0.19 < np.abs(a).max() <= 0.2
            assert a.min() < -0.19
            assert abs(a.mean()) < 0.02
    every = np.concatenate([a.ravel() for a in params.arrays().values()])
    assert np.abs(every).max() <= 0.2


def test_both_dtypes_start_from_the_same_point(cell):
    init = partial(lk.Params.init, 3, 5, num_layers=2, output_size=1, cell=cell)
    wide = init(dtype=np.float64).arrays()
    for name, value in init().arrays().items():
        np.testing.assert_allclose(value, wide[name], rtol=3e-7, err_msg=name)


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))]
)
def test_copies_of_parameters_gradients_and_errors(cell, again):
    params, x, target = example(SHAPE, cell)
    same(again(params), params)
    _, grads = lk.network("numpy", params).loss_and_grads(x, target)
    same(again(grads), grads)  # x and state among its arrays
    history = lk.History([0.5], [1.0])
    error = again(lk.DivergedError("it stopped", epoch=1, step=2, history=history))
    assert (str(error), error.epoch, error.step, error.history) == (
        "it stopped",
        1,
        2,
        history,
    )


def test_gradients_are_no_parameters():
    params, x, target = example(SHAPE)
    _, grads = lk.network("numpy", params).loss_and_grads(x, target)
    with pytest.raises(
        TypeError, match=r"params: got Grads, want lstm_kernels\.Params"
    ):
        lk.network("numpy", grads)
    for lost in ("copy", "astype", "save", "load", "check"):
        assert not hasattr(grads, lost)
    large = lk.Params.init(1, 2, dtype=np.float64)
    large.layers[0].W[0, 0] = 1e39
    with pytest.raises(ValueError, match=r"layers\[0\].W: got inf at index \[0, 0\]"):
        large.astype(np.float32)
    named = grads.to_torch()
    np.testing.assert_array_equal(named["bias_hh_l1"], grads.layers[1].b)
    np.testing.assert_array_equal(named["readout.weight"], grads.V.T)


def test_check_leaves_the_callers_arrays_as_they_are(tmp_path):
    params, x, _ = example(SHAPE)
    assert params.check() is params
    layer, fortran = params.layers[1], np.asfortranarray(params.layers[1].U)
    layer.U, layer.W = fortran, fortran
    np.save(tmp_path / "V.npy", params.V)
    params.V = memmap = np.load(tmp_path / "V.npy", mmap_mode="r")
    checked = params.check()
    assert layer.U is fortran
    assert params.V is memmap
    for name, a in checked.arrays().items():
        assert type(a) is np.ndarray, name
        assert a.flags.c_contiguous, name
        np.testing.assert_array_equal(a, params.arrays()[name])
    assert lk.network("numpy", params).forward(x)[0].any()


@pytest.mark.parametrize("output_size", [None, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_save_and_load(tmp_path, cell, dtype, output_size):
    params, _, _ = example(SHAPE, cell, dtype, output_size)
    params.save(tmp_path / "net.npz")
    same(lk.Params.load(tmp_path / "net.npz"), params)
    assert [p.name for p in tmp_path.iterdir()] == ["net.npz"]


@pytest.mark.parametrize("output_size", [None, 3])
def test_torch_names_there_and_back(cell, output_size):
    params, _, _ = example(SHAPE, cell, output_size=output_size)
    named = params.to_torch()
    assert named["weight_ih_l0"].shape == (params.layers[0].U.shape[1], 2)
    same(lk.Params.from_torch(named), params)
    prefixed = {f"model.{name}": a for name, a in named.items()}
    same(lk.Params.from_torch(prefixed), params)
    other = params.to_torch(prefix="rnn.", readout="head")
    names = {"rnn" if "_l" in n else "head": n for n in other}
    assert [*names] == (["rnn"] if output_size is None else ["rnn", "head"])
    assert all(n.startswith(("rnn.", "head.")) for n in other)
    readout = output_size and "head"
    same(lk.Params.from_torch(other, readout=readout), params)


def test_torch_biases_are_added_where_only_their_sum_matters(cell):
    params, _, _ = example(SHAPE, cell)
    named = params.to_torch()
    one = np.ones_like(named["bias_ih_l0"])
    named["bias_ih_l0"] += one
    named["bias_hh_l0"] -= one
    got = lk.Params.from_torch(named).layers[0].b - params.layers[0].b
    want = np.zeros_like(got) if cell != "gru" else np.repeat([0, 0, 1, -1], 5)
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_torch_arrays_are_copied_both_ways(cell):
    # Where a transpose is no copy
    params = lk.Params.init(1, 1, num_layers=2, output_size=1, cell=cell)
    named = params.to_torch()
    again = lk.Params.from_torch(named)
    arrays = [a for d in (params.arrays(), named, again.arrays()) for a in d.values()]
    for one, two in itertools.combinations(arrays, 2):
        assert not np.shares_memory(one, two)


def test_a_readout_goes_by_its_name(cell):
    params, _, _ = example(SHAPE, cell)
    named = params.to_torch()
    inner = {f"lstm.{n}": a for n, a in named.items() if "readout" not in n}
    same(
        lk.Params.from_torch(
            inner | {n: a for n, a in named.items() if "readout" in n}
        ),
        params,
    )
    head = {"head.weight": named["readout.weight"], "head.bias": named["readout.bias"]}
    same(lk.Params.from_torch(inner | head, readout="head"), params)
    without = lk.Params.from_torch(
        inner | {"head.weight": head["head.weight"]}, readout="head"
    )
    assert not without.b_out.any()
    for foreign in (head, {"embedding.weight": np.zeros((7, 5), np.float32)}):
        with pytest.raises(
            ValueError, match=r"state_dict: got \['(head|embedding).* too, want an RNN"
        ):
            lk.Params.from_torch(inner | foreign)
    with pytest.raises(ValueError, match=r"want 'nothing.weight' too"):
        lk.Params.from_torch(named, readout="nothing")


@pytest.mark.parametrize(
    "wrong", ["longer", "one", "matrix", "absent", "wide", "masked", "list"]
)
@pytest.mark.parametrize(
    "name", ["weight_ih_l1", "weight_hh_l1", "bias_ih_l0", "bias_hh_l1", "readout.bias"]
)
def test_torch_arrays_of_another_form_are_refused(cell, name, wrong):
    named = example(SHAPE, cell)[0].to_torch()
    if wrong == "absent":
        a = named.pop(name)
        if name == "readout.bias":
            return  # torch.nn.Linear(..., bias=False)
    else:
        a = named[name]
        named[name] = {
            "longer": np.concatenate([a, a[:1]]),
            "one": a[:1],
            "matrix": a[None],
            "wide": a.astype(np.float64),
            "masked": np.ma.array(a),
            "list": a.tolist(),
        }[wrong]
    said = "" if wrong == "absent" and name == "weight_ih_l1" else f"'{name}'"
    with pytest.raises((ValueError, TypeError), match=f"state_dict.*{said}"):
        lk.Params.from_torch(named)


def test_torch_names_that_do_not_fit_are_refused(cell):
    named = example(SHAPE, cell)[0].to_torch()
    with pytest.raises(ValueError, match=r"got \['weight_ih_l0_reverse'\] too"):
        lk.Params.from_torch(
            named | {"weight_ih_l0_reverse": named["weight_ih_l0"][:, 0]}
        )
    with pytest.raises(ValueError, match="want one ending in 'weight_ih_l0'"):
        lk.Params.from_torch({})
    for shape in ((7, 5), (10, 5), (0, 0), (5, 0), (5,)):
        with pytest.raises(
            ValueError, match=r"state_dict\['weight_hh_l0'\]: got .*shape \("
        ):
            lk.Params.from_torch(named | {"weight_hh_l0": np.zeros(shape, np.float32)})
    for other in (3, ["weight_ih_l0"], {1: 2}):
        with pytest.raises(
            TypeError, match=r"state_dict: got .*, want a dict of named arrays"
        ):
            lk.Params.from_torch(other)

    class OnDevice:
        def __array__(self, *_, **__):
            raise TypeError("can't convert cuda:0 device type tensor")

    with pytest.raises(
        TypeError, match=r"state_dict\['bias_ih_l0'\]: got a OnDevice.*cuda:0"
    ):
        lk.Params.from_torch(named | {"bias_ih_l0": OnDevice()})

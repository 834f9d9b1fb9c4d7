"""Parameters: seeds, files, PyTorch's names."""

import copy
import itertools
import pickle
import sys
from functools import partial
from typing import get_args

import numpy as np
import pytest
from conftest import example

import lstm_kernels as lk
from lstm_kernels import params as module
from lstm_kernels import training
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
    want = "positional arguments, want it by name: num_layers= or output_size="
    with pytest.raises(TypeError, match=f"^init: got 2 after 2 {want}"):
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
            ValueError,
            match=r"state_dict: got \['(head|embedding).* too, want (an RNN|its name)",
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


class Module:
    """What a torch.nn.Module has of what is read: names, attributes, parts."""

    def __init__(self, named=None, parts=None, **attributes):
        self._named, self._parts = named or {}, parts or {}
        vars(self).update(attributes)

    def state_dict(self):
        inner = {
            f"{path}.{name}": a
            for path, part in self._parts.items()
            for name, a in part.state_dict().items()
        }
        return self._named | inner

    def named_modules(self):
        return [("", self), *self._parts.items()]


def linear(params):
    named = params.to_torch()
    return Module({n: named[f"readout.{n}"] for n in ("weight", "bias")})


def recurrent(params, **attributes):
    named = params.to_torch()
    return Module({n: a for n, a in named.items() if "_l" in n}, **attributes)


def test_a_torch_module_is_its_state_dict(cell):
    params, _, _ = example(SHAPE, cell)
    rnn = recurrent(params, batch_first=True, dropout=0.3, num_layers=2, training=False)
    same(
        lk.Params.from_torch(
            Module(parts={"body": rnn, "head": linear(params)}), readout="head"
        ),
        params,
    )
    alone = example(SHAPE, cell, output_size=None)[0]
    same(lk.Params.from_torch(rnn), alone)


@pytest.mark.parametrize("path", [None, "body"])
@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"nonlinearity": "relu"}, "nonlinearity: got 'relu', want 'tanh'"),
        (
            {"dropout": 0.2, "num_layers": 2, "training": True},
            r"dropout: got 0.2 in training mode, want 0, or module.eval\(\) before",
        ),
    ],
)
def test_what_a_torch_module_tells_beside_its_weights(path, attributes, said):
    params, _, _ = example(SHAPE, "rnn", output_size=None)
    module = recurrent(params, **attributes)
    where = "module"
    if path:
        module, where = Module(parts={path: module}), "module.body"
    with pytest.raises(ValueError, match=rf"^{where}\.{said}"):
        lk.Params.from_torch(module)
    # Of one layer nothing is dropped: PyTorch's dropout is between layers.
    one = example((1, 1, 1, 1, 3), "rnn", output_size=None)[0]
    drops = {"dropout": 0.2, "num_layers": 1, "training": True, "nonlinearity": "tanh"}
    same(lk.Params.from_torch(recurrent(one, **drops)), one)


class Tensor:
    """A tensor of a dtype that NumPy may not have."""

    def __init__(self, dtype):
        self.dtype = dtype

    def __array__(self, *_, **__):
        raise TypeError("Got unsupported ScalarType")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda d: d | {"bias_ih_l0_reverse": d["bias_ih_l0"]},
            r"got \['bias_ih_l0_reverse'\] too \(bidirectional\), want one direction",
        ),
        (
            lambda d: d | {"weight_hr_l0": d["weight_hh_l0"][:2]},
            r"got \['weight_hr_l0'\] too \(a projection, proj_size\), want none",
        ),
        (
            lambda d: {
                f"{side}.{n}": a for side in ("in", "out") for n, a in d.items()
            },
            r"got RNNs called \['in.', 'out.'\], want one: give the state_dict of each",
        ),
        (
            lambda d: {n.removesuffix("_l0"): a for n, a in d.items() if "_l0" in n},
            "'weight_ih_l0': those of an RNNCell, LSTMCell or GRUCell with '_l0' added",
        ),
        (
            lambda d: d | {"fc.weight": np.ones((2, d["weight_hh_l0"].shape[1]))},
            r"got \['fc.weight'\] too, want its name, .* read-out: readout='fc'",
        ),
        (
            lambda d: d | {"embedding.weight": d["weight_ih_l0"]},
            r"got \['embedding.weight'\] too, .* give the state_dict of the RNN alone",
        ),
        (
            lambda d: d | {"weight_hh_l0": Tensor("torch.bfloat16")},
            r"'weight_hh_l0'\]: got dtype torch.bfloat16, want .* float64: \.float\(\)",
        ),
        (
            lambda d: d | {"bias_hh_l1": Tensor("torch.float16")},
            r"'bias_hh_l1'\]: got dtype torch.float16, want .*: \.float\(\)",
        ),
    ],
)
def test_what_a_state_dict_has_too_much_goes_by_its_name(change, said):
    named = example(SHAPE, output_size=None)[0].to_torch()
    with pytest.raises((TypeError, ValueError), match=f"^state_dict.*{said}"):
        lk.Params.from_torch(change(named))


def test_modules_of_torch_itself():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(1).standard_normal((6, 3, 2)).astype(np.float32)
    for kind, options in (
        ("LSTM", {"num_layers": 2, "dropout": 0.4}),
        ("GRU", {"bias": False}),
        ("RNN", {"batch_first": True}),
    ):
        module = getattr(torch.nn, kind)(2, 5, **options).eval()
        first = module.batch_first
        want = module(torch.from_numpy(x.swapaxes(0, 1) if first else x))[0]
        want = want.detach().numpy()
        y, _ = lk.network("numpy", lk.Params.from_torch(module)).forward(x)
        np.testing.assert_allclose(y.swapaxes(0, 1) if first else y, want, atol=1e-6)
    for module, said in (
        (torch.nn.RNN(2, 5, nonlinearity="relu"), "nonlinearity: got 'relu'"),
        (torch.nn.LSTM(2, 5, 2, dropout=0.4), "dropout: got 0.4 in training mode"),
        (torch.nn.LSTM(2, 5, bidirectional=True), "bidirectional"),
        (torch.nn.LSTM(2, 5, proj_size=3), "proj_size"),
        (torch.nn.LSTMCell(2, 5), "LSTMCell or GRUCell with '_l0' added"),
        (torch.nn.LSTM(2, 5).bfloat16(), r"want float32 or float64: \.float\(\)"),
        (torch.nn.LSTM(2, 5).half(), r"want float32 or float64: \.float\(\)"),
    ):
        with pytest.raises((TypeError, ValueError), match=said):
            lk.Params.from_torch(module)


def tanh(x):
    """The function, which a layer of Keras has as its activation."""
    return np.tanh(x)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def keras_step(kind, x, h, c, kernel, recurrent, bias):
    """A step of a Keras cell, from its documented equations: h and c after it."""
    H = h.shape[1]
    if kind == "GRU":  # reset_after
        x_z, x_r, x_h = np.split(x @ kernel + bias[0], 3, axis=1)
        h_z, h_r, h_h = np.split(h @ recurrent + bias[1], 3, axis=1)
        z, r = sigmoid(x_z + h_z), sigmoid(x_r + h_r)
        return z * h + (1 - z) * np.tanh(x_h + r * h_h), c
    a = x @ kernel + h @ recurrent + bias
    if kind == "SimpleRNN":
        return np.tanh(a), c
    i, f, candidate, o = (a[:, n * H : (n + 1) * H] for n in range(4))
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(candidate)
    return sigmoid(o) * np.tanh(c), c


def keras_layer(kind, arrays, **options):
    """An object of a class of that name, with what Keras's has."""
    held = {"get_weights": lambda self: list(arrays)}
    return type(kind, (), held | options)()


def keras_arrays(kind, D, H, rng):
    G = {"SimpleRNN": 1, "LSTM": 4, "GRU": 3}[kind]
    shapes = (D, G * H), (H, G * H), (2, G * H) if kind == "GRU" else (G * H,)
    return [rng.standard_normal(shape) for shape in shapes]


KINDS = "SimpleRNN", "LSTM", "GRU"
DEFAULTS = {"activation": staticmethod(tanh), "go_backwards": False}
OTHERS = {
    "SimpleRNN": {},
    "LSTM": {"recurrent_activation": staticmethod(sigmoid)},
    "GRU": {"recurrent_activation": staticmethod(sigmoid), "reset_after": True},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("form", ["arrays", "layers", "model"])
def test_layers_of_keras(kind, bias, form):
    rng = np.random.default_rng(3)
    stack = [keras_arrays(kind, D, 5, rng) for D in (2, 5)]
    head = [rng.standard_normal((5, 3)), rng.standard_normal(3)]
    if not bias:
        for arrays in (*stack, head):
            arrays[-1] = np.zeros_like(arrays[-1])
    x = rng.standard_normal((6, 4, 2))
    h = [np.zeros((4, 5)) for _ in stack]
    c = [np.zeros((4, 5)) for _ in stack]
    for t in range(6):
        below = x[t]
        for l, arrays in enumerate(stack):
            h[l], c[l] = keras_step(kind, below, h[l], c[l], *arrays)
            below = h[l]
    want = h[-1] @ head[0] + head[1]
    if not bias:
        stack, head = [arrays[:2] for arrays in stack], head[:1]
    options = DEFAULTS | OTHERS[kind]
    layers = [keras_layer(kind, a, **options, return_sequences=True) for a in stack]
    type(layers[-1]).return_sequences = False
    dense = keras_layer("Dense", head, activation="linear")
    if form == "arrays":
        if kind == "GRU" and not bias:
            with pytest.raises(
                ValueError, match=r"layers\[0\]: got a GRU without bias"
            ):
                lk.Params.from_keras(*stack)
            return
        params = lk.Params.from_keras(*stack, readout=head)
    elif form == "layers":
        params = lk.Params.from_keras(*layers, readout=dense)
    else:
        parts = [layers[0], keras_layer("Dropout", []), layers[1], dense]
        params = lk.Params.from_keras(keras_layer("Sequential", [], layers=parts))
    got = lk.network("numpy", params).predict(x)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    for b in itertools.chain(*stack, head):
        assert not any(np.shares_memory(a, b) for a in params.arrays().values())


def hard_sigmoid(x):
    return np.clip(0.2 * x + 0.5, 0, 1)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("LSTM", {"activation": "relu"}, r"\.activation: got 'relu', want 'tanh'"),
        (
            "LSTM",
            {"recurrent_activation": staticmethod(hard_sigmoid)},
            r"\.recurrent_activation: got 'hard_sigmoid', want 'sigmoid'",
        ),
        ("GRU", {"reset_after": False}, r"\.reset_after: got False, want True"),
        ("GRU", {"go_backwards": True}, r"\.go_backwards: got True, want False"),
        ("Bidirectional", {}, ": got Bidirectional, want a layer of Keras"),
        ("Embedding", {}, r": got Embedding, want a layer of Keras \(SimpleRNN, LSTM"),
    ],
)
def test_layers_of_keras_that_compute_something_else(kind, options, said):
    arrays = keras_arrays("GRU" if kind == "GRU" else "LSTM", 2, 5, np.random)
    layer = keras_layer(kind, arrays, **options)
    for given in (layer, keras_layer("Sequential", [], layers=[layer])):
        with pytest.raises((TypeError, ValueError), match=rf"^layers\[0\]{said}"):
            lk.Params.from_keras(given)


def test_arrays_of_keras_that_do_not_fit():
    arrays = partial(keras_arrays, rng=np.random)
    lstm, gru = arrays("LSTM", 2, 5), arrays("GRU", 2, 5)
    last = keras_layer("LSTM", lstm, return_sequences=False)
    relu = keras_layer("Dense", [np.ones((5, 1)), np.ones(1)], activation="relu")
    for layers, readout, said in (
        ([], None, "layers: got none, want a layer"),
        ([3], None, r"layers\[0\]: got int, want a layer"),
        ([lstm * 2], None, r"layers\[0\]: got 6 arrays, want 2 or 3, of one layer"),
        ([[]], None, r"layers\[0\]: got 0 arrays, want 2 or 3, of one layer that is b"),
        (
            [[*gru[:2], gru[2][0]]],
            None,
            r"layers\[0\] bias \(of reset_after=True\): got 1 axes, shape \(15,\), want",
        ),
        (
            [[lstm[0], lstm[1][:, :10], lstm[2]]],
            None,
            r"layers\[0\] recurrent: got shape \(5, 10\), want \(H, G\*H\) with G one",
        ),
        (
            [[lstm[0][:, :10], *lstm[1:]]],
            None,
            r"layers\[0\] kernel: got shape \(2, 10\), want \(D, 20\)",
        ),
        (
            [lstm, lstm],
            None,
            r"layers\[1\] kernel: got shape \(2, 20\), want \(5, 20\)",
        ),
        (
            [lstm, arrays("GRU", 5, 5)],
            None,
            r"layers\[1\]: got GRU above LSTM, want one",
        ),
        (
            [last, arrays("LSTM", 5, 5)],
            None,
            r"layers\[0\]\.return_sequences: got False, want True",
        ),
        ([lstm], [np.ones((4, 1))], r"readout kernel: got shape \(4, 1\), want \(5, O"),
        ([lstm], relu, r"readout\.activation: got 'relu', want 'linear'"),
        ([lstm], last, "readout: got LSTM, want Dense"),
        (
            [[a.astype(np.float16) for a in lstm]],
            None,
            r"layers\[0\] recurrent: got dty",
        ),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^{said}"):
            lk.Params.from_keras(*layers, readout=readout)


def test_a_layer_says_its_shapes(cell):
    params, x, target = example((1, 2, 3, 2, 5), cell)
    layer = params.layers[0]
    U, W, b = (getattr(layer, part).shape for part in "UWb")
    assert repr(layer) == f"Layer: U {U}, W {W}, b {b}, float32"
    _, grads = lk.network("numpy", params).loss_and_grads(x, target)
    assert repr(grads.layers[0]) == repr(layer)
    layer.W = None  # as an error of `check` shows it
    assert repr(layer) == f"Layer: U {U}, W None, b {b}, float32"


def test_names_of_other_packages_say_what_is_here():
    params, x, target = example(SHAPE)
    net = lk.network("numpy", params)
    grads = net.loss_and_grads(x, target)[1]
    for owner, name, said in (
        (net, "fit", r"lstm_kernels\.train\(net, dataset"),
        (net, "parameters", r"params\(\)"),
        (net, "state_dict", r"params\(\)\.to_torch\(\)"),
        (net, "plot", "matplotlib"),
        (params, "fit", r"lstm_kernels\.network\(name, params\)"),
        (params, "parameters", r"arrays\(\)"),
        (params, "state_dict", r"to_torch\(\)"),
        (params, "U", r"layers\[0\]\.U"),
        (grads, "W", r"layers\[0\]\.W"),
        (lk.History(), "plot", "matplotlib"),
        (lk.History(), "history", "loss, seconds and validation"),
    ):
        kind = type(owner).__name__
        with pytest.raises(
            AttributeError,
            match=f"^'{kind}' object has no attribute '{name}', want .*{said}",
        ) as caught:
            getattr(owner, name)
        assert (caught.value.name, caught.value.obj) == (name, owner)
        assert not hasattr(owner, name)
        with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
            owner.nothing  # noqa: B018
        for again in (
            copy.copy,
            copy.deepcopy,
            lambda a: pickle.loads(pickle.dumps(a)),
        ):
            assert repr(again(owner)) == repr(owner)
    with pytest.raises(
        TypeError, match=r"'NumpyBatched' is not called: net\.forward\(x"
    ):
        net(x)
    with pytest.raises(TypeError, match=r"is not called: net\.forward\(x"):
        net(x, training=True)

    class Wrong(type(net)):
        @property
        def mine(self):
            return self.cause

    with pytest.raises(AttributeError, match="has no attribute 'cause'"):
        Wrong(params).mine  # noqa: B018
    with pytest.raises(AttributeError, match=r"params: .* want net\.assign\(params\)"):
        net.params = params
    assert repr(net.params()) == repr(params)


def test_names_for_a_type_checker_are_those_of_the_registries():
    registry = sys.modules["lstm_kernels.versions"]  # the name is also a function
    for names, literal in (
        ([version.name for version in lk.versions()], registry.VersionName),
        ([*CELLS], module.CellName),
        ([*training.OPTIMIZERS], training.OptimizerName),
    ):
        assert [*get_args(literal)] == names

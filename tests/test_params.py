"""Parameters: seeds, files, weights of PyTorch and Keras."""

import copy
import itertools
import pickle
from functools import partial

import numpy as np
import pytest
from conftest import example

import lstm_kernels as lk

SHAPE = (2, 4, 3, 2, 5)


def same(a, b):
    assert (a.cell, [*a.arrays()]) == (b.cell, [*b.arrays()])
    for name, value in a.arrays().items():
        assert value.dtype == b.arrays()[name].dtype
        np.testing.assert_array_equal(value, b.arrays()[name], err_msg=name)


def share_memory(*named):
    arrays = [a for d in named for a in d.values()]
    return any(np.shares_memory(a, b) for a, b in itertools.combinations(arrays, 2))


def test_shapes_follow_the_contract(cell):
    params = lk.Params.init(3, 5, num_layers=2, output_size=4, cell=cell)
    G, K = {"rnn": (1, 1), "lstm": (4, 4), "gru": (3, 4)}[cell]
    assert {name: a.shape for name, a in params.arrays().items()} == {
        "layers.0.U": (3, G * 5),
        "layers.0.W": (5, G * 5),
        "layers.0.b": (K * 5,),
        "layers.1.U": (5, G * 5),
        "layers.1.W": (5, G * 5),
        "layers.1.b": (K * 5,),
        "V": (5, 4),
        "b_out": (4,),
    }
    assert all(a.dtype == np.float32 for a in params.arrays().values())
    assert lk.Params.init(3, 5).V is None


def test_numbers_are_drawn_from_pytorchs_range_with_a_seed(cell):
    """U(-1/sqrt(H), 1/sqrt(H)), whatever D is: the extremes of 2500 come near."""
    init = partial(lk.Params.init, 100, 25, output_size=3, cell=cell)
    params, wide = init(seed=7), init(seed=7, dtype=np.float64).arrays()
    same(init(seed=7), params)
    assert not np.array_equal(init(seed=8).V, params.V)
    for name, a in params.arrays().items():
        assert np.abs(a).max() <= 0.2
        assert a.size < 600 or (a.min() < -0.19 and a.max() > 0.19)
        assert a.size < 600 or abs(a.mean()) < 0.02
        np.testing.assert_allclose(a, wide[name], rtol=3e-7, err_msg=name)


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))]
)
def test_copies_of_parameters_gradients_and_errors(cell, again):
    params, x, target = example(SHAPE, cell)
    _, grads = lk.network("numpy", params).loss_and_grads(x, target)
    same(again(params), params)
    assert params == params != again(params)  # as objects: no array is compared
    same(again(grads), grads)  # x and state among its arrays
    with pytest.raises(
        TypeError, match=r"params: got Grads, want lstm_kernels\.Params"
    ):
        lk.network("numpy", grads)
    history = lk.History([0.5], [1.0])
    error = again(lk.DivergedError("it stopped", epoch=1, step=2, history=history))
    got = str(error), error.epoch, error.step, error.history
    assert got == ("it stopped", 1, 2, history)


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


@pytest.mark.parametrize(("dtype", "output_size"), [("f4", 3), ("f8", None)])
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
    inner = {f"lstm.{n}": a for n, a in named.items() if "readout" not in n}
    outer = {n: a for n, a in named.items() if "readout" in n}
    same(lk.Params.from_torch(named), params)
    same(lk.Params.from_torch({f"model.{n}": a for n, a in named.items()}), params)
    same(lk.Params.from_torch(inner | outer), params)
    other = params.to_torch(prefix="rnn.", readout="head")
    assert all(n.startswith(("rnn.", "head.")) for n in other)
    same(lk.Params.from_torch(other, readout=output_size and "head"), params)
    if output_size:
        del other["head.bias"]  # torch.nn.Linear(..., bias=False)
        assert not lk.Params.from_torch(other, readout="head").b_out.any()
    # Where a transpose is no copy
    thin = lk.Params.init(1, 1, num_layers=2, output_size=1, cell=cell)
    named = thin.to_torch()
    again = lk.Params.from_torch(named)
    assert not share_memory(thin.arrays(), named, again.arrays())


def test_torch_biases_are_added_where_only_their_sum_matters(cell):
    params, _, _ = example(SHAPE, cell)
    named = params.to_torch()
    one = np.ones_like(named["bias_ih_l0"])
    named["bias_ih_l0"] += one
    named["bias_hh_l0"] -= one
    got = lk.Params.from_torch(named).layers[0].b - params.layers[0].b
    want = np.zeros_like(got) if cell != "gru" else np.repeat([0, 0, 1, -1], 5)
    np.testing.assert_allclose(got, want, atol=1e-6)


class Module(dict):
    """What a torch.nn.Module has of what is read: names, a mode."""

    def __init__(self, named, **attributes):
        super().__init__(named)
        vars(self).update(attributes)

    def state_dict(self):
        return dict(self)

    def named_modules(self):
        return [("", object()), ("rnn", self)]


def test_a_module_of_torch_tells_whether_it_is_of_tanh():
    params, _, _ = example(SHAPE, "rnn")
    read = lambda **mode: lk.Params.from_torch(Module(params.to_torch(), **mode))  # noqa: E731
    same(read(mode="RNN_TANH"), params)
    for other in ({"mode": "RNN_RELU"}, {}):
        with pytest.raises(ValueError, match=r"^state_dict: got .*\(tanh\)"):
            read(**other)


class Tensor:
    """A tensor that NumPy cannot take."""

    def __array__(self):
        raise TypeError("can't convert cuda:0 device type tensor")


def test_state_dicts_of_something_else_are_refused():
    named = example(SHAPE, output_size=None)[0].to_torch()
    more = ("x.weight_ih_l0", "bias_ih_l0_reverse", "weight_hr_l0", "fc.weight", "l0_g")
    for wrong, said in (
        *((named | {name: 1}, rf": got \['{name}'\] too, want the") for name in more),
        *(
            (
                {n: a for n, a in named.items() if n != f"{part}_l1"},
                ": got .*, want the",
            )
            for part in ("weight_ih", "weight_hh", "bias_ih")
        ),
        ({1: 2}, r": got \['1'\], want the names of one torch.nn.RNN"),
        ({n[:-3]: a for n, a in named.items()}, ": got .* want the names of"),
        (named | {"weight_hh_l0": Tensor()}, r"\['weight_hh_l0'\]: got .*cuda:0"),
        (named | {"weight_hh_l0": named["weight_hh_l0"][:10]}, r".*: got 10 numbers"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^state_dict{said}"):
            lk.Params.from_torch(wrong)


def test_modules_of_torch_itself():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(1).standard_normal((6, 3, 2)).astype(np.float32)
    for kind, options in (
        ("LSTM", {"num_layers": 2, "dropout": 0.4}),
        ("GRU", {"bias": False}),
        ("RNN", {}),
    ):
        net = getattr(torch.nn, kind)(2, 5, **options).eval()
        want = net(torch.from_numpy(x))[0].detach().numpy()
        y, _ = lk.network("numpy", lk.Params.from_torch(net)).forward(x)
        np.testing.assert_allclose(y, want, atol=1e-6)
    for net in (
        torch.nn.RNN(2, 5, nonlinearity="relu"),
        torch.nn.LSTMCell(2, 5),
        torch.nn.LSTM(2, 5, bidirectional=True),
        torch.nn.LSTM(2, 5, proj_size=3),
        torch.nn.LSTM(2, 5).bfloat16(),
    ):
        with pytest.raises((TypeError, ValueError), match=r"^state_dict.*: got"):
            lk.Params.from_torch(net)


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


class KerasLayer:
    """What a layer of Keras has of what is read."""

    def __init__(self, arrays, **options):
        self.get_weights = lambda: list(arrays)
        self.get_config = lambda: options


def keras_arrays(kind, D, H, rng):
    G = {"SimpleRNN": 1, "LSTM": 4, "GRU": 3}[kind]
    shapes = (D, G * H), (H, G * H), (2, G * H) if kind == "GRU" else (G * H,)
    return [rng.standard_normal(shape) for shape in shapes]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["SimpleRNN", "LSTM", "GRU"])
def test_layers_of_keras(kind, bias):
    rng = np.random.default_rng(3)
    stack = [keras_arrays(kind, D, 5, rng) for D in (2, 5)]
    head = [rng.standard_normal((5, 3)), rng.standard_normal(3)]
    if not bias:
        for arrays in (*stack, head):
            arrays[-1] = np.zeros_like(arrays[-1])
    x = rng.standard_normal((6, 4, 2))
    h, c = np.zeros((2, 2, 4, 5))
    for below in x:
        for l, arrays in enumerate(stack):
            h[l], c[l] = keras_step(kind, below, h[l], c[l], *arrays)
            below = h[l]
    want = h[-1] @ head[0] + head[1]
    if not bias:
        stack, head = [arrays[:2] for arrays in stack], head[:1]
    options = {"activation": "tanh", "go_backwards": False, "units": 5}
    options |= {"recurrent_activation": "sigmoid", "reset_after": True}
    layers = [
        KerasLayer(a, **options, return_sequences=below)
        for a, below in zip(stack, (True, False), strict=True)
    ]
    dense = KerasLayer(head, activation="linear")
    for given, readout in ((layers, dense), (stack, head))[: 1 + bias]:
        params = lk.Params.from_keras(*given, readout=readout)
        got = lk.network("numpy", params).predict(x)
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
        theirs = enumerate(itertools.chain(*stack, head))
        assert not share_memory(params.arrays(), dict(theirs))


LSTM, GRU = (keras_arrays(k, 2, 5, np.random.default_rng(4)) for k in ("LSTM", "GRU"))
WIDER = keras_arrays("LSTM", 5, 6, np.random.default_rng(5))
HEAD = [np.ones((5, 1)), np.ones(1)]


def test_layers_of_keras_that_do_not_fit_are_refused():
    last = KerasLayer(LSTM, return_sequences=False)
    for layers, readout, said in (
        ([], None, "layers: got none, want layers of SimpleRNN, LSTM or GRU"),
        ([3], None, r"layers\[0\]: got int, want a layer of Keras or its 3 arrays"),
        ([KerasLayer(LSTM * 2)], None, r"layers\[0\]: got 6 arrays, want"),  # two ways
        ([[*GRU[:2], GRU[2][0]]], None, r"layers\[0\] bias: got one bias, want one of"),
        ([LSTM, LSTM], None, r"layers\[1\] kernel: got shape \(2, 20\), want \(5, 20"),
        ([LSTM, WIDER], None, r"layers\[1\] bias: got shape \(24,\), want \(20"),
        ([last, LSTM], None, r"layers\[0\]: got {.*'return_sequences': False}, want"),
        ([LSTM], last, "readout: got 3 arrays, want a layer of Keras or its 2 arrays"),
        ([LSTM], KerasLayer(HEAD, activation="relu"), "readout: got {'act.*': 'relu'}"),
        *(
            ([KerasLayer(GRU, **{name: value})], None, rf"layers\[0\]: got {{.*{value}")
            for name, value in (
                ("activation", "relu"),
                ("recurrent_activation", "hard_sigmoid"),
                ("reset_after", False),
                ("go_backwards", True),
                ("stateful", True),
            )
        ),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^{said}"):
            lk.Params.from_keras(*layers, readout=readout)


def test_parameters_and_layers_say_their_sizes():
    params, wide = example(SHAPE, "gru")[0], lk.Params.init(1, 3, dtype=float)
    sizes = "GRU, 2 layers of 5, 2 inputs, 2 outputs, float32"
    assert repr(params) == f"Params: {sizes}"
    assert repr(wide) == "Params: LSTM, 1 layer of 3, 1 input, float64"
    layer = params.layers[0]
    layer.W = None  # as an error of `check` shows it
    assert repr(layer) == "Layer: U (2, 15), W None, b (20,), float32"


def test_a_network_is_not_called_and_its_parameters_are_not_set():
    params, _, _ = example(SHAPE)
    net = lk.network("numpy", params)
    with pytest.raises(TypeError, match="not callable"):
        net(params)
    with pytest.raises(AttributeError, match=r"params: .* want net\.assign\(params\)"):
        net.params = params

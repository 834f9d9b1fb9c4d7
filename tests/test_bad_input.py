"""Bad input at every public entrance is an error that begins with the argument's name,
says what it got and what it wants, and changes nothing.

ARGUMENTS has, by name, a good argument and its kind; KINDS, what no argument of a kind
may be, as functions of a good one. A row of CALLS is an entrance and its arguments.
UNFIT has what is bad only beside the other arguments.
"""

import math
import os
import re
from functools import cache, partial

import numpy as np
import pandas as pd
import pytest
from conftest import VERSIONS, example

import lstm_kernels as lk
from lstm_kernels import data, forecast, schedules
from lstm_kernels.errors import check_array
from lstm_kernels.schedules import Costs, Graph, Schedule
from lstm_kernels.simulate import pipeline_bound, simulate

REFUSED = TypeError, ValueError
Y = np.arange(1.0, 13)


def put(a, value):
    """An array with another number in its middle."""
    a = np.array(a)
    a.flat[a.size // 2] = value
    return a


def always(*values):
    return [lambda good, value=value: value for value in values]


def without_a_month(series):
    months = pd.period_range("2001-01", periods=len(series) + 1, freq="M")
    return pd.Series(series, months.delete(1))


FREE = [  # of any float and width
    *always(3),
    np.ndarray.tolist,
    np.ma.array,
    lambda a: np.asmatrix(a.reshape(len(a), -1)),
    lambda a: a.astype(a.dtype.newbyteorder()),
    lambda a: a.astype(np.int32),
    lambda a: a.astype(object),
    lambda a: a * 1j,
    lambda a: put(a, np.nan),
    lambda a: put(a, -np.inf),
    lambda a: a[:0],
    lambda a: a[..., :0],
    lambda a: a[0],
    lambda a: a[None],
]
ARRAY = [*FREE, lambda a: a.astype({4: np.float64, 8: np.float32}[a.itemsize])]
ARRAY += [lambda a: np.repeat(a, 2, axis=-1)]
FROM_ZERO = always(-1, 1.5, "2", True, [1], np.ones(1))
NUMBERS = [
    *always(None, "text", [], [1j], [True], [{}], [[1.0, 2.0], [3.0]]),
    lambda a: put(a, np.nan),
    lambda a: put(a, np.inf),
    lambda a: np.array(a, str),
    np.ma.array,
]
RATE = always(None, "0.1", True, np.ones(1), 0, -1, math.nan, math.inf, 10**400)
STATE = [*always(3), list, lambda state: state + state]
STATE += [lambda s, f=f: (f(s[0]), *s[1:]) for f in (*ARRAY, lambda a: a[:, :1])]
KINDS = {
    "free": FREE,
    "array": ARRAY,
    "state": STATE,
    "numbers": NUMBERS,
    "series": [*NUMBERS, lambda a: np.array(a)[None, None], without_a_month],
    "number": always(None, "1", math.nan, math.inf, [1.0], 1j),
    "seconds": always(None, "1", math.nan, math.inf, -1e-9, [1.0]),
    "rate": RATE,
    "rate in float32": [*RATE, *always(1e39, 1e-50)],
    "count": [*FROM_ZERO, *always(0)],
    "from zero": FROM_ZERO,
    "indices": always(None, "0", [0, 3], [-1], [0.5], [[0]], [True], np.ma.array([0])),
    "choice": always(None, 3, ["lstm"], "nonsense"),
    "dtype": always(None, int, np.float16, "nonsense", ">f8"),
    "object": always(3, "text", [], {}),
    "path": always(3, b"net.npz", os.curdir, os.devnull),
}
PARAMS, X, TARGET = example((2, 4, 3, 2, 5))
DATASET, TRANSFORM = lk.Dataset(X, TARGET), data.LogDifference(0.1, 0.2)
TWO, COSTS = Graph(2, 4, samples=4), Costs((1.0, 2.0))
PLAN = schedules.layer_by_layer(TWO)
ZEROS = np.zeros((2, 3, 5), np.float32), np.zeros((2, 3, 5), np.float32)
COUNTS = """input_size hidden_size num_layers output_size length horizon first months
    window epochs batch_size layers steps blocks samples workers chunk together stages
    micro_batches"""
ROWS = [
    ("count", 2, COUNTS),
    ("from zero", 0, "seed first_epoch"),
    ("seconds", 1.0, "step[0] task hand"),
    ("number", 0.1, "mean rule(history)"),
    ("numbers", Y, "before z"),
    ("series", Y, "series passengers history forecast truth"),
    ("rate", 0.2, "std"),
    ("rate in float32", 0.1, "learning_rate"),
    ("array", X, "x"),
    ("array", TARGET, "target"),
    ("array", np.zeros((4, 3, 5), np.float32), "dy"),
    ("state", (np.zeros((2, 3, 5), np.float32),) * 2, "state dstate"),
    ("indices", [0, 2], "order"),
    ("choice", "numpy", "name"),
    ("choice", "gru", "cell"),
    ("dtype", "f8", "dtype"),
    ("object", PARAMS, "params"),
    ("object", DATASET, "dataset validation"),
    ("object", TRANSFORM, "transform"),
    ("object", TWO, "graph"),
    ("object", COSTS, "costs"),
    ("object", PLAN, "schedule"),
    ("object", print, "on_epoch"),
    ("path", "net.npz", "path"),
    ("path", "run.npz", "checkpoint"),
]
ARGUMENTS = {name: (kind, good) for kind, good, names in ROWS for name in names.split()}
TORCH = {f"state_dict[{n!r}]": (n, a) for n, a in PARAMS.to_torch().items()}


@cache
def network(version):
    return lk.network(version, PARAMS)


def with_arrays(**changed):
    """Parameters that were checked, with other arrays; changed: by their paths."""
    params = PARAMS.copy()
    for path, a in changed.items():
        *layer, name = path.split(".")[1:]
        setattr(params.layers[1] if layer else params, name, a)
    return params.check()


def from_torch(**changed):
    named = dict(TORCH.values()) | {TORCH[path][0]: a for path, a in changed.items()}
    return lk.Params.from_torch(named)


def from_keras(**parts):
    *layer, V, b_out = parts.values()
    return lk.Params.from_keras(layer, readout=[V, b_out])


class Copy:
    """A network that predicts the last input."""

    def __init__(self, outputs=1):
        self.params = partial(lk.Params.init, 1, 1, output_size=outputs)

    def predict(self, x):
        return x[-1]


def oldest(history):
    return float(history[0])


def costs(**parts):
    first, *others = parts.values()
    return Costs((first,), *others)


def forecasting(**value):
    return forecast.recursive(lambda history: value["rule(history)"], Y, months=1)


LAYER = {
    f"params.layers[1].{n}": ("array", a) for n, a in vars(PARAMS.layers[1]).items()
}
OUTPUT = {f"params.{name}": ("free", getattr(PARAMS, name)) for name in ("V", "b_out")}
HIDDEN = {path: ("array", a) for path, (name, a) in TORCH.items() if "hh_l1" in name}
KERAS = {
    "layers[0] kernel": ("array", np.ones((2, 20))),
    "layers[0] recurrent": ("free", np.ones((5, 20))),
    "layers[0] bias": ("free", np.ones(20)),
    "readout kernel": ("free", np.ones((5, 3))),
    "readout bias": ("array", np.ones(3)),
}
BATCH_FIRST = {"x": ("free", X.swapaxes(0, 1)), "target": ("free", TARGET)}
CALLS = [
    (lk.Params.init, "input_size hidden_size num_layers output_size cell seed dtype"),
    (PARAMS.astype, "dtype"),
    (PARAMS.save, "path"),
    (lk.Params.load, "path"),
    (with_arrays, LAYER | OUTPUT),
    (lk.Params.from_torch, {"state_dict": ("object", dict(TORCH.values()))}),
    (from_torch, HIDDEN),
    (from_keras, KERAS),
    (lk.Dataset, {"x": ("free", X), "target": ("free", TARGET)}),
    (lk.Dataset.from_batch_first, BATCH_FIRST),
    (data.windows, "series length horizon dtype"),
    (data.LogDifference, "mean std"),
    (data.LogDifference.fit, "passengers"),
    (TRANSFORM.forward, "passengers"),
    (TRANSFORM.backward, "before z"),
    (partial(forecast.one_step, oldest), "series first"),
    (partial(forecast.recursive, oldest), "history months"),
    (forecasting, "rule(history)"),
    (partial(forecast.network_rule, Copy()), "transform window"),
    (forecast.network_rule(Copy(), TRANSFORM, window=3), "history"),
    (forecast.errors, "forecast truth"),
    (lk.network, "name params"),
    (
        partial(lk.train, network("numpy")),
        "dataset epochs batch_size learning_rate seed first_epoch validation on_epoch"
        " checkpoint",
    ),
    (Graph, "layers steps blocks samples"),
    (costs, "step[0] task hand"),
    (schedules.wavefront, "graph workers chunk together costs"),
    (schedules.layer_by_layer, "graph"),
    (partial(schedules.by_units, TWO), "workers"),
    (partial(schedules.by_samples, TWO), "workers together"),
    (schedules.fill_and_drain, "stages workers samples"),
    (schedules.check, "schedule"),
    (simulate, "schedule costs"),
    (pipeline_bound, "micro_batches workers"),
]
METHODS = {
    "forward": "x state",
    "record": "x state",
    "backward": "dy dstate",
    "predict": "x state",
    "loss_and_grads": "x target",
    "step": "x target learning_rate",
    "epoch": "dataset order batch_size learning_rate",
    "assign": "params",
}


def of(names):
    """The kind and a good value of each argument."""
    return (
        names if isinstance(names, dict) else {n: ARGUMENTS[n] for n in names.split()}
    )


def good(names):
    return {name: value for name, (_, value) in of(names).items()}


def refuses(call, name, /, *arguments, **named):
    """Whether a call says what is wrong with the argument of a name."""
    try:
        call(*arguments, **named)
    except REFUSED as error:
        start = rf"{re.escape(name)}((\.|\[| as |:).*)?:? got .+, want .+"
        return re.match(start, str(error), re.DOTALL)
    return False


def missed(call, names):
    """The bad arguments of a call that it does not refuse by their names."""
    wrong = []
    for name, (kind, value) in of(names).items():
        for bad in (change(value) for change in KINDS[kind]):
            if not refuses(call, name, **good(names) | {name: bad}):
                wrong.append(f"{name}: {type(bad).__name__} {bad!r:.60}")
    return wrong


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of np.matrix
@pytest.mark.parametrize(("call", "names"), CALLS)
def test_every_entrance_refuses_every_bad_argument(call, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    PARAMS.save("net.npz")
    before = network("numpy").params().arrays()
    assert not missed(call, names)
    np.testing.assert_equal(network("numpy").params().arrays(), before)
    assert os.listdir() == ["net.npz"]
    call(**good(names))


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_call_of_every_version_does(version):
    net, make = network(version), partial(lk.network, version)
    net.forward(X, training=True)
    before = net.params().arrays()
    for method, names in METHODS.items():
        assert not missed(getattr(net, method), names), method
    np.testing.assert_equal(net.params().arrays(), before)
    assert not missed(make, "params")
    assert not missed(partial(make, PARAMS), {"threads": ("count", 1)})
    assert refuses(make(lk.Params.init(2, 5)).step, "params", X, TARGET, 0.1)


def with_part(part, value):
    params = PARAMS.copy()
    setattr(params.layers[0] if part in "UWb" else params, part, value)
    return params


NET, NEW, BOTTOM = network("numpy"), lk.network, PARAMS.layers[0]
SMALL, HUGE = lk.Params.init(2, 5, output_size=2), PARAMS.astype(float)
HUGE.layers[0].W[0, 0] = 1e39
TABLE = pd.DataFrame({"a": Y, "b": Y})
LAST = lk.Dataset(X, TARGET[:, :1])
FIT = partial(lk.train, NET, DATASET, 1, 2)


UNFIT = [
    ("subnormals", lambda: NEW("numba-tile", PARAMS, subnormals=1)),
    ("threads", lambda: NEW("numba-sample", PARAMS, threads=4096)),
    ("params", lambda: NET.assign(SMALL)),
    ("params", lambda: NET.assign(HUGE)),
    ("target", lambda: NET.step(X[:, :2], TARGET, 0.1)),
    ("target", lambda: NET.epoch(LAST, [0], 2, 0.1)),
    ("x", lambda: NET.epoch(lk.Dataset(X[..., :1], TARGET), [0], 2, 0.1)),
    ("params.layers[0].W", lambda: HUGE.astype("f4")),
    ("params", lambda: with_part("V", None).check()),
    ("params", lambda: with_part("b_out", None).check()),
    ("params.layers", lambda: with_part("layers", []).check()),
    ("params.layers[0]", lambda: with_part("layers", [3]).check()),
    ("params.cell", lambda: with_part("cell", ["lstm"]).check()),
    ("params.layers[0].W", lambda: with_part("W", BOTTOM.W[:, 1:]).check()),
    ("params.layers[0].W", lambda: with_part("W", None).check()),
    ("params.layers[0].b", lambda: with_part("b", BOTTOM.b[1:]).check()),
    ("target", lambda: lk.Dataset(X, TARGET[:2])),
    ("target", lambda: lk.Dataset(X.swapaxes(0, 1), TARGET)),
    ("length", lambda: data.windows(Y, 12)),
    ("horizon", lambda: data.windows(Y, 3, horizon=12)),
    ("series", lambda: data.windows([1.0], 1)),
    ("series as float32", lambda: data.windows(Y * 1e38, 3)),
    ("target", lambda: data.windows(TABLE, 3, target="c")),
    ("target", lambda: data.windows(TABLE, 3, target=[])),
    ("target", lambda: data.windows(Y, 3, target=1)),
    ("series.columns", lambda: data.windows(TABLE[["a", "a"]], 3)),
    ("series['b']", lambda: data.windows(TABLE.assign(b="text"), 3)),
    ("passengers", lambda: TRANSFORM.forward([1.0])),
    ("passengers", lambda: TRANSFORM.forward([1.0, 0.0])),
    ("std", lambda: data.LogDifference.fit([1.0, 2.0, 4.0])),
    ("z", lambda: TRANSFORM.backward(Y, 1e6)),
    ("z", lambda: TRANSFORM.backward(Y, Y[1:])),
    ("rule", lambda: forecast.one_step(3, Y, first=1)),
    ("net", lambda: forecast.network_rule(3, TRANSFORM, window=2)),
    ("readout", lambda: lk.Params.from_torch(dict(TORCH.values()), readout="head")),
    ("first", lambda: forecast.one_step(oldest, Y, first=12)),
    ("net", lambda: forecast.network_rule(Copy(2), TRANSFORM, window=2)),
    ("history", lambda: forecast.network_rule(Copy(), TRANSFORM, window=9)(Y[:9])),
    ("truth", lambda: forecast.errors(Y, Y - 1)),
    ("forecast", lambda: forecast.errors(Y[1:], Y)),
    ("batch_size", lambda: lk.train(NET, DATASET, 1, 4, 0.1)),
    ("learning_rate(0)", lambda: FIT(lambda epoch: -1.0)),
    ("checkpoint", lambda: FIT(0.1, resume=True)),
    ("net", lambda: lk.train(3, DATASET, 1, 2, 0.1)),
    ("validation.x", lambda: FIT(0.1, validation=lk.Dataset(X[..., :1], TARGET))),
    ("validation.target", lambda: FIT(0.1, validation=LAST)),
    ("chunk", lambda: schedules.wavefront(TWO, 2, 5)),
    ("costs", lambda: schedules.wavefront(TWO, 2, costs=Costs((1.0,)))),
    ("costs", lambda: simulate(PLAN, Costs((1.0,)))),
    ("together", lambda: schedules.by_samples(TWO, 2, 3)),
    ("step", lambda: Costs(1.0)),
    ("tasks", lambda: Schedule(TWO, [*PLAN.tasks])),
    ("schedule.graph", lambda: schedules.check(Schedule(None, PLAN.tasks))),
    ("schedule: task 0", lambda: schedules.check(Schedule(TWO, ((0, 0, 4),)))),
]


@pytest.mark.parametrize(
    ("name", "call"), UNFIT, ids=[f"{k}-{name}" for k, (name, _) in enumerate(UNFIT)]
)
def test_what_does_not_fit_the_other_arguments_is_refused(name, call):
    before = NET.params().arrays()
    assert refuses(call, name)
    np.testing.assert_equal(NET.params().arrays(), before)


def test_messages_say_where_and_what():
    for call, message in (
        (
            lambda: NET.forward(put(X, np.nan)),
            r"x: got nan at index \[2, 0, 0\], want f",
        ),
        (
            lambda: NET.forward(X[:0]),
            r"x: .*, want \(T, B, 2\), time first and no empty",
        ),
        (lambda: NEW("numba-fusd", PARAMS), "name: .*; did you mean 'numba-fused'"),
        (lambda: NET.step(X, TARGET, 1e39), r"learning_rate: got 1e\+39, .* float32$"),
        (
            lambda: NEW("numpy", PARAMS, chunk=2),
            "network: got option 'chunk', want options of numpy: threads",
        ),
    ):
        with pytest.raises(REFUSED, match=f"^{message}"):
            call()


@pytest.mark.parametrize(
    "make",
    [
        np.asarray,
        lambda x: x.view(np.recarray),
        lambda x: x[::-1],
        lambda x: np.ndarray(x.shape, x.dtype, bytearray(1) + x.tobytes(), 1),
    ],
)
def test_an_array_is_plain_contiguous_and_aligned_and_copied_only_if_it_must_be(make):
    x = make(np.ones((3, 2), np.float32))
    got = check_array("x", x, ("B", 2))
    assert type(got) is np.ndarray
    assert got.flags.c_contiguous
    assert got.flags.aligned
    np.testing.assert_array_equal(got, x)
    assert np.shares_memory(got, x) == (x.flags.c_contiguous and x.flags.aligned)
    assert (got is x) == (make is np.asarray)


@pytest.mark.parametrize("size", [1, 8192, 8193, 20_000])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_found_in_an_array_of_any_size(size, value):
    x = np.full(size, 1e30, np.float32)  # whose square is infinite
    assert check_array("x", x, ("N",)) is x
    for place in {0, size // 2, size - 1}:
        x[place] = value
        with pytest.raises(ValueError, match=rf"x: got {value} at index \[{place}\]"):
            check_array("x", x, ("N",))
        x[place] = 1e30

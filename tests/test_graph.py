"""`cuda-graph`: what a recording holds, when there is a new one, and the driver's calls
for it.
"""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import SIMULATED, example

import lstm_kernels as lk
from lstm_kernels.gpu import device, graph

needs_kernels = pytest.mark.skipif(
    device.why_unavailable() is not None, reason=str(device.why_unavailable())
)
SAMPLES = 7
# Examples for which the arrays on the device have to grow.
MANY = np.zeros((2, 9, 2), np.float32), np.zeros((9, 2), np.float32)
# Epochs in turn, as (batch size, rate, examples of which data set, order): each differs
# from the one before in one thing, and comes twice.
EPOCHS = {
    "a smaller last mini-batch": (3, 0.1, 0, 1),
    "another order": (3, 0.1, 0, 2),
    "another rate": (3, 0.2, 0, 2),
    "another mini-batch": (2, 0.2, 0, 2),
    "a larger mini-batch": (4, 0.2, 0, 2),
    "another data set": (4, 0.2, 1, 2),
    "a part of the data set": (4, 0.2, 1, 3),
}
NEW = len(EPOCHS) - 2  # another order is no other graph, nor is a data set of that size


@pytest.fixture
def recorded(monkeypatch):
    """The recordings that are made, in a list."""
    made, record = [], graph.record

    def counted(launches):
        made.append(record(launches))
        return made[-1]

    monkeypatch.setattr(graph, "record", counted)
    return made


def datasets(T=2, N=SAMPLES):
    for seed in range(2):
        _, x, target = example((1, T, N, 2, 3), seed=seed)
        yield lk.Dataset(x, target)


def orders():
    rng = np.random.default_rng(0)
    return [np.arange(SAMPLES), *(rng.permutation(SAMPLES)[:n] for n in (7, 7, 6))]


def check_epochs(net, between=lambda: None):
    """EPOCHS of a network and of `cuda-fused`: the same bits."""
    fused, data = lk.network("cuda-fused", net.params()), list(datasets())
    for what, (batch_size, rate, which, order) in EPOCHS.items():
        for again in range(2):
            how = data[which], orders()[order], batch_size, rate
            got, want = net.epoch(*how), fused.epoch(*how)
            np.testing.assert_array_equal(got, want, err_msg=f"{what}, {again}")
        between()
    ours, theirs = (n.params().arrays() for n in (net, fused))
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


def network(version="cuda-graph"):
    return lk.network(version, example((1, 1, 1, 2, 3))[0])


@needs_kernels
def test_epochs_of_cuda_graph_have_the_bits_of_cuda_fused(recorded):
    check_epochs(network())
    assert len(recorded) == NEW


@needs_kernels
def test_a_pass_between_epochs_of_cuda_graph(recorded):
    """The first one moves arrays, which are then as large as they all need."""
    net = network()
    check_epochs(net, between=lambda: net.loss_and_grads(*MANY))
    assert len(recorded) == NEW + 1


@needs_kernels
def test_one_recording_for_epochs_that_are_alike(recorded):
    net, (dataset, _) = network(), datasets()
    rng = np.random.default_rng(3)
    for _ in range(4):
        net.epoch(dataset, rng.permutation(SAMPLES), 2, 0.1)
        assert len(recorded) <= 1
    net.loss_and_grads(*MANY)
    for _ in range(3):
        net.epoch(dataset, rng.permutation(SAMPLES), 2, 0.1)
    assert len(recorded) == 2
    net.assign(net.params())
    net.epoch(dataset, np.arange(SAMPLES), 2, 0.1)
    assert len(recorded) == 2


@needs_kernels
def test_a_step_alone_is_no_graph(recorded):
    net, fused = network(), network("cuda-fused")
    _, x, target = example((1, 2, 5, 2, 3))
    for _ in range(3):
        assert net.step(x, target, 0.1) == fused.step(x, target, 0.1)
        assert net.loss_and_grads(x, target)[0] == fused.loss_and_grads(x, target)[0]
    assert not recorded


@needs_kernels
def test_an_epoch_after_one_that_failed(monkeypatch, recorded):
    net, (dataset, _) = network(), datasets()
    how = dataset, np.arange(SAMPLES), 3, 0.1
    net.epoch(*how)

    def broken(self):
        raise RuntimeError("CUDA_ERROR_LAUNCH_FAILED")

    with monkeypatch.context() as patch:
        recording = graph.Turns if SIMULATED else graph.Graph
        patch.setattr(recording, "replay", broken)
        with pytest.raises(RuntimeError, match="LAUNCH_FAILED"):
            net.epoch(*how)
    net.assign(net._params)
    assert len(net.epoch(*how)) == 3
    assert len(recorded) == 1


@needs_kernels
@pytest.mark.parametrize("left_out", ["rate", "sizes", "addresses"])
def test_a_recording_that_is_kept_too_long_is_noticed(monkeypatch, left_out):
    net = network()
    baked = net._baked

    def blind(*how):
        batch_size, rate, places = baked(*how)
        if left_out == "rate":
            return batch_size, places
        if left_out == "sizes":
            return rate, [where for _, where in places]
        return batch_size, rate, [shape for shape, _ in places[:-1]]

    monkeypatch.setattr(net, "_baked", blind)
    with pytest.raises(AssertionError):
        check_epochs(net, between=lambda: net.loss_and_grads(*MANY))


class Driver:
    """The driver's functions that a graph calls: `said` has their names; `fails` names
    one that returns an error.
    """

    def __init__(self, fails=""):
        self.said, self.fails, self.alive = [], fails, set()

    def __getattr__(self, name):
        def function(*arguments):
            self.said.append(name)
            getattr(self, f"_{name}", lambda *_: None)(*arguments)
            return 901 * (name == self.fails)

        return function

    def _made(self, where, number, what):
        where._obj.value = number
        self.alive.add(what)

    def _cuStreamCreate(self, where, flags):
        assert flags == 1
        self._made(where, 10, "stream")

    def _cuStreamBeginCapture_v2(self, stream, mode):
        assert (stream.value, mode) == (10, 2)

    def _cuStreamEndCapture(self, stream, where):
        assert stream.value == 10
        if self.fails != "cuStreamEndCapture":
            self._made(where, 2**40, "graph")

    def _cuGraphInstantiateWithFlags(self, where, made, flags):
        assert (made.value, flags.value) == (2**40, 0)
        if self.fails != "cuGraphInstantiateWithFlags":
            self._made(where, 2**41, "executable")

    def _cuGraphLaunch(self, executable, stream):
        assert (executable.value, stream) == (2**41, None)

    def _cuStreamDestroy_v2(self, stream):
        self.alive.remove("stream")

    def _cuGraphDestroy(self, made):
        self.alive.remove("graph")

    def _cuGraphExecDestroy(self, executable):
        self.alive.remove("executable")

    def _cuGetErrorName(self, error, where):
        where._obj.value = b"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"


@pytest.fixture
def driver_of(monkeypatch):
    """Makes a Driver that `graph` calls, with numba-cuda's part."""

    @contextmanager
    def defer_cleanup():
        driver.said.append("defer")
        try:
            yield
        finally:
            driver.said.append("free")

    driver = None

    def make(fails=""):
        nonlocal driver
        driver = Driver(fails)
        cuda = SimpleNamespace(defer_cleanup=defer_cleanup)
        cuda.external_stream = lambda handle: f"stream {handle}"
        monkeypatch.setattr(graph, "_library", lambda: driver)
        monkeypatch.setattr(graph, "cuda", cuda)
        return driver

    return make


def launches(driver, names, broken=None):
    """Launches that tell the driver of them, as numba-cuda's objects are made."""

    class Kernel:
        def __init__(self, name):
            self.name = name

        def __getitem__(self, grid):
            def launch(*arguments):
                if self.name == broken:
                    raise ValueError("a launch that fails")
                driver.said.append((self.name, grid, arguments))

            return launch

    for number, name in enumerate(names):
        grid = {"griddim": (number + 1, 1, 1), "blockdim": (32, 1, 1), "stream": 0}
        grid |= {"sharedmem": 64, "dispatcher": Kernel(name)}
        yield (lambda grid=grid: SimpleNamespace(**grid)), (number, "theta")


BEGIN = ["defer", "cuStreamCreate", "cuStreamBeginCapture_v2"]
END = ["cuStreamDestroy_v2", "free"]


def test_the_driver_s_calls_for_a_graph(driver_of):
    driver = driver_of()
    made = graph.Graph(launches(driver, ["step", "update"]))
    kernels = [
        ("step", ((1, 1, 1), (32, 1, 1), "stream 10", 64), (0, "theta")),
        ("update", ((2, 1, 1), (32, 1, 1), "stream 10", 64), (1, "theta")),
    ]
    recorded = ["cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuGraphDestroy"]
    assert driver.said == [*BEGIN, *kernels, *recorded, *END]
    assert driver.alive == {"executable"}
    driver.said.clear()
    made.replay()
    made.replay()
    assert driver.said == ["cuGraphLaunch"] * 2
    del made
    assert driver.said[2:] == ["cuGraphExecDestroy"]
    assert not driver.alive


@pytest.mark.parametrize(
    "name", ["cuStreamCreate", "cuStreamBeginCapture_v2", "cuStreamEndCapture"]
)
def test_a_graph_that_cannot_be_recorded(driver_of, name):
    driver = driver_of(fails=name)
    with pytest.raises(RuntimeError) as caught:
        graph.Graph(launches(driver, ["step"]))
    want = f"cuda-graph: {name}: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (901)"
    assert str(caught.value) == want
    assert driver.alive <= {"stream"} if name == "cuStreamCreate" else not driver.alive


@pytest.mark.parametrize("name", ["cuGraphInstantiateWithFlags", "cuGraphLaunch"])
def test_a_graph_that_cannot_be_launched(driver_of, name):
    driver = driver_of(fails=name)
    with pytest.raises(RuntimeError, match=rf"^cuda-graph: {name}: .* \(901\)$"):
        graph.Graph(launches(driver, ["step"])).replay()
    assert not driver.alive


def test_a_launch_that_fails_ends_the_recording(driver_of):
    driver = driver_of()
    with pytest.raises(ValueError, match="a launch that fails"):
        graph.Graph(launches(driver, ["step", "update"], broken="update"))
    assert driver.said[-4:] == ["cuStreamEndCapture", "cuGraphDestroy", *END]
    assert not driver.alive

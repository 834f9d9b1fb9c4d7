"""The kernels of layers at the same time and of an RNN's units: right, in every order
of blocks that their waits allow.
"""

import json
import time

import blocks
import numpy as np
import ptx
import pytest
from test_cuda import needs_kernels, simulated
from test_ptx import without_simulator

import lstm_kernels as lk
from lstm_kernels.ranks.rnn import outputs
from lstm_report.experiments import gpu_kernels
from lstm_report.measure.comparer import MismatchError, compare

TOLERANCE = 2e-6


def stack(L, T, H):
    """An LSTM of H inputs and units, x (T, 1, H), and y by the reference."""
    params = lk.Params.init(H, H, num_layers=L)
    x = np.random.default_rng(0).standard_normal((T, 1, H)).astype(np.float32)
    return params, x, lk.network("numpy", params).forward(x)[0]


def vanilla(T, D, H, O):
    """An RNN, x (T, 1, D), and the softmax of its outputs by the reference."""
    params = lk.Params.init(D, H, output_size=O, cell="rnn")
    x = np.random.default_rng(0).standard_normal((T, 1, D)).astype(np.float32)
    return params, x, outputs(params, lk.network("numpy", params).forward(x)[0])


@needs_kernels
@pytest.mark.parametrize(
    ("runs", "network", "shape"),
    [
        *(
            (gpu_kernels.stack_runs, stack, s)
            for s in [(1, 1, 1), (2, 3, 5), (4, 6, 2)]
        ),
        *((gpu_kernels.rnn_runs, vanilla, s) for s in [(1, 1, 1, 1), (3, 2, 9, 4)]),
        (gpu_kernels.rnn_runs, vanilla, (5, 7, 4, 2)),
    ],
)
def test_kernels_agree_with_the_reference(runs, network, shape):
    params, x, want = network(*shape)
    for run in runs(params, x).values():
        for _ in range(3):  # the counters of steps go on
            compare({"y": run()}, {"y": want}, TOLERANCE)


@needs_kernels
def test_a_softmax_of_large_sums():
    params, x, _ = vanilla(3, 2, 4, 3)
    params.V[:] *= 1000
    want = outputs(params, lk.network("numpy", params).forward(x)[0])
    for run in gpu_kernels.rnn_runs(params, x).values():
        compare({"y": run()}, {"y": want}, 1e-3)


@needs_kernels
def test_rows_of_kernels_beside_the_cpu():
    options = {"repeats": 2, "least": 0}
    rows = gpu_kernels.layers((1, 2), T=3, H=5, **options)
    names = {"layers_in_turn", "wavefront", "numba-wavefront", "numba-fused"}
    assert set(rows["version"]) == names
    assert len(rows) == 2 * 2 * len(names)
    assert set(rows["L"]) == {1, 2}
    more = gpu_kernels.units((5, 9), T=3, D=2, O=4, **options)
    assert set(more["version"]) == {"rnn", "rnn_grid", "numba-fused"}
    assert set(more["H"]) == {5, 9}
    for found in (rows, more):
        assert (found["seconds"] > 0).all()
        assert (found["max_err"] < 2e-5).all()
        on_cpu = found["version"].str.startswith("numba")
        assert found[on_cpu]["variant"].str.fullmatch(r"\d+ threads").all()
        assert "conditions" in found.attrs


@simulated
def test_a_wrong_kernel_has_no_rows(monkeypatch):
    right = gpu_kernels.unit

    def late(t, j, x, h, *weights):
        return right(t, j, x, h[1:], *weights)  # h of step t, which is not there yet

    monkeypatch.setattr(gpu_kernels, "unit", late)
    with pytest.raises(MismatchError):
        gpu_kernels.units((5,), T=3, D=2, O=4, repeats=1)


class Shared:
    """An array that blocks may use as they like."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def __getitem__(self, i):
        return self.array[i]

    def __setitem__(self, i, value):
        self.array[i] = value


@pytest.fixture
def on_grid(monkeypatch):
    """Runs a kernel on blocks that run at the same time."""

    def run(kernel, count, threads, *arguments, kind=blocks.Grid):
        grid = kind(count, (threads, 1), 0, np.float32)
        monkeypatch.setattr(gpu_kernels, "cuda", grid)
        grid.launch(kernel, *arguments)

    return run


@simulated
@pytest.mark.parametrize("waits", [True, False])
def test_a_layer_waits_for_the_one_below(monkeypatch, on_grid, waits):
    L, T, H = 3, 4, 2
    params, x, want = stack(L, T, H)
    h = np.full((L + 1, T + 1, H), np.nan, np.float32)
    h[:, 0], h[0, 1:] = 0, x[:, 0]
    weights = [
        np.stack([getattr(layer, name).reshape(shape) for layer in params.layers])
        for name, shape in (("U", (H, 4, H)), ("W", (H, 4, H)), ("b", (4, H)))
    ]
    arrays = h, np.zeros((L, T + 1, H), np.float32), *weights, np.full(L, 10)
    step = gpu_kernels.step

    def slower_below(l, *how):
        time.sleep(0.01 * (L - 1 - l))
        step(l, *how)

    monkeypatch.setattr(gpu_kernels, "step", slower_below)
    if not waits:
        monkeypatch.setattr(gpu_kernels, "load_acquire", lambda done, l: 100)
    on_grid(gpu_kernels.wavefront, L, 2, 10, *map(Shared, arrays))
    assert np.isnan(h[L]).any() == (not waits)
    if waits:
        compare({"y": h[L, 1:, None]}, {"y": want}, TOLERANCE)


class Hurried(blocks.Grid):
    """Nobody waits."""

    def syncthreads(self):
        pass

    sync = syncthreads


@simulated
@pytest.mark.parametrize("kernel", ["rnn", "rnn_grid"])
def test_units_wait_for_each_other(on_grid, kernel):
    params, x, _ = vanilla(3, 2, 9, 1)
    (layer,), h = params.layers, np.zeros((4, 9), np.float32)
    arrays = x[:, 0].copy(), h, layer.U, layer.W, layer.b
    grid = (1, 4) if kernel == "rnn" else (3, 2)
    on_grid(getattr(gpu_kernels, kernel), *grid, *arrays)
    want = lk.network("numpy", params).forward(x)[0]
    compare({"h": h[1:, None]}, {"h": want}, TOLERANCE)
    with pytest.raises(blocks.RaceError, match=r"^h\["):
        on_grid(getattr(gpu_kernels, kernel), *grid, *arrays, kind=Hurried)


@simulated
def test_outputs_of_a_step_wait_for_each_other(on_grid):
    h, V = np.ones((3, 2), np.float32), np.eye(2, 3, dtype=np.float32)
    b_out, y = np.zeros(3, np.float32), np.zeros((2, 3), np.float32)
    on_grid(gpu_kernels.softmax, 2, 3, h, V, b_out, y)
    np.testing.assert_allclose(y, [np.exp([1, 1, 0]) / np.exp([1, 1, 0]).sum()] * 2)
    with pytest.raises(blocks.RaceError, match=r"^y\["):
        on_grid(gpu_kernels.softmax, 2, 3, h, V, b_out, y, kind=Hurried)


PTX = """
import json
import ptx
from numba import cuda
from lstm_report.experiments.gpu_kernels import SIGNATURES, MOST
found = {}
for kernel, types in SIGNATURES.items():
    with ptx.stand_in((9, 0)):
        text, _ = cuda.compile_ptx(kernel, types, cc=(9, 0))
    found[kernel.__name__] = ptx.assemble(text, (9, 0)) | {"text": text}
print(json.dumps([MOST, found]))
"""


def test_the_kernels_fit_a_block():
    most, found = json.loads(without_simulator("-c", PTX)[-1])
    for name, kernel in found.items():
        assert kernel["registers"] * most <= ptx.REGISTERS, name
        assert kernel["shared"] == kernel["stack"] == kernel["spills"] == 0, name
        assert ".f64" not in kernel["text"], name
    waits = found["wavefront"]["text"]
    assert 0 < waits.index("ld.acquire.gpu") < waits.index("red.release.gpu")
    together = [n for n in found if "cudaCGGetIntrinsicHandle" in found[n]["text"]]
    assert together == ["wavefront", "rnn_grid"]

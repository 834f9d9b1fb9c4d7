"""The kernels of layers at the same time and of an RNN's units beside the reference; the
PTX machine (`test_ptx_machine.py`) watches how their blocks wait for each other.
"""

import json

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


STACKS = [(gpu_kernels.stack_runs, stack, s) for s in [(1, 1, 1), (2, 3, 5), (4, 6, 2)]]
RNNS = [(1, 1, 1, 1), (3, 2, 9, 4), (5, 7, 4, 2)]


@needs_kernels
@pytest.mark.parametrize(
    ("runs", "network", "shape"),
    [*STACKS, *((gpu_kernels.rnn_runs, vanilla, s) for s in RNNS)],
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

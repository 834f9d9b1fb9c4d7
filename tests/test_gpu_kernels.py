"""The kernels of layers at the same time and of an RNN's units beside the reference; the
PTX machine (`test_ptx_machine.py`) watches how their blocks wait for each other.
"""

import json

import numpy as np
import ptx
import pytest
from test_cuda import needs_kernels
from test_ptx import without_simulator

import lstm_kernels as lk
from lstm_kernels.ranks.rnn import outputs
from lstm_report.experiments import gpu_kernels
from lstm_report.measure.comparer import MismatchError, compare


@needs_kernels
@pytest.mark.parametrize(
    ("T", "D", "H", "O", "scale"),
    [
        *[(1, 1, 1, None, 1), (3, 5, 5, None, 3), (6, 2, 2, None, 4)],
        *[(1, 1, 1, 1, 1), (3, 2, 9, 4, 1), (5, 7, 4, 2, 1), (3, 2, 4, 3, 1000)],
    ],
)
def test_kernels_agree_with_the_reference(T, D, H, O, scale):
    """An LSTM of `scale` layers; an RNN and the softmax of its scaled outputs."""
    x = np.random.default_rng(0).standard_normal((T, 1, D)).astype(np.float32)
    if O is None:
        params = lk.Params.init(H, H, num_layers=scale)
        runs, want = gpu_kernels.stack_runs, lk.network("numpy", params).forward(x)[0]
    else:
        params = lk.Params.init(D, H, output_size=O, cell="rnn")
        params.V[:] *= scale
        y = lk.network("numpy", params).forward(x)[0]
        runs, want = gpu_kernels.rnn_runs, outputs(params, y)
    for run in runs(params, x).values():
        for _ in range(3):  # the counters of steps go on
            compare({"y": run()}, {"y": want}, 1e-3 if scale == 1000 else 2e-6)


def test_a_wrong_kernel_has_no_rows():
    want = np.ones((1, 1, 1), np.float32)
    with pytest.raises(MismatchError):
        gpu_kernels.measured(None, {"late": lambda: 1.01 * want}, want, repeats=1)


PTX = """
import json
import ptx
from numba import cuda
from lstm_report.experiments.gpu_kernels import SIGNATURES, MOST
kernels = {}
for kernel, types in SIGNATURES.items():
    with ptx.stand_in((9, 0)):
        text, _ = cuda.compile_ptx(kernel, types, cc=(9, 0))
    kernels[kernel.__name__] = ptx.assemble(text, (9, 0)) | {"text": text}
print(json.dumps([MOST, kernels]))
"""


def test_the_kernels_fit_a_block():
    most, kernels = json.loads(without_simulator("-c", PTX)[-1])
    for name, kernel in kernels.items():
        assert kernel["registers"] * most <= ptx.REGISTERS, name
        assert kernel["shared"] == kernel["stack"] == kernel["spills"] == 0, name
        assert ".f64" not in kernel["text"], name
    waits = kernels["wavefront"]["text"]
    assert 0 < waits.index("ld.acquire.gpu") < waits.index("red.release.gpu")
    together = [n for n in kernels if "cudaCGGetIntrinsicHandle" in kernels[n]["text"]]
    assert together == ["wavefront", "rnn_grid"]

"""`numba-bf16`: rounding, words of two numbers, inference as far as the format allows.

Most CPUs lack AVX512_BF16: there the kernels run in plain Python on a machine that
multiplies words exactly.
"""

import os
import platform
import subprocess
import sys

import numpy as np
import pytest
from checked import Interpreted
from conftest import SHAPES, example

import lstm_kernels as lk
from lstm_kernels import reference
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import bfloat16, registers
from lstm_kernels.cpu.bfloat16 import Bfloat16Tiles, rounded
from lstm_kernels.cpu.divisions import divisions
from lstm_kernels.versions.numba_bf16 import NumbaBf16

FLOAT = np.dtype(np.float32)
here = pytest.mark.skipif(
    bfloat16.why_unavailable() is not None, reason="this CPU has no AVX512_BF16"
)


def some_floats():
    """Finite float32 of every upper half, with lower halves at, below and above a tie,
    and at random.
    """
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.random.default_rng(0).integers(0, 1 << 16, 1 << 16, dtype=np.uint32)
    parts = [upper | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, lower)]
    x = np.concatenate(parts).astype(np.uint32).view(np.float32)
    return x[np.isfinite(x)]


def test_rounding_is_to_the_nearest_of_two_the_even_one():
    x = some_floats()
    got = rounded(x)
    below = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)  # towards zero
    with np.errstate(over="ignore"):
        above = (below.view(np.uint32) + np.uint32(1 << 16)).view(np.float32)
    near, far = np.abs(x.astype(float) - below), np.abs(above.astype(float) - x)
    tie = near == far
    even = (below.view(np.uint32) >> 16) % 2 == 0
    want = np.where((near < far) | (tie & even), below, above)
    want = np.where(np.isfinite(above), want, below)  # the largest stays the largest
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("D", [1, 2, 7, 16])
def test_compiled_code_makes_the_words_that_numpy_makes(D):
    x = some_floats()
    rows = x[: len(x) // D * D].reshape(-1, D)
    got = np.empty((len(rows), -(-D // 2)), np.uint32)
    bfloat16.words_of_rows(rows.view(np.uint32), got)
    even = np.pad(rows, ((0, 0), (0, D % 2)))
    np.testing.assert_array_equal(got, bfloat16.words(even).view(np.uint32))
    low, high = got << 16, got & 0xFFFF0000
    halves = np.stack([low, high], axis=2).reshape(len(rows), -1).view(np.float32)
    np.testing.assert_array_equal(halves[:, :D], rounded(rows))


def test_weights_are_words_of_two_rows():
    packed = np.random.default_rng(0).standard_normal((2, 4, 6)).astype(np.float32)
    got = bfloat16.words_of_weights(packed).view(np.uint32)
    want = rounded(packed).view(np.uint32)
    np.testing.assert_array_equal(got, want[:, ::2] >> 16 | want[:, 1::2])


def truth(params, x, state=None):
    """y and the final state in float64, of products whose operands are rounded."""

    def product(a, b):
        return rounded(a) @ rounded(b)

    def layer_forward(*arguments):
        return reference.layer_forward(*arguments, product=product)

    params, x = params.astype(np.float64), x.astype(np.float64)
    if state is not None:
        state = tuple(a.astype(np.float64) for a in state)
    return reference.forward(params, x, state, layer_forward=layer_forward)[:2]


def check(net, params, x):
    """Compare a network with the truth, from zero and from a state, and zero again. A
    rounded h may fall on the other side of a tie: that is 2^-8 of one operand.
    """
    cell, (_, B, _) = CELLS[params.cell], x.shape
    shape = params.num_layers, B, params.hidden_size
    rng = np.random.default_rng(1)
    state = tuple(rng.standard_normal(shape).astype(FLOAT) for _ in cell.state)
    for start in (None, state, None):
        y, final = net.forward(x, start)
        want, want_final = truth(params, x, start)
        for got, right in zip((y, *final), (want, *want_final), strict=True):
            np.testing.assert_allclose(got, right, rtol=0, atol=2e-3)
            assert np.median(np.abs(got - right)) < 1e-5


def test_the_kernels_stay_inside_their_arrays_and_are_right(cell, monkeypatch):
    for shape in [(1, 1, 1, 1, 1), (2, 3, 2, 3, 17), (1, 2, 3, 7, 33)]:
        params, x, _ = example(shape, cell)
        tiles = Bfloat16Tiles(CELLS[cell], FLOAT, shape[4])
        for division in divisions(shape[0], *x.shape[:2], tiles.blocks, 2):
            monkeypatch.setattr(NumbaBf16, "_divisions", lambda *_, d=division: [d])
            kernels = Interpreted(monkeypatch, tiles)
            check(NumbaBf16(params), params, x)
            assert kernels.used <= {"whole", "inputs", "step"}
            monkeypatch.undo()


def test_words_follow_the_parameters(monkeypatch):
    params, x, _ = example((1, 3, 2, 3, 9))
    Interpreted(monkeypatch, Bfloat16Tiles(CELLS["lstm"], FLOAT, 9))
    net = NumbaBf16(params, threads=1)
    before = net.forward(x)[0]
    other = lk.Params.init(3, 9, output_size=2, seed=5)
    net.assign(other)
    check(net, other, x)
    net.assign(params)
    np.testing.assert_array_equal(net.forward(x)[0], before)


def test_numbers_beyond_the_largest_bfloat16_stay_finite(monkeypatch):
    params, x, _ = example((1, 2, 2, 3, 9))
    Interpreted(monkeypatch, Bfloat16Tiles(CELLS["lstm"], FLOAT, 9))
    y, state = NumbaBf16(params, threads=1).forward(x * 0 + FLOAT.type(3.4e38))
    assert all(np.isfinite(a).all() for a in (y, *state))


ASSEMBLY = """
import numpy as np
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import simd
from lstm_kernels.cpu.bfloat16 import Bfloat16Tiles, why_unavailable
assert why_unavailable() is None
tiles = Bfloat16Tiles(CELLS["lstm"], np.dtype(np.float32), 64)
print(simd.assembly(tiles.all(False)["step"], tiles.dtype, tiles.lanes))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="code of x86-64")
def test_the_loop_is_dot_products_on_registers():
    """Compiled, not run, for a processor that has the instruction."""
    features = "+avx512f,+avx512vl,+avx512bw,+avx512dq,+avx512bf16,+avx2,+fma,+avx"
    cpu = {"NUMBA_CPU_NAME": "znver4", "NUMBA_CPU_FEATURES": features}
    line = [sys.executable, "-c", ASSEMBLY]
    text = subprocess.check_output(line, env=os.environ | cpu, text=True)
    dots = [line for line in text.splitlines() if "vdpbf16ps" in line]
    assert len(dots) >= 8
    assert all("zmm" in line and "rsp" not in line for line in dots)


@here
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_machine_code_is_right_with_the_same_bits_for_every_thread_count(cell, shape):
    params, x, _ = example(shape, cell)
    nets = [lk.network("numba-bf16", params, threads=n) for n in (1, 2)]
    check(nets[0], params, x)
    np.testing.assert_array_equal(*(net.forward(x)[0] for net in nets))


def test_what_it_cannot_do_is_refused():
    params, x, target = example((1, 2, 3, 2, 5))
    with pytest.raises(TypeError, match="params: got float64, want float32"):
        NumbaBf16(params.astype(np.float64))
    net = NumbaBf16(params)
    calls = [
        lambda: net.forward(x, training=True),
        lambda: net.step(x, target, 0.1),
        lambda: net.loss_and_grads(x, target),
        lambda: net.epoch(lk.Dataset(x, target), [0], 1, 0.1),
    ]
    for call in calls:
        with pytest.raises(lk.UnavailableError, match="numba-bf16"):
            call()


def test_a_cpu_without_the_instruction_says_so(monkeypatch):
    monkeypatch.setattr(registers, "cpu_features", dict)
    version = next(v for v in lk.versions() if v.name == "numba-bf16")
    monkeypatch.delitem(vars(version), "why_unavailable", raising=False)
    assert version.why_unavailable == "this CPU has no AVX512_BF16"
    vars(version).pop("why_unavailable")

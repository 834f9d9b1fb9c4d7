"""One sequence in chunks: every seam holds, or the version says where it did not."""

import copy
import ctypes
import signal
from itertools import product

import numpy as np
import pytest
from checked import Interpreted
from conftest import ctrl_c_after, example

import lstm_kernels as lk
from lstm_kernels import reference
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import lanes
from lstm_kernels.cpu.arrays import PLAN, PROGRESS_WORD
from lstm_kernels.cpu.divisions import Division
from lstm_kernels.cpu.machine_code import address
from lstm_kernels.cpu.plans import Plan, stage_of_parts
from lstm_kernels.cpu.run import run
from lstm_kernels.cpu.tiles import Tiles
from lstm_kernels.versions import numba_chunks
from lstm_kernels.versions.numba_chunks import WIDE, Chunking, NumbaChunks
from lstm_report.measure.comparer import compare_to_reference

LSTM = Tiles(CELLS["lstm"], np.dtype(np.float32), 1)
LANES = LSTM.lanes
# Vectors of a group of lanes, 0: chunks are samples.
VECTORS = [0, 1, 2]


def cut(params, chunking, threads=2, **choices):
    """A network that cuts every sequence in one way."""
    net = NumbaChunks(params, threads, chunks=chunking.chunks, **choices)
    net._chunkings = lambda T: [chunking]
    return net


def louder(params, factor):
    """Weights times a factor: with a large one the network never forgets."""
    for layer in params.layers:
        layer.U *= factor
        layer.W *= factor
    return params


def same(a, b):
    """Are y and the states the same, bit by bit?"""
    pairs = zip((a[0], *a[1]), (b[0], *b[1]), strict=True)
    return all(x.tobytes() == y.tobytes() for x, y in pairs)


def fused(params, x, *more):
    return lk.network("numba-fused", params).forward(x, *more)


# L, T, D, H and C: one step, C beside the lanes of a vector and beside T, rests.
CUTS = [
    (1, 1, 1, 1, 1),
    (1, 2, 1, 3, 2),
    (2, 61, 3, 5, LANES - 1),
    (1, 64, 2, 9, LANES),
    (3, 100, 1, 4, LANES),
    (1, 70, 1, 8, 2 * LANES),
    (1, LANES + 1, 1, 4, LANES),  # half of the chunks are behind the end
    (1, 5 * LANES, 1, 4, LANES + 1),
    (1, 33, 2, 2, 33),
    (2, 40, 1, 33, LANES),
]


@pytest.mark.parametrize("shape", CUTS, ids=str)
def test_agrees_with_reference(cell, shape):
    L, T, D, H, count = shape
    for dtype in (np.float32, np.float64) if shape in CUTS[3:6] else (np.float32,):
        params, x, _ = example((L, T, 1, D, H), cell, dtype)
        net = NumbaChunks(params, chunks=count, sweeps=T)
        compare_to_reference(net, params, x)  # trains, too
        assert same(net.forward(x), fused(params, x))
        assert count == 1 or net.seams.converged


# H: those in lanes with one unit block and two.
HIDDEN = [(0, WIDE), (0, 3), (1, 5), (2, 5), (4, 5), (1, LANES + 1), (2, 4 * LANES + 1)]


@pytest.mark.parametrize(("vectors", "H"), HIDDEN)
@pytest.mark.parametrize("run_up", [0, 7])
def test_the_bits_are_those_of_step_by_step(cell, vectors, H, run_up):
    T = 9 * LANES + 5
    params, x, _ = example((2, T, 1, 2, H), cell)
    state = tuple(np.float32(0.1) + s for s in fused(params, x)[1])
    count = vectors * LANES or LANES - 1
    chunking = Chunking(count, min(run_up, T // count - 1), vectors)
    net = cut(params, chunking, sweeps=T)
    for given in (None, state):
        assert same(net.forward(x, given), fused(params, x, given))
        assert net.seams.converged


# Numbers whose products are zeros of either sign, also by underflow
ZEROS = np.float32([-0.0, 0.0, -1e-30, 1e-30])


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("subnormals", [False, True])
def test_zeros_have_the_signs_of_step_by_step(cell, vectors, subnormals):
    chunking, signs = Chunking(LANES * max(1, vectors), 0, vectors), set()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        params, _, _ = example((1, 1, 1, 1, 3), cell)
        for name, a in params.arrays().items():
            a[:] = rng.choice(ZEROS[:2] if name.endswith("b") else ZEROS, a.shape)
        x = rng.choice(ZEROS, (5 * LANES, 1, 1))
        state = tuple(rng.choice(ZEROS, (1, 1, 3)) for _ in CELLS[cell].state)
        alone = lk.network("numba-fused", params, subnormals=subnormals)
        net = cut(params, chunking, subnormals=subnormals)
        for given in (None, state):
            want = alone.forward(x, given)
            assert same(net.forward(x, given), want)
            signs |= {*np.signbit(want[0][want[0] == 0]).tolist()}
    assert signs == {False, True} or cell != "rnn", "the example says nothing"


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("layers", [1, 2])
def test_what_does_not_converge_is_computed_step_by_step(cell, vectors, layers):
    count = LANES * max(1, vectors)
    T = 5 * count + 3
    params, x, _ = example((layers, T, 1, 1, 8), cell)
    params = louder(params, 16)
    for sweeps in (1, 3, count):
        net = cut(params, Chunking(count, 0, vectors), sweeps=sweeps)
        assert same(net.forward(x), fused(params, x))
        if sweeps < count:
            steps = 6 if vectors else 5  # lanes are filled up, samples come later
            assert net.seams == (count, steps, sweeps, False)
        else:
            assert net.seams.converged


NAN = np.nan
# Ends before and starts behind three seams, a row for each unit; how many hold, from
# the first on.
SEAMS = {
    "same": ([[1, 2, 3]], [[1, 2, 3]], 3),
    "the first": ([[1, 2, 3]], [[1.5, 2, 3]], 0),
    "the last bit": ([[1, 2, 3]], [[1, 2, np.nextafter(3, 4)]], 2),
    "the last unit": ([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5.1, 6]], 1),
    "zeros have signs": ([[1, 0.0, 3]], [[1, -0.0, 3]], 1),
    "NaN at one end": ([[1, NAN, 3]], [[1, 2, 3]], 1),
    "NaN at a start": ([[1, 2, 3]], [[1, 2, NAN]], 2),
    "NaN on both sides": ([[NAN, 2, 3]], [[NAN, 2, 3]], 0),
}


@pytest.mark.parametrize("case", SEAMS)
def test_each_number_of_each_seam_is_compared(case):
    *sides, want = SEAMS[case]
    ends, starts = map(np.array, sides)
    assert lanes.holding.py_func(ends, starts) == want
    alike = case == "NaN on both sides"  # then all that follows is alike, too
    assert numba_chunks.same(ends, starts) == (want == 3 or alike)
    # In the arrays of each layer and state, and of more seams
    params, _, _ = example((2, 1, 1, 1, len(ends)), dtype=np.float64)
    count = Tiles(CELLS["lstm"], ends.dtype, 1).lanes * 2
    net, steps = NumbaChunks(params, 1), 3
    space, *_ = net._space_of(Chunking(count, 0, 1), steps * count)
    plan = Plan([stage_of_parts(lanes.seams_row, 1, 1, count)])
    states = [space._lanes[name] for name in ("lanes_h", "lanes_c")]
    for array, l in product(states, range(2)):
        for other in states:
            other[:] = 7
            other[:, 0, :, 0] = other[:, steps, :, -1] = np.inf  # no seams
        array[l, 0, :, 1:4], array[l, steps, :, :3] = starts, ends
        space.work.run(plan, space)
        held = space.work.progress[PROGRESS_WORD.held]
        assert held == (count - 1 if want == 3 else want)


@pytest.mark.parametrize(("cell", "scale", "H"), [("rnn", 6, 16), ("lstm", 1, 3)])
def test_every_call_has_the_bits_of_step_by_step(cell, scale, H):
    """While cuts are tried, and after: also of a network that never forgets."""
    params, x, _ = example((1, 2000, 1, 1, H), cell)
    params, tried = louder(params, scale), set()
    want = fused(params, x)
    for threads in (1, 2):
        net = NumbaChunks(params, threads)
        for _ in range(30):
            assert same(net.forward(x), want)
            tried.add(None if net.seams is None else net.seams[:2])
    assert len(tried) > 2


def test_what_is_tried_is_told_and_decided():
    params, x, _ = example((1, 16 * LANES, 1, 1, 3))
    net = NumbaChunks(params, 1)
    assert net.division(len(x), 1).fastest is None
    for _ in range(100_000):
        net.forward(x)
        if net.division(len(x), 1).fastest:
            break
    choice = net.division(len(x), 1)
    assert choice.fastest in choice.seconds
    assert "step by step" in choice.seconds
    assert len(choice.seconds) == 3  # groups of one vector and of two
    assert net.division(4, 3).seconds == {}  # of a mini-batch, as `numba-fused`
    wide, far = lk.Params.init(1, WIDE), 1 << 70  # more run-up and sweeps than steps
    for net, T, vectors in (
        (NumbaChunks(wide, 2, chunks=5, run_up=far, sweeps=far), 80, {0}),
        (NumbaChunks(wide, 2), 10_000, {0, 1, 2}),
    ):
        tried = net._chunkings(T)
        assert {chunking.vectors for chunking in tried} == vectors
        assert all(one.run_up < T // one.chunks for one in tried)


def test_lanes_have_what_a_step_made():
    params, x, target = example((2, 60, 1, 1, 4))
    net = NumbaChunks(params, chunks=LANES, sweeps=LANES)
    for _ in range(2):
        assert same(net.forward(x), fused(net.params(), x))
        assert net.seams.converged
        net.step(x, target, 0.1)
    net.assign(params)
    assert same(net.forward(x), fused(params, x))
    assert net.seams.converged
    assert same(net.forward(x, training=True), fused(params, x))
    assert net.seams is None


BAD = [
    ({"chunks": 0}, ValueError, "chunks: got 0, want an integer"),
    ({"chunks": 2.0}, TypeError, "chunks: got 2.0"),
    ({"chunks": 6}, ValueError, "chunks: got 6, want at most T, here 5"),
    ({"run_up": -1}, ValueError, "run_up: got -1"),
    ({"sweeps": True}, TypeError, "sweeps: got True"),
]


@pytest.mark.parametrize(("choice", "kind", "words"), BAD, ids=str)
def test_bad_choices_are_named(choice, kind, words):
    params, x, _ = example((1, 5, 1, 1, 2))
    with pytest.raises(kind, match=words):
        NumbaChunks(params, **choice).forward(x)


# L, T, D, H, chunks, run-up, vectors: both workers, rests; None is the first H that one
# unit block is too small for.
ADDRESSES = [
    (2, 5 * LANES + 2, 3, 5, LANES, 1, 1),
    (1, 4 * LANES, 2, 2, 2 * LANES, 1, 1),
    (1, 4 * LANES + 1, 1, None, 2 * LANES, 0, 2),
    (1, 19, 2, 3, 5, 2, 0),
]


@pytest.mark.parametrize("case", ADDRESSES, ids=str)
def test_every_address_lies_inside_an_array(cell, case, monkeypatch):
    L, T, D, H, *chunking = case
    blocks = ((n, Tiles(CELLS[cell], LSTM.dtype, n).blocks) for n in range(1, 999))
    H = H or next(n for n, count in blocks if count > 1)
    params, x, _ = example((L, T, 1, D, H), cell)
    checked = Interpreted(monkeypatch, Tiles(CELLS[cell], x.dtype, H))
    net = cut(params, Chunking(*chunking), sweeps=T)
    compare_to_reference(net, params, x)
    y = net.forward(x)[0]
    assert net.seams.converged
    np.testing.assert_allclose(y, reference.forward(params, x)[0], atol=1e-5)
    numbers = -(-T // chunking[0]) * D  # of a chunk of x, which is turned in squares
    used = {"forward_lanes"} | ({"transpose"} if numbers >= LANES else set())
    assert not chunking[-1] or checked.used >= used


@pytest.mark.parametrize("vectors", VECTORS)
def test_a_participant_that_comes_late_finds_nothing_to_do(cell, vectors):
    """It may still be in a region when later ones begin, on the same records or on new
    ones.
    """
    count = 2 * LANES * vectors or 6
    params, x, _ = example((2, 8 * count, 1, 1, 4), cell)
    net = cut(params, Chunking(count, 2, vectors))
    net._divisions = lambda T, B: [Division("samples")]

    def ran():
        """Plans of two workers on present records; as copies, which keep theirs."""
        spaces = net._spaces.values()
        every = [(space, p) for space in spaces for p in space._plans.values()]
        every = [(s, p) for s, p in every if p.aimed is s.work.job]
        return [(s, copy.copy(p)) for s, p in every if p.workers == 2]

    def editions(plan):
        return int(plan.arrays[-2][0])

    y, _ = net.forward(x)
    while min((editions(plan) for _, plan in ran()), default=0) < 2:
        y, _ = net.forward(x)  # a thread was late, and these are new records
    before = ran()
    progress = [space.work.progress for space, _ in before]
    for space, _ in before:
        space.work.renew()
    y, _ = net.forward(x)
    progress += [space.work.progress for space, _ in ran()]
    for words in progress:
        words[1:3] = 0, 1  # who is late looks at one pass
    arrays = [y, *(a for s, _ in before for a in s.arrays.values())]
    arrays += [a for s, _ in before for a in (s._lanes or {}).values()]
    for a in arrays:
        a[...] = np.nan
    late = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 4)(address(run, PLAN))
    for _, plan in [*before, *ran()]:
        words = [a.copy() for a in plan.arrays[1:]]
        for edition in range(editions(plan)):
            late(1, edition, plan.address)
        np.testing.assert_equal(words, plan.arrays[1:])
    assert all(np.isnan(a).all() for a in arrays)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
@pytest.mark.parametrize("vectors", VECTORS)
def test_an_interrupt_leaves_a_network_that_is_whole(cell, vectors):
    params, x, _ = example((1, 100_000, 1, 1, WIDE), cell)
    net = cut(params, Chunking(2 * LANES * max(1, vectors), 0, vectors))
    want = net.forward(x[:1000])
    assert same(want, fused(params, x[:1000]))
    with ctrl_c_after(0.05):
        while True:
            net.forward(x)
    assert same(net.forward(x[:1000]), want)

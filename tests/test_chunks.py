"""One sequence in chunks: every seam holds, or the version says where it did not."""

import ctypes
import signal

import numpy as np
import pytest
from checked import Interpreted
from conftest import ctrl_c_after, example

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import chunk_kernels as kernels
from lstm_kernels.cpu.chunk_tiles import ChunkTiles
from lstm_kernels.cpu.chunks import Chunking
from lstm_kernels.cpu.machine_code import address
from lstm_kernels.cpu.tiles import Tiles
from lstm_kernels.versions.numba_chunks import FEW_UNITS, LONG, WIDE, NumbaChunks
from lstm_report.measure.comparer import compare, compare_to_reference

LANES = ChunkTiles(CELLS["lstm"], np.dtype(np.float32), 1).lanes


def cut(params, chunking, threads=2, **choices):
    """A network that cuts every sequence in one way."""
    net = NumbaChunks(params, threads, chunks=chunking.chunks, **choices)
    net._chunkings = lambda T, training: [chunking]
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
    (1, 50, 1, 4, 7),
    (2, 61, 3, 5, LANES - 1),
    (1, 64, 2, 9, LANES),
    (3, 100, 1, 4, LANES + 1),
    (1, 70, 1, 8, 2 * LANES + 1),
    (1, 33, 2, 2, 33),
    (2, 40, 1, 33, 39),
]


@pytest.mark.parametrize("shape", CUTS, ids=str)
def test_agrees_with_reference(cell, shape):
    L, T, D, H, count = shape
    for dtype in (np.float32, np.float64) if shape in CUTS[3:6] else (np.float32,):
        params, x, _ = example((L, T, 1, D, H), cell, dtype)
        net = NumbaChunks(params, chunks=count, sweeps=T)
        compare_to_reference(net, params, x)
        assert count == 1 or net.seams.converged
        dy = np.ones((T, 1, H), dtype)  # a tape can be gone back through again
        compare(net.backward(dy).arrays(), net.backward(dy).arrays(), 0)


# Vectors of a group of lanes, 0: chunks are samples.
@pytest.mark.parametrize(("vectors", "H"), [(0, WIDE), (0, 3), (1, 5), (2, 5), (4, 5)])
@pytest.mark.parametrize("run_up", [0, 7])
def test_the_bits_are_those_of_step_by_step(cell, vectors, H, run_up):
    params, x, _ = example((2, 90, 1, 2, H), cell)
    state = tuple(np.float32(0.1) + s for s in fused(params, x)[1])
    for count in (LANES - 1, 2 * LANES):
        how = {"tolerance": 0, "sweeps": 90}
        net = cut(params, Chunking(count, run_up, vectors), **how)
        for given in (None, state):
            for training in (False, True)[: 1 + (vectors > 0)]:
                got = net.forward(x, given, training=training)
                assert same(got, fused(params, x, given))
                assert net.seams.converged


@pytest.mark.parametrize("vectors", [0, 1])
def test_zeros_have_the_signs_of_step_by_step(cell, vectors):
    params, _, _ = example((1, 1, 1, 1, 3), cell)
    for a in params.arrays().values():
        a[:] = -0.0
    x = np.zeros((80, 1, 1), np.float32)
    got = cut(params, Chunking(8, 0, vectors)).forward(x)
    assert same(got, fused(params, x))


@pytest.mark.parametrize(("vectors", "training"), [(0, False), (1, False), (1, True)])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("sweeps", [1, 3])
def test_what_does_not_converge_goes_on_step_by_step(
    cell, vectors, training, layers, sweeps
):
    """A chunk more is exact after each sweep."""
    T, count = 83, 10  # lanes: 9 steps, the first 7 padding; samples: 8, after 3
    params, x, _ = example((layers, T, 1, 1, 8), cell)
    params = louder(params, 16)
    how = {"sweeps": sweeps, "tolerance": 0}
    net = cut(params, Chunking(count, 0, vectors), **how)
    assert same(net.forward(x, training=training), fused(params, x))
    assert net.seams.sweeps == (sweeps,)
    assert not net.seams.converged
    exact = 9 * sweeps - 7 if vectors else 8 * sweeps + 3
    again = training or (vectors and layers > 1)
    assert net.seams.alone_from in ([0] if again else range(exact, T))
    enough = cut(params, Chunking(count, 0, vectors), tolerance=0, sweeps=count)
    assert same(enough.forward(x, training=training), fused(params, x))
    assert enough.seams.converged


NAN, TINY, ONES = np.nan, 1e-3, [1, 1, 1]
BIG, SMALL, ODD = [100] * 3, [1, TINY, 1], [1, 1 + 2 * TINY, 1]
# Ends before and starts behind three seams, a row for each unit; the tolerance; how
# many seams hold, from the first on.
SEAMS = {
    "same": ([[1, 2, 3]], [[1, 2, 3]], 0, 3),
    "the first": ([[1, 2, 3]], [[1.5, 2, 3]], 0, 0),
    "the last bit": ([[1, 2, 3]], [[1, 2, np.nextafter(3, 4)]], 0, 2),
    "zeros have signs": ([[1, 0.0, 3]], [[1, -0.0, 3]], 0, 1),
    "within": ([[1, 2, 3]], [[1.09, 2.19, 2.71]], 0.1, 3),
    "beyond": ([[1, 2, 3]], [[1.09, 2.31, 3]], 0.1, 1),
    "NaN at one end": ([[1, NAN, 3]], [[1, 2, 3]], 0.5, 1),
    "NaN at a start": ([[1, 2, 3]], [[1, 2, NAN]], 0.5, 2),
    "NaN on both sides": ([[NAN, 2, 3]], [[NAN, 2, 3]], 0.5, 0),
    "a large unit hides no small one": ([BIG, ONES], [BIG, ODD], TINY, 1),
    "a large moment hides no small one": ([[1e9, 1, 1]], [[1e9, *ODD[:2]]], TINY, 2),
    "a zero as usual": ([[1, 0, 1], ONES], [[1, TINY / 2, 1], ONES], TINY, 3),
    "a small moment": ([[1, 0, 1], SMALL], [[1, TINY / 2, 1], SMALL], TINY, 1),
}


@pytest.mark.parametrize("state", [0, 1])
@pytest.mark.parametrize("case", SEAMS)
def test_each_number_of_each_seam_is_compared(case, state):
    *sides, tolerance, want = SEAMS[case]
    ends, starts = np.ones((2, 2, len(sides[0]), 3))
    ends[state], starts[state] = sides
    found = kernels.holding.py_func
    space = {**found.__globals__, "largest": kernels.largest.py_func}
    found = type(found)(found.__code__, space)
    assert found(ends, starts, tolerance, True) == want
    if case == "zeros have signs":
        assert found(ends, starts, tolerance, False) == 3
    net = NumbaChunks(lk.Params.init(1, 2, dtype=np.float64), tolerance=tolerance)
    ends, starts = (a.swapaxes(1, 2)[:, None] for a in (ends, starts))  # (2, L, C, H)
    edge = np.zeros((2, 1, 1, len(sides[0])))  # the first start, the last end
    samples = np.append(edge, starts, axis=2), np.append(ends, edge, axis=2)
    held = np.append(net._held_seams(*samples), False)
    assert np.argmin(held) == want


def test_the_sizes_alone_decide_the_bits_of_training():
    """Also for every number of threads, and beside the least T and the most units."""
    T = LANES * LONG
    sizes = [(T - 1, FEW_UNITS), (T, FEW_UNITS), (T + 1, FEW_UNITS)]
    sizes += [(2 * T, FEW_UNITS - 1), (2 * T, FEW_UNITS + 1)]
    for T, H in sizes:
        params, x, target = example((1, T, 1, 1, H))
        bits = set()
        for threads in (1, 2):
            net = NumbaChunks(params, threads)
            how = net.division(T, 1, "step").fastest
            for _ in range(3):
                loss, grads = net.loss_and_grads(x, target)
                arrays = grads.x, *grads.arrays().values()
                bits.add((loss, *(a.tobytes() for a in arrays)))
            assert how == net.division(T, 1, "step").fastest
            assert ("lanes" in how) == (T >= LANES * LONG and H <= FEW_UNITS)
        assert len(bits) == 1


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
        tried = net._chunkings(T, False)
        assert {chunking.vectors for chunking in tried} == vectors
        assert all(one.run_up < T for one in tried)
        assert all(net._most_sweeps(one) <= one.chunks for one in tried)


def test_steps_of_one_sequence_descend():
    params, x, target = example((2, 60, 1, 1, 4))
    net, want = NumbaChunks(params, chunks=10), lk.network("numpy", params)
    dataset = lk.Dataset(np.repeat(x, 2, axis=1), np.repeat(target, 2, axis=0))
    for network in (net, want):
        network.losses = [network.step(x, target, 0.1)]
        network.losses += network.epoch(dataset, [0, 1], 1, 0.1)
        network.losses += network.epoch(dataset, [0, 1], 2, 0.1)
    assert net.losses == pytest.approx(want.losses, rel=1e-5)
    net.step(x, target, 0.1)  # and the lanes have what it made
    assert same(net.forward(x), fused(net.params(), x))
    want.step(x, target, 0.1)
    for name, value in net.params().arrays().items():
        np.testing.assert_allclose(value, want.params().arrays()[name], atol=1e-6)


BAD = [
    ({"chunks": 0}, ValueError, "chunks: got 0, want an integer"),
    ({"chunks": 2.0}, TypeError, "chunks: got 2.0"),
    ({"chunks": 6}, ValueError, "chunks: got 6, want at most T, here 5"),
    ({"run_up": -1}, ValueError, "run_up: got -1"),
    ({"sweeps": True}, TypeError, "sweeps: got True"),
    ({"tolerance": -1e-9}, ValueError, "tolerance: got -1e-09, want a number"),
    ({"tolerance": float("nan")}, ValueError, "tolerance: got nan"),
    ({"tolerance": 1.0}, ValueError, "tolerance: got 1.0"),
    ({"tolerance": "0"}, TypeError, "tolerance: got str"),
    ({"tolerance": False}, ValueError, "tolerance: got False"),
]


@pytest.mark.parametrize(("choice", "kind", "words"), BAD, ids=str)
def test_bad_choices_are_named(choice, kind, words):
    params, x, _ = example((1, 5, 1, 1, 2))
    with pytest.raises(kind, match=words):
        NumbaChunks(params, **choice).forward(x)


def test_every_address_lies_inside_an_array(cell, monkeypatch):
    for L, T, D, H, count in [*CUTS[3:5], (1, 40, 1, 3, LANES + 2)]:
        params, x, _ = example((L, T, 1, D, H), cell)
        checked = Interpreted(monkeypatch, Tiles(CELLS[cell], x.dtype, H))
        compare_to_reference(cut(params, Chunking(count, 2, 1), sweeps=T), params, x)
        assert checked.used >= {"forward", "backward", "transpose"}
        monkeypatch.undo()


def test_a_participant_that_comes_late_finds_nothing_to_do():
    """It may still be in a region when the next one begins, on records of its own."""
    params, x, _ = example((1, 200, 1, 1, 4))
    net = NumbaChunks(params, 2, chunks=2 * LANES, run_up=2)
    net.forward(x)
    (layer,) = next(iter(net._stacks.values())).layers
    while layer.work.sync[-1, 0] == 2:  # a thread was late, and these are new records
        net.forward(x)
    kept = layer.work.arrays  # and so at their addresses
    code, start = address(kernels.sweep, kept[1].dtype), layer.work.address
    late = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 4)(code)
    layer.work.renew()
    net.forward(x)
    layer.work.progress[kernels.EXACT :] = 0  # as at the beginning of a third
    arrays = [*layer.arrays.values(), *layer.states.values()]
    for array in arrays:
        array[:] = np.nan
    late(1, 2, start)  # rounds begin with the second
    assert all(np.isnan(array).all() for array in arrays)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
def test_an_interrupt_leaves_a_network_that_is_whole():
    params, x, _ = example((1, 100_000, 1, 1, 64))
    net = NumbaChunks(params, 2, chunks=2 * LANES)
    want = net.forward(x[:1000])
    with ctrl_c_after(0.05):
        [net.forward(x) for _ in iter(int, 1)]  # without end
    assert same(net.forward(x[:1000]), want)

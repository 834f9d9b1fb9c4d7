"""One sequence in chunks: every seam holds, or the version says where it did not."""

import ctypes
import os
import pickle
import signal
import threading

import numpy as np
import pytest
from checked import Interpreted
from conftest import example

import lstm_kernels as lk
from lstm_kernels import reference
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import chunk_kernels as kernels
from lstm_kernels.cpu import chunks as rooms
from lstm_kernels.cpu.chunk_tiles import ChunkTiles
from lstm_kernels.cpu.chunks import Chunking
from lstm_kernels.cpu.machine_code import address
from lstm_kernels.cpu.tiles import Tiles
from lstm_kernels.versions.numba_chunks import FEW_UNITS, LONG, WIDE, NumbaChunks
from lstm_kernels.versions.numba_newton import NumbaNewton
from lstm_report.measure.comparer import MismatchError, compare_to_reference

LANES = ChunkTiles(CELLS["lstm"], np.dtype(np.float32), 1).lanes
BOTH = pytest.mark.parametrize("make", [NumbaChunks, NumbaNewton])


def cut(make, params, chunking, threads=2, **choices):
    """A network that cuts every sequence in one way."""
    net = make(params, threads, chunks=chunking.count, **choices)
    net._chunkings = lambda T, training: [chunking]
    return net


def diagonal(params):
    """The same network, in which a unit sees its own h alone."""
    H = params.hidden_size
    for layer in params.layers:
        layer.W.reshape(H, -1, H)[...] *= np.eye(H, dtype=layer.W.dtype)[:, None]
    return params


def louder(params, factor):
    """Weights times a factor: with a large one the network never forgets."""
    for layer in params.layers:
        layer.U *= factor
        layer.W *= factor
    return params


def same(a, b):
    """Are y and the states the same, bit by bit?"""
    pairs = zip((a[0], *a[1]), (b[0], *b[1]), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


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


@BOTH
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", CUTS, ids=str)
def test_agrees_with_reference(make, cell, shape, dtype):
    *sizes, count = shape
    L, T, D, H = sizes
    params, x, _ = example((L, T, 1, D, H), cell, dtype)
    for given in (params, diagonal(params.copy())):
        net = make(given, chunks=count, sweeps=T)
        compare_to_reference(net, given, x)
        assert count == 1 or net.seams.converged
        assert count == 1 or net.diagonal == (given is not params or H == 1)


@BOTH
@pytest.mark.parametrize("shape", CUTS[3:6], ids=str)
def test_a_given_state_and_the_gradient_of_the_last_one(make, cell, shape):
    *sizes, count = shape
    L, T, D, H = sizes
    params, x, _ = example((L, T, 1, D, H), cell, np.float64)
    rng, names = np.random.default_rng(1), CELLS[cell].state
    state, dstate = (
        tuple(rng.standard_normal((L, 1, H)) for _ in names) for _ in range(2)
    )
    dy = rng.standard_normal((T, 1, H))
    net = make(params, chunks=count, sweeps=T)
    y, final = net.forward(x, state, training=True)
    grads = net.backward(dy, dstate)
    y_ref, final_ref, tapes = reference.forward(params, x, state)
    want = reference.backward(params, tapes, dy, dstate)
    got = [y, *final, grads.x, *grads.state, *grads.arrays().values()]
    wanted = [y_ref, *final_ref, want.x, *want.state, *want.arrays().values()]
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-11)


@pytest.mark.parametrize("vectors", [1, 2, 4])
@pytest.mark.parametrize("run_up", [0, 3])
def test_without_tolerance_the_bits_are_those_of_step_by_step(cell, vectors, run_up):
    params, x, _ = example((2, 90, 1, 2, 5), cell)
    want = lk.network("numba-fused", params).forward(x)
    for count in (LANES - 1, 2 * LANES):
        how = {"tolerance": 0, "sweeps": count}
        net = cut(NumbaChunks, params, Chunking(count, run_up, vectors), **how)
        for training in (False, True):
            assert same(net.forward(x, training=training), want)
            assert net.seams.converged


@BOTH
def test_the_bits_are_the_same_for_every_number_of_threads(make):
    params, x, target = example((2, 300, 1, 1, 6))
    results = set()
    for threads in (1, 2):
        net = cut(make, params, Chunking(2 * LANES + 3, 4, 1), threads)
        loss, grads = net.loss_and_grads(x, target)
        arrays = *net.forward(x)[1], *grads.arrays().values(), grads.x
        results.add((loss, *(a.tobytes() for a in arrays)))
    assert len(results) == 1


@BOTH
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("sweeps", [1, 2, 5])
def test_a_chunk_more_is_exact_after_each_sweep_and_the_rest_is_done_alone(
    make, cell, training, sweeps
):
    T, count = 83, 10  # chunks of 9 steps, of which the first begins with 7 of padding
    params, x, _ = example((1, T, 1, 1, 8), cell)
    params = louder(params, 16)
    net = make(params, chunks=count, sweeps=sweeps, tolerance=0, run_up=0)
    want = lk.network("numba-fused", params).forward(x, training=training)
    assert same(net.forward(x, training=training), want)
    assert net.seams.sweeps == (sweeps,)
    assert not net.seams.converged
    if training:
        assert net.seams.alone_from == 0
    else:
        assert 9 * sweeps - 7 <= net.seams.alone_from < T


@BOTH
def test_with_as_many_sweeps_as_chunks_it_converges_whatever_the_weights(make, cell):
    params, x, _ = example((2, 80, 1, 1, 8), cell)
    params = louder(params, 16)
    net = make(params, chunks=20, sweeps=20, tolerance=0, run_up=0)
    assert same(net.forward(x), lk.network("numba-fused", params).forward(x))
    assert net.seams.converged


def test_one_sweep_does_not_converge_where_the_state_matters():
    params, x, _ = example((1, 64, 1, 1, 4))
    net = NumbaChunks(params, chunks=LANES, sweeps=1, run_up=0, tolerance=1e-6)
    y, _ = net.forward(x)
    assert not net.seams.converged
    np.testing.assert_allclose(y, reference.forward(params, x)[0], atol=1e-6)


@pytest.mark.parametrize("T", [80, 203])
def test_large_layers_take_chunks_as_samples(cell, T):
    params, x, _ = example((2, T, 1, 2, WIDE), cell)
    want = lk.network("numba-fused", params).forward(x)
    state = tuple(0.1 + s for s in want[1])
    for given in (None, state):
        want = lk.network("numba-fused", params).forward(x, given)
        for sweeps, run_up in ((1, 0), (5, 0), (5, 7)):
            chunking, how = Chunking(5, run_up), {"sweeps": sweeps}
            net = cut(NumbaChunks, params, chunking, tolerance=0, **how)
            assert same(net.forward(x, given), want)
            assert net.seams.converged == (sweeps > 1)


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("own", [False, True])
def test_tangents_are_the_jacobian_that_the_reference_goes_back_through(cell, own):
    n, H, S = 5, 3, len(CELLS[cell].state)
    params, x, _ = example((1, n, 1, 2, H), cell, np.float64)
    params = diagonal(params) if own else params
    net = NumbaNewton(params, chunks=1, sweeps=1)
    net._chunkings = lambda T, training: [Chunking(2, 0, 1)]
    x = np.concatenate([x, x])  # the first of two chunks of n steps
    net.forward(x)
    (layer,) = next(iter(net._stacks.values())).layers
    q = layer.work.job["C"][0] - layer.chunks
    got = layer.arrays["tangents"][..., q].swapaxes(0, 1)  # (N, S, H)
    _, _, tapes = reference.forward(params, x[:n])
    zero = np.zeros((n, 1, H))
    for s, j in np.ndindex(S, H):
        one = np.zeros((S, 1, 1, H))
        one[s, ..., j] = 1
        row = reference.backward(params, tapes, zero, tuple(one)).state
        row = np.array(row)[:, 0, 0]  # of number (s, j) of the end by the start (S, H)
        if own:
            np.testing.assert_allclose(got[:, s, j], row[:, j], atol=1e-14)
        else:
            np.testing.assert_allclose(got[:, s, j], row.ravel(), atol=1e-14)


def test_newton_needs_fewer_sweeps_where_chunks_remember_and_one_correction_back():
    params, x, _ = example((1, 400, 1, 1, 4), dtype=np.float64)
    params.layers[0].b[4:8] += 4  # forget gates near one
    counts = []
    for make in (NumbaChunks, NumbaNewton):
        net = make(params, chunks=40, sweeps=40, run_up=0, tolerance=1e-12)
        y, _ = net.forward(x, training=True)
        net.backward(np.ones_like(y))
        (stack,) = net._stacks.values()
        counts.append((net.seams.sweeps[0], int(stack.layers[0].work.stop[5])))
    assert counts[1][0] < counts[0][0] / 2
    assert counts[1][1] == 2 < counts[0][1]


def test_a_warm_start_begins_with_the_last_seams():
    params, x, _ = example((1, 300, 1, 1, 4))
    warm = NumbaNewton(params, chunks=30, run_up=3, warm_start=True)
    first = warm.forward(x)[0], warm.seams.sweeps[0]
    again = warm.forward(x)[0], warm.seams.sweeps[0]
    assert again[1] == 1 < first[1]
    np.testing.assert_allclose(again[0], first[0], atol=1e-6)


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


# Sizes beside the least T of a cut for training, and beside the most units.
EDGES = [(LANES * LONG + beside, FEW_UNITS) for beside in (-1, 0, 1)]
EDGES += [(2 * LANES * LONG, FEW_UNITS + beside) for beside in (-1, 1)]


@pytest.mark.parametrize(("T", "H"), EDGES)
def test_the_sizes_alone_decide_how_training_is_cut(T, H):
    params, x, target = example((1, T, 1, 1, H))
    bits = set()
    for threads in (1, 2):
        net = NumbaChunks(params, threads)
        how = net.division(T, 1, "step").fastest
        for _ in range(3):
            loss, grads = net.loss_and_grads(x, target)
            bits.add((loss, *(a.tobytes() for a in grads.arrays().values())))
        assert how == net.division(T, 1, "step").fastest
        assert ("lanes" in how) == (T >= LANES * LONG and H <= FEW_UNITS)
    assert len(bits) == 1


@pytest.mark.parametrize(("cell", "scale", "H"), [("rnn", 6, 16), ("lstm", 1, 3)])
def test_every_call_has_the_bits_of_step_by_step(cell, scale, H):
    """While cuts are tried, and after: also of a network that never forgets."""
    params, x, _ = example((1, 2000, 1, 1, H), cell)
    params, tried = louder(params, scale), set()
    want = lk.network("numba-fused", params).forward(x)
    for threads in (1, 2):
        net = NumbaChunks(params, threads)
        for _ in range(60):
            assert same(net.forward(x), want)
            tried.add(None if net.seams is None else net.seams[:2])
    assert len(tried) > 2


@pytest.mark.parametrize("vectors", [0, 1])
@pytest.mark.parametrize("cell", ["lstm", "rnn"])
def test_zeros_have_the_signs_of_step_by_step(cell, vectors):
    params, _, _ = example((1, 1, 1, 1, 3), cell)
    for a in params.arrays().values():
        a[:] = -0.0
    x = np.zeros((80, 1, 1), np.float32)
    want = lk.network("numba-fused", params).forward(x)
    got = cut(NumbaChunks, params, Chunking(8, 0, vectors)).forward(x)
    for a, b in zip((got[0], *got[1]), (want[0], *want[1]), strict=True):
        assert a.tobytes() == b.tobytes()


def gates(params, **bars):
    """Pre-activations that units of one layer have in each step, i f g o: constants,
    or rows of U for x, with W zero.
    """
    (layer,) = params.layers
    H = params.hidden_size
    layer.W[:] = layer.U[:] = layer.b[:] = 0
    for name, values in bars.items():
        unit = slice("ifgo".index(name[0]) * H, "ifgo".index(name[0]) * H + H)
        target = layer.U if name.endswith("_x") else layer.b
        target[..., unit] = values
    return params


# Chunks as lanes, by Newton's method, and as samples of a mini-batch.
CUTTERS = [(NumbaChunks, 1), (NumbaNewton, 1), (NumbaChunks, 0)]


@pytest.mark.parametrize(("make", "vectors"), CUTTERS)
def test_a_large_unit_hides_no_small_one(make, vectors):
    """c of one unit is 100 and soon forgotten, that of another grows by a thousandth in
    a chunk and forgets nothing: its seams move less than rounding would move the first.
    """
    n, count = 1000, 20
    params = lk.Params.init(1, 2, dtype=np.float64)
    params = gates(params, i=9, f=[4.6, 60], g=[9, 1e-6], o=[9, -800])
    x = np.zeros((n * count, 1, 1))
    want = lk.network("numpy", params).forward(x)
    how = {"tolerance": 1e-4, "sweeps": count}
    net = cut(make, params, Chunking(count, 0, vectors), **how)
    got = net.forward(x)
    np.testing.assert_allclose(got[1][1], want[1][1], rtol=1e-4)


@pytest.mark.parametrize(("make", "vectors"), CUTTERS)
def test_a_large_moment_hides_no_small_one(make, vectors):
    """c begins with 1e30, is forgotten slowly, and stays unread (o is 0) but once,
    where it is 1e12: h is 1 there.
    """
    n, count, read = 100, 20, 810
    params = lk.Params.init(1, 1, dtype=np.float64)
    params = gates(params, i=0, f=3, g=0.1, o=-800, o_x=[[1000]])
    x = np.zeros((n * count, 1, 1))
    x[read] = 1
    state = np.zeros((1, 1, 1)), np.full((1, 1, 1), 1e30)
    want, _ = lk.network("numpy", params).forward(x, state)
    assert want[read] > 0.999
    net = cut(make, params, Chunking(count, 0, vectors), tolerance=1e-6, sweeps=count)
    np.testing.assert_allclose(net.forward(x, state)[0], want, atol=1e-6)


@pytest.mark.parametrize("make", [NumbaChunks, NumbaNewton])
def test_a_large_gradient_hides_no_small_one(make):
    """1e9 enters in the first half, where everything is forgotten; 1e-3 at the end of
    the second, which forgets nothing.
    """
    n, count = 50, 2 * LANES
    params = lk.Params.init(2, 1, dtype=np.float64)
    params = gates(params, i=-4, f_x=[[1], [0]], g_x=[[0], [1]], o=1)
    x = np.random.default_rng(0).standard_normal((n * count, 1, 2))
    half = n * count // 2
    x[:half, 0, 0], x[half:, 0, 0] = 0, 9
    dy = np.zeros((n * count, 1, 1))
    dy[2 * n], dy[-1] = 1e9, 1e-3
    right = lk.network("numpy", params)
    right.forward(x, training=True)
    net = cut(make, params, Chunking(count, 0, 1), tolerance=1e-9, sweeps=count)
    net.forward(x, training=True)
    assert net.seams.converged
    got, want = (one.backward(dy).x[:, 0, 1] for one in (net, right))
    np.testing.assert_allclose(got[half:], want[half:], rtol=1e-6)


@BOTH
def test_steps_of_one_sequence_descend(make):
    params, x, target = example((2, 60, 1, 1, 4))
    net, want = make(params, chunks=10), lk.network("numpy", params)
    dataset = lk.Dataset(np.repeat(x, 2, axis=1), np.repeat(target, 2, axis=0))
    for network in (net, want):
        network.losses = [network.step(x, target, 0.1)]
        network.losses += network.epoch(dataset, [0, 1], 1, 0.1)
        network.losses += network.epoch(dataset, [0, 1], 2, 0.1)
    assert net.losses == pytest.approx(want.losses, rel=1e-5)
    for name, value in net.params().arrays().items():
        np.testing.assert_allclose(value, want.params().arrays()[name], atol=1e-6)


BAD = [
    ({"chunks": 0}, ValueError, "chunks: got 0, want an integer from 1 to"),
    ({"chunks": 2.0}, TypeError, "chunks: got 2.0"),
    ({"run_up": -1}, ValueError, "run_up: got -1"),
    ({"sweeps": True}, TypeError, "sweeps: got True"),
    ({"sweeps": 1 << 50}, ValueError, "sweeps: got 1125899906842624"),
    ({"tolerance": -1e-9}, ValueError, "tolerance: got -1e-09, want a number"),
    ({"tolerance": float("nan")}, ValueError, "tolerance: got nan"),
    ({"tolerance": 1.0}, ValueError, "tolerance: got 1.0"),
    ({"tolerance": "0"}, TypeError, "tolerance: got str"),
    ({"tolerance": False}, ValueError, "tolerance: got False"),
    ({"warm_start": 1}, TypeError, "warm_start: got int, want True or False"),
]


@pytest.mark.parametrize(("choice", "kind", "words"), BAD, ids=str)
def test_bad_choices_are_named(choice, kind, words):
    with pytest.raises(kind, match=words):
        NumbaNewton(lk.Params.init(1, 2), **choice)


def test_more_chunks_than_steps_are_refused():
    params, x, _ = example((1, 5, 1, 1, 2))
    with pytest.raises(ValueError, match="chunks: got 6, want at most T, here 5"):
        NumbaChunks(params, chunks=6).forward(x)


@BOTH
def test_every_address_lies_inside_an_array(make, cell, monkeypatch):
    for own in (False, True):
        for L, T, D, H, count in [*CUTS[2:5], (1, 40, 1, 3, LANES + 2)]:
            params, x, _ = example((L, T, 1, D, H), cell)
            params = diagonal(params) if own else params
            checked = Interpreted(monkeypatch, Tiles(CELLS[cell], x.dtype, H))
            chunking = Chunking(count, 2, 1)
            compare_to_reference(cut(make, params, chunking, sweeps=T), params, x)
            assert checked.used >= {"forward", "backward", "transpose"}
            assert ("tangents" in checked.used) == (make is NumbaNewton)
            monkeypatch.undo()


def test_the_comparison_sees_a_seam_that_is_not_looked_at(monkeypatch):
    """A layer that says that all of its chunks are exact after one sweep."""
    params, x, _ = example((1, 60, 1, 1, 4))
    run = rooms.ChunkedLayer._run

    def lie(layer, kernel, sweeps, *states):
        run(layer, kernel, 1, *states)
        return layer.chunks, 1

    monkeypatch.setattr(rooms.ChunkedLayer, "_run", lie)
    with pytest.raises(MismatchError):
        compare_to_reference(NumbaChunks(params, chunks=10, run_up=0), params, x)


@BOTH
def test_a_participant_that_comes_late_finds_nothing_to_do(make):
    """It may still be in a region when the next one begins, on records of its own."""
    params, x, _ = example((1, 200, 1, 1, 4))
    net = make(params, 2, chunks=2 * LANES, run_up=2)
    net.forward(x)
    (layer,) = next(iter(net._stacks.values())).layers
    while layer.work.sync[-1, 0] == 2:  # a thread was late, and these are new records
        net.forward(x)
    kept = layer.work.arrays  # and so at their addresses
    code, start = address(kernels.forward, kept[1].dtype), layer.work.address
    late = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 4)(code)
    layer.work.renew()
    net.forward(x)
    layer.work.stop[kernels.EXACT :] = 0  # as at the beginning of a third
    for array in layer.arrays.values():
        array[:] = np.nan
    late(1, 2, start)  # rounds begin with the second
    assert all(np.isnan(array).all() for array in layer.arrays.values())


@BOTH
def test_from_a_second_thread_and_as_a_copy(make):
    params, x, _ = example((1, 200, 1, 1, 4))
    net, found = make(params, 2, chunks=20, tolerance=1e-5, sweeps=9), []
    want = net.forward(x)
    copy = pickle.loads(pickle.dumps(net))
    assert copy._chosen == net._chosen
    thread = threading.Thread(target=lambda: found.append(net.forward(x)))
    thread.start()
    thread.join()
    assert same(found[0], want)
    assert same(copy.forward(x), want)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_cuts_sequences_too():
    params, x, _ = example((1, 200, 1, 1, 4))
    want = NumbaChunks(params, 2, chunks=2 * LANES).forward(x)
    child = os.fork()
    if child == 0:
        ok = same(NumbaChunks(params, 2, chunks=2 * LANES).forward(x), want)
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
def test_an_interrupt_leaves_a_network_that_is_whole():
    params, x, _ = example((1, 100_000, 1, 1, 64))
    net = NumbaChunks(params, 2, chunks=2 * LANES)
    want = net.forward(x[:1000])

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            [net.forward(x) for _ in range(100)]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert same(net.forward(x[:1000]), want)

"""`numba-fused` writes through addresses: it stays inside its arrays, on every
schedule.
"""

import random
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from checked import Interpreted
from conftest import example

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu.divisions import Division, Trial, divisions
from lstm_kernels.cpu.tiles import Tiles
from lstm_kernels.versions import numba_fused
from lstm_kernels.versions.numba_fused import NumbaFused
from lstm_report.measure.comparer import TOLERANCE, compare, compare_to_reference


def every_division(net, x):
    """All that would be tried on two threads."""
    L, tiles = net._params.num_layers, net.tiles
    return divisions(L, *x.shape[:2], tiles.blocks, 2, tiles.lanes)


def lanes_of(dtype):
    """Numbers of a vector."""
    return Tiles(CELLS["lstm"], np.dtype(dtype), 1).lanes


def divided(division, *how):
    """A network of `numba-fused` whose passes are divided so."""

    class Divided(NumbaFused):
        def _divisions(self, T, B):  # of an epoch the last step has fewer samples
            fits = B % max(1, division.lanes) == 0
            return [division if fits else Division("one thread")]

    return Divided(*how)


@pytest.mark.parametrize(
    ("cell", "dtype"), [*((cell, np.float32) for cell in CELLS), ("lstm", np.float64)]
)
def test_every_address_lies_inside_an_array(cell, dtype, monkeypatch):
    """Forward, backward and steps of the kernels in plain Python, on tiles that
    check.
    """
    used, lanes = set(), lanes_of(dtype)
    shapes = [(1, 1, 1, 1, 1), (2, 2, 3, 3, 17), (1, 2, 2, 18, 33)]
    shapes += [(2, 3, lanes, 3, 3), (1, 2, 2 * lanes, 1, lanes - 1)]
    shapes += [(2, 2, 4 * lanes, lanes + 1, 2)]
    if (cell, dtype) == ("gru", np.float32):
        shapes.append((1, 25, 4, 5, 3))  # more rows (t, sample) than go at once
        shapes.append((2, 18, lanes, 1, 2))  # and more steps
    for shape in shapes:
        params, x, target = example(shape, cell, dtype)
        dataset = lk.Dataset(np.repeat(x, 2, axis=1), np.repeat(target, 2, axis=0))
        order, B = np.arange(2 * x.shape[1])[::-1][:-1], x.shape[1]
        compiled = lk.network("numba-fused", params)
        want = compiled.epoch(dataset, order, B, 0.1)
        tiles = Tiles(CELLS[cell], np.dtype(dtype), shape[4])
        for division in every_division(compiled, x):
            kernels = Interpreted(monkeypatch, tiles)
            net = divided(division, params)
            compare_to_reference(net, params, x)
            assert net.epoch(dataset, order, B, 0.1) == pytest.approx(want, rel=1e-4)
            named = net.params().arrays(), compiled.params().arrays()
            compare(*named, TOLERANCE[np.dtype(dtype)])
            used |= kernels.used
            monkeypatch.undo()
    assert used >= {"forward", "through_U", "few", "gradient_W", "transpose"}
    assert used >= {"inputs", "backward", "forward_lanes", "backward_lanes"}


def ends(params, x, seed=0):
    """A state, and gradients of the final one and of y."""
    rng, (T, B, _) = np.random.default_rng(seed), x.shape
    shape = len(CELLS[params.cell].state), params.num_layers, B, params.hidden_size
    state, dstate = (tuple(rng.uniform(-1, 1, shape).astype(x.dtype)) for _ in "hc")
    return state, dstate, rng.standard_normal((T, *shape[2:])).astype(x.dtype)


def bits(value):
    """The bytes of all numbers in what a call returns."""
    if hasattr(value, "arrays"):
        value = tuple(value.arrays().values())
    if isinstance(value, tuple):
        return [found for part in value for found in bits(part)]
    return [np.asarray(value).tobytes()]


def results(net, x, target):
    """The bytes of what a network computes on each public path; then it has made a
    step.
    """
    state, dstate, dy = ends(net.params(), x)
    passes = net.forward(x, state), net.forward(x), net.forward(x, state, True)
    assert bits(passes[2]) == bits(passes[0])
    gradients = tuple(net.backward(dy, given) for given in (dstate, None))
    after = net.loss_and_grads(x, target), net.step(x, target, 0.1), net.params()
    return bits((passes, gradients, after))


def test_every_division_gives_the_same_bits(cell):
    for shape in [(2, 5, 17, 3, 33), (1, 9, 4, 40, 64), (3, 4, 30, 7, 100)]:
        params, *given = example(shape, cell)
        found = every_division(lk.network("numba-fused", params, threads=2), given[0])
        assert len(found) >= 2
        first, *others = [results(divided(d, params, 2), *given) for d in found]
        assert all(other == first for other in others), shape


def test_a_bare_pass_writes_every_step_of_h_however_it_is_divided(cell):
    lanes = lanes_of(np.float32)
    for L, T, B, H in (
        (1, 9, 2 * lanes, 4),
        (2, 1, 4 * lanes, 3),
        (2, 5, 6, lanes + 1),
    ):
        params, x, _ = example((L, T, B, 1, H), cell)
        net = lk.network("numba-fused", params, threads=2)
        for division in every_division(net, x):
            run = net.bare_forward(x, division)
            for _ in range(2):
                run.h[1:] = np.nan
                run()
                np.testing.assert_array_equal(run.h[1:, :, :H], net.forward(x)[0])


@pytest.mark.parametrize("vectors", [1, 2, 4])
@pytest.mark.parametrize(
    ("cell", "dtype"), [*((cell, np.float32) for cell in CELLS), ("lstm", np.float64)]
)
def test_lanes_give_the_bits_of_rows(cell, dtype, vectors):
    """Where so many vectors of samples lie side by side."""
    lanes, widths = lanes_of(dtype), set()
    hidden = 1, lanes - 1, lanes, lanes + 1  # the last: a unit block of an RNN alone
    for L, D, H in product((1, 3), (1, 3, lanes + 1), hidden):
        T = 17 if D == 3 else 2  # more steps than a call of a tile has
        params, *given = example((L, T, vectors * lanes, D, H), cell, dtype)
        net = lk.network("numba-fused", params, threads=2)
        *found, alone = every_division(net, given[0])
        assert alone == Division("one thread")
        in_lanes = [d for d in found if d.lanes]
        assert bool(in_lanes) == (net.tiles.blocks == 1)
        want = results(divided(alone, params, 2), *given) if in_lanes else None
        for division in in_lanes:
            assert results(divided(division, params, 2), *given) == want, (L, D, H)
            widths.add((division.by, division.lanes // lanes))
    one, two = ({(by, n) for by in ("one thread", "samples")} for n in (1, 2))
    want = {1: one - {("samples", 1)}, 2: {("one thread", 2), ("samples", 1)}, 4: two}
    assert widths == want[vectors]


@pytest.mark.parametrize("interpreted", [True, False])
def test_any_division_may_follow_any_other(cell, interpreted, monkeypatch):
    """As while they are tried, and where the fastest of two kinds of pass differ."""
    chance, ran = random.Random(0), set()

    class Restless(Trial):
        def record(self, division, seconds):
            ran.add(division)
            self.division = chance.choice(self._left)

    monkeypatch.setattr(numba_fused, "trial", lambda form, found: Restless(found))
    params, x, target = example((2, 3, 2 * lanes_of(np.float32), 2, 3), cell)
    if interpreted:
        Interpreted(monkeypatch, Tiles(CELLS[cell], x.dtype, 3))
    net, alone = NumbaFused(params, 2), divided(Division("one thread"), params, 2)
    found, (state, dstate, dy) = every_division(net, x), ends(params, x)
    forward = [(x,), (x, state), (x, None, True), (x, state, True)]
    others = {"loss_and_grads": (x, target), "step": (x, target, 0.1)}
    for call in range(12 if interpreted else 300):
        calls = [("forward", chance.choice(forward)), chance.choice([*others.items()])]
        if len(calls[0][1]) == 3:
            calls.insert(1, ("backward", (dy, chance.choice([None, dstate]))))
        for name, given in calls:
            got, want = (getattr(one, name)(*given) for one in (net, alone))
            assert bits(got) == bits(want), (call, name)
    assert bits(net.params()) == bits(alone.params())
    assert ran == {*found}


def test_a_diverged_network_is_as_new_with_new_parameters():
    params, x, target = example((2, 4, 5, 3, 20))
    net, fresh = (lk.network("numba-fused", params) for _ in range(2))
    bad = params.copy()
    bad.layers[0].W[:] = 1e38
    net.assign(bad)
    for _ in range(3):
        net.step(x, target, 1e30)
    net.assign(params)
    for _ in range(2):
        assert net.step(x, target, 0.1) == fresh.step(x, target, 0.1)
    for name, value in fresh.params().arrays().items():
        np.testing.assert_array_equal(net.params().arrays()[name], value)


def test_who_comes_late_goes_through_all_steps_up_to_a_loss_that_is_not_finite(
    monkeypatch,
):
    """Else the next call would count from an edition that is long over."""
    params, x, target = example((1, 2, 4, 1, 33))
    targets = np.tile(target, (5, 1))
    targets[8:12] = 3e38  # the third mini-batch's loss is infinite
    dataset = lk.Dataset(np.tile(x, (1, 5, 1)), targets)
    want = lk.network("numba-fused", params).step(x, target, 0.1)
    for by in ("samples", "units"):
        Interpreted(monkeypatch, Tiles(CELLS["lstm"], x.dtype, 33))
        net = divided(Division(by), params, 2)
        for _ in range(4):  # the caller is the first and the last
            with np.errstate(all="ignore"):
                losses = net.epoch(dataset, np.arange(20), 4, 0.1)
            assert np.isfinite(losses).tolist() == [True, True, False]
            net.assign(params)
            assert net.step(x, target, 0.1) == pytest.approx(want, rel=1e-4)
            net.assign(params)
        monkeypatch.undo()


@pytest.mark.parametrize("version", ["numba-fused", "numba-wavefront"])
def test_a_second_process_compiles_nothing(version):
    script = f"""
import numpy as np, lstm_kernels as lk
from numba.core import event
with event.install_recorder("numba:compile") as seen:
    net = lk.network({version!r}, lk.Params.init(1, 3, num_layers=2, output_size=1))
    net.step(np.ones((2, 1, 1), np.float32), np.ones((1, 1), np.float32), 0.1)
    net.forward(np.ones((2, 1, 1), np.float32))
print(len(seen.buffer))
"""
    line = [sys.executable, "-c", script]
    _, second = (subprocess.check_output(line, timeout=300) for _ in range(2))
    assert int(second) == 0

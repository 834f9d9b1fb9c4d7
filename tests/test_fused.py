"""`numba-fused` writes through addresses: it stays inside its arrays, on every
schedule.
"""

import subprocess
import sys

import numpy as np
import pytest
from checked import Interpreted
from conftest import example

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu.divisions import divisions
from lstm_kernels.cpu.tiles import Tiles
from lstm_kernels.versions.numba_fused import NumbaFused
from lstm_report.measure.comparer import TOLERANCE, compare, compare_to_reference


def every_division(net, x):
    """All that would be tried on two threads."""
    L, blocks = net._params.num_layers, net.tiles.blocks
    return divisions(L, *x.shape[:2], blocks, 2)


def divided(division, *how):
    """A network of `numba-fused` whose passes are divided so."""

    class Divided(NumbaFused):
        def _divisions(self, *_):
            return [division]

    return Divided(*how)


@pytest.mark.parametrize(
    ("cell", "dtype"), [*((cell, np.float32) for cell in CELLS), ("lstm", np.float64)]
)
def test_every_address_lies_inside_an_array(cell, dtype, monkeypatch):
    """Forward, backward and steps of the kernels in plain Python, on tiles that
    check.
    """
    used = set()
    shapes = [(1, 1, 1, 1, 1), (2, 2, 3, 3, 17), (1, 2, 2, 18, 33)]
    if (cell, dtype) == ("gru", np.float32):  # more rows (t, sample) than go at once
        shapes.append((1, 25, 4, 5, 3))
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
    assert used >= {"whole", "back", "through_U", "few", "gradient_W", "transpose"}


def test_every_division_gives_the_same_bits(cell):
    for shape in [(2, 5, 17, 3, 33), (1, 9, 4, 40, 64), (3, 4, 30, 7, 100)]:
        params, x, target = example(shape, cell)
        found = every_division(lk.network("numba-fused", params, threads=2), x)
        assert len(found) >= 2
        results = []
        for division in found:
            net = divided(division, params, 2)
            loss, grads = net.loss_and_grads(x, target)
            y, _ = net.forward(x)
            assert (net.forward(x, training=True)[0] == y).all()
            net.step(x, target, 0.1)
            after = net.params().arrays().values()
            arrays = y, np.array(loss), *grads.arrays().values(), *after
            results.append([a.tobytes() for a in arrays])
        assert all(other == results[0] for other in results), shape


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

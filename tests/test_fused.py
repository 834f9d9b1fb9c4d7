"""`numba-fused` writes through addresses: it stays inside its arrays, on every
schedule.
"""

import ast
import inspect
import subprocess
import sys

import numpy as np
import pytest
from checked import Interpreted
from conftest import example

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import (
    arrays,
    block_kernels,
    passes,
    wavefront_kernels,
    workspace,
)
from lstm_kernels.cpu.divisions import divisions
from lstm_kernels.cpu.tiles import Tiles
from lstm_kernels.versions import numba_fused
from lstm_report.measure.comparer import TOLERANCE, compare, compare_to_reference


def random_shapes(count, seed=0):
    """L, T, B, D, H: small, around the sizes of tiles and blocks."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield tuple(int(rng.integers(1, most)) for most in (4, 7, 20, 40, 70))


def every_division(net, x):
    """All that would be tried on two threads."""
    L, blocks = net._params.num_layers, net.tiles.blocks
    return divisions(L, *x.shape[:2], blocks, 2)


def divide_by(monkeypatch, division):
    monkeypatch.setattr(numba_fused.NumbaFused, "_divisions", lambda *_: [division])


KERNELS = (passes, block_kernels, wavefront_kernels)


def test_every_field_of_a_record_is_read_and_of_a_record_alone():
    """The tables of `arrays.py` against the attributes in the kernels' text."""
    read = {"layer": set(), "job": set()}
    for module in KERNELS:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Attribute):
                owner = getattr(node.value, "id", None)
                if isinstance(node.value, ast.Call):
                    owner = node.value.func.id.removesuffix("_at")
                if owner in ("layer", "top", "job"):
                    read["layer" if owner == "top" else owner].add(node.attr)
    assert read["layer"] == set(arrays.LAYER.names)
    job = arrays.JOBS[np.dtype(np.float32)]
    assert read["job"] == set(job.names) - {"real"}  # whose type is read
    named = {array.name for array in arrays.SPACE}
    assert named <= set(job.names) | set(arrays.LAYER.names)


def test_an_array_has_the_sizes_that_its_line_names():
    sizes = {"T": 4, "B": 3, "P": 32, "L_h": 2}
    h = next(array for array in arrays.SPACE if array.name == "h")
    assert h.sizes(sizes) == (2, 5, 3, 32)


@pytest.mark.parametrize(
    ("cell", "dtype"), [*((cell, np.float32) for cell in CELLS), ("lstm", np.float64)]
)
def test_every_address_lies_inside_an_array(cell, dtype, monkeypatch):
    """Forward, backward and steps of the kernels in plain Python, on tiles that
    check.
    """
    used = set()
    for shape in [(1, 1, 1, 1, 1), (2, 2, 3, 3, 17), (1, 2, 2, 18, 33)]:
        params, x, target = example(shape, cell, dtype)
        dataset = lk.Dataset(np.repeat(x, 2, axis=1), np.repeat(target, 2, axis=0))
        order, B = np.arange(2 * x.shape[1])[::-1][:-1], x.shape[1]
        compiled = lk.network("numba-fused", params)
        want = compiled.epoch(dataset, order, B, 0.1)
        tiles = Tiles(CELLS[cell], np.dtype(dtype), shape[4])
        for division in every_division(compiled, x):
            divide_by(monkeypatch, division)
            kernels = Interpreted(monkeypatch, tiles)
            net = lk.network("numba-fused", params)
            compare_to_reference(net, params, x)
            assert net.epoch(dataset, order, B, 0.1) == pytest.approx(want, rel=1e-4)
            named = net.params().arrays(), compiled.params().arrays()
            compare(*named, TOLERANCE[np.dtype(dtype)])
            used |= kernels.used
            monkeypatch.undo()
    assert used >= {"whole", "back", "through_U", "few", "gradient_W", "transpose"}


CANARY = 0x5AFE


class Guarded:
    """Arrays with a canary on either side."""

    def __init__(self):
        self.raw = []

    def __call__(self, *shape, dtype):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        raw = np.full(size + 4096 + 64, CANARY, np.uint16).view(np.uint8)
        start = 2048 + -(raw.ctypes.data + 2048) % 64
        raw[start : start + size] = 0
        self.raw.append((raw, start, start + size))
        return raw[start : start + size].view(dtype).reshape(shape)

    def intact(self):
        whole = np.full(1, CANARY, np.uint16).view(np.uint8)
        return all(
            (edge.reshape(-1, 2) == whole).all()
            for raw, start, stop in self.raw
            for edge in (raw[:start], raw[stop + stop % 2 :])
        )


def test_canaries_around_every_array_survive(monkeypatch):
    for number, shape in enumerate(random_shapes(60)):
        guarded = Guarded()
        monkeypatch.setattr(workspace, "buffer", guarded)
        cell = tuple(CELLS)[number % 3]
        params, x, target = example(shape, cell)
        net = lk.network("numba-fused", params, threads=2)
        found = every_division(net, x)
        division = found[number % len(found)]
        net._divisions = lambda T, B, d=division: [d]
        net.forward(x)
        compare_to_reference(net, params, x)
        net.step(x, target, 0.1)
        assert guarded.intact(), (cell, shape, division)


def test_every_division_gives_the_same_bits(cell, monkeypatch):
    for shape in [(2, 5, 17, 3, 33), (1, 9, 4, 40, 64), (3, 4, 30, 7, 100)]:
        params, x, target = example(shape, cell)
        found = every_division(lk.network("numba-fused", params, threads=2), x)
        assert len(found) >= 2
        results = []
        for division in found:
            divide_by(monkeypatch, division)
            net = lk.network("numba-fused", params, threads=2)
            loss, grads = net.loss_and_grads(x, target)
            results.append(
                {"y": net.forward(x)[0], "loss": np.array(loss)} | grads.arrays()
            )
            net.step(x, target, 0.1)
            results[-1] |= {f"after.{n}": a for n, a in net.params().arrays().items()}
        for other in results[1:]:
            for name, value in results[0].items():
                np.testing.assert_array_equal(other[name], value, err_msg=name)


def test_training_keeps_the_bits_of_inference():
    params, x, _ = example((2, 6, 5, 3, 40))
    net = lk.network("numba-fused", params)
    np.testing.assert_array_equal(net.forward(x, training=True)[0], net.forward(x)[0])


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
    counts = [
        int(
            subprocess.check_output(
                [sys.executable, "-c", script], text=True, timeout=300
            )
        )
        for _ in range(2)
    ]
    assert counts[1] == 0

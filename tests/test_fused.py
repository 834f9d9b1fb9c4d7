"""`numba-fused` writes through addresses: it stays inside its arrays, on every
schedule.
"""

import ast
import inspect
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from checked import Checked
from conftest import example

import lstm_kernels as lk
from lstm_kernels.cells import CELLS
from lstm_kernels.cpu import (
    bfloat16_kernels,
    bfloat16_space,
    block_kernels,
    cost,
    factored_kernels,
    flow,
    fused_kernels,
    records,
    registers,
    wavefront_kernels,
    workspace,
)
from lstm_kernels.cpu.tiles import Tiles
from lstm_kernels.kernels import fill
from lstm_kernels.versions import numba_fused
from lstm_report.measure.comparer import TOLERANCE, compare, compare_to_reference


def random_shapes(count, seed=0):
    """L, T, B, D, H: small, around the sizes of tiles and blocks."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield tuple(int(rng.integers(1, most)) for most in (4, 7, 20, 40, 70))


KERNELS = [fused_kernels, block_kernels, wavefront_kernels, factored_kernels]


class Record:
    """A row of a record array, with its fields as attributes, as compiled code has
    them.
    """

    def __init__(self, row):
        self.__dict__["_row"] = row

    def __getattr__(self, name):
        return self._row[name]

    def __setattr__(self, name, value):
        self._row[name] = value


class Interpreted:
    """Kernels as plain Python, on memory in which every address is looked up.

    Tiles, records and arrays may touch what the package took the address of
    (`workspace.at`), and nothing else. used: the names of the tiles that ran. more:
    Tiles beside `net.tiles`. Stands for `machine_code.Kernels`.
    """

    def __init__(self, net, monkeypatch, more=()):
        self.used, self._seen, self._turns = set(), {}, {}
        self._machine = Checked(net.tiles.dtype, net.tiles.lanes)
        self._tiles = {}
        for tiles in (net.tiles, *more):
            for keep in (False, True):
                for name, tile in tiles.all(keep).items():
                    self._tiles[workspace.codes(tiles, name, keep=keep)[name]] = tile
        for module in (workspace, flow):  # who takes addresses
            monkeypatch.setattr(module, "at", self._at)
        assert not hasattr(numba_fused, "at")
        assert not hasattr(bfloat16_space, "at")
        tiles = (
            "inputs",
            "step",
            "whole",
            "single",
            "back",
            "through",
            "few",
            "gradient",
        )
        tiles += ("round_numbers", "pair_rows_of")
        names = dict.fromkeys([*tiles, "transpose"], self._tile)
        names |= {"real": float, "claim": self._claim}
        records_at = ("layer_at", "job_at", "factored_layer_at", "factored_job_at")
        names |= dict.fromkeys(records_at, self._record_at)
        names |= {
            "finish": lambda *_: None,
            "wait": lambda sync, groups, turn, tasks: turn + 1,
        }
        names |= {"array": partial(self._array, net.tiles.dtype), "call": self.call}
        words = partial(self._array, np.dtype(np.int64))
        names |= {
            "array_of_indices": words,
            "read": lambda address: words(address, (1,))[0],
        }
        names |= {"exchange": lambda address, number: words(address, (1,)).fill(number)}
        in_words = [bfloat16_kernels] if net.tiles.numbers == 2 else []
        functions = fill([*KERNELS, *in_words], names, "")
        self._functions = [(n, f) for n, f in functions.items() if callable(f)]
        net.kernels = self

    def address(self, name):
        return 1 + [n for n, _ in self._functions].index(name)

    def run(self, participants, name, work, owner, operations=0):
        self.call(self.address(name), 0, int(work.sync[-1, 0]), work.address)
        self._turns.clear()
        return False

    def call(self, function, *numbers):
        return self._functions[function - 1][1](*numbers)

    def _at(self, array):
        place = array.__array_interface__["data"][0]
        key = place, array.nbytes, array.dtype
        if self._seen.get(key) is not array:
            self._seen[key] = array
            m = self._machine
            m.allow(
                [
                    a
                    for a in self._seen.values()
                    if a.dtype == m.dtype and a.flags.c_contiguous
                ]
            )
            m.arrays.sort(key=lambda entry: entry[0] - entry[1])  # the largest first
        return place

    def _array(self, dtype, address, shape):
        """The array at an address, all of it inside one whose address was taken."""
        size = int(np.prod(shape)) * dtype.itemsize
        for (place, *_), array in self._seen.items():
            if (
                place <= address
                and address + size <= place + array.nbytes
                and (array.dtype == dtype or array.dtype.fields)
            ):
                flat = array.reshape(-1).view(np.uint8)
                return (
                    flat[address - place : address - place + size]
                    .view(dtype)
                    .reshape(shape)
                )
        raise IndexError(f"address {address:#x}: {size} bytes outside every array")

    def _record_at(self, address, k):
        for (place, *_), array in self._seen.items():
            index, inside = divmod(int(address) - place, array.dtype.itemsize)
            if (
                array.dtype.fields
                and inside == 0
                and index >= 0
                and index + k < len(array)
            ):
                return Record(array[index + k])
        raise IndexError(f"address {address:#x}: no record")

    def _tile(self, address, *numbers):
        tile, m = self._tiles[address], self._machine
        self.used.add(tile.__name__)
        last = (
            m.splat(numbers[-1]) if isinstance(numbers[-1], float) else int(numbers[-1])
        )
        tile(m, *map(int, numbers[:-1]), last)

    def _claim(self, sync, groups, turn, me, tasks):
        self._turns[turn] = self._turns.get(turn, -1) + 1
        return self._turns[turn] if self._turns[turn] < tasks else -1


def test_every_field_of_a_record_is_read_and_of_a_record_alone():
    """The tables of `records.py` against the attributes in the kernels' text."""
    read = {"layer": set(), "top": set(), "job": set()}
    for module in (block_kernels, fused_kernels, wavefront_kernels, bfloat16_kernels):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(
                node, ast.Attribute
            ):  # of a name, or of job_at(...) or layer_at(...)
                owner = getattr(
                    node.value, "id", None
                ) or node.value.func.id.removesuffix("_at")
                read[owner].add(node.attr)
    assert read["layer"] | read["top"] == set(records.LAYER.names)
    assert read["job"] == set(records.JOB.names)
    for table in (records.LAYER_TABLE, records.JOB_TABLE):
        assert all(line.count(" | ") == 3 for line in table.strip().splitlines())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_address_lies_inside_an_array(cell, dtype, monkeypatch):
    """Forward, backward and steps of the kernels in plain Python, on tiles that
    check.
    """
    used = set()
    for shape in [
        (1, 1, 1, 1, 1),
        (2, 3, 5, 3, 17),
        (2, 2, 7, 9, 40),
        (1, 3, 2, 18, 33),
    ]:
        params, x, target = example(shape, cell, dtype)
        for schedule in cost.work_splits(
            Tiles(CELLS[cell], np.dtype(dtype), shape[4]), *x.shape[:2], 2
        ):
            monkeypatch.setattr(
                numba_fused.NumbaFused, "work_split", lambda *_, s=schedule: s
            )
            net = lk.network("numba-fused", params)
            kernels = Interpreted(net, monkeypatch)
            compare_to_reference(net, params, x)
            dataset = lk.Dataset(np.repeat(x, 2, axis=1), np.repeat(target, 2, axis=0))
            losses = net.epoch(
                dataset, np.arange(2 * x.shape[1])[::-1][:-1], x.shape[1], 0.1
            )
            compiled = lk.network("numba-fused", params)
            again = compiled.epoch(
                dataset, np.arange(2 * x.shape[1])[::-1][:-1], x.shape[1], 0.1
            )
            assert losses == pytest.approx(again, rel=1e-4)
            compare(
                net.params().arrays(),
                compiled.params().arrays(),
                TOLERANCE[np.dtype(dtype)],
            )
            used |= kernels.used
            monkeypatch.undo()
    assert used >= {"whole", "back", "through_U", "few", "gradient_W", "transpose"}


def test_the_checking_tiles_do_catch_a_bad_address():
    m = Checked(np.float32, 4, [np.zeros(8, np.float32)])
    inside = m.arrays[0][0]
    m.store(inside + 16, m.load(inside))
    for address in (inside - 4, inside + 20, 0):
        with pytest.raises(IndexError, match="outside every array"):
            m.load(address)
    odd = inside + 4 if inside % 16 == 0 else inside + 1
    with pytest.raises(IndexError, match="not a multiple of 16 bytes"):
        m.load_aligned(odd)


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
    for number, shape in enumerate(random_shapes(300)):
        guarded = Guarded()
        monkeypatch.setattr(workspace, "buffer", guarded)
        monkeypatch.setattr(numba_fused, "buffer", guarded)
        cell = tuple(CELLS)[number % 3]
        params, x, target = example(shape, cell)
        T, B, _ = x.shape
        found = cost.work_splits(
            Tiles(CELLS[cell], np.dtype(np.float32), shape[4]), T, B, 2
        )
        schedule = found[number % len(found)]
        monkeypatch.setattr(
            numba_fused.NumbaFused, "work_split", lambda *_, s=schedule: s
        )
        net = lk.network("numba-fused", params)
        net.forward(x)
        compare_to_reference(net, params, x)
        net.step(x, target, 0.1)
        assert guarded.intact(), (cell, shape, schedule)
    guarded.raw[0][0][guarded.raw[0][2] + 2] ^= 1  # a planted fault is seen
    assert not guarded.intact()


def test_every_schedule_gives_the_same_bits(cell, monkeypatch):
    for shape in [(2, 5, 17, 3, 33), (1, 9, 4, 40, 64), (3, 4, 30, 7, 100)]:
        params, x, target = example(shape, cell)
        tiles = Tiles(CELLS[cell], np.dtype(np.float32), shape[4])
        found = cost.work_splits(tiles, *x.shape[:2], 2)
        assert len(found) >= 2
        results = []
        for schedule in found:
            monkeypatch.setattr(
                numba_fused.NumbaFused, "work_split", lambda *_, s=schedule: s
            )
            net = lk.network("numba-fused", params)
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


def test_an_epoch_is_its_steps():
    params, x, target = example((2, 5, 23, 3, 20))
    dataset, order = lk.Dataset(x, target), np.random.default_rng(0).permutation(23)
    whole, steps = (lk.network("numba-fused", params) for _ in range(2))
    losses = whole.epoch(dataset, order, 8, 0.1)
    assert losses == super(numba_fused.NumbaFused, steps).epoch(dataset, order, 8, 0.1)
    assert len(losses) == 3
    for name, value in whole.params().arrays().items():
        np.testing.assert_array_equal(steps.params().arrays()[name], value)


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


@pytest.mark.parametrize("networks", [1, 2])
def test_several_python_threads_at_once(networks):
    params, x, target = example((2, 20, 32, 64, 64))
    want = lk.network("numba-fused", params).forward(x)[0]
    want_loss, want_grads = lk.network("numba-fused", params).loss_and_grads(x, target)
    nets = [lk.network("numba-fused", params) for _ in range(networks)]

    def work(number):
        net = nets[number % networks]
        for _ in range(10):
            np.testing.assert_array_equal(net.forward(x)[0], want)
            loss, grads = net.loss_and_grads(x, target)
            assert loss == want_loss
            np.testing.assert_array_equal(grads.layers[0].W, want_grads.layers[0].W)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_backward_in_another_python_thread_is_an_error():
    params, x, _ = example((1, 3, 2, 1, 7))
    net = lk.network("numba-fused", params)
    y, _ = net.forward(x, training=True)
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(RuntimeError, match="another Python thread"),
    ):
        pool.submit(net.backward, np.ones_like(y)).result()
    net.backward(np.ones_like(y))


SCRIPT = """
import os, sys, warnings
import numpy as np
import lstm_kernels as lk
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of any fork with threads
params = lk.Params.init(64, 64, num_layers=2, output_size=1)
x, target = np.ones((20, 32, 64), np.float32), np.ones((32, 1), np.float32)
net = lk.network(sys.argv[1], params)
y, _ = net.forward(x)
child = os.fork()
if child == 0:
    same = np.array_equal(net.forward(x)[0], y)
    same &= np.array_equal(lk.network(sys.argv[1], params).forward(x)[0], y)
    os._exit(0 if same else 1)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("version", ["numba-fused", "numba-wavefront"])
def test_a_forked_child_computes_the_same_bits(version):
    subprocess.run([sys.executable, "-c", SCRIPT, version], check=True, timeout=300)


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


COSTS = cost.MachineCosts(
    fma=0.25e-9, load=0.7e-9, cell=25e-9, enter=2e-6, turn=0.1e-6, hand=8e-9
)


@pytest.mark.parametrize(
    ("hidden", "T", "B", "shares", "threads"),
    [
        (8, 5, 1, 1, 1),  # too small to share
        (32, 100, 64, 2, 2),  # many samples, small weights
        (256, 100, 1, 0, 2),  # one sample: only hidden units can be shared
        (512, 100, 3, 0, 2),  # few samples: sharing them would load all weights twice
    ],
)
def test_the_cost_model_picks_the_natural_schedule(hidden, T, B, shares, threads):
    tiles = Tiles(CELLS["lstm"], np.dtype(np.float32), hidden)
    best = cost.choose(COSTS, tiles, [hidden], T, B, False, 2)
    assert (best.threads, best.shares) == (threads, shares)


def test_costs_are_recovered_from_a_noisy_machine_that_obeys_the_model(monkeypatch):
    # A load that takes longer than the tile's rows of multiply-adds would hide them.
    costs = COSTS._replace(load=0.45e-9)
    tiles = partial(Tiles, CELLS["lstm"], np.dtype(np.float32))

    def seconds(H, B, T, schedule):
        enter = costs.enter if schedule.threads > 1 else 0.0
        first = costs._replace(
            fma=0.0, load=0.0, enter=0.0
        )  # the first step has no product
        rest = costs._replace(enter=0.0)
        total = cost.predict(first, schedule, tiles(H), [1], 1, B, False)
        return (
            1e-6
            + enter
            + total
            + cost.predict(rest, schedule, tiles(H), [1], T - 1, B, False)
        )

    now = [0.0]  # a clock that runs advance, by a little more in every round but one

    def runner(*case):
        noise = iter(range(7, 100))

        def run():
            now[0] += seconds(*case) * (1 + next(noise) * 13 % 11 / 10)

        return run

    monkeypatch.setattr(cost.time, "perf_counter", lambda: now[0])
    got = cost.measure(runner, tiles, 2)
    for name, value in costs._asdict().items():
        assert getattr(got, name) == pytest.approx(value, rel=0.1), name


def test_tile_rows_fill_the_registers():
    for vectors in (1, 2, 3, 4, 8):
        rows = registers.tile_rows(vectors)
        assert rows >= 1
        assert (
            rows == 1
            or rows * vectors + min(rows, vectors) + 1
            <= registers.vector_registers().count
        )

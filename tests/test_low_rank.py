"""Low-rank weights: factors, the factored network against the reference, and its place
in use.
"""

import ast
import copy
import inspect
import os
import pickle
import random
import signal
import threading

import numpy as np
import pytest
from conftest import example
from test_fused import Guarded, Interpreted, random_shapes

import lstm_kernels as lk
from lstm_kernels import low_rank, reference
from lstm_kernels.cpu import factored, factored_kernels, records, workspace
from lstm_kernels.cpu.factored import FactoredNetwork
from lstm_report.measure import comparer
from lstm_report.measure.comparer import TOLERANCE, MismatchError, compare

CELLS = low_rank.factorable()


@pytest.fixture(autouse=True)
def shared(monkeypatch):
    """Threads share passes of any size."""
    monkeypatch.setattr(factored, "LEAST_SHARED", 0)


def ranks(params):
    """1, ranks around a vector and a wide block, and all."""
    full = low_rank.full_rank(params)
    return sorted({1, full, *(r for r in (15, 16, 17, 33, 65) if r < full)})


def random_state(params, B, seed):
    rng, count = np.random.default_rng(seed), 2 if params.cell == "lstm" else 1
    size = params.num_layers, B, params.hidden_size
    return tuple(rng.uniform(-1, 1, size).astype(params.dtype) for _ in range(count))


def truth(factors, x, dy, state, dstate):
    """What `comparer.run` returns, from the reference in float64 on the product of the
    factors.
    """
    wide = factors.astype(np.float64)
    dense = wide.dense()
    passes = {
        name: array
        for name, array in comparer.truth(dense, x, dy, state, dstate).items()
        if ": " in name  # of a forward pass; the others are gradients of U, W and b
    }
    x, dy, *rest = (a.astype(np.float64) for a in (x, dy, *state, *dstate))
    state, dstate = tuple(rest[: len(state)]), tuple(rest[len(state) :])
    _, _, tapes = reference.forward(dense, x, state)
    grads = reference.backward(dense, tapes, dy, dstate)
    return passes | low_rank.through_factors(wide, grads).arrays()


def check(net, factors, x, seed=0):
    B, dtype = x.shape[1], factors.dtype
    state, dstate = (random_state(factors, B, seed + k) for k in (1, 2))
    dy = np.random.default_rng(seed).standard_normal(
        (*x.shape[:2], factors.hidden_size)
    )
    arguments = x, dy.astype(dtype), state, dstate
    got, want = comparer.run(net, *arguments), truth(factors, *arguments)
    return compare(got, want, TOLERANCE[np.dtype(dtype)])


SIZES = [
    (1, 1, 1, 1, 1),
    (1, 5, 1, 2, 7),
    (2, 4, 3, 3, 17),
    (3, 3, 9, 70, 64),
    (2, 6, 16, 1, 65),
    (1, 70, 17, 16, 63),
    (2, 3, 2, 33, 31),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("cell", CELLS)
def test_every_path_agrees_with_the_reference(cell, dtype):
    for shape in SIZES:
        params, x, _ = example(shape, cell, dtype)
        for rank in ranks(params):
            factors = low_rank.factor(params, rank)
            for threads in (1, 3):
                check(FactoredNetwork(factors, threads=threads), factors, x, seed=rank)


def test_few_threads_do_not_share_a_small_pass(monkeypatch):
    monkeypatch.undo()
    params, x, _ = example((2, 6, 5, 3, 17))
    factors = low_rank.factor(params, 4)
    net = FactoredNetwork(factors, threads=2)
    check(net, factors, x)
    assert net._space.threads == 1


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_are_those_of_finite_differences(cell):
    params, x, target = example((2, 4, 3, 3, 5), cell, np.float64)
    factors = low_rank.factor(params, 3)
    loss, grads = FactoredNetwork(factors).loss_and_grads(x, target)
    for name, gradient in grads.arrays().items():
        if name.startswith(("x", "state")):
            continue
        for index in list(np.ndindex(gradient.shape))[:: max(1, gradient.size // 7)]:
            losses = []
            for step in (1e-6, -1e-6):
                moved = factors.copy()
                moved.arrays()[name][index] += step
                losses.append(reference.loss_and_grads(moved.dense(), x, target)[0])
            difference = (losses[0] - losses[1]) / 2e-6
            assert gradient[index] == pytest.approx(difference, rel=1e-5, abs=1e-8), (
                name,
                index,
            )
    assert loss == pytest.approx(
        reference.loss_and_grads(factors.dense(), x, target)[0], rel=1e-12
    )


def test_the_comparison_sees_planted_faults():
    params, x, _ = example((2, 4, 3, 3, 17))
    factors = low_rank.factor(params, 5)
    for name in ("layers.0.P", "layers.1.Q", "layers.1.b"):
        other = factors.copy()
        other.arrays()[name][0] *= 1.01
        with pytest.raises(MismatchError):
            check(FactoredNetwork(other), factors, x)


def test_a_full_rank_is_the_dense_network_and_lower_ones_are_nearest():
    params, x, _ = example((2, 6, 4, 3, 17))
    want = lk.network("numba-fused", params).forward(x)[0]
    matrix, errors = (
        np.vstack([params.layers[0].U, params.layers[0].W]).astype(np.float64),
        [],
    )
    for rank in range(1, 21):
        layer = low_rank.factor(params, rank).layers[0]
        errors.append(np.linalg.norm(matrix - layer.P.astype(np.float64) @ layer.Q))
        values = np.linalg.svd(matrix, compute_uv=False)[rank:]
        assert errors[-1] == pytest.approx(np.linalg.norm(values), rel=1e-4, abs=1e-5)
    assert errors == sorted(errors, reverse=True)
    full = low_rank.factor(params, low_rank.full_rank(params))
    compare({"y": FactoredNetwork(full).forward(x)[0]}, {"y": want}, 2e-5)
    assert full.rank == 34
    assert full.count == 2 * 4 * 17 + 34 * (20 + 34 + 2 * 68)
    assert not full.layers[0].P[:, 20:].any()  # it has 20 rows


def test_the_same_bits_for_any_number_of_threads_and_in_every_call():
    for shape in [(2, 9, 5, 3, 33), (1, 70, 1, 64, 64)]:
        params, x, target = example(shape)
        results = []
        for threads in (1, 2, 3):
            net = FactoredNetwork(low_rank.factor(params, 7), threads=threads)
            for _ in range(2):
                loss, grads = net.loss_and_grads(x, target)
                results.append(
                    grads.arrays() | {"y": net.forward(x)[0], "loss": np.array(loss)}
                )
        for other in results[1:]:
            for name, value in results[0].items():
                np.testing.assert_array_equal(other[name], value, err_msg=name)


@pytest.mark.parametrize(("cell", "dtype"), [("lstm", np.float32), ("rnn", np.float64)])
def test_every_address_lies_inside_an_array(cell, dtype, monkeypatch):
    used = set()
    for shape, rank in [
        ((1, 1, 1, 1, 1), 1),
        ((2, 3, 5, 3, 17), 9),
        ((1, 3, 2, 18, 33), 33),
    ]:
        params, x, _ = example(shape, cell, dtype)
        factors = low_rank.factor(params, rank)
        net = FactoredNetwork(factors, threads=2)
        kernels = Interpreted(net, monkeypatch, [net.sums])
        back = factored._back(net.tiles.form("back"), net.sums.form("back"))
        kernels._tiles[back] = net.tiles.back(net.sums)
        check(net, factors, x)
        used |= kernels.used
        monkeypatch.undo()
    assert used == {
        *("whole", "single", "inputs", "step", "back", "through_U", "through_W"),
        *("gradient_U", "gradient_W", "gradient_b"),
    }


def test_canaries_around_every_array_survive(monkeypatch):
    for number, shape in enumerate(random_shapes(60)):
        guarded = Guarded()
        for module in (workspace, factored):
            monkeypatch.setattr(module, "buffer", guarded)
        params, x, _ = example(shape, CELLS[number % 2])
        factors = low_rank.factor(params, ranks(params)[number % len(ranks(params))])
        check(FactoredNetwork(factors, threads=1 + number % 3), factors, x)
        assert guarded.intact(), shape


def test_every_field_of_a_record_is_read_and_of_a_record_alone():
    read = {"layer": set(), "job": set()}
    for node in ast.walk(ast.parse(inspect.getsource(factored_kernels))):
        if isinstance(node, ast.Attribute):
            read[node.value.id].add(node.attr)
    # Work fills in `layers`, `groups` and `sync` of every kind of job.
    assert read["layer"] == set(records.FACTORED_LAYER.names)
    assert read["job"] == set(records.FACTORED_JOB.names)


# In use.


def test_training_descends_and_an_assignment_starts_anew():
    params, x, target = example((2, 5, 12, 3, 20), output_size=1)
    factors = low_rank.factor(params, 6)
    net, dataset = FactoredNetwork(factors), lk.Dataset(x, target)
    for optimizer, rate in (("sgd", 0.1), ("adam", 0.01)):
        net.assign(factors)
        history = lk.train(
            net, dataset, 20, 5, rate, optimizer=optimizer, progress=False
        )
        assert history.loss[-1] < 0.95 * history.loss[0]
        check(net, net.params(), x)
    net.assign(factors)
    before = net.forward(x)[0]
    np.testing.assert_array_equal(before, FactoredNetwork(factors).forward(x)[0])
    loss = net.step(x, target, 0.1)
    assert loss == pytest.approx(net.loss_and_grads(x, target)[0], rel=0.5)
    assert (net.forward(x)[0] != before).any()
    assert net.predict(x).shape == target.shape


def test_shapes_and_purposes_may_alternate_and_results_are_the_caller_s():
    params, x, _ = example((2, 5, 4, 3, 64))
    factors = low_rank.factor(params, 8)
    net = FactoredNetwork(factors, threads=2)
    y, final = net.forward(x)
    kept = y.copy(), [a.copy() for a in final]
    for B in (1, 4, 3):
        check(net, factors, np.ascontiguousarray(x[:, :B]))
    net.forward(2 * x)
    np.testing.assert_array_equal(y, kept[0])
    for got, want in zip(final, kept[1], strict=True):
        np.testing.assert_array_equal(got, want)
    y[:] = np.nan
    check(net, factors, x)


@pytest.mark.parametrize("cell", CELLS)
def test_results_are_contiguous_and_no_later_call_changes_them(cell):
    for hidden in (4, 8, 15, 16, 17, 32, 64, 65):
        params, x, target = example((2, 5, 3, 4, hidden), cell)
        net = FactoredNetwork(low_rank.factor(params, 4))

        def results(x, net=net, target=target):
            (y, final), (kept, _) = net.forward(x), net.forward(x, training=True)
            found = [y, *final, kept, *net.backward(kept).arrays().values()]
            return [*found, *net.loss_and_grads(x, target)[1].arrays().values()]

        found = results(x)
        before = [array.copy() for array in found]
        results(2 * x)
        for array, was in zip(found, before, strict=True):
            assert array.flags.c_contiguous
            np.testing.assert_array_equal(array, was)


def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path):
    params, x, target = example((2, 5, 12, 3, 20), output_size=1)
    factors, dataset = low_rank.factor(params, 6), lk.Dataset(x, target)
    options = {"optimizer": "adam", "seed": 3, "progress": False}
    whole, first, second = (FactoredNetwork(factors, threads=2) for _ in range(3))
    history = lk.train(whole, dataset, 6, 5, 0.01, **options)

    class Stopped(Exception):
        pass

    def stop(history, net):
        if len(history.loss) == 3:
            raise Stopped

    options["checkpoint"] = tmp_path / "run.npz"
    with pytest.raises(Stopped):
        lk.train(first, dataset, 6, 5, 0.01, on_epoch=stop, **options)
    resumed = lk.train(second, dataset, 6, 5, 0.01, resume=True, **options)
    np.testing.assert_array_equal(resumed.loss, history.loss)
    for name, array in whole.params().arrays().items():
        np.testing.assert_array_equal(
            second.params().arrays()[name], array, err_msg=name
        )


def test_copies_and_pickles_take_the_parameters_along():
    params, x, _ = example((1, 5, 4, 3, 17))
    net = FactoredNetwork(low_rank.factor(params, 5), threads=2)
    want = net.forward(x)[0]
    for other in (copy.copy(net), copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        np.testing.assert_array_equal(other.forward(x)[0], want)
    assert (
        repr(net)
        == "factored: LSTM, 1 layer of 17, 3 inputs, rank 5, read-out 2, float32, 2 threads"
    )


def test_threads_that_share_a_network_take_turns():
    params, x, target = example((2, 6, 8, 5, 20))
    net, wrong = FactoredNetwork(low_rank.factor(params, 6), threads=2), []
    want, (want_loss, _) = net.forward(x)[0], net.loss_and_grads(x, target)

    def work():
        for _ in range(50):
            if (net.forward(x)[0] != want).any() or net.loss_and_grads(x, target)[
                0
            ] != want_loss:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_computes():
    params, x, _ = example((2, 6, 8, 5, 20))
    net = FactoredNetwork(low_rank.factor(params, 6), threads=2)
    want = net.forward(x)[0]
    child = os.fork()
    if child == 0:
        os._exit(0 if (net.forward(x)[0] == want).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(net.forward(x)[0], want)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer")
def test_an_interrupt_leaves_a_network_that_is_whole():
    """Signals at random moments of steps: the parameters are those before or after a
    step, and the next call computes with them.
    """
    params, x, target = example((2, 12, 20, 5, 40), output_size=1)
    net, rng, came = (
        FactoredNetwork(low_rank.factor(params, 9), threads=2),
        random.Random(0),
        0,
    )

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(40):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 3e-3))
                for _ in range(20):
                    net.step(x, target, 0.01)
                    net.forward(x, training=True)
            except KeyboardInterrupt:
                came += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            fresh = FactoredNetwork(net.params(), threads=1)
            np.testing.assert_array_equal(net.forward(x)[0], fresh.forward(x)[0])
            assert (
                net.loss_and_grads(x, target)[0] == fresh.loss_and_grads(x, target)[0]
            )
    finally:
        signal.signal(signal.SIGALRM, before)
    assert came > 10
    check(net, net.params(), x)


def test_bad_input():
    params, x, _ = example((2, 4, 3, 5, 8))
    for rank, error in (
        (0, ValueError),
        (17, ValueError),
        (-1, ValueError),
        (2.0, TypeError),
    ):
        with pytest.raises(error, match=f"rank: got {rank}"):
            low_rank.factor(params, rank)
    assert low_rank.full_rank(params) == 16
    with pytest.raises(
        ValueError, match=r"params.cell: got .gru., want one of .rnn., .lstm."
    ):
        low_rank.factor(lk.Params.init(3, 4, cell="gru"), 1)
    with pytest.raises(
        TypeError, match=r"params: got Factored, want lstm_kernels\.Params"
    ):
        lk.network("numba-fused", low_rank.factor(params, 2))
    with pytest.raises(TypeError, match=r"params: got Params, want low_rank\.Factored"):
        FactoredNetwork(params)
    factors = low_rank.factor(params, 4)
    for name, bad in [
        ("layers.1.P", factors.layers[1].P[:, :3]),
        ("layers.0.Q", factors.layers[0].Q[:3]),
        ("layers.0.P", factors.layers[0].P[:8]),
        ("layers.1.b", factors.layers[1].b[:-4]),
        ("V", factors.V[:5]),
    ]:
        wrong = low_rank.Factored.from_arrays(factors.arrays() | {name: bad}, "lstm")
        with pytest.raises(ValueError, match=r"params\.?\S*: got"):
            FactoredNetwork(wrong)
    half = {name: a.astype(np.float16) for name, a in factors.arrays().items()}
    with pytest.raises(TypeError, match="got dtype float16, want float32 or float64"):
        FactoredNetwork(low_rank.Factored.from_arrays(half, "lstm"))
    mixed = factors.arrays() | {"layers.1.Q": factors.layers[1].Q.astype(np.float64)}
    with pytest.raises(TypeError, match=r"layers.1.Q: got dtype float64, want float32"):
        FactoredNetwork(low_rank.Factored.from_arrays(mixed, "lstm"))
    net = FactoredNetwork(factors)
    with pytest.raises(TypeError, match="x: got dtype float64"):
        net.forward(x.astype(np.float64))
    with pytest.raises(ValueError, match=r"params: got .* rank 3, .* want .* rank 4"):
        net.assign(low_rank.factor(params, 3))
    with pytest.raises(RuntimeError, match="want forward"):
        net.backward(np.zeros((4, 3, 8), np.float32))
    with pytest.raises(ValueError, match="threads"):
        FactoredNetwork(factors, threads=10**6)

"""Buckets: the best borders, mini-batches of one bucket, and padding that does not
count.
"""

from itertools import combinations

import numpy as np
import pytest
from planted import planted

import lstm_kernels as lk
from lstm_kernels import buckets
from lstm_kernels.buckets import Bucketed, assign, borders, equal_borders, waste
from lstm_kernels.data import SYMBOLS, Reber, symbols, windows
from lstm_kernels.next_symbol import NextSymbol, numbers
from lstm_kernels.readout import cross_entropy_and_grads
from lstm_report.measure.comparer import compare

STRINGS = Reber().strings(50, seed=4)
LENGTHS = [len(string) for string in STRINGS]
DATASET = symbols(STRINGS, dtype=np.float64)


def some_lengths(seed):
    rng = np.random.default_rng(seed)
    return rng.integers(1, rng.integers(2, 30), rng.integers(1, 40))


def padded(lengths, ends):
    """Steps computed, in the words of the definition."""
    return sum(min(end for end in ends if end >= length) for length in lengths)


def check_borders(module):
    """No choice of that many borders, or of fewer, pads less."""
    for seed in range(60):
        lengths = some_lengths(seed)
        sizes = sorted(set(lengths.tolist()))
        for count in range(1, 5):
            found = module.borders(lengths, count)
            assert found == sorted(set(found))
            assert len(found) <= count
            assert found[-1] == sizes[-1]
            best = min(
                padded(lengths, (*inner, sizes[-1]))
                for inner in combinations(sizes[:-1], min(count, len(sizes)) - 1)
            )
            assert padded(lengths, found) == best


def check_waste(module):
    for seed in range(30):
        lengths = some_lengths(seed)
        for ends in (module.borders(lengths, 3), module.equal_borders(lengths, 3)):
            steps = padded(lengths, ends)
            want = (steps - lengths.sum()) / steps
            assert module.waste(lengths, ends) == pytest.approx(want, abs=1e-12)


def check_edges(module):
    """A border takes its own length and one below; one above is of the next bucket."""
    groups = module.assign([4, 5, 6, 9, 1, 5], [5, 8, 9])
    assert [group.tolist() for group in groups] == [[0, 1, 4, 5], [2], [3]]
    assert [group.tolist() for group in module.assign([2], [5, 8])] == [[0], []]
    with pytest.raises(
        ValueError, match=r"borders: got \[5, 8\], want a last one of at least 9"
    ):
        module.assign([5, 9], [5, 8])
    assert module.waste([5, 5], [5]) == 0
    assert module.waste([4, 6], [5, 8]) == pytest.approx(3 / 13)


def check_equal_borders(module):
    assert (
        module.equal_borders([1, 10], 3)
        == [4, 7, 10]
        == [*np.ceil(np.array([10, 20, 30]) / 3)]
    )
    assert module.equal_borders([5, 8, 6], 2) == [6, 8]
    assert module.equal_borders([5, 8], 100) == [5, 6, 7, 8]
    assert module.equal_borders([7, 7], 3) == [7]


def check_batches(module):
    """An epoch has every string once; a mini-batch is of one bucket, and as long as its
    longest.
    """
    ends = borders(LENGTHS, 3)
    dataset, order = (
        module.Bucketed(DATASET, ends),
        np.random.default_rng(0).permutation(50),
    )
    for size in (1, 2, 7, 16, 50):
        batches = dataset.batches(order, size)
        assert sorted(np.concatenate(batches).tolist()) == list(range(50))
        of = [
            {int(np.searchsorted(ends, LENGTHS[i])) for i in batch} for batch in batches
        ]
        assert all(len(found) == 1 for found in of)
        counts = [len(group) for group in assign(LENGTHS, ends)]
        assert len(batches) == sum(-(-count // size) for count in counts)
        for batch in batches:
            x, target = dataset.batch(batch)
            longest = max(LENGTHS[i] for i in batch)
            np.testing.assert_array_equal(x, DATASET.x[:longest, batch])
            np.testing.assert_array_equal(target, DATASET.target[batch])
            assert x.flags.c_contiguous


def check_order(module):
    """The order decides the mini-batches, and in which order they come."""
    dataset = module.Bucketed(DATASET, borders(LENGTHS, 3))
    one, other = (np.random.default_rng(seed).permutation(50) for seed in (1, 2))

    def listed(order):
        return [batch.tolist() for batch in dataset.batches(order, 8)]

    assert listed(one) == listed(one.copy())
    assert listed(one) != listed(other)
    assert sorted(map(sorted, listed(one))) != sorted(map(sorted, listed(other)))
    lasts = [max(np.flatnonzero(np.isin(one, batch))) for batch in listed(one)]
    assert lasts == sorted(lasts)
    of = [
        int(np.searchsorted(dataset.borders, LENGTHS[batch[0]]))
        for batch in listed(one)
    ]
    assert of != sorted(of), "buckets come mixed"


CHECKS = {
    "borders": check_borders,
    "waste": check_waste,
    "edges": check_edges,
    "equal borders": check_equal_borders,
    "batches": check_batches,
    "order": check_order,
}


@pytest.mark.parametrize("checked", CHECKS.values(), ids=CHECKS)
def test_buckets(checked):
    checked(buckets)


@pytest.mark.parametrize(
    ("checked", "right", "wrong"),
    [
        ("borders", "np.append(0, sizes)[None, :]", "np.append(0, sizes)[:, None]"),
        ("borders", "range(buckets - 1)", "range(buckets - 2)"),
        ("borders", "np.cumsum(counts)", "np.arange(1, n + 1)"),
        ("waste", "steps = sum(border *", "steps = sum(borders[-1] *"),
        ("edges", "bisect_left(borders, length)", "bisect_left(borders, length + 1)"),
        ("equal borders", "lengths.min() - 1", "lengths.min()"),
        ("batches", "order[self._bucket[order] == bucket]", "order"),
        ("batches", "self._bucket[order] == bucket", "self._bucket == bucket"),
        ("batches", "x[: int(target.max())]", "x[: self.borders[-1] - 1]"),
        ("order", "places[index].max()", "index.max()"),
        (
            "order",
            "order[self._bucket[order] == bucket]",
            "np.sort(order)[self._bucket == bucket]",
        ),
    ],
)
def test_these_tests_see_a_fault(checked, right, wrong):
    faulty = planted(buckets, right, wrong)
    with pytest.raises((AssertionError, IndexError)):
        CHECKS[checked](faulty)


def test_more_buckets_never_waste_more():
    for seed in range(30):
        lengths = some_lengths(seed)
        wasted = [waste(lengths, borders(lengths, count)) for count in range(1, 32)]
        assert wasted == sorted(wasted, reverse=True)
        assert wasted[-1] == 0, "more buckets than lengths"
        assert borders(lengths, 31) == sorted(set(lengths.tolist()))
        for count in range(1, 8):
            assert (
                wasted[count - 1]
                <= waste(lengths, equal_borders(lengths, count)) + 1e-12
            )


def test_what_a_mini_batch_holds_is_a_copy():
    dataset, before = Bucketed(DATASET, borders(LENGTHS, 2)), DATASET.sha256()
    for index in (np.array([3]), np.arange(50)):
        x, target = dataset.batch(index)
        x[...], target[...] = 7, 7
    assert DATASET.sha256() == before


def test_the_hash_is_of_the_borders_too():
    ends = borders(LENGTHS, 3)
    hashes = [
        Bucketed(DATASET, b).sha256() for b in (ends, ends[-1:], [*ends[:-1], 99])
    ]
    assert len({*hashes, DATASET.sha256()}) == 4
    assert Bucketed(DATASET, np.array(ends)).sha256() == hashes[0]
    assert (
        Bucketed(symbols(STRINGS[::-1], dtype=np.float64), ends).sha256() != hashes[0]
    )


def model(dtype=np.float64):
    return NextSymbol(
        lk.network(
            "numpy", lk.Params.init(7, 5, num_layers=2, output_size=7, dtype=dtype)
        )
    )


def test_a_network_by_itself_refuses_buckets(version):
    net = lk.network(version, lk.Params.init(7, 3, output_size=1))
    dataset = Bucketed(symbols(["BTB", "BT"]), [2, 3])
    for call in (
        lambda: net.epoch(dataset, np.arange(2), 1, 0.1),
        lambda: lk.train(net, dataset, 1, 1, 0.1, progress=False),
    ):
        with pytest.raises(
            TypeError, match="dataset: got Bucketed, whose mini-batches are of one"
        ):
            call()


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.5), ("adam", 0.02)])
def test_a_model_trains_on_buckets(tmp_path, optimizer, rate):
    dataset = Bucketed(DATASET, borders(LENGTHS, 3))
    options = {"optimizer": optimizer, "progress": False}
    whole = model()
    history = lk.train(whole, dataset, 6, 8, rate, **options)
    assert history.loss == sorted(history.loss, reverse=True)
    options["checkpoint"] = tmp_path / "run.npz"
    lk.train(model(), dataset, 2, 8, rate, **options)
    resumed = model()
    assert (
        lk.train(resumed, dataset, 6, 8, rate, **options, resume=True).loss
        == history.loss
    )
    compare(resumed.params().arrays(), whole.params().arrays(), 0)
    with pytest.raises(ValueError, match="is of another run"):
        lk.train(model(), Bucketed(DATASET, [99]), 6, 8, rate, **options, resume=True)


def test_a_padded_mini_batch_is_its_strings_one_by_one():
    """Loss and gradients are means over predicted symbols: each string by itself, so
    weighted.
    """
    net, dataset = model(), Bucketed(DATASET, borders(LENGTHS, 2))
    batch = dataset.batches(np.arange(50), 16)[-1]
    assert len({LENGTHS[i] for i in batch}) > 2
    loss, grads = net.loss_and_grads(*dataset.batch(batch))
    names, alone = net.params().arrays().keys(), []
    for i in batch:
        one, of_one = net.loss_and_grads(*dataset.batch(np.array([i])))
        alone.append({"loss": one} | {n: of_one.arrays()[n] for n in names})
    weights = [LENGTHS[i] - 1 for i in batch]
    want = {
        n: np.average([a[n] for a in alone], axis=0, weights=weights) for n in alone[0]
    }
    compare({"loss": loss} | {n: grads.arrays()[n] for n in names}, want, 1e-12)
    unweighted = {n: np.mean([a[n] for a in alone], axis=0) for n in alone[0]}
    with pytest.raises(AssertionError):
        compare(want, unweighted, 1e-3)


def test_what_stands_in_the_padding_does_not_count():
    """A model refuses rows after a string's end; where nobody looks, they change no
    gradient.
    """
    x, target = symbols(["BTBPVP", "BTB"], dtype=np.float64).batch(np.arange(2))
    dirty = x.copy()
    dirty[3:, 1] = np.random.default_rng(0).standard_normal((3, len(SYMBOLS)))
    with pytest.raises(ValueError, match=r"at index \[3, 1\], want one-hot rows"):
        model().loss_and_grads(dirty, target)
    longer = x.copy()
    longer[3, 1, 0] = 1
    with pytest.raises(
        ValueError, match=r"target: got 3.0 at index \[1, 0\], want length 4"
    ):
        model().loss_and_grads(longer, target)
    net = model().net
    theta, wanted, results = net.params(), numbers(x[1:]), []
    for inputs in (x, dirty):
        y, _ = net.forward(inputs[:-1].copy(), training=True)
        loss, dy, dV, db_out = cross_entropy_and_grads(
            y, theta.V, theta.b_out, wanted, 7
        )
        results.append(
            {"loss": loss, "V": dV, "b_out": db_out} | net.backward(dy).arrays()
        )
    assert results[0]["loss"] == pytest.approx(model().loss(x), rel=1e-12)
    compare(results[1], results[0], 1e-12)
    assert not results[1]["x"][2:, 1].any(), (
        "the step that predicts the last symbol is step 1"
    )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: borders([], 2), ValueError, "lengths: got none, want integers"),
        (
            lambda: borders([3, 0], 2),
            ValueError,
            "lengths: got int64 of .* of at least 1",
        ),
        (lambda: borders([3.0], 2), ValueError, "lengths: got float64 of shape"),
        (
            lambda: borders([[3]], 2),
            ValueError,
            r"lengths: got int64 of shape \(1, 1\)",
        ),
        (
            lambda: borders([3], 0),
            ValueError,
            "buckets: got 0, want an integer of at least 1",
        ),
        (lambda: borders([3], 1.5), TypeError, "buckets: got 1.5, want an integer"),
        (lambda: equal_borders([3], 0), ValueError, "buckets: got 0"),
        (lambda: equal_borders([], 1), ValueError, "lengths: got none"),
        (
            lambda: assign([3], []),
            ValueError,
            r"borders: got \[\], want increasing lengths",
        ),
        (
            lambda: assign([3], [4, 4]),
            ValueError,
            r"borders: got \[4, 4\], want increasing",
        ),
        (
            lambda: assign([3], [4, 3]),
            ValueError,
            r"borders: got \[4, 3\], want increasing",
        ),
        (
            lambda: assign([3], [0, 3]),
            ValueError,
            "borders: got 0, want an integer of at least 1",
        ),
        (lambda: assign([3], [3.5]), TypeError, "borders: got 3.5, want an integer"),
        (lambda: waste([3, 5], [4]), ValueError, "want a last one of at least 5"),
        (
            lambda: Bucketed(DATASET, [9]),
            ValueError,
            r"borders: got \[9\], want a last one of at",
        ),
        (
            lambda: Bucketed(STRINGS, [99]),
            TypeError,
            "dataset: got list, want lstm_kernels.Data",
        ),
        (
            lambda: Bucketed(windows([1, 2, 3, 4], 2), [9]),
            ValueError,
            "dataset: got targets that",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()

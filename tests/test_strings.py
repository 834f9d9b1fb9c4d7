"""Strings: the embedded Reber grammar, one-hot rows, buckets, and models of the next
symbol.
"""

import itertools
import math
import re
import tracemalloc

import numpy as np
import pytest
from conftest import skip_slow

import lstm_kernels as lk
from lstm_kernels import data, reference, strings
from lstm_kernels.strings import (
    SYMBOLS,
    Bucketed,
    NextSymbol,
    Reber,
    assign,
    borders,
    equal_borders,
    one_hot,
    outer_accuracy,
    waste,
)
from lstm_report.measure.comparer import TOLERANCE, compare, tolerance

# The language in another form: node 2 and what follows it up to E, then the whole
# string.
NODE_2 = "T*V(?:PXT*V)*(?:V|PS)"
LANGUAGE = re.compile(rf"B([TP])B(?:TS*X(?:S|X{NODE_2})|P{NODE_2})E\1E")
# Of unlike lengths, so that a mean over strings is not one over symbols.
STRINGS = ["BTBPTTVPSETE", "BPBTXSEPE", "BTB", "BPBTSSXXVVEPE"]
DRAWN = Reber().strings(50, seed=4)
LENGTHS = [len(string) for string in DRAWN]
DATASET = one_hot(DRAWN, dtype=np.float64)


# The grammar.


def legal(grammar, string):
    try:
        grammar.cross_entropy([string])
    except ValueError:
        return False
    return True


def nats(grammar, string):
    """-log p(string)"""
    return grammar.cross_entropy([string]) * (len(string) - 1)


def every(grammar, length, prefix="B"):
    """All strings of at most `length` symbols."""
    following = grammar.successors(prefix)
    if not following:
        yield prefix
    elif len(prefix) < length:
        for symbol in following:
            yield from every(grammar, length, prefix + symbol)


def test_the_language_is_that_of_the_regular_expression():
    grammar = Reber()
    for count in range(6):
        for inner in map("".join, itertools.product("TPSXVE", repeat=count)):
            string = f"BTB{inner}TE"
            assert legal(grammar, string) == bool(LANGUAGE.fullmatch(string)), string
    drawn = grammar.strings(300, seed=1)
    assert all(LANGUAGE.fullmatch(string) for string in drawn)
    assert {string[1] for string in drawn} == {"T", "P"}
    assert min(map(len, every(grammar, 12))) == strings.SHORTEST
    for inner in ("BTXSE", "BPVVE", "BTSXSE", "BTSSXXTVVE", "BPTTVPSE", "BPVPXVVE"):
        assert all(legal(grammar, f"B{o}{inner}{o}E") for o in "TP"), "of the papers"


def test_a_least_length_makes_every_other_string_as_much_more_probable():
    least, free = 14, Reber()
    given = Reber(least)
    short = list(every(free, least - 1))
    longer = 1 - sum(math.exp(-nats(free, string)) for string in short)
    assert 0.1 < longer < 0.5
    assert not any(legal(given, string) for string in short)
    for string in given.strings(200, seed=2):
        want = nats(free, string) + math.log(longer)
        assert nats(given, string) == pytest.approx(want)
    assert len(Reber(strings.LONGEST).strings(1)[0]) >= strings.LONGEST


def test_strings_have_the_expected_nats_and_symbols():
    """By hand, from the end: 7 choices and 11 predicted symbols on average; drawn ones
    within four standard errors.
    """
    grammar, count = Reber(), 3000
    drawn = grammar.strings(count, seed=3)
    of = np.array([[nats(grammar, string), len(string) - 1] for string in drawn])
    error = of.std(axis=0, ddof=1) / math.sqrt(count)
    assert (abs(of.mean(axis=0) - [7 * math.log(2), 11]) < 4 * error).all()
    assert grammar.cross_entropy(drawn) == pytest.approx(
        of[:, 0].sum() / of[:, 1].sum()
    )


def test_what_may_follow():
    grammar, later = Reber(), Reber(12)
    assert grammar.successors("") == {"B": 1}
    assert grammar.successors("B") == {"T": 0.5, "P": 0.5}
    assert grammar.successors("BPBTXSE") == {"P": 1}
    assert grammar.successors("BPBTXSEPE") == {}
    # In nine symbols two strings of the inner grammar of five end; with twelve at
    # least, none.
    assert later.successors("BPBTX") == {"X": 1}
    assert grammar.successors("BPBTX") == {"X": 0.5, "S": 0.5}
    for prefix in ("BPBTXX", "BTBPTTV", "BTBTSSSSSS"):
        assert sum(later.successors(prefix).values()) == pytest.approx(1)


def test_a_seed_decides_the_strings():
    assert Reber().strings(20, seed=4) == DRAWN[:20]
    assert Reber().strings(20, seed=5) != DRAWN[:20]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_hot_rows(dtype):
    dataset = one_hot(["BTX", "E", "PS"], dtype=dtype)
    assert dataset.x.dtype == dataset.target.dtype == dtype
    np.testing.assert_array_equal(dataset.target, [[3], [1], [2]])
    assert dataset.x.shape == (3, 3, 7)
    rows = [
        "".join(SYMBOLS[i] for i in np.flatnonzero(row))
        for row in dataset.x.reshape(9, 7)
    ]
    assert rows == ["B", "E", "P", "T", "", "S", "X", "", ""]
    assert set(np.unique(dataset.x)) == {0, 1}


GRAMMAR_ERRORS = [
    (lambda: Reber(8), "least: got 8, want an integer from 9 to 1000"),
    (lambda: Reber(1001), "least: got 1001"),
    (lambda: Reber(12.0), "least: got 12.0"),
    (lambda: Reber().strings(0), "count: got 0, want an integer of at least 1"),
    (lambda: Reber().strings(1, seed=-1), "seed: got -1"),
    (lambda: Reber().successors(3), "prefix: got int, want a string of BTPSXVE"),
    (lambda: Reber().successors("BX"), "got 'X' at position 1, want 'T' or 'P'"),
    (lambda: Reber().successors("BQ"), "prefix: got 'Q' at position 1, want of B"),
    (lambda: Reber().successors("BTBTXSETEB"), "'B' at position 9, want the end of"),
    (lambda: Reber(12).successors("BTBTXS"), "got 'S' at position 5, want 'X'"),
    (
        lambda: Reber().cross_entropy(["BTBTXSETE", "BTBTXSEPE"]),
        r"strings\[1\]: got 'P' at position 7, want 'T'",
    ),
    (
        lambda: Reber().cross_entropy(["BTBTX"]),
        r"strings\[0\]: got its end at position 5, want 'X' or 'S'",
    ),
    (lambda: Reber().cross_entropy([""]), "got its end at position 0, want 'B'"),
    (lambda: Reber().cross_entropy([]), "strings: got an empty list"),
    (lambda: Reber().cross_entropy("BTB"), "strings: got str, want a list"),
    (lambda: Reber().cross_entropy([b"BTB"]), r"strings\[0\]: got bytes"),
    (lambda: one_hot([]), "strings: got an empty list, want at least one string"),
    (lambda: one_hot(["B", ""]), r"strings\[1\]: got an empty string"),
    (lambda: one_hot(["B", "BA"]), r"strings\[1\]: got 'A' at position 1"),
    (lambda: one_hot(None), "strings: got NoneType"),
    (lambda: one_hot(["B"], dtype=int), "dtype: got int64, want float32 or"),
]


@pytest.mark.parametrize(("call", "message"), GRAMMAR_ERRORS)
def test_what_is_no_string(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


# Buckets.


def some_lengths(seed):
    rng = np.random.default_rng(seed)
    return rng.integers(1, rng.integers(2, 30), rng.integers(1, 40))


def padded(lengths, ends):
    """Steps computed, in the words of the definition."""
    return sum(min(end for end in ends if end >= length) for length in lengths)


def test_no_choice_of_borders_pads_less():
    for seed in range(60):
        lengths = some_lengths(seed)
        sizes = sorted(set(lengths.tolist()))
        for count in range(1, 5):
            got = borders(lengths, count)
            assert got == sorted(set(got))
            assert len(got) <= count
            assert got[-1] == sizes[-1]
            best = min(
                padded(lengths, (*inner, sizes[-1]))
                for inner in itertools.combinations(
                    sizes[:-1], min(count, len(sizes)) - 1
                )
            )
            assert padded(lengths, got) == best
            for ends in (got, equal_borders(lengths, count)):
                want = 1 - lengths.sum() / padded(lengths, ends)
                assert waste(lengths, ends) == pytest.approx(want, abs=1e-12)
        assert borders(lengths, 31) == sizes


def test_a_border_takes_its_own_length_and_one_below():
    groups = assign([4, 5, 6, 9, 1, 5], [5, 8, 9])
    assert [group.tolist() for group in groups] == [[0, 1, 4, 5], [2], [3]]
    assert [group.tolist() for group in assign([2], [5, 8])] == [[0], []]
    assert waste([5, 5], [5]) == 0
    assert waste([4, 6], [5, 8]) == pytest.approx(3 / 13)


def test_equal_borders():
    assert equal_borders([1, 10], 3) == [4, 7, 10]
    assert equal_borders([5, 8, 6], 2) == [6, 8]
    assert equal_borders([5, 8], 10**12) == [5, 6, 7, 8]
    assert equal_borders([7, 7], 3) == [7]
    assert equal_borders([2**31 - 1, 1], 2) == [2**30, 2**31 - 1]


def test_many_lengths_take_memory_as_they_are_many():
    lengths = np.arange(1, 8001)
    tracemalloc.start()
    try:
        assert borders(lengths, 2) == [4000, 8000]
        assert tracemalloc.get_traced_memory()[1] < 10e6  # of 512e6 for a matrix
    finally:
        tracemalloc.stop()
    assert borders([1, 2**31 - 1] * 3, 2) == [1, 2**31 - 1]
    assert waste([2**31 - 1] * 3, [2**31 - 1]) == 0


def test_an_epoch_has_every_string_once_and_a_mini_batch_is_of_one_bucket():
    ends = borders(LENGTHS, 3)
    dataset, order = Bucketed(DATASET, ends), np.random.default_rng(0).permutation(50)
    counts = [len(group) for group in assign(LENGTHS, ends)]
    for size in (1, 7, 50):
        batches = dataset.batches(order, size)
        assert sorted(np.concatenate(batches).tolist()) == list(range(50))
        of = np.searchsorted(ends, LENGTHS)
        assert all(len({*of[batch]}) == 1 for batch in batches)
        assert len(batches) == sum(-(-count // size) for count in counts)
        for batch in batches:
            x, target = dataset.batch(batch)
            longest = max(LENGTHS[i] for i in batch)
            np.testing.assert_array_equal(x, DATASET.x[:longest, batch])
            np.testing.assert_array_equal(target, DATASET.target[batch])
            assert x.flags.c_contiguous
            assert not np.shares_memory(x, dataset.x)


def test_the_order_decides_the_mini_batches_and_when_they_come():
    dataset = Bucketed(DATASET, borders(LENGTHS, 3))
    one, other = (np.random.default_rng(seed).permutation(50) for seed in (1, 2))

    def listed(order):
        return [batch.tolist() for batch in dataset.batches(order, 8)]

    assert listed(one) == listed(one.copy())
    assert sorted(map(sorted, listed(one))) != sorted(map(sorted, listed(other)))
    lasts = [max(np.flatnonzero(np.isin(one, batch))) for batch in listed(one)]
    assert lasts == sorted(lasts)
    first = [LENGTHS[batch[0]] for batch in listed(one)]
    of = np.searchsorted(dataset.borders, first).tolist()
    assert of != sorted(of), "buckets come mixed"


def test_the_hash_is_of_the_borders_too():
    ends = borders(LENGTHS, 3)
    sets = [Bucketed(DATASET, b) for b in (ends, ends[-1:], [*ends[:-1], 99])]
    assert len({DATASET.sha256(), *(dataset.sha256() for dataset in sets)}) == 4
    assert Bucketed(DATASET, np.array(ends)).sha256() == sets[0].sha256()


MASKED = np.ma.array([3, 4], mask=[0, 1])
BUCKET_ERRORS = [
    (lambda: borders([], 2), "lengths: got none, want integers"),
    (lambda: borders([3, 0], 2), "lengths: got 0 to 3, want integers .N,. from 1"),
    (lambda: borders([3.0], 2), "lengths: got float64 of shape"),
    (lambda: borders([[3]], 2), r"lengths: got int64 of shape \(1, 1\)"),
    (lambda: borders([2**63], 2), "lengths: got 9223372036854775808 to"),
    (lambda: waste([2**62] * 3, [2**62]), "lengths: got 4611686018427387904 to"),
    (lambda: equal_borders([1, 2**62], 3), "lengths: got 1 to 46116860184273879"),
    (lambda: borders(MASKED, 2), "lengths: got a masked array"),
    (lambda: borders([3], 0), "buckets: got 0, want an integer of at least 1"),
    (lambda: equal_borders([3], 1.5), "buckets: got 1.5, want an integer"),
    (lambda: assign([3], []), r"borders: got \[\], want increasing lengths"),
    (lambda: assign([3], [4, 4]), r"borders: got \[4, 4\], want increasing"),
    (lambda: assign([3], [0, 3]), "borders: got 0, want an integer of at least 1"),
    (lambda: assign([3], 3), "borders: got int, want a list of lengths"),
    (lambda: waste([3, 5], [4]), r"borders: got \[4\], want a last one of at least 5"),
    (lambda: Bucketed(DATASET, [9]), r"borders: got \[9\], want a last one of at"),
    (lambda: Bucketed(DRAWN, [99]), "dataset: got list, want lstm_kernels.Data"),
    (
        lambda: Bucketed(data.windows([1, 2, 3, 4], 2), [9]),
        "dataset: got targets that are not lengths",
    ),
]


@pytest.mark.parametrize(("call", "message"), BUCKET_ERRORS)
def test_what_are_no_buckets(call, message):
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        call()


def test_a_network_by_itself_refuses_buckets(version):
    net = lk.network(version, lk.Params.init(7, 3, output_size=1))
    dataset = Bucketed(one_hot(["BTB", "BT"]), [2, 3])
    with pytest.raises(TypeError, match="dataset: got Bucketed, whose mini-batches"):
        net.epoch(dataset, np.arange(2), 1, 0.1)


# Models of the next symbol.


def parameters(cell="lstm", dtype=np.float64, H=3, **changed):
    sizes = {"output_size": 7, "cell": cell, "dtype": dtype} | changed
    return lk.Params.init(7, H, **sizes)


def model(**changed):
    return NextSymbol(lk.network("numpy", parameters(**changed)))


def string_by_string(params, words=STRINGS):
    """The loss, each string by itself and without padding, in the words of its
    definition.
    """
    total, count = 0.0, 0
    for word in words:
        x = one_hot([word], dtype=params.dtype).x
        y, _, _ = reference.forward(params, x)
        for t in range(len(word) - 1):
            z = y[t, 0] @ params.V + params.b_out
            total -= np.log(np.exp(z[x[t + 1, 0] == 1][0]) / np.exp(z).sum())
            count += 1
    return total / count


@pytest.mark.parametrize("version", ["numpy", "sequential"])
def test_loss_and_gradients_are_those_of_the_definition(version):
    params, want = parameters(num_layers=2), {}
    for name, a in params.arrays().items():
        want[name] = np.zeros_like(a)
        for at in np.ndindex(a.shape):
            middle, eps = a[at], 1e-5
            a[at] = middle + eps
            up = string_by_string(params)
            a[at] = middle - eps
            want[name][at] = (up - string_by_string(params)) / (2 * eps)
            a[at] = middle
    net = NextSymbol(lk.network(version, params))
    dataset = one_hot(STRINGS, dtype=float)
    loss, grads = net.loss_and_grads(dataset.x, dataset.target)
    got = {"loss": loss, "again": net.loss(dataset.x)}
    compare(got, dict.fromkeys(got, string_by_string(params)), 1e-12)
    compare({name: grads.arrays()[name] for name in want}, want, 1e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_padding_changes_nothing(dtype):
    net, dataset = model(dtype=dtype), one_hot(STRINGS, dtype=dtype)
    longer = np.concatenate([dataset.x, np.zeros((5, 4, 7), dtype)])
    want, grads = net.loss_and_grads(dataset.x, dataset.target)
    loss, again = net.loss_and_grads(longer, dataset.target)
    got = {"loss": loss, "alone": net.loss(longer)}
    compare(got, dict.fromkeys(got, want), TOLERANCE[np.dtype(dtype)])
    compare(again.arrays(), grads.arrays(), TOLERANCE[np.dtype(dtype)])  # x too


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
    want = {n: np.average([a[n] for a in alone], 0, weights) for n in alone[0]}
    compare({"loss": loss} | {n: grads.arrays()[n] for n in names}, want, 1e-12)


def test_probabilities_sum_to_one_and_give_the_loss():
    x, params = one_hot(STRINGS).x, parameters(dtype=np.float32)
    small = NextSymbol(lk.network("numpy", params))
    p = small.probabilities(x)[:-1][x[1:] == 1]
    compare({"loss": -np.log(p).mean()}, {"loss": small.loss(x)}, 1e-6)
    params.V[...] *= 3000  # large read-outs do not overflow
    p = NextSymbol(lk.network("numpy", params)).probabilities(x)
    assert p.dtype == np.float32
    compare({"sum": p.sum(axis=2)}, {"sum": np.ones(x.shape[:2])}, 1e-6)


def test_every_version_and_cell(version, cell):
    skip_slow(version, (1, 6, 2, 7, 5), cell)
    params = parameters(cell, np.float32, H=5, num_layers=2)
    dataset = one_hot(["BTBPVP", "BTBT"])
    got, want = (
        NextSymbol(lk.network(name, params)).loss_and_grads(dataset.x, dataset.target)
        for name in (version, "numpy")
    )
    named = [{"loss": loss} | grads.arrays() for loss, grads in (got, want)]
    compare(*named, tolerance(lk.network(version, params), 6))


def test_a_descent_step_is_theta_less_rate_times_gradient():
    params, dataset = parameters(), one_hot(STRINGS, dtype=np.float64)
    net = NextSymbol(lk.network("numpy", params))
    loss, grads = net.loss_and_grads(*dataset.batch(np.array([2, 0])))
    assert net.epoch(dataset, [2, 0], 2, 0.5) == [loss]
    want = {name: a - 0.5 * grads.arrays()[name] for name, a in params.arrays().items()}
    compare(net.params().arrays(), want, 1e-14)
    assert len(net.epoch(dataset, np.arange(4), 3, 0.5)) == 2
    assert net.epoch(dataset, np.array([], int), 3, 0.5) == []
    net.assign(params)
    compare(net.params().arrays(), params.arrays(), 0)


def train(epochs=15, optimizer="adam", rate=0.02, **options):
    """A small network of 14 units, trained on 1000 embedded strings."""
    net = NextSymbol(lk.network("numba-fused", parameters(dtype=np.float32, H=14)))
    dataset = one_hot(Reber().strings(1000, seed=1))
    options |= {"optimizer": optimizer}
    return net, lk.train(net, dataset, epochs, 16, rate, **options)


def test_a_small_lstm_comes_near_the_optimum_and_not_below():
    words = Reber().strings(1000, seed=2)
    optimum, x = Reber().cross_entropy(words), one_hot(words).x
    net, _ = train(epochs=1)
    assert net.loss(x) > 1.2 * optimum
    assert outer_accuracy(net, words) < 0.8
    net, history = train()
    assert optimum < net.loss(x) < 1.04 * optimum
    assert outer_accuracy(net, words) > 0.98
    assert history.loss[-1] == pytest.approx(optimum, rel=0.05)


@pytest.mark.parametrize("bucketed", [False, True])
@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.5), ("adam", 0.02)])
def test_a_resumed_run_has_the_same_bits(tmp_path, optimizer, rate, bucketed):
    dataset = Bucketed(DATASET, borders(LENGTHS, 3)) if bucketed else DATASET
    options = {"optimizer": optimizer, "progress": False}
    whole, resumed = model(H=5), model(H=5)
    history = lk.train(whole, dataset, 6, 8, rate, **options)
    assert history.loss[-1] < history.loss[0]
    options["checkpoint"] = tmp_path / "run.npz"
    lk.train(model(H=5), dataset, 2, 8, rate, **options)
    again = lk.train(resumed, dataset, 6, 8, rate, **options, resume=True)
    assert again.loss == history.loss
    compare(resumed.params().arrays(), whole.params().arrays(), 0)
    other = Bucketed(DATASET, [99])
    with pytest.raises(ValueError, match="is of another run"):
        lk.train(model(H=5), other, 6, 8, rate, **options, resume=True)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_learning_rate_that_diverges(optimizer):
    net = model(dtype=np.float32)
    with pytest.raises(lk.DivergedError, match="learning_rate: "):
        lk.train(net, one_hot(STRINGS), 50, 2, 1e38, optimizer=optimizer)
    assert all(np.isfinite(a).all() for a in net.params().arrays().values())


def test_an_epoch_that_diverges_says_at_which_step():
    """A read-out that is sure of T has no gradient where T follows; where B does, the
    step takes b_out of B beyond float32.
    """
    params = parameters(dtype=np.float32)
    params.V[...] = 0
    params.b_out[:2] = 1e38, 2e38
    net = NextSymbol(lk.network("numpy", params))
    with pytest.raises(lk.DivergedError, match="parameter is not finite") as caught:
        net.epoch(one_hot(["TT", "TT", "BB"]), [0, 1, 2], 1, 3e38)
    assert caught.value.step == 2
    compare(net.params().arrays(), params.arrays(), 0)


class Form(lk.Params):
    """Parameters of another class."""


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_parameters_of_another_class_stay_of_it(tmp_path, optimizer):
    class Other(type(lk.network("numpy", parameters()))):
        def params(self):
            return Form(**vars(super().params()))

        def assign(self, params):
            assert isinstance(params, Form)
            super().assign(params)

    dataset, path = one_hot(STRINGS, dtype=np.float64), tmp_path / "run.npz"
    options = {"optimizer": optimizer, "checkpoint": path}
    lk.train(NextSymbol(Other(parameters())), dataset, 2, 2, 0.1, **options)
    net = NextSymbol(Other(parameters()))
    assert lk.train(net, dataset, 3, 2, 0.1, resume=True, **options).epochs == 3


def test_gradients_of_a_loss_that_is_not_finite_are_nan():
    params = parameters(dtype=np.float32)
    params.b_out[:2] = np.float32(3e38), np.float32(-3e38)
    net, dataset = NextSymbol(lk.network("numpy", params)), one_hot(STRINGS)
    loss, grads = net.loss_and_grads(dataset.x, dataset.target)
    assert not np.isfinite(loss)
    assert all(np.isnan(a).all() for a in grads.arrays().values())


class Oracle(NextSymbol):
    """Knows the outer symbol, or takes T for P and P for T; elsewhere it knows
    nothing.
    """

    def __init__(self, right):
        super().__init__(lk.network("numpy", parameters(dtype=np.float32)))
        self.right = right

    def probabilities(self, x):
        p = np.zeros_like(x)
        outer = x[1] if self.right else x[1][:, [0, 2, 1, 3, 4, 5, 6]]
        lengths = x.sum(axis=(0, 2)).astype(int)
        p[lengths - 3, np.arange(x.shape[1])] = outer
        return p


def test_outer_accuracy_looks_at_the_outer_symbol_only():
    assert outer_accuracy(Oracle(True), DRAWN) == 1
    assert outer_accuracy(Oracle(False), DRAWN) == 0


def changed(at, value):
    x = one_hot(["BTB", "BT"]).x
    x[at] = value
    return x


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (changed((0, 0, 0), 2), r"got \[2.* at index \[0, 0\], want one-hot rows"),
        (changed((0, 0, 0), 0.5), r"got \[0.5 .* at index \[0, 0\], want one-hot"),
        (changed((1, 1, 3), 1), r"got .* at index \[1, 1\], want one-hot"),
        (changed((0, 1, 0), 0), r"got .* at index \[1, 1\], want .* zero rows after"),
        (changed((0, 1, slice(2)), (2, -1)), r"got .* at index \[0, 1\]"),
        (changed((0, 0, 0), np.nan), "got nan at index"),
        (one_hot(["BT"]).x[..., :6], r"got shape \(2, 1, 6\), want \(T, B, 7\)"),
        (one_hot(["BT"]).x[0], "got 2 axes"),
        (one_hot(["BT"]).x.astype(float), "got dtype float64, want float32"),
        ([[[1]]], "got list"),
    ],
)
def test_x_that_is_not_one_hot(x, message):
    net, target = model(dtype=np.float32), np.array([[3], [2]], np.float32)
    train = lambda x: net.loss_and_grads(x, target)  # noqa: E731
    for call in (net.probabilities, net.loss, train):
        with pytest.raises((TypeError, ValueError), match=f"^x: {message}"):
            call(x)


def test_other_bad_input_of_a_model():
    net, dataset = model(dtype=np.float32), one_hot(["BTB", "BT"])
    for call, message in (
        (lambda: NextSymbol(3), "net: got int, want a network of lstm_kernels"),
        (lambda: model(output_size=None), "net: got no read-out, want V and b_out"),
        (lambda: model(output_size=6), "net: got 7 inputs and 6 outputs, want as"),
        (
            lambda: net.loss_and_grads(dataset.x, dataset.target * 0 + 3),
            r"target: got 3.0 at index \[1, 0\], want length 2",
        ),
        (
            lambda: net.loss_and_grads(dataset.x, dataset.target[:1]),
            r"target: got shape \(1, 1\), want \(2, 1\)",
        ),
        (lambda: net.loss(one_hot(["BT", "B"]).x), "x: got a string of 1 symbols at"),
        (
            lambda: net.probabilities(changed((slice(None), 1), 0)),
            r"x: got a string of 0 symbols at index \[:, 1\]",
        ),
        (lambda: outer_accuracy(3, STRINGS), "model: got int, want NextSymbol"),
        (lambda: outer_accuracy(net, STRINGS), r"strings\[2\]: got its end at"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^{message}"):
            call()
    assert net.probabilities(one_hot(["BT", "B"]).x).shape == (2, 2, 7)
    assert repr(net) == "next symbol of " + repr(net.net)


@pytest.mark.parametrize("of", [lambda net: net, lambda net: net.net])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": 3}, "dataset: got int, want lstm_kernels.Dataset"),
        ({"order": [0, 4]}, "order: got indices 0 to 4, want 0 to 3"),
        ({"order": [-1, 2]}, "order: got indices -1 to 2"),
        ({"order": [0.0]}, r"order: got shape \(1,\) of float64, want indices"),
        ({"order": 2}, r"order: got shape \(\) of int"),
        ({"batch_size": 0}, "batch_size: got 0"),
        ({"learning_rate": -1}, "learning_rate: got -1"),
        ({"learning_rate": "1"}, "learning_rate: got '1'"),
    ],
)
def test_epochs_of_bad_arguments(of, change, message):
    good = {"order": [0, 1], "batch_size": 2, "learning_rate": 0.1}
    good["dataset"] = one_hot(STRINGS)
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        of(model(dtype=np.float32)).epoch(**good | change)

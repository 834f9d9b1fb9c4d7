"""Strings of the embedded Reber grammar, one-hot rows of them, and buckets."""

import itertools
import math
import re

import numpy as np
import pytest

from lstm_report.studies import strings

# The language in another form: node 2 and what follows it up to E, then the whole
# string.
NODE_2 = "T*V(?:PXT*V)*(?:V|PS)"
LANGUAGE = re.compile(rf"B([TP])B(?:TS*X(?:S|X{NODE_2})|P{NODE_2})E\1E")


def test_drawn_strings_are_of_the_language_and_as_probable_as_they_should_be():
    """By hand, from the end: 12 symbols on average; a string of 9, the shortest, has
    probability 1/16, that of BTXSE and BPVVE; within four standard errors.
    """
    drawn, count = strings.reber(3000, seed=3), 3000
    assert all(LANGUAGE.fullmatch(string) for string in drawn)
    assert drawn[:20] == strings.reber(20, seed=3) != strings.reber(20, seed=4)
    lengths = np.array([len(string) for string in drawn])
    error = lengths.std(ddof=1) / math.sqrt(count)
    assert abs(lengths.mean() - 12) < 4 * error
    for inner, p in (("BTXSE", 1 / 8), ("BPVVE", 1 / 8), ("BTSXSE", 1 / 16)):
        for outer in "TP":
            found = sum(string == f"B{outer}{inner}{outer}E" for string in drawn)
            error = math.sqrt(count * p / 2)
            assert abs(found - count * p / 2) < 4 * error, inner
    with pytest.raises(ValueError, match="count: got 0"):
        strings.reber(0)


def test_one_hot_rows():
    dataset = strings.one_hot(["BTX", "E", "PS"])
    assert dataset.x.dtype == np.float32
    np.testing.assert_array_equal(dataset.target, [[3], [1], [2]])
    assert dataset.x.shape == (3, 3, 7)
    rows = [
        "".join(strings.SYMBOLS[i] for i in np.flatnonzero(row))
        for row in dataset.x.reshape(9, 7)
    ]
    assert rows == ["B", "E", "P", "T", "", "S", "X", "", ""]
    assert set(np.unique(dataset.x)) == {0, 1}
    with pytest.raises(ValueError, match="substring not found"):
        strings.one_hot(["BA"])


def padded(lengths, ends):
    """Steps computed, in the words of the definition."""
    return sum(min(end for end in ends if end >= length) for length in lengths)


def test_no_choice_of_borders_pads_less():
    for seed in range(60):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, rng.integers(2, 30), rng.integers(1, 40))
        sizes = sorted(set(lengths.tolist()))
        for count in range(1, 5):
            got = strings.borders(lengths, count)
            assert got == sorted(set(got))
            assert len(got) <= count
            assert got[-1] == sizes[-1]
            inner = itertools.combinations(sizes[:-1], min(count, len(sizes)) - 1)
            best = min(padded(lengths, (*ends, sizes[-1])) for ends in inner)
            assert padded(lengths, got) == best
            want = 1 - lengths.sum() / best
            assert strings.waste(lengths, got) == pytest.approx(want, abs=1e-12)
        assert strings.borders(lengths, 31) == sizes


def test_an_epoch_has_every_string_once_and_a_mini_batch_is_of_one_bucket():
    """A border takes its own length and those below; the order decides who comes
    together, and when.
    """
    lengths = np.array([len(string) for string in strings.reber(50, seed=4)])
    ends = strings.borders(lengths, 3)
    bucket = [min(end for end in ends if end >= length) for length in lengths]
    one, other = (np.random.default_rng(seed).permutation(50) for seed in (1, 2))
    for size in (1, 7, 50):
        listed = [index.tolist() for index in strings.batches(lengths, ends, one, size)]
        assert sorted(itertools.chain(*listed)) == list(range(50))
        assert all(len({bucket[i] for i in index}) == 1 for index in listed)
        assert len(listed) == sum(-(-bucket.count(end) // size) for end in ends)
        lasts = [max(np.flatnonzero(np.isin(one, index))) for index in listed]
        assert lasts == sorted(lasts)
    first, second = (
        [sorted(index) for index in strings.batches(lengths, ends, order, 8)]
        for order in (one, other)
    )
    assert sorted(first) != sorted(second)
    of = [bucket[index[0]] for index in first]
    assert of != sorted(of), "buckets come mixed"

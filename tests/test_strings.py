"""Strings of the embedded Reber grammar, one-hot rows of them, and buckets."""

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
            seen = sum(string == f"B{outer}{inner}{outer}E" for string in drawn)
            error = math.sqrt(count * p / 2)
            assert abs(seen - count * p / 2) < 4 * error, inner


def test_one_hot_rows():
    dataset = strings.one_hot(["BTX", "E", "PS"])
    np.testing.assert_array_equal(dataset.target, [[3], [1], [2]])
    assert dataset.x.shape == (3, 3, 7)
    rows = ["".join(np.array([*strings.SYMBOLS])[row == 1]) for row in dataset.x[:, 0]]
    assert rows == ["B", "T", "X"]
    assert dataset.x.sum() == 6
    with pytest.raises(ValueError, match="substring not found"):
        strings.one_hot(["BA"])


def padded(lengths, ends):
    """Steps computed, in the words of the definition."""
    return sum(min(end for end in ends if end >= length) for length in lengths)


LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=40)


@given(lengths=LENGTHS, count=st.integers(1, 3))
def test_no_choice_of_borders_pads_less(lengths, count):
    sizes = sorted(set(lengths))
    got = strings.borders(np.array(lengths), count)
    assert got == sorted(set(got))
    assert (len(got) <= count, got[-1]) == (True, sizes[-1])
    inner = itertools.combinations(sizes[:-1], min(count, len(sizes)) - 1)
    best = min(padded(lengths, (*ends, sizes[-1])) for ends in inner)
    assert padded(lengths, got) == best
    waste = strings.waste(np.array(lengths), got)
    assert waste == pytest.approx(1 - sum(lengths) / best, abs=1e-12)


@given(
    lengths=LENGTHS,
    count=st.integers(1, 3),
    size=st.integers(1, 50),
    seed=st.integers(0, 9),
)
def test_an_epoch_has_every_string_once_and_a_mini_batch_is_of_one_bucket(
    lengths, count, size, seed
):
    """The order decides who comes together, and when."""
    ends = strings.borders(np.array(lengths), count)
    bucket = [min(end for end in ends if end >= length) for length in lengths]
    order = np.random.default_rng(seed).permutation(len(lengths))
    batches = strings.batches(np.array(lengths), ends, order, size)
    listed = [index.tolist() for index in batches]
    assert sorted(itertools.chain(*listed)) == list(range(len(lengths)))
    assert all(len({bucket[i] for i in index}) == 1 for index in listed)
    assert len(listed) == sum(-(-bucket.count(end) // size) for end in ends)
    place = np.argsort(order)
    lasts = [max(place[index]) for index in listed]
    assert lasts == sorted(lasts)
    for index in listed:
        assert [*place[index]] == sorted(place[index])

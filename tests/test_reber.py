"""The embedded Reber grammar: its strings, their probabilities and the exact
optimum.
"""

import itertools
import math
import re

import numpy as np
import pytest
from planted import planted

from lstm_kernels import data
from lstm_kernels.data import Reber, symbols

# The language in another form: node 2 and what follows it up to E, then the whole
# string.
NODE_2 = "T*V(?:PXT*V)*(?:V|PS)"
LANGUAGE = re.compile(rf"B([TP])B(?:TS*X(?:S|X{NODE_2})|P{NODE_2})E\1E")


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


def check_language(module):
    """Of all that may stand between the outer symbols, what the regular expression
    matches.
    """
    grammar = module.Reber()
    for count in range(6):
        for inner in map("".join, itertools.product("TPSXVE", repeat=count)):
            string = f"BTB{inner}TE"
            assert legal(grammar, string) == bool(LANGUAGE.fullmatch(string)), string
    drawn = grammar.strings(300, seed=1)
    assert all(LANGUAGE.fullmatch(string) for string in drawn)
    assert {string[1] for string in drawn} == {"T", "P"}


def check_condition(module):
    """Under a least length every string is 1 / P(length) times as probable, and no
    other is one.
    """
    least, free = 14, module.Reber()
    given = module.Reber(least)
    short = list(every(free, least - 1))
    probability = {string: math.exp(-nats(free, string)) for string in short}
    longer = 1 - sum(probability.values())
    assert 0.1 < longer < 0.5
    assert not any(legal(given, string) for string in short)
    for string in given.strings(200, seed=2):
        assert nats(given, string) == pytest.approx(
            nats(free, string) + math.log(longer)
        )
    # The expectations follow from those without a condition, less what the short ones
    # have in them.
    for name, of in {
        "nats": lambda s: nats(free, s),
        "symbols": lambda s: len(s) - 1,
    }.items():
        rest = getattr(free.optimum(), name) - sum(
            p * of(s) for s, p in probability.items()
        )
        want = rest / longer + (math.log(longer) if name == "nats" else 0)
        assert getattr(given.optimum(), name) == pytest.approx(want, rel=1e-12)


def check_closed_form(module):
    """Solved by hand, from the end: 8 symbols and 6 choices in a string of the inner
    grammar.
    """
    optimum = module.Reber().optimum()
    assert optimum.symbols == pytest.approx(11, rel=1e-14)
    assert optimum.nats == pytest.approx(7 * math.log(2), rel=1e-14)
    assert optimum.cross_entropy == pytest.approx(7 * math.log(2) / 11, rel=1e-14)


def check_convergence(module, least, count=3000):
    """Drawn strings have the expected nats and symbols within four standard errors."""
    grammar = module.Reber(least)
    strings, optimum = grammar.strings(count, seed=3), grammar.optimum()
    of = np.array([[nats(grammar, string), len(string) - 1] for string in strings])
    error = of.std(axis=0, ddof=1) / math.sqrt(count)
    assert (abs(of.mean(axis=0) - [optimum.nats, optimum.symbols]) < 4 * error).all()
    # The mean per symbol is a ratio of two means: its error is that of n - ratio * s,
    # per symbol.
    residual = of[:, 0] - optimum.cross_entropy * of[:, 1]
    error = residual.std(ddof=1) / math.sqrt(count) / optimum.symbols
    assert abs(grammar.cross_entropy(strings) - optimum.cross_entropy) < 4 * error


CHECKS = {
    "language": check_language,
    "condition": check_condition,
    "closed form": check_closed_form,
    "convergence": lambda module: check_convergence(module, 9),
    "convergence, 20 symbols or more": lambda module: check_convergence(module, 20),
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_grammar(check):
    check(data)


FAULTS = [
    ("language", '{"X": 2, "S": 5}', '{"X": 1, "S": 5}'),
    ("language", '{"P": 3, "V": 5}', '{"P": 2, "V": 5}'),
    ("language", "grammar[o, 6] = {o:", 'grammar[o, 6] = {"T":'),
    ("language", '{o: (o, "start") for o in "TP"}', '{"T": ("T", "start")}'),
    ("condition", "max(self.least - length - 1, 0)", "max(self.least - length - 2, 0)"),
    ("condition", "p / total for", "1 / sum(map(bool, weights.values())) for"),
    ("condition", "nats -= share * p * math.log(p)", "nats -= share * math.log(p)"),
    ("condition", "range(self.least)", "range(self.least - 1)"),
    ("closed form", "np.eye(len(states)) - Q).T", "np.eye(len(states)) - Q)"),
    ("closed form", "visits.sum() - 1", "visits.sum()"),
    ("convergence", "rng.random() <", "0.9 * rng.random() <"),
    ("convergence", "len(string) - 1 for", "len(string) for"),
    ("convergence, 20 symbols or more", "rng.random() <", "0.9 * rng.random() <"),
]


@pytest.mark.parametrize(("check", "right", "wrong"), FAULTS)
def test_these_tests_see_a_fault(check, right, wrong):
    with pytest.raises((AssertionError, KeyError, ValueError)):
        CHECKS[check](planted(data, right, wrong))


def test_strings_of_the_papers_are_of_the_grammar():
    for inner in ("BTXSE", "BPVVE", "BTSXSE", "BTSSXXTVVE", "BPTTVPSE", "BPVPXVVE"):
        for outer in "TP":
            assert legal(Reber(), f"B{outer}{inner}{outer}E")
    assert not legal(Reber(), "BTBTXSEPE")
    assert min(map(len, every(Reber(), 12))) == data.SHORTEST


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
    assert Reber().strings(20, seed=4) == Reber().strings(20, seed=4)
    assert Reber().strings(20, seed=4) != Reber().strings(20, seed=5)
    assert Reber().strings(20, seed=4)[:7] == Reber().strings(7, seed=4)
    assert all(len(string) >= 30 for string in Reber(30).strings(50))
    assert len(Reber(data.LONGEST).strings(1)[0]) >= data.LONGEST


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_hot_rows(dtype):
    dataset = symbols(["BTX", "E", "PS"], dtype=dtype)
    assert dataset.x.dtype == dataset.target.dtype == dtype
    np.testing.assert_array_equal(dataset.target, [[3], [1], [2]])
    assert dataset.x.shape == (3, 3, 7)
    rows = [
        "".join("BTPSXVE"[i] for i in np.flatnonzero(row))
        for row in dataset.x.reshape(9, 7)
    ]
    assert rows == ["B", "E", "P", "T", "", "S", "X", "", ""]
    assert set(np.unique(dataset.x)) == {0, 1}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Reber(8), ValueError, "least: got 8, want an integer from 9 to 1000"),
        (lambda: Reber(1001), ValueError, "least: got 1001"),
        (lambda: Reber(12.0), TypeError, "least: got 12.0"),
        (
            lambda: Reber().strings(0),
            ValueError,
            "count: got 0, want an integer of at least 1",
        ),
        (lambda: Reber().strings(True), TypeError, "count: got True"),
        (lambda: Reber().strings(1, seed=-1), ValueError, "seed: got -1"),
        (
            lambda: Reber().successors(3),
            TypeError,
            "prefix: got 3, want a string of BTPSXVE",
        ),
        (
            lambda: Reber().successors("BX"),
            ValueError,
            "got 'X' at position 1, want 'T' or 'P'",
        ),
        (
            lambda: Reber().successors("BQ"),
            ValueError,
            "prefix: got 'Q' at position 1, want of B",
        ),
        (lambda: Reber().successors("b"), ValueError, "prefix: got 'b' at position 0"),
        (
            lambda: Reber().successors("BTBTXSETEB"),
            ValueError,
            "prefix: got 'B' at position 9, want the end of the string",
        ),
        (
            lambda: Reber(12).successors("BTBTXS"),
            ValueError,
            "got 'S' at position 5, want 'X'",
        ),
        (
            lambda: Reber().cross_entropy(["BTBTXSETE", "BTBTXSEPE"]),
            ValueError,
            r"strings\[1\]: got 'P' at position 7, want 'T'",
        ),
        (
            lambda: Reber().cross_entropy(["BTBTX"]),
            ValueError,
            r"strings\[0\]: got its end at position 5, want 'X' or 'S'",
        ),
        (
            lambda: Reber().cross_entropy([""]),
            ValueError,
            "got its end at position 0, want 'B'",
        ),
        (lambda: Reber().cross_entropy([]), ValueError, "strings: got an empty list"),
        (
            lambda: Reber().cross_entropy("BTB"),
            TypeError,
            "strings: got str, want a list",
        ),
        (
            lambda: Reber().cross_entropy([b"BTB"]),
            TypeError,
            r"strings\[0\]: got b'BTB'",
        ),
        (
            lambda: symbols([]),
            ValueError,
            "strings: got an empty list, want at least one string",
        ),
        (lambda: symbols(["B", ""]), ValueError, r"strings\[1\]: got an empty string"),
        (
            lambda: symbols(["B", "BA"]),
            ValueError,
            r"strings\[1\]: got 'A' at position 1",
        ),
        (lambda: symbols("BT"), TypeError, "strings: got str"),
        (lambda: symbols(None), TypeError, "strings: got NoneType"),
        (
            lambda: symbols(["B"], dtype=int),
            TypeError,
            "dtype: got int64, want float32 or",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_tables_cannot_be_changed():
    for table in (data.REBER, data.REBER[0], data.EMBEDDED, data.EMBEDDED["start"]):
        with pytest.raises(TypeError, match="does not support item assignment"):
            table["T"] = 1
    with pytest.raises(AttributeError):
        Reber().least = 10

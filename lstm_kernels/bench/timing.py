"""The one timing function: repeats of several cases in turn, in one loop."""

import time

import numpy as np
import pandas as pd


def interleaved(cases, *, repeats=20, least=2e-3, rest=0.0, own=False, seed=0):
    """Time several cases side by side; returns a row per repeat: case, repeat, seconds.

    cases: dict of name -> function without arguments. Each runs once to warm up (compile time is
    not in these rows), then all run in turn, in a new seeded order each round, so that drift of the
    machine meets every case alike. A case shorter than `least` seconds is called several times in a
    row and its mean taken. rest: seconds of sleep before each case, then a few calls that are not
    timed: where cases bring thread pools of their own, those of the last one, which still wait on
    the cores for more work, would slow the next. own: cases return the seconds they took, by time
    stamps of their own.
    """
    calls = {}
    for name, case in cases.items():
        case()
        start = time.perf_counter()
        case()
        calls[name] = max(1, int(np.ceil(least / max(time.perf_counter() - start, 1e-7))))
    rng, rows = np.random.default_rng(seed), []
    for repeat in range(repeats):
        for index in rng.permutation(len(cases)):
            name = list(cases)[index]
            case, count = cases[name], calls[name]
            if rest:
                time.sleep(rest)
                for _ in range(-(-count // 4)):
                    case()
            start = time.perf_counter()
            seconds = [case() for _ in range(count)]
            taken = sum(seconds) if own else time.perf_counter() - start
            rows.append((name, repeat, taken / count))
    return pd.DataFrame(rows, columns=["case", "repeat", "seconds"])


def summary(times, baseline=None, by="case"):
    """Median and quartiles for each case, in order of appearance, and how many times faster than
    `baseline`.

    The ratio is the median of the ratios round by round: neighbours in time are compared.
    """
    table = times.pivot_table(index="repeat", columns=by, values="seconds", sort=False)
    result = table.quantile([0.5, 0.25, 0.75]).T.set_axis(["median", "q1", "q3"], axis=1)
    if baseline is not None:
        result["ratio"] = table.rdiv(table[baseline], axis=0).median()
    return result

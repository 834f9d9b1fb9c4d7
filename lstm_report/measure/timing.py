"""The one timing function: repeats of several cases in turn, in one loop, and whether
something disturbed them.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import psutil

from lstm_kernels.cpu.partitions import Autotuner

# What disturbs a run: the most that a quiet run has, a fraction, and its words with the
# number in per cent.
SIGNS = {
    "spread": (0.20, "quartiles {:.0f} % apart"),
    "stolen": (0.01, "{:.0f} % of the CPU time stolen by other virtual machines"),
    "others": (0.05, "{:.0f} % of the CPU time taken by other processes"),
    "slower": (0.10, "the clock {:.0f} % slower at the end"),
}
# Seconds between two looks at the CPU time of a process: what another core runs is
# counted at the ticks of its clock, every 4 ms or 10.
LOOK = 0.02
LONGEST_WAIT = 1.0  # seconds for a process to fall idle
MOST_TRYING = 20  # seconds before a case is timed
LEAST_SECONDS = 0.5  # the system counts CPU time in hundredths of a second


class System(NamedTuple):
    """CPU time since the start of the system, in seconds summed over its cores: all of
    it, what processes used, what the hypervisor gave to others; what this process used;
    the clock of the fastest core in GHz, None where it cannot be read.
    """

    whole: float
    used: float
    stolen: float
    process: float
    clock: float | None


def system() -> System:
    """The System now."""
    cpu = psutil.cpu_times()._asdict()
    process = psutil.Process().cpu_times()
    for name in ("guest", "guest_nice"):  # which user and nice hold too
        cpu.pop(name, None)
    whole, stolen = sum(cpu.values()), cpu.pop("steal", 0.0)
    used = whole - stolen - cpu["idle"] - cpu.get("iowait", 0.0)
    return System(whole, used, stolen, sum(process[:4]), clock())


def clock() -> float | None:
    """GHz of the fastest core now; None where the system does not say."""
    try:
        cores = psutil.cpu_freq(percpu=True)
    except (OSError, NotImplementedError, RuntimeError):
        return None
    return max((core.current for core in cores or ()), default=0.0) / 1e3 or None


def conditions(before: System, after: System) -> dict[str, float]:
    """What disturbed a run between two Systems, as fractions by the names of SIGNS;
    without an entry where nothing is known.
    """
    known, whole = {}, after.whole - before.whole
    if whole >= LEAST_SECONDS:
        others = after.used - before.used - (after.process - before.process)
        known["stolen"] = (after.stolen - before.stolen) / whole
        known["others"] = others / whole
    if before.clock and after.clock:
        known["slower"] = 1 - after.clock / before.clock
    return known


def interleaved(
    cases: Mapping[str, Callable],
    *,
    repeats: int = 20,
    least: float = 2e-3,
    wait: bool = False,
    self_timed: bool = False,
    blocks: Sequence[Sequence[Any]] = (),
    seed: int | None = None,
    again: bool = False,
    system: Callable[[], System] = system,
) -> pd.DataFrame:
    """Time several cases side by side; returns a row per repeat: case, repeat, seconds.

    cases: name -> function without arguments. Each runs to warm up (compile time is not
    in these rows), until it tries no division of its work any more; then all run in
    turn, in a new random order each round, so that drift meets every case alike, and no
    case always follows the same one. A case shorter than `least` seconds is called
    several times in a row and its mean taken. wait: before each case until this process
    is idle, see `wait_until_idle`; then a few calls are not timed. self_timed: cases
    return the seconds they took. blocks: names of cases that run one after the other in
    each round, every case in one block; by default each is a block of its own. seed: of
    the orders; None draws one. again: measure a disturbed run once more, and keep the
    quieter one; `disturbance` says of the rows what it was. system: what tells the CPU
    time and the clock.

    Raises ValueError where `blocks` does not name each case once.
    """
    blocks = blocks or [[name] for name in cases]
    if Counter(chain.from_iterable(blocks)) != Counter(list(cases)):
        raise ValueError(f"blocks: got {blocks}, want each of {list(cases)} once")
    calls = {name: _calls(case, least) for name, case in cases.items()}
    rng, rows, before = np.random.default_rng(seed), [], system()
    for repeat in range(repeats):
        for name in _turns(blocks, rng):
            case, count = cases[name], calls[name]
            if wait:
                wait_until_idle()
                for _ in range(math.ceil(count / 4)):
                    case()
            start, told = time.perf_counter(), 0.0
            for _ in range(count):
                result = case()  # not kept: a million results fill memory
                told += result if self_timed else 0.0
            taken = told if self_timed else time.perf_counter() - start
            rows.append((name, repeat, taken / count))
    times = pd.DataFrame(rows, columns=["case", "repeat", "seconds"])
    times.attrs["conditions"] = conditions(before, system())
    if again and disturbance(times):
        how: dict[str, Any] = {"repeats": repeats, "least": least, "wait": wait}
        how |= {"self_timed": self_timed, "blocks": blocks, "system": system}
        other = interleaved(cases, **how)
        times = min(times, other, key=unrest)
    return times


def wait_until_idle(limit: float = LONGEST_WAIT) -> None:
    """Sleep until no thread of this process runs, at most `limit` seconds. A thread of
    OpenBLAS looks out for work for 0.1 s after its last product and keeps a core busy;
    what is timed meanwhile has that core not to itself.
    """
    until = time.perf_counter() + limit
    while time.perf_counter() < until:
        before = time.process_time()
        time.sleep(LOOK)
        if time.process_time() - before < LOOK / 4:
            return


def _turns(blocks, rng):
    """The names of a round: blocks in a new order, and in each its names."""
    for block in rng.permutation(len(blocks)):
        names = blocks[block]
        yield from (names[k] for k in rng.permutation(len(names)))


def settle(case: Callable) -> None:
    """Call a case until no network in it tries how to divide its work."""
    tried, until = None, time.perf_counter() + MOST_TRYING
    while tried != Autotuner.trials and time.perf_counter() < until:
        tried = Autotuner.trials
        case()


def _calls(case, least):
    """How many calls of a case take `least` seconds, after it has settled; without
    `least` one, after one: ranks that call it together count alike.
    """
    if not least:
        case()
        return 1
    settle(case)
    start = time.perf_counter()
    case()
    seconds = time.perf_counter() - start
    return max(1, math.ceil(least / max(seconds, 1e-7)))


def summary(
    times: pd.DataFrame, baseline: str | None = None, by: str = "case"
) -> pd.DataFrame:
    """Median and quartiles for each case, in order of appearance, and how many times
    faster than `baseline`.

    The ratio is the median of the ratios round by round: neighbours in time are
    compared.
    """
    table = times.pivot_table(index="repeat", columns=by, values="seconds", sort=False)
    quartiles = table.quantile([0.5, 0.25, 0.75]).T
    result = quartiles.set_axis(["median", "q1", "q3"], axis=1)
    if baseline is not None:
        result["ratio"] = table.rdiv(table[baseline], axis=0).median()
    return result


def together(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of several runs as one table, which holds the worst of their
    conditions.
    """
    rows = pd.concat(parts, ignore_index=True)
    worst: dict[str, float] = {}
    for part in parts:
        for name, value in part.attrs.get("conditions", {}).items():
            worst[name] = max(value, worst.get(name, value))
    rows.attrs["conditions"] = worst
    return rows


def _signs(times):
    """The signs of SIGNS that are known of rows."""
    if missing := {"repeat", "seconds"} - set(times):
        got = f"got columns {list(times)}, want {sorted(missing)} too"
        raise ValueError(f"times: {got}")
    if times.empty:
        return {"spread": 0.0}
    cases = [name for name in ("case", "version", "variant") if name in times]
    # A row's Timeline is its own: by it every row would be a loop.
    others = {*cases, "repeat", "seconds", "max_err", "line"}
    loops = [name for name in times if name not in others]
    number = times.groupby(loops, dropna=False).ngroup() if loops else 0
    by_case = times.assign(loop=number).groupby(["loop", *cases], dropna=False)
    low, high = by_case["seconds"].quantile(0.25), by_case["seconds"].quantile(0.75)
    # All cases of a loop meet the same disturbance: half of them spread. One alone is
    # uneven. A range over processes has what differs between loops in it, so there half
    # of the loops count, elsewhere the worst.
    spreads = (high / low - 1)[low > 0].groupby("loop").median()
    spread = spreads.median() if "process" in times else spreads.max()
    return {"spread": spread} | times.attrs.get("conditions", {})


def unrest(times: pd.DataFrame) -> float:
    """The worst sign of a run over its limit: at most 1 where nothing disturbed it."""
    return max(value / SIGNS[name][0] for name, value in _signs(times).items())


def disturbance(times: pd.DataFrame) -> str:
    """What disturbed a run, in words; "" where nothing did.

    times: what `interleaved` returns, or rows of a results file.
    """
    signs = _signs(times)
    return "; ".join(
        words.format(100 * signs[name])
        for name, (limit, words) in SIGNS.items()
        if signs.get(name, 0.0) > limit
    )

"""Page 7 on made rows: what hand-overs take, and from which size on sharing pays."""

import pandas as pd
import pytest
from pages import Page, machine, rows

PAGE = Page("07_handover")
page = PAGE.module
SMOKE = 256  # units of the claim on memory, in this preset

# ns of 8 bytes; 1 KiB takes seven times as long, by a line three times.
NS = {"line": 110, "window": (121, 130, 143), "message": (330, 253, 374)}
NS |= {"openmp": 770, "collective": 440, "message from Python": 990}
NS |= {"collective from Python": 1430}
# Speed by way and H.
THREADS = {
    "claims": {128: 0.5, 256: 0.9, 512: 2.6},
    "fixed": {128: (0.8, 0.7, 0.75), 256: 1.4, 512: (1.8, 1.7, 1.9)},
    "openmp": {128: (0.9, 1.1, 1), 256: (0.9, 1.2, 1.3), 512: 1.6},
}
RANKS = {
    "window": {128: 0.85, 256: (1.6, 1.5, 1.3), 512: 2.3},
    "messages": {128: 0.4, 256: 0.7, 512: (1.1, 1.2, 1.4)},
    "collective": {128: 0.3, 256: 0.6, 512: (0.9, 1.1, 1.2)},
}
BARE = {"fixed": 300, "openmp": 900, "window": 310, "messages": 1300}
BARE |= {"collective": 1700}  # ns of the exchange alone, of a step


def made(ns=(), ranks=True, step=2e-6, halves=4.7e-6, **changed):
    """Rows of three jobs. A step of one thread takes `step` at H = 128, and grows as H
    squared; passes have ten.
    """
    times, parts = NS | dict(ns), []
    ways = THREADS | (RANKS if ranks else {})
    ways = {way: by | changed.get(way, {}) for way, by in ways.items()}
    for means, each in times.items():
        if ranks or means in ("line", "openmp"):
            for n in (0,) if means == "openmp" else (8, 1024):
                factor = 1 if n < 1024 else 3 if means == "line" else 7
                taken = {means: factor * 1e-9 * pd.Series(each)}
                parts.append(rows(taken, bytes=n, stage="hand over"))
    # Of the same bytes ratios are taken round by round: a region has none.
    for H in (128, 256, 512):
        one = 10 * step * (H / 128) ** 2
        taken = {"one thread": one}
        taken |= {way: one / pd.Series(by[H]) for way, by in ways.items()}
        if H == 256:
            taken |= {f"{w} without work": 1e-8 * BARE[w] for w in BARE if w in ways}
            taken |= {"two halves": 10 * halves} if ranks else {}
        parts.append(rows(taken, H=H, T=10, stage="forward"))
    found = pd.concat(parts, ignore_index=True)
    return {"measure_means": found, "measure_machine": machine(line=1.5e-7)}


CASES = {
    "held": (
        made(),
        "TTT",
        "A cache line takes 150 ns (",
        "A message: 3x as long as a cache line",
        "window, two ranks 1.18x; message 3x; collective 4x; OpenMP region 7x; message "
        "from Python 9x; collective from Python 13x",
        "3x (2.3x to 3.4x) as long as a line, 2.62x (1.95x to 2.73x)",
        "a window takes 1.18x (1.1x to 1.3x) as long",
        "From Python a message takes 3x (2.65x to 3.91x) as long as from compiled",
        "With 1 KiB a message takes 7x (5.37x to 7.93x) as long",
        "H = 128: 2.12x (2.12x to 2.12x); H = 256: 2.14x (1.86x to 2.29x)",
        "Pays from H = 256 in memory, from 512 by messages",
        "ranks, messages: 512; ranks, collective: none",
        "65536 multiply-adds, which take a core at least 1.31 µs: 8.74 hand-overs.",
        "threads, fixed shares: 1.4x (1.4x to 1.4x); ranks, window: 1.5x (1.3x to 1.6x)",
        "threads that have fixed shares: 1.13x (1.06x to 1.21x) at H = 128, 1.28x (",
        "Claims compared with threads that have fixed shares: 33.3 % slower (0.625x to "
        "0.714x) at H = 128, 1.44x (1.37x to 1.53x) at H = 512",
        "| threads, claims | | 4890 ns (",
        "| ranks, messages | 1300 ns (650 to 2600) | 7430 ns (3710 to 14900) | 512 |",
        "collective | 1700 ns (850 to 3400) | 9330 ns (4670 to 18700) | none of these |",
        "take 700 ns (350 to 1400) longer than half a step of one thread",
        "threads, claims: 512, threads, fixed shares: 256, threads, OpenMP: 512, ranks, "
        "window: 256, ranks, messages: 512, ranks, collective: nowhere",
    ),
    "just": (
        made(
            ns={"message": 144},
            window={128: 0.404, 256: (1.01, 1.5, 1.3)},
            fixed={256: 1.01},
        ),
        "TTT",
        "A message: 1.31x",
    ),
    "just not": (
        made(
            ns={"message": (109, 330, 330)},
            window={128: (0.396, 0.8, 0.8), 256: (0.99, 1.5, 1.3)},
            messages={512: 0.9},
        ),
        "FFF",
        "in memory, never by messages",
    ),
    "threads alone": (
        made(ranks=False, fixed={128: 1.1}),
        "--T",
        "A hand-over through memory that both cores see",
        "Messages were not measured.",
        "Pays from H = 128 in memory. ",
        "of ranks were not measured",
        "no: window compared",
    ),
}
test_page, test_both, test_reached = PAGE.tests(
    CASES, also=["figure_divisions", "say_caches", "say_tier"]
)


def test_parts_are_shares_of_what_sharing_adds():
    """Half a step takes 4 us, both halves at once 4.7, a shared step 5.16 by a window,
    of which the exchange is 0.31; 13.3 by the collective, of which it is 1.7.
    """
    found = page.say_parts(made(window={256: 1.55})["measure_means"])
    assert "13 % of what sharing adds (ranks, window) to 74.3 % (ranks, coll" in found


def test_what_the_figures_draw(tmp_path):
    said = page.figure_divisions().alt
    assert "samples, h crosses never; by layers, h crosses each chunk" in said
    (ax,) = page.figure_speed(made()["measure_means"]).axes
    drawn = [tuple(y.get_ydata()) for y in ax.lines if y.get_marker() == "o"]
    assert pytest.approx((0.4, 0.7, 1.2)) in drawn
    said = page.say_caches(256)
    assert "0.5 MiB of weights in a step of 256 units, each of two 0.25 MiB" in said
    for number, (level, cores) in enumerate((("1", "0"), ("3", "0-1"), ("2", "0,1"))):
        index = tmp_path / f"index{number}"
        index.mkdir()
        (index / "level").write_text(level)
        (index / "shared_cpu_list").write_text(f"{cores}\n")
    assert "level 2 cache" in page.say_tier(tmp_path)
    assert "no cache" in page.say_tier(tmp_path / "none")

"""The stages of the lesson: what is timed, and guesses set beside what was measured."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

import lstm_kernels as lk
from lstm_kernels.cores import cores
from lstm_kernels.errors import check_choice, check_numbers
from lstm_kernels.kernels import numbas_threads
from lstm_kernels.versions import versions

from .. import plots
from ..experiments.vectors import register_peak
from ..measure.comparer import TOLERANCE, compare, compare_to_reference
from ..measure.evidence import digits, kib, mib, speed, took
from ..measure.timing import disturbance, interleaved, summary, together
from ..measure.workloads import AIRLINE, Workload, airline_dataset
from .classroom import recurrence

LOOPS = "plain loops, compiled"  # `classroom.recurrence`
NUMBA = ("numba-sample", "numba-tile", "numba-fused")
LADDER = ("sequential", "numpy-sample", "numpy", LOOPS, *NUMBA)
STEPS = {  # of LADDER, those that lead from plain loops to its end, in words
    "numpy": "NumPy",
    LOOPS: "compiled loops",
    "numba-sample": "`numba-sample` (eight rows of $W$ at a time; a call costs more)",
    "numba-tile": "`numba-tile` (four samples at a time)",
    "numba-fused": "`numba-fused` (one call, sums in registers)",
}
ON_GPU = ("cuda-v1", "cuda-fused")
LARGE = Workload(L=1, T=12, D=1, H=512, B=16)
OTHER = {  # what is timed besides the mini-batch of the lesson
    "many samples": replace(AIRLINE, B=512),
    "large": LARGE,
    "large, one sample": replace(LARGE, B=1),
    "smallest": Workload(L=1, T=1, D=1, H=1, B=1),
}
# Stage: the workload and the cases (version, threads) compared; threads None are all.
STAGES = {
    "NumPy": (None, ("sequential", 1), ("numpy", 1)),
    "compiled": (None, ("numpy", 1), (LOOPS, 1)),
    "threads": (None, ("numba-sample", 1), ("numba-sample", None)),
    "tile": ("large", ("numba-sample", 1), ("numba-tile", 1)),
    "GPU": (None, ("numba-fused", 1), ("cuda-fused", 1)),
}


def most_threads():
    return min(cores(), numbas_threads())


def windows(work=AIRLINE):
    """The first mini-batch of the airline series, x (T, B, D)."""
    return np.ascontiguousarray(airline_dataset().x[:, : work.B])


def cases(most=None):
    """The cases (version or LOOPS, threads) that can run here, in order; most: threads,
    by default as many as there may be.
    """
    most = most or most_threads()
    ours = {v.name for v in versions() if v.name in ON_GPU and not v.why_unavailable}
    threaded = [("numba-sample", most)] if most > 1 else []
    gpu = [(name, 1) for name in ON_GPU if name in ours]
    return [(name, 1) for name in LADDER] + threaded + gpu


class Passes(dict):
    """Case -> the forward pass of one mini-batch x (T, B, D)."""

    def __init__(self, params, x):
        (layer,), (T, B, _) = params.layers, x.shape
        self._params, self._x = params, x
        self.y = np.empty((T, B, len(layer.W)), x.dtype)  # of LOOPS
        arrays = (x, layer.U, layer.W, layer.b, self.y)
        self._nets = {
            (name, threads): lk.network(name, params, threads=threads)
            for name, threads in cases()
            if name != LOOPS
        }
        forwards = {case: partial(net.forward, x) for case, net in self._nets.items()}
        forwards[LOOPS, 1] = partial(recurrence, *arrays)
        super().__init__((case, forwards[case]) for case in cases())

    def largest_error(self):
        """That of all cases, relative to the reference in float64; raises
        MismatchError.
        """
        self[LOOPS, 1]()
        wanted = {"y": self["numpy", 1]()[0]}
        nets = self._nets.values()
        return max(
            compare({"y": self.y}, wanted, TOLERANCE[self.y.dtype]),
            *(compare_to_reference(net, self._params, self._x) for net in nets),
        )


def others(name):
    """The cases of a workload of OTHER."""
    x, _ = OTHER[name].example()
    params, threads = OTHER[name].params(), sorted({1, most_threads()})
    found = [("numba-sample", count) for count in threads]
    if name != "many samples":
        found += [("numba-tile", 1), ("numba-fused", 1)]
    if name == "smallest":  # a sample for each thread
        x = np.repeat(x, threads[-1], axis=1)
    nets = {case: lk.network(case[0], params, threads=case[1]) for case in found}
    return {case: partial(net.forward, x) for case, net in nets.items()}


def timed(passes, repeats):
    """Rows of `interleaved` with a column `work`, "" for `passes`: all cases of a
    workload in turn, in one loop.
    """
    parts = []
    for name in ("", *OTHER):
        how = {"repeats": repeats, "least": 0.01, "again": repeats > 2}
        found = interleaved(others(name) if name else passes, **how)
        parts.append(found.assign(work=name))
        parts[-1].attrs = found.attrs
    return together(parts)


def verdict(guess, measured):
    """How far a guess is from what was measured, in words."""
    ratio = guess / measured
    if 0.5 <= ratio <= 2:
        return "within a factor of two"
    side = "low" if ratio < 1 else "high"
    return f"too {side} by a factor of {digits(max(ratio, 1 / ratio))}"


def errors(*found):
    """The largest of relative errors, in words."""
    return f"largest relative error {max(found):.1e}"


def folded(title, text):
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


class Predictions:
    """Guesses, and then what was measured.

    nb: the page's Notebook. times: as of `timed`. work: the Workload of the lesson.
    peak: GFLOP/s of a core on registers, measured where it is None. threads: the most
    that were timed. `guess` takes a number, `result` shows it beside the measurement,
    folded where there is no guess.
    """

    def __init__(self, nb, times, work=AIRLINE, peak=None, threads=None):
        self._nb, self._work = nb, work
        self._threads = threads or most_threads()
        self.disturbed = disturbance(times)
        tables = {name or None: summary(rows) for name, rows in times.groupby("work")}
        self._seconds = {k: table["median"].to_dict() for k, table in tables.items()}
        self._table = tables[None].reindex(
            [c for c in cases(self._threads) if c in self._seconds[None]]
        )
        self._peak = register_peak() if peak is None else peak
        self._guesses, self._results = {}, {}

    def guess(self, stage, value):
        """Take a guess, a number above zero; None is no guess yet.

        stage: "loops", where it is nanoseconds for a multiply-add, or a key of STAGES,
        where it is the factor of the two cases. Raises ValueError, or TypeError for no
        number.
        """
        check_choice("stage", stage, ("loops", *STAGES))
        if value is not None:
            value = float(check_numbers("guess", value, (), positive=True))
        self._guesses[stage] = value
        form = self._form(stage)
        text = "No guess yet" if value is None else f"Your guess: {form(value)}"
        if stage == "loops":  # one digit: it is a yardstick
            count = digits(float(f"{self._peak / 2:.1g}"))
            text += f". A core has time for about {count} multiply-adds in 1 ns"
        self._nb.say(f"{text}.")

    @staticmethod
    def _form(stage):
        return "{:.3g} ns".format if stage == "loops" else speed

    def result(self, stage):
        """Show what was measured, beside the guess; folded where there is none."""
        check_choice("stage", stage, ("loops", *STAGES))
        guess = self._guesses.get(stage)
        if stage == "loops":
            seconds = self._seconds[None]["sequential", 1]
            count = round(self._work.gflop * 1e9 / 2)
            measured = 1e9 * seconds / count
            of = f"`sequential` takes {took(seconds)} for {count} of them"
        else:
            work, *both = STAGES[stage]
            before, after = map(self._case, both)
            if before == after or after not in self._seconds[work]:
                self._nb.say(f"Not measured: {self._why(stage)}.")
                return
            measured = self._factor(before, after, work)
            of = ", ".join(self._timed(case, work) for case in (before, after))
        self._results[stage] = measured
        form = self._form(stage)
        text = f"This machine measured **{form(measured)}**: {of}."
        if guess is not None:
            text += f" You guessed {form(guess)}, {verdict(guess, measured)}."
        text += self._more(stage)
        if self.disturbed:
            text += f" **Noisy session: {self.disturbed}.**"
        self._nb.say(text if guess is not None else folded("No guess: show it", text))

    def _factor(self, before, after, work=None):
        seconds = self._seconds[work]
        return seconds[before] / seconds[after]

    def _case(self, case):
        """A case as it was timed: None is the largest number of threads."""
        version, threads = case
        return version, threads or self._threads

    def _timed(self, case, work):
        version, threads = case
        on = f" on {threads} threads" if threads > 1 else ""
        return f"`{version}`{on} takes {took(self._seconds[work][case])}"

    @staticmethod
    def _why(stage):
        if stage == "threads":
            return "this process has one core"
        return next(v.why_unavailable for v in versions() if v.name == "cuda-fused")

    def _more(self, stage):
        """What shows the reason: the same comparison elsewhere."""
        if stage not in ("threads", "tile"):
            return ""
        _, *both = STAGES[stage]
        before, after = map(self._case, both)
        if stage == "threads":
            more = self._factor(before, after, "many samples")
            call = self._seconds["smallest"][after]
            return (
                f" A call on them for one unit and one step takes {took(call)}."
                f" With {OTHER['many samples'].B} samples {after[1]} threads measured "
                f"**{speed(more)}**."
            )
        one = self._factor(before, after, "large, one sample")
        small = self._factor(before, after)
        large_W, small_W = (16 * H * H for H in (LARGE.H, self._work.H))
        return (
            f" There $W$ takes {mib(large_W)}. With one sample: {speed(one)}. With "
            f"{self._work.H} units, where it takes {kib(small_W)}: {speed(small)}."
        )

    def last_step(self):
        """Say what lies between `numba-tile` and `numba-fused`, and how much of it a
        call costs.
        """
        before, after = ("numba-tile", 1), ("numba-fused", 1)
        small, smallest = self._seconds[None], self._seconds["smallest"]
        gap, call = (s[before] - s[after] for s in (small, smallest))
        factor = speed(self._factor(before, after))
        self._nb.say(
            f"From `numba-tile` to `numba-fused` on {self._work.H} units: "
            f"**{factor}**, {took(gap)} less. For one unit and one step"
            f" a call of `numba-tile` takes {took(call)} more."
        )

    def factors(self):
        """What leads from plain loops to the end of the ladder on one thread: factors
        whose product is the whole.
        """
        path = [("sequential", 1), *((name, 1) for name in STEPS)]
        steps = zip(STEPS.values(), path, path[1:], strict=False)
        told = ", ".join(
            f"{what} {speed(self._factor(*both))}" for what, *both in steps
        )
        whole = speed(self._factor(path[0], path[-1]))
        return f"`numba-fused` is {whole} as fast as plain loops: {told}"

    def times(self):
        """A row per case: its time, and its speed compared with plain loops, as
        text.
        """
        seconds = 1e6 * self._table
        text = seconds.map(digits)
        rows = {
            "version": [f"`{version}`" for version, _ in seconds.index],
            "threads": [str(threads) for _, threads in seconds.index],
            "\N{MICRO SIGN}s": text["median"],
            "quartiles (\N{MICRO SIGN}s)": text["q1"] + " to " + text["q3"],
            "times as fast as plain loops": (
                seconds["median"].iloc[0] / seconds["median"]
            ).map(speed),
        }
        return pd.DataFrame(rows).set_index("version")

    def figure(self):
        """Guess and measured factor of each stage on a log axis; raises ValueError
        where no stage has its result yet.
        """
        shown = {s: (self._guesses.get(s), m) for s, m in self._results.items()}
        shown.pop("loops", None)
        if not shown:
            raise ValueError("result: got no stage, want one before the figure")
        figure, ax = plots.panels(1, 1.2 + 0.7 * len(shown))
        for place, (guess, measured) in enumerate(shown.values()):
            points = [("measured", measured, "s", plots.BLUE, -13)]
            if guess is not None:
                ends = (guess, measured)
                ax.plot(ends, (place, place), color=plots.GREY, linewidth=1)
                points.append(("guess", guess, "o", plots.RED, 13))
            for what, value, marker, colour, y in points:
                ax.plot(value, place, marker, color=colour)
                how = {"color": colour, "ha": "center", "va": "center", "fontsize": 11}
                text = f"{what} {speed(value)}"
                plots.note(ax, text, (value, place), (0, y), **how)
        ax.axvline(1, color=plots.GREY, linewidth=0.8, linestyle=":")
        what = "times as fast as what it is compared with"
        ax.set(xscale="log", xlabel=what, ylabel="stage")
        plots.named_rows(ax, [*shown])
        ax.xaxis.set_major_formatter("{x:g}")
        ax.margins(x=0.3)
        best = max(shown, key=lambda stage: shown[stage][1])
        largest = f"The largest factor is {best}: {speed(shown[best][1])}"
        ax.set_title(self.score() if any(g for g, _ in shown.values()) else largest)
        return figure

    def score(self):
        """How many guesses are within a factor of two, in words."""
        made = [
            guess / self._results[stage]
            for stage, guess in self._guesses.items()
            if guess is not None and stage in self._results
        ]
        if not made:
            return "No guess was made"
        close = sum(0.5 <= ratio <= 2 for ratio in made)
        return f"{close} of {len(made)} guesses are within a factor of two"

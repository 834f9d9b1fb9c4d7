"""The forms of figures in one style, seaborn's: lines over a size, dots with intervals,
a Gantt chart, a heat map; and figures in words.

Figures are as wide as a page's column, 6.4 inches, and no letter is smaller than
SMALLEST, so that all can be read on a telephone. Seaborn is imported where it is used:
fresh processes that only measure import this module too.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import NullLocator
from matplotlib.transforms import Affine2D
from scipy.optimize import isotonic_regression

from lstm_kernels.errors import counted
from lstm_kernels.schedules import Task
from lstm_kernels.simulate import Timeline

from .measure.evidence import speed

# Okabe & Ito's palette, which colour-blind readers can tell apart.
BLACK, ORANGE, SKY, GREEN = "#000000", "#e69f00", "#56b4e9", "#009e73"
YELLOW, BLUE, RED, PURPLE = "#f0e442", "#0072b2", "#d55e00", "#cc79a7"
GREY, BROWN = "#777777", "#8c510a"
COLOURS = {
    "sequential": GREY,
    "numpy-sample": ORANGE,
    "numpy-naive": PURPLE,
    "numpy": BLUE,
    "numba-sample": RED,
    "numba-tile": BROWN,
    "numba-wavefront": GREEN,
    "numba-fused": BLACK,
    "cuda-v1": SKY,
    "cuda-v2": YELLOW,
    "cuda-v3": ORANGE,
    "cuda-fused": RED,
    "cuda-epoch": BLUE,
    "cuda-persistent": BLACK,
}

# Inches: the width of a page's column.
WIDTH = 6.4
# Points: 8 pixels of a figure that is shown 358 pixels wide.
SMALLEST = 10.5
Label = tuple[Any, float, str, Any]  # of a line's end: x, y, text, colour
# What differs from seaborn's theme.
RC = {
    "figure.figsize": (WIDTH, 3.6),
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "figure.constrained_layout.use": True,
    "savefig.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "black",
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 12,
    "axes.labelsize": SMALLEST,
    "xtick.labelsize": SMALLEST,
    "ytick.labelsize": SMALLEST,
    "xtick.bottom": True,
    "ytick.left": True,
    "legend.fontsize": SMALLEST,
    "legend.title_fontsize": SMALLEST,
    "legend.frameon": False,
    "grid.color": "#e6e6e6",
    "font.size": SMALLEST,
    "font.sans-serif": ["DejaVu Sans"],  # which matplotlib brings
    "lines.linewidth": 1.8,
    "svg.hashsalt": "lstm_kernels",  # the same drawing gives the same file
    "svg.fonttype": "path",  # the same everywhere, whatever fonts there are
}


def style() -> None:
    """Set the style of every figure that follows."""
    import seaborn

    palette = [BLUE, RED, GREEN, ORANGE, PURPLE, SKY, BLACK]
    seaborn.set_theme(context="paper", style="whitegrid", palette=palette, rc=RC)


def too_small(figure: Figure) -> list[str]:
    """The texts of a drawn figure that would be smaller than SMALLEST if it were as
    wide as a page's column.
    """
    shown = WIDTH / figure.get_figwidth()
    texts = (text for text in figure.findobj(Text) if text.get_visible())
    found = (
        text for text in texts if shown * float(text.get_fontsize()) < SMALLEST - 0.01
    )
    return sorted({text.get_text() for text in found if text.get_text().strip()})


def panels(count: int = 1, height: float = 3.6, **options: Any) -> tuple[Any, Any]:
    """A figure as wide as a page's column, so many inches high, with `count` panels one
    below the other, and its axes; options: of `plt.subplots`.
    """
    return plt.subplots(count, figsize=(WIDTH, height), **options)


def label_lines(ax: Axes, labels: Sequence[Label], **options: Any) -> None:
    """Label lines at their ends, apart: `labels` holds (x, y, text, colour).

    The labels move up and down as little as keeps them apart. Set scales and limits
    before.
    """
    size = options.setdefault("fontsize", SMALLEST)
    ax.autoscale_view()  # else limits that nobody set are those before the last line
    ends = ax.transData.transform([(ax.convert_xunits(x), y) for x, y, *_ in labels])
    ends = ax.transAxes.inverted().transform(ends)
    order = np.argsort(ends[:, 1])
    height = ax.get_window_extent().height * 72 / ax.figure.dpi  # in points
    apart = 1.25 * size / height * np.arange(len(labels))
    places = isotonic_regression(ends[order, 1] - apart).x + apart
    for index, place in zip(order, places, strict=True):
        x, _, text, colour = labels[index]
        ax.annotate(
            text,
            (x, place),
            (5, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            color=colour,
            va="center",
            **options,
        )


def note(
    ax: Axes,
    text: str,
    place: tuple[Any, Any],
    offset: tuple[float, float] = (0, 4),
    **options: Any,
) -> None:
    """A small grey remark at a place of the data, `offset` in points."""
    style: dict[str, Any] = {"color": GREY, "fontsize": SMALLEST} | options
    ax.annotate(text, place, offset, textcoords="offset points", **style)


def level(ax: Axes, value: float, text: str = "", **line: Any) -> None:
    """A grey level across the axes, with what it is written above its left end."""
    style: dict[str, Any] = {"color": GREY, "linewidth": 1} | line
    ax.axhline(value, **style)
    if text:
        across = ax.get_yaxis_transform()
        note(ax, text, (0.01, value), xycoords=across, color=style["color"])


MATHTEXT = re.compile(r"\\mathdefault|[${}\\]")


def ticks(ax: Axes, axes: str, values: Sequence[float]) -> None:
    """Ticks at `values` alone, as they are, on logarithmic axes `axes`: "x" or "xy"."""
    for name in axes:
        axis = getattr(ax, f"{name}axis")
        axis.axes.set(**{f"{name}scale": "log"})
        axis.set_ticks(values, labels=map(str, values))
        axis.set_minor_locator(NullLocator())


def named_rows(ax: Axes, names: Sequence[Any]) -> None:
    """Rows of bars or dots with their names, the first at the top."""
    ax.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))
    ax.grid(axis="y", visible=False)


def lines(
    ax: Axes,
    rows: pd.DataFrame,
    x: str,
    y: str,
    by: str,
    *,
    names: Mapping[Any, str] | None = None,
    colours: Mapping[Any, str] | None = None,
    spread: float = 0.5,
    **options: Any,
) -> pd.DataFrame:
    """Lines of y over x, one for each value of `by`: medians of the rows, with bars (or
    with `spread=1` the whole range) of that share of them, labelled at the end; the
    medians, a column a line. Set scales, limits and levels before.

    names: what a line is called; colours: a colour for each; options: of the line.
    """
    import seaborn

    labels = []
    ends = [(1 - spread) / 2, 0.5, (1 + spread) / 2]
    written = ax.get_xlabel(), ax.get_ylabel()
    for name, part in rows.groupby(by, sort=False, observed=True):
        # Seaborn gets the quantiles: of rows on a log axis it would take those of logs.
        quantiles = part.groupby(x)[y].quantile(ends)
        style: dict[str, Any] = {"marker": "o", "markersize": 5, "markeredgewidth": 0}
        style |= {"color": (colours or COLOURS).get(name)} | options
        count = len(ax.lines)
        seaborn.lineplot(
            x=quantiles.index.get_level_values(0),
            y=quantiles.to_numpy(),
            estimator="median",
            errorbar=("pi", 100),
            err_style="bars",
            err_kws={"capsize": 2, "elinewidth": 1},
            ax=ax,
            **style,
        )
        middle = quantiles.xs(0.5, level=1)
        text = (names or {}).get(name, str(name))
        colour = ax.lines[count].get_color()
        labels.append((middle.index[-1], middle.iloc[-1], text, colour))
    ax.set(xlabel=written[0], ylabel=written[1])
    label_lines(ax, labels)
    return rows.groupby([x, by], observed=True)[y].median().unstack()


def dots(
    ax: Axes,
    intervals: pd.DataFrame,
    *,
    text: Callable[[float], str] | list[str] | None = None,
    colours: str | Sequence[str] = BLUE,
    reference: float | None = 1.0,
) -> None:
    """A dot with its interval a row, the first at the top, its value written beside it.

    intervals: a DataFrame by name with columns low, middle, high, as `intervals` gives
    them; text: what is written, a function of the middle (default: "1.9x"), or a list;
    reference: where a thin line says that nothing changes, None for none. Set the scale
    before: a ratio belongs on a log axis, where a bar would have no beginning.
    """
    names = list(intervals.index)
    colours = [colours] * len(names) if isinstance(colours, str) else list(colours)
    texts = text if isinstance(text, list) else map(text or speed, intervals["middle"])
    if reference is not None:
        ax.axvline(reference, color=GREY, linewidth=1)
    for row, (name, colour, words_) in enumerate(
        zip(names, colours, texts, strict=True)
    ):
        low, middle, high = intervals.loc[name, ["low", "middle", "high"]]
        ax.plot([low, high], [row, row], color=colour, linewidth=3, alpha=0.4)
        ax.plot(middle, row, "o", color=colour, markersize=6)
        note(ax, words_, (high, row), (6, 0), va="center", color=colour)
    named_rows(ax, names)
    ax.margins(x=0.2)


def by_layer(layers: int) -> Callable:
    """A function of a task for `gantt`: a shade for each layer, and its number."""
    shades = colormaps["cividis"]

    def of_task(task: Task) -> tuple[Any, int]:
        return shades(0.15 + 0.8 * task.layer / max(1, layers - 1))[:3], task.layer

    return of_task


def gantt(
    charts: Mapping[str, tuple[Timeline, Callable]],
    lane: str,
    what: str,
    measured: Mapping[str, Timeline] | None = None,
) -> Figure:
    """What each worker runs over time, a panel a chart.

    charts: title -> (Timeline, function of a task: its colour, its text). `lane` names
    a worker, `what` says what texts and colours are. measured: None, and times are in
    steps; or title -> the measured Timeline of a chart, each of its lanes below the
    predicted one, and times are in seconds.
    """
    drawn = {title: [line] for title, (line, _) in charts.items()}
    for title, line in (measured or {}).items():
        drawn[title].append(line)
    longest = max(line.makespan for lines in drawn.values() for line in lines)
    rows = [2] * len(drawn)
    if measured is not None:
        rows = [len(lines) * lines[0].schedule.workers for lines in drawn.values()]
    height = 0.4 + sum(0.7 + 0.4 * count for count in rows)
    how: dict[str, Any] = {"sharex": True, "squeeze": False, "height_ratios": rows}
    figure, axes = panels(len(charts), height, **how)
    scale = 1.0 if measured is None else 1e3
    for ax, (title, lines) in zip(axes.flat, drawn.items(), strict=True):
        for row, line in enumerate(lines):
            widths = [span.stop - span.start for span in line.spans]
            # So that tasks as wide, within what times vary, all have a text, or none
            typical = 0.0 if measured is None else np.median(widths)
            for span in line.spans:
                colour, text = charts[title][1](line.schedule.tasks[span.task])
                place, width = len(lines) * span.worker + row, span.stop - span.start
                style = {"color": colour, "edgecolor": "white", "linewidth": 0.4}
                style |= {"left": scale * span.start, "height": 0.8}
                bar = ax.barh(place, scale * width, **style)
                fits = typical if 0.8 * typical < width < 1.25 * typical else width
                if fits > 0.02 * len(str(text)) * longest:
                    ink = "white" if np.mean(to_rgb(colour)) < 0.5 else "black"
                    ax.bar_label(bar, [text], label_type="center", color=ink)
        line = lines[0]
        lanes = [f"{lane} {p}" for p in range(line.schedule.workers)]
        if lines[1:]:
            pairs = ((f"{name}, predicted", "measured") for name in lanes)
            lanes = [name for pair in pairs for name in pair]
        named_rows(ax, lanes)
        took = f"{line.makespan:.3g} steps, idle {100 * line.idle:.3g} %"
        if measured is not None:
            names = zip(("predicted", "measured"), lines, strict=False)
            took = ", ".join(f"{how} {1e3 * one.makespan:.3g}" for how, one in names)
            took += " ms"
        ax.set_title(f"{title}: {took}")
    ax.set_xlabel(f"{'steps' if measured is None else 'ms'}; {what}")
    titles = (ax.get_title("left") for ax in figure.axes)
    figure.alt = f"Tasks over time, a lane per {lane}. {'; '.join(titles)}."
    return figure


def compared(
    predicted: Mapping[int, Timeline], measured: Mapping[int, Timeline]
) -> Figure:
    """Timelines in seconds by the number of workers, of layers; below each lane what
    was measured of the same, where it was.
    """
    names = {workers: counted(workers, "worker") for workers in predicted}
    charts = {
        names[workers]: (line, by_layer(line.schedule.graph.layers))
        for workers, line in predicted.items()
    }
    found = {names[w]: line for w, line in measured.items() if w in names}
    return gantt(charts, "worker", "a number is the layer of a task", found)


def heat(
    ax: Axes, table: pd.DataFrame, text: Any | None = None, **options: Any
) -> None:
    """A DataFrame as coloured cells with their texts (default: their values), rows
    upwards as its index goes; cell (i, j) has its middle at x = j, y = i.

    options: of seaborn's heat map.
    """
    import seaborn

    values = table.to_numpy(float)
    written = {"xlabel": ax.get_xlabel(), "ylabel": ax.get_ylabel()}
    style = {"cbar": False, "linewidths": 1, "linecolor": "white"} | options
    seaborn.heatmap(values, ax=ax, **style)
    mesh = ax.collections[-1]
    mesh.set_transform(Affine2D().translate(-0.5, -0.5) + ax.transData)
    texts: Any = table.to_numpy() if text is None else np.asarray(text)
    for (row, column), value in np.ndenumerate(values):
        dark = np.mean(mesh.to_rgba(value)[:3]) < 0.5
        ink = "white" if dark else "black"
        ax.text(column, row, texts[row, column], ha="center", va="center", color=ink)
    rows, columns = values.shape
    ax.set(xlim=(-0.5, columns - 0.5), ylim=(-0.5, rows - 0.5), **written)
    ax.set_xticks(range(columns), table.columns, rotation="horizontal")
    ax.set_yticks(range(rows), table.index, rotation="horizontal")
    ax.grid(visible=False)


def words(figure: Figure) -> str:
    """A drawn figure in words: of each panel its title, its axes and the names on them,
    its labels and its legend.
    """
    parts = [figure.get_suptitle()]
    for ax in figure.axes:
        axes, legend = [], ax.get_legend()
        for axis in (ax.yaxis, ax.xaxis):
            names = [tick.get_text() for tick in axis.get_ticklabels()]
            named = (
                f" ({', '.join(names)})"
                if any(name[:1].isalpha() for name in names)
                else ""
            )
            on = " on a log axis" if axis.get_scale() == "log" else ""
            name = axis.get_label_text() + named  # none where panels share an axis
            axes.append(name + on if name else "")
        labels = [
            text.get_text()
            for text in (*ax.texts, *(legend.get_texts() if legend else ()))
        ]
        parts += [
            ax.get_title("left") or ax.get_title(),
            " against ".join(filter(None, axes)),
        ]
        parts += [f"Labels: {'; '.join(labels)}"] if labels else []
    texts = (" ".join(part.split()) for part in parts)
    return MATHTEXT.sub("", ". ".join(filter(None, texts))) + "."

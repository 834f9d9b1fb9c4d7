"""Renew the table of results in README.md from what is recorded in data/results/."""

import html
import re
import sys

import notebook_rules as rules
import pandas as pd

from lstm_report.figures import tables
from lstm_report.measure import results

README = rules.ROOT / "README.md"
EXPERIMENT = "peers"
# From calls of microseconds to the size at which a product bounds everybody.
WORKLOADS = ("airline", "reference, 1 samples", "reference, 64 samples")


def plain(text):
    """A text of a record or of rows as README shows it: no markup, whoever wrote it."""
    text = html.escape(" ".join(str(text).split()))
    return re.sub(r"[|\[\]`*_~#\\]", lambda match: f"&#{ord(match[0])};", text)


def table(rows):
    """`numba-fused` beside the other packages, a row for a machine and a workload."""
    parts = []
    for stage, name in tables.WORDS.items():
        text = tables.as_text(tables.measured(rows, stage))
        parts.append(text.filter(regex="^(ms|vs)").add_prefix(f"{name}: "))
    shown = pd.concat(parts, axis=1)
    chosen = shown[shown.index.get_level_values("workload").isin(WORKLOADS)]
    chosen = chosen.replace("not measured", "").fillna("").reset_index()
    return tables.markdown(chosen.map(plain))


def section():
    """The table of every machine and what each was; ValueError where none has any."""
    rows = results.read(EXPERIMENT)
    lines = [
        f"- {plain(machine)}: {plain(tables.about(EXPERIMENT, group))}"
        for machine, group in rows.groupby("machine")
    ]
    return "\n\n".join([table(rows), "\n".join(lines)])


def render(text):
    """README's text with what stands between its markers renewed."""
    between = re.compile(
        r"(<!-- results: .*?-->\n).*(<!-- end of results -->)", re.DOTALL
    )
    content = section()
    renewed, count = between.subn(lambda m: f"{m[1]}\n{content}\n\n{m[2]}", text)
    if count != 1:
        raise rules.ReportError(
            f"{README.name}: got {count} places for 'results', want one"
        )
    return renewed


def main():
    try:
        rules.write(README, render(README.read_text(encoding="utf-8")))
    except ValueError as error:
        return f"readme: {error}"


if __name__ == "__main__":
    sys.exit(main())

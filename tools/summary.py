"""What is said at the end of a run: which claims held, what came out otherwise.

python tools/summary.py BUILD SITE NOTEBOOK...
"""

import sys
from collections import Counter
from itertools import zip_longest
from pathlib import Path

import notebook_rules as rules

from lstm_report import runs
from lstm_report.measure import provenance

KINDS = {"Held": "held", "Did not hold": "did not", "Not measured": "not measured"}
SMALL = "Small sizes: every cell ran, and no number says anything about speed."
OTHERWISE = (
    "Claims that came out otherwise than in the stored run: {}; a result, not an"
)
OTHERWISE += " error: times vary with the machine."
MEDIANS = "Medians outside the range of the stored run: {} of {}."


def verdicts(books):
    """How many claims held, in a sentence."""
    counts = Counter(claim["verdict"] for book in books for claim in rules.claims(book))
    shown = [f"{counts[kind]} {KINDS[kind]}" for kind in KINDS if counts[kind]]
    return f"Claims: {', '.join(shown) or 'none'}."


def summary(build, site, sources):
    """In lines: how many claims of the executed `sources` held, and those that did not,
    were not measured or came out otherwise than in the stored run. Of small sizes only
    which notebooks were not executed.
    """
    lines, books, otherwise = [], [], 0
    for source in sources:
        name = source.stem
        if not (build / source.name).exists():
            lines.append(f"{name}: not executed")
            continue
        books.append(rules.read(build / source.name))
        stored, now = rules.claims(rules.read(source)), rules.claims(books[-1])
        pairs = zip_longest(stored[: len(now)], now)
        for number, (old, new) in enumerate(pairs, start=1):
            changed = old is not None and old["verdict"] != new["verdict"]
            otherwise += changed
            if changed or new["verdict"] != "Held":
                was = f", stored run: {old['verdict'].lower()}" if changed else ""
                verdict = new["verdict"].lower()
                sentence = " ".join(new["sentence"].split())
                place = f"{site}/notebooks/{name}.html#claim-{name}-{number}"
                lines += [f"{name}: {verdict}{was}: {sentence}", f"    {place}"]
    if any(rules.preset(book) != "paper" for book in books):
        return [SMALL, *(line for line in lines if line.endswith("not executed"))]
    changes = [OTHERWISE.format(otherwise)] if otherwise else []
    off, count = compared(build, sources)
    changes.append(MEDIANS.format(off, count))
    return [verdicts(books), *changes, *lines]


def texts(book):
    """What a page shows, as one text."""
    shown = (output.get("data", {}) for _, output, _ in rules.outputs(book))
    return "\n".join(data.get("text/markdown", "") for data in shown)


def compared(build, sources):
    """How many medians of the executed pages lie outside the ranges of the stored ones,
    and how many there are.
    """
    pairs = (
        (texts(rules.read(source)), texts(rules.read(build / source.name)))
        for source in sources
        if (build / source.name).exists()
    )
    counts = [runs.outside(*pair) for pair in pairs]
    return sum(off for off, _ in counts), sum(count for _, count in counts)


def leave_run(build, sources):
    """Write BUILD/run.json, which `python -m lstm_report take` accepts, if every page
    was executed in full; returns a line that says so.
    """
    books = {source.stem: build / source.name for source in sources}
    every = {*sources} == {*rules.notebooks(sources[0].parent)}
    if not every or not all(path.exists() for path in books.values()):
        return []
    books = {name: rules.read(path) for name, path in books.items()}
    if any(rules.preset(book) == "smoke" for book in books.values()):
        return []
    pages = {n: (rules.claims(book), rules.numbers(book)) for n, book in books.items()}
    runs.write(build / "run.json", provenance.machine("paper"), pages)
    return [f"The run: {build}/run.json; `python -m lstm_report take` keeps it."]


if __name__ == "__main__":
    build, site, *sources = map(Path, sys.argv[1:])
    print("\n".join([*summary(build, site, sources), *leave_run(build, sources)]))

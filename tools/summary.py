"""What is said at the end of a run: which claims held, what came out otherwise.

python tools/summary.py BUILD SITE NOTEBOOK...
"""

import sys
from collections import Counter
from itertools import zip_longest
from pathlib import Path

import notebook_rules as rules

KINDS = {"Held": "held", "Did not hold": "did not", "Not measured": "not measured"}
SMALL = "Small sizes: every cell ran, and no number says anything about speed."
OTHERWISE = (
    "Claims that came out otherwise than in the stored run: {}; a result, not an"
)
OTHERWISE += " error: times vary with the machine."


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
    return [verdicts(books), *changes, *lines]


if __name__ == "__main__":
    build, site, *sources = map(Path, sys.argv[1:])
    print("\n".join(summary(build, site, sources)))

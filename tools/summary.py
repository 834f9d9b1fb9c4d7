"""What is said at the end of a run: of claims, of pages, of the stored run."""

from collections import Counter

import notebook_rules as rules
from notebook_rules import ROOT

KINDS = {"Held": "held", "Did not hold": "did not", "Not measured": "not measured"}
SMALL = "Small sizes: every cell ran, and no number says anything about speed."
RESULT = "a result, not an error: times vary with the machine"


def summary(build, sources, site=None, root=ROOT):
    """In lines: how many claims of the executed `sources` held, how many came out
    otherwise than in the stored run, and of each page its seconds and those claims that
    did not hold, were not measured or came out otherwise. Of small sizes the seconds
    alone.

    site: the folder of the site's pages, to which lines then lead.
    """
    executed = [source for source in sources if (build / source.name).exists()]
    books = {source: rules.read(build / source.name) for source in executed}
    small = any(rules.preset(book) != "paper" for book in books.values())
    lines, otherwise = [], 0
    for source in sources:
        head = source.stem
        if source not in books:
            lines.append(f"{head}: not executed")
            continue
        new, old = books[source], rules.read(source)
        took = rules.took(new)
        lines.append(f"{head}: {took.get('seconds', 0)} s")
        if small:
            continue
        shared = took.get("shared", {}).items()
        there = [name for name, (*_, made) in shared if not made]
        if stored := sum(rules.expected(old, there)):
            lines[-1] += f", stored run {stored} s"
        before = [claim["verdict"] for claim in rules.claims(old)]
        for number, claim in enumerate(rules.claims(new), start=1):
            was = before[number - 1] if number <= len(before) else None
            changed = was not in (None, claim["verdict"])
            otherwise += changed
            if changed or claim["verdict"] != "Held":
                lines += told(head, number, claim, was if changed else None, site)
    if small:
        return "\n".join([SMALL, *lines])
    return "\n".join([verdicts(books.values()), *compared(otherwise), *lines])


def verdicts(books):
    """How many claims held, in a sentence."""
    found = Counter(claim["verdict"] for book in books for claim in rules.claims(book))
    told = [f"{found[kind]} {KINDS[kind]}" for kind in KINDS if found[kind]]
    return f"Claims: {', '.join(told) or 'none'}."


def compared(otherwise):
    """In plain words what it means that so many claims came out otherwise."""
    if not otherwise:
        return
    claims = "1 claim" if otherwise == 1 else f"{otherwise} claims"
    yield f"{claims} came out otherwise than in the stored run; {RESULT}."


def told(name, number, claim, was, site):
    """The lines of a claim: its number on the page, what came out, where it stands."""
    verdict = claim["verdict"].lower()
    if claim["verdict"] == "Not measured" and claim["numbers"]:
        verdict += f" ({claim['numbers']})"
    verdict += f", stored run: {was.lower()}" if was else ""
    yield f"  claim {number}, {verdict}: {' '.join(claim['sentence'].split())}"
    if claim.get("why"):
        yield f"    {' '.join(claim['why'].split())}"
    if site:
        yield f"    {site}/{name}.html#claim-{name}-{number}"

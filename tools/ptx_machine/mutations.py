"""Faults planted into compiled kernels, one at a time: does the machine see them?"""

from . import cases, machine
from .parse import FIELDS

OFF_BY_ONE = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt"}
BOUND = "a bound off by one"
PLANTED = "fused, tiles", "epoch, tiles", "persistent"  # the cases for faults
PARTS = 4  # which processes may share


def sites(program):
    """(what, pc, the row's new fields) of each fault that can be planted."""
    nothing = {"op": program.opcode("nop")}
    for pc, statement in enumerate(program.statements):
        row = dict(zip(FIELDS, program.code[pc].tolist(), strict=True))
        parts = statement.split()[statement[0] == "@"].split(".")
        if parts[0] in ("bar", "barrier") and "red" not in parts:
            yield "a barrier less", pc, nothing
        if "cudaCGSynchronize" in statement:
            yield "a grid's barrier less", pc, nothing
        if parts[0] in ("ld", "st") and row["n"] > 1:
            yield "a vector off by a number", pc, {"offset": row["offset"] + 4}
        if row["how"] & 2:
            yield "an acquire less", pc, {"how": row["how"] & ~2}
        if row["how"] & 4:
            yield "a release less", pc, {"how": row["how"] & ~4}
        if row["how"] and parts[0] != "atom":
            yield "a plain flag", pc, {"how": 8}  # which still gives its turn away
        if parts[0] == "cp" and "wait" in statement:
            yield "a wait less", pc, nothing
        if parts[0] == "setp" and parts[1] in OFF_BY_ONE and parts[-1][0] in "su":
            other = ".".join(["setp", OFF_BY_ONE[parts[1]], *parts[2:]])
            yield BOUND, pc, {"op": program.opcode(other)}


def plant(name, part=0, bounds=4, order="random"):
    """Rows of a part of PARTS of the faults that can be planted in what a case
    executes, each with its outcome; of the bounds, which are many, every `bounds`-th,
    or with 0 none.
    """
    rows, memory = [], machine.Machine(order)
    case = cases.CASES[name]
    with cases.stand_in(cases.Cuda(memory, case.multiprocessors, case.shared)):
        cases.errors(case, memory)
    places = [
        (program, *site)
        for program, counts in memory.counts.values()
        for site in list(sites(program))
        # Without the first kernels there is no device to see faults on.
        if counts[site[1]] and not program.name.startswith("across")
    ]
    chosen = [place for place in places if place[1] != BOUND]
    chosen += [p for p in places if p[1] == BOUND][::bounds] if bounds else []
    for program, what, pc, fields in chosen[part::PARTS]:
        before = program.code[pc].copy()
        for field, value in fields.items():
            program.code[pc, FIELDS.index(field)] = value
        try:
            row = cases.run(name, order)
        finally:
            program.code[pc] = before
        found = ", ".join(sorted({fault[2] for fault in row["faults"]}))
        outcome = "wrong result" if row["wrong"] else "harmless"
        outcome = "reported" if found else outcome
        place = {"case": name, "kernel": program.name, "pc": pc, "planted": what}
        rows.append(place | {"outcome": outcome, "faults": found})
    return rows

"""The tables of `make bench-isa`: `numba-fused` compared with PyTorch and SGEMM, by machine and
instruction set.
"""

import pandas as pd

from ..bench import isa, results
from ..bench.results import label
from ..cpu import registers
from . import tables
from .tables import speed

MISSING = "Not measured yet (`make bench-isa`)."
ORDER = ("AVX-512", "AVX2", "AVX", "SSE2", "NEON")
STAGES = {"forward": "inference", "step": "training", "public step": "forward and backward"}
NAMED = ("reference, 64 samples", "one layer")
KEY = ["machine", "instruction set", "workload"]
# An architecture that no measured machine has.
EMULATED = ("aarch64", "NEON", "results checked under emulation, not timed")


def recorded(folder=None):
    """Every machine's rows; an empty table where none are recorded."""
    try:
        return results.read("isa", folder)
    except ValueError:
        return pd.DataFrame(columns=[*results.COLUMNS, "machine"])


def records(rows, folder=None):
    """The records of the rows, by machine."""
    return {name: results.record("isa", name, folder) for name in rows["machine"].unique()}


def groups(rows):
    """Pairs ((machine, instruction set), rows), the widest vectors first."""
    parts = list(rows.groupby(["machine", "instruction_set"]))
    return sorted(parts, key=lambda pair: (pair[0][0], ORDER.index(pair[0][1])))


def measured(rows):
    """What `tables.measured` says of each machine, instruction set, workload and stage."""
    parts = [pd.DataFrame(columns=[*KEY, "stage", "seconds", "GFLOP/s", "of SGEMM", "pytorch"])]
    for (machine, name), part in groups(rows):
        for stage in [stage for stage in STAGES if stage in set(part["stage"])]:
            key = {"machine": machine, "instruction set": name, "stage": stage}
            parts.append(tables.measured(part, stage).reset_index().assign(**key))
    return pd.concat(parts[1:] or parts, ignore_index=True).reindex(columns=parts[0].columns)


def instruction_sets(rows, machines):
    """Every workload on every machine and instruction set: times, rates, and the speed compared
    with PyTorch's, as text.

    rows: of `results.read("isa")`. machines: their records, by name.
    """
    numbers = measured(rows).set_index([*KEY, "stage"])
    parts = {STAGES[s]: tables.as_text(numbers.xs(s, level="stage")) for s in ("forward", "step")}
    table = pd.concat(parts, axis=1)
    return table.rename(index={name: label(record) for name, record in machines.items()}, level=0)


def summary(rows, machines):
    """A row per machine and instruction set, as text: SGEMM, the least and largest speed compared
    with PyTorch's over all workloads, and inference and training of two of them.
    """
    numbers, lines = measured(rows).set_index(KEY[:2]), []
    for key, part in groups(rows):
        own = numbers.loc[[key]]
        line = {"machine": label(machines[key[0]]), "instruction set": key[1]}
        line["SGEMM (GFLOP/s)"] = f"{tables.ceiling(part, 'sgemm'):.3g}"
        for stage in tables.WORDS:
            ratios = own[own["stage"] == stage]["pytorch"].dropna()
            line[f"{STAGES[stage]} vs PyTorch"] = _each((ratios.min(), ratios.max()), " to ")
        ratio = own.set_index(["workload", "stage"])["pytorch"]
        for work in NAMED:
            pair = [ratio.get((work, stage), float("nan")) for stage in tables.WORDS]
            line[work] = _each(pair, ", ")
        lines.append(line)
    frame = pd.DataFrame(lines)
    if "NEON" not in set(frame["instruction set"]):
        frame.loc[len(frame)] = [*EMULATED, *[""] * (frame.shape[1] - len(EMULATED))]
    return frame


def _each(ratios, between):
    """Speeds as text, one where they are alike."""
    return between.join(dict.fromkeys(map(speed, ratios)))


def sentences(rows, machines):
    """Per machine and instruction set: where `numba-fused` is ahead of PyTorch, and where it is
    behind and by how much.
    """
    said = []
    for (machine, name), part in measured(rows).groupby(KEY[:2], sort=False):
        part = part.dropna(subset="pytorch").sort_values("pytorch")
        ratios = part["pytorch"].map(speed).tolist()
        stages, works = part["stage"].map(STAGES), part["workload"].tolist()
        at = [f"{r} ({s}, {w})" for r, s, w in zip(ratios, stages, works, strict=True)]
        behind = int((part["pytorch"] < 1).sum())
        losses = [f"{s} of {w} ({r})" for r, s, w in zip(ratios, stages, works, strict=True)]
        if not at:
            text = "not compared, PyTorch was not installed."
        elif not behind:
            text = f"`numba-fused` is ahead of PyTorch at every size, from {at[0]} to {at[-1]}."
        else:
            text = f"`numba-fused` is behind PyTorch in {'; '.join(losses[:behind])}; ahead in "
            text += f"{len(at) - behind} of {len(at)} measurements"
            text += "." if behind == len(at) else f", at most {at[-1]}."
        said.append(f"- {label(machines[machine])}, {name}: {text}")
    return "\n".join(said) or MISSING


def rates(rows, machines):
    """What BLAS and `numba-fused` reach on each instruction set of a machine, in sentences."""
    numbers, said = measured(rows), []
    for machine, part in numbers[numbers["stage"] == "forward"].groupby("machine", sort=False):
        works = part["workload"]
        part = part[works == (NAMED[0] if NAMED[0] in set(works) else works.iloc[0])]
        sgemm = (part["GFLOP/s"] / part["of SGEMM"]).map("{:.3g} GFLOP/s with ".format)
        said.append(
            f"- {label(machines[machine])}: SGEMM reaches "
            f"{', '.join(sgemm + part['instruction set'])}; `numba-fused` reaches "
            f"{', '.join(part['of SGEMM'].map('{:.0%}'.format))} of these in inference of "
            f"{part['workload'].iloc[0]}."
        )
    return "\n".join(said)


def about(rows, record):
    """What the recorded rows of a machine were measured on, as a quotation."""
    kernels, spread = [], []
    for (_, name), part in groups(rows):
        gemm = part[part["version"] == "sgemm"]
        kernels.append(f"{name} {gemm['variant'].iloc[0]}")
        low, high = gemm["seconds"].quantile([0.25, 0.75])
        spread += [f"{name} {high / low - 1:.0%}"] if high > 1.1 * low else []
    peer = rows[rows["version"] == "pytorch"]["variant"].dropna().unique()
    text = (
        f"> {label(record)}, {rows['threads'].max():.0f} threads for everyone, "
        f"preset {record['preset']}. PyTorch "
        f"{', '.join(peer) or 'was not installed'}. BLAS kernels: {', '.join(kernels)}."
    )
    if spread:
        text += f" **Disturbed**: quartiles of SGEMM's times are apart by {', '.join(spread)}."
    return text


def bounds():
    """What an instruction set has for the tile: registers, their width, instructions for a
    multiply-add.
    """
    rows = {}
    for name in ("AVX-512", "AVX2", "SSE2", "NEON"):
        words = isa.features(name) if name != "NEON" else []
        triple = "aarch64" if name == "NEON" else "x86_64"
        has = registers.instruction_set(triple, dict.fromkeys(words, True))
        width = has.bytes // 4
        rows[name] = {
            "registers": has.count,
            "float32 in each": width,
            "one instruction multiplies and adds": "yes" if has.fused else "no",
            "instructions for 64 multiply-adds": 64 // width * (1 if has.fused else 2),
        }
    return pd.DataFrame(rows).T.rename_axis(index="instruction set")

"""The tables of `make bench-isa`: `numba-fused` beside PyTorch and SGEMM, by machine and
instruction set.
"""

import pandas as pd

from ..bench import experiments, isa, results
from ..bench.results import label
from ..cpu import registers
from . import tables

MISSING = "Not measured yet (`make bench-isa`)."
ORDER = ("AVX-512", "AVX2", "AVX", "SSE2", "NEON")
STAGES = {"forward": "inference", "step": "training", "public step": "forward and backward"}
GFLOP = {"forward": "gflop", "step": "step_gflop"}
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
    found = dict(list(rows.groupby(["machine", "instruction_set"])))
    return [(key, found[key]) for key in sorted(found, key=lambda k: (k[0], ORDER.index(k[1])))]


def measured(rows):
    """Numbers: a row per machine, instruction set, workload and stage with the seconds, GFLOP/s,
    the fraction of SGEMM's, and how many times as fast as PyTorch (NaN where it is not measured).
    """
    found = []
    for (machine, name), part in groups(rows):
        sgemm = tables.ceiling(part, "sgemm")
        for stage in STAGES:
            if (part["stage"] == stage).any():
                seconds = tables.median_times(part, stage)["numba-fused"]
                ratios = tables.peer_ratios(part, stage).reindex(columns=["pytorch"])["pytorch"]
                for work, value in seconds.items():
                    count = (
                        getattr(experiments.GRID[work], GFLOP[stage]) if stage in GFLOP else None
                    )
                    rate = count / value if count else float("nan")
                    row = (machine, name, work, stage, value, rate, rate / sgemm, ratios[work])
                    found.append(row)
    columns = [*KEY, "stage", "seconds", "GFLOP/s", "of SGEMM", "ratio"]
    return pd.DataFrame(found, columns=columns)


def speed(ratio):
    """How much faster, as text; slower in per cent."""
    if pd.isna(ratio):
        return "not measured"
    if ratio < 1:
        return f"{100 * (1 - ratio):.2g} % slower"
    return f"{ratio:.{2 if ratio < 10 else 1 if ratio < 100 else 0}f}x"


def instruction_sets(rows, machines):
    """Every workload on every machine and instruction set: times, rates, and the speed compared
    with PyTorch's, as text.

    rows: of `results.read("isa")`. machines: their records, by name.
    """
    numbers = measured(rows)
    parts = {}
    for stage in GFLOP:
        part = numbers[numbers["stage"] == stage].set_index(KEY)
        parts[STAGES[stage]] = pd.DataFrame(
            {
                "ms": (1e3 * part["seconds"]).map("{:.3g}".format),
                "GFLOP/s": part["GFLOP/s"].map("{:.3g}".format),
                "of SGEMM": part["of SGEMM"].map("{:.0%}".format),
                "vs PyTorch": part["ratio"].map(speed),
            }
        )
    table = pd.concat(parts, axis=1)
    return table.rename(index={name: label(record) for name, record in machines.items()}, level=0)


def summary(rows, machines):
    """A row per machine and instruction set, as text: SGEMM, the least and largest speed compared
    with PyTorch's over all workloads, and inference and training of two of them.
    """
    numbers, table = measured(rows), []
    for (machine, name), part in groups(rows):
        mine = numbers[(numbers["machine"] == machine) & (numbers["instruction set"] == name)]
        row = {
            "machine": label(machines[machine]),
            "instruction set": name,
            "SGEMM (GFLOP/s)": f"{tables.ceiling(part, 'sgemm'):.3g}",
        }
        for stage in GFLOP:
            ratios = mine[mine["stage"] == stage]["ratio"].dropna()
            ends = dict.fromkeys(map(speed, (ratios.min(), ratios.max())))  # one, if they are alike
            row[f"{STAGES[stage]} vs PyTorch"] = " to ".join(ends)
        ratio = mine.set_index(["workload", "stage"])["ratio"]
        for work in NAMED:
            pair = [ratio.get((work, stage), float("nan")) for stage in GFLOP]
            row[work] = ", ".join(dict.fromkeys(map(speed, pair)))
        table.append(row)
    frame = pd.DataFrame(table)
    if "NEON" not in set(frame["instruction set"]):
        frame.loc[len(frame)] = [*EMULATED[:2], EMULATED[2], *[""] * (frame.shape[1] - 3)]
    return frame


def sentences(rows, machines):
    """Per machine and instruction set: where `numba-fused` is ahead of PyTorch, and where it is
    behind and by how much.
    """
    said, numbers = [], measured(rows)
    for (machine, name), part in numbers.groupby(["machine", "instruction set"], sort=False):
        where = f"{label(machines[machine])}, {name}: "
        compared = part.dropna(subset="ratio")
        if compared.empty:
            said.append(f"{where}not compared, PyTorch was not installed.")
            continue
        ends = [compared.loc[getattr(compared["ratio"], end)()] for end in ("idxmin", "idxmax")]
        low, high = (f"{speed(r['ratio'])} ({STAGES[r['stage']]}, {r['workload']})" for r in ends)
        behind = compared[compared["ratio"] < 1].sort_values("ratio")
        if behind.empty:
            text = f"`numba-fused` is ahead of PyTorch at every size, from {low} to {high}."
        else:
            losses = [
                f"{STAGES[r['stage']]} of {r['workload']} ({speed(r['ratio'])})"
                for _, r in behind.iterrows()
            ]
            text = (
                f"`numba-fused` is behind PyTorch in {'; '.join(losses)}; ahead in "
                f"{len(compared) - len(behind)} of {len(compared)} measurements"
            )
            text += "." if len(behind) == len(compared) else f", at most {high}."
        said.append(where + text)
    return "\n".join(f"- {line}" for line in said) or MISSING


def rates(rows, machines):
    """What BLAS and `numba-fused` reach on each instruction set of a machine, in sentences."""
    numbers, said = measured(rows), []
    numbers = numbers[numbers["stage"] == "forward"]
    for machine, part in numbers.groupby("machine", sort=False):
        work = NAMED[0] if NAMED[0] in set(part["workload"]) else part["workload"].iloc[0]
        mine = part[part["workload"] == work].set_index("instruction set")
        sgemm = mine["GFLOP/s"] / mine["of SGEMM"]
        said.append(
            f"{label(machines[machine])}: SGEMM reaches "
            + ", ".join(f"{rate:.3g} GFLOP/s with {name}" for name, rate in sgemm.items())
            + f"; `numba-fused` reaches {', '.join(map('{:.0%}'.format, mine['of SGEMM']))} of "
            f"these in inference of {work}."
        )
    return "\n".join(f"- {line}" for line in said)


def about(rows, record):
    """What the recorded rows of a machine were measured on, as a quotation."""
    parts = groups(rows)
    kernels, spread = [], []
    for (_, name), part in parts:
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
        found = registers.instruction_set(triple, dict.fromkeys(words, True))
        each = found.bytes // 4
        rows[name] = {
            "registers": found.count,
            "float32 in each": each,
            "one instruction multiplies and adds": "yes" if found.fused else "no",
            "instructions for 64 multiply-adds": 64 // each * (1 if found.fused else 2),
        }
    return pd.DataFrame(rows).T.rename_axis(index="instruction set")

"""What notebook 07 tells: counts that hold for any GPU, and what was recorded on one."""

import math

import numpy as np
import pandas as pd

from ..bench import ptx, results
from ..bench.timing import summary
from ..gpu.device_functions import HEAD
from ..gpu.sample_kernels import UNITS

NOT_YET = "Not measured yet: no results of a GPU are recorded."
SHARED = 227 << 10  # bytes of shared memory that an H100 or H200 grants a block
# NVIDIA's data sheets of the H200 (SXM) and the T4: single-precision TFLOP/s, device memory TB/s;
# shared memory: 32 banks of 4 bytes a clock for each multiprocessor (CUDA C++ Programming Guide).
SHEETS = {
    "H200": {"tflops": 67.0, "memory": 4.8, "multiprocessors": 132, "clock_ghz": 1.98},
    "T4": {"tflops": 8.1, "memory": 0.32, "multiprocessors": 40, "clock_ghz": 1.59},
}


def shared_bandwidth(device):
    """TB/s at which threads can read shared memory, all multiprocessors together."""
    sheet = SHEETS[device]
    return sheet["multiprocessors"] * 128 * sheet["clock_ghz"] / 1000


def loads(K=4, rows=4):
    """Numbers that a thread loads for a multiply-add, by kernel and part, as the texts have them.

    Forward a value meets K weights; four samples to a thread share these. On the way back K
    gradients meet K weights. For the weights' gradients a value, or `rows` of them, meets K
    gradients.
    """
    table = {
        "a thread per sample": ((1 + K) / K, 2, (1 + K) / K),
        "a tile, one sample to a thread": ((1 + K) / K, 2, (rows + K) / (rows * K)),
        "a tile, four samples to a thread": ((4 + K) / (4 * K), 5 / 4, (rows + K) / (rows * K)),
    }
    columns = ["forward", "back", "gradients"]
    frame = pd.DataFrame.from_dict(table, orient="index", columns=columns)
    return frame.assign(**{"flop per byte": 2 * 3 / (4 * frame.sum(axis=1))})


def step_bytes(version, work):
    """Bytes that a step sends and fetches: the arrays' sizes, float32."""
    theta = sum(a.size for a in work.params().arrays().values())
    batch, gradients = work.T * work.B * work.D + work.B, theta + 1  # the loss behind them
    return {
        "cuda-v1": (4 * (batch + theta + gradients),) * 2,
        "cuda-v2": (4 * (batch + theta + gradients),) * 2,
        "cuda-v3": (4 * (batch + theta), 4 * gradients),
        "cuda-fused": (0, 0),  # inside an epoch
    }[version]


def occupancy(work, multiprocessors=132, capability="9.0"):
    """Blocks that a step launches, and how many a multiprocessor can hold.

    From the recorded registers of the float32 LSTM; a multiprocessor has 65536 registers, given out
    in eights, 228 KiB of shared memory, and takes 32 blocks and 64 warps.
    """
    recorded = pd.read_csv(ptx.PATH, dtype={"capability": str})
    chosen = recorded.query(
        "cell == 'lstm' and dtype == 'float32' and kernel == 'step' and capability == @capability"
    ).set_index(["version", "variant"])["registers"]
    from ..versions import cuda_fused

    n = (work.L, work.T, work.B, work.D, work.H, 1)
    most = ptx.THREADS["cuda-fused"]
    plan = cuda_fused.plan(n, "lstm", np.dtype(np.float32), multiprocessors, SHARED, most)
    kind = f"{plan.R} to a thread, weights {'shared' if plan.resident else 'in device memory'}"
    shapes = {
        ("cuda-v1", "one thread"): (1, 1, HEAD + 4 * 4 * UNITS * 2),
        ("cuda-v2", "thread per sample"): (-(-work.B // 32), 32, HEAD + 4 * 4 * UNITS * 33),
        ("cuda-fused", f"{kind}, ordered"): (plan.blocks, plan.threads, plan.shared),
    }
    table = {}
    for key, (blocks, threads, shared) in shapes.items():
        warps = -(-threads // 32)
        registers = 8 * math.ceil(chosen[key] / 8)
        hold = min(32, 64 // warps, ptx.REGISTERS // (registers * 32 * warps))
        hold = min(hold, (SHARED + 1024) // (shared + 1024))  # the system keeps 1 KiB of each
        table[key[0]] = {
            "blocks": blocks,
            "threads": threads,
            "registers": chosen[key],
            "shared (KiB)": round(shared / 1024, 1),
            "multiprocessors busy": f"{min(1, blocks / multiprocessors):.0%}",
            "blocks one can hold": hold,
            "its warps then": f"{hold * warps / 64:.0%}",
        }
    return pd.DataFrame.from_dict(table, orient="index").rename_axis("version")


def resources(capability="9.0"):
    """Registers of every step kernel by variant, cell and dtype at a capability."""
    rows = pd.read_csv(ptx.PATH, dtype={"capability": str})
    rows = rows[(rows["kernel"] == "step") & (rows["capability"] == capability)]
    keys = ["version", "variant"]
    table = rows.pivot_table(index=keys, columns=["dtype", "cell"], values="registers", sort=False)
    return table.map(lambda count: "" if pd.isna(count) else f"{count:.0f}")


def recorded(variant):
    """The recorded rows of a comparison of `make gpu`, of every machine; empty without any."""
    try:
        rows = results.read("gpu")
    except ValueError:
        return pd.DataFrame()
    return rows[rows["variant"].astype(str).str.startswith(variant)]


def where(machine):
    """The GPU, the machine and the date of its recorded comparisons, in words."""
    m = results.record("gpu", machine)
    gpu = m["gpu"]
    return (
        f"{gpu['name']} (driver {gpu['driver']}) with {m['cpu']}, {m['cores']} cores, {m['date']}"
    )


def each(variant, tell):
    """`tell(rows)` for each machine that recorded a comparison, in sentences; or that none did."""
    rows = recorded(variant)
    if rows.empty:
        return NOT_YET
    said = [f"{where(name)}: {tell(part)}" for name, part in rows.groupby("machine")]
    return "\n\n".join(said)


def speeds(rows):
    """Steps of hundreds of samples: how many times as fast as which."""
    median = rows[rows["stage"] == "step"].groupby("version")["seconds"].median()
    long = rows[rows["stage"] == "5 epochs"]
    v3 = {name: median[name] / median["cuda-v3"] for name in ("sequential", "numpy")}
    said = ", ".join(f"{ratio:.3g} times as fast as `{name}`" for name, ratio in v3.items())
    ratio = summary(long, "cuda-v3", by="version")["ratio"]["cuda-fused"]
    B = rows["B"].iloc[0]
    return (
        f"a step of {B} samples takes `cuda-v3` {1e3 * median['cuda-v3']:.3g} ms, {said}; five "
        f"epochs of such steps run {ratio:.3g} times as fast with `cuda-fused`."
    )


def growth(rows):
    """The exponent of the time over the data set's size, up to where the device is full."""
    times = rows.query("version == 'cuda-fused'").groupby("N")["seconds"].median()
    slopes = np.diff(np.log(times)) / np.diff(np.log(times.index))
    full = next((i for i, slope in enumerate(slopes) if slope > 0.7), len(slopes))
    exponent = np.polyfit(np.log(times.index[: full + 1]), np.log(times.iloc[: full + 1]), 1)[0]
    return (
        f"from {times.index[0]:,.0f} to {times.index[full]:,.0f} windows the time grows as their "
        f"number to the power {exponent:.2f}; beyond, the device is full: "
        f"{times.index[-1]:,.0f} windows take {1e3 * times.iloc[-1]:.3g} ms."
    )


def crossover(rows):
    """Where `cuda-fused` overtakes `numba-fused` as the data set grows."""
    times = rows.groupby(["N", "version"])["seconds"].median().unstack()
    ahead = times.index[times["cuda-fused"] < times["numba-fused"]]
    if ahead.empty:
        return "`numba-fused` is faster at every size measured."
    ratio = times["numba-fused"].iloc[-1] / times["cuda-fused"].iloc[-1]
    return (
        f"`cuda-fused` overtakes `numba-fused` from {ahead[0]:,.0f} windows on, and is "
        f"{ratio:.3g} times as fast at {times.index[-1]:,.0f}."
    )


def moved(rows):
    """Bytes and milliseconds of a step's copies, by version."""
    table = rows.groupby(["version", "stage", "variant"], sort=False)[["bytes", "seconds"]].median()
    return "; ".join(
        f"`{version}`, {stage}, {variant.split()[1]} {row['bytes']:,.0f} bytes in "
        f"{1e3 * row['seconds']:.3g} ms"
        for (version, stage, variant), row in table.iterrows()
    )


def ordered(rows):
    """What the fixed order of the sums costs beside atomics."""
    median = rows.groupby("variant")["seconds"].median()
    ratio = median["sums ordered"] / median["sums atomic"]
    return f"an epoch with sums in a fixed order takes {ratio:.3g} times that with atomics."

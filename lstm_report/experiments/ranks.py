"""`make bench-ranks`: what notebooks 08 and 09 show of several ranks, each experiment a
few jobs.

An experiment is a function (preset, show): it starts its jobs one after the other and
returns rows of a results file. show: called with the line of each job, and with what
the job says.
"""

from lstm_kernels.ranks import launch

from ..measure import results
from ..measure.timing import together

RATE = (
    "2gbit"  # of the link between two ranks: 1 Gbit/s each way, as of common Ethernet
)
DEEP = {"layers": 8, "hidden": 256, "symbols": 5000, "steps": 20}  # S5's eight layers
SMALL_DEEP = {"layers": 8, "hidden": 32, "symbols": 50, "steps": 5}
WIDE = {"layers": 4, "hidden": 512, "steps": 100}  # the reference workload
SMALL_WIDE = {"layers": 4, "hidden": 32, "steps": 10}


def _jobs(show, *jobs):
    """Rows of several jobs as one table; a job: program, ranks, options, columns to
    add.
    """
    parts = []
    for program, ranks, options, *columns in jobs:
        rows = launch.run(program, ranks, show=show, **options)
        parts.append(rows.assign(**columns[0] if columns else {}))
    return together(parts)


def handover(preset, show=None):
    """Hand-overs by every means; sums over two and four ranks."""
    few = {} if preset == "paper" else {"repeats": 2, "turns": 50}
    sums = {} if preset == "paper" else {"repeats": 2, "sizes": "4096,65536"}
    return _jobs(show, ("handover", 2, few), ("sums", 2, sums), ("sums", 4, sums))


def inference(preset, show=None):
    """RNNs by threads, ranks and GPUs: a sample over hidden units, a mini-batch, a
    stack.
    """
    paper, two = preset == "paper", {"threads": 2}
    few = {} if paper else {"repeats": 2, "steps": 10, "hidden": "128"}
    batch = {"batch": 64, "steps": 25, "hidden": "256,512,1024", "repeats": 10} | few
    stack = {"batch": 1, "layers": 4, "hidden": "256,512", "repeats": 10} | few
    return _jobs(
        show,
        ("inference", 2, two | few),
        ("inference", 2, two | batch),
        ("inference", 2, two | stack),
    )


def ranks(preset, show=None):
    """Training steps by replicas and by pipelines; what each layer and what the sums
    cost.
    """
    paper = preset == "paper"
    sizes, few = (WIDE, {"repeats": 3}) if paper else (SMALL_WIDE, {"repeats": 2})
    ways = "one rank,network,data,data after,8 fill-drain,8 fill-drain 2 loops"
    return _jobs(
        show,
        ("speed", 2, sizes | few | {"ways": ways}),
        ("costs", 2, sizes | few | {"samples": "8"}),
        ("sums", 2, {"sizes": "33554432" if paper else "65536", "repeats": 5}),
    )


def link(preset, show=None):
    """Replicas whose ranks are connected by a slow link."""
    sizes = WIDE | {"repeats": 5} if preset == "paper" else SMALL_WIDE | {"repeats": 2}
    return _jobs(
        show,
        ("speed", 2, sizes | {"ways": "data,data after,data unsummed", "link": RATE}),
    )


def scaling(preset, show=None):
    """What the model of many ranks is fitted to, and steps on 1, 2 and 4 ranks to judge
    it by.
    """
    paper = preset == "paper"
    sizes = {"layers": 4, "hidden": 512 if paper else 32, "steps": 20 if paper else 5}
    few = sizes | {"repeats": 3 if paper else 2}
    samples = "2,4,8,64" if paper else "4,8,64"
    ways = "data after,8 fill-drain"
    return _jobs(
        show,
        ("handover", 2, {"repeats": 5 if paper else 2}),
        ("sums", 2, {"repeats": 5 if paper else 2}),
        ("costs", 2, few | {"samples": samples}),
        ("speed", 2, few | {"ways": f"one rank,{ways}"}),
        ("speed", 4, few | {"ways": f"{ways},8 fill-drain 2+3"}),
    )


def partitions(preset, show=None):
    """S5's eight layers with an encoder and a decoder: every partition over two ranks,
    the encoder and the decoder on one, what each layer costs, and memory as layers are
    spread.
    """
    paper = preset == "paper"
    sizes, few = (DEEP, {"repeats": 3}) if paper else (SMALL_DEEP, {"repeats": 2})
    apart = {"counts": "1,8,1", "cores": "0,1,0"}
    return _jobs(
        show,
        ("partitions", 2, sizes | few),
        ("partitions", 3, sizes | few | apart),
        ("costs", 2, sizes | few | {"samples": "8"}),
        *(("memory", count, sizes) for count in ((1, 2, 5) if paper else (1, 2))),
    )


def buckets(preset, show=None):
    """Epochs by the number of buckets, on one rank and as a pipeline of two."""
    paper = preset == "paper"
    sizes = {
        "hidden": 256,
        "batch": 64,
        "counts": "1,2,4,8",
        "strings": 320,
        "repeats": 3,
    }
    few = (
        sizes if paper else {"repeats": 2, "counts": "1,4", "strings": 64, "hidden": 16}
    )
    pipeline = {"stages": "1,2", "micro_batches": 4}
    return _jobs(show, ("bucketing", 1, few), ("bucketing", 2, few | pipeline))


def learning(preset, show=None):
    """An LSTM and an RNN learn embedded Reber strings, as pipelines over buckets."""
    paper = preset == "paper"
    how = {
        "strings": 4000,
        "least": 25,
        "hidden": 128,
        "epochs": 14,
        "rate": 5e-3,
        "batch": 32,
    }
    few = {"strings": 64, "hidden": 16, "epochs": 2, "batch": 16, "least": 9}
    how |= {"layers": 1, "held_out": 512, "buckets": 4, "forget": 2.0}
    how |= {"stages": "1,1", "micro_batches": 4}
    how |= {} if paper else few
    return _jobs(
        show, *(("training", 2, how | {"cell": cell}) for cell in ("lstm", "rnn"))
    )


EXPERIMENTS = {
    "handover": handover,
    "inference": inference,
    "ranks": ranks,
    "scaling": scaling,
    "partitions": partitions,
    "buckets": buckets,
    "learning": learning,
}


def main(preset="paper", folder=None):
    """Run every experiment and write its file; yields (experiment, rows, path)."""
    plan = {
        name: lambda run=run: run(preset, print) for name, run in EXPERIMENTS.items()
    }
    if why := launch.why_no_link():
        print(f"link: not measured: {why}")
    else:
        plan["link"] = lambda: link(preset, print)
    return results.fill(plan, preset=preset, folder=folder)

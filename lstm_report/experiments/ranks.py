"""`make bench-ranks`: what notebooks 08 and 09 show of several ranks, each experiment a
few jobs.

An experiment is a function (preset, show): it starts its jobs one after the other and
returns rows of a results file. show: called with the line of each job, and with what
the job prints. A job runs one of PROGRAMS on its ranks, functions of a World and
options that return rows on rank 0:

    mpiexec -n RANKS python -m lstm_report.experiments.ranks PROGRAM --options JSON
"""

import argparse
import io
import json

import pandas as pd

from lstm_kernels.files import writing
from lstm_kernels.ranks import launch, world

from ..measure import results
from ..measure.timing import conditions, system, together
from . import handover as hand_overs
from . import rank_speed

PROGRAMS = {
    "handover": hand_overs.handover,
    "inference": hand_overs.inference,
    "speed": rank_speed.speed,
    "costs": rank_speed.costs,
    "partitions": rank_speed.partitions,
    "memory": rank_speed.memory,
    "bucketing": rank_speed.bucketing,
}
DEEP = {"layers": 8, "hidden": 256, "symbols": 5000, "steps": 20}  # S5's eight layers
SMALL_DEEP = {"layers": 8, "hidden": 32, "symbols": 50, "steps": 5}
WIDE = {"layers": 4, "hidden": 512, "steps": 100}  # the reference workload
SMALL_WIDE = {"layers": 4, "hidden": 32, "steps": 10}


def _job(show, program, ranks, *, threads=1, **options):
    """The rows of a job, with what disturbed it."""
    before = system()
    module = "lstm_kernels.ranks"
    if program in PROGRAMS:
        module = __name__
        options = {"options": json.dumps(options)} if options else {}
    text = launch.run(module, ranks, program, options, threads=threads, show=show)
    rows = pd.read_csv(io.StringIO(text))
    rows.attrs["conditions"] = conditions(before, system())
    return rows


def handover(preset, show=None):
    """Hand-overs by every means."""
    few = {} if preset == "paper" else {"repeats": 2, "turns": 50}
    return _job(show, "handover", 2, **few)


def inference(preset, show=None):
    """RNNs by threads, ranks and GPUs: a sample over hidden units, a mini-batch, a
    stack.
    """
    few = {"repeats": 2, "steps": 10, "hidden": [128]} if preset == "smoke" else {}
    batch = {"batch": 64, "steps": 25, "hidden": [256, 512, 1024], "repeats": 10} | few
    stack = {"layers": 4, "hidden": [256, 512], "repeats": 10} | few
    jobs = few, batch, stack
    return together([_job(show, "inference", 2, threads=2, **job) for job in jobs])


def ranks(preset, show=None):
    """Training steps by replicas and by a pipeline; what each layer and the sums
    cost.
    """
    few = WIDE | {"repeats": 3} if preset == "paper" else SMALL_WIDE | {"repeats": 2}
    return together([_job(show, name, 2, **few) for name in ("speed", "costs")])


def partitions(preset, show=None):
    """S5's eight layers with an encoder and a decoder: every partition over two ranks,
    the encoder and the decoder on one, what each layer costs, and memory as layers are
    spread.
    """
    paper = preset == "paper"
    sizes = DEEP if paper else SMALL_DEEP
    few = sizes | {"repeats": 3 if paper else 2}
    apart = {"counts": [[1, 8, 1]], "cores": [0, 1, 0]}
    parts = [
        _job(show, "partitions", 2, **few),
        _job(show, "partitions", 3, **few, **apart),
        _job(show, "costs", 2, **few),
    ]
    for count in (1, 2, 5) if paper else (1, 2):
        parts.append(_job(show, "memory", count, **sizes))
    return together(parts)


def buckets(preset, show=None):
    """Epochs by the number of buckets, on one rank and as a pipeline of two."""
    few = {"repeats": 2, "counts": [1, 4], "strings": 64, "hidden": 16}
    if preset == "paper":
        few = {"repeats": 3, "counts": [1, 2, 4, 8], "strings": 320}
        few |= {"hidden": 256, "batch": 64}
    pipeline = {"stages": [1, 2], "micro_batches": 4}
    parts = [_job(show, "bucketing", 1, **few)]
    return together([*parts, _job(show, "bucketing", 2, **few, **pipeline)])


def learning(preset, show=None):
    """An LSTM and an RNN learn embedded Reber strings, as pipelines over buckets."""
    few = {"strings": 64, "hidden": 16, "epochs": 2}
    if preset == "paper":
        few = {"strings": 4000, "least": 25, "hidden": 128, "epochs": 14}
        few |= {"rate": 5e-3, "batch": 32}
    few |= {"layers": 1, "held_out": 512, "buckets": 4}
    few |= {"stages": [1, 1], "micro_batches": 4}
    cells = {"lstm": {"forget": 2.0}, "rnn": {}}
    parts = [
        _job(show, "training", 2, **few, cell=cell, **bias)
        for cell, bias in cells.items()
    ]
    return together(parts)


EXPERIMENTS = {
    "handover": handover,
    "inference": inference,
    "ranks": ranks,
    "partitions": partitions,
    "buckets": buckets,
    "learning": learning,
}


def main(preset="paper", folder=None):
    """Run every experiment and write its file; yields (experiment, rows, path)."""
    plan = {
        name: lambda run=run: run(preset, print) for name, run in EXPERIMENTS.items()
    }
    return results.fill(plan, preset=preset, folder=folder)


def job(words=None):
    """Run a program on this rank; rank 0 writes its rows."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}")
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--options", type=json.loads, default={}, help="a JSON object")
    parser.add_argument("--result", help="the path of a CSV file for the rows")
    chosen = parser.parse_args(words)

    def program(ranks_of_job):
        rows = PROGRAMS[chosen.program](ranks_of_job, **chosen.options)
        if ranks_of_job.rank == 0 and chosen.result:
            with writing(chosen.result, text=True) as file:
                rows.to_csv(file, index=False)

    world.main(program)


if __name__ == "__main__":
    job()

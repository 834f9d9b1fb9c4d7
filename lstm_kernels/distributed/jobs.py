"""The programs that ranks run: functions of a World and options, which return rows on rank 0."""

from functools import partial

import pandas as pd

from .. import data
from ..bench.timing import interleaved
from ..bench.workloads import Workload
from ..buckets import Bucketed, borders, equal_borders
from ..params import Params
from ..training import train as train_model
from ..versions import network
from .checkpoints import SharedCheckpoint
from .layers import TokenParams
from .parallel import Parallel, layer_names
from .planner import LayerCost, plan
from .world import World

TASKS = ("airline", "reber")


def training(
    world,
    task="reber",
    layers=2,
    hidden=16,
    cell="lstm",
    symbols=0,
    strings=64,
    least=9,
    epochs=2,
    batch=16,
    rate=0.01,
    optimizer="adam",
    stages="",
    micro_batches=1,
    order="fill-drain",
    overlap=1,
    buckets=0,
    equal=0,
    checkpoint="",
    resume=0,
    save="",
    seed=0,
    version="numba-fused",
    threads=1,
):
    """Train on the airline series or on the embedded Reber grammar; a row for each epoch.

    symbols: inputs of an embedding before the layers, 0 for none. stages: layers of each rank of a
    pipeline, as "2,2"; empty is one stage on every rank. buckets: 0 for none; equal: 1 for borders
    as far apart as each other. checkpoint, save: paths of files, for the state after each epoch and
    for the parameters at the end.
    """
    if task not in TASKS:
        raise ValueError(f"task: got {task!r}, want one of {', '.join(TASKS)}")
    sizes = {"num_layers": layers, "cell": cell, "seed": seed}
    if task == "airline":
        values = data.Growth(data.airline()).forward(data.airline())
        dataset, loss = data.windows(values, 12), "last"
        params = Params.init(1, hidden, output_size=1, **sizes)
    else:
        words, loss = data.Reber(least).strings(strings, seed=seed), "symbols"
        dataset, S = data.symbols(words), len(data.SYMBOLS)
        if symbols:
            params = TokenParams.init(S, symbols, hidden, **sizes)
        else:
            params = Params.init(S, hidden, output_size=S, **sizes)
        if buckets:
            lengths = [len(word) for word in words]
            dataset = Bucketed(dataset, (equal_borders if equal else borders)(lengths, buckets))
    how = {"micro_batches": micro_batches, "order": order, "overlap": bool(overlap)}
    how |= {"loss": loss, "version": version, "threads": threads}
    chosen = [int(word) for word in stages.split(",")] if stages else None
    model = Parallel(params, world, stages=chosen, **how)
    file = SharedCheckpoint(checkpoint, model) if checkpoint else None

    def show(history, _):
        world.say(f"epoch {history.epochs} of {epochs}: loss {history.loss[-1]:.6g}")

    options = {"optimizer": optimizer, "seed": seed, "progress": False, "on_epoch": show}
    history = train_model(
        model, dataset, epochs, batch, rate, checkpoint=file, resume=bool(resume), **options
    )
    final = model.gather()
    rows = pd.DataFrame(vars(history)).assign(epoch=range(1, history.epochs + 1))
    if world.rank == 0 and save:
        Params(final.layers, final.V, final.b_out, final.cell).save(save)
    return rows


def speed(world, ways="alone,step,data,data after", workload="4,100,512,512,64", repeats=5):
    """Time training steps of one workload by several ways, in one loop; a row per way and repeat.

    ways: of `alone` (one rank, as `Parallel`), `step` (one rank, the network's own fused step),
    `data` and `data after` (sums while computing, or after it), and pipelines `M order` of M
    micro-batches. workload: L,T,D,H,B.
    """
    work = Workload(*map(int, workload.split(",")))
    params, (x, target), cases = work.params(), work.example(), {}
    self = World(world.MPI.COMM_SELF)
    for way in ways.split(","):
        if way == "step":
            net = network("numba-fused", params, threads=1)
            call = partial(net.step, x, target, 1e-3)
        elif way == "alone":
            call = partial(Parallel(params, self).step, x, target, 1e-3)
        elif way.startswith("data"):
            model = Parallel(params, world, overlap=way == "data")
            call = partial(model.step, x, target, 1e-3)
        else:
            M, _, order = way.partition(" ")
            parts = [LayerCost(n, 1, 2) for n in layer_names(params)[:-1]]
            counts = [*plan(parts, world.size, int(M)).counts]
            counts[-1] += 1
            model = Parallel(params, world, stages=counts, micro_batches=int(M), order=order)
            call = partial(model.step, x, target, 1e-3)
        alone = way in ("alone", "step")
        cases[way] = partial(world.timed, call if world.rank == 0 or not alone else lambda: None)
    return interleaved(cases, repeats=repeats, least=0, own=True)


PROGRAMS = {"training": training, "speed": speed}

"""The programs that ranks run: functions of a World and options, which return rows on
rank 0.
"""

import time

import pandas as pd

from lstm_report.experiments.handover import handover, sums
from lstm_report.experiments.rank_speed import (
    bucketing,
    costs,
    memory,
    partitions,
    speed,
)

from .. import data
from ..errors import check_choice, check_ints
from ..params import Params
from ..strings import (
    SYMBOLS,
    Bucketed,
    NextSymbol,
    Reber,
    borders,
    equal_borders,
    one_hot,
    outer_accuracy,
)
from ..training import train as train_model
from ..versions import network
from .checkpoints import SharedCheckpoint
from .devices import DeviceReplica
from .layers import TokenParams
from .parallel import Parallel
from .rnn import inference

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
    loops=1,
    overlap=1,
    buckets=0,
    equal=0,
    forget=0.0,
    held_out=0,
    checkpoint="",
    resume=0,
    save="",
    seed=0,
    version="numba-fused",
    threads=1,
):
    """Train on the airline series or on the embedded Reber grammar; a row for each
    epoch.

    symbols: inputs of an embedding before the layers, 0 for none. forget: added to the
    bias of an LSTM's forget gate at the start. stages: layers of each rank of a
    pipeline, as "2,2", or of each stage, where a rank has one in each of `loops`; empty
    is one stage on every rank. buckets: 0 for none; equal: 1 for borders as far apart
    as each other. checkpoint, save: paths of files, for the state after each epoch and
    for the parameters at the end. held_out: so many other strings to judge by at the
    end, a row more, stage "held out": their loss, and as `accuracy` the share of outer
    symbols predicted.
    """
    check_choice("task", task, TASKS)
    sizes = {"num_layers": layers, "cell": cell, "seed": seed}
    if task == "airline":
        passengers = data.airline().to_numpy(float)
        values = data.LogDifference.fit(passengers).forward(passengers)
        dataset, loss = data.windows(values, 12), "last"
        params = Params.init(1, hidden, output_size=1, **sizes)
    else:
        words, loss = Reber(least).strings(strings, seed=seed), "symbols"
        dataset, S = one_hot(words), len(SYMBOLS)
        if symbols:
            params = TokenParams.init(S, symbols, hidden, **sizes)
        else:
            params = Params.init(S, hidden, output_size=S, **sizes)
        if buckets:
            lengths = [len(word) for word in words]
            dataset = Bucketed(
                dataset, (equal_borders if equal else borders)(lengths, buckets)
            )
    for layer in params.layers if cell == "lstm" else ():
        layer.b[hidden : 2 * hidden] += forget  # of gate f
    how = {
        "micro_batches": micro_batches,
        "order": order,
        "loops": loops,
        "overlap": bool(overlap),
    }
    how |= {"loss": loss, "version": version, "threads": threads}
    chosen = check_ints("stages", stages) if stages else None
    if version == "cuda-fused":
        if loss != "last" or chosen or micro_batches > 1:
            want = "task airline, no stages and one micro-batch"
            raise ValueError(
                f"version: got 'cuda-fused', which shares the samples, want {want}"
            )
        model = DeviceReplica(params, world)
    else:
        model = Parallel(params, world, stages=chosen, **how)
    file = SharedCheckpoint(checkpoint, model) if checkpoint else None

    def show(history, _):
        world.say(f"epoch {history.epochs} of {epochs}: loss {history.loss[-1]:.6g}")

    options = {
        "optimizer": optimizer,
        "seed": seed,
        "progress": False,
        "on_epoch": show,
    }
    history = train_model(
        model,
        dataset,
        epochs,
        batch,
        rate,
        checkpoint=file,
        resume=bool(resume),
        **options,
    )
    final = model.gather()
    rows = pd.DataFrame(vars(history)).assign(
        repeat=range(history.epochs), stage="epoch"
    )
    if world.rank == 0 and save:
        final.save(save)
    if world.rank == 0 and held_out:
        rows = pd.concat(
            [rows, _judged(final, Reber(least).strings(held_out, seed=seed + 1))]
        )
    sizes = {"L": layers, "H": hidden, "B": batch, "N": len(dataset)}
    return rows.assign(version=cell, ranks=world.size, **sizes)


def _judged(params, words):
    """A row: the loss of other strings, and the share of those whose outer symbol is
    predicted.
    """
    model, start = (
        NextSymbol(network("numba-fused", params, threads=1)),
        time.perf_counter(),
    )
    row = {
        "loss": model.loss(one_hot(words).x),
        "accuracy": outer_accuracy(model, words),
    }
    row |= {"stage": "held out", "repeat": 0, "seconds": time.perf_counter() - start}
    return pd.DataFrame([row])


PROGRAMS = {
    "training": training,
    "speed": speed,
    "costs": costs,
    "partitions": partitions,
    "memory": memory,
    "bucketing": bucketing,
    "handover": handover,
    "sums": sums,
    "inference": inference,
}

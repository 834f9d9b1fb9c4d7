"""`mpiexec -n RANKS python -m lstm_kernels.ranks training --option value`: all ranks
train one model of the embedded Reber grammar.
"""

import argparse
import csv
import time
from pathlib import Path

from ..cells import CELLS
from ..errors import check_int
from ..files import check_place, writing
from ..params import Params
from ..strings import (
    SYMBOLS,
    Bucketed,
    NextSymbol,
    Reber,
    borders,
    one_hot,
    outer_accuracy,
)
from ..training import train
from ..versions import network
from .parallel import Parallel
from .world import main


def parser():
    top = argparse.ArgumentParser(
        prog="python -m lstm_kernels.ranks",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = top.add_argument
    add("program", choices=["training"], help="by Adam; a row for each epoch")
    add("--layers", type=int, default=2, help="recurrent layers")
    add("--hidden", type=int, default=16, help="hidden units of each")
    add("--cell", choices=tuple(CELLS), default="lstm", help="of the layers")
    add("--forget", type=float, default=0.0, help="added to an LSTM's forget bias")
    add("--strings", type=int, default=64, help="of the grammar, to learn from")
    add("--least", type=int, default=9, help="symbols that a string has")
    add("--buckets", type=int, help="groups of strings by length")
    add("--held-out", type=int, help="other strings, to judge by at the end")
    add("--epochs", type=int, default=2, help="passes over the strings")
    add("--batch", type=int, default=16, help="strings of a step")
    add("--rate", type=float, default=0.01, help="learning rate")
    add("--stages", type=int, nargs="+", help="layers of each rank of a pipeline")
    add("--micro-batches", type=int, default=1, help="parts of a replica's share")
    checkpoint = "path of the state after each epoch; goes on from one that is there"
    add("--checkpoint", help=checkpoint)
    add("--result", help="path of a CSV file for the rows")
    return top


def run(world, options):
    """Train; rank 0 writes the files. What is wrong is an error before any step."""
    dataset, params, held_out = world.agreed(lambda: _task(options))
    model = Parallel(
        params,
        world,
        stages=options.stages,
        micro_batches=options.micro_batches,
        loss="symbols",
    )

    def show(history, _):
        if world.rank == 0:
            done = f"epoch {history.epochs} of {options.epochs}"
            print(f"{done}: loss {history.loss[-1]:.6g}", flush=True)

    file = options.checkpoint
    resume = world.comm.bcast(file is not None and Path(file).exists())
    history = train(
        model,
        dataset,
        options.epochs,
        options.batch,
        options.rate,
        optimizer="adam",
        progress=False,
        checkpoint=file,
        resume=resume,
        on_epoch=show,
    )
    trained = Params.from_arrays(model.gather(), options.cell)
    if world.rank == 0 and options.result:
        epochs = zip(history.loss, history.seconds, strict=True)
        rows = [
            {"stage": "epoch", "repeat": k, "loss": loss, "seconds": seconds}
            for k, (loss, seconds) in enumerate(epochs)
        ]
        rows += [_judged(trained, held_out)] if held_out else []
        sizes = {"version": options.cell, "ranks": world.size, "L": options.layers}
        sizes |= {"H": options.hidden, "B": options.batch, "N": len(dataset)}
        with writing(options.result, text=True) as file:
            names = ["stage", "repeat", "loss", "accuracy", "seconds", *sizes]
            table = csv.DictWriter(file, names)
            table.writeheader()
            table.writerows(row | sizes for row in rows)


def _task(options):
    """The data set, the parameters at the start, and the strings to judge by."""
    if options.result:
        check_place("result", options.result)
    if options.forget and options.cell != "lstm":
        got = f"{options.forget} with cell {options.cell!r}"
        raise ValueError(f"forget: got {got}, want 0")
    grammar, held_out, S = Reber(options.least), [], len(SYMBOLS)
    strings = grammar.strings(options.strings)
    dataset = one_hot(strings)
    if options.held_out is not None:
        held_out = grammar.strings(options.held_out, seed=1)
    if options.buckets is not None:
        lengths = [len(string) for string in strings]
        check_int("buckets", options.buckets, 1, len({*lengths}))  # a length in each
        dataset = Bucketed(dataset, borders(lengths, options.buckets))
    params = Params.init(
        S,
        options.hidden,
        num_layers=options.layers,
        output_size=S,
        cell=options.cell,
    )
    for layer in params.layers if options.forget else ():
        layer.b[options.hidden : 2 * options.hidden] += options.forget  # of gate f
    return dataset, params, held_out


def _judged(params, strings):
    """A row: the loss of other strings, and the share of those whose outer symbol is
    predicted.
    """
    start = time.perf_counter()
    model = NextSymbol(network("numba-fused", params, threads=1))
    loss = model.loss(one_hot(strings).x)
    row = {"stage": "held out", "repeat": 0, "loss": loss}
    row |= {"accuracy": outer_accuracy(model, strings)}
    return row | {"seconds": time.perf_counter() - start}


if __name__ == "__main__":
    chosen = parser().parse_args()
    main(lambda world: run(world, chosen))

"""`mpiexec -n RANKS python -m lstm_kernels.ranks training --option value`: train one
model by all ranks.
"""

import argparse
import csv
import time

from .. import data
from ..cells import CELLS
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
from ..training import OPTIMIZERS, train
from ..versions import network
from .parallel import Parallel
from .world import main

TASKS = ("airline", "reber")


def parser():
    top = argparse.ArgumentParser(
        prog="python -m lstm_kernels.ranks", description=__doc__, allow_abbrev=False
    )
    programs = top.add_subparsers(required=True, metavar="PROGRAM")
    about = "the airline series or the embedded Reber grammar; a row for each epoch"
    training = programs.add_parser(
        "training",
        help=about,
        description=about,
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = training.add_argument
    add("--task", choices=TASKS, default="reber", help="what to learn")
    add("--layers", type=int, default=2, help="recurrent layers")
    add("--hidden", type=int, default=16, help="hidden units of each")
    add("--cell", choices=tuple(CELLS), default="lstm", help="of the layers")
    add("--forget", type=float, default=0.0, help="added to an LSTM's forget bias")
    add("--strings", type=int, default=64, help="of the grammar, to learn from")
    add("--least", type=int, default=9, help="symbols that a string has")
    add("--buckets", type=int, help="groups of strings by length")
    add("--held-out", type=int, help="other strings, to judge by at the end")
    add("--epochs", type=int, default=2, help="passes over the examples")
    add("--batch", type=int, default=16, help="examples of a step")
    add("--rate", type=float, default=0.01, help="learning rate")
    add("--optimizer", choices=tuple(OPTIMIZERS), default="adam", help="rule of a step")
    add("--stages", type=int, nargs="+", help="layers of each rank of a pipeline")
    add("--micro-batches", type=int, default=1, help="parts of a replica's share")
    add("--seed", type=int, default=0, help="of parameters, strings and orders")
    add("--version", default="numba-fused", help="of the networks")
    add("--threads", type=int, default=1, help="of each network")
    add("--checkpoint", help="path of the state after each epoch")
    add("--resume", action=argparse.BooleanOptionalAction, help="from the checkpoint")
    add("--save", help="path of the parameters at the end")
    add("--result", help="path of a CSV file for the rows")
    training.set_defaults(run=run)
    return top


def run(world, options):
    """Train; rank 0 writes the files. What is wrong is an error before any step."""
    dataset, params, held_out = world.agreed(lambda: _task(options))
    loss = "last" if options.task == "airline" else "symbols"
    model = Parallel(
        params,
        world,
        stages=options.stages,
        micro_batches=options.micro_batches,
        loss=loss,
        version=options.version,
        threads=options.threads,
    )

    def show(history, _):
        if world.rank == 0:
            done = f"epoch {history.epochs} of {options.epochs}"
            print(f"{done}: loss {history.loss[-1]:.6g}", flush=True)

    history = train(
        model,
        dataset,
        options.epochs,
        options.batch,
        options.rate,
        optimizer=options.optimizer,
        seed=options.seed,
        progress=False,
        checkpoint=options.checkpoint,
        resume=bool(options.resume),
        on_epoch=show,
    )
    final = model.gather()
    if world.rank == 0:
        epochs = zip(history.loss, history.seconds, strict=True)
        rows = [
            {"stage": "epoch", "repeat": k, "loss": loss, "seconds": seconds}
            for k, (loss, seconds) in enumerate(epochs)
        ]
        rows += [_judged(final, held_out)] if held_out else []
        sizes = {"version": options.cell, "ranks": world.size, "L": options.layers}
        sizes |= {"H": options.hidden, "B": options.batch, "N": len(dataset)}
        if options.save:
            final.save(options.save)
        if options.result:
            with writing(options.result, text=True) as file:
                names = ["stage", "repeat", "loss", "accuracy", "seconds", *sizes]
                table = csv.DictWriter(file, names)
                table.writeheader()
                table.writerows(row | sizes for row in rows)


def _task(options):
    """The data set, the parameters at the start, and the strings to judge by."""
    for name in ("save", "result"):
        if getattr(options, name):
            check_place(name, getattr(options, name))
    held_out, cell = [], options.cell
    sizes = {"num_layers": options.layers, "cell": cell, "seed": options.seed}
    if options.task == "airline":
        for name in ("buckets", "held_out"):
            if (value := getattr(options, name)) is not None:
                raise ValueError(f"{name}: got {value} with task 'airline', want none")
        passengers = data.airline().to_numpy(float)
        values = data.LogDifference.fit(passengers).forward(passengers)
        dataset = data.windows(values, 12)
        params = Params.init(1, options.hidden, output_size=1, **sizes)
    else:
        grammar, S = Reber(options.least), len(SYMBOLS)
        strings = grammar.strings(options.strings, seed=options.seed)
        dataset = one_hot(strings)
        if options.held_out is not None:
            held_out = grammar.strings(options.held_out, seed=options.seed + 1)
        if options.buckets is not None:
            lengths = [len(string) for string in strings]
            dataset = Bucketed(dataset, borders(lengths, options.buckets))
        params = Params.init(S, options.hidden, output_size=S, **sizes)
    if options.forget and cell != "lstm":
        raise ValueError(f"forget: got {options.forget} with cell {cell!r}, want 0")
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
    main(lambda world: chosen.run(world, chosen))

"""`python -m lstm_kernels`: the versions, and which of them can run here. `bench` times
these, `train` trains the airline network.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np

from . import __version__, cores, data, network, versions
from .errors import UnavailableError, why_not_compiled
from .params import Params
from .training import OPTIMIZERS, train

# What input, a machine, a file or a package that is missing can be the cause of: one
# line, no traceback.
ERRORS = (ValueError, TypeError, OSError, RuntimeError, ArithmeticError, MemoryError)
ERRORS += (ModuleNotFoundError,)
FIRST, WINDOW = 120, 12  # the first month that is forecast, and months of an input


def ladder(options: argparse.Namespace) -> None:
    """Print every version, for those that cannot run here the reason, and how many
    threads.
    """
    name, summary = (
        max(len(getattr(v, k)) for v in versions()) for k in ("name", "summary")
    )
    for version in versions():
        why = version.why_unavailable
        form = f"{version.name:{name}}  {version.target:4} {version.summary:{summary}}"
        print(f"{form} no: {why}" if why else f"{form} runs here")
    print(f"\nBy default a version that is parallel takes {cores.why()}.")
    if why_not_compiled():
        return
    from .kernels import numbas_threads  # what only one command needs, as below

    if (most := numbas_threads()) < cores.cores():
        print(f"Numba's take {most}: NUMBA_NUM_THREADS allows no more.")


def bench(options: argparse.Namespace) -> None:
    """Time inference and a training step of versions, by default of all that can run
    here, after a first call, which compiles. Writes no file.
    """
    L, T, B, H = options.layers, options.steps, options.batch_size, options.hidden
    params, rng = (
        Params.init(1, H, num_layers=L, output_size=1),
        np.random.default_rng(0),
    )
    x, target = (rng.standard_normal((*n, 1)).astype("f4") for n in ((T, B), (B,)))
    print(f"{L} layers of {H} units, {T} steps, {B} samples; median milliseconds")
    print(f"{'':16}{'forward':>12}{'step':>12}")
    for name in options.names or [v.name for v in versions() if not v.why_unavailable]:
        net = network(name, params)
        print(f"{name:16}", end="", flush=True)
        for call in (partial(net.forward, x), partial(net.step, x, target, 1e-4)):
            print(f"{_time(call, options.seconds):>12}", end="", flush=True)
        print()


def _time(call, seconds):
    """The median time of a call, of at least three that take so long in all."""
    times = []
    try:
        call()
    except UnavailableError:  # of a version that does not train
        return "-"
    while len(times) < 3 or sum(times) < seconds:
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return f"{1e3 * median(times):.3g}"


def train_airline(options: argparse.Namespace) -> None:
    """Train on 1949-1958 and forecast 1959-1960 one month ahead."""
    from . import forecast

    passengers = data.airline().to_numpy(float)
    transform = data.LogDifference.fit(passengers[:FIRST])
    dataset = data.windows(transform.forward(passengers[:FIRST]), WINDOW)
    params = Params.init(1, options.hidden, output_size=1, seed=options.seed)
    net = network(options.version, params)
    history = train(
        net,
        dataset,
        options.epochs,
        options.batch_size,
        options.learning_rate,
        optimizer=options.optimizer,
        seed=options.seed,
        checkpoint=options.checkpoint,
        resume=options.resume,
    )
    rule = forecast.network_rule(net, transform, window=WINDOW)
    predicted = forecast.one_step(rule, passengers, first=FIRST)
    errors = forecast.errors(predicted, passengers[FIRST:])
    time, loss = sum(history.seconds), history.loss[-1]
    print(f"{history.epochs} epochs in {time:.2f} s, loss {loss:.4g}")
    figures = ", ".join(f"{name} {value:.2f}" for name, value in errors.items())
    print(f"1959-1960, one month ahead: {figures}")


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Call `options.run`; what its input, the machine or a file is the cause of ends it
    in a line.
    """
    try:
        options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt as stop:
        saved = getattr(options, "checkpoint", None)
        resume = ""
        if saved and os.path.exists(saved):
            resume = f"; --checkpoint {saved} --resume goes on"
        parser.exit(130, f"{parser.prog}: {str(stop) or 'interrupted'}{resume}\n")
    except BrokenPipeError:  # who reads has enough, as `head` does
        # Else Python complains when it flushes what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        parser.exit(1)
    except ERRORS as error:
        parser.exit(2, f"{parser.prog}: {str(error) or 'out of memory'}\n")


def main(words: Sequence[str] | None = None) -> None:
    """Run the command that the words name; without one, print the ladder."""
    parser = argparse.ArgumentParser(prog="python -m lstm_kernels", description=__doc__)
    parser.add_argument(
        "--version", action="version", version=f"lstm_kernels {__version__}"
    )
    parser.set_defaults(run=ladder)
    commands = parser.add_subparsers()
    part = _command(commands, "bench", bench, "time the versions that can run here")
    part.add_argument("names", nargs="*", help="of versions; without one, all")
    numbers = {
        "layers": (1, "of the network"),
        "hidden": (32, "hidden units of each"),
        "steps": (12, "of a sample"),
        "batch-size": (16, "samples"),
    }
    _add_numbers(part, numbers)
    seconds = {
        "type": float,
        "default": 0.5,
        "help": "that calls of each take at least",
    }
    part.add_argument("--seconds", **seconds)
    part = _command(
        commands, "train", train_airline, "train the airline network and forecast"
    )
    part.add_argument("--version", default="numba-fused", help="a name of the ladder")
    numbers = {
        "epochs": (200, "passes over the training windows"),
        "batch-size": (16, "windows of a mini-batch"),
        "hidden": (32, "hidden units"),
        "seed": (0, "of the first parameters and the shuffles"),
    }
    _add_numbers(part, numbers)
    rates = {"type": float, "default": 3e-3, "help": "of the optimizer's steps"}
    part.add_argument("--learning-rate", **rates)
    part.add_argument(
        "--optimizer", choices=OPTIMIZERS, default="adam", help="rule of an update"
    )
    part.add_argument("--checkpoint", help="file written after each epoch")
    part.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    run(parser, parser.parse_args(words))


def _command(commands, name, function, about):
    part = commands.add_parser(
        name,
        help=about,
        description=function.__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    part.set_defaults(run=function)
    return part


def _add_numbers(part, numbers):
    for name, (default, about) in numbers.items():
        part.add_argument(f"--{name}", type=int, default=default, help=about)


if __name__ == "__main__":
    main()

"""`python -m lstm_kernels`: the versions, and which of them can run here. `bench` times
these, `train` trains the airline network.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from statistics import median
from time import perf_counter

import numpy as np

from . import __version__, cores, data, forecast, network, versions
from .errors import counted, why_not_compiled
from .params import Params
from .training import train

# What input, a machine, a file or a package that is missing can be the cause of: one
# line, no traceback.
ERRORS: tuple[type[Exception], ...] = (ValueError, TypeError, OSError, RuntimeError)
ERRORS += ArithmeticError, MemoryError, ModuleNotFoundError
FIRST, WINDOW = 120, 12  # the first month that is forecast, and months of an input


def ladder(options: argparse.Namespace) -> None:
    """Print every version, for those that cannot run here the reason, and how many
    threads.
    """
    width = max(len(version.summary) for version in versions())
    for version in versions():
        why = version.why_unavailable
        can = f"no: {why}" if why else "runs here"
        print(f"{version.name:16} {version.target:4} {version.summary:{width}} {can}")
    print(f"\nBy default a version that is parallel takes {cores.why()}.")
    if why_not_compiled():
        return
    from .kernels import numbas_threads  # what only one command needs

    if (most := numbas_threads()) < cores.cores():
        print(f"Numba's take {most}: NUMBA_NUM_THREADS allows no more.")


def bench(options: argparse.Namespace) -> None:
    """Time inference and a training step of versions, by default of all that can run
    here, after a first call, which compiles. Writes no file.
    """
    L, T, B, H = options.layers, options.steps, options.batch_size, options.hidden
    params = Params.init(1, H, num_layers=L, output_size=1)
    x, target = np.ones((T, B, 1), np.float32), np.ones((B, 1), np.float32)
    names = options.names or [v.name for v in versions() if not v.why_unavailable]
    nets = [network(name, params) for name in names]
    sizes = f"{counted(L, 'layer')} of {H} units, {T} steps, {B} samples"
    print(f"{sizes}; median milliseconds")
    print(f"{'':16}{'forward':>12}{'step':>12}")
    for name, net in zip(names, nets, strict=True):
        forward = _median_ms(lambda net: net.forward(x), net)
        step = _median_ms(lambda net: net.step(x, target, 1e-4), net)
        print(f"{name:16}{forward:12.3g}{step:12.3g}", flush=True)


def _median_ms(call, net, least=3, seconds=0.5):
    """The median of at least so many calls, which take so long in all."""
    call(net)
    times = []
    while len(times) < least or sum(times) < seconds:
        start = perf_counter()
        call(net)
        times.append(perf_counter() - start)
    return 1e3 * median(times)


def train_airline(options: argparse.Namespace) -> None:
    """Train on 1949-1958 and forecast 1959-1960 one month ahead."""
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
        print(end="", flush=True)  # there may be no standard output
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
    release = f"lstm_kernels {__version__}"
    parser.add_argument("--version", action="version", version=release)
    parser.set_defaults(run=ladder)
    commands = parser.add_subparsers()
    add = _command(commands, "bench", bench, "time the versions that can run here")
    add("names", nargs="*", help="of versions; without one, all")
    add("--layers", type=int, default=1, help="of the network")
    add("--hidden", type=int, default=32, help="hidden units of each")
    add("--steps", type=int, default=12, help="of a sample")
    add("--batch-size", type=int, default=16, help="samples")
    about = "train the airline network and forecast"
    add = _command(commands, "train", train_airline, about)
    add("--version", default="numba-fused", help="as `python -m lstm_kernels` lists")
    add("--epochs", type=int, default=200, help="passes over the training windows")
    add("--batch-size", type=int, default=16, help="windows of a mini-batch")
    add("--hidden", type=int, default=32, help="hidden units")
    add("--seed", type=int, default=0, help="of the first parameters and the shuffles")
    add("--learning-rate", type=float, default=0.2, help="of gradient descent")
    add("--checkpoint", help="file written after each epoch")
    add("--resume", action="store_true", help="go on from the checkpoint")
    run(parser, parser.parse_args(words))


def _command(commands, name, function, about):
    form = argparse.ArgumentDefaultsHelpFormatter
    parser_options = {
        "help": about,
        "description": function.__doc__,
        "formatter_class": form,
    }
    part = commands.add_parser(name, **parser_options)
    part.set_defaults(run=function)
    return part.add_argument


if __name__ == "__main__":
    main()

"""`python -m lstm_kernels`: the ladder; `train` trains the airline network, `bench` and
the others measure, where the report is installed too.
"""

import argparse
import importlib
import sys
from importlib.util import find_spec
from os.path import exists

from . import __version__, cores, data, network, versions
from .errors import why_not_compiled
from .params import Params
from .training import OPTIMIZERS, train

# What input, a machine, a file or a package that is missing can be the cause of: one
# line, no traceback.
ERRORS = (ValueError, TypeError, OSError, RuntimeError, ArithmeticError, MemoryError)
ERRORS += (ModuleNotFoundError,)
# Commands of lstm_report, which measure: the wheel comes without it.
REPORT = ("bench", "bench-peers", "bench-ranks", "gpu")
FIRST, WINDOW = 120, 12  # the first month that is forecast, and months of an input


def ladder():
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


def train_airline(options):
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


def run(parser, options):
    """Run a command; what its input, the machine or a file is the cause of ends it in a
    line.
    """
    try:
        options.run(options)
    except KeyboardInterrupt as stop:
        saved = getattr(options, "checkpoint", None)
        resume = ""
        if saved and exists(saved):
            resume = f"; --checkpoint {saved} --resume goes on"
        parser.exit(130, f"{parser.prog}: {str(stop) or 'interrupted'}{resume}\n")
    except ERRORS as error:
        parser.exit(2, f"{parser.prog}: {str(error) or 'out of memory'}\n")


def main(words=None):
    """Run the command that the words name; without one, print the ladder."""
    words = sys.argv[1:] if words is None else words
    parser = argparse.ArgumentParser(prog="python -m lstm_kernels", description=__doc__)
    if words[:1] and words[0] in REPORT:
        if find_spec("lstm_report") is None:
            want = "lstm_report, which comes with the repository"
            parser.exit(2, f"{parser.prog}: {words[0]} wants {want}\n")
        return importlib.import_module("lstm_report.__main__").main(words)
    parser.add_argument(
        "--version", action="version", version=f"lstm_kernels {__version__}"
    )
    commands = parser.add_subparsers()
    part = commands.add_parser(
        "train",
        help="train the airline network and forecast",
        description=train_airline.__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    part.add_argument("--version", default="numba-fused", help="a name of the ladder")
    numbers = {
        "epochs": (200, "passes over the training windows"),
        "batch-size": (16, "windows of a mini-batch"),
        "hidden": (32, "hidden units"),
        "seed": (0, "of the first parameters and the shuffles"),
    }
    for name, (default, about) in numbers.items():
        part.add_argument(f"--{name}", type=int, default=default, help=about)
    rates = {"type": float, "default": 3e-3, "help": "of the optimizer's steps"}
    part.add_argument("--learning-rate", **rates)
    part.add_argument(
        "--optimizer", choices=OPTIMIZERS, default="adam", help="rule of an update"
    )
    part.add_argument("--checkpoint", help="file written after each epoch")
    part.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    part.set_defaults(run=train_airline)
    options = parser.parse_args(words)
    run(parser, options) if hasattr(options, "run") else ladder()


if __name__ == "__main__":
    main()

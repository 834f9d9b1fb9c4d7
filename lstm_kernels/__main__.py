"""`python -m lstm_kernels`: the ladder; `bench` measures it on this machine, `train` trains the
airline network.
"""

import argparse
import importlib
import os
from os.path import exists

from . import cores, data, network, versions
from .params import Params
from .training import OPTIMIZERS, train

# What input, a machine or a file can be the cause of: one line, no traceback.
ERRORS = (ValueError, TypeError, OSError, RuntimeError, ArithmeticError, MemoryError)


def ladder():
    """Print every version, for those that cannot run here the reason, and how many threads."""
    import numba  # here and below: what only one command needs

    name, summary = (max(len(getattr(v, k)) for v in versions()) for k in ("name", "summary"))
    for version in versions():
        state = f"no: {version.why_unavailable}" if version.why_unavailable else "runs here"
        state += f" ({version.way})" if version.way else ""
        print(f"{version.name:{name}}  {version.target:4} {version.summary:{summary}} {state}")
    print(f"\nBy default a version that is parallel takes {cores.why()}.")
    if (most := numba.get_num_threads()) < cores.cores():
        print(f"Numba's take {most}: NUMBA_NUM_THREADS allows no more.")


def bench(options):
    """Measure, write a results file for each experiment, and print its medians."""
    from .bench import runner

    experiments = importlib.import_module(f".{options.module}", __package__)
    for experiment, rows, path in experiments.main(options.preset, options.folder):
        print(f"\n{experiment}: median seconds, written to {path}")
        print(runner.medians(rows).to_string())


def gpu(options):
    """Verify the GPU versions on the device, measure and check them; write the results."""
    from .bench import gpu_run, runner

    if options.commit:
        os.environ["LSTM_KERNELS_COMMIT"] = options.commit
    for name, result, path in gpu_run.main(options.preset, options.folder, options.minutes):
        if isinstance(result, str):
            print(f"\n{name}: {result}, written to {path}", flush=True)
        else:
            print(f"\n{name}: median seconds, written to {path}")
            print(runner.medians(result).to_string(), flush=True)


def train_airline(options):
    """Train on 1949-1958 and forecast 1959-1960 one month ahead."""
    from . import forecast

    passengers, first, window = data.airline().to_numpy(float), 120, 12
    transform = data.LogDifference.fit(passengers[:first])
    dataset = data.windows(transform.forward(passengers[:first]), window)
    params = Params.init(1, options.hidden, output_size=1, seed=options.seed)
    net, sizes = network(options.version, params), (options.epochs, options.batch_size)
    how = {name: getattr(options, name) for name in ("optimizer", "seed", "checkpoint", "resume")}
    history = train(net, dataset, *sizes, options.learning_rate, **how)
    rule = forecast.network_rule(net, transform, window=window)
    predicted = forecast.one_step(rule, passengers, first=first)
    errors = forecast.errors(predicted, passengers[first:])
    print(f"{history.epochs} epochs in {sum(history.seconds):.2f} s, loss {history.loss[-1]:.4g}")
    print("1959-1960, one month ahead: " + ", ".join(f"{k} {v:.2f}" for k, v in errors.items()))


def main(words=None):
    parser = argparse.ArgumentParser(prog="python -m lstm_kernels", description=__doc__)
    commands = parser.add_subparsers()
    for name, run, module, about in (
        ("bench", bench, "bench.experiments", "measure every version on this machine"),
        ("bench-peers", bench, "bench.peers", "measure beside PyTorch, JAX and ONNX Runtime"),
        ("bench-study", bench, "bench.study", "notebook 06: batches, compilers, low rank"),
        ("bench-ranks", bench, "distributed.experiments", "notebooks 08 and 09: several ranks"),
        ("bench-bf16", bench, "bench.bfloat16", "notebook 10: products in bfloat16"),
        ("bench-isa", bench, "bench.isa", "the same on each instruction set of this CPU"),
        ("gpu", gpu, "bench.gpu_run", "verify and measure the GPU versions on this machine's GPU"),
    ):
        part = commands.add_parser(name, help=about)
        part.add_argument("--preset", choices=("smoke", "paper"), default="paper")
        part.add_argument(
            "--folder",
            help="default data/results/ of the repository, else ./results/; smoke has its own",
        )
        part.set_defaults(run=run, module=module)
    # Of the last of these, gpu.
    part.add_argument("--minutes", type=float, default=8.0, help="the most it takes; default 8")
    part.add_argument("--commit", help="what to record where there is no repository to ask")
    part = commands.add_parser("train", help="train the airline network and forecast")
    part.add_argument("--version", default="numba-sample")
    for name, default in {"epochs": 200, "batch-size": 16, "hidden": 32, "seed": 0}.items():
        part.add_argument(f"--{name}", type=int, default=default)
    part.add_argument("--learning-rate", type=float, default=3e-3)
    part.add_argument("--optimizer", choices=OPTIMIZERS, default="adam")
    part.add_argument("--checkpoint")
    part.add_argument("--resume", action="store_true")
    part.set_defaults(run=train_airline)
    options = parser.parse_args(words)
    if hasattr(options, "run"):
        try:
            options.run(options)
        except KeyboardInterrupt as stop:
            saved = getattr(options, "checkpoint", None)
            on = f"; --checkpoint {saved} --resume goes on" if saved and exists(saved) else ""
            parser.exit(130, f"{parser.prog}: {str(stop) or 'interrupted'}{on}\n")
        except ERRORS as error:
            parser.exit(2, f"{parser.prog}: {str(error) or 'out of memory'}\n")
    else:
        ladder()


if __name__ == "__main__":
    main()

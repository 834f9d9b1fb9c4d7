"""`python -m lstm_report`: the measurements behind the pages, each written as results
files.
"""

import argparse
import importlib
import os

from lstm_kernels.__main__ import run

from .measure import runner


def bench(options):
    """Measure, write a results file for each experiment, and print its medians."""
    experiments = importlib.import_module(f".{options.module}", __package__)
    for experiment, rows, path in experiments.main(options.preset, options.folder):
        print(f"\n{experiment}: median seconds, written to {path}")
        print(runner.medians(rows).to_string())


def gpu(options):
    """Verify the GPU versions on the device, measure and check them; write the
    results.
    """
    from .experiments import gpu_run

    if options.commit:
        os.environ["LSTM_KERNELS_COMMIT"] = options.commit
    for name, result, path in gpu_run.main(
        options.preset, options.folder, options.minutes
    ):
        if isinstance(result, str):
            print(f"\n{name}: {result}, written to {path}", flush=True)
        else:
            print(f"\n{name}: median seconds, written to {path}")
            print(runner.medians(result).to_string(), flush=True)


COMMANDS = (
    (
        "bench",
        bench,
        "experiments.experiments",
        "measure every version on this machine",
    ),
    (
        "bench-peers",
        bench,
        "measure.peers",
        "measure beside PyTorch, JAX and ONNX Runtime",
    ),
    (
        "bench-study",
        bench,
        "experiments.study",
        "notebook 06: batches, compilers, low rank",
    ),
    ("bench-ranks", bench, "experiments.ranks", "notebooks 08 and 09: several ranks"),
    ("bench-bf16", bench, "experiments.bfloat16", "notebook 10: products in bfloat16"),
    (
        "gpu",
        gpu,
        "experiments.gpu_run",
        "verify and measure the GPU versions on this machine's GPU",
    ),
)


def main(words=None):
    parser = argparse.ArgumentParser(prog="python -m lstm_kernels", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for name, command, module, about in COMMANDS:
        part = commands.add_parser(name, help=about)
        part.add_argument("--preset", choices=("smoke", "paper"), default="paper")
        part.add_argument(
            "--folder",
            help="default data/results/ of the repository, else ./results/; smoke has its own",
        )
        part.set_defaults(run=command, module=module)
    # Of the last of these, gpu.
    part.add_argument(
        "--minutes", type=float, default=8.0, help="the most it takes; default 8"
    )
    part.add_argument(
        "--commit", help="what to record where there is no repository to ask"
    )
    run(parser, parser.parse_args(words))


if __name__ == "__main__":
    main()

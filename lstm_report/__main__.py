"""`python -m lstm_report`: the measurements behind the pages, each written as results
files.
"""

import argparse
import importlib
import os
from collections.abc import Sequence
from pathlib import Path

from lstm_kernels.__main__ import run
from lstm_kernels.errors import extra

EXTRA = "'.[report]', in the folder of the repository"


def bench(options: argparse.Namespace) -> None:
    """Measure, write a results file for each experiment, and print its medians."""
    with extra(EXTRA):
        from .measure import runner

        experiments = importlib.import_module(f".{options.module}", __package__)
    for experiment, rows, path in experiments.main(options.preset, options.folder):
        print(f"\n{experiment}: median seconds, written to {path}")
        print(runner.medians(rows).to_string(), flush=True)


def gpu(options: argparse.Namespace) -> None:
    """Verify the GPU versions on the device, measure and check them; write the
    results.
    """
    with extra(EXTRA):
        from . import archives
        from .experiments import gpu_run
        from .measure import runner

    if options.commit:
        os.environ["LSTM_KERNELS_COMMIT"] = options.commit
    path, where = None, Path(options.archive or ".").parent
    if not where.is_dir():
        raise ValueError(f"archive: got {options.archive}, want a folder that exists")
    try:
        done = gpu_run.main(options.preset, options.folder, options.minutes)
        for name, result, path in done:
            if isinstance(result, str):
                print(f"\n{name}: {result}, written to {path}", flush=True)
            else:
                print(f"\n{name}: median seconds, written to {path}")
                print(runner.medians(result).to_string(), flush=True)
    finally:  # what was measured, where parts failed too
        if options.archive and path:
            print(f"\n{archives.packed(path.parent, Path(options.archive))}")


def take(options: argparse.Namespace) -> None:
    """Check an archive of a GPU's measurements, or the run that `make report` left, and
    put it into data/results/.
    """
    with extra(EXTRA):
        from . import archives, runs

    path = Path(options.archive)
    if path.suffix == ".json":
        where, what = runs.take(path, options.folder)
    else:
        how = {"replace": options.replace}
        where, what = archives.take(path, options.folder, **how)
    print(f"taken over: {what}, to {where}; `make report` shows them")


# Name, module whose main(preset, folder) yields (experiment, rows, path), and what it
# does.
COMMANDS = (
    ("bench", "experiments.ladder", "measure every version on this machine"),
    ("bench-peers", "measure.peers", "measure beside PyTorch, JAX and ONNX Runtime"),
    ("bench-ranks", "experiments.devices", "page 08: several ranks"),
)
FOLDER = "default data/results/ of the repository, else ./results/; smoke has its own"


def main(words: Sequence[str] | None = None) -> None:
    """Run the command that the words name."""
    parser = argparse.ArgumentParser(prog="python -m lstm_report", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, module, about in COMMANDS:
        _command(commands, name, about).set_defaults(run=bench, module=module)
    part = _command(commands, "gpu", "verify and measure the GPU versions on a GPU")
    part.set_defaults(run=gpu)
    part.add_argument(
        "--minutes", type=float, default=9.0, help="the most it takes; default 9"
    )
    part.add_argument(
        "--commit", help="what to record where there is no repository to ask"
    )
    part.add_argument("--archive", help="a file to pack the results into, too")
    part = commands.add_parser("take", help="take GPU results or a run over")
    part.set_defaults(run=take)
    part.add_argument(
        "archive", help="what gpu.ipynb, gpu --archive or make report made"
    )
    part.add_argument("--folder", help="default data/results/ of the repository")
    said = "also with fewer parts than are there, or other rows of the same day"
    part.add_argument("--replace", action="store_true", help=said)
    run(parser, parser.parse_args(words))


def _command(commands, name, about):
    part = commands.add_parser(name, help=about)
    part.add_argument("--preset", choices=("smoke", "paper"), default="paper")
    part.add_argument("--folder", help=FOLDER)
    return part


if __name__ == "__main__":
    main()

"""`mpiexec -n RANKS python -m lstm_kernels.ranks PROGRAM --option value`."""

import argparse
import inspect
import sys

from ..files import writing
from .jobs import PROGRAMS
from .world import main


def parser():
    """Programs as subcommands; options are the keyword arguments of each, with their
    defaults.
    """
    top = argparse.ArgumentParser(
        prog="python -m lstm_kernels.ranks", description=__doc__
    )
    programs = top.add_subparsers(dest="program", required=True, metavar="PROGRAM")
    for name, function in PROGRAMS.items():
        doc = inspect.getdoc(function)
        one = programs.add_parser(name, help=doc.splitlines()[0], description=doc)
        for option in list(inspect.signature(function).parameters.values())[1:]:
            flag, default = f"--{option.name.replace('_', '-')}", option.default
            one.add_argument(
                flag, type=type(default), default=default, help=f"{default!r}"
            )
        one.add_argument("--result", help="the path of a CSV file for the rows")
    return top


def run(words):
    """Run the program that the words name on this rank; rank 0 writes its rows."""
    chosen = vars(parser().parse_args(words))
    function, result = PROGRAMS[chosen.pop("program")], chosen.pop("result")

    def program(world):
        rows = function(world, **chosen)
        if world.rank == 0 and result:
            with writing(result, text=True) as file:
                rows.to_csv(file, index=False)

    main(program)


if __name__ == "__main__":
    run(sys.argv[1:])

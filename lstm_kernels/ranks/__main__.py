"""A rank of a job that `launch.run` starts: it calls a function of a module with its
World and with options, and rank 0 writes what that returns.
"""

import json
import pickle
import sys
from importlib import import_module
from pathlib import Path

from .world import main


def program(world):
    module, name, options, path = sys.argv[1:]
    result = getattr(import_module(module), name)(world, **json.loads(options))
    if world.rank == 0:
        Path(path).write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main(program)

"""`make bench-ranks`: what page 08 shows of several ranks, as a results file."""

from ..measure import results
from . import devices

EXPERIMENTS = {"devices": devices.devices}


def main(preset="paper", folder=None):
    """Run every experiment and write its file; yields (experiment, rows, path)."""
    plan = {name: lambda run=run: run(preset) for name, run in EXPERIMENTS.items()}
    return results.fill(plan, preset=preset, folder=folder)

"""Results files for the tests: rows on disk, and what the record of their run says."""

import json

import pandas as pd

from lstm_report.measure import results


def rows_of(*seconds):
    """Rows of a version, a round for each of `seconds`."""
    made = pd.DataFrame({"repeat": range(len(seconds)), "seconds": seconds})
    return made.assign(version="numpy", stage="step")


def filed(folder, rows, experiment="trial", *, preset="paper", machine=None, **about):
    """Rows as `results.write` files them, on a machine of another name if one is given,
    and what their record says beside; the path of the CSV file.
    """
    path = results.write(experiment, rows, preset=preset, folder=folder)
    record = path.with_suffix(".json")
    record.write_text(json.dumps(json.loads(record.read_text()) | about))
    if machine is None:
        return path
    return path.parent.rename(folder / machine) / path.name

"""The figures of notebook 00. Each has an attribute `alt`, which says in words what it shows."""

import matplotlib.pyplot as plt
import numpy as np


def schedules(layer_by_layer, earliest):
    """Two grids (layers, steps) of the round in which each cell is computed."""
    grids = {
        f"One cell at a time, layer by layer: {layer_by_layer.max()} rounds": layer_by_layer,
        f"As early as the graph allows: {earliest.max()} rounds": earliest,
    }
    figure, axes = plt.subplots(len(grids), 1, figsize=(8, 4.6), sharex=True)
    for ax, (title, rounds) in zip(axes, grids.items(), strict=True):
        layers, steps = rounds.shape
        ax.imshow(rounds, origin="lower", cmap="cividis", aspect="auto")
        for (layer, step), value in np.ndenumerate(rounds):
            colour = "white" if value < 0.6 * rounds.max() else "black"
            ax.text(step, layer, value, ha="center", va="center", color=colour, fontsize=9)
        ax.set(title=title, ylabel="layer", yticks=range(layers), yticklabels=range(1, layers + 1))
        ax.grid(False)
    axes[-1].set(xlabel="step", xticks=range(steps), xticklabels=range(1, steps + 1))
    figure.alt = (
        f"Two grids of {layers} layers by {steps} steps with the round in which each cell is "
        f"computed: layer by layer the numbers run to {layer_by_layer.max()}, as early as the "
        f"graph allows they run along diagonals to {earliest.max()}."
    )
    return figure

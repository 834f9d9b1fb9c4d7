"""The dependency graph of a stacked recurrent network, and orders in which its cells may be
computed.

Cell (l, t) needs (l-1, t), its input, and (l, t-1), its state. An order is a list of blocks, each a
run of steps of one layer; any order that respects the graph computes the same numbers.
"""

from typing import NamedTuple


class Block(NamedTuple):
    """Steps start, ..., stop-1 of one layer."""

    layer: int
    start: int
    stop: int


def dependencies(layer, step):
    """The cells that cell (layer, step) needs; outside the grid lie the inputs and the initial
    state.
    """
    below = [(layer - 1, step)] if layer else []
    before = [(layer, step - 1)] if step else []
    return below + before


def layer_by_layer(num_layers, steps):
    """Every step of a layer before the next layer: the order of the reference."""
    return [Block(layer, 0, steps) for layer in range(num_layers)]


def check_order(blocks, num_layers, steps):
    """Raise ValueError unless `blocks` computes every cell once, and each after what it needs."""
    done = set()
    for block in blocks:
        for step in range(block.start, block.stop):
            cell = (block.layer, step)
            missing = [other for other in dependencies(*cell) if other not in done]
            if missing or cell in done:
                why = f"needs {missing[0]}, which comes later" if missing else "is computed twice"
                raise ValueError(f"blocks: cell (layer, step) = {cell} {why}")
            done.add(cell)
    if len(done) != num_layers * steps:
        raise ValueError(f"blocks: got {len(done)} cells, want all {num_layers * steps} of them")

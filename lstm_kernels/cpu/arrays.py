"""The arrays of a pass: one table, of which memory, records and views are made.

A line names an array, its shape and the passes that need it. The sizes are

T B O       steps, samples, outputs
H P         hidden units, the same with padding to whole wide unit blocks
J J_padded  unit blocks (`layout.py`) that hold hidden units, those of P
J_wide wide wide unit blocks, and units of one
row         numbers of a row of gates in a unit block; U_row, W_row: of packed weights
D D_padded  inputs of a layer, the same with padding; D_wide: wide unit blocks of them
L           layers. L_h, L_c: those for which there is memory. The outputs of the
            top layer may be the caller's, a cell may lack c
gate_steps  T, or in inference those whose inputs are multiplied at once
c_slots     T + 1, or in inference 2: the initial state and the last one

Slot 0 of h and c is the initial state; step t reads slot t and writes slot t + 1.

Records lead compiled code there: a JOB for a region, with a LAYER for each layer. They
hold sizes, and of each array and each tile (`tiles.py`) the address, 0 where there is
none. A record that a thread may still read is never written (`Work.renew`).
"""

from collections import namedtuple
from typing import NamedTuple

import numpy as np


class Array(NamedTuple):
    """A line of the table."""

    name: str
    shape: str
    passes: str = "all"  # or training (gradients or descent), gradients or descent

    @property
    def of_layers(self):
        """Whether each layer has one of its own: the first axis counts them."""
        return self.shape.startswith("L")

    @property
    def axes(self):
        """The shape, of one layer, as sums of sizes."""
        return [axis.split("+") for axis in self.shape.split()[self.of_layers :]]

    def of_one(self, sizes):
        """The shape in numbers, of one layer; sizes: dict of ints by name."""
        return tuple(
            sum(int(s) if s.isdigit() else sizes[s] for s in axis) for axis in self.axes
        )

    def of_all(self, sizes):
        """Of all layers."""
        layers = [sizes[self.shape.split()[0]]] if self.of_layers else []
        return (*layers, *self.of_one(sizes))


SPACE = (
    Array("h", "L_h T+1 B P"),
    Array("c", "L_c c_slots B P"),
    Array("a", "L J_padded gate_steps B row"),
    # Gradients: of a, which in descent take the place of the gates; of h from above; of
    # x; of the final h and c; of the initial h.
    Array("da", "L J_padded T B row", "gradients"),
    Array("dy", "L T B P", "training"),
    Array("dx", "T B D_padded", "gradients"),
    Array("dh", "L B P", "training"),
    Array("dc", "L B P", "training"),
    Array("dh0", "L B P", "gradients"),
    Array("zero", "P", "training"),
    Array("one", "1", "training"),  # what b multiplies
    Array("error", "B O", "training"),
    # The mini-batch that compiled code takes out of a data set.
    Array("x_batch", "T B D", "descent"),
    Array("target", "B O", "descent"),
)
# The same where lanes are samples (`lanes.py`), in training of layers of one unit
# block. lanes_dy: of the steps, zero, of the last step. H_lanes: P, or of chunks H.
# lane_slots: T + 1, or in inference 1.
LANES = (
    Array("x_turned", "T D B"),
    Array("lanes_h", "L T+1 H_lanes B"),
    Array("lanes_c", "L_c lane_slots H_lanes B"),
    Array("lanes_a", "L T row B", "training"),
    Array("lanes_da", "L T row B", "gradients"),
    Array("lanes_y", "B P"),  # of a step, on its way to rows
    Array("lanes_dy", "T+2 H_lanes B", "training"),
    Array("lanes_dc", "H_lanes B", "training"),
)
# Of each layer: packed parameters, whose gradients gU, gW, gb are alike; transposes.
PARAMETERS = (
    Array("U", "L J_padded D_padded U_row"),
    Array("W", "L J_padded P W_row"),
    Array("b", "L J_padded row"),
)
TRANSPOSES = (
    Array("UT", "L D_wide U_lines wide"),
    Array("WT", "L J_wide W_lines wide"),
)
# What the caller has, or a layer from the one below.
GIVEN = (
    *(array._replace(name=f"g{array.name}") for array in PARAMETERS),
    Array("x", "L T B x_width"),
    Array("lanes_x", "L T x_lanes B"),
    Array("y", "T B H"),
    Array("V", "H O"),
    Array("b_out", "O"),
    Array("gV", "H O"),
    Array("gb_out", "O"),
    Array("source", "T N D"),
    Array("labels", "N O"),
)
TABLE = {a.name: a for a in (*SPACE, *LANES, *PARAMETERS, *TRANSPOSES, *GIVEN)}
OF_LAYERS, OF_JOB = (
    " ".join(a.name for a in TABLE.values() if a.of_layers == which)
    for which in (True, False)
)

# What the records hold beside these arrays. Of a layer: inputs; numbers of a row of x,
# in lanes too; bytes from `plain` on to its gradients.
LAYER_FIELDS = "D D_padded D_wide x_width x_lanes dU dW db"
SIZES = "L T B H O P J J_padded J_wide units wide lanes size row U_row W_row"
SIZES += " U_lines W_lines gate_steps c_slots lane_slots H_lanes"
# Samples of a group of lanes; are gates kept?, are samples chunks of one sequence?
# Steps whose inputs, and whose gradients from above, are multiplied at once. Is there
# an initial state?, are gradients added to the parameters?, examples there are.
CHOICES = "width keeps chunked input_steps back_steps starts descend N"
ADDRESSES = "layers progress order losses plain"
CODE = "inputs forward backward few through_U through_W gradient_U gradient_W"
CODE += " gradient_b transpose forward_lanes backward_lanes"


def record(*fields, real=None, reals=""):
    """The dtype of a record of 8-byte integers, and its fields' places among its words,
    by name. real: the dtype of the arrays, that of a field `real`, which says no more,
    and of the fields `reals`.
    """
    names = " ".join(fields).split()
    kinds = [(name, np.int64) for name in names]
    if real is not None:
        kinds += [(name, real) for name in f"real {reals}".split()]
    return np.dtype(kinds, align=True), namedtuple("Words", names)(*range(len(names)))


LAYER, LAYER_WORD = record(LAYER_FIELDS, OF_LAYERS)
JOB_FIELDS = SIZES, CHOICES, ADDRESSES, OF_JOB, CODE
# Kernels are compiled for the type of a JOB. rate: what gradients are multiplied by.
JOBS = {
    np.dtype(real): record(*JOB_FIELDS, real=real, reals="rate")[0]
    for real in (np.float32, np.float64)
}
JOB_WORD = record(*JOB_FIELDS)[1]
# How far a call has come. Is it to be left?; the first of its training steps, the one
# after the last, how many are done; of chunks, how many seams hold.
PROGRESS, PROGRESS_WORD = record("leave first last done held")

# Who does what when (`run.py`), three records and a word for each task and counter.
#
# A PLAN: a JOB and its PROGRESS; workers, the number of the first participant among
# them, not 0 where other ranks have those before; the floating-point environment;
# tasks in the order in which each worker does them, and where those of each begin; does
# who waits help out?; a claim for each task; where times are kept, or 0.
PLAN, _ = record(
    "job progress workers first fp_env lists bounds tasks rows row_count helps claims",
    "spans",
)
# A row is a layer's pass or what comes between: what does a part of it, on which layer,
# from which step on; steps and blocks; groups of samples, a counter for each; does a
# step wait for the same steps of the row below, or for all?; do tasks share its steps?;
# does it change parameters?; which tasks are its.
ROW, _ = record(
    "perform layer offset steps blocks groups counters stepwise shared changes",
    "first_task",
    "last_task",
)
# A task is a box of a row: steps in the order of the pass, blocks, samples, which group
# these are, and which groups of the row below they are in; where the times of its parts
# are.
TASK, _ = record(
    "row start stop first_block last_block first last group first_below last_below span"
)

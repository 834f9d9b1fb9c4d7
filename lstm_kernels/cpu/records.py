"""The records through which Python tells compiled code what to do: a JOB, with a LAYER for each layer.

The tables below are the dtypes: a line has the names of some fields, what each holds, who writes it
and which kernels read it. All fields are 8-byte integers but the rate. *Bytes* are distances between
things that an address arithmetic steps over, `@` is the address of an array or of machine code, 0
where there is none. P is H with padding, (j, ...) are unit blocks, (w, ...) wide unit blocks; the
layouts are in `NOTATION.md` and `tiles.py`. Writers: `describe`, `Work`, `Space`, `Gradients` of
`workspace.py`; `call` is a method of the network, before a region. A record that a thread may still
read is never written (`Work.renew`).
"""

from collections import namedtuple

import numpy as np


def _record(table):
    """The dtype of a table, and its fields' places among the record's words, by name."""
    names = [name for line in table.strip().splitlines() for name in line.split("|")[0].split()]
    dtype = np.dtype([(n, np.float64 if n == "rate" else np.int64) for n in names], align=True)
    return dtype, namedtuple("Words", names)(*range(len(names)))


LAYER_TABLE = """
D D_wide      | inputs; wide unit blocks they fill                  | describe  | all
x_row         | bytes: samples of x                                 | describe  | forward, gradients
U_block       | bytes: unit blocks of U                             | describe  | all
U W b         | @ packed weights (j, D or H, G, units), (j, 1, K, units) | describe | forward
UT WT         | @ transposed weights (w, j*G*units, wide)           | describe  | backward, transposes
x             | @ (T, B, D), above layer 0 h of the layer below     | Space, call | forward, gradients
a             | @ pre-activations, then gates (j, T*B, K, units)    | Space     | forward, backward
h c           | @ after each step (T, B, P); c: see c_step          | Space, call | all
da            | @ gradients of a                                    | Space, Gradients | backward, gradients
dy            | @ gradient of the layer's output (T, B, P)          | Space, Gradients | backward
dx            | @ that of its input (T, B, D_wide*wide); 0: not wanted | Space, Gradients | backward
gU gW gb      | @ where packed gradients are added                  | Space, Gradients | gradients
dU dW db      | @ plain gradients (D, G*H), (H, G*H), (K*H,)        | call      | gradients
"""

JOB_TABLE = """
L T B H O     | layers, steps, samples, hidden units, outputs       | describe, Space | all
J J_wide      | unit blocks and wide unit blocks of a layer         | describe  | all
lanes size    | numbers of a vector; bytes of a number              | describe  | gradients, transposes
row           | bytes: samples of h, c and their gradients          | describe  | all
unit_bytes wide_bytes | bytes: unit blocks, wide unit blocks of such a row | describe | all
a_row         | bytes: rows (t, sample) of a unit block in a; unit blocks of b | describe | all
a_block       | bytes: unit blocks of a                             | Space     | all
c_step        | bytes: steps of c; 0 where one is kept              | Space     | forward, backward
U_row W_row   | bytes: rows of packed weights                       | describe  | gradients, transposes
W_block       | bytes: unit blocks of W                             | describe  | all
UT_block WT_block | bytes: wide unit blocks of UT, WT               | describe  | backward, transposes
layers        | @ the LAYERs (L,)                                   | Work      | all
sync groups   | @ words of the rounds, groups of tasks (`rounds.py`) | Work     | passes
stop          | @ a word: leave?; behind it, training steps to do   | Work      | passes
shares        | runs of samples done independently; 0: rounds of unit blocks | Space | passes
input_steps   | steps whose inputs are multiplied at once           | Space     | forward
splits        | runs of samples of a wide unit block in a round     | Space     | backward
keeps         | are all steps of a kept?                            | Space     | forward
starts        | is there an initial state?                          | Space, call | forward, gradients
forward backward | @ passes, `_samples` or `_rounds`                | Space     | passes
gradients     | @ `gradient_rounds`                                 | Space     | passes
h0 c0         | @ initial state (L, B, P)                           | Space     | all
states state  | arrays of a state, 1 or 2; @ final (states, L, B, H) | Space, call | forward
inputs step whole | @ tiles of a forward step                       | Space     | forward
back few through_U through_W | @ tiles of a backward step           | Space, Gradients | backward
gradient_U gradient_W gradient_b transpose | @ tiles                | Space     | gradients, transposes
one zero      | @ the number 1; zeros (P,)                          | Space     | gradients, backward
dh dh_row     | @ gradient of the final h (L, B, P); bytes: its samples, 0: all the same | Space, call | backward
dh0           | @ gradient of the initial h (L, B, P); 0: not wanted | Gradients | backward
dc            | @ of the final c (L, B, P), in the end of the initial | Space   | backward
order source labels N | @ examples chosen, int64, 0: the mini-batch is in x; @ data set (T, N, D), (N, O) | call | gather
target error  | @ of the mini-batch (B, O)                          | call, Space | gather, read-out
V b_out gV gb_out | @ read-out (H, O), (O,), where its gradients are added | Space, call | read-out
losses steps_done | @ a loss per step, 0: no read-out; @ steps done, int64 | call, Space | gradients
descend       | are gradients added to the parameters?              | Space, Gradients | gradients
rate          | what gradients are multiplied by, a float           | call, Gradients | gradients
tasks parts   | @ layer, start, stop, part of each task (n, 4); runs of samples | call | tasks
"""

LAYER, LAYER_WORD = _record(LAYER_TABLE)
JOB, JOB_WORD = _record(JOB_TABLE)

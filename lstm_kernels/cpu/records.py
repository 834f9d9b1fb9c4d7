"""The records that tell compiled code what to do: a JOB for a region, and a LAYER for
each layer.

The tables are the dtypes: a line names fields, says what each holds, who writes it and
what reads it. `@` is the address of an array or of machine code, 0 where there is none;
"bytes: samples of h" are the bytes from one sample of h to the next. All fields are
integers of 8 bytes but the rate. P is H with padding, j a unit block, w a wide one.
Writers are in `workspace.py`: `describe` (net), Space, for gradients or descent alone
(grads), Work, and what a call does before its region. A record that a thread may still
read is never written (`Work.renew`).
"""

from collections import namedtuple

import numpy as np

LAYER_TABLE = """
D D_wide D_words  | inputs; wide unit blocks, words of inputs     | net         | all
x_row             | bytes: samples of x                           | net         | forward gradients
U_block gU_block  | bytes: unit blocks of U, of gU                | net         | forward gradients
U W b             | @ packed weights (j, rows, G or K, units)     | net         | forward gradients
UT WT             | @ transposed weights (w, j*G*units, wide)     | net         | backward gradients
U_numbers W_numbers                               | @ float32 | net         | operands
x                 | @ input (T, B, D): h of the layer below       | space call  | forward gradients
a                 | @ pre-activations, gates (j, T*B, K, units)   | space       | forward backward
h c               | @ after each step (T, B, P); c: see c_step    | space call  | all
h_all             | @ h as an operand (T, B, h_row): h or words   | space call  | forward gradients
h_before          | @ h before each step, the same, as words      | space       | gradients
x_pairs h_pairs   | @ words of two rows of x, of h_before         | space       | gradients
da                | @ gradients of a                              | space grads | backward gradients
dy                | @ gradient of h from above (T, B, P)          | space grads | backward
dx                | @ that of x (T, B, padded D); 0: not wanted   | space grads | backward
gU gW gb          | @ packed, what gradients are added to         | space grads | gradients
dU dW db          | bytes: from `plain` on                        | grads       | gradients
"""

JOB_TABLE = """
L T B H O         | layers, steps, samples, units, outputs        | net space   | all
J J_wide          | unit blocks, wide unit blocks of a layer      | net         | all
lanes size        | numbers of a vector, bytes of a number        | net         | all
numbers H_words   | numbers of an operand's word; words of H      | net         | all
h_row             | bytes: samples of h as an operand             | net         | forward gradients
row               | bytes: samples of h, c and their gradients    | net         | all
unit_bytes        | bytes: unit blocks of such a sample           | net         | forward gradients
wide_bytes        | bytes: wide unit blocks of such a sample      | net         | backward
a_row a_block     | bytes: rows (t, sample), unit blocks of a     | net space   | all
da_row da_block   | bytes: the same of da                         | net space   | backward gradients
c_step            | bytes: steps of c, 0 if one is kept           | space       | forward backward
U_row W_row       | bytes: rows of a packed unit block            | net         | gradients
W_block gW_block  | bytes: unit blocks of W, of gW                | net         | forward gradients
UT_block WT_block | bytes: wide unit blocks of UT, WT             | net         | backward gradients
layers            | @ the LAYERs (L,)                             | work        | all
sync groups       | @ words of the rounds; groups of tasks        | work        | passes
stop              | @ words: leave?, training steps to do         | work        | passes
shares            | runs of samples, each a task; 0: rounds       | space       | passes
input_steps       | steps whose inputs are multiplied at once     | space       | forward
splits            | runs of samples, each a task of a round       | space       | backward
keeps             | are all steps of a kept?                      | space       | forward
forward backward  | @ passes: `_samples` or `_rounds`             | space       | passes
gradients         | @ `gradient_rounds`                           | space       | passes
tasks parts       | @ (n, 4): layer, start, stop, part; parts     | call        | tasks
x                 | @ input as it was passed (T, B, D)            | space call  | forward passes
round_numbers     | @ tile                                        | space       | forward
pair_numbers pair_rounded                         | @ tiles       | net space   | operands
scratch           | @ of each task of gradients                   | space       | gradients
scratch_block     | bytes: tasks of it                            | space       | gradients
inputs step whole | @ tiles                                       | space       | forward
back few          | @ tiles                                       | space       | backward
through_U through_W                               | @ tiles       | space grads | backward
gradient_U gradient_W gradient_b transpose        | @ tiles       | space call  | gradients
starts h0 c0      | is there an initial state? @ (L, B, row)      | space call  | all
states state      | 1 or 2; @ final state (states, L, B, H)       | space call  | forward
dh dh_row         | @ of the final h (L, B, P); bytes: samples    | space call  | backward
dc                | @ of the final c (L, B, P), then of c0        | space       | backward
dh0               | @ of the initial h (L, B, P); 0: not wanted   | grads       | backward
zero one          | @ zeros (P,), the number 1                    | space       | backward gradients
order             | @ examples chosen; 0: they are in x           | call        | passes
source labels N   | @ examples (T, N, D), (N, O)                  | call        | passes
target error      | @ of the mini-batch (B, O)                    | call space  | read-out
V b_out gV gb_out | @ read-out, what its gradients are added to   | space call  | read-out
losses            | @ of each step; 0: there is no read-out       | call        | gradients
steps_done        | @ a word: training steps done                 | space       | gradients
plain             | @ plain gradients of all layers; 0: no matter | call        | gradients
descend           | are gradients added to the parameters?        | space grads | gradients
from_zero         | do gradients begin as zero?                   | call        | gradients
rate              | what gradients are multiplied by, a float     | call grads  | gradients
"""

# A network with factored weights (`factored_kernels.py`): P is Px over Ph, i a unit
# block of s. Written by `study/factored.py`: all but `x` of the first layer and `h` of
# the last by its Space.
FACTORED_LAYER_TABLE = """
D D_wide x_row    | inputs; wide unit blocks of them; bytes: samples of x
x                 | @ input (T, B, D): h of the layer below
Px Ph             | @ packed factors (i, rows, 1, units of s)
Px_block          | bytes: unit blocks of Px
Q b               | @ packed factor (j, rank, K, units), bias (j, 1, K, units)
PxT PhT QT        | @ transposed (w, lines, wide units)
h c               | @ (T+1, B, row); inference keeps one step of c
s                 | @ sums (T, B, row); inference keeps one step
ahead             | @ x Px of input_steps steps (i, rows, units of s)
a da              | @ gates, their gradients (j, T*B, K, units)
ds                | @ gradients of s (i, T*B, units of s), blocks as far apart
dy dx             | @ gradients of h from above, of x; dx: (T, B, dx_row)
dx_row            | bytes: samples of dx
gPx gPh gQ gb     | @ packed gradients
"""

FACTORED_JOB_TABLE = """
L T B H R         | layers, steps, samples, hidden units, rank
J I J_wide        | unit blocks of h and of s, wide unit blocks of h
size row          | bytes: a number; samples of h, c, s
unit_bytes        | bytes: unit blocks of a sample of h
wide_bytes        | bytes: wide unit blocks of h, unit blocks of s
c_step s_step     | bytes: steps of c and s, 0 where one is kept
a_row a_block     | bytes: rows of a and da, unit blocks of a, da and ds
s_row ahead_block | bytes: rows of ds and ahead, unit blocks of ahead
Ph_block Q_block  | bytes: unit blocks of Ph, of Q
PT_block QT_block | bytes: wide unit blocks of PxT and PhT, of QT
layers sync       | @ the LAYERs (L,), words of the rounds
groups stop       | groups of tasks; @ words: leave?, not used
shares            | runs of samples, each a task
input_steps       | steps whose inputs are multiplied at once
inputs step both  | @ tiles of the linear cell: x Px, then h Ph; both at once
cell single back  | @ tiles of the network's cell; single: of one sample
through_P through_Q gradient_P gradient_Q gradient_b | @ tiles
zero one          | @ zeros (row,), the number 1
dh dc dh0         | @ (L, B, row): gradients of the final h; of the final c, then of c0; of h0
"""


def record(table):
    """The dtype of a table, and its fields' places among the record's words, by
    name.
    """
    names = [
        name
        for line in table.strip().splitlines()
        for name in line.split("|")[0].split()
    ]
    dtype = np.dtype(
        [(n, np.float64 if n == "rate" else np.int64) for n in names], align=True
    )
    return dtype, namedtuple("Words", names)(*range(len(names)))


LAYER, LAYER_WORD = record(LAYER_TABLE)
JOB, JOB_WORD = record(JOB_TABLE)
FACTORED_LAYER, _ = record(FACTORED_LAYER_TABLE)
FACTORED_JOB, _ = record(FACTORED_JOB_TABLE)

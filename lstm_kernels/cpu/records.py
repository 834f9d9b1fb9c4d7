"""The records that compiled code reads: what a layer is, and what a region has to do.

All is integers, but for the rate: sizes, bytes between things, and addresses. A record that a
thread may still read is never written (`spaces.Work`).
"""

import numpy as np

LAYER = np.dtype(
    [
        (name, np.int64)
        for name in (
            # sizes; J hidden blocks, and how many wide blocks of hidden units and of inputs
            *("T", "B", "D", "H", "J", "J_wide", "D_wide", "lanes", "wide", "size"),
            # bytes between: samples of h, x, dx, dh; samples, blocks and wide blocks of a
            *("row", "x_row", "dx_row", "dh_row", "a_row", "a_block", "a_wide", "c_step"),
            # bytes: units of a block, of a wide block; rows and blocks of the packed weights
            *("unit", "line", "U_row", "W_row", "U_block", "W_block", "UT_block", "WT_block"),
            # schedule: steps of inputs at once, shares backward; are all steps in `a`; is h0 given?
            *("input_steps", "splits", "keeps", "starts"),
            # addresses, forward: x (T, B, D), packed U, W, b; h, c (T, B, padded H) after each step
            *("x", "U", "W", "b", "a", "h", "c", "h0", "c0"),
            # backward: transposed weights, gradients, zeros, a number 1, packed gradients
            *("UT", "WT", "da", "dy", "dh", "dc", "dx", "dh0", "zero", "one", "gU", "gW", "gb"),
            # where those go as plain matrices (D, G*H), (H, G*H), (K*H,); 0: nowhere
            *("dU", "dW", "db"),
            # tiles
            *("inputs", "step", "whole", "back", "through_U", "through_W", "few"),
            *("gradient_U", "gradient_W", "gradient_b", "transpose"),
        )
    ],
    align=True,
)

JOB = np.dtype(
    [
        *(
            (name, np.int64)
            for name in (
                # layers, steps, samples, outputs; shares of the samples, or 0 for hidden blocks
                *("L", "T", "B", "O", "shares"),
                # the records of the layers; words of the rounds, and their groups
                *("layers", "sync", "groups"),
                "stop",  # address of a word: leave?; behind it how many training steps to do
                # machine code: a forward and a backward pass (`_samples` or `_rounds`), gradients
                *("forward", "backward", "gradients"),
                # final state (1 or 2, L, B, H)
                *("states", "state"),
                # data set x (T, N, D) and target (N, O), the examples chosen (count * B), 0: the
                # mini-batch is there already; x (T, B, D), target, error (B, O) of the mini-batch
                *("N", "source", "labels", "order", "count", "x", "target", "error"),
                # gradient of y at the last step (B, padded H), of the final c (L, B, padded H)
                *("dy", "dc"),
                # read-out (H, O), (O,), where its gradients go; losses (count,) or 0; how many yet
                *("V", "b_out", "gV", "gb_out", "losses", "steps_done"),
                "descend",  # are the gradients added to the parameters?
                # of `numba-wavefront`: layer, start, stop, part of each task; parts of the samples
                *("tasks", "parts"),
            )
        ),
        ("rate", np.float64),
    ],
    align=True,
)

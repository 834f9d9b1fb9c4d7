"""What the passes of `numba-bf16` do beside those of `numba-fused`: they make operands.

Functions here stand for those of the same name in `block_kernels.py`. Operands are
words of two bfloat16 numbers (`bfloat16.py`): x is rounded before the forward pass; h
and the gradients of gates are rounded by the tiles that compute them; the words of a
weight's gradient are two rows (t, sample), so rows are paired before; and weights,
which descent changes in float32, are rounded and paired after.
"""

FEW = 0  # inputs up to which dx is a dot product for each: never, their weights lie in pairs

# The free names: tiles called by their address, records.
round_numbers = pair_rows_of = gradient = transpose = layer_at = GRAIN = None


def input_rows(job):
    """Rows of x to round."""
    return job.T * job.B


def round_rows(job, first, last):
    """Rows first, ..., last-1 of x as operands."""
    layer, rows = layer_at(job.layers, 0), last - first
    x = job.x + first * layer.D * job.size  # row `first` as it was passed
    out = layer.x + first * layer.x_row  # the same rounded
    vectors, rest = layer.D // job.lanes, layer.D % job.lanes
    round_numbers(
        job.round_numbers, rows, vectors, rest, x, layer.D * job.size, out, layer.x_row
    )


def paired_rows(job):
    """Pairs of rows (t, sample): of an odd number, the last has a row of zeros."""
    return (job.T * job.B + 1) // 2


def pair_rows(job, l, first, last):
    """Pairs first, ..., last-1 of rows of x and of h before the step."""
    layer, n = layer_at(job.layers, l), 2 * first
    rows = min(2 * last, job.T * job.B) - n
    for width, a, row, pairs in (
        (layer.D, layer.x + n * layer.x_row, layer.x_row, layer.x_pairs),  # row n of x
        (
            job.H,
            layer.h_before + n * job.h_row,
            job.h_row,
            layer.h_pairs,
        ),  # of h before the step
    ):
        vectors = (width + job.lanes - 1) // job.lanes
        out = pairs + first * vectors * job.lanes * job.size  # pair `first`
        pair_run(job, vectors, rows, a, row, out)


def pair_run(job, vectors, rows, a, row, out):
    """Rows of bfloat16 numbers from `a` on, `row` bytes each, as rows of words."""
    out_row, pairs = vectors * job.lanes * job.size, rows // 2
    pair_rows_of(job.pair_rounded, pairs, vectors, a, a + row, 2 * row, out, out_row)
    if rows % 2:
        last, out_last = (
            a + (rows - 1) * row,
            out + pairs * out_row,
        )  # the row without another
        pair_rows_of(job.pair_rounded, 1, vectors, last, job.zero, 0, out_last, 0)


def add_gradients(job, l, j, gU, gW, gb):
    """The sums over rows (t, sample) for unit block j."""
    layer, N, rate, size = layer_at(job.layers, l), job.T * job.B, job.rate, job.size
    x_row = (
        (layer.D + job.lanes - 1) // job.lanes * job.lanes * size
    )  # bytes: pairs of x
    h_row = (job.H + job.lanes - 1) // job.lanes * job.lanes * size  # and of h
    vectors = job.a_row // (job.lanes * size)  # of a row of gates
    da = layer.da + j * job.da_block  # block j, row 0
    da_pairs = job.scratch + (l * job.J + j) * job.scratch_block  # of this task
    for n in range(0, N, 2 * GRAIN):
        rows, pair = min(2 * GRAIN, N - n), n // 2
        pair_run(job, vectors, rows, da + n * job.da_row, job.da_row, da_pairs)
        count = (rows + 1) // 2
        x = layer.x_pairs + pair * x_row  # rows n, n+1 of x, input 0
        h = layer.h_pairs + pair * h_row  # of h before the step, unit 0
        gradient(job.gradient_U, layer.D, x, size, x_row, count, da_pairs, gU, rate)
        gradient(job.gradient_b, 1, job.one, 0, 0, count, da_pairs, gb, rate)
        gradient(job.gradient_W, job.H, h, size, h_row, count, da_pairs, gW, rate)


def pack_operands(job, l, j):
    """Unit block j of U and W as operands, and its parts of UT and WT, if there is a
    tile for them.
    """
    layer = layer_at(job.layers, l)
    U = layer.U_numbers + j * layer.gU_block  # block j, input 0
    W = layer.W_numbers + j * job.gW_block  # block j, unit 0 of h
    pair_weights(job, layer.D, U, job.U_row, layer.U + j * layer.U_block)  # its words
    pair_weights(job, job.H, W, job.W_row, layer.W + j * job.W_block)  # the same
    if job.transpose:
        scratch = job.scratch + (l * job.J + j) * job.scratch_block  # of this task
        transpose_block(
            job, j, layer.D_wide, U, job.U_row, layer.UT, job.UT_block, scratch
        )
        transpose_block(
            job, j, job.J_wide, W, job.W_row, layer.WT, job.WT_block, scratch
        )


def pair_weights(job, rows, a, row, out):
    """Rows of weights, `row` bytes each, as rows of words; what follows an odd one is
    zero.
    """
    vectors = row // (job.lanes * job.size)
    pair_rows_of(
        job.pair_numbers, (rows + 1) // 2, vectors, a, a + row, 2 * row, out, row
    )


def transpose_block(job, j, wide_blocks, weights, row, transposed, block, scratch):
    """Rows of unit block j, `row` bytes each, to columns of wide blocks `block` bytes
    apart: a wide block of float32 at a time, whose lines are then rounded and paired.
    """
    gates, vectors = row // job.size, job.wide_bytes // (job.lanes * job.size)
    for w in range(wide_blocks):
        for k in range(0, job.wide_bytes // job.size, job.lanes):
            rows = (
                weights + w * job.wide_bytes // job.size * row + k * row
            )  # row k of wide block w
            column = scratch + k * job.size  # its column
            transpose(
                job.transpose, gates // job.lanes, rows, row, column, job.wide_bytes
            )
        out = (
            transposed + w * block + j * (gates // 2) * job.wide_bytes
        )  # block j's first line
        pair_rows_of(
            *(job.pair_numbers, gates // 2, vectors, scratch, scratch + job.wide_bytes),
            *(2 * job.wide_bytes, out, job.wide_bytes),
        )

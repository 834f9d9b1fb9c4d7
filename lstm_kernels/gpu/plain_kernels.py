"""The course project's kernels: a thread takes a sample through a layer, from its first
step to its last, and back.

For T steps, B samples, D inputs, H units, K gates: x (T, B, D); U (D, K, H), W (H, K,
H), b (K, H); h and c (T + 1, B, H), whose slot 0 is the initial state; gates and da (T,
B, H, K). `net.forward` and `net.backward` are the cell's (`cells.py`); `load` and
`store` are for the K numbers of a unit.
"""

from .device import cuda
from .layout import net
from .registers import add_outer, add_products, column, load, store


def walk(s, x, U, W, b, h, c, gates):
    """Sample s through a layer; fills gates, and h and c from slot 1 on."""
    for t in range(x.shape[0]):
        for j in range(h.shape[2]):
            a = column(net.zeros, b, j)  # of the K gates
            for i in range(x.shape[2]):
                a = add_scaled(a, x[t, s, i], U[i], j)
            for i in range(h.shape[2]):
                a = add_scaled(a, h[t, s, i], W[i], j)
            out = net.forward(*a, c[t, s, j])
            store(net.zeros, gates[t, s, j], 0, out)
            h[t + 1, s, j] = out[-2]
            c[t + 1, s, j] = out[-1]


def add_scaled(a, v, M, j):
    """a plus v times column j of M (K, H)."""
    return add_outer((a,), (v,), column(net.zeros, M, j))[0]


def walk_back(s, U, W, c, gates, dy, dh, dc, da, dx):
    """Sample s back through a layer; dh and dc (B, H) are the gradients of its final,
    then of its initial state.
    """
    for t in range(dy.shape[0] - 1, -1, -1):
        for j in range(dy.shape[2]):
            i = load(net.zeros, gates[t, s, j], 0)
            dh_t = dy[t, s, j] + dh[s, j]
            out = net.backward(dh_t, dc[s, j], *i, c[t, s, j], c[t + 1, s, j])
            store(net.zeros, da[t, s, j], 0, out)
            dc[s, j] = out[-1]
        multiply_back(da[t, s], W, dh[s])
        multiply_back(da[t, s], U, dx[t, s])


def multiply_back(da, M, to):
    """Let `to` be da (H, K) times the transpose of M, (rows, K, H)."""
    for i in range(M.shape[0]):
        a = net.zeros
        for j in range(M.shape[2]):
            a = add_products((a,), da[j], 0, 0, column(net.zeros, M[i], j))[0]
        to[i] = net.zero
        for k in range(M.shape[1]):
            to[i] += a[k]


def forward(h0, c0, x, U, W, b, h, c, gates):
    """Kernel: the samples of a layer from the state h0, c0 (B, H)."""
    for s in range(cuda.grid(1), x.shape[1], cuda.gridsize(1)):
        for j in range(h.shape[2]):
            h[0, s, j] = h0[s, j]
            c[0, s, j] = c0[s, j]
        walk(s, x, U, W, b, h, c, gates)


def backward(U, W, c, gates, dy, dh, dc, da, dx):
    """Kernel: the samples of a layer back."""
    for s in range(cuda.grid(1), dy.shape[1], cuda.gridsize(1)):
        walk_back(s, U, W, c, gates, dy, dh, dc, da, dx)


def gradients(x, h, da, rows):
    """Kernel: the gradients of U, W and b, rows (D + H + 1, K, H): each a sum over
    steps and samples of da times a number of x, of h or one. The K of a unit in a row
    belong together.
    """
    D, H = x.shape[2], h.shape[2]
    for place in range(cuda.grid(1), rows.shape[0] * H, cuda.gridsize(1)):
        i, j = place // H, place % H
        a = net.zeros
        for t in range(x.shape[0]):
            for s in range(x.shape[1]):
                v = net.one
                if i < D:
                    v = x[t, s, i]
                elif i < D + H:
                    v = h[t, s, i - D]
                a = add_outer((a,), (v,), load(net.zeros, da[t, s, j], 0))[0]
        for k in range(rows.shape[1]):
            rows[i, k, j] = a[k]

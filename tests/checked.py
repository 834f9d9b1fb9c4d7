"""A machine for tiles, as `LLVM` of `simd.py` is one, that runs them in NumPy for the
tests.
"""

import numpy as np

from lstm_kernels.cpu import bfloat16


class Checked:
    """The machine that runs a tile at once, and refuses addresses outside its
    arrays.
    """

    def __init__(self, dtype, lanes, arrays=()):
        self.dtype, self.lanes = np.dtype(dtype), lanes
        self.allow(arrays)

    def allow(self, arrays):
        """Confine the tiles to these contiguous arrays."""
        self.arrays = [(a.ctypes.data, a.ctypes.data + a.nbytes, a) for a in arrays]

    def _view(self, address, count, dtype=None):
        dtype = dtype or self.dtype
        size = count * dtype.itemsize
        for start, stop, array in self.arrays:
            if start <= address and address + size <= stop:
                flat = array.reshape(-1).view(np.uint8)[
                    address - start : address - start + size
                ]
                return flat.view(dtype)
        raise IndexError(f"address {address:#x}: {size} bytes outside every array")

    def load(self, address):
        return self._view(address, self.lanes).copy()

    def load_aligned(self, address):
        size = self.lanes * self.dtype.itemsize
        if address % size:
            raise IndexError(f"address {address:#x}: not a multiple of {size} bytes")
        return self.load(address)

    def store(self, address, vector):
        self._view(address, self.lanes)[:] = vector

    def prefetch(self, address):
        pass

    def broadcast(self, address):
        return self.splat(self._view(address, 1)[0])

    def splat(self, number):
        return np.full(self.lanes, number, self.dtype)

    constant = splat

    def fma(self, x, y, z):
        return x * y + z

    def rounded(self, x):
        return bfloat16.rounded(x)

    def pair(self, x, y):
        return (x.view(np.uint32) >> 16 | y.view(np.uint32)).view(np.float32)

    def halves(self, word):
        bits = word.view(np.uint32)
        return [(bits & 0xFFFF0000).view(np.float32), (bits << 16).view(np.float32)]

    def load_rounded(self, address):
        half = self._view(address, self.lanes, np.dtype(np.uint16))
        return (half.astype(np.uint32) << 16).view(np.float32)

    def store_rounded(self, address, x):
        half = self._view(address, self.lanes, np.dtype(np.uint16))
        half[:] = x.view(np.uint32) >> 16

    def dot(self, x, y, z):
        for a, b in zip(self.halves(x), self.halves(y), strict=True):
            z = a * b + z  # the product is exact
        return z

    def of_one_lane(self):
        one = Checked(self.dtype, 1)
        one.arrays = self.arrays
        return one

    def clamp(self, x, low, high):
        return np.clip(x, self.dtype.type(low), self.dtype.type(high))

    def magnitude(self, x):
        return np.abs(x)

    def copysign(self, x, sign):
        return np.copysign(x, sign)

    def exponent(self, x):
        bits = x.view(f"u{self.dtype.itemsize}")
        return (bits << np.finfo(self.dtype).nmant).view(self.dtype)

    def interleave(self, x, y):
        return list(np.stack([x, y], axis=1).reshape(2, self.lanes))

    def total(self, x):
        while len(x) > 1:
            x = x[: len(x) // 2] + x[len(x) // 2 :]
        return x[0]

    def store_number(self, address, number):
        self._view(address, 1)[0] = number

    def variable(self, vector):
        return [vector]

    def get(self, slot):
        return slot[0]

    def set(self, slot, vector):
        slot[0] = vector

    def loop(self, count, body, step=1):
        for index in range(0, count, step):
            body(index)

    def tiles(self, rows, size, tile):
        full = rows - rows % size
        for first in range(0, full, size):
            tile(first, size)
        if rows > full:
            tile(full, rows - full)

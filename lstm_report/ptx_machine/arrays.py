"""Arrays in the memory of a machine, and how they are passed to a kernel."""

import numpy as np
from numba import from_dtype, types

NOBODY = 0x7FC0_DEAD  # of a word that nobody has written: a NaN


class Array:
    """An array in a machine's memory, as numba.cuda's device arrays are in a device's.

    numbers: the host's view of it.
    """

    def __init__(self, machine, numbers):
        self.machine, self.numbers = machine, numbers
        self.shape, self.dtype = numbers.shape, numbers.dtype
        self.size, self.nbytes = numbers.size, numbers.nbytes
        self.address = numbers.ctypes.data - machine.memory.ctypes.data

    @classmethod
    def new(cls, machine, shape, dtype):
        """Memory of its own, which nobody has written."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        place = {"buffer": machine.memory, "offset": machine.allocate(size)}
        return cls(machine, np.ndarray(shape, dtype, **place))

    def __getitem__(self, key):
        return Array(self.machine, self.numbers[key])

    def reshape(self, *shape):
        return Array(self.machine, self.numbers.reshape(*shape))

    @property
    def __cuda_array_interface__(self):
        return {"data": (self.address, False)}

    def copy_to_device(self, host):
        if (host.shape, host.dtype) != (self.shape, self.dtype):
            got = f"got {host.shape} of {host.dtype}"
            raise ValueError(f"host: {got}, want {self.shape} of {self.dtype}")
        self.numbers[...] = host
        self.machine.mark_written(self.address, self.nbytes)

    def copy_to_host(self, host=None):
        self.machine.check_written(self.address, self.nbytes)
        if host is None:
            return self.numbers.copy()
        host[:] = self.numbers
        return host


def unwritten(shape, dtype=np.float64):
    """An array for `check` whose words are a fault to read before they are written, by
    a kernel or by the host: each holds a NaN that no computation gives.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    words = np.full(-(-size // 4), NOBODY, np.uint32)
    return words.view(np.uint8)[:size].view(dtype).reshape(shape)


class Arguments:
    """The arguments of a launch: `bits`, what becomes of them in PTX; `arrays`, for
    each host array its name, itself, and the array of the machine that stands for it.
    """

    def __init__(self, machine, names, kinds, values):
        self.machine, self.bits, self.arrays = machine, [], []
        for name, kind, value in zip(names, kinds, values, strict=True):
            self._add(name, kind, value)

    def _add(self, name, kind, value):
        if isinstance(kind, types.BaseTuple):
            for i, entry in enumerate(value):
                self._add(f"{name}[{i}]", kind[i], entry)
            return
        if not isinstance(kind, types.Array):
            number = np.array(value, "bool" if kind == types.boolean else str(kind))
            self.bits.append(int(number.view(f"u{number.itemsize}")))
            return
        if not isinstance(value, Array):
            array = Array.new(self.machine, value.shape, value.dtype)
            array.copy_to_device(value)
            self.arrays.append((name, value, array))
            value = array
        numbers = value.numbers
        if (kind.dtype, kind.ndim) != (from_dtype(numbers.dtype), numbers.ndim):
            raise TypeError(
                f"{name}: got {numbers.ndim}-d {numbers.dtype}, want {kind}"
            )
        if not numbers.flags.c_contiguous:
            raise ValueError(f"{name}: got strides, want a C-contiguous array")
        self.bits += [0, 0, numbers.size, numbers.itemsize, value.address]
        self.bits += [*numbers.shape, *numbers.strides]

    def take_back(self):
        """Copy what the launch wrote into the host arrays. ValueError for one that is
        read-only.
        """
        for name, host, array in self.arrays:
            if host.flags.writeable:
                host[...] = array.numbers
            elif host.tobytes() != array.numbers.tobytes():
                want = "one that is writeable, since the kernel writes it"
                raise ValueError(f"{name}: got a read-only array, want {want}")

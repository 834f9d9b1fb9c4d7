"""Instructions of the GPU that Numba has no name for: inline PTX, each text once.

In Numba's simulator, and for devices that lack an instruction, plain code stands in.
Addresses are those of a number of an array: of device memory, or of a block's shared
memory.
"""

from functools import partial

from .device import SIMULATED, cuda

if SIMULATED or cuda is None:

    def add_release(a, i):
        a[i] += 1

    def load_acquire(a, i):
        return a[i]

    def copy_quad(shared, i, source, j):
        if i % 4 or j % 4:
            raise IndexError(f"i, j: got {i}, {j}, want multiples of four")
        shared[i : i + 4] = source[j : j + 4]

    def copy_number(shared, i, source, j):
        shared[i] = source[j]

    def wait_for_copies():
        pass

else:
    from llvmlite import ir
    from numba import types
    from numba.cuda.extending import intrinsic

    GLOBAL, SHARED = 1, 3  # PTX's state spaces as LLVM numbers them
    FIRST_TO_COPY = (8, 0)  # the oldest capability that has cp.async

    def instruction(builder, text, constraints, operands=(), result=None):
        """Emit a line of PTX; constraints: LLVM's, of the result and the operands.

        With ~{memory} among them it keeps its place among loads, stores and barriers.
        """
        kind = ir.FunctionType(result or ir.VoidType(), [o.type for o in operands])
        line = ir.InlineAsm(kind, text, constraints, side_effect=True)
        return builder.call(line, operands)

    def pointer(context, builder, array_type, array, i, space):
        """A pointer to number i of an array that lies in a state space."""
        data = context.make_array(array_type)(context, builder, array).data
        number = context.get_value_type(array_type.dtype)
        place = builder.gep(data, [i])
        return builder.addrspacecast(place, number.as_pointer(space), "place")

    def address(builder, place):
        return builder.ptrtoint(place, ir.IntType(64))

    def copy_emitted(numbers, context, builder, signature, args):
        """Copy so many numbers, up to 16 bytes at a time, past the registers."""
        to_type, _, from_type, _ = signature.args
        to = pointer(context, builder, to_type, args[0], args[1], SHARED)
        source = pointer(context, builder, from_type, args[2], args[3], GLOBAL)
        number = context.get_value_type(to_type.dtype)
        lanes = min(numbers, 16 // context.get_abi_sizeof(number))
        size = lanes * context.get_abi_sizeof(number)
        ahead = cuda.get_current_device().compute_capability >= FIRST_TO_COPY
        for first in range(0, numbers, lanes):
            step = [ir.Constant(ir.IntType(64), first)]
            both = builder.gep(to, step), builder.gep(source, step)
            if ahead:
                cache = "cg" if size == 16 else "ca"  # fewer bytes go through L1
                text = f"cp.async.{cache}.shared.global [$0], [$1], {size};"
                places = [address(builder, place) for place in both]
                instruction(builder, text, "l,l,~{memory}", places)
            else:
                kind = ir.VectorType(number, lanes)
                to_vector = builder.bitcast(both[0], kind.as_pointer(SHARED))
                from_vector = builder.bitcast(both[1], kind.as_pointer(GLOBAL))
                vector = builder.load(from_vector, align=size)
                builder.store(vector, to_vector, align=size)
        return context.get_dummy_value()

    @intrinsic
    def copy_quad(typingctx, shared, i, source, j):
        """Let numbers i to i + 3 be numbers j to j + 3 of source, both multiples of
        four; they have arrived after `wait_for_copies`.
        """
        emit = partial(copy_emitted, 4)
        return types.void(shared, types.int64, source, types.int64), emit

    @intrinsic
    def copy_number(typingctx, shared, i, source, j):
        """Let number i be number j of source, as `copy_quad` does."""
        emit = partial(copy_emitted, 1)
        return types.void(shared, types.int64, source, types.int64), emit

    @intrinsic
    def wait_for_copies(typingctx):
        """Wait until the thread's copies have arrived."""

        def emit(context, builder, signature, args):
            if cuda.get_current_device().compute_capability >= FIRST_TO_COPY:
                instruction(builder, "cp.async.wait_all;", "~{memory}")
            return context.get_dummy_value()

        return types.void(), emit

    @intrinsic
    def add_release(typingctx, a, i):
        """Add one to the counter in number i: who acquires the sum sees what this
        thread wrote and had seen before.
        """

        def emit(context, builder, signature, args):
            place = pointer(context, builder, signature.args[0], *args, GLOBAL)
            text = "red.release.gpu.global.add.u32 [$0], 1;"
            instruction(builder, text, "l,~{memory}", [address(builder, place)])
            return context.get_dummy_value()

        return types.void(a, types.int64), emit

    @intrinsic
    def load_acquire(typingctx, a, i):
        """The counter in number i."""

        def emit(context, builder, signature, args):
            place = pointer(context, builder, signature.args[0], *args, GLOBAL)
            text = "ld.acquire.gpu.global.u32 $0, [$1];"
            word = ir.IntType(32)
            operands = [address(builder, place)]
            got = instruction(builder, text, "=r,l,~{memory}", operands, word)
            return builder.zext(got, ir.IntType(64))

        return types.int64(a, types.int64), emit

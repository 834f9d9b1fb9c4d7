"""The machine that executes kernels' PTX: `check` on kernels in Python (`ptx_kernels`),
and in PTX what Numba has no words for: flags between blocks, copies that arrive later.
"""

import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from test_ptx import without_simulator

from lstm_report.ptx_machine.arrays import Array
from lstm_report.ptx_machine.machine import (
    HERE,
    ORDERS,
    FaultError,
    Machine,
    why_unavailable,
)
from lstm_report.ptx_machine.parse import Program

pytestmark = [
    pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable())),
    pytest.mark.xdist_group("ptx_machine"),
]
KERNELS = str(Path(__file__).with_name("ptx_kernels.py"))


def test_right_kernels_are_without_a_fault_and_compute_what_numpy_does():
    without_simulator(KERNELS, "right")


def test_each_fault_is_reported_where_its_line_says():
    without_simulator(KERNELS, "wrong")


def test_a_launch_that_cannot_be_is_refused():
    without_simulator(KERNELS, "refused")


def test_the_example_of_the_readme_reports_what_it_shows(tmp_path):
    readme = (HERE / "README.md").read_text()
    wrong, output = re.findall("```(?:python|text)\n(.*?)```", readme, re.DOTALL)
    script, barrier = tmp_path / "block_sum.py", "        cuda.syncthreads()\n"
    right = wrong.replace("        half //= 2", f"{barrier}        half //= 2")
    for code, want in ((wrong, output), (right, "sum: 1024.0\n")):
        script.write_text(code)
        lines = "\n".join([*without_simulator(str(script)), ""])
        # Which register it is depends on the compiler.
        lines, want = (re.sub("`.*`", "", text) for text in (lines, want))
        assert lines.replace(f"{tmp_path}/", "") == want


def launch(body, *sizes, blocks=1, order="forward"):
    """The arrays of a kernel in PTX after a launch of 32 threads, and how many faults
    of each kind; its parameters are addresses in %p0, %p1, ..., of so many words each;
    %t is the thread, %b the block, %s four times the thread.
    """
    names = [f"p{i}" for i in range(len(sizes))]
    head = ", ".join(f".param .u64 {name}" for name in names)
    loads = "".join(f"ld.param.u64 %{name}, [{name}]; " for name in names)
    loads += "mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; shl.b32 %o, %t, 2; "
    loads += "cvt.u64.u32 %s, %o; "
    kernel = Program(f".visible .entry k({head}) {{ {loads} {body} ret; }}")
    memory = Machine(order, words=1 << 12, shared_words=1 << 10)
    arrays = [Array.new(memory, (size,), np.uint32) for size in sizes]
    for array in arrays:
        array.copy_to_device(np.zeros(array.shape, array.dtype))
    with suppress(FaultError):
        memory.launch(kernel, blocks, 32, 256, [array.address for array in arrays])
    kinds = Counter()
    for (_, _, kind), found in memory.faults.items():
        kinds[kind] += found.count
    return [array.numbers for array in arrays], kinds


# Block 0 writes 32 numbers and raises a flag, block 1 waits and reads them.
COOPERATIVE = "call.uni (retval0), cudaCGGetIntrinsicHandle, (param0);"
MESSAGE = """
add.s64 %g, %p0, %s; add.s64 %h, %p2, %s;
setp.eq.u32 %first, %t, 0; setp.eq.u32 %writer, %b, 0;
@!%writer bra READER;
st.global.u32 [%g], %t; {settled}
@%first {raise} [%p1], 1;
bra END;
READER: @!%first bra SEEN;
WAIT: {wait} %v, [%p1]; setp.eq.u32 %again, %v, 0; @%again bra WAIT;
SEEN: {seen}
ld.global.u32 %v, [%g]; st.global.u32 [%h], %v;
END:
"""
RIGHT = {
    "settled": "bar.sync 0;",
    "raise": "red.release.gpu.global.add.u32",
    "wait": "ld.acquire.gpu.global.u32",
    "seen": "bar.sync 0;",
}


def message(order="forward", start=COOPERATIVE, **changes):
    body = start + MESSAGE.format(**RIGHT | changes)
    return launch(body, 32, 1, 32, blocks=2, order=order)


@pytest.mark.parametrize("order", ORDERS)
def test_a_block_waits_for_the_flag_of_another(order):
    for way in (
        {},
        {"raise": "st.release.gpu.global.u32"},
        {"raise": "atom.add.acq_rel.gpu.global.u32 %v,", "wait": "ld.acquire.sys.u32"},
    ):
        arrays, kinds = message(order, **way)
        assert not kinds
        np.testing.assert_array_equal(arrays[2], np.arange(32))


@pytest.mark.parametrize("order", ORDERS)
def test_a_flag_without_its_order_is_a_race(order):
    for planted in (
        {"wait": "ld.global.u32 %v, [%p1]; ld.acquire.gpu.global.u32"},
        {"raise": "red.relaxed.gpu.global.add.u32"},
        {"raise": "red.release.cta.global.add.u32"},
        {"raise": "st.global.u32"},
        {"wait": "ld.relaxed.gpu.global.u32"},
        {"wait": "ld.volatile.global.u32"},
        {"settled": ""},
        {"seen": ""},
        {"wait": "add.u64 %unread, %p1, 0; mov.u32 %v, 1; //"},
    ):
        assert set(message(order, **planted)[1]) == {"race"}, planted


def test_a_flag_that_is_not_raised_is_a_deadlock():
    assert message(**{"raise": "setp.eq.u32 %unused, %t, 1; //"})[1] == {"deadlock": 1}
    # Blocks that are not launched together may run one after the other.
    assert message("reverse", start="")[1] == {"deadlock": 1}


@pytest.mark.parametrize("order", ORDERS)
def test_a_warp_waits_for_its_own_lanes_alone(order):
    body = "st.shared.u32 [%s], %t; {} xor.b32 %n, %o, 12; cvt.u64.u32 %n, %n; "
    body += "ld.shared.u32 %v, [%n]; add.s64 %g, %p0, %s; st.global.u32 [%g], %v;"
    (got,), kinds = launch(body.format("bar.warp.sync -1;"), 32, order=order)
    assert not kinds
    np.testing.assert_array_equal(got, np.arange(32) ^ 3)
    assert "race" in launch(body.format(""), 32, order=order)[1]


def test_a_copy_is_there_once_it_is_waited_for():
    body = """
    cp.async.ca.shared.global [%s], [%p0], 4; cp.async.commit_group;
    cp.async.ca.shared.global [%s+128], [%p0], 4; cp.async.commit_group;
    cp.async.wait_group {}; ld.shared.f32 %a, [%s+128];
    """
    assert launch(body.format(0), 1)[1] == {}
    assert launch(body.format(1), 1)[1] == {"unwritten": 32}
    body = """
    add.s64 %g, %p0, %s; st.shared.u32 [%s], %t;
    bar.sync 0; xor.b32 %n, %o, 4; cvt.u64.u32 %n, %n; ld.shared.u32 %v, [%n]; {}
    cp.async.ca.shared.global [%s], [%g], 4; bar.sync 0; cp.async.wait_all;
    """
    assert launch(body.format("bar.sync 0;"), 32)[1] == {}
    assert "race" in launch(body.format(""), 32)[1]

"""The machine that executes kernels' PTX: the faults that it must see, and the GPU
versions on it beside the reference, whose results hold its arithmetic.
"""

import json
import os
from contextlib import suppress

import numpy as np
import pandas as pd
import ptx
import pytest
from ptx_machine import machine
from ptx_machine.cases import CASES, TESTED
from ptx_machine.machine import FaultError, Machine
from ptx_machine.mutations import PLANTED
from ptx_machine.parse import Program
from test_ptx import without_simulator

from lstm_report.measure import results

hostile = pytest.mark.skipif(
    "LSTM_KERNELS_HOSTILE" not in os.environ, reason="takes minutes: make test-hostile"
)
pytestmark = [
    pytest.mark.skipif(
        machine.why_unavailable() is not None, reason=str(machine.why_unavailable())
    ),
    pytest.mark.xdist_group("ptx_machine"),
]


def program(body, arrays):
    """A kernel whose parameters are addresses in %p0, %p1, ...; %t is the thread, %b
    the block.
    """
    names = [f"p{i}" for i in range(arrays)]
    head = ", ".join(f".param .u64 {name}" for name in names)
    loads = "".join(f"ld.param.u64 %{name}, [{name}]; " for name in names)
    loads += "mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; "
    return Program(
        f".visible .entry k({head}) {{ {loads} {body} ret; }}", machine.OPCODES
    )


def launch(body, *arrays, blocks=1, threads=32, shared=256, order="forward"):
    """The arrays after a launch, and how many faults of each kind."""
    memory = Machine(order, words=1 << 16, shared_words=1 << 12)
    places = []
    for array in arrays:
        places.append(memory.allocate(array.nbytes))
        if array.dtype != np.int8:  # which stands for memory that nobody wrote
            memory.write(places[-1], array)
    kernel = program(body, len(arrays))
    with suppress(FaultError):
        memory.launch(kernel, blocks, threads, shared, places)
    pairs = zip(places, arrays, strict=True)
    got = [memory.view(place, array.size, array.dtype) for place, array in pairs]
    return got, memory.kinds()


# Word i of shared memory is thread i's; each reads its neighbour's.
NEIGHBOUR = """
shl.b32 %o, %t, 2; cvt.u64.u32 %s, %o; add.s64 %g, %p0, %s;
st.shared.u32 [%s], %t; {barrier}
xor.b32 %n, %o, {other}; cvt.u64.u32 %n, %n; ld.shared.u32 %v, [%n];
st.global.u32 [%g], %v;
"""
# Block 0 writes 32 numbers and raises a flag, block 1 waits and reads them.
COOPERATIVE = "call.uni (retval0), cudaCGGetIntrinsicHandle, (param0);"
MESSAGE = (
    COOPERATIVE
    + """
shl.b32 %o, %t, 2; cvt.u64.u32 %s, %o; add.s64 %g, %p0, %s; add.s64 %h, %p2, %s;
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
)
RIGHT = {
    "settled": "bar.sync 0;",
    "raise": "red.release.gpu.global.add.u32",
    "wait": "ld.acquire.gpu.global.u32",
    "seen": "bar.sync 0;",
}


def message(order="forward", **changes):
    arrays = np.zeros(32, np.uint32), np.zeros(1, np.uint32), np.zeros(32, np.uint32)
    return launch(MESSAGE.format(**RIGHT | changes), *arrays, blocks=2, order=order)


@pytest.mark.parametrize("order", machine.ORDERS)
def test_threads_of_a_block_wait_for_each_other(order):
    def neighbours(other, barrier):
        body = NEIGHBOUR.format(barrier=barrier, other=4 * other)
        (got,), kinds = launch(body, np.zeros(64, np.uint32), threads=64, order=order)
        return got, kinds

    for other, barrier in [(33, "bar.sync 0;"), (3, "bar.warp.sync -1;")]:
        got, kinds = neighbours(other, barrier)
        assert not kinds
        np.testing.assert_array_equal(got, np.arange(64) ^ other)
    for other, barrier in [(33, ""), (33, "bar.warp.sync -1;"), (3, "")]:
        assert "race" in neighbours(other, barrier)[1]


@pytest.mark.parametrize("order", machine.ORDERS)
@pytest.mark.parametrize(
    "way",
    [
        {},
        {"raise": "st.release.gpu.global.u32"},
        {"raise": "atom.add.acq_rel.gpu.global.u32 %v,", "wait": "ld.acquire.sys.u32"},
    ],
)
def test_a_block_waits_for_another(order, way):
    got, kinds = message(order, **way)
    assert not kinds
    np.testing.assert_array_equal(got[2], np.arange(32))


@pytest.mark.parametrize("order", machine.ORDERS)
@pytest.mark.parametrize(
    "planted",
    [
        {"wait": "ld.global.u32 %v, [%p1]; ld.acquire.gpu.global.u32"},
        {"raise": "red.relaxed.gpu.global.add.u32"},
        {"raise": "red.release.cta.global.add.u32"},
        {"raise": "st.global.u32"},
        {"wait": "ld.relaxed.gpu.global.u32"},
        {"wait": "ld.volatile.global.u32"},
        {"settled": ""},
        {"seen": ""},
        {"wait": "add.u64 %unread, %p1, 0; mov.u32 %v, 1; //"},
    ],
)
def test_a_message_without_its_order_is_a_race(planted, order):
    kinds = message(order, **planted)[1]
    assert set(kinds) == {"race"}, kinds


def test_threads_that_wait_for_ever():
    assert message(**{"raise": "setp.eq.u32 %unused, %t, 1; //"})[1] == {"deadlock": 1}
    alone = MESSAGE.removeprefix(COOPERATIVE).format(**RIGHT)
    arrays = [np.zeros(32, np.uint32) for _ in range(3)]
    assert launch(alone, *arrays, blocks=2, order="reverse")[1] == {"deadlock": 1}
    some = "setp.lt.u32 %some, %t, 7; @%some {};"
    assert launch(some.format("bar.sync 0"))[1] == {"diverged barrier": 1}
    grid = "call.uni (retval0), cudaCGSynchronize, (param0)"
    missed = {"grid barrier not reached": 1}
    assert launch(COOPERATIVE + some.format(grid), blocks=2)[1] == missed
    assert launch(grid + ";", blocks=2)[1] == missed
    assert launch(COOPERATIVE + grid + ";", blocks=2)[1] == {}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("ld.global.v4.f32 {%a, %c, %d, %e}, [%p0+4];", "misaligned"),
        ("ld.global.v2.f32 {%a, %c}, [%p0+12];", "misaligned"),
        ("st.global.f64 [%p0+4], 0d0000000000000000;", "misaligned"),
        ("ld.global.u32 %a, [%p0+64];", "outside"),
        ("ld.global.u32 %a, [%p0+-4];", "outside"),
        ("st.global.u32 [%p0+16777216], 1;", "outside"),
        ("ld.shared.u32 %a, [256];", "outside"),
        ("cvta.shared.u64 %g, 256; ld.u32 %a, [%g];", "outside"),
        ("ld.local.u32 %a, [0];", "outside"),
        ("ld.global.u32 %a, [%p1];", "unwritten"),
        ("ld.shared.u32 %a, [0];", "unwritten"),
        ("trap;", "trapped"),
    ],
)
def test_an_access_that_is_wrong(body, kind):
    arrays = np.zeros(16, np.float32), np.zeros(64, np.int8)
    assert launch(body, *arrays, threads=1)[1] == {kind: 1}


def test_reads_and_writes_of_two_blocks():
    """Before the launch is before; within it nothing is ordered but by flags."""
    one = np.zeros(1, np.uint32)
    assert launch("ld.global.u32 %a, [%p0];", one, blocks=3)[1] == {}
    assert launch("red.global.add.u32 [%p0], 1;", one, blocks=3)[1] == {}
    store = "setp.eq.u32 %x, %b, {}; @%x st.global.u32 [%p0], 1;"
    for block in range(3):
        body = "ld.global.u32 %a, [%p0];" + store.format(block)
        for how in ("", COOPERATIVE):
            assert "race" in launch(how + body, one, blocks=3, threads=1)[1]
    assert "race" in launch("st.global.u32 [%p0], 1;", one, blocks=2, threads=1)[1]


def test_copies_that_nobody_waits_for():
    body = """
    cp.async.ca.shared.global [0], [%p0], 16; cp.async.commit_group;
    cp.async.ca.shared.global [16], [%p0+16], 16; cp.async.commit_group;
    cp.async.wait_group {}; ld.shared.f32 %a, [28]; st.global.f32 [%p0], %a;
    """
    numbers = np.arange(8, dtype=np.float32)
    got, kinds = launch(body.format(0), numbers, threads=1)
    assert (got[0][0], kinds) == (7, {})
    assert launch(body.format(1), numbers, threads=1)[1] == {"unwritten": 1}
    body = """
    shl.b32 %o, %t, 2; cvt.u64.u32 %s, %o; add.s64 %g, %p0, %s; st.shared.u32 [%s], %t;
    bar.sync 0; xor.b32 %n, %o, 4; cvt.u64.u32 %n, %n; ld.shared.u32 %v, [%n]; {}
    cp.async.ca.shared.global [%s], [%g], 4; bar.sync 0; cp.async.wait_all;
    """
    numbers = np.zeros(32, np.uint32)
    assert launch(body.format("bar.sync 0;"), numbers)[1] == {}
    assert "race" in launch(body.format(""), numbers)[1]


def check(*words):
    """The rows of cases that a process without the simulator runs: each is right,
    without a fault; a case has the same bits in every order.
    """
    bits, rows = {}, printed(*words)
    for row in rows:
        assert row["wrong"] is None, row
        assert row["faults"] == []
        assert row["accesses"] > 0
        assert bits.setdefault(row["case"], row["bits"]) == row["bits"]
    return rows


def printed(*words):
    """What a process prints that runs cases, or plants faults."""
    lines = without_simulator("-m", "ptx_machine", *words)
    return [json.loads(line) for line in lines]


def test_versions_on_the_machine():
    """Each kind of kernels once; epochs in tiles of samples."""
    rows = check("random", *({*TESTED} - {"epoch"}), "epoch, tiles")
    assert len({row["version"] for row in rows}) == 6  # V2's kernels are V1's


@hostile
@pytest.mark.parametrize("name", CASES)
def test_all_cases_in_every_order(name):
    check(*machine.ORDERS, name)


@hostile
@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults(name):
    """But for what is harmless each is reported, or leads to another result."""
    rows = pd.DataFrame(printed("plant", name))
    found = rows.groupby(["kernel", "planted", "outcome"]).size().unstack(fill_value=0)
    print(found.to_string())
    kinds = rows.groupby("planted")["outcome"].agg(set)
    flags = {"a release less", "a plain flag", "a wait less", "an acquire less"}
    assert flags <= {*kinds.index} or name != "persistent"
    # A wait's first try never succeeds: what it acquires does not matter.
    some = {"a barrier less", "a bound off by one", "an acquire less"}
    assert all("reported" in outcomes for outcomes in kinds)
    assert all(kinds[planted] == {"reported"} for planted in {*kinds.index} - some)


def test_the_record_is_of_these_kernels():
    recorded = pd.read_csv(results.FOLDER / "ptx-machine.csv")
    assert set(recorded["sources"]) == {ptx.sources()}, "want `make ptx`"
    assert (recorded["faults"] == 0).all()
    assert (recorded[["passes", "parameters"]] < 2e-5).all(axis=None)

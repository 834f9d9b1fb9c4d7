"""Files: whole or refused, whoever writes at the same time, stops half-way or damages
them.
"""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import HOSTILE

import lstm_kernels as lk
from lstm_kernels import data, files

MUTANTS = 20_000 if HOSTILE else 400
RUN = {"epochs": 2, "batch_size": 5, "learning_rate": 0.01, "optimizer": "adam"}
DATASET = data.windows(np.sin(np.arange(30) / 3), 8)
posix = pytest.mark.skipif(os.name == "nt", reason="POSIX modes and links")


def parts(content):
    """The members of an .npz file, by name."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return {name: file.read(name) for name in file.namelist()}


def archive(members, method=zipfile.ZIP_STORED, twice=()):
    """The bytes of an .npz file; twice: names of members that it holds once more."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as file:
        for name in (*members, *twice):
            file.writestr(name, members[name])
    return stream.getvalue()


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def array(member):
    return np.load(io.BytesIO(member))


def small(layers=1):
    """Parameters of one unit."""
    return lk.Params.init(1, 1, num_layers=layers)


def network(seed=0):
    return lk.network("numpy", lk.Params.init(1, 2, output_size=1, seed=seed))


def parameters(path):
    """Write a file of parameters; return what gives its content as named arrays."""
    lk.Params.init(2, 3, num_layers=2, output_size=2).save(path)
    return lambda: lk.Params.load(path).arrays()


def checkpoint(path):
    """The same of a checkpoint."""
    lk.train(network(), DATASET, checkpoint=path, **RUN)

    def read():
        net = network(seed=1)
        before = net.params()
        try:
            history = lk.train(net, DATASET, checkpoint=path, resume=True, **RUN)
        except BaseException:  # refused: nothing may have changed
            for name, a in net.params().arrays().items():
                np.testing.assert_array_equal(a, before.arrays()[name])
            raise
        return net.params().arrays() | vars(history)

    return read


def mutants(content):
    """Damaged files: a byte changed, the end cut off, and a byte changed where NumPy
    keeps shape and dtype, of which no checksum tells.
    """
    rng, members = np.random.default_rng(0), parts(content)
    for index in range(MUTANTS):
        damaged, at = bytearray(content), rng.integers(len(content))
        if index % 3 == 0:
            damaged[at] = rng.integers(256)
        elif index % 3 == 1:
            del damaged[at:]
        else:
            name = rng.choice([*members])
            inner = bytearray(members[name])
            inner[rng.integers(128)] = rng.integers(256)
            damaged = archive(members | {name: bytes(inner)})
        yield bytes(damaged)


@pytest.mark.parametrize("write", [parameters, checkpoint])
def test_a_damaged_file_is_a_value_error_that_names_it_or_holds_the_same(
    tmp_path, write
):
    path = tmp_path / "file.npz"
    read = write(path)
    want, content, refused = read(), path.read_bytes(), []
    for index, wrong in enumerate(mutants(content)):
        path.write_bytes(wrong)
        try:
            got = read()
        except ValueError as error:
            refused.append(str(error))
            continue
        for name, a in want.items():  # dates and attributes of a zip file are not ours
            np.testing.assert_array_equal(got[name], a, err_msg=f"{index} {name}")
    assert all(str(path) in text for text in refused)
    assert len(refused) > 0.7 * MUTANTS


def damaged(content, part, change):
    """A file with one part changed: its text (the header), its array, its bytes
    (named as in the archive); None: all of it.
    """
    if part is None:
        return change(content)
    members = parts(content)
    if part.endswith(".npy"):
        changed = change(members.pop(part, None))
        members |= {} if changed is None else {part: changed}
        return archive(members, PACKED if change is large else zipfile.ZIP_STORED)
    old = array(members[f"{part}.npy"])
    new = np.array(change(str(old))) if part == "header" else change(old)
    return archive(members | {f"{part}.npy": npy(new)})


def with_shape(shape):
    def change(text):
        header = json.loads(text)
        header["arrays"]["V"] = shape
        return json.dumps(header)

    return change


def flipped(content):
    """A bit of V is another one."""
    at = content.index(b"V.npy") + 160
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def put(old, new):
    return lambda content: content.replace(old, new)


def large(member):
    return bytes(30 << 20)  # few as they are packed


PACKED = zipfile.ZIP_DEFLATED
BEHIND = r"is not a whole file .*\(layers.0.U: got bytes behind"
PARAMETERS = [
    ("header", put("lstm_kernels", "other"), "has format 'other.params/3', want 'lst"),
    ("header", put('"lstm"', '["lstm"]'), r"params.cell: got \['lstm'\], want one"),
    ("header", put('"cell"', '"sell"'), r"KeyError\('cell'\)"),
    ("header", lambda text: "[3]", r"is not a whole file of .*\(header: TypeError"),
    ("header", lambda text: "[" * 10_000, r"is not a whole file .*\(header: "),
    *(("header", with_shape(wrong), "") for wrong in ([3, "a"], None, [1e300, 1e300])),
    (None, flipped, r"is not a whole file .*\(V: .*CRC"),
    ("b_out", lambda a: np.array([{}]), r".*\(b_out: Object arr"),
    ("layers.0.U.npy", put(b"(2, 12)", b"(1, 12)"), BEHIND),
    # A header that ends 16 spaces earlier: its last ones would be numbers.
    ("layers.0.U.npy", lambda a: a[:8] + bytes([a[8] - 16]) + a[9:], BEHIND),
    (
        "layers.0.U.npy",
        put(b"(2, 12)", b"(12, 2)"),
        r".* shape {'layers.0.U': \[12, 2\]}, want {'layers.0.U': \[2, 12\]}",
    ),
    (
        "V.npy",
        lambda member: None,
        r"is not a whole .*{'V': None}, want {'V': \[3, 2\]",
    ),
    (None, lambda content: npy(np.ones(3)), r"is not a whole file .*\(archive: "),
    (None, lambda content: b"", r"is not a whole file .*\(archive: "),
    # What unpacks to more than the file has is not unpacked.
    *((f"{name}.npy", large, ".*unpacks to 314") for name in ("V", "more", "header")),
    ("more.npy", lambda member: npy(np.ones(3)), r".*{'more': \[3\]}, want .*None"),
    (None, lambda old: archive(parts(old), twice=["V.npy"]), ".*V: got it twice, want"),
]
CHECKPOINT = [
    ("params.V", lambda a: a * np.nan, "params.V: got nan"),
    ("params.V", lambda a: a.astype(float), ".*params.V: got dtype float64, want fl"),
    ("optimizer.m.V", lambda a: a[:1], r".*'optimizer.m.V': \[1, 1\]}, want .*2, 1"),
    ("optimizer.v.V", lambda a: a + np.inf, "optimizer.v.V: got inf"),
    ("history.loss", lambda a: a * np.nan, "history.loss: got nan"),
    ("history.loss", lambda a: a.astype(str), ".*history.loss: got dtype <U"),
]
CASES = [(parameters, "path", *case) for case in PARAMETERS]
CASES += [(checkpoint, "checkpoint", *case) for case in CHECKPOINT]


@pytest.mark.filterwarnings("ignore:Duplicate name")  # of zipfile, which writes it
@pytest.mark.parametrize(("write", "name", "part", "change", "message"), CASES)
def test_what_a_file_cannot_hold_is_refused(
    tmp_path, write, name, part, change, message
):
    path = tmp_path / "file.npz"
    read = write(path)
    path.write_bytes(damaged(path.read_bytes(), part, change))
    with pytest.raises(ValueError, match=f"{name}: .*file.npz: {message}") as got:
        read()
    assert len(str(got.value)) < 1300


# --- writing


def half(path):
    """What goes wrong in the middle of a write."""
    with files.writing(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, system):
    path = tmp_path / "file"
    with files.writing(path) as file:
        file.write(b"old\n")
    with pytest.raises(KeyboardInterrupt):
        half(path)
    assert content_of(tmp_path) == {"file": b"old\n"}
    system("fsync", refusing("ENOSPC"))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        small().save(path)
    assert content_of(tmp_path) == {"file": b"old\n"}


def content_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def system(monkeypatch):
    """Put another function in the place of one of the system's."""
    return lambda name, function: monkeypatch.setattr(os, name, function)


def refusing(name):
    """A function that fails with an error of the system."""
    code = getattr(errno, name)

    def refuse(*what, **how):
        raise OSError(code, os.strerror(code))

    return refuse


def test_a_file_is_on_the_disk_before_it_takes_its_place(tmp_path, system):
    calls, replace = [], os.replace
    system("fsync", lambda number: calls.append(os.fstat(number).st_size))
    system("replace", lambda *paths: calls.append("renamed") or replace(*paths))
    with files.writing(tmp_path / "file") as file:
        file.write(b"123")
    assert calls == [3, "renamed"]


@posix
def test_modes_and_links_are_kept(tmp_path):
    real, link = tmp_path / "real.npz", tmp_path / "link.npz"
    link.symlink_to(real)
    old = os.umask(0o027)
    try:
        small().save(link)  # through a link to nothing yet
        assert (real.stat().st_mode & 0o777, link.is_symlink()) == (0o640, True)
        real.chmod(0o600)
        with files.writing(link) as file:
            file.write(b"new")
            beside = [p for p in tmp_path.iterdir() if p not in (real, link)]
            assert [p.stat().st_mode & 0o777 for p in beside] == [0o600]
        small().save(real)
    finally:
        os.umask(old)
    assert (real.stat().st_mode & 0o777, link.is_symlink()) == (0o600, True)
    assert sorted(content_of(tmp_path)) == ["link.npz", "real.npz"]
    lk.Params.load(link)


@posix
@pytest.mark.parametrize("function", ["chmod", "fsync"])
@pytest.mark.parametrize("name", ["EPERM", "ENOTSUP", "ENOSYS", "EINVAL"])
def test_what_a_file_system_cannot_do_stops_no_write(tmp_path, system, function, name):
    path = tmp_path / "net.npz"
    small().save(path)
    system(function, refusing(name))
    small(layers=2).save(path)
    assert lk.Params.load(path).num_layers == 2


@pytest.mark.parametrize("step", ["fsync", "replace", "open"])
@pytest.mark.parametrize("exists", [False, True])
def test_what_a_checkpoint_will_do_is_tried_before_the_first_epoch(
    tmp_path, system, step, exists
):
    path, net = tmp_path / "run.npz", network()
    if exists:
        lk.train(net, DATASET, checkpoint=path, **RUN | {"epochs": 1})
    params, before = net.params().arrays(), content_of(tmp_path)
    if step == "open":
        path = tmp_path / "none" / "run.npz"
    else:
        system(step, refusing("EACCES"))
    with pytest.raises(OSError, match=f"checkpoint: .*{tmp_path.name}"):
        lk.train(net, DATASET, checkpoint=path, resume=exists, **RUN)
    for name, a in net.params().arrays().items():
        np.testing.assert_array_equal(a, params[name])
    assert content_of(tmp_path) == before


def test_threads_may_save_to_one_path(tmp_path):
    path = tmp_path / "net.npz"
    params = [lk.Params.init(1, size, num_layers=2, seed=size) for size in (3, 40)]
    params[0].save(path)
    with ThreadPoolExecutor(6) as pool:
        works = [params[0].save, params[1].save, lk.Params.load] * 100
        for done in [pool.submit(work, path) for work in works]:
            done.result()
    assert list(content_of(tmp_path)) == ["net.npz"]


@pytest.mark.parametrize("path", [3, None, b"net.npz", "", "a\0b", "folder/"])
def test_what_is_no_path(path):
    want = r"^path: got .*, want the path of a (regular )?file$"
    for call in (small().save, lk.Params.load):
        with pytest.raises((TypeError, ValueError), match=want):
            call(path)


def test_no_folder_and_no_file_is_written_over(tmp_path):
    for call in (small().save, lk.Params.load):  # the name is that of the call
        with pytest.raises(FileNotFoundError, match=r"none/net.npz'$"):
            call(tmp_path / "none" / "net.npz")
    assert not list(tmp_path.iterdir())


@posix
@pytest.mark.parametrize("kind", ["folder", "FIFO", "device", "link to a device"])
def test_what_is_no_regular_file_is_neither_opened_nor_replaced(tmp_path, kind):
    path, held = tmp_path / "there", None
    if kind == "folder":
        path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path)
        held = os.open(path, os.O_RDWR)  # who opens it all the same does not wait
    elif kind == "device":
        path = os.devnull
    else:
        path.symlink_to(os.devnull)
    before = os.lstat(path)
    net, how = network(), {"checkpoint": path, **RUN}
    for call in (
        small().save,
        lk.Params.load,
        lambda path: lk.train(net, DATASET, **how),
        lambda path: lk.train(net, DATASET, resume=True, **how),
    ):
        with pytest.raises(ValueError, match=r"got .*, want the path of a regular fi"):
            call(path)
    assert os.lstat(path)[:2] == before[:2]  # its mode and number
    if held is not None:
        os.close(held)


# --- what killed writers leave

# Processes that die while they write: half a file, the trial of a place.
HALF = "with writing(path) as file: file.write(b'half'); file.flush(); die()"
TRIAL = "os.replace = die; check_place('path', path)"
DYING = """
import os, signal, sys
from lstm_kernels.files import check_place, writing
path = sys.argv[1]
def die(*paths):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def process(code, path):
    """Run code of files in a process of its own; returns how it ended."""
    words = [sys.executable, "-c", DYING + code, str(path)]
    return subprocess.run(words, timeout=300).returncode


@posix
@pytest.mark.parametrize("dying", [HALF, TRIAL])
def test_the_next_writer_removes_what_a_killed_one_left(tmp_path, dying):
    path = tmp_path / "net[1].npz"
    assert process(dying, path) == -signal.SIGKILL
    (left,) = content_of(tmp_path)
    assert left.endswith(".part")
    small().save(path)
    assert list(content_of(tmp_path)) == [path.name]


@posix
def test_what_others_write_or_keep_is_not_swept(tmp_path):
    path, number = tmp_path / "net.npz", "0123456789abcdef"
    (tmp_path / "real").write_bytes(b"kept")
    os.mkfifo(tmp_path / f".net.npz.{number}.part")
    (tmp_path / f".net.npz.{number[::-1]}.part").mkdir()
    (tmp_path / f".net.npz.{'0' * 16}.part").symlink_to(tmp_path / "real")
    for name in (f".other.npz.{number}", ".net.npz.checkpoint-00001", ".net.npz"):
        (tmp_path / f"{name}.part").write_bytes(b"kept")
    before = {*os.listdir(tmp_path)}
    with files.writing(path) as living:
        living.write(b"of the first")
        assert process("with writing(path) as file: file.write(b'other')", path) == 0
        assert path.read_bytes() == b"other"
    assert path.read_bytes() == b"of the first"
    assert {*os.listdir(tmp_path)} == before | {path.name}


@posix
def test_a_file_that_is_swept_before_it_is_locked_is_made_anew(tmp_path, monkeypatch):
    import fcntl

    path, lock, between = tmp_path / "file", fcntl.flock, []

    def late(file, how):
        if how == fcntl.LOCK_EX and not between:
            between.append(file.name)
            with files.writing(path) as other:
                other.write(b"other")
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with files.writing(path) as file:
        assert not os.path.exists(between[0])
        file.write(b"mine")
    assert content_of(tmp_path) == {"file": b"mine"}


@posix
def test_without_locks_nothing_is_swept(tmp_path, monkeypatch, system):
    left, replace, done = tmp_path / f".file.{'a' * 16}.part", os.replace, []
    left.touch()
    monkeypatch.setattr("fcntl.flock", refusing("ENOTSUP"))

    def once_closed(*paths):  # where no open file can be renamed
        done.append(paths)
        (refusing("EACCES") if len(done) == 1 else replace)(*paths)

    system("replace", once_closed)
    with files.writing(tmp_path / "file") as file:
        file.write(b"new")
    assert content_of(tmp_path) == {"file": b"new", left.name: b""}


def test_a_name_may_be_as_long_as_the_file_system_takes(tmp_path):
    path = tmp_path / ("n" * 251 + ".npz")
    files.check_place("path", path)
    for _ in range(2):
        small().save(path)
    assert list(content_of(tmp_path)) == [path.name]

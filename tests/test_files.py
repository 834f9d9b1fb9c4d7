"""Files: whole or refused, whoever writes at the same time, stops half-way or damages
them.
"""

import errno
import io
import json
import os
import threading
import tracemalloc
import zipfile

import numpy as np
import pytest
from conftest import example

import lstm_kernels as lk
from lstm_kernels import data, files

MUTANTS = 20_000 if os.environ.get("LSTM_KERNELS_HOSTILE") else 400
RUN = {"epochs": 2, "batch_size": 5, "learning_rate": 0.01, "optimizer": "adam"}
DATASET = data.windows(np.sin(np.arange(30) / 3), 8)
posix = pytest.mark.skipif(os.name == "nt", reason="POSIX modes and links")


def parts(content):
    """The members of an .npz file, by name."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return {name: file.read(name) for name in file.namelist()}


def archive(members, method=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return stream.getvalue()


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def array(members, name):
    return np.load(io.BytesIO(members[f"{name}.npy"]))


def small():
    """Parameters of one unit."""
    return example((1, 1, 1, 1, 1))[0]


def network(seed=0):
    return lk.network("numpy", lk.Params.init(1, 2, output_size=1, seed=seed))


def parameters(path):
    """Write a file of parameters; return what gives its content as named arrays."""
    example((2, 1, 1, 2, 3))[0].save(path)
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


JSON = ["null", "3", "[]", "{}", "[" * 3000, '"text"', "", "1" * 5000, "NaN"]
JSON += ['{"format": []}', '{"format": {"a": 1}, "cell": ["lstm"]}', "\ud800"]
JSON += ['{"run": 3, "cell": 1e999}']


def mutants(content, count):
    """Damaged files: bytes changed, cut, doubled; members swapped, dropped, changed;
    headers of other JSON.
    """
    rng = np.random.default_rng(0)
    members = parts(content)
    names = list(members)
    for index in range(count):
        damaged = bytearray(content)
        match index % 8:
            case 0 | 1 | 2:
                for at in rng.integers(len(content), size=rng.integers(1, 4)):
                    damaged[at] = rng.integers(256)
            case 3:
                del damaged[rng.integers(len(content)) :]
            case 4:
                at, length = rng.integers(len(content)), rng.integers(1, 200)
                again = damaged[at // 2 : at // 2 + rng.integers(200)]
                damaged[at : at + length] = again
            case 5:  # with one of another form: two alike make a sound file
                one = rng.choice(names)
                others = [n for n in names if len(members[n]) != len(members[one])]
                two = rng.choice(others)
                swapped = members | {one: members[two], two: members[one]}
                if rng.random() < 0.3:
                    del swapped[one]
                damaged = archive(swapped)
            case 6:  # where NumPy keeps shape and dtype
                name = rng.choice(names)
                inner = bytearray(members[name])
                inner[rng.integers(128)] = rng.integers(256)
                damaged = archive(members | {name: bytes(inner)})
            case 7:
                text = str(np.load(io.BytesIO(members["header.npy"])))
                keys = [*json.loads(text), *json.loads(text).get("run", {})]
                key, value = rng.choice(keys), rng.choice(JSON)
                wrong = text.replace(f'"{key}": ', f'"{key}": {value} ')
                wrong = value if rng.random() < 0.3 else wrong
                damaged = archive(members | {"header.npy": npy(np.array(wrong))})
        yield index, bytes(damaged)


@pytest.mark.parametrize("write", [parameters, checkpoint])
def test_a_damaged_file_is_a_value_error_that_names_it_or_holds_the_same(
    tmp_path, write
):
    path = tmp_path / "file.npz"
    read = write(path)
    want, content, refused, unnamed = read(), path.read_bytes(), 0, 0
    for index, damaged in mutants(content, MUTANTS):
        path.write_bytes(damaged)
        try:
            got = read()
        except ValueError as error:
            refused += str(path) in str(error)
            unnamed += str(path) not in str(error)
            continue
        for name, a in want.items():  # dates and attributes of a zip file are not ours
            np.testing.assert_array_equal(got[name], a, err_msg=f"{index} {name}")
    assert not unnamed
    assert refused > 0.7 * MUTANTS


def with_array(name, change):
    """What changes an array of a file."""

    def changed(content):
        members = parts(content)
        return archive(members | {f"{name}.npy": npy(change(array(members, name)))})

    return changed


def with_header(change):
    """What changes the JSON header of a file: its text, or what that tells."""

    def changed(content):
        members = parts(content)
        text = change(str(array(members, "header")))
        return archive(members | {"header.npy": npy(np.array(text))})

    return changed


def with_shape(shape):
    def change(text):
        header = json.loads(text)
        header["arrays"]["V"] = shape
        return json.dumps(header)

    return with_header(change)


def with_member(name, change):
    """What puts other bytes into a member of a file, or takes it away."""

    def changed(content):
        members = parts(content)
        new = change(members.pop(name, b""))
        members |= {} if new is None else {name: new}
        return archive(members, zipfile.ZIP_DEFLATED)

    return changed


def flipped(content):
    """A bit of V is another one."""
    at = content.index(b"V.npy") + 160
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def shorter(member):
    """A member that claims fewer numbers than it has."""
    return member.replace(b"(2, 12)", b"(1, 12)")


def replaced(old, new):
    return with_header(lambda text: text.replace(old, new))


def large(member):
    return bytes(30 << 20)  # few as they are packed


PARAMETERS = [
    (replaced("lstm_kernels", "other"), "has format 'other.params/3', want 'lst"),
    (replaced('"lstm"', '["lstm"]'), r"params.cell: got \['lstm'\], want one"),
    (replaced('"cell"', '"sell"'), "KeyError 'cell'"),
    (with_header(lambda text: "[3]"), r"is not a whole file of .*\(header: TypeError"),
    (with_header(lambda text: "[" * 10_000), r"is not a whole file .*\(header: "),
    (replaced("{", '{"arrays": 3, "a": {'), "is not a whole file"),
    *((with_shape(shape), "") for shape in ([3, "a"], "text", None, [1e300, 1e300])),
    (with_shape([[2], 2]), ""),
    (flipped, r"is not a whole file .*\(V: .*CRC"),
    (with_array("b_out", lambda a: np.array([{}])), r".*\(b_out: Object arr"),
    (
        with_member("layers.0.U.npy", shorter),
        r".* shape {'layers.0.U': \[1, 12\]}, want {'layers.0.U': \[2, 12\]}",
    ),
    (with_member("V.npy", lambda member: None), r"is not a whole .*\(V: KeyError"),
    (lambda content: npy(np.ones(3)), r"is not a whole file .*\(archive: "),
    (lambda content: b"", r"is not a whole file .*\(archive: "),
    # What unpacks to more than the file tells of, is not unpacked.
    (with_member("V.npy", large), ".*V: has 31457280 bytes, want"),
    (with_member("more.npy", large), ".*'more': 'unknown'"),
    (with_member("header.npy", large), ".*header: has 314"),
]
CHECKPOINT = [
    ("params.V", lambda a: a * np.nan, "params.V: got nan"),
    ("params.V", lambda a: a.astype(float), ".*params.V: got dtype float64, want fl"),
    ("optimizer.m.V", lambda a: a[:1], r".*'optimizer.m.V': \[1, 1\]}, want .*2, 1"),
    ("optimizer.v.V", lambda a: a + np.inf, "optimizer.v.V: got inf"),
    ("history.loss", lambda a: a[:1], r".*'history.loss': \[1\]}, want .*\[2\]"),
    ("history.loss", lambda a: a * np.nan, "history.loss: got nan"),
    ("history.loss", lambda a: a.astype(str), ".*history.loss: got dtype <U"),
]
CASES = [(parameters, "path", *case) for case in PARAMETERS]
for name, change, message in CHECKPOINT:
    CASES.append((checkpoint, "checkpoint", with_array(name, change), message))


@pytest.mark.parametrize(("write", "name", "change", "message"), CASES)
def test_what_a_file_cannot_hold_is_refused(tmp_path, write, name, change, message):
    path = tmp_path / "file.npz"
    read = write(path)
    path.write_bytes(change(path.read_bytes()))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"{name}: .*file.npz: {message}") as got:
            read()
        assert tracemalloc.get_traced_memory()[1] < 5 << 20
    finally:
        tracemalloc.stop()
    assert len(str(got.value)) < 1300


# --- writing


@pytest.mark.parametrize("failure", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("text", [False, True])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, failure, text):
    path = tmp_path / "file"
    with files.writing(path, text=True) as file:
        file.write("old\n")

    def fail():
        with files.writing(path, text=text) as file:
            file.write("half" if text else b"half")
            raise failure

    with pytest.raises(failure):
        fail()
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
    path, calls = tmp_path / "file", []
    sync, replace = os.fsync, os.replace

    def synced(descriptor):
        calls.append(os.fstat(descriptor).st_size)
        sync(descriptor)

    def replaced(source, target):
        calls.append("renamed")
        replace(source, target)

    system("fsync", synced)
    system("replace", replaced)
    with files.writing(path) as file:
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
    path.chmod(0o600)
    system(function, refusing(name))
    example((2, 1, 1, 2, 3))[0].save(path)
    assert lk.Params.load(path).num_layers == 2


@pytest.mark.parametrize("name", ["EIO", "ENOSPC", "EDQUOT"])
def test_a_disk_that_fails_fails_the_write_and_keeps_the_old_file(
    tmp_path, system, name
):
    path = tmp_path / "net.npz"
    small().save(path)
    old = path.read_bytes()
    system("fsync", refusing(name))
    with pytest.raises(OSError, match=os.strerror(getattr(errno, name))):
        small().save(path)
    assert content_of(tmp_path) == {"net.npz": old}


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
    path, failed = tmp_path / "net.npz", []
    params = [lk.Params.init(1, size, num_layers=2, seed=size) for size in (3, 40)]
    params[0].save(path)

    def run(work):
        try:
            for _ in range(60):
                work(path)
        except BaseException as error:
            failed.append(error)

    works = [*(p.save for p in params * 2), lk.Params.load, lk.Params.load]
    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert list(content_of(tmp_path)) == ["net.npz"]


@pytest.mark.parametrize("path", [3, None, b"net.npz", "", "a\0b", "folder/"])
def test_what_is_no_path(path):
    want = r"^path: got .*, want the path of a file$"
    for call in (small().save, lk.Params.load):
        with pytest.raises((TypeError, ValueError), match=want):
            call(path)


def test_no_folder_and_no_file_is_written_over(tmp_path):
    params = small()
    with pytest.raises(ValueError, match="which is no file, want the path of a file"):
        params.save(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"none/net.npz'$"):  # as it was called
        params.save(tmp_path / "none" / "net.npz")
    with pytest.raises(FileNotFoundError):
        lk.Params.load(tmp_path / "none.npz")
    params.b_out = None
    with pytest.raises(ValueError, match="got V without b_out, want both or neither"):
        params.save(tmp_path / "net.npz")
    assert not list(tmp_path.iterdir())


def test_a_name_may_be_as_long_as_the_file_system_takes(tmp_path):
    path = tmp_path / ("n" * 251 + ".npz")
    files.check_place("path", path)
    for _ in range(2):
        small().save(path)
    assert list(content_of(tmp_path)) == [path.name]

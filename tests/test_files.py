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


def parts(content):
    """The members of an .npz file, by name."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return {name: file.read(name) for name in file.namelist()}


def archive(members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return stream.getvalue()


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def with_header(content, change):
    """The file with `change` applied to its JSON header, the bytes of text."""
    members = parts(content)
    text = str(np.load(io.BytesIO(members["header.npy"])))
    return archive(members | {"header.npy": npy(np.array(change(text)))})


def with_array(content, name, change):
    members = parts(content)
    array = np.load(io.BytesIO(members[f"{name}.npy"]))
    return archive(members | {f"{name}.npy": npy(change(array))})


@pytest.fixture(scope="module")
def dataset():
    return data.windows(np.sin(np.arange(30) / 3), 8)


@pytest.fixture(scope="module", params=["parameters", "checkpoint"])
def kind(request, dataset, tmp_path_factory):
    """(path, its content, read): read() gives what the file holds, as named arrays."""
    path = tmp_path_factory.mktemp(request.param) / "file.npz"
    if request.param == "parameters":
        example((2, 1, 1, 2, 3))[0].save(path)
        return path, path.read_bytes(), lambda: lk.Params.load(path).arrays()

    def make(seed):
        return lk.network("numpy", lk.Params.init(1, 2, output_size=1, seed=seed))

    lk.train(make(0), dataset, checkpoint=path, **RUN)

    def read():
        net = make(1)
        before = net.params()
        try:
            history = lk.train(net, dataset, checkpoint=path, resume=True, **RUN)
        except BaseException:  # refused: nothing may have changed
            for name, a in net.params().arrays().items():
                np.testing.assert_array_equal(a, before.arrays()[name])
            raise
        return net.params().arrays() | vars(history)

    return path, path.read_bytes(), read


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


def test_a_damaged_file_is_a_value_error_that_names_it_or_holds_the_same(kind):
    path, content, read = kind
    path.write_bytes(content)
    want, refused, unnamed = read(), 0, 0
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


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("params.V", lambda a: a * np.nan, "params.V: got nan"),
        ("params.V", lambda a: a.astype(float), "params.V: got dtype float64, want fl"),
        ("optimizer.m.V", lambda a: a[:1], r"'optimizer.m.V': \[1, 1\]}, want .*2, 1"),
        ("optimizer.v.V", lambda a: -a, "optimizer.v.V: got -"),
        ("optimizer.v.V", lambda a: a + np.inf, "optimizer.v.V: got inf"),
        ("history.loss", lambda a: a[:1], r"'history.loss': \[1\]}, want .*\[2\]"),
        ("history.loss", lambda a: a * np.nan, "history.loss: got nan"),
        ("history.loss", lambda a: a.astype(str), "history.loss: got dtype <U"),
        ("history.seconds", lambda a: -a, "history.seconds: got -"),
    ],
)
def test_an_array_of_a_checkpoint_that_cannot_be_is_refused(
    tmp_path, dataset, name, change, message
):
    path = tmp_path / "run.npz"
    net = lk.network("numpy", lk.Params.init(1, 2, output_size=1))
    lk.train(net, dataset, checkpoint=path, **RUN)
    path.write_bytes(with_array(path.read_bytes(), name, change))
    before = net.params()
    with pytest.raises(ValueError, match=f"checkpoint: .*run.npz.*{message}"):
        lk.train(net, dataset, checkpoint=path, resume=True, **RUN)
    for key, a in net.params().arrays().items():
        np.testing.assert_array_equal(a, before.arrays()[key])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lstm_kernels", "other", "has format 'other.params/3', want 'lst"),
        ('"lstm"', '["lstm"]', r"params.cell: got \['lstm'\], want one"),
        ('"cell"', '"sell"', "KeyError 'cell'"),
        (None, "[3]", r"is not a whole file of .*\(header: TypeError"),
        (None, "[" * 10_000, r"is not a whole file of .*\(header: "),
        ("{", '{"arrays": 3, "a": {', "is not a whole file"),
    ],
)
def test_a_header_that_cannot_be_is_refused(tmp_path, old, new, message):
    path = tmp_path / "net.npz"
    example((2, 1, 1, 2, 3))[0].save(path)
    change = (lambda text: text.replace(old, new)) if old else (lambda text: new)
    path.write_bytes(with_header(path.read_bytes(), change))
    with pytest.raises(ValueError, match=f"path: .*net.npz: {message}"):
        lk.Params.load(path)


def test_a_file_says_where_it_is_damaged(tmp_path):
    path = tmp_path / "net.npz"
    example((2, 1, 1, 2, 3))[0].save(path)
    whole = path.read_bytes()
    flipped, members = bytearray(whole), parts(whole)
    flipped[whole.index(b"V.npy") + 160] ^= 1
    U = members["layers.0.U.npy"].replace(b"(2, 12)", b"(1, 12)")
    # What is left without a read-out is a network, too.
    rest = {n: a for n, a in members.items() if n not in ("V.npy", "b_out.npy")}
    for content, message in (
        (bytes(flipped), r"net.npz: is not a whole file .*\(V: .*CRC"),
        (with_array(whole, "b_out", lambda a: np.array([{}])), r"\(b_out: Object arr"),
        (
            archive(members | {"layers.0.U.npy": U}),
            r"shape {'layers.0.U': \[1, 12\]}, want {'layers.0.U': \[2, 12\]}",
        ),
        (archive(rest), r"shape {'V': None, 'b_out': None}, want {'V': \[3, 2\]"),
        (npy(np.ones(3)), r"is not a whole file .*\(archive: "),
        (b"", r"is not a whole file .*\(archive: "),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            lk.Params.load(path)


@pytest.mark.parametrize("failure", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
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
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [
        ("file", b"old\n")
    ]


def test_a_file_is_on_the_disk_before_it_takes_its_place(tmp_path, monkeypatch):
    path, calls = tmp_path / "file", []
    sync, replace = os.fsync, os.replace

    def synced(descriptor):
        calls.append(os.fstat(descriptor).st_size)
        sync(descriptor)

    def replaced(source, target):
        calls.append("renamed")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    with files.writing(path) as file:
        file.write(b"123")
    assert calls == [3, "renamed"]


# Begins to write a file, says so, and waits.
WRITER = """
import sys
from lstm_kernels import files
with files.writing(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.name == "nt", reason="POSIX locks")
def test_the_next_write_removes_what_a_killed_one_left_and_nothing_else(tmp_path):
    path, count = tmp_path / "net.npz", lambda: len([*tmp_path.glob(".*.part")])
    words = [sys.executable, "-c", WRITER, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    others = [".net.npz.7.part", "net.npz.part-7", f".x.npz.{'0' * 16}.part"]
    for name in others:
        (tmp_path / name).write_text("another's")
    with (
        subprocess.Popen(words, **pipes) as killed,
        subprocess.Popen(words, **pipes) as alive,
    ):
        for process in (killed, alive):
            assert process.stdout.readline() == b"writing\n"
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert count() == 4
        params = example((1, 1, 1, 1, 1))[0]
        params.save(path)
        assert count() == 3  # that of the writer that is alive
        lk.Params.load(path)
        alive.communicate()
    assert path.read_bytes() == b"half"
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*others, "net.npz"])


@pytest.mark.skipif(os.name == "nt", reason="POSIX modes and links")
def test_modes_and_links_are_kept(tmp_path):
    params, real = example((1, 1, 1, 1, 1))[0], tmp_path / "real.npz"
    link = tmp_path / "link.npz"
    link.symlink_to(real)
    old = os.umask(0o027)
    try:
        params.save(link)  # through a link to nothing yet
        assert (real.stat().st_mode & 0o777, link.is_symlink()) == (0o640, True)
        real.chmod(0o600)
        params.save(link)
        params.save(real)
    finally:
        os.umask(old)
    assert (real.stat().st_mode & 0o777, link.is_symlink()) == (0o600, True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.npz", "real.npz"]
    lk.Params.load(link)


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
    assert [p.name for p in tmp_path.iterdir()] == ["net.npz"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (3, "got 3, want the path of a file"),
        (None, "got None, want the path"),
        (b"net.npz", "got b'net.npz', want the path"),
        ("", "got '', want the path of a file"),
        ("a\0b", "got .*, want the path of a file"),
    ],
)
def test_what_is_no_path(path, message):
    params = example((1, 1, 1, 1, 1))[0]
    for call in (params.save, lk.Params.load):
        with pytest.raises((TypeError, ValueError), match=f"path: {message}"):
            call(path)


def test_no_folder_and_no_file_is_written_over(tmp_path):
    params = example((1, 1, 1, 1, 1))[0]
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


# --- what file systems refuse

REFUSED = ["EPERM", "EOPNOTSUPP", "ENOTSUP", "ENOSYS", "EINVAL"]


@pytest.fixture
def notes(monkeypatch):
    """What is noted, of a process in which nothing was yet."""
    from lstm_kernels import notes

    lines = []
    monkeypatch.setattr(notes, "_told", set())
    monkeypatch.setattr("builtins.print", lambda line, **how: lines.append(line))
    return lines


def refusing(name):
    """A function that fails with an error of the system."""
    code = getattr(errno, name)

    def refuse(*what, **how):
        raise OSError(code, os.strerror(code))

    return refuse


@pytest.mark.skipif(os.name == "nt", reason="POSIX modes")
@pytest.mark.parametrize("function", ["chmod", "fsync"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_mode_or_a_sync_that_is_refused_is_noted_once(
    tmp_path, dataset, notes, monkeypatch, function, name
):
    path = tmp_path / "run.npz"
    monkeypatch.setattr(os, function, refusing(name))
    net, run = lk.network("numpy", lk.Params.init(1, 2, output_size=1)), RUN
    lk.train(net, dataset, checkpoint=path, **run | {"epochs": 1})
    with_mode = os.umask(0o077)  # an existing file has another mode than a new one
    try:
        lk.train(net, dataset, checkpoint=path, resume=True, **run | {"epochs": 4})
    finally:
        os.umask(with_mode)
    (line,) = notes
    assert str(tmp_path) in line
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]
    with np.load(path) as file:
        assert len(file["history.loss"]) == 4


@pytest.mark.parametrize("name", ["EIO", "ENOSPC", "EDQUOT"])
def test_a_disk_that_fails_fails_the_write_and_keeps_the_old_file(
    tmp_path, monkeypatch, name
):
    path, params = tmp_path / "net.npz", example((1, 1, 1, 1, 1))[0]
    params.save(path)
    old = path.read_bytes()
    monkeypatch.setattr(os, "fsync", refusing(name))
    with pytest.raises(OSError, match=os.strerror(getattr(errno, name))):
        params.save(path)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("net.npz", old)]


def test_a_file_is_renamed_where_no_open_file_can_be(tmp_path, monkeypatch):
    path, replace, opened = tmp_path / "net.npz", os.replace, []
    real_open = open

    def remember(*what, **how):
        opened.append(real_open(*what, **how))
        return opened[-1]

    def of_closed(source, target):
        if any(not file.closed for file in opened):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        replace(source, target)

    monkeypatch.setattr("builtins.open", remember)
    monkeypatch.setattr(os, "replace", of_closed)
    for _ in range(2):
        with files.writing(path, text=True) as file:
            file.write("whole")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [
        ("net.npz", b"whole")
    ]


@pytest.mark.skipif(os.name == "nt", reason="POSIX locks")
def test_a_file_system_without_locks_takes_files(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "flock", refusing("ENOTSUP"))
    left = tmp_path / f".net.npz.{'0' * 16}.part"
    left.write_text("of a writer that may be alive")
    params = example((1, 1, 1, 1, 1))[0]
    params.save(tmp_path / "net.npz")
    assert sorted(p.name for p in tmp_path.iterdir()) == [left.name, "net.npz"]


def test_a_name_may_be_as_long_as_the_file_system_takes(tmp_path):
    path = tmp_path / ("n" * 251 + ".npz")
    for _ in range(2):
        example((1, 1, 1, 1, 1))[0].save(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("step", ["open", "fsync", "replace", "unlink"])
@pytest.mark.parametrize("exists", [False, True])
def test_what_a_checkpoint_will_do_is_tried_before_the_first_epoch(
    tmp_path, dataset, monkeypatch, step, exists
):
    path = tmp_path / "run.npz"
    net = lk.network("numpy", lk.Params.init(1, 2, output_size=1))
    if exists:
        lk.train(net, dataset, checkpoint=path, **RUN | {"epochs": 1})
    before = {
        p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.iterdir()
    }
    params = net.params().arrays()
    if step == "open":
        monkeypatch.setattr(files, "_beside", refusing("EROFS"))
    elif step == "unlink":
        monkeypatch.setattr("pathlib.Path.unlink", refusing("EACCES"))
    else:
        monkeypatch.setattr(os, step, refusing("EIO"))
    with pytest.raises(OSError, match=f"checkpoint: .*{tmp_path.name}"):
        lk.train(net, dataset, checkpoint=path, resume=exists, **RUN)
    for name, a in net.params().arrays().items():
        np.testing.assert_array_equal(a, params[name])
    if step != "unlink":
        after = {
            p: ((tmp_path / p).read_bytes(), (tmp_path / p).stat().st_mtime_ns)
            for p in os.listdir(tmp_path)
        }
        assert after == before


@pytest.mark.skipif(os.name == "nt", reason="POSIX modes")
def test_anothers_file_in_a_folder_such_as_tmp_is_refused_at_once(
    tmp_path, monkeypatch
):
    path = tmp_path / "run.npz"
    path.touch()
    tmp_path.chmod(0o1777)
    files.check_place("checkpoint", path)  # this user's
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1000)
    with pytest.raises(PermissionError, match="checkpoint: "):
        files.check_place("checkpoint", path)
    files.check_place("checkpoint", tmp_path / "new.npz")


# --- what a file may claim


def deflated(members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return stream.getvalue()


def memory_of(call):
    """Bytes that a call took at most."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            lambda file: {**file, "V.npy": bytes(30 << 20)},
            "V: has 31457280 bytes, want",
        ),
        (lambda file: {**file, "more.npy": bytes(30 << 20)}, "'more': 'unknown'"),
        (lambda file: {**file, "header.npy": bytes(30 << 20)}, "header: has 314"),
        (lambda file: {"zeros.npy": bytes(30 << 20)}, "header"),
        (
            lambda file: {
                **{n: bytes(30 << 20) if n == "V.npy" else c for n, c in file.items()},
                "header.npy": npy(np.array('{"format": "another\'s", "arrays": {}}')),
            },
            "has format",
        ),
    ],
)
def test_a_file_that_unpacks_to_more_than_it_tells_of_is_not_unpacked(
    tmp_path, members, message
):
    path = tmp_path / "net.npz"
    example((2, 1, 1, 2, 3))[0].save(path)
    path.write_bytes(deflated(members(parts(path.read_bytes()))))

    def load():
        with pytest.raises(ValueError, match=message):
            lk.Params.load(path)

    assert memory_of(load) < 5 << 20


@pytest.mark.parametrize("told", [False, True])
def test_an_error_names_some_of_many_arrays(tmp_path, told):
    path = tmp_path / "net.npz"
    example((2, 1, 1, 2, 3))[0].save(path)
    content = path.read_bytes()
    many = {f"a{k}": [1] for k in range(2000)} if told else {}

    def change(text):
        header = json.loads(text)
        header["arrays"] |= many
        return json.dumps(header)

    members = parts(with_header(content, change))
    one = npy(np.ones(1, np.float32))
    members |= {f"a{k}.npy": one for k in range(2000)}
    path.write_bytes(archive(members))
    with pytest.raises(ValueError, match=r"net.npz: ") as caught:
        lk.Params.load(path)
    assert len(str(caught.value)) < 1300


def test_an_array_that_is_there_twice_is_refused(tmp_path):
    path = tmp_path / "net.npz"
    example((2, 1, 1, 2, 3))[0].save(path)
    with zipfile.ZipFile(path, "a") as file, pytest.warns(UserWarning, match="Dupl"):
        file.writestr("V.npy", file.read("V.npy"))
    with pytest.raises(ValueError, match="holds 1 array twice"):
        lk.Params.load(path)


@pytest.mark.parametrize("shape", [[3, "a"], "text", None, [1e300, 1e300], [[2], 2]])
def test_a_shape_that_cannot_be_is_refused(tmp_path, shape):
    path = tmp_path / "net.npz"
    example((2, 1, 1, 2, 3))[0].save(path)

    def change(text):
        header = json.loads(text)
        header["arrays"]["V"] = shape
        return json.dumps(header)

    path.write_bytes(with_header(path.read_bytes(), change))
    with pytest.raises(ValueError, match=r"path: .*net.npz: "):
        lk.Params.load(path)

"""Files: whole or refused, whoever writes at the same time, stops half-way or damages
them.
"""

import io
import json
import os
import threading
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
    make = lambda seed: lk.network(
        "numpy", lk.Params.init(1, 2, output_size=1, seed=seed)
    )  # noqa: E731
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


def mutants(content, count):
    """Damaged files: bytes changed, cut, doubled; members swapped, dropped, changed;
    headers of other JSON.
    """
    rng = np.random.default_rng(0)
    members = parts(content)
    names = list(members)
    json_values = (
        *(
            "null",
            "3",
            "[]",
            "{}",
            "[" * 3000,
            '"text"',
            "",
            "1" * 5000,
            "NaN",
            '{"format": []}',
        ),
        *(
            '{"format": {"a": 1}, "cell": ["lstm"]}',
            "\ud800",
            '{"run": 3, "cell": 1e999}',
        ),
    )
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
                damaged[at : at + length] = damaged[
                    at // 2 : at // 2 + rng.integers(200)
                ]
            case 5:
                one = rng.choice(
                    names
                )  # and one of another form: two alike make a sound file
                two = rng.choice(
                    [n for n in names if len(members[n]) != len(members[one])]
                )
                swapped = members | {one: members[two], two: members[one]}
                if rng.random() < 0.3:
                    del swapped[one]
                damaged = archive(swapped)
            case 6:
                name = rng.choice(names)
                inner = bytearray(members[name])
                inner[rng.integers(128)] = rng.integers(
                    256
                )  # where NumPy keeps shape and dtype
                damaged = archive(members | {name: bytes(inner)})
            case 7:
                text = str(np.load(io.BytesIO(members["header.npy"])))
                keys = [*json.loads(text), *json.loads(text).get("run", {})]
                key, value = rng.choice(keys), rng.choice(json_values)
                wrong = (
                    value
                    if rng.random() < 0.3
                    else text.replace(f'"{key}": ', f'"{key}": {value} ')
                )
                damaged = archive(members | {"header.npy": npy(np.array(wrong))})
        yield index, bytes(damaged)


def test_a_damaged_file_is_a_value_error_that_names_it_or_holds_the_same(kind):
    path, content, read = kind
    path.write_bytes(content)
    want, refused = read(), 0
    for index, damaged in mutants(content, MUTANTS):
        path.write_bytes(damaged)
        try:
            got = read()
        except ValueError as error:
            said = str(error)
            assert str(path) in said, index
            refused += 1
            continue
        for name, a in want.items():  # dates and attributes of a zip file are not ours
            np.testing.assert_array_equal(got[name], a, err_msg=f"{index} {name}")
    assert refused > 0.7 * MUTANTS


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("params.V", lambda a: a * np.nan, "params.V: got nan"),
        (
            "params.V",
            lambda a: a.astype(float),
            "params.V: got dtype float64, want float32",
        ),
        (
            "optimizer.m.V",
            lambda a: a[:1],
            r"optimizer.m.V: got shape \(1, 1\), want \(2, 1\)",
        ),
        ("optimizer.v.V", lambda a: -a, "optimizer.v.V: got -"),
        ("optimizer.v.V", lambda a: a + np.inf, "optimizer.v.V: got inf"),
        (
            "history.loss",
            lambda a: a[:1],
            r"history.seconds: got shape \(2,\), want \(1,\)",
        ),
        ("history.loss", lambda a: a * np.nan, "history.loss: got nan"),
        ("history.loss", lambda a: a.astype(str), "history.loss: got dtype <U"),
        ("history.loss", lambda a: a[:0], "history.loss: got shape"),
        ("history.seconds", lambda a: -a, "history.seconds: got -"),
    ],
)
def test_an_array_of_a_checkpoint_that_cannot_be_is_refused(
    tmp_path, dataset, name, change, said
):
    path, net = (
        tmp_path / "run.npz",
        lk.network("numpy", lk.Params.init(1, 2, output_size=1)),
    )
    lk.train(net, dataset, checkpoint=path, **RUN)
    path.write_bytes(with_array(path.read_bytes(), name, change))
    before = net.params()
    with pytest.raises(ValueError, match=f"checkpoint: .*run.npz.*{said}"):
        lk.train(net, dataset, checkpoint=path, resume=True, **RUN)
    for key, a in net.params().arrays().items():
        np.testing.assert_array_equal(a, before.arrays()[key])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda text: text.replace("lstm_kernels", "other"),
            "has format 'other.params/2', want 'lst",
        ),
        (
            lambda text: text.replace('"lstm"', '["lstm"]'),
            r"params.cell: got \['lstm'\], want one",
        ),
        (lambda text: text.replace('"cell"', '"sell"'), "KeyError 'cell'"),
        (lambda text: "[3]", r"is not a whole file of .*\(header: TypeError"),
        (lambda text: "[" * 10_000, r"is not a whole file of .*\(header: "),
    ],
)
def test_a_header_that_cannot_be_is_refused(tmp_path, change, said):
    path = tmp_path / "net.npz"
    example((2, 1, 1, 2, 3))[0].save(path)
    path.write_bytes(with_header(path.read_bytes(), change))
    with pytest.raises(ValueError, match=f"path: .*net.npz: {said}"):
        lk.Params.load(path)


def test_a_file_says_where_it_is_damaged(tmp_path):
    path = tmp_path / "net.npz"
    example((2, 1, 1, 2, 3))[0].save(path)
    whole = path.read_bytes()
    content = bytearray(whole)
    content[content.index(b"V.npy") + 160] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"net.npz: is not a whole file .*\(V.npy: .*CRC"
    ):
        lk.Params.load(path)
    path.write_bytes(with_array(whole, "b_out", lambda a: np.array([{}])))
    with pytest.raises(
        ValueError, match=r"\(b_out.npy: Object arrays"
    ):  # no pickle is read
        lk.Params.load(path)
    members = parts(whole)
    members["layers.0.U.npy"] = members["layers.0.U.npy"].replace(
        b"(2, 12)", b"(1, 12)"
    )
    path.write_bytes(archive(members))
    with pytest.raises(
        ValueError, match=r"\(layers.0.U.npy: got bytes after the array"
    ):
        lk.Params.load(path)
    rest = {
        name: a
        for name, a in parts(whole).items()
        if name not in ("V.npy", "b_out.npy")
    }
    path.write_bytes(archive(rest))  # what is left is a network without read-out
    with pytest.raises(ValueError, match=r"holds arrays .*, want .*'V', 'b_out'"):
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


def test_leftovers_of_others_are_left_alone(tmp_path):
    names = (
        f".net.npz.{os.getpid()}.part",
        f"net.npz.part-{os.getpid()}",
        "net.npz.part",
    )
    for name in names:
        (tmp_path / name).write_text("another's")
    params = example((1, 1, 1, 1, 1))[0]
    params.save(tmp_path / "net.npz")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted((*names, "net.npz"))


@pytest.mark.skipif(os.name == "nt", reason="POSIX modes and links")
def test_modes_and_links_are_kept(tmp_path):
    params, real, link = (
        example((1, 1, 1, 1, 1))[0],
        tmp_path / "real.npz",
        tmp_path / "link.npz",
    )
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
                work()
        except BaseException as error:
            failed.append(error)

    works = [*(p.save for p in params * 2), lk.Params.load, lk.Params.load]
    threads = [threading.Thread(target=run, args=(lambda w=w: w(path),)) for w in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert [p.name for p in tmp_path.iterdir()] == ["net.npz"]


@pytest.mark.parametrize(
    ("path", "error", "said"),
    [
        (3, TypeError, "got 3, want the path of a file"),
        (None, TypeError, "got None, want the path"),
        (b"net.npz", TypeError, "got b'net.npz', want the path"),
        ("", ValueError, "got '', want the path of a file"),
        ("a\0b", ValueError, "got .*, want the path of a file"),
    ],
)
def test_what_is_no_path(path, error, said):
    params = example((1, 1, 1, 1, 1))[0]
    for call in (params.save, lk.Params.load):
        with pytest.raises(error, match=f"path: {said}"):
            call(path)


def test_no_folder_and_no_file_is_written_over(tmp_path):
    params = example((1, 1, 1, 1, 1))[0]
    with pytest.raises(ValueError, match="which is no file, want the path of a file"):
        params.save(tmp_path)
    with pytest.raises(FileNotFoundError):
        params.save(tmp_path / "none" / "net.npz")
    with pytest.raises(FileNotFoundError):
        lk.Params.load(tmp_path / "none.npz")
    params.b_out = None
    with pytest.raises(ValueError, match="got V without b_out, want both or neither"):
        params.save(tmp_path / "net.npz")
    assert not list(tmp_path.iterdir())

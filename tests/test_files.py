"""Files: whole or refused, whoever writes at the same time, stops half-way or damages
them.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import HOSTILE
from hypothesis import given, settings
from hypothesis import strategies as st

import lstm_kernels as lk
from lstm_kernels import data, files

RUN = {"epochs": 2, "batch_size": 5, "learning_rate": 0.01}
DATASET = data.windows(np.sin(np.arange(30) / 3), 8)
posix = pytest.mark.skipif(os.name == "nt", reason="POSIX modes and links")


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
            np.testing.assert_equal(net.params().arrays(), before.arrays())
            raise
        return net.params().arrays() | vars(history)

    return read


def content_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("write", [parameters, checkpoint])
def test_a_damaged_file_is_an_error_that_names_it_or_holds_the_same(tmp_path, write):
    path, refused = tmp_path / "file.npz", []
    read = write(path)
    want, content = read(), path.read_bytes()
    place = st.integers(0, len(content) - 1)

    @settings(max_examples=5000 if HOSTILE else 200)
    @given(how=st.sampled_from(["cut", "change", "insert"]), at=place, byte=st.binary())
    def damaged(how, at, byte):
        rest = {"cut": at, "change": at + len(byte), "insert": at}[how]
        path.write_bytes(content[:at] + (byte + content[rest:]) * (how != "cut"))
        try:
            got = read()
        except ValueError as error:
            refused.append(str(error))
        else:  # dates and attributes of a zip file are not ours
            np.testing.assert_equal({name: got[name] for name in want}, want)

    damaged()
    name = {parameters: "path", checkpoint: "checkpoint"}[write]
    assert all(said.startswith(f"{name}: {path}: ") for said in refused)
    assert len(refused) > 100


def test_an_archive_of_something_else_is_refused(tmp_path):
    path = tmp_path / "file.npz"
    parameters(path)
    with np.load(path) as archive:
        whole = dict(archive)
    less = {name: a for name, a in whole.items() if name != "V"}
    about = json.loads(str(whole["header"]))
    more = {"header": np.array(json.dumps(about | {"arrays": [*about["arrays"], "x"]}))}
    for members, said in (
        ({}, "got no whole file of this package"),
        (whole | {"header": np.array("[3]")}, "got no whole file of this package"),
        (whole | {"header": np.array('{"format": "a"}')}, "got format 'a', want"),
        (whole | {"more": np.ones(3)}, r"got arrays .*'more'\], want"),
        (less, r"got arrays \['b_out', 'layers.0.U'"),
        (whole | more | {"x": np.ones(3)}, r"got unknown arrays \['x'\]"),
        (whole | {"V": whole["V"] * np.nan}, r"params.V: got nan"),
        (whole | {"layers.0.U": whole["layers.0.U"].T}, r"params.layers\[0\].U: got"),
    ):
        np.savez(path, **members)
        with pytest.raises(ValueError, match=rf"^path: .*file.npz: {said}"):
            lk.Params.load(path)
    np.save(tmp_path / "file.npy", np.ones(3))
    with pytest.raises(ValueError, match=r"^path: .*file.npy: "):
        lk.Params.load(tmp_path / "file.npy")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    with files.writing(path) as file:
        file.write(b"old\n")
    with pytest.raises(KeyboardInterrupt), files.writing(path) as file:  # noqa: PT012
        file.write(b"half")
        raise KeyboardInterrupt
    assert content_of(tmp_path) == {"file": b"old\n"}


def test_a_file_is_on_the_disk_before_it_takes_its_place(tmp_path):
    path, synced = tmp_path / "file", []
    note = lambda number: synced.append((os.fstat(number).st_size, path.exists()))  # noqa: E731
    with files.writing(path, sync=note) as file:
        file.write(b"123")
    assert synced == [(3, False)]


@posix
def test_modes_and_links_are_kept(tmp_path):
    real, link = tmp_path / "real.npz", tmp_path / "link.npz"
    link.symlink_to(real)
    old = os.umask(0o027)
    try:
        small().save(link)  # through a link to nothing yet
        assert (real.stat().st_mode & 0o777, link.is_symlink()) == (0o640, True)
        real.chmod(0o600)
        small(layers=2).save(link)
    finally:
        os.umask(old)
    assert (real.stat().st_mode & 0o777, link.is_symlink()) == (0o600, True)
    assert sorted(content_of(tmp_path)) == ["link.npz", "real.npz"]
    assert lk.Params.load(link).num_layers == 2


def test_a_checkpoint_that_cannot_be_written_is_an_error_before_the_first_epoch(
    tmp_path,
):
    net, path = network(), tmp_path / "none" / "run.npz"
    before = net.params().arrays()
    with pytest.raises(OSError, match=r"checkpoint: .*none"):
        lk.train(net, DATASET, checkpoint=path, **RUN)
    np.testing.assert_equal(net.params().arrays(), before)
    assert not content_of(tmp_path)


def test_threads_may_save_to_one_path(tmp_path):
    path = tmp_path / ("n" * 251 + ".npz")  # as long as the file system takes
    params = [lk.Params.init(1, size, num_layers=2, seed=size) for size in (3, 40)]
    params[0].save(path)
    with ThreadPoolExecutor(6) as pool:
        works = [params[0].save, params[1].save, lk.Params.load] * 30
        for done in [pool.submit(work, path) for work in works]:
            done.result()
    assert list(content_of(tmp_path)) == [path.name]


@posix
@pytest.mark.parametrize("path", [3, None, b"net.npz", "", ".", os.devnull, "fifo"])
def test_what_is_no_place_for_a_file_is_refused(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")  # who opens it waits for ever
    calls = [small().save, lk.Params.load]
    if path is not None:  # which is no checkpoint
        calls.append(lambda path: lk.train(network(), DATASET, checkpoint=path, **RUN))
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=r"got .*, want the path of"):
            call(path)

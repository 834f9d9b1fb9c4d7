"""Files: written under a name of their own, then renamed; read whole, then checked."""

import io
import json
import os
import re
import secrets
import stat
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # Windows
    flock = None


def check_path(name, path):
    """Return a str or os.PathLike as a Path, or raise TypeError or ValueError
    (empty).
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise TypeError(f"{name}: got {path!r}, want the path of a file")
    if not text or "\0" in text:
        raise ValueError(f"{name}: got {text!r}, want the path of a file")
    return Path(text)


def check_place(name, path):
    """Raise what `writing` would: TypeError or ValueError for what is no path of a
    file, OSError for a folder that does not exist or cannot be written.
    """
    target = _target(name, path)
    try:
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise OSError(
            error.errno, f"{name}: {error.strerror}", str(target.parent)
        ) from None


@contextmanager
def writing(path, text=False):
    """Open a file to be written: `with writing(path) as file`.

    text: str in UTF-8, lines ended by "\\n", instead of bytes. It is a new file beside
    `path`, and takes its place only once it is whole and on the disk: who reads, or
    dies, or writes to the same path at the same time, meets a whole file. The mode of
    an existing file and a symbolic link that leads to it are kept. What a writer that
    was killed left behind is removed.
    """
    target = _target("path", path)
    _sweep(target)
    try:
        file = _beside(target, text)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from None
    beside = Path(file.name)
    try:
        with file:
            if target.exists():
                os.chmod(beside, stat.S_IMODE(target.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
            if flock:  # while it is locked
                os.replace(beside, target)
        if not flock:
            os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def _beside(target, text):
    """A new file beside `target`, locked for as long as it is open."""
    form = {"encoding": "utf-8", "newline": "\n"} if text else {}
    while True:
        beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
        file = open(beside, "x" if text else "xb", **form)  # noqa: SIM115
        with suppress(OSError):  # this file system has no locks
            if flock:
                flock(file, LOCK_EX)
        if beside.exists():  # else it was swept away before it was locked
            return file
        file.close()


def _sweep(target):
    """Remove the files of dead writers beside `target`: nobody has them locked."""
    ours = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.part")
    for path in target.parent.glob(".*.part") if flock else ():
        if ours.fullmatch(path.name):
            with suppress(OSError), open(path, "rb") as file:  # locked, or gone
                flock(file, LOCK_EX | LOCK_NB)
                path.unlink()


def write_npz(path, header, named):
    """Write a JSON header and named arrays, as an .npz file without pickle."""
    header = header | {"arrays": {name: a.shape for name, a in named.items()}}
    with writing(path) as file:
        np.savez(file, header=np.array(json.dumps(header)), **named)


def read_npz(path, form, build, name="path"):
    """build(header, arrays by name) of a file that `write_npz` wrote.

    form: the header's `format`. build: raises what it likes for content that it cannot
    use. Raises ValueError, naming the file and the part, for one that is damaged,
    foreign or refused by `build`; OSError for one that cannot be read.
    """
    content, part, named = check_path(name, path).read_bytes(), "archive", {}
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            for part in file.files:
                named[part] = file[part]
        part = "header"
        header = json.loads(str(named.pop("header")))
        got, part = header["format"], None
        if got != form:
            raise ValueError(f"has format {got!r}, want {form!r}")
        # A member that claims fewer numbers than it has is read without its checksum.
        held, want = {n: [*a.shape] for n, a in named.items()}, header["arrays"]
        if other := [n for n in held | want if held.get(n) != want.get(n)]:
            got, want = ({n: d.get(n) for n in other} for d in (held, want))
            raise ValueError(f"holds arrays of shape {got}, want {want}")
        return build(header, named)
    except Exception as error:  # whatever NumPy and json meet in bytes of any kind
        what = f"{error}"
        if not isinstance(error, ValueError):
            what = f"{type(error).__name__} {error}"
        if part is not None:
            what = f"is not a whole file of format {form!r} ({part}: {what})"
        raise ValueError(f"{name}: {path}: {what}") from error


def _target(name, path):
    """The file that `path` leads to, through symbolic links."""
    target = Path(os.path.realpath(check_path(name, path)))
    if target.exists() and not target.is_file():
        raise ValueError(
            f"{name}: got {path}, which is no file, want the path of a file"
        )
    return target

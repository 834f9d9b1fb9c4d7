"""Files: written beside their place, then renamed; read, and checked part by part."""

import errno
import glob
import json
import os
import secrets
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

with suppress(ImportError):  # Windows
    import fcntl

MOST_SAID = 1000  # characters of what an error says of a file's content
# What file systems without fsync (FUSE, WebDAV, CIFS) answer to it
NO_SYNC = {errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
# A place in the file that cannot be: its content's fault, as is an error of zipfile's
NO_PLACE = {errno.EINVAL, errno.ESPIPE, None}
NO_LOCKS = suppress(OSError, NameError)  # a file system, or Windows


def check_path(name: str, path: str | os.PathLike) -> Path:
    """Return a str or os.PathLike as a Path, or raise TypeError, or ValueError: it is
    empty or leads to a folder, a FIFO (which would be waited for), a device (which may
    have no end).
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise TypeError(f"{name}: got {path!r}, want the path of a file")
    checked, is_none = Path(text), not text or "\0" in text or text.endswith("/")
    if is_none or (checked.exists() and not checked.is_file()):
        raise ValueError(f"{name}: got {text!r}, want the path of a regular file")
    return checked


def check_place(name: str, path: str | os.PathLike) -> None:
    """Raise what `writing` would: TypeError or ValueError, or OSError of the folder. An
    existing file stays as it is.
    """
    folder = os.path.dirname(os.path.realpath(check_path(name, path)))
    try:
        with writing(path, trial=True) as file:
            file.write(bytes(1))
    except OSError as error:
        raise OSError(error.errno, f"{name}: {error.strerror}", folder) from None


@contextmanager
def writing(path: str | os.PathLike, *, trial: bool = False) -> Iterator[Any]:
    """Open a file to be written, as bytes: `with writing(path) as file`.

    It is a new file beside `path`, and takes its place only once it is whole and on the
    disk: who reads, or dies, or writes to the same path at the same time, meets a whole
    file. What killed writers left there is removed, where the file system has locks. A
    symbolic link that leads to an existing file is kept, and so is the file's mode,
    where the file system keeps modes. trial: all of this, and then no file. Raises
    TypeError, ValueError or OSError.
    """
    target = Path(os.path.realpath(check_path("path", path)))
    _sweep(target)
    file, beside = _new(target)
    place = _beside(target) if trial else target
    try:
        with file:
            with suppress(OSError):  # a new file, or a system without modes
                os.chmod(beside, stat.S_IMODE(target.stat().st_mode))
            yield file
            file.flush()
            _sync(file)
            try:
                os.replace(beside, place)  # while it is locked
            except OSError:  # where no open file is renamed, as in Windows
                file.close()
                os.replace(beside, place)
    finally:
        beside.unlink(missing_ok=True)
        if trial:
            place.unlink(missing_ok=True)


def write_npz(
    path: str | os.PathLike, header: dict[str, Any], named: Mapping[str, np.ndarray]
) -> None:
    """Write a JSON header and named arrays, as an .npz file without pickle."""
    header = header | {"arrays": {name: a.shape for name, a in named.items()}}
    with writing(path) as file:
        members: dict[str, Any] = {"header": np.array(json.dumps(header)), **named}
        np.savez(file, **members)


def read_npz(
    path: str | os.PathLike,
    form: str,
    build: Callable[[dict[str, Any], dict[str, np.ndarray]], Any],
    name: str = "path",
) -> Any:
    """build(header, arrays by name) of a file that `write_npz` wrote.

    form: the header's `format`. build: raises what it likes for content that it cannot
    use. Raises ValueError, naming the file and the part, for one that is damaged,
    foreign or refused by `build`; OSError for one that cannot be read.
    """
    path, named, part = check_path(name, path), {}, "archive"
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as zipped:
            most = os.fstat(file.fileno()).st_size
            if (size := sum(m.file_size for m in zipped.infolist())) > most:
                raise ValueError(f"unpacks to {size} bytes, want at most {most}")
            for member in zipped.infolist():
                part = member.filename.removesuffix(".npy")
                if part in named:
                    raise ValueError("got it twice, want it once")
                with zipped.open(member) as array:
                    named[part] = np.lib.format.read_array(array, allow_pickle=False)
                    if array.read(1):  # also makes zipfile compare the checksum
                        raise ValueError("got bytes behind its numbers, want none")
        part = "header"
        header = json.loads(str(named.pop(part)))
        got, part = header["format"], ""
        if got != form:
            raise ValueError(f"has format {got!r}, want {form!r}")
        part, want = "header", header["arrays"]
        # Another shape may have as many numbers.
        held = {n: [*a.shape] for n, a in named.items()}
        if other := [n for n in held | want if held.get(n) != want.get(n)]:
            got, want = ({n: d.get(n) for n in other} for d in (held, want))
            raise ValueError(f"holds arrays of shape {got}, want {want}")
        part = ""
        return build(header, named)
    except Exception as error:  # whatever NumPy and json meet in bytes of any kind
        if isinstance(error, OSError) and error.errno not in NO_PLACE:
            raise
        what = str(error) if isinstance(error, ValueError) else repr(error)
        if part:
            what = f"is not a whole file of format {form!r} ({part}: {what})"
        raise ValueError(f"{name}: {path}: {what[:MOST_SAID]}") from error


def _beside(target):
    """A new name beside `target`; that may be as long as the file system takes."""
    return target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}.part")


def _new(target):
    """A new file beside `target`, locked for as long as it is open, and its path."""
    while True:
        beside = _beside(target)
        try:
            file = open(beside, "xb")  # noqa: SIM115
        except OSError as error:  # of the name that the caller knows
            raise OSError(error.errno, error.strerror, str(target)) from None
        with NO_LOCKS:
            fcntl.flock(file, fcntl.LOCK_EX)
        if beside.exists():  # else it was swept before it was locked
            return file, beside
        file.close()


def _sweep(target):
    """Remove what killed writers left beside `target`: nobody has it locked."""
    name = glob.escape(f".{target.name[:40]}.") + "[0-9a-f]" * 16 + ".part"
    for path in target.parent.glob(name):
        with NO_LOCKS:  # or gone by now, locked, another user's
            if stat.S_ISREG(path.lstat().st_mode):
                with open(path, "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    path.unlink()


def _sync(file):
    """Wait until the disk has the file."""
    try:
        os.fsync(file.fileno())
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
        os.close(os.dup(file.fileno()))  # tells what could not be written

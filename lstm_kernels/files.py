"""Files: written under a name of their own, then renamed; read part by part, each
checked before the next.
"""

import errno
import json
import math
import os
import secrets
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from .errors import counted

MOST_SAID = 1000  # characters of what an error says of a file's content
MOST_HEADER, SPARE = 1 << 24, 1 << 16  # bytes of a header, and of an array's own one
# What file systems without fsync (FUSE, WebDAV, CIFS) answer to it
NO_SYNC = {errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
# A place in the file that cannot be: its content's fault, as is an error of zipfile's
NO_PLACE = {errno.EINVAL, errno.ESPIPE, None}


def check_path(name: str, path: str | os.PathLike) -> Path:
    """Return a str or os.PathLike as a Path, or raise TypeError or ValueError
    (empty).
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise TypeError(f"{name}: got {path!r}, want the path of a file")
    if not text or "\0" in text or text.endswith("/"):
        raise ValueError(f"{name}: got {text!r}, want the path of a file")
    return Path(text)


def check_place(name: str, path: str | os.PathLike) -> None:
    """Raise what `writing` would: TypeError or ValueError for what is no path of a
    file, OSError for a folder that does not exist or cannot be written. An existing
    file stays as it is.
    """
    target = _target(name, path)
    trial = _beside(target)
    try:
        with writing(trial) as file:
            file.write(bytes(1))
        trial.unlink()
    except OSError as error:
        what = f"{name}: {error.strerror}"
        raise OSError(error.errno, what, str(target.parent)) from None


@contextmanager
def writing(path: str | os.PathLike, text: bool = False) -> Iterator[Any]:
    """Open a file to be written: `with writing(path) as file`.

    text: str in UTF-8, lines ended by "\\n", instead of bytes. It is a new file beside
    `path`, and takes its place only once it is whole and on the disk: who reads, or
    dies, or writes to the same path at the same time, meets a whole file. A symbolic
    link that leads to an existing file is kept, and so is the file's mode, where the
    file system keeps modes. Raises TypeError, ValueError or OSError.
    """
    target = _target("path", path)
    beside = _beside(target)
    form: dict[str, Any] = {"encoding": "utf-8", "newline": "\n"} if text else {}
    try:
        file = open(beside, "x" if text else "xb", **form)  # noqa: SIM115
    except OSError as error:  # of the name that the caller knows
        raise OSError(error.errno, error.strerror, str(target)) from None
    try:
        with file:
            with suppress(OSError):  # a new file, or a system without modes
                os.chmod(beside, stat.S_IMODE(target.stat().st_mode))
            yield file
            file.flush()
            _sync(file)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


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
    path, named = check_path(name, path), {}
    part: str | None = "archive"
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as zipped:
            part = "header"
            header = json.loads(str(_member(zipped, part, MOST_HEADER)))
            got, part = header["format"], None
            if got != form:
                raise ValueError(f"has format {got!r}, want {form!r}")
            part, want = "header", header["arrays"]
            most = {n: 16 * math.prod(map(int, want[n])) + SPARE for n in want}
            names = [n.removesuffix(".npy") for n in zipped.namelist()]
            if twice := len(names) - len({*names}):
                raise ValueError(f"holds {counted(twice, 'array')} twice, want once")
            held: dict[str, Any] = dict.fromkeys(names, "unknown")
            for part in want:
                named[part] = _member(zipped, part, most[part])
                held[part] = [*named[part].shape]
        part, _ = None, held.pop("header")
        # A member that claims fewer numbers than it has is read without its checksum.
        if other := [n for n in held if held[n] != want.get(n)]:
            got, want = ({n: d.get(n) for n in other} for d in (held, want))
            raise ValueError(f"holds arrays of shape {got}, want {want}")
        return build(header, named)
    except Exception as error:  # whatever NumPy and json meet in bytes of any kind
        if isinstance(error, OSError) and error.errno not in NO_PLACE:
            raise
        what = f"{error}"
        if not isinstance(error, ValueError):
            what = f"{type(error).__name__} {error}"
        if part is not None:
            what = f"is not a whole file of format {form!r} ({part}: {what})"
        raise ValueError(f"{name}: {path}: {what[:MOST_SAID]}") from error


def _member(zipped, name, most):
    """An array of a zip file, of at most so many bytes."""
    member = zipped.getinfo(f"{name}.npy")
    if member.file_size > most:
        raise ValueError(f"has {member.file_size} bytes, want at most {most}")
    with zipped.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _target(name, path):
    """The file that `path` leads to, through symbolic links."""
    target = Path(os.path.realpath(check_path(name, path)))
    if target.exists() and not target.is_file():
        want = "which is no file, want the path of a file"
        raise ValueError(f"{name}: got {path}, {want}")
    return target


def _beside(target):
    """A new name beside `target`; that may be as long as the file system takes."""
    return target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}.part")


def _sync(file):
    """Wait until the disk has the file."""
    try:
        os.fsync(file.fileno())
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise

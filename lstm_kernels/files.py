"""Files: written beside their place, then renamed; archives of arrays by NumPy."""

import errno
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

# What file systems without fsync (FUSE, WebDAV, CIFS) answer to it
NO_SYNC = {errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def check_path(name: str, path: str | os.PathLike) -> Path:
    """Return a str or os.PathLike as a Path, or raise TypeError, or ValueError where it
    is no place for a regular file.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise TypeError(f"{name}: got {path!r}, want the path of a file")
    checked, is_none = Path(text), not text or "\0" in text or text.endswith("/")
    if is_none or (checked.exists() and not checked.is_file()):
        raise ValueError(f"{name}: got {text!r}, want the path of a regular file")
    return checked


def check_place(name: str, path: str | os.PathLike) -> None:
    """Raise what `writing` would: TypeError or ValueError, or OSError of the folder."""
    folder = os.path.dirname(os.path.realpath(check_path(name, path)))
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1))
    except OSError as error:
        raise OSError(error.errno, f"{name}: {error.strerror}", folder) from None


@contextmanager
def writing(path: str | os.PathLike) -> Iterator[Any]:
    """Open a file to be written, as bytes: `with writing(path) as file`.

    It is a new file beside `path`, and takes its place only once it is whole and on the
    disk: who reads, or dies, or writes to the same path at the same time, meets a whole
    file. A symbolic link to an existing file is kept, and so is the file's mode. Raises
    TypeError, ValueError or OSError.
    """
    target = Path(os.path.realpath(check_path("path", path)))
    beside = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}.part")
    try:
        with open(beside, "xb") as file:
            yield file
            file.flush()
            _sync(file)
        if target.exists():
            shutil.copymode(target, beside)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def _sync(file):
    """Wait until the disk has the file."""
    try:
        os.fsync(file.fileno())
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise


def write_npz(
    path: str | os.PathLike, header: dict[str, Any], named: Mapping[str, np.ndarray]
) -> None:
    """Write a JSON header and named arrays, as an .npz file without pickle."""
    members: dict[str, Any] = {"header": np.array(json.dumps(header)), **named}
    with writing(path) as file:
        np.savez(file, **members)


def read_npz(
    path: str | os.PathLike,
    form: str,
    build: Callable[[dict[str, Any], dict[str, np.ndarray]], Any],
    name: str = "path",
) -> Any:
    """build(header, arrays by name) of a file that `write_npz` wrote.

    form: the header's `format`. build: raises what it likes for content that it cannot
    use. Raises ValueError, which names the file, for one that is damaged, foreign or
    refused by `build`; OSError for one that cannot be opened.
    """
    with open(check_path(name, path), "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                named = {key: archive[key] for key in archive.files}
            header = json.loads(str(named.pop("header")))
            if header["format"] != form:
                raise ValueError(f"has format {header['format']!r}, want {form!r}")
            return build(header, named)
        except Exception as error:  # whatever NumPy and json meet in bytes of any kind
            known = isinstance(error, TypeError | ValueError)
            what = str(error) if known else repr(error)
            raise ValueError(f"{name}: {path}: {what[:1000]}") from error

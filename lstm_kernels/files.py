"""Files: written under a name of their own, then renamed; read whole, then checked."""

import io
import json
import os
import secrets
import stat
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np


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
    an existing file and a symbolic link that leads to it are kept.
    """
    target = _target("path", path)
    beside = target.with_name(
        f".{target.name}.{secrets.token_hex(8)}.part"
    )  # no one else's
    how = (
        {"mode": "x", "encoding": "utf-8", "newline": "\n"} if text else {"mode": "xb"}
    )
    try:
        with open(beside, **how) as file:
            if target.exists():
                os.chmod(beside, stat.S_IMODE(target.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def write_npz(path, header, named):
    """Write a JSON header and named arrays, as an .npz file without pickle."""
    with writing(path) as file:
        header = json.dumps(header | {"arrays": [*named]})
        np.savez(file, header=np.array(header), **named)


def read_npz(path, form, build, name="path"):
    """build(header, arrays by name) of a file that `write_npz` wrote.

    form: the header's `format`. build: raises what it likes for content that it cannot
    use. Raises ValueError, naming the file and the part, for one that is damaged,
    foreign or refused by `build`; OSError for one that cannot be read.
    """
    content, part, named = check_path(name, path).read_bytes(), "archive", {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            for part in file.namelist():
                named[part.removesuffix(".npy")] = _array(file.read(part))
        part = "header"
        header = json.loads(str(named.pop("header")))
        got, part = header["format"], None
        if got != form:
            raise ValueError(f"has format {got!r}, want {form!r}")
        if header["arrays"] != [
            *named
        ]:  # a damaged index of the archive may be a shorter one
            raise ValueError(f"holds arrays {[*named]}, want {header['arrays']}")
        return build(header, named)
    except (
        Exception
    ) as error:  # whatever zipfile, NumPy and json meet in bytes of any kind
        what = (
            f"{error}"
            if isinstance(error, ValueError)
            else f"{type(error).__name__} {error}"
        )
        if part is not None:
            what = f"is not a whole file of format {form!r} ({part}: {what})"
        raise ValueError(f"{name}: {path}: {what}") from error


def _array(content):
    """The array in the bytes of an .npy file, whose CRC `ZipFile.read` has checked."""
    stream = io.BytesIO(content)
    array = np.lib.format.read_array(stream, allow_pickle=False)
    if stream.read(1):
        raise ValueError("got bytes after the array")
    return array


def _target(name, path):
    """The file that `path` leads to, through symbolic links."""
    target = Path(os.path.realpath(check_path(name, path)))
    if target.exists() and not target.is_file():
        raise ValueError(
            f"{name}: got {path}, which is no file, want the path of a file"
        )
    return target

"""Files: written under a name of their own, then renamed; read part by part, each
checked before the next.
"""

import errno
import json
import math
import os
import re
import secrets
import stat
import zipfile
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from .errors import counted
from .notes import note

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # Windows
    flock = None

# What a file system answers to what it cannot do: CIFS, WebDAV, FUSE, VFAT.
_CANNOT = {"EPERM", "EACCES", "EINVAL", "ENOSYS", "ENOTSUP", "EOPNOTSUPP", "ENOTTY"}
_CANNOT = {getattr(errno, name) for name in _CANNOT if hasattr(errno, name)}
_MOST = 1000  # characters of what an error says of a file's content
_HEADER, _SPARE = 1 << 24, 1 << 16  # most bytes of a header, and besides numbers


def check_path(name, path):
    """Return a str or os.PathLike as a Path, or raise TypeError or ValueError
    (empty).
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise TypeError(f"{name}: got {path!r}, want the path of a file")
    if not text or "\0" in text or text.endswith("/"):
        raise ValueError(f"{name}: got {text!r}, want the path of a file")
    return Path(text)


def check_place(name, path):
    """Raise what `writing` would: TypeError or ValueError for what is no path of a
    file, OSError for a folder that does not exist, cannot be written, or where a file
    cannot take another's place. An existing file stays as it is.
    """
    target = _target(name, path)
    try:
        with _beside(target) as other:
            other = Path(other.name)
        try:
            with _written(other, mode_of=target) as file:
                file.write(bytes(1))
        finally:
            other.unlink(missing_ok=True)
        _check_owner(target)
    except OSError as error:
        raise OSError(
            error.errno, f"{name}: {error.strerror}", str(target.parent)
        ) from None


def _check_owner(target):
    """Raise PermissionError where an existing file is another user's to replace, in a
    folder such as /tmp.
    """
    if target.exists() and hasattr(os, "geteuid"):
        folder = target.parent.stat()
        may = 0, folder.st_uid, target.stat().st_uid
        if folder.st_mode & stat.S_ISVTX and os.geteuid() not in may:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@contextmanager
def writing(path, text=False):
    """Open a file to be written: `with writing(path) as file`.

    text: str in UTF-8, lines ended by "\\n", instead of bytes. It is a new file beside
    `path`, and takes its place only once it is whole and on the disk: who reads, or
    dies, or writes to the same path at the same time, meets a whole file. The mode of
    an existing file and a symbolic link that leads to it are kept. What a writer that
    was killed left behind is removed. A file system that keeps no modes, or writes to
    the disk when it likes, is noted once.
    """
    target = _target("path", path)
    _sweep(target)
    with _written(target, text) as file:
        yield file


@contextmanager
def _written(target, text=False, mode_of=None):
    """A new file beside `target` that takes its place; its mode is that of `mode_of`,
    or of `target`.
    """
    try:
        file = _beside(target, text)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from None
    beside, renamed = Path(file.name), False
    try:
        with file:
            _keep_mode(mode_of or target, beside)
            yield file
            file.flush()
            with _optional("be told to write to the disk at once", target):
                os.fsync(file.fileno())
            with suppress(OSError):  # a file that is open: some rename none
                if flock:  # while it is locked
                    os.replace(beside, target)
                    renamed = True
        if not renamed:
            os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def _keep_mode(target, beside):
    """Give the file `beside` the mode of an existing `target`."""
    if target.exists():
        mode = stat.S_IMODE(target.stat().st_mode)
        if mode != stat.S_IMODE(beside.stat().st_mode):
            with _optional("keep the modes of files", target):
                os.chmod(beside, mode)


@contextmanager
def _optional(what, target):
    """What a file system may be unable to do; other errors, of a disk, are raised."""
    try:
        yield
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        note(what, f"{target.parent} cannot {what} ({error.strerror})")


def _beside(target, text=False):
    """A new file beside `target`, locked for as long as it is open."""
    form = {"encoding": "utf-8", "newline": "\n"} if text else {}
    while True:
        beside = target.with_name(f"{_start(target)}{secrets.token_hex(8)}.part")
        file = open(beside, "x" if text else "xb", **form)  # noqa: SIM115
        with suppress(OSError):  # this file system has no locks
            if flock:
                flock(file, LOCK_EX)
        if beside.exists():  # else it was swept away before it was locked
            return file
        file.close()


def _start(target):
    """How the names of new files beside `target` begin: a name may be as long as the
    file system takes already.
    """
    return f".{target.name[:40]}."


def _sweep(target):
    """Remove the files of dead writers beside `target`: nobody has them locked."""
    ours = re.compile(rf"{re.escape(_start(target))}[0-9a-f]{{16}}\.part")
    for path in target.parent.glob(".*.part") if flock else ():
        if ours.fullmatch(path.name):
            with suppress(OSError), open(path, "r+b") as file:  # locked, or gone
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
    path, part, named = check_path(name, path), "archive", {}
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as zipped:
            part = "header"
            header = json.loads(str(_member(zipped, part, _HEADER)))
            got, part = header["format"], None
            if got != form:
                raise ValueError(f"has format {got!r}, want {form!r}")
            part, want, most = "header", header["arrays"], {}
            for array, shape in want.items():
                most[array] = 16 * math.prod(map(int, shape)) + _SPARE
            part = None
            _check_names(zipped, want)
            for part in want:
                named[part] = _member(zipped, part, most[part])
        part = None
        # A member that claims fewer numbers than it has is read without its checksum.
        _check_shapes({n: [*a.shape] for n, a in named.items()}, want)
        return build(header, named)
    except Exception as error:  # whatever NumPy and json meet in bytes of any kind
        # A place in the file that cannot be is its content's fault.
        damage = None, errno.EINVAL, errno.ESPIPE
        if isinstance(error, OSError) and error.errno not in damage:
            raise
        what = f"{error}"
        if not isinstance(error, ValueError):
            what = f"{type(error).__name__} {error}"
        if part is not None:
            what = f"is not a whole file of format {form!r} ({part}: {what})"
        if len(what) > _MOST:
            what = f"{what[:_MOST]} ..."
        raise ValueError(f"{name}: {path}: {what}") from error


def _member(zipped, name, most):
    """An array of a zip file, of at most so many bytes."""
    member = zipped.getinfo(f"{name}.npy")
    if member.file_size > most:
        raise ValueError(f"has {member.file_size} bytes, want at most {most}")
    with zipped.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _check_names(zipped, want):
    """Raise ValueError unless a zip file holds the arrays that its header tells of."""
    held = [name.removesuffix(".npy") for name in zipped.namelist()]
    if twice := len(held) - len({*held}):
        raise ValueError(f"holds {counted(twice, 'array')} twice")
    held.remove("header")
    _check_shapes({name: want.get(name, "unknown") for name in held}, want)


def _check_shapes(held, want):
    """Raise ValueError for arrays of other names or shapes than wanted."""
    if other := [n for n in held | want if held.get(n) != want.get(n)]:
        got, want = ({n: d.get(n) for n in other[:3]} for d in (held, want))
        more = f" and {len(other) - 3} more" if other[3:] else ""
        raise ValueError(f"holds arrays of shape {got}, want {want}{more}")


def _target(name, path):
    """The file that `path` leads to, through symbolic links."""
    target = Path(os.path.realpath(check_path(name, path)))
    if target.exists() and not target.is_file():
        raise ValueError(
            f"{name}: got {path}, which is no file, want the path of a file"
        )
    return target

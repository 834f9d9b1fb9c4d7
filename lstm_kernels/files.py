"""Files: written beside their place, then renamed; archives of arrays by NumPy."""

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

from .errors import check_type


def check_path(name: str, path: str | os.PathLike) -> Path:
    """Return a str or os.PathLike as a Path, or raise TypeError, or ValueError where
    something else than a regular file is there.
    """
    checked = Path(check_type(name, path, str | os.PathLike, "the path of a file"))
    if checked.exists() and not checked.is_file():
        got, want = str(path), "the path of a regular file"
        raise ValueError(f"{name}: got {got!r}, want {want}")
    return checked


def check_place(name: str, path: str | os.PathLike) -> None:
    """Raise what `writing` would: TypeError or ValueError, or OSError of the folder."""
    folder = Path(os.path.realpath(check_path(name, path))).parent
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OSError(error.errno, f"{name}: {error.strerror}", str(folder)) from None


@contextmanager
def writing(path: str | os.PathLike, sync: Callable = os.fsync) -> Iterator[Any]:
    """Open a file to be written, as bytes: `with writing(path) as file`.

    It is a new file beside `path`, and takes its place only once it is whole and on the
    disk: who reads, or dies, or writes to the same path at the same time, meets a whole
    file. A symbolic link to a file is kept, and so is the file's mode. Raises
    TypeError, ValueError or OSError.
    """
    check_place("path", path)
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}.part")
    try:
        with open(beside, "xb") as file:
            yield file
            file.flush()
            sync(file.fileno())
        if target.exists():
            shutil.copymode(target, beside)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def write_npz(path: Any, header: dict[str, Any], named: Mapping[str, Any]) -> None:
    """Write a JSON header and named arrays, as an .npz file without pickle."""
    about = json.dumps(header | {"arrays": sorted(named)})
    members: dict[str, Any] = {"header": np.array(about), **named}
    with writing(path) as file:
        np.savez(file, **members)


def read_npz(path: Any, form: str, build: Callable, name: str = "path") -> Any:
    """build(header, arrays by name) of a file that `write_npz` wrote.

    form: the header's `format`. Raises ValueError, which names the file, for one that
    is damaged, foreign or refused by `build`; OSError for one that cannot be opened.
    """
    with open(check_path(name, path), "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                named = dict(archive)
            header = json.loads(str(named.pop("header")))
            got = header["format"]
        except Exception as error:  # whatever NumPy and json meet in bytes of any kind
            got = f"no whole file of this package ({type(error).__name__})"
            raise ValueError(f"{name}: {path}: got {got}, want {form}") from error
    try:
        if got != form:
            raise ValueError(f"got format {got!r}, want {form!r}")
        if header["arrays"] != sorted(named):
            raise ValueError(f"got arrays {sorted(named)}, want {header['arrays']}")
        return build(header, named)
    except (TypeError, ValueError, LookupError) as error:
        raise ValueError(f"{name}: {path}: {error}") from error

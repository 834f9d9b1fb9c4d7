# @title Run me first: lstm_kernels <VERSION> travels in this file of <SIZE> KB
# Nothing is downloaded or installed: the files go to a folder named by their hash.
import base64
import hashlib
import importlib.util
import io
import lzma
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION, SHA256 = "<VERSION>", "<SHA256>"
PACKED = """
<TEXT>
"""


def parents():
    """Where to unpack, the first that can be written: the cache, where what Numba
    compiles is kept too, then a temporary folder.
    """
    cache = os.environ.get("XDG_CACHE_HOME", "")
    try:
        home = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
        yield home / "lstm_kernels"
    except RuntimeError:  # this user has no home
        pass
    yield Path(tempfile.mkdtemp())


def whole(place, files):
    """Whether a folder is this user's and holds the archive's files as they are."""
    try:
        ours = not hasattr(os, "getuid") or place.stat().st_uid == os.getuid()
        same = ((place / n).read_bytes() == files.read(n) for n in files.namelist())
        return ours and all(same)
    except OSError:
        return False


def put(files, place):
    """Unpack beside `place` and rename: it is whole, or nothing is left; OSError."""
    place.parent.mkdir(parents=True, exist_ok=True)
    part = tempfile.mkdtemp(dir=place.parent)
    try:
        files.extractall(part)
        if not whole(place, files):
            shutil.rmtree(place, ignore_errors=True)
        os.replace(part, place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def unpack():
    """The folder that holds the packages."""
    packed = base64.b85decode("".join(PACKED.split()))
    if hashlib.sha256(packed).hexdigest() != SHA256:
        raise ValueError("this cell was cut or changed: take a fresh copy of the file")
    files = zipfile.ZipFile(io.BytesIO(lzma.decompress(packed)))
    for parent in parents():
        place, reason = parent / SHA256[:12], None
        try:
            if not whole(place, files):
                put(files, place)
        except OSError as error:
            reason = error
        if whole(place, files):  # put here now, or by a faster notebook
            return str(place)
    shutil.rmtree(parent, ignore_errors=True)
    raise OSError(f"the packages cannot be unpacked to {place}: {reason}")


if sys.hexversion < 0x30B0000:
    raise RuntimeError(f"Python {sys.version.split()[0]} is too old: this needs 3.11")
if found := importlib.util.find_spec("lstm_report"):
    import lstm_kernels

    print("lstm_report can be imported here already:", os.path.dirname(found.origin))
    if lstm_kernels.__version__ != VERSION:
        print(
            f"It is {lstm_kernels.__version__}; this notebook was made for {VERSION}."
        )
else:
    sys.path.insert(0, unpack())
    others = os.environ.get("PYTHONPATH")  # what a notebook starts finds it too
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.path[0], others]))
    print("lstm_kernels and lstm_report unpacked to", sys.path[0])
    print("The first cells that compute compile for this processor, once: they say so.")

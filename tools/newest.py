"""Print the newest Python on this machine, for `make test-newest`; the one that runs this, if none
is newer.

Standard library only, because it runs before anything is installed.
"""

import shutil
import subprocess
import sys
from pathlib import Path

MINORS = range(14, sys.version_info.minor, -1)  # Python 3.14 is the newest that Numba is built for
# A released Python with its lock, able to make environments.
USABLE = """
import ensurepip, sys, sysconfig, venv
locked = not sysconfig.get_config_var("Py_GIL_DISABLED")
sys.exit(not (locked and sys.version_info[1] == int(sys.argv[1])
              and sys.version_info.releaselevel == "final"))
"""


def candidates(minor):
    """Paths that may be Python 3.<minor>: on the PATH, then of pyenv."""
    found = [path] if (path := shutil.which(f"python3.{minor}")) else []
    if root := pyenv_root():
        found += sorted(map(str, root.glob(f"versions/3.{minor}.*/bin/python3")), reverse=True)
    return found


def pyenv_root():
    """The folder of pyenv, None where there is none."""
    if not shutil.which("pyenv"):
        return None
    said = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=False).stdout
    return Path(said.strip()) if said.strip() else None


def usable(path, minor):
    """Whether it runs and is what it is called: pyenv puts names on the PATH that do not run."""
    words = [path, "-c", USABLE, str(minor)]
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def newest():
    """The path of the newest usable Python, None where none is newer than this one."""
    for minor in MINORS:
        for path in candidates(minor):
            if usable(path, minor):
                return path
    return None


if __name__ == "__main__":
    found = newest()
    if not found:
        mine = ".".join(map(str, sys.version_info[:3]))
        print(f"no Python newer than {mine} was found here: taking that", file=sys.stderr)
    print(found or sys.executable)

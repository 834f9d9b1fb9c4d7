"""Work in a process of its own: nothing is compiled, loaded or set before it, and what
hangs or fails there leaves the caller as it was.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

CHILD = """
import importlib, json, sys
call, arguments, path = sys.argv[1:]
module, _, function = call.partition(":")
result = getattr(importlib.import_module(module), function)(*json.loads(arguments))
with open(path, "w") as file:
    json.dump(result, file)
"""


class ProcessError(RuntimeError):
    """A child process failed or reached its limit. `.output` is what it printed."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


def in_process(
    call: str,
    arguments: Sequence = (),
    *,
    env: Mapping[str, str] | None = None,
    limit: float = 600.0,
) -> Any:
    """What a function returns in a new Python process.

    call: "module:function". arguments: the function's, a list; they and the result are
    what JSON can hold. env: variables beside those of this process. limit: seconds.
    Raises ProcessError for a process that fails or reaches the limit.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "result.json")
        words = [sys.executable, "-c", CHILD, call, json.dumps(arguments), str(path)]
        code, output = run(words, env=env, limit=limit)
        if code is None:
            raise ProcessError(f"{call}: not finished in {limit:.0f} s", output)
        if code:
            last = (output.strip().splitlines() or ["no output"])[-1]
            raise ProcessError(f"{call}: ended with status {code}: {last}", output)
        return json.loads(path.read_text())


def run(
    words: Sequence[str], *, env: Mapping[str, str] | None = None, limit: float = 600.0
) -> tuple[int | None, str]:
    """Run a command in a process group of its own for at most `limit` seconds: its exit
    status, None at the limit, and what it printed. Nothing of the group is left.
    """
    process = subprocess.Popen(
        words,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output = process.communicate(timeout=limit)[0]
        code = process.returncode
    except subprocess.TimeoutExpired:
        code = None
    finally:
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        else:  # Windows has no groups
            process.kill()
    return code, process.communicate()[0] if code is None else output

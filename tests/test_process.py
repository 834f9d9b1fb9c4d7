"""A function in a process of its own: its result, its errors and its end."""

import os
import sys
import time

import psutil
import pytest

from lstm_report.measure.process import (
    ProcessError,
    in_process,
    run,
)


def test_the_result_comes_from_another_process_with_its_own_variables(monkeypatch):
    monkeypatch.setenv("KEPT", "1")
    assert in_process("os:getpid") != os.getpid()
    values = [
        in_process("os:getenv", [name], env={"SET": "2"}) for name in ("KEPT", "SET")
    ]
    assert values == ["1", "2"]
    assert "SET" not in os.environ


def test_what_the_function_prints_is_not_its_result():
    assert in_process("builtins:print", ["[1, 2]"]) is None


@pytest.mark.parametrize(
    ("call", "arguments", "words"),
    [
        ("math:sqrt", [-1], "status 1: ValueError"),
        ("os:_exit", [7], "status 7: no output"),
        ("math:nothing", [], "status 1: AttributeError"),
    ],
)
def test_a_failing_process_is_named_with_its_last_line(call, arguments, words):
    with pytest.raises(ProcessError, match=f"{call}: ended with {words}"):
        in_process(call, arguments)


def test_what_reaches_the_limit_is_killed_with_its_children():
    start = time.monotonic()
    with pytest.raises(ProcessError, match="time:sleep: not finished in 1 s"):
        in_process("time:sleep", [60], limit=1.0)
    start_another = (
        "import subprocess, time;"
        "print(subprocess.Popen(['sleep', '60']).pid, flush=True);"
        "time.sleep(60)"
    )
    code, output = run([sys.executable, "-c", start_another], limit=2.0)
    assert code is None
    assert time.monotonic() - start < 30
    pid = int(output)
    for _ in range(100):
        if (
            not psutil.pid_exists(pid)
            or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        ):
            break
        time.sleep(0.05)
    else:
        pytest.fail(f"process {pid} is still there")

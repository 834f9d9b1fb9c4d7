"""A function in a process of its own: its result, its errors and its end."""

import os
import sys
import time

import psutil
import pytest

from lstm_report.measure.process import ProcessError, in_process, run


def test_the_result_comes_from_another_process_with_its_own_variables():
    assert in_process("os:getpid") != os.getpid()
    assert in_process("os:getenv", ["PATH"], env={"SET": "2"}) == os.environ["PATH"]
    assert in_process("os:getenv", ["SET"], env={"SET": "2"}) == "2"
    assert "SET" not in os.environ
    assert in_process("builtins:print", ["[1, 2]"]) is None  # printed, not returned


@pytest.mark.parametrize(
    ("call", "arguments", "words"),
    [
        ("math:sqrt", [-1], "ended with status 1: ValueError"),
        ("os:_exit", [7], "ended with status 7: no output"),
        ("math:nothing", [], "ended with status 1: AttributeError"),
        ("time:sleep", [60], "not finished in 1 s"),
    ],
)
def test_a_failing_process_is_named_with_its_last_line(call, arguments, words):
    with pytest.raises(ProcessError, match=f"{call}: {words}"):
        in_process(call, arguments, limit=1.0 if call == "time:sleep" else 600.0)


def ended(pid):
    """Whether a process is gone, or only its status is left."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_what_reaches_the_limit_is_killed_with_its_children(tmp_path):
    """However long Python takes to start: the limit comes after its sign of life."""
    program = "import subprocess, sys, time;"
    program += "print(subprocess.Popen(['sh', '-c', sys.argv[1]]).pid, flush=True);"
    program += "time.sleep(600)"
    survived, limit, output = tmp_path / "survived", 1, ""
    while not output:
        limit *= 2
        child = f"sleep {limit + 20}; touch {survived}"
        code, output = run([sys.executable, "-c", program, child], limit=limit)
    assert code is None
    assert not survived.exists()
    while not ended(int(output)):  # once killed, soon
        assert not survived.exists()
        time.sleep(0.05)

"""`make gpu`, and what only a driver knows, before there is one: fakes stand in for
it.
"""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pandas as pd
import pytest
from conftest import SIMULATED

import lstm_kernels as lk
from lstm_kernels.gpu import device
from lstm_kernels.versions.cuda_epoch import CudaEpoch
from lstm_report.experiments import gpu, gpu_run
from lstm_report.measure import process, provenance, results

simulated = pytest.mark.skipif(not SIMULATED, reason="fakes what a device does")
ROW = {"version": "cuda-v3", "stage": "step", "repeat": 0, "seconds": 1.25e-5}


@pytest.fixture
def machine(monkeypatch):
    about = {
        "date": "2026-01-01",
        "commit": "c",
        "dirty": False,
        "name": "m",
        "preset": "paper",
    }
    about |= {"cpu": "a", "cores": 2, "gpu": None}
    monkeypatch.setattr(provenance, "machine", lambda preset: dict(about))
    monkeypatch.setattr(gpu_run, "refuse", lambda: None)
    monkeypatch.setattr(gpu_run, "SLOWER", 1)
    monkeypatch.setattr(gpu_run, "checks", dict)


ORDER = "hundreds", "windows", "large", "table"


def test_what_fails_or_hangs_leaves_the_others(monkeypatch, tmp_path, machine, capsys):
    asked = []

    def in_process(call, arguments, *, limit):
        name = arguments[0] if len(arguments) == 2 else "probe"
        asked.append(name)
        if name == "windows":
            message = "ended with status 1: CUDA_ERROR_ILLEGAL_ADDRESS"
            raise process.ProcessError(message, "Traceback")
        if name == "large":
            raise process.ProcessError("not finished in 40 s", "still at it")
        if name == "probe":
            return "3 of 3 networks right"
        rows = pd.DataFrame([ROW | {"variant": name}])
        return {"rows": rows.to_json(orient="records"), "conditions": {"spread": 0.0}}

    monkeypatch.setattr(gpu_run, "in_process", in_process)
    words = [sys.executable, "-c", "print('first'); print('none found')"]
    broken = [sys.executable, "-c", "print('2 failed'); raise SystemExit(9)"]
    checks = {"memcheck": words, "racecheck": broken}
    monkeypatch.setattr(gpu_run, "checks", lambda: checks)
    running = gpu_run.main("paper", tmp_path)
    assert next(running)[:2] == ("probe", "3 of 3 networks right")
    name, _, path = next(running)  # the machine may be taken away after each
    assert (name, len(pd.read_csv(path))) == ("hundreds", 1)
    with pytest.raises(RuntimeError) as error:
        list(running)
    assert str(error.value) == (
        "windows (ended with status 1: CUDA_ERROR_ILLEGAL_ADDRESS); large (not "
        "finished in 40 s); racecheck (failed: 2 failed)"
    )
    assert "Traceback" in capsys.readouterr().err
    assert asked == ["probe", *ORDER]
    written = pd.read_csv(tmp_path / "m" / "gpu.csv")
    measured = [name for name in ORDER if name not in ("windows", "large")]
    assert list(written["variant"]) == measured
    assert set(written["seconds"]) == {1.25e-5}
    outcomes = json.loads((tmp_path / "m" / "gpu-checks.json").read_text())
    assert outcomes["memcheck"] == "none found"
    assert outcomes["table"] == "measured"
    assert outcomes["commit"] == "c"


def test_the_time_is_shared_until_it_is_spent(monkeypatch, tmp_path, machine):
    limits = []

    def in_process(call, arguments, *, limit):
        limits.append(limit)
        raise process.ProcessError("no")

    monkeypatch.setattr(gpu_run, "in_process", in_process)
    with pytest.raises(RuntimeError, match="table"):
        list(gpu_run.main("paper", tmp_path, minutes=1))
    assert max(limits) <= 60
    assert len(limits) == 1 + len(ORDER)
    with pytest.raises(RuntimeError, match=r"probe \(no time was left\)"):
        list(gpu_run.main("paper", tmp_path, minutes=0))
    assert len(limits) == 1 + len(ORDER)


def test_a_run_fits_its_minutes():
    """By the limits of its parts, the checks aside, which come last."""
    assert list(gpu.plan("paper")) == list(ORDER)
    assert sum(gpu_run.LIMITS.values()) <= 8 * 60


@simulated
def test_a_comparison_comes_from_a_process_of_its_own():
    rows = gpu_run.comparison("large", "smoke", limit=120)
    assert set(rows["version"]) == set(gpu.STAY)
    assert (rows["seconds"] > 0).all()
    assert (rows["max_err"] < 1e-5).all()


def test_a_gpu_that_cannot_run_is_said_first(monkeypatch, tmp_path):
    reason = "there is no CUDA device"
    broken = [SimpleNamespace(name="cuda-v1", target="gpu", why_unavailable=reason)]
    monkeypatch.setattr(gpu_run, "versions", lambda: broken)
    with pytest.raises(lk.UnavailableError, match=f"cuda-v1: {reason}"):
        next(gpu_run.main("paper", tmp_path))


@simulated
def test_the_probe_names_a_network_that_is_wrong(monkeypatch, capsys):
    pairs = [("cuda-v3", gpu.Workload(1, 2, 1, 3, 4)), ("cuda-nothing", gpu.HUNDREDS)]
    monkeypatch.setattr(gpu_run, "probed", lambda preset: pairs)
    with pytest.raises(RuntimeError, match="1 of 2 networks right"):
        gpu_run.probe("smoke", workers=1)
    right, wrong = capsys.readouterr().out.splitlines()
    assert "cuda-v3" in right
    assert "error" in right
    assert "cuda-nothing" in wrong
    assert "ValueError" in wrong


def test_every_version_and_size_that_is_measured_is_probed():
    pairs = gpu_run.probed("paper")
    assert {name for name, _ in pairs} == {
        "cuda-v1",
        "cuda-v3",
        *gpu.STAY,
    }  # V2's kernels are V3's
    assert {work.H for _, work in pairs} == {9, 32, 512}


@simulated
def test_what_the_sanitizer_watches_runs(capsys, monkeypatch):
    monkeypatch.setattr(gpu_run, "WATCHED", gpu.Workload(1, 2, 1, 3, 5))
    gpu_run.watched()
    assert capsys.readouterr().out == "nothing found\n"
    wrong = "cuda-v3: MismatchError: y"
    monkeypatch.setattr(gpu_run, "verified", lambda pair: (wrong, False))
    with pytest.raises(SystemExit, match=wrong):
        gpu_run.watched()


def test_how_the_checks_are_called(monkeypatch):
    monkeypatch.setattr(gpu_run.shutil, "which", lambda name: "/opt/compute-sanitizer")
    monkeypatch.setattr(gpu_run, "find_spec", lambda name: True)
    checks = gpu_run.checks()
    assert list(checks) == [
        *(["tests"] if results.ROOT else []),
        "memcheck",
        "racecheck",
    ]
    assert set(checks) <= set(gpu_run.CHECK_LIMITS)
    assert "--report-api-errors" in checks["memcheck"]
    assert "-n" in checks.get("tests", ["-n"])


@pytest.mark.skipif(not results.ROOT, reason="the Makefile comes with the repository")
def test_make_gpu_writes_where_it_is_told():
    words = ["make", "-n", "gpu", "FOLDER=/some where"]
    done = subprocess.run(
        words, cwd=results.ROOT, capture_output=True, text=True, check=True
    )
    assert '-m lstm_kernels gpu --folder "/some where"' in done.stdout


def test_the_commit_can_come_from_outside(monkeypatch, tmp_path):
    monkeypatch.setenv("LSTM_KERNELS_COMMIT", "0ae1deb")
    assert provenance._commit(tmp_path) == {"commit": "0ae1deb", "dirty": None}


class Function:
    """A compiled kernel as numba-cuda holds it: of a module, or (`kernel`) of a
    library.
    """

    def __init__(self, of_library):
        self.handle = 17 if of_library else SimpleNamespace(value=16)
        self.device = SimpleNamespace(id=3)
        if of_library:
            self.kernel = object()


class FakeKernel:
    """A dispatcher with one overload."""

    def __init__(self, function, most=5):
        library = SimpleNamespace(get_cufunc=lambda: function)
        overload = SimpleNamespace(_codelibrary=library)
        overload.max_cooperative_grid_blocks = lambda threads, shared: most
        self.overloads = {"signature": overload}

    def __getitem__(self, how):
        return lambda *arguments: how


class Driver:
    """Which shared memory was asked for of which kernel."""

    def __init__(self, error=0):
        self.calls, self.error = [], error

    def cuFuncSetAttribute(self, handle, attribute, size):
        self.calls.append(("function", handle.value, attribute, size))
        return self.error

    def cuKernelSetAttribute(self, attribute, size, handle, device):
        self.calls.append(("kernel", handle.value, attribute, size, device))
        return self.error


@pytest.mark.parametrize("of_library", [False, True])
def test_the_most_shared_memory_is_asked_for_once(monkeypatch, of_library):
    """A launch that wants less must not lower what a later launch of the same kernel
    needs.
    """
    driver = Driver()
    monkeypatch.setattr(device.ctypes, "CDLL", lambda name: driver)
    kernel, used = FakeKernel(Function(of_library)), real_device(monkeypatch)
    for shared in (
        149_860,
        108_900,
        40_000,
        149_860,
    ):  # the whole batch, then the rest of it
        used.configure(kernel, 1, (32, 8), shared)
    most = 227 << 10
    want = ("kernel", 17, 8, most, 3) if of_library else ("function", 16, 8, most)
    assert driver.calls == [want]


def real_device(monkeypatch):
    """A Device as one of an H100 would be."""
    used = device.Device("cuda-epoch")
    used.multiprocessors, used.shared = 132, 227 << 10
    monkeypatch.setattr(device, "SIMULATED", False)
    return used


def test_shared_memory_that_the_driver_refuses(monkeypatch):
    monkeypatch.setattr(device.ctypes, "CDLL", lambda name: Driver(error=1))
    with pytest.raises(
        RuntimeError, match=r"does not grant a block 200000 bytes .* \(error 1\)"
    ):
        device.allow_shared(FakeKernel(Function(True)), 200_000)


def test_more_blocks_than_fit_are_refused(monkeypatch):
    """They would wait for ever for blocks that cannot start."""
    kernel, used = FakeKernel(Function(True), most=5), real_device(monkeypatch)
    assert used.configure(kernel, 5, (32, 8), 1000, together=True)() == (
        5,
        (32, 8),
        0,
        1000,
    )
    with pytest.raises(
        RuntimeError, match=r"^cuda-epoch: got 6 blocks .* want at most 5"
    ):
        used.configure(kernel, 6, (32, 8), 1000, together=True)


@simulated
def test_more_blocks_than_the_simulator_runs_are_refused():
    params = lk.Params.init(1, 3, output_size=1)
    net, work = CudaEpoch(params), gpu.Workload(1, 2, 1, 3, 8)
    net._device.multiprocessors = 4
    with pytest.raises(RuntimeError, match="want at most 1, which this device"):
        net.epoch(work.dataset(8), list(range(8)), 8, 0.1)
    compared = net.params().arrays()
    assert all((compared[name] == a).all() for name, a in params.arrays().items())


@simulated
def test_free_memory_counts_what_was_let_go(monkeypatch):
    """numba-cuda frees late: its list of pending deallocations is emptied before one
    asks.
    """
    pending = [100]
    manager = SimpleNamespace(deallocations=SimpleNamespace(clear=pending.clear))
    context = SimpleNamespace(memory_manager=manager)
    context.get_memory_info = lambda: (900 + 100 * (not pending), 1000)
    used = device.Device("cuda-v1")
    monkeypatch.setattr(device, "SIMULATED", False)
    monkeypatch.setattr(device.cuda, "current_context", lambda: context)
    assert used.free() == 1000


def test_a_missing_compiler_is_named(monkeypatch):
    def missing(capability):
        raise RuntimeError("libNVVM cannot be found.\nDo `conda install cudatoolkit`")

    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    said = device.why_not_compiled("H200", (9, 0), missing)
    assert said.startswith(
        "the CUDA compiler (NVVM) was not found in /opt/cuda: pip install"
    )
    assert "CUDA_HOME" in said


def imported(tmp_path, code, **variables):
    """What a new process prints that imports the GPU's module with an nvcc on its
    PATH.
    """
    tool = tmp_path / "cuda-13.0" / "bin" / "nvcc"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    hidden = ("CUDA_HOME", "CUDA_PATH")
    environment = {k: v for k, v in os.environ.items() if k not in hidden} | variables
    environment["PATH"] = f"{tool.parent}{os.pathsep}{environment['PATH']}"
    words = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(
        words, capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.strip()


HOME = (
    "import os; from lstm_kernels.gpu import device; print(os.environ.get('CUDA_HOME'))"
)


def test_the_toolkit_is_found_by_its_compiler(tmp_path):
    assert imported(tmp_path, HOME) == str(tmp_path / "cuda-13.0")


def test_a_toolkit_that_is_named_stays(tmp_path):
    assert imported(tmp_path, HOME, CUDA_HOME="/named") == "/named"


def test_numpy_without_row_stack_is_enough(tmp_path):
    code = "import numpy as np; vars(np).pop('row_stack', None)\n"
    code += "from lstm_kernels.gpu import device; print(np.row_stack is np.vstack)"
    assert imported(tmp_path, code) == "True"

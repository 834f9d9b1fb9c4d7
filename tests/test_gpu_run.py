"""`make gpu`, before there is a GPU: its parts are handed in, and so is a driver."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest
from test_cuda import simulated

import lstm_kernels as lk
from lstm_kernels.gpu import device
from lstm_kernels.versions.cuda_epoch import CudaEpoch
from lstm_report.experiments import gpu, gpu_run, gpu_torch
from lstm_report.experiments.gpu_run import Task
from lstm_report.measure.process import ProcessError


def rows(variant, left_out=()):
    about = {"version": "cuda-v3", "stage": "step", "repeat": 0, "seconds": 1.25e-5}
    made = pd.DataFrame([about | {"variant": variant}])
    made.attrs |= {"conditions": {"spread": 0.0}, "left_out": list(left_out)}
    return made


def fails(message, *, limit):
    raise ProcessError(message, "Traceback")


def made_tasks(**others):
    """Tasks that return at once, in the order of a run."""
    made = {"probe": Task(lambda limit: "2 of 2 networks right", 20)}
    for name in ("airline", "table", "large"):
        run = lambda limit, name=name: rows(name)  # noqa: E731
        made[name] = Task(run, 10, name == "airline")
    return made | others


@simulated
def test_what_fails_leaves_the_others(tmp_path, capsys):
    """All so far is written after each part; what claims rest on is run again."""
    words = [sys.executable, "-c", "print('2 failed'); raise SystemExit(9)"]
    parts = made_tasks(
        airline=Task(lambda limit: rows("airline", ["pytorch (H=32): no"]), 10, True),
        large=Task(partial(fails, "not finished in 45 s"), 10),
        tests=Task(partial(gpu_run.command, words), 10),
    )
    running = gpu_run.main("smoke", tmp_path, parts=parts)
    assert next(running)[:2] == ("probe", "2 of 2 networks right")
    name, _, path = next(running)
    assert (name, len(pd.read_csv(path))) == ("airline", 1)
    want = r"^airline \(without pytorch .*; large \(not finished in 45 s\); tests "
    with pytest.raises(RuntimeError, match=rf"{want}\(failed: 2 failed\); airline"):
        list(running)
    assert "Traceback" in capsys.readouterr().err
    found = pd.read_csv(path)
    assert [*found["variant"]] == ["airline", "table", *["airline"] * 4]
    assert [*found["process"]] == [0, 0, 1, 2, 3, 4]
    outcomes = json.loads(path.with_name("gpu-checks.json").read_text())
    assert outcomes["airline"] == "measured without pytorch (H=32): no"
    assert outcomes["table"] == "measured"
    assert outcomes["versions"]["cuda-v3"] == "runs here"
    assert outcomes["airline, process 5"].startswith("measured without")


@simulated
def test_time_that_a_part_leaves_goes_to_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_run, "SLOWER", 1)
    limits, now, took = {}, [0.0], {"airline": 1, "table": 100}

    def part(name, *, limit):
        limits.setdefault(name, []).append(round(limit))
        now[0] += took.get(name, 0)
        return "done"

    parts = {
        name: Task(partial(part, name), task.seconds, task.again)
        for name, task in made_tasks().items()
    }
    run = partial(gpu_run.main, "smoke", tmp_path, parts=parts, clock=lambda: now[0])
    list(run(minutes=2))
    # Of 120 s, 50 are due in all; a part has its own and what none needs.
    assert limits["probe"] == [48]  # and at most 40 % of all
    assert limits["airline"][0] == 120 - 20
    assert limits["table"] == [119 - 10]
    assert limits["large"] == [19]
    assert limits["airline"][1:] == [19, 18, 17, 16]  # four more processes
    now[0], took["table"] = 0.0, 118
    limits.clear()
    with pytest.raises(RuntimeError, match=r"large \(no time was left\)"):
        list(run(minutes=2))
    assert len(limits["airline"]) == 1  # another would not fit


@simulated
def test_what_a_part_raises_or_forgets_is_its_failure(tmp_path, capsys):
    def wrong(limit):
        return {}["a key"]

    parts = made_tasks(
        airline=Task(wrong, 10, True), table=Task(lambda limit: rows("t")[:0], 10)
    )
    with pytest.raises(RuntimeError, match=r"airline \(KeyError.*table \(no rows\)"):
        list(gpu_run.main("smoke", tmp_path, parts=parts))
    (path,) = tmp_path.glob("*/gpu-checks.json")
    checks = json.loads(path.read_text())
    assert (checks["rows"], checks["ended"]) == (1, True)  # of `large`


@simulated
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"minutes": 0}, "minutes: got 0"),
        ({"minutes": float("nan")}, "minutes: got nan"),
        ({"only": ("typo",)}, "only: got .'typo'., want some of"),
    ],
)
def test_a_run_of_nothing_is_refused(tmp_path, how, said):
    with pytest.raises(ValueError, match=said):
        list(gpu_run.main("smoke", tmp_path, **how))
    assert not [*tmp_path.iterdir()]


def test_a_run_fits_its_minutes():
    """By the limits of its parts, in the order of their worth."""
    tasks = gpu_run.tasks("paper")
    assert [*tasks][:4] == ["probe", "airline", "hundreds", "table"]
    comparisons = [*gpu.plan("paper")]
    seconds = {name: task.seconds for name, task in tasks.items()}
    assert sum(seconds.values()) <= 9 * 60
    assert [name for name in tasks if tasks[name].again] == [
        name for name, part in gpu.plan("paper").items() if part.claimed
    ]
    assert [*tasks][1 : 1 + len(comparisons)] == comparisons
    assert [*gpu_run.tasks("paper", ("units",))] == ["probe", "units"]


@simulated
def test_what_is_wrong_is_compared_with_nothing(capsys):
    """The probe, a process of its own, names it; a comparison leaves it out."""
    small = gpu.Workload(1, 2, 1, 3, 4)
    cases = [("cuda-v3", small), ("cuda-nothing", gpu.HUNDREDS)]
    wrong = []
    with pytest.raises(ProcessError, match="1 of 2 networks right"):
        gpu_run.probe("smoke", wrong, cases, limit=120)
    assert wrong == [("cuda-nothing", 32)]
    right, other = capsys.readouterr().out.splitlines()
    assert "error" in right
    assert "cuda-nothing" in other
    said = gpu_run.probe("smoke", [], cases, limit=1)
    assert said == "0 of 2 networks right, 2 not reached"  # nor wrong
    with pytest.raises(ProcessError, match="0 of 1 networks right; not"):
        gpu_run.probe("smoke", [], cases[1:], limit=60)  # a crash is no end of time
    made = gpu_run.comparison("large, 4", "smoke", [["cuda-persistent", 2]], limit=120)
    assert {"cuda-fused", "numba-fused"} <= set(made["version"])
    assert "cuda-persistent" not in set(made["version"])
    assert (made["max_err"] < 1e-5).all()
    on_device = made[made["stage"] == "forward on device"]
    assert set(on_device["version"]).isdisjoint({"numba-fused"})


@simulated
def test_comparisons_run():
    for part in ("hundreds", "windows"):
        made = gpu.plan("smoke")[part].run()
        assert (made["seconds"] > 0).all()
        assert (made["max_err"] < 1e-5).all()
    assert made.groupby("N")["B"].first().to_dict() == {8: 1}  # eight steps


def test_a_long_call_is_timed_once(monkeypatch):
    monkeypatch.setattr(gpu, "LONG", 0.05)
    dataset, names = gpu.SMALL.dataset(4), ["numpy", "numpy-sample"]

    def call(net):
        return lambda: time.sleep(0.06 if net.name == "numpy" else 0.001)

    how = {"rate": 0.1, "repeats": 3}
    made = gpu.contest("a", names, gpu.SMALL, dataset, {"step": call}, **how)
    assert made.groupby("version").size().to_dict() == {"numpy": 1, "numpy-sample": 3}
    assert made[made["version"] == "numpy"]["seconds"].item() >= 0.06


def test_what_a_first_call_compiles_is_not_its_time(monkeypatch):
    monkeypatch.setattr(gpu, "LONG", 0.05)
    calls = []

    def compiles_first():
        calls.append(1)
        time.sleep(0.06 if len(calls) == 1 else 0.001)

    how = {"rate": 0.1, "repeats": 3, "least": 0}
    given = "a", ["numpy"], gpu.SMALL, gpu.SMALL.dataset(4)
    made = gpu.contest(*given, {"step": lambda net: compiles_first}, **how)
    assert len(made) == 3
    assert (made["seconds"] < 0.05).all()


def test_epochs_are_counted():
    made = gpu.epochs(
        "table", ["numpy"], gpu.SMALL, gpu.SMALL.dataset(4), count=5, repeats=1
    )
    assert set(made["stage"]) == {"5 epochs"}
    assert set(made["N"]) == {4}


@pytest.mark.parametrize("fault", ["y", "losses", "layers.0.W"])
def test_who_is_wrong_or_cannot_be_made_is_left_out(monkeypatch, fault):
    monkeypatch.setattr(gpu, "left_out", [])
    right = gpu.found

    def found(net, *given):
        got = right(net, *given)
        if net.name == "numpy-sample":
            got[fault] = got[fault] * 1.01
        return got

    monkeypatch.setattr(gpu, "found", found)
    work, names = replace(gpu.SMALL, B=3), ["numpy", "numpy-sample", "cuda-nothing"]
    dataset = work.dataset(5)
    arguments = work, dataset, {"epoch": gpu.epoch_of(dataset, 3, 0.1)}
    made = gpu.contest("a", names, *arguments, rate=1.0, repeats=1)
    assert set(made["version"]) == {"numpy"}
    wrong, missing = gpu.left_out
    assert wrong.startswith("numpy-sample (L=1, H=2, B=3): MismatchError: ")
    assert fault in wrong
    assert "cuda-nothing" in missing
    with pytest.raises(RuntimeError, match=r"^a: .*numpy-sample"):
        gpu.contest("a", names[1:], *arguments, rate=1.0, repeats=1)


@pytest.mark.parametrize("tf32", [False, True])
def test_pytorch_trains_as_a_network_does(tf32):
    pytest.importorskip("torch")
    params = lk.Params.init(2, 5, num_layers=2, output_size=1)
    net = gpu_torch.Torch(params, device="cpu", tf32=tf32)
    work = gpu.Workload(2, 4, 2, 5, 3)
    (x, _), dataset = work.example(), work.dataset(8)
    given = work.params(seed=3), x, dataset, 3, 0.5
    for _ in range(2):  # from the same parameters
        gpu.compare(gpu.found(net, *given), gpu.truth(*given), 1e-6)
    assert net.torch.backends.cudnn.allow_tf32 is tf32


@simulated
def test_every_kernel_that_is_measured_is_probed():
    """Each once; those that wait for each other over the whole device come last."""
    probed = gpu_run.tasks("paper")["probe"].run.args[-1]
    names = [name for name, _ in probed]
    assert {*names} >= {"cuda-v1", "cuda-v3", *gpu.STAY, "numba-fused"}
    assert len(probed) == len({*probed})
    last = names.index("cuda-persistent")  # a kernel that hangs takes no other's turn
    assert {*names[last:]} == {"cuda-persistent"}


class Driver:
    """Which shared memory was asked for of which kernel."""

    def __init__(self, error=0):
        self.calls, self.error = [], error

    def cuFuncSetAttribute(self, handle, attribute, size):
        self.calls.append((handle.value, attribute, size))
        return self.error

    def cuKernelSetAttribute(self, attribute, size, handle, device):
        self.calls.append((handle.value, attribute, size, device))
        return self.error


OF_MODULE = SimpleNamespace(handle=SimpleNamespace(value=16))
OF_LIBRARY = SimpleNamespace(handle=17, device=SimpleNamespace(id=3), kernel=object())


class Kernel:
    """A dispatcher with one overload, of which five blocks fit."""

    def __init__(self, function=OF_MODULE):
        overload = SimpleNamespace(max_cooperative_grid_blocks=lambda *how: 5)
        overload._codelibrary = SimpleNamespace(get_cufunc=lambda: function)
        self.overloads = {"signature": overload}

    def __getitem__(self, how):
        return how


def on_h100(driver):
    """A Device as one of an H100 would be."""
    used = device.Device("cuda-epoch")
    used.multiprocessors, used.shared, used.simulated = 132, 227 << 10, False
    used.load_driver = lambda: driver
    return used


@simulated
@pytest.mark.parametrize(
    ("function", "want"),
    [(OF_MODULE, (16, 8, 227 << 10)), (OF_LIBRARY, (17, 8, 227 << 10, 3))],
)
def test_the_most_shared_memory_is_asked_for_once(function, want):
    """A launch that wants less must not lower what a later launch of the same kernel
    needs.
    """
    driver, kernel = Driver(), Kernel(function)
    used = on_h100(driver)
    for shared in (149_860, 108_900, 40_000, 149_860):
        used.configure(kernel, 1, (32, 8), shared)
    assert driver.calls == [want]
    with pytest.raises(RuntimeError, match=r"not grant a block 232448 .* \(error 1\)"):
        on_h100(Driver(1)).configure(Kernel(function), 1, (32, 8), 200_000)


@simulated
def test_more_blocks_than_fit_are_refused():
    """They would wait for ever for blocks that cannot start."""
    kernel, used = Kernel(), on_h100(Driver())
    grid = used.configure(kernel, 5, (32, 8), 1000, together=True)
    assert grid == (5, (32, 8), 0, 1000)
    with pytest.raises(RuntimeError, match=r"^cuda-epoch: got 6 .* want at most 5"):
        used.configure(kernel, 6, (32, 8), 1000, together=True)
    params = lk.Params.init(1, 3, output_size=1)
    net, work = CudaEpoch(params), gpu.Workload(1, 2, 1, 3, 8)
    net._device.multiprocessors = 4
    with pytest.raises(RuntimeError, match="want at most 1, which this device"):
        net.epoch(work.dataset(8), list(range(8)), 8, 0.1)
    gpu.compare(net.params().arrays(), params.arrays(), 0)


HOME = "import os; from lstm_kernels.gpu import device; print(os.environ['CUDA_HOME'])"
ROW_STACK = """
import numpy as np; vars(np).pop('row_stack', None)
from lstm_kernels.gpu import device; print(np.row_stack is np.vstack)
"""


@pytest.mark.parametrize(
    ("code", "variables", "want"),
    [
        (HOME, {}, "{}"),
        (HOME, {"CUDA_HOME": "/named"}, "/named"),
        (ROW_STACK, {}, "True"),
    ],
)
def test_an_import_finds_the_toolkit(tmp_path, code, variables, want):
    """By its compiler; one that is named stays. NumPy may lack row_stack."""
    tool = tmp_path / "bin" / "nvcc"
    tool.parent.mkdir()
    tool.touch(0o755)
    hidden = ("CUDA_HOME", "CUDA_PATH")
    environment = {k: v for k, v in os.environ.items() if k not in hidden} | variables
    environment["PATH"] = f"{tool.parent}{os.pathsep}{environment['PATH']}"
    words = [sys.executable, "-W", "ignore", "-c", code]
    said = subprocess.check_output(words, text=True, env=environment).strip()
    assert said == want.format(tmp_path)

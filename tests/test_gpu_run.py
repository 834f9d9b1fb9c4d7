"""`make gpu`, and what only a driver knows, before there is one: fakes stand in for
it.
"""

import json
import os
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import SIMULATED

import lstm_kernels as lk
from lstm_kernels.gpu import device
from lstm_kernels.versions.cuda_epoch import CudaEpoch
from lstm_report.experiments import gpu, gpu_run, gpu_torch
from lstm_report.measure import process, provenance, results

simulated = pytest.mark.skipif(not SIMULATED, reason="fakes what a device does")
ROW = {"version": "cuda-v3", "stage": "step", "repeat": 0, "seconds": 1.25e-5}
ORDER = [
    *("probe", "airline", "large", "large 16", "large 1", "table", "hundreds"),
    *("windows", "layers", "stacks", "units", "threads"),
]
PARTS = ORDER[1:]


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
    monkeypatch.setattr(gpu, "plan", lambda *how: dict.fromkeys(PARTS))
    right = ("cuda-v3", gpu.SMALL, "lstm")
    monkeypatch.setattr(gpu_run, "probed", lambda preset: [right] * 2)


def measured(variant, left_out=()):
    """What the process of a comparison returns."""
    rows = pd.DataFrame([ROW | {"variant": variant}])
    rows = rows.to_json(orient="records", double_precision=15)
    return {"rows": rows, "conditions": {"spread": 0.0}, "left_out": list(left_out)}


def test_what_fails_or_hangs_leaves_the_others(monkeypatch, tmp_path, machine, capsys):
    asked = []

    def in_process(call, arguments, *, env=None, limit):
        if call.endswith("verified"):
            return [["error 1e-07", True]]
        name, preset, wrong = arguments
        asked.append(name)
        assert (preset, wrong) == ("paper", [])
        if name == "windows":
            message = "ended with status 1: CUDA_ERROR_ILLEGAL_ADDRESS"
            raise process.ProcessError(message, "Traceback")
        if name == "large":
            raise process.ProcessError("not finished in 45 s", "still at it")
        return measured(name, ["pytorch (H=32): no"] if name == "airline" else [])

    monkeypatch.setattr(gpu_run, "in_process", in_process)
    words = [sys.executable, "-c", "print('first'); print('none found')"]
    broken = [sys.executable, "-c", "print('2 failed'); raise SystemExit(9)"]
    checks = {"memcheck": words, "racecheck": broken}
    monkeypatch.setattr(gpu_run, "checks", lambda: checks)
    running = gpu_run.main("paper", tmp_path)
    assert next(running)[:2] == ("probe", "2 of 2 networks right")
    name, _, path = next(running)  # the machine may be taken away after each
    assert (name, len(pd.read_csv(path))) == ("airline", 1)
    with pytest.raises(RuntimeError) as error:
        list(running)
    assert str(error.value) == (
        "airline (without pytorch (H=32): no); large (not finished in 45 s); windows "
        "(ended with status 1: CUDA_ERROR_ILLEGAL_ADDRESS); racecheck (failed: 2 "
        "failed)"
    )
    assert "Traceback" in capsys.readouterr().err
    assert asked == PARTS
    written = pd.read_csv(tmp_path / "m" / "gpu.csv")
    assert list(written["variant"]) == [
        name for name in PARTS if name not in ("windows", "large")
    ]
    assert set(written["seconds"]) == {1.25e-5}
    outcomes = json.loads((tmp_path / "m" / "gpu-checks.json").read_text())
    assert outcomes["memcheck"] == "none found"
    assert outcomes["airline"] == "measured without pytorch (H=32): no"
    assert outcomes["table"] == "measured"
    assert outcomes["commit"] == "c"


def test_what_the_probe_finds_wrong_is_compared_with_nothing(
    monkeypatch, tmp_path, machine, capsys
):
    """One that hangs, one that is wrong; whose process dies, all of it."""
    cases = [("cuda-v3", gpu.SMALL, "lstm"), ("cuda-epoch", gpu.LARGE, "lstm")]
    cases += [("cuda-fused", gpu.HUNDREDS, "lstm")]
    monkeypatch.setattr(gpu_run, "probed", lambda preset: cases)

    def in_process(call, arguments, *, env=None, limit):
        if call.endswith("rows_as_json"):
            assert sorted(arguments[2]) == [("cuda-epoch", 512), ("cuda-fused", 32)]
            return measured(arguments[0])
        (((name, sizes, cell),),) = arguments
        assert 1 <= limit <= gpu_run.ONE_NETWORK
        if name == "cuda-epoch":
            assert (sizes, cell) == (asdict(gpu.LARGE), "lstm")
            raise process.ProcessError("not finished in 75 s")
        return [["error 1e-07, 2.0 s", True] if name == "cuda-v3" else ["y", False]]

    monkeypatch.setattr(gpu_run, "in_process", in_process)
    done = gpu_run.main("paper", tmp_path, only=["probe", "table"])
    _, said, path = next(done)
    assert said.startswith("1 of 3 networks right; not [")
    assert json.loads(path.read_text())["probe"] == said
    assert next(done)[0] == "table"
    with pytest.raises(RuntimeError, match="probe"):
        next(done)
    assert "not finished in 75 s" in capsys.readouterr().out


def test_time_that_a_part_leaves_goes_to_the_next(monkeypatch, tmp_path, machine):
    clock, limits = [0.0], {}
    monkeypatch.setattr(gpu_run.time, "monotonic", lambda: clock[0])
    took = {"airline": 1, "large": 80}

    def comparison(name, preset, wrong, *, limit):
        limits[name] = round(limit)
        clock[0] += took.get(name, 0)
        raise process.ProcessError("no")

    monkeypatch.setattr(gpu_run, "comparison", comparison)
    monkeypatch.setattr(gpu_run, "probe", lambda preset, wrong, limit: "right")
    with pytest.raises(RuntimeError, match="threads"):
        list(gpu_run.main("paper", tmp_path))
    spare = 50 + 150  # of the checks, which are not here, and of the probe
    assert (limits["airline"], limits["large"]) == (spare + 40, spare + 39 + 45)
    assert limits["large 16"] == spare + 39 + 45 - 80 + 25
    assert max(limits.values()) <= 9 * 60
    limits.clear()
    with pytest.raises(RuntimeError, match=r"table \(no time was left\)"):
        list(gpu_run.main("paper", tmp_path, minutes=1))
    assert limits == {"airline": 40, "large": 45}
    with pytest.raises(RuntimeError, match="units"):
        list(gpu_run.main("paper", tmp_path, only=["units"]))
    assert limits["units"] == 9 * 60  # nothing else is due


def test_a_run_fits_its_minutes(monkeypatch):
    """By the limits of its parts, checks too, in the order of their worth."""
    monkeypatch.setattr(gpu_run, "checks", lambda: dict.fromkeys(["tests", "memcheck"]))
    expected = [name for name in ORDER if name in {"probe", *gpu.plan("paper")}]
    assert list(gpu_run.tasks("paper")) == [*expected, "tests", "memcheck"]
    assert set(ORDER) - set(expected) <= {"stacks", "units"}
    assert sum(gpu_run.LIMITS.values()) <= 9 * 60
    assert list(gpu_run.LIMITS) == [*ORDER, "tests", "memcheck", "racecheck"]
    for name in ("large 16", "large 1"):
        expected.remove(name)
    assert list(gpu_run.tasks("smoke")) == expected


@simulated
def test_every_comparison_runs(monkeypatch):
    """With what is here, which may be a part of the versions, without PyTorch."""
    names = ["numpy", "cuda-v3", "cuda-epoch", "numba-fused"]
    monkeypatch.setattr(gpu, "available", lambda *target: names)
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    plan = gpu.plan("smoke")
    assert set(PARTS) - set(plan) == {"large 16", "large 1", "stacks", "units"}
    for part in ("layers", "threads"):
        del plan[part]
    rows = pd.concat([compare() for compare in plan.values()])
    assert (rows["seconds"] > 0).all()
    assert (rows["max_err"] < 1e-5).all()
    assert set(rows["version"]) == set(names)
    assert set(rows["variant"]) == {"airline", "large", "table", "hundreds", "windows"}
    grown = rows[rows["variant"] == "windows"]
    assert grown.groupby("N")["B"].first().to_dict() == {8: 1}  # eight steps
    assert not gpu.left_out


@simulated
def test_a_comparison_comes_from_a_process_of_its_own():
    rows = gpu_run.comparison("large", "smoke", [["cuda-persistent", 2]], limit=120)
    assert {"cuda-fused", "numba-fused"} <= set(rows["version"])
    assert "cuda-persistent" not in set(rows["version"])
    assert (rows["seconds"] > 0).all()
    assert (rows["max_err"] < 1e-5).all()
    on_device = rows[rows["stage"] == "forward on device"]
    assert not {"cuda-fused"} - set(on_device["version"])
    assert "numba-fused" not in set(on_device["version"])


def test_threads_are_in_the_rows():
    cases = [("numba-fused", gpu.SMALL, "rnn", ["forward"])]
    cases += [("numba-fused", gpu.SMALL, "lstm", ["step"])]
    rows = gpu.on_cores(cases, [1, 2], repeats=2)
    assert set(rows["threads"]) == {1, 2}
    assert rows.groupby("variant")["stage"].first().to_dict() == {
        "threads": "step",
        "threads, rnn": "forward",
    }


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
    calls = {"epoch": gpu.epoch_of(dataset, 3, 0.1)}
    arguments = work, dataset, calls
    rows = gpu.contest("a", names, *arguments, rate=1.0, repeats=1)
    assert set(rows["version"]) == {"numpy"}
    wrong, missing = gpu.left_out
    assert wrong.startswith("numpy-sample (L=1, H=2, B=3): MismatchError: ")
    assert fault in wrong
    assert "cuda-nothing" in missing
    with pytest.raises(RuntimeError, match=r"^a: .*numpy-sample"):
        gpu.contest("a", names[1:], *arguments, rate=1.0, repeats=1)


def torch_network(**how):
    pytest.importorskip("torch")
    params = lk.Params.init(2, 5, num_layers=2, output_size=1)
    return gpu_torch.Torch(params, device="cpu", **how)


@pytest.mark.parametrize("tf32", [False, True])
def test_pytorch_trains_as_a_network_does(tf32):
    net = torch_network(tf32=tf32)
    work = gpu.Workload(2, 4, 2, 5, 3)
    (x, _), dataset = work.example(), work.dataset(8)
    given = work.params(seed=3), x, dataset, 3, 0.5
    want = gpu.truth(*given)
    for _ in range(2):  # from the same parameters
        gpu.compare(gpu.found(net, *given), want, 1e-6)
    other = work.dataset(8, seed=1)
    given = *given[:2], other, *given[3:]
    gpu.compare(gpu.found(net, *given), gpu.truth(*given), 1e-6)
    assert net.torch.backends.cudnn.allow_tf32 is tf32
    gpu.on_device(net, x)()


class FakeCuda:
    """What `Torch` uses of torch.cuda; a graph runs `again` when it is replayed."""

    def __init__(self):
        self.streams, self.replays, self.capturing = [], 0, False

    def Stream(self):
        return SimpleNamespace(wait_stream=self.streams.append)

    current_stream = Stream

    def stream(self, stream):
        return nullcontext()

    def CUDAGraph(self):
        return SimpleNamespace(replay=self.replay)

    @contextmanager
    def graph(self, graph):
        self.capturing = True
        yield
        self.capturing = False

    def replay(self):
        self.replays += 1
        self.again()


def test_pytorch_replays_what_it_captured_of_the_same_sizes():
    """The calls before a capture take no step, nor does the capture."""
    net, cuda = torch_network(graph=True), FakeCuda()
    real = net.torch
    backends = SimpleNamespace(cudnn=SimpleNamespace(allow_tf32=None))
    names = {name: getattr(real, name) for name in ("from_numpy", "no_grad", "stack")}
    net.torch = SimpleNamespace(
        cuda=cuda, backends=backends, nn=real.nn, float32=real.float32, **names
    )
    steps, before = [], net.params()
    work = gpu.Workload(2, 4, 2, 5, 3)
    dataset, order = work.dataset(6), np.arange(6)
    cuda.again = lambda: steps.append(net.params())
    for _ in range(2):
        losses = net.epoch(dataset, order, 3, 0.5)
    assert (cuda.replays, len(losses)) == (2, 2)
    for name, value in before.arrays().items():
        np.testing.assert_array_equal(steps[-1].arrays()[name], value)
    want = gpu.truth(before, work.example()[0], dataset, 3, 0.5)["losses"]
    assert losses[0] == pytest.approx(want[0], abs=1)
    place = next(iter(net._graphs.values()))[1]
    net.epoch(dataset, order[::-1].copy(), 3, 0.5)
    assert place.tolist() == [5, 4, 3, 2, 1, 0]
    assert (cuda.replays, len(net._graphs)) == (3, 1)
    net.epoch(dataset, order, 2, 0.5)  # another mini-batch
    net.epoch(dataset, order, 3, 0.1)  # another rate
    assert len(net._graphs) == 3
    net.forward(work.example()[0])
    assert len(net._graphs) == 4
    net.epoch(work.dataset(6, seed=1), order, 3, 0.5)  # other examples
    assert len(net._graphs) == 1
    assert backends.cudnn.allow_tf32 is False


def test_kinds_of_pytorch_that_run_here(monkeypatch):
    kinds = [*gpu_torch.KINDS, "cuda-nothing"]
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    assert gpu.here(2, kinds) == []
    monkeypatch.setattr(gpu, "find_spec", lambda name: True)
    monkeypatch.setattr(gpu_torch, "ON", "cpu")
    assert gpu.here(2, kinds) == ["pytorch", "pytorch-tf32"]
    monkeypatch.setattr(gpu_torch, "ON", "cuda")
    assert gpu.here(2, kinds) == list(gpu_torch.KINDS)


def test_a_gpu_that_cannot_run_is_said_first(monkeypatch, tmp_path):
    reason = "there is no CUDA device"
    broken = [SimpleNamespace(name="cuda-v1", target="gpu", why_unavailable=reason)]
    monkeypatch.setattr(gpu_run, "versions", lambda: broken)
    with pytest.raises(lk.UnavailableError, match=f"cuda-v1: {reason}"):
        next(gpu_run.main("paper", tmp_path))


@simulated
def test_the_probe_names_a_network_that_is_wrong(monkeypatch, capsys):
    small = gpu.Workload(1, 2, 1, 3, 4)
    cases = [("cuda-v3", small, "lstm"), ("cuda-nothing", gpu.HUNDREDS, "lstm")]
    monkeypatch.setattr(gpu_run, "probed", lambda preset: cases)
    wrong = []
    with pytest.raises(process.ProcessError, match="1 of 2 networks right"):
        gpu_run.probe("smoke", wrong, limit=120)
    assert wrong == [("cuda-nothing", 32)]
    right, other = capsys.readouterr().out.splitlines()
    assert "cuda-v3" in right
    assert "error" in right
    assert "cuda-nothing" in other
    assert "ValueError" in other


def test_every_version_and_size_that_is_measured_is_probed(monkeypatch):
    monkeypatch.setattr(gpu, "here", lambda H, chosen: list(chosen))
    cases = gpu_run.probed("paper")
    names = {name for name, *_ in cases}
    # V2's kernels are V3's.
    assert {n for n in names if n.startswith("cuda")} == {
        *("cuda-v1", "cuda-v3", "cuda-persistent"),
        *gpu.STAY,
    }
    assert {work.H for _, work, _ in cases} == {2, 9, 32, 128, 256, 512}
    assert {"rnn", "lstm"} == {cell for *_, cell in cases}
    assert len(set(cases)) == len(cases)
    last = [name for name, *_ in cases].index("cuda-persistent")
    assert {name for name, *_ in cases[last:]} == {"cuda-persistent"}


@simulated
def test_what_the_sanitizer_watches_runs(capsys, monkeypatch):
    monkeypatch.setattr(gpu_run, "WATCHED", gpu.Workload(1, 2, 1, 3, 5))
    gpu_run.watched()
    assert capsys.readouterr().out == "nothing found\n"
    monkeypatch.setattr(gpu_run, "_verified", lambda *case: ("MismatchError: y", False))
    with pytest.raises(SystemExit, match="cuda-v3: MismatchError: y"):
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
    assert set(checks) <= set(gpu_run.LIMITS)
    assert "--report-api-errors" in checks["memcheck"]
    assert "-n" in checks.get("tests", ["-n"])
    monkeypatch.setattr(gpu_run.shutil, "which", lambda name: None)
    monkeypatch.setattr(gpu_run, "find_spec", lambda name: None)
    assert gpu_run.checks() == {}


@pytest.mark.skipif(not results.ROOT, reason="the Makefile comes with the repository")
def test_make_gpu_writes_where_it_is_told():
    words = ["make", "-n", "gpu", "FOLDER=/some where"]
    done = subprocess.run(
        words, cwd=results.ROOT, capture_output=True, text=True, check=True
    )
    assert '-m lstm_report gpu --folder "/some where"' in done.stdout


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

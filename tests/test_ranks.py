"""Jobs of several ranks, by mpiexec: they compute what one process computes, and end together."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import lstm_kernels as lk
from lstm_kernels import data
from lstm_kernels.distributed import launch
from lstm_kernels.next_symbol import NextSymbol

pytestmark = pytest.mark.skipif(
    bool(launch.why_unavailable()), reason=f"no jobs here: {launch.why_unavailable()}"
)
LIMIT = 120  # seconds; a job that hangs is a failure


def train(ranks, folder=None, **options):
    """Rows of a job, and the parameters at its end."""
    if folder is not None:
        options["save"] = folder / f"{ranks}.npz"
    rows = launch.run("training", ranks, limit=LIMIT, **options)
    return rows, lk.Params.load(options["save"]) if folder is not None else None


def alone(layers=2, hidden=16, strings=64, epochs=2, batch=16, rate=0.01, optimizer="adam"):
    """The same training in this process, by the network of one process."""
    words, S = data.Reber().strings(strings, seed=0), len(data.SYMBOLS)
    params = lk.Params.init(S, hidden, num_layers=layers, output_size=S, seed=0)
    net = lk.network("numba-fused", params, threads=1)
    history = lk.train(
        NextSymbol(net),
        data.symbols(words),
        epochs,
        batch,
        rate,
        optimizer=optimizer,
        progress=False,
    )
    return history, net.params()


CASES = {
    "one rank": (1, {}),
    "two replicas": (2, {}),
    "three replicas, sums after": (3, {"overlap": 0}),
    "two stages": (2, {"stages": "1,2", "micro_batches": 4}),
    "three stages, one and one": (
        3,
        {"stages": "1,1,1", "micro_batches": 5, "order": "one-forward-one-backward"},
    ),
    "two by two": (4, {"stages": "2,1", "micro_batches": 3}),
}


@pytest.mark.parametrize("case", CASES)
def test_ranks_train_as_one_process_does(case, tmp_path):
    ranks, options = CASES[case]
    rows, params = train(ranks, tmp_path, optimizer="sgd", rate=0.5, **options)
    history, want = alone(optimizer="sgd", rate=0.5)
    np.testing.assert_allclose(rows["loss"], history.loss, rtol=1e-5)
    for name, array in want.arrays().items():
        np.testing.assert_allclose(params.arrays()[name], array, rtol=1e-4, atol=2e-6)


def test_the_same_bits_each_run(tmp_path):
    for ranks, options in CASES.values():
        found = []
        for turn in range(2):
            folder = tmp_path / str(turn)
            folder.mkdir(exist_ok=True)
            found.append(train(ranks, folder, **options)[1].arrays())
        for name, array in found[0].items():
            np.testing.assert_array_equal(array, found[1][name], err_msg=name)


def rank_process(rank, mark):
    """The process of a rank of the job whose command line has `mark`."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            environment = (path / "environ").read_bytes()
        except OSError:
            continue
        wanted = f"OMPI_COMM_WORLD_RANK={rank}".encode()
        if mark.encode() in command and wanted in environment.split(b"\0"):
            return int(path.name)
    return None


def test_a_rank_that_is_killed_ends_the_job_and_the_rest_can_go_on(tmp_path):
    file, killed = tmp_path / "state.npz", []
    options = {"epochs": 400, "checkpoint": file, "strings": 256, "stages": "1,2"}

    def kill(line):
        if line.startswith("epoch 2 ") and not killed:
            killed.append(time.monotonic())
            os.kill(rank_process(1, str(file)), signal.SIGKILL)

    with pytest.raises(launch.JobError, match="rank 1: ended by SIGKILL") as caught:
        launch.run("training", 2, limit=LIMIT, show=kill, **options)
    assert caught.value.rank == 1
    assert time.monotonic() - killed[0] < 10
    done = launch.run("training", 2, limit=LIMIT, **(options | {"epochs": 1, "resume": 1}))
    epochs = len(done) + 2
    options["epochs"] = epochs
    resumed = launch.run("training", 2, limit=LIMIT, resume=1, **options)
    whole = options | {"checkpoint": tmp_path / "other.npz"}
    want = launch.run("training", 2, limit=LIMIT, **whole)
    assert resumed["loss"].tolist() == want["loss"].tolist()


def test_a_job_that_hangs_is_stopped_with_all_its_ranks(tmp_path):
    mark = str(tmp_path / "state.npz")
    stopped = threading.Event()

    def freeze(line):
        if line.startswith("epoch 1 ") and not stopped.is_set():
            os.kill(rank_process(1, mark), signal.SIGSTOP)
            stopped.set()

    with pytest.raises(launch.JobError, match="stopped after"):
        launch.run("training", 2, limit=12, show=freeze, epochs=100_000, checkpoint=mark)
    assert stopped.is_set()
    assert rank_process(0, mark) is rank_process(1, mark) is None


@pytest.mark.parametrize(
    ("ranks", "options", "message"),
    [
        (2, {"stages": "1,1"}, "stages: got .1, 1., want 3 layers in all"),
        (3, {"stages": "1,2"}, "stages: got 2 on 3 ranks, want a divisor"),
        (2, {"batch": 65}, "batch_size: got 65"),
        (2, {"task": "music"}, "task: got 'music', want one of airline, reber"),
        (1, {"order": "zigzag"}, "order: got 'zigzag'"),
    ],
)
def test_bad_input(ranks, options, message):
    with pytest.raises(launch.JobError, match=f"rank 0: ValueError: {message}"):
        launch.run("training", ranks, limit=LIMIT, **options)

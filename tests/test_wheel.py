"""The package stands alone: its wheel, in an empty folder, with the repository out of
reach.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from flit_core.wheel import make_wheel_in

import lstm_kernels as lk

ROOT = Path(__file__).parents[1]
NAMES = [version.name for version in lk.versions()]
COMPILED = [name for name in NAMES if not name.startswith(("numpy", "sequential"))]
# What a user of a few lines does, without what is imported when it is used.
USE = """
import sys, lstm_kernels as lk
imported = set(sys.modules)
slow = {"numba", "pandas", "matplotlib", "tqdm", "scipy", "IPython"}
assert not imported & slow, imported
series = lk.data.airline()
assert (len(series), lk.data.FOLDER.is_dir()) == (144, True)
scaled = lk.data.LogDifference.fit(series).forward(series)
net = lk.network("numpy", lk.Params.init(1, 4, output_size=1))
history = lk.train(net, lk.data.windows(scaled, 12), 1, 16, 0.01)
assert lk.forecast.errors([1, 2], [2, 4])["MAE"] == 1.5
print(lk.__file__, net, history.epochs, sep="\\n")
"""
COMPILE = """
import sys, lstm_kernels as lk
if "without" in sys.argv: sys.modules["numba"] = None
try:
    lk.network("numba-fused", lk.Params.init(1, 4))
except lk.UnavailableError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The wheel, and the folder that it is unpacked into."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = make_wheel_in(ROOT / "pyproject.toml", folder).file
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder / "site-packages")
    return wheel, folder / "site-packages"


def run(package, folder, *words, **env):
    """What Python says in an empty folder where the package is at that place."""
    outside = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env = outside | {"PYTHONPATH": str(package), "NUMBA_ENABLE_CUDASIM": "0"} | env
    how = {"cwd": folder, "env": env, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *words], **how)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_wheel_is_the_package_and_no_more(packages):
    _, installed = packages
    names = {path.relative_to(installed).parts[0] for path in installed.rglob("*")}
    assert names == {"lstm_kernels", f"lstm_kernels-{lk.__version__}.dist-info"}
    assert (installed / "lstm_kernels" / "py.typed").exists()
    packed = {path.relative_to(installed) for path in installed.rglob("*.py")}
    package = (ROOT / "lstm_kernels").rglob("*.py")
    assert packed == {path.relative_to(ROOT) for path in package}


@pytest.mark.parametrize("name", ["airline_passengers.csv", "source_table.csv"])
def test_the_series_of_the_package_is_the_readable_one(name):
    packaged, readable = lk.data.FOLDER / name, ROOT / "data" / name
    assert packaged.read_bytes() == readable.read_bytes()


def refused(ladder, why):
    """The versions that cannot run, by the table of `python -m lstm_kernels`."""
    return [line.split()[0] for line in ladder if f" no: {why}" in line]


def test_an_empty_folder_is_enough_to_train_and_an_archive_for_numpy(
    packages, tmp_path
):
    for package in packages:  # Python imports from an archive too
        file, net, epochs = run(package, tmp_path, "-c", USE)
        assert Path(file).is_relative_to(package)
        assert net.startswith("numpy: LSTM, 1 layer of 4, 1 input, 1 output, float32, ")
        assert epochs == "1"
    assert not list(tmp_path.iterdir())
    why = "lstm_kernels is in an archive, and compiled code needs a folder"
    wheel, _ = packages
    (message,) = run(wheel, tmp_path, "-c", COMPILE)
    assert message == f"name: 'numba-fused' cannot run here: {why}"
    assert refused(run(wheel, tmp_path, "-m", "lstm_kernels"), why) == COMPILED


def test_without_compilation_it_says_why_and_trains(packages, tmp_path):
    _, installed = packages
    disabled, why = {"NUMBA_DISABLE_JIT": "1"}, "NUMBA_DISABLE_JIT is set"
    ladder = run(installed, tmp_path, "-m", "lstm_kernels", **disabled)
    assert refused(ladder, why) == COMPILED
    ladder = run(installed, tmp_path, "-m", "lstm_kernels", NUMBA_NUM_THREADS="0")
    assert refused(ladder, "Numba cannot be imported: ") == COMPILED
    words = ("train", "--version", "numpy", "--epochs", "2", "--checkpoint", "run.npz")
    said = run(installed, tmp_path, "-m", "lstm_kernels", *words, **disabled)
    assert said[0].startswith("2 epochs in ")
    assert [path.name for path in tmp_path.iterdir()] == ["run.npz"]
    (said,) = run(installed, tmp_path, "-c", COMPILE, "without")
    want = "name: 'numba-fused' cannot run here: Numba cannot be imported: "
    assert said.startswith(want)

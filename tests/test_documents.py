"""What the documents say: examples run, commands are understood, names of the notation
are names of the code, one release has one number.
"""

import doctest
import importlib
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
from conftest import example

import lstm_kernels as lk

ROOT = Path(lk.__file__).parents[1]
MODULES = ["lstm_kernels"]
MODULES += [m.name for m in pkgutil.walk_packages(lk.__path__, "lstm_kernels.")]
WITH_EXAMPLES = [
    name
    for name in MODULES
    if not name.endswith("__main__")
    and ">>> " in Path(importlib.util.find_spec(name).origin).read_text()
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_of_docstrings_run(name, tmp_path):
    params, x, target = example((1, 6, 4, 3, 7))
    names = {"np": np, "lk": lk, "params": params, "x": x, "target": target}
    names |= {"net": lk.network("numpy", params), "lengths": np.array([6, 1, 4, 3])}
    names |= {"dlast": np.ones((4, 7), np.float32)}  # what the text around them names
    with chdir(tmp_path):
        ran = doctest.testmod(importlib.import_module(name), extraglobs=names)
    assert ran.attempted
    assert not ran.failed


def readmes_examples():
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


def test_the_readme_forecasts_a_year_from_a_file(tmp_path):
    """Twelve months after those of a file, nearer than the same months of the year
    before.
    """
    months, names = lk.data.airline(), {}
    before, truth = months[:-12], months[-12:].to_numpy()
    with chdir(tmp_path):
        before.rename("passengers").to_csv("passengers.csv", index_label="month")
        exec(readmes_examples()[0], names)
    assert len(readmes_examples()[0].splitlines()) <= 25
    error = np.abs(names["forecast"] - truth).mean()
    assert error < 0.7 * np.abs(before[-12:].to_numpy() - truth).mean()


# Commands.

TEXTS = "Makefile", "*.md", "[a-z]*/*.md", "lstm_*/**/*.py", "*/*.ipynb"
# In a sentence; on a line of its own.
COMMAND = r"[\w./]*python3? +-m +lstm_[^`#\n]+|make +[^`#\n]+"
TOLD = re.compile(rf"`({COMMAND})`|^({COMMAND})(?=    #|$)", re.MULTILINE)
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = re.findall(r"^([\w.-][\w./-]*):(?!=)", MAKEFILE, re.MULTILINE)


def commands():
    """The words of each command that texts name."""
    texts = (path.read_text("utf-8") for glob in TEXTS for path in ROOT.glob(glob))
    lines = {"".join(pair) for text in texts for pair in TOLD.findall(text)}
    return sorted(lines)


def understood(line):
    """Whether make has the targets and variables, or a program the subcommand and the
    options, that a command names.
    """
    program, *words = shlex.split(line)
    if program == "make":
        names = [word.partition("=")[0] for word in words if "=" in word]
        targets = [word for word in words if "=" not in word]
        return {*targets} <= {*TARGETS} and all(f"$({n})" in MAKEFILE for n in names)
    named = [word for word in words[2:3] if word.isalpha() and word.islower()]
    call = [sys.executable, *words[:2], *named, "--help"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
    options = [word for word in words[2:] if word.startswith("--")]
    return done.returncode == 0 and all(option in done.stdout for option in options)


def test_commands_that_texts_name_are_understood():
    assert len(commands()) > 20
    assert [line for line in commands() if not understood(line)] == []


@pytest.mark.parametrize(
    "line",
    [
        "make reports",
        "make notebook NR=3",
        "python -m lstm_kernels training",
        "python -m lstm_report gpu --archives",
        "python -m lstm_reports",
    ],
)
def test_a_command_that_is_not_understood_is_seen(line):
    assert not understood(line)


# Notation.

WORD = re.compile(r"[A-Za-z_]\w*")
# What the text compares ours with.
FOREIGN = "bias_hh_l bias_ih_l weight_hh_l weight_ih_l c_n h_n out_features seq_len "
FOREIGN += "hard_sigmoid recurrent_kernel c_candidate recurrent_h timesteps relu "
FOREIGN += "nonlinearity bidirectional proj_size activation Masking mask_zero b_hn "
FOREIGN += "recurrent_activation reset_after go_backwards bias_ih bias_hh"


def unresolved(text):
    """Words of the notation's code that no module has, and files that are not there."""
    modules = {
        path.as_posix(): path.read_text() for path in ROOT.glob("lstm_*/**/*.py")
    }
    known = {word for module in modules.values() for word in WORD.findall(module)}
    for code in re.findall(r"`([^`]+)`", text):
        if not code.endswith(".py"):
            yield from {*WORD.findall(code)} - known - {*FOREIGN.split()}
        elif not any(place.endswith(f"/{code}") for place in modules):
            yield code


def test_names_of_the_notation_are_names_of_the_code():
    assert [*unresolved((ROOT / "NOTATION.md").read_text())] == []
    planted = ["hidden_sizes", "cpu/nothing.py"]
    assert [*unresolved("`hidden_sizes`, `cpu/nothing.py`, `cpu/net.py`")] == planted


def test_a_release_has_one_number():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text()
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert project["version"] == lk.__version__
    assert f"version: {lk.__version__}\n" in citation
    assert re.findall(r"^## (\S+)", changes, re.MULTILINE)[0] == lk.__version__

"""What the documents say: examples run, names of the notation are names of the code, one
release has one number.
"""

import ast
import doctest
import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
from conftest import example

import lstm_kernels as lk
import lstm_report

ROOT = Path(lk.__file__).parents[1]
MODULES = [m.name for m in pkgutil.walk_packages(lk.__path__, "lstm_kernels.")]
WITH_EXAMPLES = [
    name
    for name in ["lstm_kernels", *MODULES]
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


def test_examples_of_the_readme_run(tmp_path):
    text = (ROOT / "README.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert examples
    names = {}
    with chdir(tmp_path):
        for code in examples:
            exec(code, names)
    assert names["y"].shape == (12, 16, 32)


# Commands.

# In a sentence; on a line of their own, in a docstring or a block of code.
TOLD = re.compile(r"`((?:[\w./]*python3?\s+(?:-m\s+lstm_|tools/)|make\s)[^`|]+)")
LINE = re.compile(r"^(?:[\w./]*python3? (?:-m lstm_|tools/)|make ).*", re.MULTILINE)
BLOCK = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)
TOO_FEW = "arguments are required|expected one argument|want the number of"
# Ends with 77 where the words are understood.
PARSE = """
import argparse, runpy, sys
parse = argparse.ArgumentParser.parse_args
argparse.ArgumentParser.parse_args = lambda *words: parse(*words) and sys.exit(77)
if sys.argv[1] == "-m":
    sys.argv[:2] = []
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    del sys.argv[0]
    sys.path.insert(0, "tools")
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def told():
    """The commands that texts name: pairs of the words and whether they are all."""
    for pattern in ("Makefile", "*.md", "[a-z]*/*.md", "[a-z]*/**/*.py", "*/*.ipynb"):
        for path in ROOT.glob(pattern):
            text = path.read_text("utf-8")
            lines = text if path.suffix == ".py" else "".join(BLOCK.findall(text))
            for whole, found in (
                (False, TOLD.findall(text)),
                (True, LINE.findall(lines)),
            ):
                for line in found:
                    for part in (
                        r"\[[^]]*\]|\.{3}",
                        r"[][]|\.{3}",
                    ):  # without what may be
                        words = shlex.split(re.sub(part, "", line), comments=True)
                        yield tuple(words), whole


def not_understood(command):
    """What is wrong with the words of a command, or None."""
    (program, *words), whole = command
    if program == "make":
        known = (ROOT / "Makefile").read_text()
        names = [word.partition("=")[0] for word in words if "=" in word]
        if unknown := [name for name in names if f"$({name})" not in known]:
            return f"{unknown[0]}= is nothing to make"
        call = ["make", "-n", "-o", ".venv/.stamp", *words]
    else:
        call = [sys.executable, "-c", PARSE, *words]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(call, cwd=ROOT, env=env, capture_output=True, text=True)
    few = re.search(TOO_FEW, done.stderr)
    fine = done.returncode in (0, 77) or (few and not whole)
    return None if fine else f"{command}: {done.stderr}"


def test_commands_that_texts_name_are_understood():
    with ThreadPoolExecutor(2) as pool:
        found = list(filter(None, pool.map(not_understood, {*told()})))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "words",
    [
        "make reports",
        "make notebook NR=3",
        "python tools/report.py run BUILD -p PRESET smoke",
        "python tools/report.py html BUILD",
        "python -m lstm_kernels training",
        "python tools/reports.py",
    ],
)
def test_a_command_that_is_not_understood_is_seen(words):
    assert not_understood((words.split(), True))


# Notation.

SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
WORD = re.compile(r"[A-Za-z_]\w*")


def names_of_code():
    """Every name in the text of the packages: of variables, arguments, attributes and
    functions, and the words of their tables, which are strings.
    """
    names = set()
    for package in (lk, lstm_report):
        for path in Path(package.__file__).parent.rglob("*.py"):
            tree = ast.parse(path.read_text())
            docstrings = {
                id(node.body[0].value)
                for node in ast.walk(tree)
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
                and node.body
                and isinstance(node.body[0], ast.Expr)
            }
            for node in ast.walk(tree):
                for field in ("id", "arg", "attr", "name"):
                    word = getattr(node, field, None)
                    names |= {word} if isinstance(word, str) else set()
                if isinstance(node, ast.Constant) and id(node) not in docstrings:
                    names |= {*WORD.findall(f"{node.value}")}
    return names


def code_of_notation(text):
    """Code in the notation that is ours: not in columns of other packages."""
    for section in SECTION.split(text)[1:]:
        foreign, header = set(), None
        for line in section.splitlines():
            cells = line.strip("|").split("|") if line.startswith("|") else None
            if cells is None:
                header, foreign = None, set()
            elif header is None:
                header = cells
                foreign = {
                    k
                    for k, cell in enumerate(cells)
                    if re.match(r"\s*(PyTorch|Keras)", cell)
                }
            kept = [line] if cells is None else cells
            for k, part in enumerate(kept):
                if k not in foreign:
                    yield from re.findall(r"`([^`]+)`", part)


def unresolved(text):
    """Names in the notation's code that no text of the packages has, and modules and
    files that are not there.
    """
    known, missing = names_of_code() | OTHERS, []
    for code in code_of_notation(text):
        if re.fullmatch(r"[\w/]+\.py", code):
            if not any((ROOT / room / code).exists() for room in ROOMS):
                missing.append(code)
        else:
            missing += [word for word in WORD.findall(code) if word not in known]
    return missing


ROOMS = ("", "lstm_kernels", "lstm_report")
# What the text compares ours with.
OTHERS = {"nonlinearity", "bidirectional", "proj_size", "activation", "relu"}
OTHERS |= {
    "Masking",
    "mask_zero",
    "recurrent_activation",
    "hard_sigmoid",
    "reset_after",
    "go_backwards",
}
OTHERS |= {"bias_ih", "bias_hh", "bias_ih_l", "bias_hh_l", "b_hn"}


def test_names_of_the_notation_are_names_of_the_code():
    assert not unresolved((ROOT / "NOTATION.md").read_text())


def test_a_release_has_one_number():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text()
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert project["version"] == lk.__version__
    assert f"version: {lk.__version__}\n" in citation
    assert re.findall(r"^## (\S+)", changes, re.MULTILINE)[0] == lk.__version__

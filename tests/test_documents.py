"""What the documents say: examples run, names of the notation are names of the code, one
release has one number.
"""

import ast
import doctest
import importlib
import pkgutil
import re
import tomllib
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
OTHERS |= {"recurrent_activation", "hard_sigmoid", "reset_after", "go_backwards"}
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

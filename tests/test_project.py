"""The files around the package agree with each other and carry nothing of one
machine.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import notebook_rules as rules
import pandas as pd
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from lstm_report import machines
from lstm_report.measure import results

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RESULTS = ROOT / "data" / "results"
LOCK = (ROOT / "requirements.lock").read_text()
LOCKED_EXTRAS = ("report", "mpi", "dev", "ptx")
TOP_LEVEL = {
    "notebooks",
    "lstm_kernels",
    "lstm_report",
    "data",
    "figures",
    "tests",
    "tools",
    ".ci",
    "Makefile",
    "LICENSE",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "NOTATION.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "pyproject.toml",
    "environment.yml",
    "requirements.lock",
    ".gitignore",
    ".gitattributes",
}
# Put together from parts, so that this file passes its own test.
NOT_IN_FILES = [
    *(f"/{folder}/" for folder in ("root", "tmp", "home", "Users")),
    *(
        ".".join(host)
        for host in (("pypi", "org"), ("pythonhosted", "org"), ("anaconda", "org"))
    ),
]


def required(extras=LOCKED_EXTRAS) -> dict[str, str]:
    """Name and bounds of what pyproject.toml asks for, in the package and the extras."""
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    found = {}
    for one in map(Requirement, lines):
        name = canonicalize_name(one.name)
        found[name] = found.get(name, SpecifierSet()) & one.specifier
    del found[PROJECT["name"]]  # `dev` asks for the extra `report`
    return {name: str(bounds) for name, bounds in found.items()}


def files() -> list[Path]:
    """The files that are, or are about to be, in git."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in found if path.is_file()]


def test_environment_yml_asks_for_what_pyproject_asks_for():
    text = (ROOT / "environment.yml").read_text()
    listed = map(Requirement, re.findall(r"^  - ([\w-]+>=\S+)$", text, re.MULTILINE))
    conda = {canonicalize_name(one.name): str(one.specifier) for one in listed}
    assert conda.pop("python") == PROJECT["requires-python"]
    # numba-cuda, of the extra `ptx`, is not built for macOS.
    assert conda == required(extras=("report", "mpi", "dev"))
    assert "pip install --no-deps --no-build-isolation -e ." in text


def test_lock_satisfies_pyproject_and_has_hashes():
    entries = re.split(r"^(?=\S+==)", LOCK, flags=re.MULTILINE)[1:]
    versions = {}
    for entry in entries:
        name, version = re.match(r"(\S+?)==(\S+)", entry).groups()
        assert "--hash=sha256:" in entry, name
        versions.setdefault(canonicalize_name(name), []).append(version)
    for name, bounds in required().items():
        assert name in versions, f"{name} is not locked: make lock"
        for version in versions[name]:
            assert Requirement(name + bounds).specifier.contains(version), (
                name,
                version,
            )


def test_lock_names_no_place_to_download_from():
    assert "://" not in LOCK
    assert not re.search(r"^\s*--(?!hash=)", LOCK, re.MULTILINE)


def test_the_newest_python_is_one_that_runs(tmp_path):
    for minor, body in (
        (14, "exit 127"),
        (13, "echo /opt/python3.13"),
        (12, "echo /opt/older"),
    ):
        path = tmp_path / f"python3.{minor}"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    words = ["make", "-s", "--eval", "shown: ; @echo $(NEWEST_PYTHON)", "shown"]
    paths = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    done = subprocess.run(
        words,
        cwd=ROOT,
        env=os.environ | {"PATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "/opt/python3.13\n", done.stderr


def test_versions_agree():
    citation = (ROOT / "CITATION.cff").read_text()
    assert (
        re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == PROJECT["version"]
    )


def test_top_level_holds_only_what_belongs_there():
    found = {path.relative_to(ROOT).parts[0] for path in files()}
    assert found <= TOP_LEVEL, f"not allowed at the top: {sorted(found - TOP_LEVEL)}"


def test_no_file_names_a_machine_or_a_registry():
    found = []
    for path in files():
        data = path.read_bytes()
        if b"\0" in data:
            continue
        text = data.decode()
        found += [
            f"{path.relative_to(ROOT)}: {name}" for name in NOT_IN_FILES if name in text
        ]
    assert not found


def test_bare_make_lists_every_phony_target():
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)[1].split()
    # A make that runs this test hands its flags down; the listing must not depend on
    # them.
    shown = subprocess.run(
        ["make", "--no-print-directory"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
    ).stdout
    assert [line.split()[0] for line in shown.splitlines()] == phony
    assert all(len(line.split()) > 2 for line in shown.splitlines()), (
        "a target says nothing"
    )


def test_readme_holds_the_results_that_are_in_data():
    text = (ROOT / "README.md").read_text()
    assert machines.renewed(text) == text, "want `make readme`"
    # In the table a median of the rows, by hand.
    rows = pd.read_csv(RESULTS / "amd-epyc-26-2-2cores" / "peers.csv")
    airline = rows[(rows["T"] == 12) & (rows["H"] == 32) & rows["variant"].isna()]
    ours = airline[(airline["version"] == "numba-fused")]
    ms = 1e3 * ours[ours["stage"] == "step"]["seconds"].median()
    (line,) = re.findall(r"^[|] airline [|].+$", text, re.M)
    assert f"{ms:.3g}" in line.split(" | ")
    assert len(text.splitlines()) <= 120


def test_readmes_figures_are_those_of_the_notebooks():
    shown = set(
        re.findall(r"\(figures/([\w-]+)\.png\)", (ROOT / "README.md").read_text())
    )
    drawn = {}
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        drawn |= rules.figures(rules.read(path))
    for path in files():
        if path.parent == ROOT / "figures":
            assert path.stem in shown, f"{path.name}: README does not show it"
            assert path.read_bytes() == drawn[path.stem], (
                f"{path.name}: want `make accept`"
            )
    assert all((ROOT / "figures" / f"{name}.png").exists() for name in shown)


def test_data_readme_lists_the_columns_that_there_are():
    text = (ROOT / "data" / "README.md").read_text()
    listed = {
        place: re.findall(r"`(\w[\w -]*)`", line)
        for place, line in re.findall(
            r"^Columns of (\S+): ([^.]+)\.", text, re.MULTILINE
        )
    }
    headers = {
        path.name: path.read_text().partition("\n")[0].split(",")
        for path in [
            *(ROOT / "data").glob("*.csv"),
            *(ROOT / "data" / "results").glob("ptx*.csv"),
        ]
    }
    assert listed == headers | {"results/": results.COLUMNS}


def test_a_clean_checkout_stays_clean(tmp_path):
    """A notebook of a clone is executed on small sizes, as a newcomer does: git sees no
    change.
    """
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    clone = tmp_path / "clone"
    own = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    env = own | {"PYTHONPATH": str(clone)}

    def run(*words, cwd=clone):
        done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(
        "git",
        "clone",
        "--quiet",
        "--depth",
        "1",
        f"file://{ROOT}",
        str(clone),
        cwd=tmp_path,
    )
    # The environment is this one: .venv counts as made.
    make = "make", "-o", ".venv/.stamp", f"PY={sys.executable}"
    said = run(*make, "notebook", "NB=1", "PRESET=smoke").splitlines()[-1]
    assert said == "open build/smoke/site/index.html"
    assert len(list((clone / "build" / "smoke" / "site").glob("01_*.html"))) == 1
    assert list((clone / "build" / "smoke" / "figures").glob("01-*.png"))
    assert run("git", "status", "--porcelain") == ""

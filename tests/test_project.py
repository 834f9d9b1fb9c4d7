"""The files around the package agree with each other and carry nothing of one
machine.
"""

import re
import subprocess
import tomllib
from pathlib import Path

import accept
import notebook_rules as rules
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from lstm_report import closings
from lstm_report.measure import results

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RESULTS = ROOT / "data" / "results"
# Put together from parts, so that this file passes its own test.
HOSTS = ("pypi", "org"), ("pythonhosted", "org"), ("anaconda", "org")
NOT_IN_FILES = [f"/{folder}/" for folder in ("root", "tmp", "home", "Users")]
NOT_IN_FILES += [".".join(host) for host in HOSTS]
BOOKS = {path: rules.read(path) for path in rules.notebooks(ROOT / "notebooks")}


def required(*extras):
    """Name and bounds of what pyproject.toml asks for, in the package and extras."""
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    bounds = {}
    for one in map(Requirement, lines):
        name = canonicalize_name(one.name)
        bounds[name] = bounds.get(name, SpecifierSet()) & one.specifier
    del bounds[PROJECT["name"]]  # `dev` asks for the extra `report`
    return bounds


def test_environment_yml_asks_for_what_pyproject_asks_for():
    text = (ROOT / "environment.yml").read_text()
    listed = map(Requirement, re.findall(r"^  - ([\w-]+>=\S+)$", text, re.MULTILINE))
    conda = {canonicalize_name(one.name): one.specifier for one in listed}
    assert conda.pop("python") == SpecifierSet(PROJECT["requires-python"])
    # numba-cuda, of the extra `ptx`, is not built for macOS.
    assert conda == required("report", "mpi", "dev")
    assert "pip install --no-deps --no-build-isolation -e ." in text


def test_lock_satisfies_pyproject_and_has_hashes():
    lock = (ROOT / "requirements.lock").read_text()
    locked = {}
    for entry in re.split(r"^(?=\S+==)", lock, flags=re.MULTILINE)[1:]:
        name, version = re.match(r"(\S+?)==(\S+)", entry).groups()
        assert "--hash=sha256:" in entry, name
        locked.setdefault(canonicalize_name(name), []).append(version)
    for name, bounds in required("report", "mpi", "dev", "ptx").items():
        assert name in locked, f"{name} is not locked: make lock"
        assert all(map(bounds.contains, locked[name])), name
    # No place to download from
    assert "://" not in lock
    assert not re.search(r"^\s*--(?!hash=)", lock, re.MULTILINE)


def test_no_file_names_a_machine_or_a_registry():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.check_output(words, cwd=ROOT, text=True).split("\0")
    contents = {n: (ROOT / n).read_bytes() for n in listed if (ROOT / n).is_file()}
    texts = {n: data.decode() for n, data in contents.items() if b"\0" not in data}
    assert len(texts) > 200
    assert not [(n, bad) for n in texts for bad in NOT_IN_FILES if bad in texts[n]]


def test_bare_make_lists_every_phony_target():
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)[1].split()
    # A make that runs this test hands its flags down.
    env, words = {"PATH": "/usr/local/bin:/usr/bin:/bin"}, ["make", "-s"]
    shown = subprocess.check_output(words, cwd=ROOT, env=env, text=True).splitlines()
    assert [line.split()[0] for line in shown] == phony
    assert all(len(line.split()) > 2 for line in shown), "a target says nothing"


def test_readme_holds_the_results_that_are_in_data():
    text = (ROOT / "README.md").read_text()
    assert accept.renewed() == text, "want `make readme`"
    assert len(text.splitlines()) <= 130


def test_figures_are_those_of_the_notebooks():
    """As SVG, and as PNG what README shows, with a list of them."""
    text, folder = (ROOT / "README.md").read_text(), ROOT / "figures"
    shown = re.findall(r"\(figures/([\w-]+)\.png\)", text)
    figures = [figure for book in BOOKS.values() for figure in rules.figures(book)]
    drawn = {figure.name: figure.png for figure in figures}
    assert len(drawn) == len(figures), "two figures have one name"
    want = {f"{name}.svg" for name in drawn} | {f"{name}.png" for name in shown}
    assert {path.name for path in folder.iterdir()} == want | {"README.md"}
    for name in shown:
        fresh = (folder / f"{name}.png").read_bytes() == drawn[name]
        assert fresh, f"{name}.png: want `make accept`"
    assert (folder / "README.md").read_text("utf-8") == accept.listed(BOOKS)


def test_a_number_that_pages_share_is_the_same_on_each():
    named = [
        (name, number, path.stem)
        for path, book in BOOKS.items()
        for name, number in rules.numbers(book)
    ]
    for name in {name for name, *_ in named}:
        numbers = {number for other, number, _ in named if other == name}
        pages = {page for other, _, page in named if other == name}
        assert len(numbers) == 1, f"{name}: {numbers}"
        assert len(pages) > 1, f"{name} stands on one page alone"


def test_data_readme_lists_the_columns_that_there_are():
    text, data = (ROOT / "data" / "README.md").read_text(), ROOT / "data"
    told = re.findall(r"^Columns of (\S+): ([^.]+)\.", text, re.MULTILINE)
    listed = {place: re.findall(r"`(\w[\w -]*)`", line) for place, line in told}
    files = [*data.glob("*.csv"), *RESULTS.glob("ptx*.csv")]
    first = {path.name: path.read_text().partition("\n")[0] for path in files}
    headers = {name: line.split(",") for name, line in first.items()}
    assert listed == headers | {"results/": results.COLUMNS}


def test_page_0_and_the_appendix_show_the_goals_of_the_stored_pages():
    shown = {"00_overview": "", "appendix": ""}
    for source, book in BOOKS.items():
        for _, output, _ in rules.outputs(book) if source.stem in shown else ():
            shown[source.stem] += output.get("data", {}).get("text/markdown", "")
    for goals in closings.stored().values():
        lines = ["| " + " | ".join(line) + " |" for line in goals]
        assert not [line for line in lines if line not in shown["appendix"]]
        assert " | ".join(goals[0]) in shown["00_overview"]

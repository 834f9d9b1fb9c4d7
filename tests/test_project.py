"""The files around the package agree with each other and carry nothing of one
machine.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import accept
import notebook_rules as rules
import pytest
import report
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from lstm_report import machines
from lstm_report.measure import results

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RESULTS = ROOT / "data" / "results"
# Put together from parts, so that this file passes its own test.
HOSTS = ("pypi", "org"), ("pythonhosted", "org"), ("anaconda", "org")
NOT_IN_FILES = [f"/{folder}/" for folder in ("root", "tmp", "home", "Users")]
NOT_IN_FILES += [".".join(host) for host in HOSTS]


def required(extras=("report", "mpi", "dev", "ptx")) -> dict[str, str]:
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
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.check_output(words, cwd=ROOT, text=True)
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
    lock = (ROOT / "requirements.lock").read_text()
    locked = {}
    for entry in re.split(r"^(?=\S+==)", lock, flags=re.MULTILINE)[1:]:
        name, version = re.match(r"(\S+?)==(\S+)", entry).groups()
        assert "--hash=sha256:" in entry, name
        locked.setdefault(canonicalize_name(name), []).append(version)
    for name, bounds in required().items():
        assert name in locked, f"{name} is not locked: make lock"
        assert all(map(SpecifierSet(bounds).contains, locked[name])), name
    # No place to download from
    assert "://" not in lock
    assert not re.search(r"^\s*--(?!hash=)", lock, re.MULTILINE)


def test_no_file_names_a_machine_or_a_registry():
    found = []
    for path in files():
        data = path.read_bytes()
        text = "" if b"\0" in data else data.decode()
        found += [(path.name, name) for name in NOT_IN_FILES if name in text]
    assert not found


MAKEFILE = (ROOT / "Makefile").read_text()


def test_bare_make_lists_every_phony_target():
    phony = re.search(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)[1].split()
    # A make that runs this test hands its flags down; the listing must not depend on
    # them.
    env, words = {"PATH": "/usr/local/bin:/usr/bin:/bin"}, ["make", "-s"]
    shown = subprocess.check_output(words, cwd=ROOT, env=env, text=True).splitlines()
    assert [line.split()[0] for line in shown] == phony
    assert all(len(line.split()) > 2 for line in shown), "a target says nothing"


def test_readme_holds_the_results_that_are_in_data():
    text = (ROOT / "README.md").read_text()
    told = dict(rules.numbers(rules.read(report.sources()[0])))
    assert machines.renewed(text, told) == text, "want `make readme`"
    assert len(text.splitlines()) <= 130


def test_figures_are_those_of_the_notebooks():
    """As SVG, and as PNG what README shows, with a list of them."""
    text = (ROOT / "README.md").read_text()
    shown = set(re.findall(r"\(figures/([\w-]+)\.png\)", text))
    books = {path: rules.read(path) for path in report.sources()}
    drawn = {
        one.name: one.png for book in books.values() for one in rules.figures(book)
    }
    want = {f"{name}.svg" for name in drawn} | {f"{name}.png" for name in shown}
    folder = ROOT / "figures"
    assert {path.name for path in folder.iterdir()} == want | {"README.md"}
    for name in shown:
        fresh = (folder / f"{name}.png").read_bytes() == drawn[name]
        assert fresh, f"{name}.png: want `make accept`"
    assert (folder / "README.md").read_text("utf-8") == accept.listed(books)


def test_a_number_that_pages_share_is_the_same_on_each():
    told = {}
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for name, number in rules.numbers(rules.read(path)):
            told.setdefault(name, {}).setdefault(number, set()).add(path.stem)
    assert not {name: numbers for name, numbers in told.items() if len(numbers) > 1}
    once = {n for n, where in told.items() if len(set().union(*where.values())) < 2}
    assert not once, "a shared number stands on one page alone"


def test_data_readme_lists_the_columns_that_there_are():
    text, data = (ROOT / "data" / "README.md").read_text(), ROOT / "data"
    told = re.findall(r"^Columns of (\S+): ([^.]+)\.", text, re.MULTILINE)
    listed = {place: re.findall(r"`(\w[\w -]*)`", line) for place, line in told}
    files = [*data.glob("*.csv"), *RESULTS.glob("ptx*.csv")]
    first = {path.name: path.read_text().partition("\n")[0] for path in files}
    headers = {name: line.split(",") for name, line in first.items()}
    assert listed == headers | {"results/": results.COLUMNS}


@pytest.mark.skipif(
    not os.environ.get("LSTM_KERNELS_HOSTILE"), reason="takes long: make test-hostile"
)
def test_a_clean_checkout_stays_clean(tmp_path):
    """A notebook of a clone is executed on small sizes, as a newcomer does: git sees no
    change.
    """
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    clone = tmp_path / "clone"
    own = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    env = own | {"PYTHONPATH": str(clone)}

    def run(*words):
        done = subprocess.run(words, cwd=clone, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    origin = f"file://{ROOT}"
    clone.mkdir()
    run("git", "clone", "--quiet", "--depth", "1", origin, ".")
    # The environment is this one: .venv counts as made.
    make = "make", "-o", ".venv/.stamp", f"PY={sys.executable}"
    said = run(*make, "notebook", "NB=1", "PRESET=smoke").splitlines()[-1]
    assert said == "open build/smoke/site/index.html"
    assert run("git", "status", "--porcelain") == ""

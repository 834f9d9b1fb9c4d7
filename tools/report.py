"""Build the report from the notebooks: execute, make pages, take results over.

python tools/report.py execute NOTEBOOK OUT [-p NAME VALUE]...
python tools/report.py html BUILD NOTEBOOKS SITE
python tools/report.py accept BUILD NOTEBOOKS
"""

import argparse
import logging
import os
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import notebook_pages
import notebook_rules as rules
import standalone
from notebook_rules import ReportError

NAMES = "*.ipynb"
VERDICTS = {
    "Held": "held",
    "Did not hold": "did not hold here",
    "Not measured": "not measured",
}


def execute(notebook: Path, out: Path, given: dict) -> None:
    """Execute `notebook` in its own folder into `out`; on failure `out` does not
    exist.
    """
    import papermill  # slow to import, and only needed here
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    source = rules.read(notebook)
    known = rules.parameters(source)
    for name in given:
        if name not in known:
            wanted = ", ".join(known) or "none: no cell is tagged 'parameters'"
            raise ReportError(
                f"{notebook}: unknown parameter {name!r}, known are {wanted}"
            )
    failed, start = out.with_name(f"{out.stem}.failed.ipynb"), time.monotonic()
    expected = (
        rules.seconds(source) if given.get("PRESET", "paper") == "paper" else None
    )
    about = (
        f"; the stored run took {notebook_pages.duration(expected)}" if expected else ""
    )
    print(f"{_place(notebook)}: starts{about}", flush=True)
    out.unlink(missing_ok=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as settings:
        _own_kernel_only(settings)
        try:
            result = papermill.execute_notebook(
                os.path.relpath(notebook),
                os.path.relpath(failed),  # until it has not
                parameters=given,
                kernel_name="python3",
                cwd=os.path.relpath(notebook.parent),
                progress_bar=sys.stderr.isatty() and {"desc": notebook.stem},
                # Sockets in the file system: on TCP others on the machine could listen.
                config=Config({"KernelManager": {"transport": "ipc"}}),
            )
        except PapermillExecutionError as error:
            raise ReportError(_failure(notebook, failed, error)) from None
    if problems := rules.problems_of_execution(result):
        raise ReportError("\n  ".join([f"{notebook} failed", *problems]))
    failed.replace(out)
    took = notebook_pages.duration(time.monotonic() - start)
    print(f"{_place(notebook)}: {took}{about}", flush=True)


def _place(notebook: Path) -> str:
    """The notebook's name and its place among those of its folder."""
    names = [path.name for path in sources(notebook.parent)]
    return f"{notebook.stem} ({names.index(notebook.name) + 1} of {len(names)})"


def _own_kernel_only(settings: str) -> None:
    """The kernel is this interpreter, without the start-up files of who runs it, and
    quiet.
    """
    # Programs that a notebook starts, such as mpiexec, come from the same environment.
    os.environ["PATH"] = os.pathsep.join(
        [os.path.dirname(sys.executable), os.environ["PATH"]]
    )
    os.environ["JUPYTER_PATH"] = os.path.join(sys.prefix, "share", "jupyter")
    os.environ["IPYTHONDIR"] = os.environ["JUPYTER_RUNTIME_DIR"] = settings
    # The package's line about compiling is for users; on stderr it would be a fault
    # here.
    os.environ["LSTM_KERNELS_QUIET"] = "1"
    # Python 3.11's frozen modules make the debugger warn on stderr.
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"


def _failure(notebook: Path, failed: Path, error) -> str:
    """Where it failed, in words, from papermill's exception."""
    # Papermill has put two notes of its own into the file; we count as in the source.
    cells = [
        c
        for c in rules.read(failed).cells
        if "papermill-error-cell-tag" not in rules.tags(c)
    ]
    before = cells[: error.cell_index + 1]
    number = sum(rules.INJECTED not in rules.tags(cell) for cell in before)
    source = "\n".join(f"    {line}" for line in error.source.strip().splitlines()[:3])
    reason = f"{error.ename}: {error.evalue}".rstrip(": ")
    where = f"{notebook}, cell {number} failed: {reason}"
    return f"{where}\n{source}\n  what ran is in {failed}"


def accept(build: Path, notebooks: Path) -> list[str]:
    """Put the executed notebooks of `build` in the place of their sources, and the
    figures that README shows in theirs: all, or none. Returns the names of the files
    that changed.
    """
    contents, drawn, problems = {}, {}, []
    for source in sources(notebooks):
        built = build / source.name
        if not built.exists():
            problems.append(f"{source.name}: not executed, run `make report`")
            continue
        executed = rules.read(built)
        own = rules.problems_of_execution(executed)
        preset = rules.preset(executed)
        if preset != "paper":
            own.append(f"executed with PRESET {preset!r}, want 'paper'")
        if _sources(executed) != _sources(rules.read(source)):
            own.append("edited since it was executed, run `make report`")
        problems += [f"{source.name}: {problem}" for problem in own]
        if not own:
            stored = rules.normalised_text(executed, name=source.name)
            contents[source] = stored.encode()
            drawn |= rules.figures(executed)
    text = notebooks.with_name("README.md").read_text(encoding="utf-8")
    wanted = re.findall(r"\(figures/([\w-]+)\.png\)", text)
    problems = problems or [
        f"README.md: no notebook draws {name}" for name in wanted if name not in drawn
    ]
    if problems:
        raise ReportError("nothing is accepted:\n  " + "\n  ".join(problems))
    figures = notebooks.with_name("figures")
    contents |= {figures / f"{name}.png": drawn[name] for name in wanted}
    contents = {
        path: content
        for path, content in contents.items()
        if not path.exists() or path.read_bytes() != content
    }
    times = {path: path.stat() for path in contents if path.suffix == ".ipynb"}
    rules.write_all(contents)
    for path, before in times.items():
        # To make, the notebook has not changed: its cells are those that were executed.
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return [path.name for path in contents]


def _sources(notebook) -> list:
    return [(cell.cell_type, cell.source) for _, cell in rules.numbered(notebook)]


def sources(notebooks: Path) -> list[Path]:
    """The report's notebooks in order."""
    found = sorted(notebooks.glob(NAMES))
    if not found:
        raise ReportError(
            f"no notebooks in {notebooks}, want some such as 01_equations.ipynb"
        )
    return found


def summary(found: list) -> str:
    """The claims of pages in lines: how many held, and which did not or were not
    measured.
    """
    claims = [(page.name[:-5], claim) for page in found for claim in page.claims]
    count = Counter(claim["verdict"] for _, claim in claims)
    lines = [
        "claims: " + ", ".join(f"{count[key]} {word}" for key, word in VERDICTS.items())
    ]
    for key, word in list(VERDICTS.items())[1:]:
        told = [
            f"  {word}, {name}: {c['text']}"
            for name, c in claims
            if c["verdict"] == key
        ]
        lines += told
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("execute", help="execute one notebook")
    command.add_argument("notebook", type=Path)
    command.add_argument("out", type=Path)
    command.add_argument(
        "-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE")
    )
    pages = commands.add_parser("html", help="make the site of executed notebooks")
    take = commands.add_parser(
        "accept", help="put executed notebooks in their sources' place"
    )
    for command in (pages, take):
        command.add_argument("build", type=Path)
        command.add_argument("notebooks", type=Path)
    pages.add_argument("site", type=Path)
    given = parser.parse_args(arguments)
    try:
        if given.command == "execute":
            execute(given.notebook, given.out, dict(given.p))
        elif given.command == "html":
            built = [given.build / source.name for source in sources(given.notebooks)]
            executed = [path for path in built if path.exists()]
            standalone.make(given.site / "files", sources(given.notebooks))
            print(summary(notebook_pages.make(executed, given.notebooks, given.site)))
            for path in built:
                if path not in executed:
                    print(f"{path.stem}: not executed")
        else:
            changed = accept(given.build, given.notebooks)
            print(f"{len(changed)} changed: {', '.join(changed) or 'none'}")
    except ReportError as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        logging.disable()  # what asyncio would say of papermill's tasks
        print("report: interrupted; the same call goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

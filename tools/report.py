"""Build the report from the notebooks: execute them, make the site, take results over.

python tools/report.py execute NOTEBOOK OUT [-p PRESET smoke]
python tools/report.py run BUILD [-p PRESET smoke] [--only NUMBER]
python tools/report.py html BUILD SITE [--only NUMBER]
python tools/report.py accept BUILD
python tools/report.py readme
"""

if __name__ == "__main__":  # first of all: what is imported takes a second
    import interrupts

    interrupts.end_at_once()

import argparse
import logging
import os
import re
import signal
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import notebook_rules as rules
import psutil
from accept import accepted
from interrupts import INTERRUPTED, end, told_as
from notebook_rules import ROOT, ReportError
from progress import Page, Progress
from summary import summary

from lstm_kernels.files import writing
from lstm_report.measure.results import newest_code

LAST = "lesson, appendix"
OF_LETTER = {"L": "lesson", "A": "appendix"}  # as their figures are numbered


def sources(root=ROOT):
    """The report's notebooks in order: by number, then those of LAST."""
    found = sorted(root.glob("notebooks/*.ipynb"))
    return sorted(found, key=lambda path: LAST.find(path.stem))


def execute(notebook, out, preset="paper", began=lambda number: None):
    """Execute `notebook` in its own folder into `out`, in the form that is stored; on
    failure `out` does not exist. `began` is called with the number of each cell.
    """
    with told_as(end):
        import papermill  # slow to import
        from nbclient.exceptions import DeadKernelError
        from papermill.exceptions import PapermillExecutionError
        from traitlets.config import Config

    start, starts, began_at = time.monotonic(), [], time.time()

    def on_cell_start(cell, cell_index):
        if "injected-parameters" not in rules.tags(cell):
            starts.append(time.monotonic())
            began(len(starts))

    out.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as settings:
        _own_kernel_only(settings)
        # Sockets in the file system: on TCP others on the machine could listen.
        sockets = {"transport": "ipc", "ip": f"{settings}/k"}
        try:
            book = papermill.execute_notebook(
                str(notebook),
                f"{settings}/executed.ipynb",
                parameters={"PRESET": preset},
                kernel_name="python3",
                cwd=str(notebook.parent),
                progress_bar=False,
                config=Config({"KernelManager": sockets}),
                on_cell_start=on_cell_start,
                # A kernel that is interrupted would tell of its sockets.
                extra_arguments=["--log-level=50"],
            )
        except KeyboardInterrupt:
            # One that is just starting would miss the folder of its sockets.
            logging.disable()  # of what is killed nobody has to be told
            for process in psutil.Process().children(recursive=True):
                process.kill()
                process.wait()
            raise
        except DeadKernelError:
            where = f"{notebook}, cell {len(starts)}"
            raise ReportError(f"{where}: its process died; was memory left?") from None
        except PapermillExecutionError as error:
            # Papermill counts from 0, and its own cell behind the parameters too.
            tagged = ["parameters" in rules.tags(c) for c in rules.read(notebook).cells]
            before = error.cell_index <= tagged.index(True)
            place = error.cell_index + before
            reason = f"{error.ename}: {error.evalue}".strip(": ")
            raise ReportError(f"{notebook}, cell {place} failed: {reason}") from None
    book = rules.with_preset(book, preset)
    for number, output, _ in rules.outputs(book):
        if output.get("name") == "stderr":
            where = f"{notebook}, cell {number} wrote to stderr"
            raise ReportError(f"{where}: {output.text.strip()}")
    starts.append(time.monotonic())
    took = [after - one for one, after in pairwise(starts)]
    book = rules.stored(book, starts[-1] - start, took)
    write(out, rules.dumps(book).encode())
    os.utime(out, (began_at, began_at))  # code that has changed meanwhile is newer


def _own_kernel_only(settings):
    """The kernel is this interpreter, quiet, without the start-up files of who runs
    it; programs that a notebook starts, such as mpiexec, come from its environment.
    """
    search = os.path.dirname(sys.executable), os.environ["PATH"]
    os.environ["PATH"] = os.pathsep.join(search)
    os.environ["JUPYTER_PATH"] = os.path.join(sys.prefix, "share", "jupyter")
    os.environ["IPYTHONDIR"] = os.environ["JUPYTER_RUNTIME_DIR"] = settings
    os.environ["LSTM_KERNELS_QUIET"] = "1"
    # Python 3.11's frozen modules make the debugger warn on stderr.
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"


def write(path, content):
    """Write beside and rename: `path` is whole or untouched."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path) as file:
        file.write(content)


def chosen(every, only):
    """The notebook of a number or name among `every`; all where it is empty."""
    if not only:
        return every
    name = OF_LETTER.get(only, only)
    wanted = re.compile(rf"0*{re.escape(name.lstrip('0'))}(_|$)")
    found = [path for path in every if wanted.match(path.stem)]
    if not found:
        names = ", ".join(path.stem for path in every)
        raise ReportError(f"NB: got {only!r}, want the number or name of {names}")
    return found


def run(build, preset="paper", only="", root=ROOT, execute=execute, stream=None):
    """Execute what is out of date, or `only` the notebook of a number or name; whether
    all went well. One that fails does not stop the others.
    """
    todo = chosen(sources(root), only)
    if not only:
        todo = [path for path in todo if not up_to_date(path, build / path.name, root)]
    books, fine = {path: rules.read(path) for path in todo}, True
    pages = [
        Page(
            path.stem,
            rules.seconds(book),
            rules.seconds_of_cells(book),
            len(book.cells),
        )
        for path, book in books.items()
    ]
    progress = Progress(pages, compares=preset == "paper", stream=stream)
    for path in todo:
        try:
            with progress.page():
                execute(path, build / path.name, preset, progress.cell)
                progress.done()
        except ReportError as error:
            print(f"report: {error}", file=sys.stderr, flush=True)
            fine = False
    return fine


def up_to_date(source, out, root=ROOT):
    """Whether `out` is `source` executed with the code, the series and the recorded
    results that are here.
    """
    try:
        if not out.exists() or rules.written(source) != rules.written(out):
            return False
    except ReportError:  # a damaged file
        return False
    return out.stat().st_mtime > newest_code(root)


def accept(build, root=ROOT):
    """Store what was executed to `build`, as `accepted` says; nothing where one is not
    fit. Returns the names of the files that changed.
    """
    contents = accepted(build, sources(root), root)
    before = {path: path.read_bytes() for path in contents if path.exists()}
    changed = [path for path in contents if before.get(path) != contents[path]]
    for path in changed:
        if contents[path] is None:
            path.unlink()
        else:
            write(path, contents[path])
    return [path.name for path in changed]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = ("execute", "run", "html", "accept", "readme")
    parser.add_argument("command", choices=commands)
    parser.add_argument("paths", type=Path, nargs="*")
    parser.add_argument("--preset", choices=("paper", "smoke"), default="paper")
    parser.add_argument("--only", default="", help="the number of a notebook")
    given = parser.parse_args(arguments)
    try:
        with told_as(signal.default_int_handler):
            return command(given)
    except ReportError as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"report: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130


def command(given):
    """Do what the words of the command line ask for; the exit status."""
    if given.command == "execute":
        execute(*given.paths, given.preset)
    elif given.command == "run":
        try:
            chosen(sources(), given.only)
        except ReportError as error:
            print(f"report: {error}", file=sys.stderr)
            return 2
        return 0 if run(*given.paths, given.preset, given.only) else 1
    elif given.command == "accept":
        print(", ".join(accept(*given.paths)) or "nothing", "changed")
    elif given.command == "html":
        with told_as(end):
            import website  # slow to import, as the next

        build, site = given.paths
        print("making the site", flush=True)
        built = [build / path.name for path in sources()]
        website.make([path for path in built if path.exists()], site)
        print(summary(build, chosen(sources(), given.only), site))
    else:
        with told_as(end):
            from lstm_report import machines

        path = ROOT / "README.md"
        told = dict(rules.numbers(rules.read(sources()[0])))
        write(path, machines.renewed(path.read_text("utf-8"), told).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())

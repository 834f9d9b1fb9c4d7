"""Build the report from the notebooks: execute them, make the site, take results over.

python tools/report.py execute NOTEBOOK OUT [--preset smoke]
python tools/report.py run BUILD [--preset smoke] [--only NUMBER]
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
import signal
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import notebook_rules as rules
import psutil
from accept import accepted
from chosen import PRESETS, ROOT, ReportError, chosen, sources
from interrupts import INTERRUPTED, end, told_as
from progress import Page, Progress
from summary import summary

from lstm_report.measure.results import newest_code, replace

# What follows each command.
WORDS = {"execute": "notebook out --preset", "run": "build --preset --only"}
WORDS |= {"html": "build site --only", "accept": "build", "readme": ""}
OPTIONS = {"--preset": {"choices": PRESETS, "default": "paper"}}
OPTIONS["--only"] = {"default": "", "help": "the number of a notebook"}


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
    told = {"shared": rules.without_shared(book)}
    for number, output, _ in rules.outputs(book):
        if output.get("name") == "stderr":
            where = f"{notebook}, cell {number} wrote to stderr"
            raise ReportError(f"{where}: {output.text.strip()}")
    starts.append(time.monotonic())
    cells = [f"{after - one:.0f}" for one, after in pairwise(starts)]
    told |= {"seconds": round(starts[-1] - start), "cells": " ".join(cells)}
    book = rules.stored(book, told)
    write(out, rules.dumps(book))
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
    replace(path, content)


def run(build, preset="paper", only="", root=ROOT, execute=execute, stream=None):
    """Execute what is out of date, or `only` the notebook of a number or name; whether
    all went well. One that fails does not stop the others.
    """
    todo = chosen(sources(root), only)
    if not only:
        todo = [path for path in todo if not up_to_date(path, build / path.name, root)]
    kept, code = (build / "shared").glob("*"), newest_code(root)
    there = {path.name for path in kept if path.stat().st_mtime > code}
    pages, fine = [], True
    for path in todo:
        book = rules.read(path)
        pages.append(Page(path.stem, rules.expected(book, there), len(book.cells)))
        there |= {*rules.took(book).get("shared", ())}  # for the pages after it
    progress = Progress(pages, stream=stream)
    for path in todo:
        try:
            with progress.page():
                execute(path, build / path.name, preset, progress.cell)
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
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in WORDS.items():
        part = commands.add_parser(name)
        for word in words.split():
            part.add_argument(word, **OPTIONS.get(word, {"type": Path}))
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
        execute(given.notebook, given.out, given.preset)
    elif given.command == "run":
        return 0 if run(given.build, given.preset, given.only) else 1
    elif given.command == "accept":
        print(", ".join(accept(given.build)) or "nothing", "changed")
    elif given.command == "html":
        with told_as(end):
            import website  # slow to import, as the next

        print("making the site", flush=True)
        built = [given.build / path.name for path in sources()]
        website.make([path for path in built if path.exists()], given.site)
        print(summary(given.build, chosen(sources(), given.only), given.site))
    else:
        with told_as(end):
            from lstm_report import machines

        path = ROOT / "README.md"
        told = dict(rules.numbers(rules.read(sources()[0])))
        write(path, machines.renewed(path.read_text("utf-8"), told))
    return 0


if __name__ == "__main__":
    sys.exit(main())

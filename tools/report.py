"""Build the report from the notebooks: execute them, make the site, take results over.

python tools/report.py execute NOTEBOOK OUT [-p PRESET smoke]
python tools/report.py run BUILD [-p PRESET smoke] [--only NUMBER]
python tools/report.py html BUILD SITE
python tools/report.py accept BUILD
python tools/report.py readme
"""

import argparse
import logging
import os
import re
import sys
import tempfile
import time
from pathlib import Path

INTERRUPTED = "report: interrupted; the same call goes on from here"
try:  # which takes a second
    import notebook_rules as rules
    import psutil
    from notebook_rules import ROOT, ReportError

    from lstm_kernels.files import writing
    from lstm_report.measure.results import newest_code
except KeyboardInterrupt:
    print(INTERRUPTED, file=sys.stderr)
    sys.exit(130)

LAST = "lesson, appendix"


def sources(root=ROOT):
    """The report's notebooks in order: by number, then those of LAST."""
    found = sorted(root.glob("notebooks/*.ipynb"))
    return sorted(found, key=lambda path: LAST.find(path.stem))


def execute(notebook, out, preset="paper"):
    """Execute `notebook` in its own folder into `out`, in the form that is stored; on
    failure `out` does not exist.
    """
    import papermill  # slow to import
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    start = time.monotonic()
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
    book = rules.stored(book, seconds=time.monotonic() - start)
    write(out, rules.dumps(book).encode())


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


def run(build, preset="paper", only="", root=ROOT, execute=execute):
    """Execute what is out of date, or `only` the notebook of a number or name; whether
    all went well. One that fails does not stop the others.
    """
    every = sources(root)
    todo = [path for path in every if not up_to_date(path, build / path.name, root)]
    if only:
        wanted = re.compile(rf"0*{re.escape(only.lstrip('0'))}(_|$)")
        todo = [path for path in every if wanted.match(path.stem)]
        if not todo:
            names = ", ".join(path.stem for path in every)
            raise ReportError(f"NB: got {only!r}, want the number or name of {names}")
    took, fine = [rules.seconds(rules.read(path)) for path in todo], True
    for place, path in enumerate(todo):
        about = f"{path.stem} ({place + 1} of {len(todo)}) starts"
        if preset == "paper":
            left = f"{sum(took[place:]) / 60:.1f} min left"
            about += f"; the stored run took {took[place]} s, {left}"
        print(about, flush=True)
        try:
            execute(path, build / path.name, preset)
        except ReportError as error:
            print(f"report: {error}", file=sys.stderr, flush=True)
            fine = False
    return fine


def up_to_date(source, out, root=ROOT):
    """Whether `out` is `source` executed with the code, the series and the recorded
    results that are here.
    """
    if not out.exists() or cells(source) != cells(out):
        return False
    return out.stat().st_mtime > newest_code(root)


def cells(path):
    """What was written of a notebook, but for its parameters."""
    book = rules.read(path)
    return [cell.source for cell in book.cells if "parameters" not in rules.tags(cell)]


def summary(build, root=ROOT):
    """In lines: how many claims held; for each page its seconds, the claims that did
    not hold, and the verdicts that differ from the stored run.
    """
    lines, books = [], []
    for source in sources(root):
        if not (build / source.name).exists():
            lines.append(f"{source.stem}: not executed")
            continue
        new, old = rules.read(build / source.name), rules.read(source)
        books.append(new)
        took, stored = rules.seconds(new), rules.seconds(old)
        lines.append(f"{source.stem}: {took} s, stored {stored} s")
        before = dict(enumerate(claim["verdict"] for claim in rules.claims(old)))
        for number, claim in enumerate(rules.claims(new)):
            verdict, was = claim["verdict"], before.get(number)
            if verdict != "Held" or was not in (None, verdict):
                told = f", stored: {was.lower()}" if was not in (None, verdict) else ""
                lines.append(f"  {verdict.lower()}{told}: {claim['sentence']}")
    return "\n".join([rules.counted(books), *lines])


def accept(build, root=ROOT):
    """Put the executed notebooks of `build` in the place of their sources, and the
    figures that README shows in theirs; nothing where one is not fit. Returns the names
    of the files that changed.
    """
    contents, drawn, problems = {}, {}, []
    for source in sources(root):
        built = build / source.name
        if not built.exists() or rules.preset(rules.read(built)) != "paper":
            problems.append(f"{source.name}: not executed with PRESET 'paper'")
        elif cells(built) != cells(source):
            problems.append(f"{source.name}: edited since it was executed")
        else:
            contents[source] = built.read_bytes()
            drawn |= rules.figures(rules.read(built))
    text = (root / "README.md").read_text("utf-8")
    for name in re.findall(r"\(figures/([\w-]+)\.png\)", text):
        contents[root / "figures" / f"{name}.png"] = drawn.get(name)
        problems += [] if name in drawn else [f"README.md: no notebook draws {name}"]
    if problems:
        raise ReportError("\n  ".join(["nothing is accepted:", *problems]))
    changed = [p for p in contents if not p.exists() or p.read_bytes() != contents[p]]
    for path in changed:
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
        if given.command == "execute":
            execute(*given.paths, given.preset)
        elif given.command == "run":
            return 0 if run(*given.paths, given.preset, given.only) else 1
        elif given.command == "accept":
            print(", ".join(accept(*given.paths)) or "nothing", "changed")
        elif given.command == "html":
            import website  # slow to import, as the next

            build, site = given.paths
            built = [build / path.name for path in sources()]
            website.make([path for path in built if path.exists()], site)
            print(summary(build))
        else:
            from lstm_report import machines

            path = ROOT / "README.md"
            write(path, machines.renewed(path.read_text("utf-8")).encode())
    except ReportError as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

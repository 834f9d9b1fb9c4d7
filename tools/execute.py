"""Execute a notebook in its own folder, into the form that is stored; `make` calls it.

python tools/execute.py NOTEBOOK OUT PRESET
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import notebook_rules as rules
import papermill
from papermill.exceptions import PapermillExecutionError
from traitlets.config import Config

from lstm_report.measure.results import replace


def execute(notebook, out, preset):
    """Write OUT, as old as the beginning: code that has changed meanwhile is newer.
    SystemExit with the reason where a cell fails or writes to stderr.

    What was executed of a notebook that failed is left in OUT's folder `failed`.
    """
    began = time.time()
    failed = out.parent / "failed" / out.name
    failed.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        # A quiet kernel without this user's start-up files; what a notebook starts,
        # such as mpiexec, is of its environment.
        search = os.path.dirname(sys.executable), os.environ["PATH"]
        own = {"PATH": os.pathsep.join(search), "IPYTHONDIR": folder}
        # Python 3.11's frozen modules make the debugger warn on stderr.
        own |= {"LSTM_KERNELS_QUIET": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
        os.environ.update(own)
        # Sockets in the file system: on TCP others on the machine could listen.
        sockets = {"transport": "ipc", "ip": f"{folder}/kernel"}
        try:
            book = papermill.execute_notebook(
                notebook,
                failed,
                parameters={"PRESET": preset},
                kernel_name="python3",
                cwd=notebook.parent,
                config=Config({"KernelManager": sockets}),
            )
        except PapermillExecutionError as error:
            sys.exit(f"{notebook} failed, see {failed}: {error}")
    for number, output, _ in rules.outputs(rules.stored(book, preset)):
        if output.get("name") == "stderr":
            sys.exit(f"{notebook}, cell {number} wrote to stderr: {output.text}")
    replace(out, rules.dumps(book))
    os.utime(out, (began, began))
    failed.unlink()


if __name__ == "__main__":
    words = sys.argv[1:]
    try:
        execute(Path(words[0]), Path(words[1]), words[2])
    except KeyboardInterrupt:
        sys.exit(130)

"""A handout: the lesson without its solutions.

python -m lstm_report.lesson LESSON.ipynb HANDOUT.ipynb
"""

import argparse
import json
import re
from pathlib import Path

from lstm_kernels.files import check_path

SOLUTION = re.compile(
    r"<details><summary>Solution</summary>.+?</details>\n*", re.DOTALL
)


def handout(book):
    """Take the solutions out of a notebook, and what it shows when executed."""
    for cell in book["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            source = SOLUTION.sub("", source).rstrip()
        else:
            cell |= {"outputs": [], "execution_count": None}
        cell["source"] = source
    book["cells"] = [cell for cell in book["cells"] if cell["source"]]
    return book


def main(words=None):
    parser = argparse.ArgumentParser(
        "python -m lstm_report.lesson", description=__doc__
    )
    parser.add_argument("lesson", type=Path)
    parser.add_argument("handout", type=Path)
    given = parser.parse_args(words)
    if given.handout.exists():
        parser.error(f"handout: got {given.handout}, which exists, want a new file")
    path = check_path("lesson", given.lesson)
    book = handout(json.loads(path.read_text("utf-8")))
    given.handout.write_text(json.dumps(book, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

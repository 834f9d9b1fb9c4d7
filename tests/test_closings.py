"""What became of the projects' goals, as pages show it and other pages read it."""

import json
import os

import pytest
from made import code, markdown, save

from lstm_report import closings
from lstm_report.measure import results
from lstm_report.notebook import Notebook


def closing(path, found):
    """A page that closes a project with one goal."""
    goals = {"project": "a project", "lines": [["a goal", found, "reached"]]}
    return save(path, code("nb.goals()", markdown("| a |", goals=goals)))


@pytest.fixture
def stored(tmp_path):
    """The first of the stored pages."""
    pages = [tmp_path / "notebooks" / page for page in closings.PAGES.values()]
    for path in pages:
        closing(path, "stored")
    return pages[0]


def test_of_a_page_the_last_run_counts_while_no_code_is_newer(stored, tmp_path):
    nb = Notebook("smoke", root=tmp_path)
    built = closing(tmp_path / "build" / "smoke" / stored.name, "built")
    for when, found in ((1, "built"), (-1, "stored")):
        os.utime(built, (0, results.newest_code() + when))
        got = closings.closings(nb)
        assert [*got] == [*closings.PAGES]
        assert got["CSC14116"] == (stored.name, [["a goal", found, "reached"]])
    save(built, code("nb.goals()"))
    with pytest.raises(ValueError, match="got no goals, want a page that was execut"):
        closings.goals_of(built)


def test_without_a_repository_they_are_brought(stored, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "ROOT", tmp_path)
    brought = closings.stored()
    (tmp_path / closings.FILE).write_text(json.dumps(brought))
    monkeypatch.setattr(results, "BROUGHT", tmp_path)
    got = closings.closings(Notebook("paper", root=None))
    assert got == {name: (closings.PAGES[name], brought[name]) for name in brought}

"""The schedule explorer: its schedules are those of Python, and its controls draw
them.
"""

import json
import random
from pathlib import Path

import pytest
from browser import chromium, needs_site

from lstm_kernels.schedules import Costs, Graph, wavefront
from lstm_kernels.simulate import simulate

pytestmark = needs_site
PAGE = Path(__file__).parents[1] / "tools" / "page"
SCRIPT = (PAGE / "schedules.js").read_text()
PORTED = """return JSON.stringify(arguments[0].map((settings) => (
  wavefront(settings).map((t) => [t.layer, t.start, t.stop, t.worker, t.from, t.to]))));"""
NAMES = "layers", "steps", "workers", "chunk", "hand"


def cases():
    """Sizes and a hand-over: chosen ones, then drawn ones."""
    chosen = [(1, 1, 1, 1), (1, 9, 3, 2), (4, 48, 2, 4), (8, 48, 8, 1), (3, 7, 9, 7)]
    draw = random.Random(5)
    for _ in range(60):
        steps = draw.randint(1, 40)
        sizes = draw.randint(1, 8), steps, draw.randint(1, 9), draw.randint(1, steps)
        chosen.append(sizes)
    hands = [draw.choice((0, 0.1, 1, draw.random())) for _ in chosen]
    return [
        dict(zip(NAMES, (*sizes, hand), strict=True))
        for sizes, hand in zip(chosen, hands, strict=True)
    ]


def of_python(layers, steps, workers, chunk, hand):
    costs = Costs((1.0,) * layers, hand=hand)
    plan = wavefront(Graph(layers, steps), workers, chunk, costs=costs)
    spans = simulate(plan, costs).spans
    return [
        [task.layer, task.start, task.stop, task.worker, span.start, span.stop]
        for task, span in zip(plan.tasks, spans, strict=True)
    ]


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture
def explorer(tmp_path, browser):
    """Opens a page that holds the figure alone."""
    page = tmp_path / "page.html"
    page.write_text(
        "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><title>A</title>"
        f"<style>{(PAGE / 'style.css').read_text()}</style></head><body><main>"
        "<figure class='schedules'><img src='data:image/gif;base64,R0lGODlhAQABAIAAA"
        "AAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7' alt='Still'></figure>"
        f"</main><script>{SCRIPT}</script></body></html>"
    )

    def opened(**how):
        browser.open(page, **how)
        return browser

    return opened


def press(browser, name, *keys):
    browser.driver.find_element("name", name).send_keys(*keys)


def said(browser):
    return browser.run("return document.querySelector('[aria-live]').textContent")


def test_schedules_and_times_are_those_of_python(explorer):
    got = json.loads(explorer().run(PORTED, cases()))
    assert len(got) == 65
    pairs = zip(cases(), got, strict=True)
    assert [case for case, one in pairs if one != of_python(**case)] == []


def test_the_explorer_stands_below_the_picture(explorer):
    browser = explorer()
    labels = "document.querySelectorAll('input')"
    labels = browser.run(f"return [...{labels}].map((e) => e.labels.length)")
    assert labels == [1] * len(NAMES)
    first = browser.run("return document.querySelector('figure').firstChild.tagName")
    assert first == "IMG"
    tasks = of_python(4, 48, 2, 4, 0.1)
    assert f"Makespan {max(task[-1] for task in tasks):.3g} steps" in said(browser)
    assert f"is {4 * 48 / (48 + 3 * 4):.3g}x" in said(browser)
    assert browser.run("return document.querySelectorAll('rect').length") == len(tasks)
    assert browser.logged() == []


@pytest.mark.parametrize("name", NAMES)
def test_a_key_changes_text_and_picture(explorer, name):
    browser, picture = explorer(), "return document.querySelector('svg').innerHTML"
    before = said(browser), browser.run(picture)
    press(browser, name, "\ue014")  # right
    after = said(browser), browser.run(picture)
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_a_chunk_is_no_longer_than_the_steps(explorer):
    browser = explorer()
    press(browser, "steps", "\ue011", "\ue014")  # home, right: one step, then two
    assert browser.run("return document.forms[0].chunk.max") == "2"
    assert "NaN" not in said(browser)


def test_without_scripts_the_picture_stays(explorer):
    [image] = explorer(scripts=False).driver.find_elements("tag name", "img")
    assert image.is_displayed()

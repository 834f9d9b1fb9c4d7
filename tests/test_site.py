"""The site in Chromium: each page loads without a complaint, asks nobody for anything,
leads somewhere and can be read by all; the schedule explorer has Python's schedules.
"""

import json
import os
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import bs4
import pytest
from browser import SITE, chromium, needs_site
from hypothesis import given, settings
from hypothesis import strategies as st

from lstm_kernels.schedules import Costs, Graph, wavefront
from lstm_kernels.simulate import simulate

pytestmark = needs_site
FOLDER = Path(SITE or "").resolve()
PAGES = [path for path in sorted(FOLDER.rglob("*.html")) if "_static" not in path.parts]
EXPLORER = FOLDER / "notebooks" / "05_layers.html"
AXE = os.environ.get("LSTM_KERNELS_AXE")  # the file axe.min.js
UNFOLD = "document.querySelectorAll('details').forEach((one) => { one.open = true; });"
AUDIT = """
const [report] = [...arguments].slice(-1);
axe.run(document, {resultTypes: ['violations']}).then(({violations}) => report(violations.flatMap(
  ({impact, id, nodes}) => nodes.map(({target}) => [impact, id, target.join(' ')]))));
"""
IMAGES = """
return [...document.images].filter((image) => (
  !image.complete || !image.naturalWidth || !image.alt.trim()
)).map((image) => image.alt || image.src.slice(0, 50));"""
RIGHT, HOME = "\ue014", "\ue011"  # keys


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        opened.driver.set_script_timeout(60)
        yield opened


@cache
def parsed(page):
    return bs4.BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")


def dead_links(page):
    """Links to what is not in the folder; those to the outside are left to readers."""
    for link in parsed(page).find_all("a", href=True):
        parts = urlsplit(link["href"])
        if parts.scheme or parts.netloc:
            continue
        target = page.parent / unquote(parts.path) if parts.path else page
        alive = target.is_file()
        if alive and parts.fragment and target.suffix == ".html":
            alive = parsed(target).find(id=unquote(parts.fragment)) is not None
        if not alive:
            yield link["href"]


def barriers(browser, page):
    """What axe-core finds, in both modes, on a phone and on a wide window."""
    for dark, width in ((False, 390), (False, 1400), (True, 390), (True, 1400)):
        browser.open(page, dark=dark, width=width)
        browser.run(UNFOLD)
        browser.run(Path(AXE).read_text(encoding="utf-8"))
        yield from browser.driver.execute_async_script(AUDIT)


def test_there_is_a_site():
    assert {"index.html", "claims.html", "api.html"} < {page.name for page in PAGES}
    assert AXE, "LSTM_KERNELS_AXE: want the path of axe.min.js"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_whole_and_open_to_all(browser, page):
    for read in (browser.logged, browser.requested):
        read()  # what pages before it left
    browser.open(page)
    assert browser.logged() == []
    outside = [url for url in browser.requested() if not url.startswith("file://")]
    assert outside == []
    assert browser.run(IMAGES) == []
    assert [*dead_links(page)] == []
    assert [*barriers(browser, page)] == []


# The schedule explorer.

PORTED = """return JSON.stringify(wavefront(arguments[0]).map(
  (t) => [t.layer, t.start, t.stop, t.worker, t.from, t.to]));"""
NAMES = "layers", "steps", "workers", "chunk", "hand"


@pytest.fixture
def explorer(browser):
    browser.open(EXPLORER)
    return browser


def of_python(layers, steps, workers, chunk, hand):
    costs = Costs((1.0,) * layers, hand=hand)
    plan = wavefront(Graph(layers, steps), workers, chunk, costs=costs)
    spans = simulate(plan, costs).spans
    return [
        [task.layer, task.start, task.stop, task.worker, span.start, span.stop]
        for task, span in zip(plan.tasks, spans, strict=True)
    ]


sizes = st.fixed_dictionaries(
    dict(zip(NAMES, [st.integers(1, top) for top in (8, 40, 9, 40)], strict=False))
    | {"hand": st.sampled_from([0, 0.1, 1]) | st.floats(0, 1)}
)


def test_schedules_and_times_are_those_of_python(explorer):
    @settings(max_examples=80)
    @given(sizes)
    def compared(size):
        size["chunk"] = min(size["chunk"], size["steps"])
        assert json.loads(explorer.run(PORTED, size)) == of_python(**size)

    compared()


def said(browser):
    return browser.run("return document.querySelector('[aria-live]').textContent")


def picture(browser):
    return browser.run("return document.querySelector('.schedules svg').innerHTML")


def test_the_explorer_draws_what_it_says_below_its_picture(explorer):
    tasks = of_python(4, 48, 2, 4, 0.1)
    assert f"Makespan {max(task[-1] for task in tasks):.3g} steps" in said(explorer)
    assert f"is {4 * 48 / (48 + 3 * 4):.3g}x" in said(explorer)
    assert picture(explorer).count("<rect") == len(tasks)
    for name in NAMES:
        before = said(explorer), picture(explorer)
        explorer.driver.find_element("name", name).send_keys(RIGHT)
        assert before[0] != said(explorer), name
        assert before[1] != picture(explorer), name
    explorer.driver.find_element("name", "steps").send_keys(HOME, RIGHT)
    most = "return document.querySelector('.schedules form').chunk.max"
    assert explorer.run(most) == "2"  # a chunk is no longer than the steps


def test_without_scripts_the_picture_stays(browser):
    browser.open(EXPLORER, scripts=False)
    [image] = browser.driver.find_elements("css selector", ".schedules img")
    assert image.is_displayed()

"""The site in Chromium: each page loads without a complaint, asks nobody for anything
and can be read by all.
"""

import os
import time
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import bs4
import pytest
from browser import SITE, chromium, needs_site

pytestmark = needs_site
FOLDER = Path(SITE or "").resolve()
PAGES = sorted(FOLDER.glob("*.html")) + sorted(FOLDER.glob("data/*.html"))
AXE = os.environ.get("LSTM_KERNELS_AXE")  # the file axe.min.js
UNFOLD = "document.querySelectorAll('details').forEach((one) => { one.open = true; });"
AUDIT = """
const [report] = [...arguments].slice(-1);
axe.run(document, {resultTypes: ['violations']}).then(({violations}) => report(violations.flatMap(
  ({impact, id, nodes}) => nodes.map(({target}) => [impact, id, target.join(' ')]))));
"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        opened.driver.set_script_timeout(60)
        yield opened


# --- what a page must not have: each check returns what it found


def logged(browser, page):
    browser.logged()
    browser.open(page)
    return browser.logged()


def requested(browser, page):
    """What is asked for outside the folder of the page."""
    browser.requested()
    browser.open(page)
    inside = page.parent.resolve().as_uri(), FOLDER.as_uri()
    return [url for url in browser.requested() if not url.startswith(inside)]


def bad_images(browser, page):
    browser.open(page)
    return browser.run("""
      return [...document.images].filter((image) => (
        !image.complete || !image.naturalWidth || !image.alt.trim()
      )).map((image) => image.alt || image.src.slice(0, 50));""")


@cache
def parsed(page):
    return bs4.BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")


def dead_links(_, page):
    """Links to what is not in the folder; those to the outside are left to readers."""
    found = []
    for link in parsed(page).find_all("a", href=True):
        parts = urlsplit(link["href"])
        if parts.scheme or parts.netloc:
            continue
        target = page.parent / unquote(parts.path) if parts.path else page
        alive = target.is_file()
        if alive and parts.fragment and target.suffix == ".html":
            alive = parsed(target).find(id=unquote(parts.fragment)) is not None
        found += [] if alive else [link["href"]]
    return found


def barriers(browser, page):
    """What axe-core finds, in both modes, on a phone and on a wide window."""
    found = []
    for dark in (False, True):
        for width in (390, 1400):
            browser.open(page, dark=dark, width=width)
            browser.run(UNFOLD)
            browser.run(Path(AXE).read_text(encoding="utf-8"))
            found += browser.driver.execute_async_script(AUDIT)
    return found


CHECKS = logged, requested, bad_images, dead_links, barriers


def test_there_is_a_site():
    assert {"index.html", "claims.html", "api.html"} < {page.name for page in PAGES}
    assert AXE, "LSTM_KERNELS_AXE: want the path of axe.min.js"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages(browser, page, check):
    assert check(browser, page) == []


# What a page could have from a stranger, all of it `pwned`.
FOREIGN = """
document.body.insertAdjacentHTML('beforeend', `
  <img src="x" alt="x" onerror="window.pwned = 'handler'">
  <a id="foreign" href="javascript:window.pwned = 'link'">x</a>
  <img src="https://example.invalid/x.png" alt="x">`);
document.getElementById('foreign').click();
const script = document.createElement('script');
script.textContent = "window.pwned = 'script'";
document.body.append(script);
"""


def test_the_policy_stops_what_is_not_of_the_site(browser):
    browser.open(FOLDER / "index.html")
    browser.logged()
    browser.run(FOREIGN)
    said, end = [], time.monotonic() + 20
    while len(said) < 4 and time.monotonic() < end:
        said += [line for line in browser.logged() if "Security Policy" in line]
    assert len(said) == 4, said
    assert browser.run("return window.pwned") is None


def test_the_schedule_explorer_is_on_its_page(browser):
    browser.open(FOLDER / "05_layers.html")
    before = browser.run("return document.querySelector('.schedules svg').innerHTML")
    browser.driver.find_element("name", "layers").send_keys("\ue014")  # right
    after = browser.run("return document.querySelector('.schedules svg').innerHTML")
    assert before.count("<rect") > 1
    assert before != after

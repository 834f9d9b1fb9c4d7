"""The site in Chromium: each page loads without a complaint, asks nobody for anything,
leads somewhere and can be read by all.
"""

import json
import os
import shutil
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import bs4
import pytest

# The folder of the site: set by `make test-site`
SITE = os.environ.get("LSTM_KERNELS_SITE")
pytestmark = pytest.mark.skipif(not SITE, reason="`make test-site`, in Chromium")
FOLDER = Path(SITE or "").resolve()
PAGES = [path for path in sorted(FOLDER.rglob("*.html")) if "_static" not in path.parts]
# Debian's Chromium asks nobody for anything but the pages.
QUIET = "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run "
QUIET += "--disable-background-networking --disable-component-update --disable-sync "
QUIET += "--disable-dev-shm-usage --hide-scrollbars"
AUDIT = """
document.querySelectorAll('details').forEach((one) => { one.open = true; });
const [report] = [...arguments].slice(-1);
axe.run(document, {resultTypes: ['violations']}).then(({violations}) => report(violations.flatMap(
  ({impact, id, nodes}) => nodes.map(({target}) => [impact, id, target.join(' ')]))));
"""
IMAGES = """
return [...document.images].filter((image) => (
  !image.complete || !image.naturalWidth || !image.alt.trim()
)).map((image) => image.alt || image.src.slice(0, 50));"""


@pytest.fixture(scope="module")
def browser():
    """Chromium, driven by selenium."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for option in QUIET.split():
        options.add_argument(option)
    options.binary_location = shutil.which("chromium")
    logs = {"browser": "ALL", "performance": "ALL"}
    options.set_capability("goog:loggingPrefs", logs)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options, service)
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


def show(browser, page, *, width=1100, scheme="light"):
    """Open a page in a window of so many pixels."""
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1}
    screen["mobile"] = width < 600
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
    browser.get(page.as_uri())


def logged(browser):
    """Warnings and errors on the console since the last call."""
    entries = browser.get_log("browser")
    return [one["message"] for one in entries if one["level"] != "INFO"]


def requested(browser):
    """The addresses outside the folder that were asked for since the last call."""
    entries = browser.get_log("performance")
    sent = [json.loads(entry["message"])["message"] for entry in entries]
    sent = [one for one in sent if one["method"] == "Network.requestWillBeSent"]
    urls = [one["params"]["request"]["url"] for one in sent]
    return [url for url in urls if not url.startswith(("data:", FOLDER.as_uri()))]


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


def test_there_is_a_site():
    assert {"index.html", "claims.html", "api.html"} < {page.name for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_whole_and_open_to_all(browser, page):
    for read in (logged, requested):
        read(browser)  # what pages before it left
    show(browser, page)
    assert logged(browser) == []
    assert requested(browser) == []
    assert browser.execute_script(IMAGES) == []
    assert [*dead_links(page)] == []
    axe = Path(os.environ["LSTM_KERNELS_AXE"]).read_text(encoding="utf-8")
    for width, scheme in (
        (390, "light"),
        (1400, "light"),
        (390, "dark"),
        (1400, "dark"),
    ):
        show(browser, page, width=width, scheme=scheme)
        browser.execute_script(axe)
        assert browser.execute_async_script(AUDIT) == []

"""The site in Chromium: every page loads whole, fits its window and can be read by all;
each check finds a page that was made to fail it.
"""

import os
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import bs4
import pytest
from browser import SITE, chromium, needs_site

pytestmark = needs_site
PAGES = sorted(Path(SITE or "").glob("*.html")) if SITE else []
AXE = os.environ.get("LSTM_KERNELS_AXE")  # the file axe.min.js
UNFOLD = "document.querySelectorAll('details').forEach((one) => { one.open = true; });"
AUDIT = """
const [report] = [...arguments].slice(-1);
axe.run(document, {resultTypes: ['violations']}).then(({violations}) => report(violations.flatMap(
  ({impact, id, nodes}) => nodes.map(({target}) => [impact, id, target.join(' ')]))));
"""
# Replaces the clipboard, presses every button and returns what was written.
COPY = """
const [report] = [...arguments].slice(-1);
const written = [];
navigator.clipboard.writeText = async (text) => { written.push(text); };
document.querySelectorAll('button.copy').forEach((button) => button.click());
setTimeout(() => report([written, document.querySelector('[role=status]').textContent]), 50);
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
    browser.requested()
    browser.open(page)
    return [url for url in browser.requested() if url != page.resolve().as_uri()]


def too_wide(browser, page):
    found = []
    a4 = 673, "print"  # pixels between the margins
    for width, media in ((390, "screen"), (768, "screen"), (1400, "screen"), a4):
        browser.open(page, width=width, media=media)
        browser.run(UNFOLD)
        # Not against innerWidth: on a phone that grows with what is too wide.
        needed = browser.run("return document.documentElement.scrollWidth")
        found += [f"{needed} pixels on a {media} of {width}"] if needed > width else []
    return found


def bad_formulas(browser, page):
    browser.open(page)
    return browser.run(f"""{UNFOLD}
      return [...document.querySelectorAll('math')].filter((formula) => {{
        const {{width, height}} = formula.getBoundingClientRect();
        return !width || !height || formula.querySelector('merror');
      }}).map((formula) => formula.textContent);""")


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
    """Links to what is not in the folder; links to the outside are left to the
    reader.
    """
    found = []
    for link in parsed(page).find_all("a", href=True):
        parts = urlsplit(link["href"])
        if parts.scheme or parts.netloc:
            continue
        target = page.parent / unquote(parts.path) if parts.path else page
        alive = (
            target.resolve().is_relative_to(page.parent.resolve()) and target.is_file()
        )
        if alive and parts.fragment:
            alive = parsed(target).find(id=unquote(parts.fragment)) is not None
        if not alive:
            found.append(link["href"])
    return found


def barriers(browser, page):
    """What axe-core calls serious or critical, in both modes, on a phone and on a wide
    window.
    """
    found = []
    for dark, width in ((False, 1400), (True, 1400), (False, 390)):
        browser.open(page, dark=dark, width=width)
        browser.run(UNFOLD)
        browser.run(Path(AXE).read_text(encoding="utf-8"))
        found += browser.driver.execute_async_script(AUDIT)
    return [one for one in found if one[0] in ("serious", "critical")]


CHECKS = [logged, requested, too_wide, bad_formulas, bad_images, dead_links, barriers]


def test_there_is_a_site():
    assert {"index.html"} < {page.name for page in PAGES}
    assert AXE, "LSTM_KERNELS_AXE: want the path of axe.min.js"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages(browser, page, check):
    assert check(browser, page) == []


# --- the checks themselves

DOT = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
SOUND = (
    '<p>Text, <a href="#end">a link</a> and <math><mi>x</mi></math></p>'
    f'<img src="{DOT}" alt="A dot"><details><summary>More</summary><p>Folded</p></details>'
    '<h2 id="end">End</h2>'
)
PLANTED = {
    "an error on the console": (logged, "<script>console.error('no')</script>"),
    "an exception": (logged, "<script>nothing.at.all</script>"),
    "a request": (requested, '<img src="https://example.invalid/x.png" alt="x">'),
    "a request of a script": (
        requested,
        "<script>fetch('http://localhost:9/x')</script>",
    ),
    "a box wider than a phone": (too_wide, '<div style="width: 500px">x</div>'),
    "a folded box wider than a phone": (
        too_wide,
        '<details><summary>x</summary><div style="width: 1500px">x</div></details>',
    ),
    "a box wider than paper": (
        too_wide,
        "<style>@media print { p { width: 800px } }</style>",
    ),
    "a formula in error": (bad_formulas, "<math><merror><mi>x</mi></merror></math>"),
    "an empty formula": (bad_formulas, "<math></math>"),
    "an image that does not load": (
        bad_images,
        '<img src="data:image/png;base64,AA" alt="x">',
    ),
    "an image without words": (bad_images, f'<img src="{DOT}" alt="">'),
    "a link to no file": (dead_links, '<a href="gone.html">x</a>'),
    "a link to no place": (dead_links, '<a href="#gone">x</a>'),
    "a link to no place elsewhere": (dead_links, '<a href="page.html#gone">x</a>'),
    "a link out of the folder": (dead_links, '<a href="../outside.html">x</a>'),
    "text that cannot be read": (
        barriers,
        '<p style="color: #ccc; background: #fff">Some words</p>',
    ),
    "text that cannot be read in the dark": (
        barriers,
        "<style>@media (prefers-color-scheme: dark) { p { color: #333; background: #222 }}</style>",
    ),
    "a control without a name": (barriers, '<input type="range">'),
    "a box that keyboards cannot scroll": (
        barriers,
        f'<div style="overflow: auto; width: 9em; white-space: nowrap">{"Words " * 30}</div>',
    ),
}


@pytest.fixture
def planted(tmp_path):
    """Writes a page that is sound but for `more`."""
    (tmp_path / "outside.html").write_text("x")
    (tmp_path / "site").mkdir()

    def page(more=""):
        path = tmp_path / "site" / "page.html"
        path.write_text(
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Page</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            "</head>"
            f"<body><main><h1>Page</h1>{SOUND}{more}</main></body></html>"
        )
        parsed.cache_clear()
        return path

    return page


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_sound_page_passes(browser, planted, check):
    assert check(browser, planted()) == []


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(browser, planted, fault):
    check, html = PLANTED[fault]
    assert len(check(browser, planted(html))) >= 1


# --- what scripts add


def of(page, selector):
    return parsed(page).select(selector)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if of(p, ".code")], ids=lambda p: p.stem
)
def test_buttons_copy_the_code(browser, page):
    browser.open(page)
    wanted = []
    for block in of(page, ".code"):
        text = block.pre.get_text()
        lines = text.split("\n")
        marked = [
            line[2:] if line[:2] in ("+ ", "  ") else line.lstrip("+ ")
            for line in lines
        ]
        wanted.append("\n".join(marked) if block.select(".diff") else text)
    written, said = browser.driver.execute_async_script(COPY)
    assert written == wanted
    assert said == "Copied"


def test_a_keyboard_copies(browser):
    browser.open(next(page for page in PAGES if of(page, ".code")))
    browser.run(
        "navigator.clipboard.writeText = async (text) => { window.written = text; };"
    )
    buttons = browser.driver.find_elements("css selector", "button.copy")
    button = next(one for one in buttons if one.is_displayed())
    button.send_keys("\ue007")  # enter
    assert browser.run("return window.written")


def test_what_is_not_copied_is_said(browser):
    browser.open(next(page for page in PAGES if of(page, ".code")))
    browser.run(
        "navigator.clipboard.writeText = async () => { throw new Error('no'); };"
    )
    browser.run("document.querySelector('button.copy').click()")
    assert (
        browser.run("return document.querySelector('[role=status]').textContent")
        == "Not copied"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_without_scripts_nothing_is_missing(browser, page):
    browser.open(page, scripts=False)
    assert not browser.driver.find_elements("css selector", "button, input, select")
    loaded = "return [...document.images].every((image) => image.complete && image.naturalWidth)"
    assert browser.run(loaded)
    for image in browser.driver.find_elements("css selector", "main .figure img"):
        assert image.is_displayed()


def test_only_boxes_that_scroll_stop_the_keyboard(browser):
    """On a phone some table is too wide; what is not is no stop."""
    stops = """return [...document.querySelectorAll('main .scroll')].map((box) => (
      [box.scrollWidth > box.clientWidth, box.tabIndex === 0, box.role, box.ariaLabel]))"""
    found = []
    for page in PAGES:
        browser.open(page, width=390)
        found += browser.run(stops)
    assert {wide for wide, *_ in found} == {False, True}
    for wide, stop, role, name in found:
        assert (wide, role) == (stop, "region" if wide else None)
        assert bool(name) == wide


def test_the_contents_mark_the_section_that_is_read(browser):
    page = next(page for page in PAGES if len(of(page, "main h2")) > 3)
    browser.open(page, width=1400)
    assert not browser.driver.find_elements("css selector", ".contents [aria-current]")
    heading = of(page, "main h2")[2]
    browser.run("document.getElementById(arguments[0]).scrollIntoView()", heading["id"])
    browser.run("dispatchEvent(new Event('scroll'))")
    [marked] = browser.driver.find_elements(
        "css selector", "nav:not(.above) [aria-current]"
    )
    assert unquote(urlsplit(marked.get_attribute("href")).fragment) == heading["id"]


@pytest.mark.parametrize("media", ["screen", "print"])
def test_paper_has_no_navigation_and_open_solutions(browser, media):
    page = next(page for page in PAGES if of(page, "main details:not(.fold)"))
    browser.open(page, media=media)
    shown = """return [...document.querySelectorAll(arguments[0])].some((element) => (
      element.checkVisibility({contentVisibilityAuto: true})))"""
    assert browser.run(shown, "nav, button") == (media == "screen")
    assert browser.run(shown, "main details:not(.fold) > p") == (media == "print")

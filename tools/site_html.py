"""The HTML of a page's text: checked, then made fit for keyboards, screen readers and
phones.
"""

import re
from collections import Counter, defaultdict

import bs4
from notebook_rules import ReportError

FOREIGN = ["script", "iframe", "object", "embed", "base", "form", "meta"]
FETCHING = ["img", "link", "source", "audio", "video", "image", "use", "input"]
NUMBER = re.compile(
    r"(?:[-+−±<>≤≥~]?\s*\d.*|[-–—]?|nan|inf)", re.DOTALL | re.IGNORECASE
)
LONG = 20  # characters of a formula in a line that may not fit a phone
NAME = 20  # characters of a row's name that stay on one line
HEADINGS = ["h1", "h2", "h3", "h4", "h5", "h6"]


def parsed(text: str) -> bs4.BeautifulSoup:
    return bs4.BeautifulSoup(text, "html.parser")


def check(name: str, page: str, scripts=()) -> None:
    """A page that would fetch anything, holds a script that is not of `scripts`, or
    shows an image without words, is an error.
    """
    soup = parsed(page)
    for tag in soup.find_all(FOREIGN):
        ours = tag.name == "meta" and tag.parent.name == "head"
        if not ours and not (
            tag.name == "script" and not tag.attrs and tag.string in scripts
        ):
            raise ReportError(f"{name}: <{tag.name}> is not allowed: {str(tag)[:80]}")
    for tag in soup.find_all(FETCHING):
        named = ("src", "href", "xlink:href", "srcset", "poster")
        for source in [tag[key] for key in named if tag.get(key)]:
            if not source.startswith(("data:", "#")):
                raise ReportError(
                    f"{name}: <{tag.name}> fetches {source!r}, want it in the page"
                )
        if tag.name == "img" and not tag.get("alt", "").strip():
            raise ReportError(f"{name}: image without alt text")
    for tag in soup.find_all(True):
        links = (str(tag.get(key, "")) for key in ("href", "xlink:href"))
        # Browsers leave blanks and control characters out of a scheme.
        links = (re.sub(r"[\x00-\x20]", "", link).lower() for link in links)
        if any(key.startswith("on") for key in tag.attrs) or any(
            link.startswith("javascript:") for link in links
        ):
            raise ReportError(f"{name}: <{tag.name}> runs a script: {str(tag)[:80]}")
    styles = [tag.text for tag in soup("style")] + [
        tag["style"] for tag in soup(style=True)
    ]
    if re.search(r"@import|url\(\s*['\"]?(?!data:|#|\s|['\"])", " ".join(styles)):
        raise ReportError(f"{name}: a style fetches a file, want it in the page")


def tidy(name: str, body: str) -> bs4.BeautifulSoup:
    """The text of a page with what keyboards, screen readers and narrow windows need;
    ReportError for headings that are not in order.
    """
    soup = parsed(body)
    _headings(name, soup)
    for style in soup.select("style[scoped]"):  # pandas brings one with every table
        style.decompose()
    for table in soup("table"):
        _table(soup, table)
    for block in soup.select("div.highlight, pre"):
        if not block.find_parent(class_="code") and not block.find_parent(
            class_="output_text"
        ):
            block.wrap(soup.new_tag("div", attrs={"class": "code"}))
    _scroll(soup("table"), "Table", soup)
    for formula in soup("math"):
        if len(formula.get_text()) > LONG and not formula.find_parent(class_="formula"):
            formula.wrap(soup.new_tag("span", attrs={"class": "long"}))
    _scroll(soup.select(".formula, .long"), "Formula")
    _scroll(soup("pre"), "Code")
    return soup


def _headings(name: str, soup) -> None:
    """One h1, no level left out, and an id of its own for each."""
    before, seen = 0, Counter()
    for heading in soup(HEADINGS):
        level, anchor = int(heading.name[1]), heading.find(class_="anchor-link")
        if level > before + 1 or (level == 1 and before):
            text = heading.get_text().removesuffix("#")
            want = (
                "one title alone" if level == 1 else f"at most level {before + 1} here"
            )
            raise ReportError(
                f"{name}: heading {text!r} is of level {level}, want {want}"
            )
        before = level
        if anchor is None:
            continue
        seen[heading["id"]] += 1
        if seen[heading["id"]] > 1:
            heading["id"] = f"{heading['id']}-{seen[heading['id']]}"
        # The heading is read out without its mark, and contents lists it for keyboards.
        anchor.attrs |= {
            "href": f"#{heading['id']}",
            "aria-hidden": "true",
            "tabindex": "-1",
        }


def _table(soup, table) -> None:
    """Scopes for headers, no empty header, one row of headers, and words to the
    left.
    """
    for tag in [table, *table(["tr", "th", "td"])]:
        for key in ("border", "valign", "halign"):
            del tag[key]
    if "dataframe" in table.get("class", ()):
        del table["class"]
        _merge_headers(table)
        _align(table)
    for cell in table("th"):
        if not cell.get_text(strip=True):
            cell.name = "td"
        elif cell.find_parent("thead"):
            cell["scope"] = "colgroup" if int(cell.get("colspan", 1)) > 1 else "col"
        else:
            cell["scope"] = "rowgroup" if int(cell.get("rowspan", 1)) > 1 else "row"
            if len(cell.get_text()) <= NAME:
                cell["class"] = "name"


def _merge_headers(table) -> None:
    """pandas puts the names of the index below those of the columns: both go into one
    row.
    """
    rows = [row(["th", "td"]) for row in table.select("thead tr")]
    for row in table.select("thead tr"):
        del row["style"]
    if len(rows) < 2 or len(rows[-1]) != len(rows[-2]):
        return
    pairs = list(zip(*rows[-2:], strict=True))
    if all(not a.get_text(strip=True) or not b.get_text(strip=True) for a, b in pairs):
        for above, below in pairs:
            if below.get_text(strip=True):
                above.replace_with(below.extract())
        table.select("thead tr")[-1].decompose()


def _align(table) -> None:
    """Class `words` for the cells of columns that hold any; counted from the right,
    where no cell spans rows.
    """
    columns = defaultdict(list)
    for row in table.select("tbody tr"):
        for place, cell in enumerate(reversed(row("td"))):
            columns[place].append(cell)
    heads = table.select("thead tr")[-1:]
    for place, cell in enumerate(reversed(heads[0](["th", "td"]) if heads else [])):
        columns[place].append(cell)
    for cells in columns.values():
        values = [cell for cell in cells if not cell.find_parent("thead")]
        # Without values: the name of an index, above words.
        if not values or not all(
            NUMBER.fullmatch(cell.get_text(strip=True)) for cell in values
        ):
            for cell in cells:
                cell["class"] = "words"


def _scroll(tags, kind: str, soup=None) -> None:
    """Boxes that may scroll: keyboards reach them, and they have names. `soup`: make
    the boxes.
    """
    for number, tag in enumerate(tags, start=1):
        box = tag.wrap(soup.new_tag("div")) if soup else tag
        box["class"] = [*box.get("class", ()), "scroll"]
        box.attrs |= {
            "tabindex": "0",
            "role": "region",
            "aria-label": f"{kind} {number}",
        }


def contents(soup) -> list[tuple[str, str, list]]:
    """The sections of a page: the id and the heading of each, and those below it."""
    found = []
    for heading in soup(["h2", "h3"], id=True):
        copy = parsed(heading.decode_contents())
        for anchor in copy.select(".anchor-link"):
            anchor.decompose()
        below = found[-1][2] if heading.name == "h3" else found
        below.append((heading["id"], copy.decode(), []))
    return found


def references(soup) -> list[str]:
    """The entries of the section `References`, as HTML."""
    heading = soup.find("h2", id="References")
    found = []
    for tag in heading.find_next_siblings() if heading else ():
        if tag.name == "h2":
            break
        found += [item.decode_contents().strip() for item in tag("li")]
    return found


def bibliography(pages) -> list[tuple[str, list]]:
    """Every reference of `pages` once, by author, with the pages that cite it.

    Two entries are one work when their titles, in italics, and first years are the
    same; what a page says of a work after the last year stays on that page.
    """
    cited = {}
    for page in pages:
        for entry in page.references:
            text, title = parsed(entry).get_text(), parsed(entry).find("em")
            year = re.search(r"\b(?:19|20)\d\d\b", text)
            letters = re.sub(
                r"\W", "", (title.get_text() if title else text).casefold()
            )
            shown = re.sub(r"(\b(?:19|20)\d\d): .+$", r"\1.", entry, flags=re.DOTALL)
            _, citing = cited.setdefault((letters, year and year[0]), (shown, []))
            if page not in citing:
                citing.append(page)
    surname = re.compile(r"^(?:\w\.[\s-]*)+")
    return sorted(
        cited.values(),
        key=lambda work: surname.sub("", parsed(work[0]).get_text()).casefold(),
    )

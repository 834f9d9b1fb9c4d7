"""The site, from a small notebook of a stranger and from its documents."""

import re
import warnings
from base64 import b64decode, b64encode
from hashlib import sha256
from pathlib import Path

import bs4
import notebook_rules as rules
import pandas as pd
import pytest
import website
from made import PNG, claim, code, drawn, parameters, save, text
from nbformat.v4 import new_output

from lstm_report import machines
from lstm_report.measure import results

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
FRONT = README.partition("\n## Use it")[0]
STORED = re.compile(r"\S+ \(\S+ to \S+\) as fast as plain loops")
HOSTILE = """<img src=x onerror="f()"> & "a" 'b' <script>g()</script>"""
RAW = "```{raw} html\n<img src=x onerror=f()>\n```"
LINK = "[click](javascript:h())"
# Each would act if it were markup; the word beside it can be read.
WAYS = [
    """```{eval-rst}
.. role:: html(raw)
   :format: html

:html:`<b onclick="f()">inset</b>`
```""",
    '{raw}`<b onclick="f()">role</b>`',
    "```{button-link} javascript:f()\nbutton\n```",
    "```{card}\n:link: javascript:f()\n\ncard\n```",
    "```{only} html\n<b onclick=f()>only</b>\n```",
    "```{automodule} antigravity\n```\nmodule",
    f"```{{literalinclude}} {__file__}\n```\nliteral",
    f"```{{include}} {__file__}\n```\nincluded",
    "````````{figure} figures/01-x.png\n:target: javascript:f()\n:alt: target\n````````",
    "![picture](../../../../../../../../etc/hostname)",
    "[download][there]\n\n[there]: path:../../../../../../../../etc/hostname",
    r"$\href{javascript:f()}{linked}$ $\style{position: fixed}{styled}$",
    r"$\text{<script>f()</script>inside}$",
    r"$$\text{<img/src/onerror=f()>shown}$$",
    "% comment",
]
WORDS = "inset role button card only module literal included target etc/hostname "
WORDS += "download inside shown comment"
FRAME = pd.DataFrame({"ms": [1.5], "what": [HOSTILE]}, index=["a"])
TABLE = f"<style>p {{}}</style>{FRAME.to_html()}<!-- --!><img src=x onerror=f()> -->"
TABLE += "<svg><a xlink:href='java&#9;script:h()'>t</a></svg><script>g()</script>"
ALT = """"a": #b 'c' \\d"""
FOLD = "<details><summary>Solution</summary>\n\n*folded* $x^2$\n\n</details>\n\nafter"
MATHS = "$S'_k$ and Figure 1.1\n\n$$\\begin{aligned} a &= b \\\\ c &= d\\end{aligned}$$"
# Each is nothing; what stands in code or never ends is text.
COMMENTS = """<!-- unseen -->

one <!-- unseen
twice --> two <? unseen ?> three <!DOCTYPE unseen> four

<!-- unseen

- unseen -->

| <!-- unseen --> five |
| --- |
| <!--> six |

- <![CDATA[ unseen ]]> seven

`<!-- code -->`

```
<!-- fence -->
```

<!-- endless"""
COUNTED = "two_three_four_five_six_seven_<!-- code -->_<!-- fence -->_endless"
BAD = "<img src=x onerror=f()> | [a](javascript:f()) `b` </table> *c*\n\n# d"


def recorded(**said):
    """Records of machines that say something of themselves."""
    record = results.record
    return lambda *of: record(*of) | said


def quiet():
    """Without what Sphinx says of extensions."""
    return warnings.catch_warnings(action="ignore")


def picture(name, alt, **how):
    output = drawn(name)
    output.metadata["image/png"]["alt"] = alt
    output.metadata["lstm_kernels"] |= how
    return output


def output(**data):
    return new_output("display_data", data={f"text/{k}": v for k, v in data.items()})


# What page 00 measured in this run.
MEASURED = code("nb.show()", drawn("00-ladder"), output(markdown="It."))
MEASURED.outputs[1].metadata["lstm_kernels"] = {
    "numbers": {"over plain loops": "765x (760x to 770x)", "over NumPy": "4.32x"}
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Name -> page of a site whose texts a stranger wrote."""
    folder, patch = tmp_path_factory.mktemp("site"), pytest.MonkeyPatch()
    said = dict.fromkeys(("cpu", "commit", "date", "disturbance"), f"{HOSTILE} {LINK}")
    patch.setattr(results, "record", recorded(**said))
    told = claim(f"{HOSTILE} {LINK}", "Did not hold", why=HOSTILE, recorded=HOSTILE)
    cited = "*Long short-term memory*, and [one](02_b.ipynb), [other](03_no.ipynb)"
    written = f"{HOSTILE}\n\n{LINK}\n\n{RAW}\n\n{cited}\n\n{FOLD}\n\n{MATHS}"
    number = output(markdown="**Figure 1.1.** It.")
    shown = picture("01-x", HOSTILE), number
    shown += (picture("01-y", ALT, interactive="schedules"),)
    cells = [
        text(f"# {HOSTILE}\n\n**One & {HOSTILE}.**"),
        parameters(),
        code("import math"),
        code("# @title Measure\ndef f():\n    pass", tags=["hide-input"]),
        text(f"## Section\n\n{written}"),
        code("f()", *shown, output(html=TABLE)),
        text("\n\n".join(WAYS)),
        code("nb.claim()", told),
        text(COMMENTS),
    ]
    said = output(markdown="\n\n".join([*WAYS, COMMENTS]))
    said.data["application/javascript"] = "f()"
    second = text("# Second\n\n**Two.**"), code("nb.say()", said)
    built = [save(folder / "00_overview.ipynb", text("# First"), MEASURED)]
    built += [save(folder / "01_a.ipynb", *cells), save(folder / "02_b.ipynb", *second)]
    with quiet():
        website.make(built, folder / "site")
    patch.undo()
    pages = [*(folder / "site").glob("*.html"), *(folder / "site" / "data").glob("*")]
    return {
        path.stem: bs4.BeautifulSoup(path.read_text(), "html.parser") for path in pages
    }


def test_texts_of_strangers_are_texts(site):
    """In a title, a paragraph, an alternative text, a claim, a table, a record."""
    for name in ("index", "01_a", "02_b", "claims", "results"):
        main = site[name].find("main")
        for tag in main.find_all(True):
            assert not [key for key in tag.attrs if key.startswith("on")], tag
            addresses = str([tag.get("href"), tag.get("src"), tag.get("style")])
            assert not re.search("script:|hostname|fixed", addresses), tag
            acts = tag.name in ("script", "iframe", "svg")
            assert not (acts and tag.find_parent("table"))
        assert not main.find("img", src="x")
        assert not main.find("script", string=re.compile(r"[fg]\(\)"))
        assert "onerror=" in main.get_text(), name
    page = site["01_a"]
    shown = [image["alt"] for image in page.select("main figure img")]
    assert shown == [HOSTILE, ALT, "target"]
    assert "onerror" in page.title.get_text()
    assert HOSTILE.split()[0] in page.find("h1").get_text()
    assert HOSTILE in page.select_one("table td:last-child").get_text()
    for name in ("01_a", "02_b"):
        shown = str(site[name].find("main"))
        assert [word for word in WORDS.split() if word not in shown] == []
        assert "def test_texts_of_strangers" not in shown


def test_comments_are_nothing(site):
    for name, page in site.items():
        assert "unseen" not in str(page), name
        assert "<!--" not in page.get_text() or name in ("01_a", "02_b")
    for name in ("01_a", "02_b"):
        shown = " ".join(site[name].find("article").get_text().split())
        places = [shown.rfind(word) for word in COUNTED.split("_")]
        assert min(places) > -1, shown[-400:]
        assert places == sorted(places)


def test_a_page_runs_only_the_scripts_of_the_site(site):
    for name, page in site.items():
        policy = page.select_one("head > meta[http-equiv]")
        assert policy.find_all_previous(["script", "link", "style"]) == [], name
        parts = dict(one.split(None, 1) for one in policy["content"].split("; "))
        assert parts["default-src"] == "'none'"
        scripts = page.find_all("script", src=False)
        assert not page.select("article script:not([src])"), name
        inline = [one.get_text() for one in scripts]
        hashes = [b64encode(sha256(one.encode()).digest()).decode() for one in inline]
        wanted = ["'self'", *(f"'sha256-{one}'" for one in hashes)]
        assert parts["script-src"].split() == wanted


def test_a_script_that_got_into_an_article_is_not_admitted():
    page = "<head></head><script>f()</script><article><script>g()</script></article>"
    policy = website.guarded(f"{page}<script>h()</script>")  # a text can end an article
    for script, admitted in (("f()", True), ("g()", False), ("h()", False)):
        digest = b64encode(sha256(script.encode()).digest()).decode()
        assert (digest in policy) == admitted


def test_results_of_strangers_are_words_in_readme(monkeypatch):
    said = dict.fromkeys(("cpu", "commit", "date", "disturbance"), BAD)
    monkeypatch.setattr(results, "record", recorded(**said))
    lines = machines.newest().splitlines()
    assert {line.count("|") for line in lines if line.startswith("|")} == {6}
    assert not re.search(r"[<>*`]|\]\(|^#", "\n".join(lines), re.MULTILINE)


def test_a_page_has_links_and_folds(site):
    page = site["01_a"]
    assert page.find("a", href="02_b.html", string="one")
    assert not page.find("a", string="other")  # a page that is not there
    assert page.select_one("a[href^='https://doi.org/'] em")
    assert page.select_one("figure.schedules img")
    folded = [one.get_text() for one in page.select("details")]
    within = "PRESET", "def", "folded"
    assert all(words in fold for words, fold in zip(within, folded, strict=True))
    assert "after" not in folded[2]
    bars = [" ".join(one.get_text().split()) for one in page.select("summary")]
    assert bars[0].startswith("Code: the size of the run")
    assert bars[1].startswith("Code: Measure")
    assert len(page.select("a.download")) == 2


def test_every_claim_is_listed_with_its_verdict_and_a_link(site):
    [entry] = site["claims"].select("main article .claim")
    assert {"claim", "failed"} < {*entry["class"]}
    assert entry.get_text().strip().startswith("Did not hold in this run. <img")
    place = entry.find("a", string="On its page")["href"].partition("#")[2]
    [box] = site["01_a"].select(".claim.failed")
    assert "Did not hold" in box.get_text()
    assert site["01_a"].find(id=place) is not None
    assert "Claims: 1 did not." in site["index"].get_text()


def test_a_figure_that_a_text_names_is_a_link_to_it(site):
    link = site["01_a"].find("a", string="Figure 1.1")
    place = site["01_a"].find(id=link["href"].removeprefix("#"))
    assert place.find("img") or place.find_next("img")["alt"] == HOSTILE


def test_formulas_say_how_they_are_aligned_and_where_a_prime_is(site):
    article = site["01_a"].find("article")
    cells = [cell["columnalign"] for cell in article.select("div.math mtd")]
    assert cells == ["right", "left"] * 2
    assert [one.get_text() for one in article.select("mi.prime")] == ["\N{PRIME}"]


def test_the_pages_before_and_after_have_their_numbers(site):
    shown = site["01_a"].select_one(".right-next .prev-next-title").get_text()
    assert shown == "02 Second"


def test_the_front_page_says_what_readme_says_of_the_report(site):
    page = site["index"]
    assert page.find("h1").get_text().startswith("Parallel LSTMs")
    told = page.find("article").get_text()
    for heading in re.findall(r"^## (.+)$", FRONT, re.MULTILINE):
        assert heading in told
    assert "Use it" not in told
    assert page.select_one("main img")["src"].endswith("00-ladder.png")
    told = website.front(f"![x](figures/no.png)anywhere\n{README}", None)
    assert "anywhere" in told
    assert "no.png" not in told


def test_the_front_page_has_figure_and_sentence_of_one_run(site, tmp_path_factory):
    told = " ".join(site["index"].find("article").get_text().split())
    assert "765x (760x to 770x) as fast as plain loops and 4.32x as fast" in told
    (figure,) = tmp_path_factory.getbasetemp().glob("site0/site/_images/*ladder.png")
    assert figure.read_bytes() == b64decode(PNG)
    assert STORED.search(README)[0] not in told
    assert "of the stored run" not in told
    told = website.front(README, None)
    assert STORED.search(told)
    assert "Figure and sentence are those of the stored run." in told


def test_results_define_their_workloads_and_name_machines_in_words(site):
    page = site["results"]
    known = {row.td.get_text() for row in page.find("table").select("tbody tr")}
    for table in page.select("table"):
        assert {row.td.get_text() for row in table.select("tbody tr")} <= known
    folders = {*results.read("grid")["machine"], *results.read("peers")["machine"]}
    headings = "".join(one.get_text() for one in page.select("h2"))
    assert not [name for name in folders if name in headings]


def test_the_machine_is_the_one_that_executed():
    told = "- Machine: Some CPU, 2 cores\n- Vectors: avx\n- Preset: paper, 2026-01-02"
    output = new_output("display_data", data={"text/markdown": told})
    book = rules.nbformat.v4.new_notebook(cells=[code("nb.environment()", output)])
    assert rules.environment(book) == "Some CPU, 2 cores; paper, 2026-01-02"


def test_every_work_that_a_page_names_is_in_the_bibliography():
    known = {title.casefold() for title, _ in website.works()}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        texts = [c.source for c in rules.read(path).cells if c.cell_type == "markdown"]
        _, _, after = "\n\n".join(texts).partition("## References\n")
        listed = re.findall(r"^(?:-|\d+\.) .+$", after.partition("\n## ")[0], re.M)
        for entry in listed:
            title = re.search(r"\*(.+?)\*", entry)[1].casefold()
            source = re.search("project|MXNet", entry)  # one of the five
            assert title in known or source, f"{path.stem}: want it in references.bib"

"""What Sphinx makes the site of: from small notebooks and the documents."""

import re
from base64 import b64decode
from pathlib import Path

import notebook_rules as rules
import pytest
import standalone
import website
import yaml
from made import PNG, TITLE, claim, code, drawn, markdown, parameters, save
from pybtex.database import parse_file

from lstm_report import machines
from lstm_report.measure import results

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
NUMBERS = {"over plain loops": "765x (760x to 770x)", "over NumPy": "4.32x"}
MACHINE = "- Machine: Some CPU, 2 cores\n- Vectors: avx\n- Preset: paper, 2026-01-02"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The folder that `website.make` writes of two executed notebooks."""
    folder = tmp_path_factory.mktemp("site")
    measured = drawn("00-ladder"), markdown("It.", numbers=NUMBERS)
    said = code("f()", claim("A."), drawn("00-x", 'it\'s: a "b" # \\d\nc'))
    first = TITLE, parameters(), code("nb.show()", *measured), said
    second = code("f()", claim("B."), claim("C.", "Did not hold"), markdown(MACHINE))
    save(folder / "build" / "00_overview.ipynb", *first)
    save(folder / "build" / "01_a.ipynb", TITLE, parameters(), second)
    website.make(folder / "build", folder / "source")
    return folder / "source"


def shown(source, page):
    """The Markdown of a page's outputs."""
    book = rules.read(source / "notebooks" / f"{page}.ipynb")
    return [output.data["text/markdown"] for _, output, _ in rules.outputs(book)]


def test_every_claim_is_in_a_box_of_its_verdict_and_on_the_list_with_a_link(source):
    listed = (source / "claims.md").read_text()
    assert "Claims: 2 held, 1 did not." in listed
    boxes = re.findall(
        r"\{container\} claim (\w+)\n\*\*.*? (\w)\. \[.*\]\(#(.+)\)", listed
    )
    assert boxes == [
        ("held", "A", "claim-00_overview-1"),
        ("held", "B", "claim-01_a-1"),
        ("failed", "C", "claim-01_a-2"),
    ]
    for kind, name, place in boxes:
        page = place.split("-")[1]
        (box,) = [text for text in shown(source, page) if f"({place})=" in text]
        assert f"{{container}} claim {kind}\n" in box
        assert f" {name}." in box


def test_a_figure_has_its_picture_and_its_text(source):
    (text,) = [text for text in shown(source, "00_overview") if "00-x" in text]
    fence, *lines, _ = text.splitlines()
    assert (source / fence.split()[-1].lstrip("/")).read_bytes() == b64decode(PNG)
    options = yaml.safe_load("\n".join(line.removeprefix(":") for line in lines))
    assert options == {"alt": 'it\'s: a "b" # \\d\nc'}


def test_the_first_page_is_readmes_with_figure_and_numbers_of_this_run(source):
    text = (source / "index.md").read_text()
    assert "765x (760x to 770x) as fast as plain loops and 4.32x as fast" in text
    assert (source / "figures" / "00-ladder.png").read_bytes() == b64decode(PNG)
    assert website.STORED not in text
    headings = re.findall(r"^## (.+)$", README, re.MULTILINE)
    ours = headings[: headings.index("Use it")]
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [*ours, "Pages"]
    assert "- [01 Title](notebooks/01_a.ipynb)\n\n  The claim, with $x^2$." in text
    assert "- Some CPU, 2 cores; paper, 2026-01-02: 1 of the pages" in text
    stored = website.front(README, None)
    assert website.STORED in stored
    assert re.search(r"trains it \S+ ", README)[0] in stored


def test_a_link_leads_to_a_page_or_is_text_and_a_page_can_be_taken_along(source):
    text = (source / "index.md").read_text()
    assert "[page 0](notebooks/00_overview.ipynb)" in text
    assert "[03]" not in text
    page = rules.read(source / "notebooks" / "01_a.ipynb").cells[0].source
    places = re.findall(r"\]\(path:\.\./(\w+)/01_a\.ipynb\)", page)
    assert places == ["executed", "anywhere"]
    bare = rules.read(source / "anywhere" / "01_a.ipynb")
    assert rules.claims(rules.read(source / "executed" / "01_a.ipynb"))
    assert not rules.claims(bare)


def test_the_first_page_leads_to_the_class_and_to_colab_where_that_has_an_address(
    source,
):
    text = (source / "index.md").read_text()
    for name in ("lesson.ipynb", "gpu.ipynb"):
        assert f"[{name}](path:colab/{name})" in text
        assert (source / "colab" / name).read_bytes() == (
            ROOT / "colab" / name
        ).read_bytes()
    assert "[teacher's page](notebooks/teacher.md)" in text
    assert "Open in Colab" not in text
    teacher = (source / "notebooks" / "teacher.md").read_text()
    assert "](path:../colab/lesson.ipynb)" in teacher
    linked = website.index({}, [], "https://here.example/colab")
    for name in standalone.COLAB:
        name = Path(name).name
        assert f"[{name}](https://here.example/colab/{name})" in linked


def test_results_define_their_workloads_and_name_machines_in_words():
    tables = machines.page().split("\n\n")
    names = [re.findall(r"^\| ([^|]+?) \|", one, re.MULTILINE)[2:] for one in tables]
    known, *others = filter(None, names)
    assert others
    assert {name for table in others for name in table} <= {*known}
    folders = {*results.read("grid")["machine"], *results.read("peers")["machine"]}
    headings = re.findall(r"^## .+", machines.page(), re.MULTILINE)
    assert not [name for name in folders if name in "".join(headings)]


def test_every_work_that_a_page_names_is_in_the_bibliography():
    works = parse_file(ROOT / "notebooks" / "references.bib").entries.values()
    titles = [re.sub(r"[{}]", "", work.fields["title"]) for work in works]
    known = {title.replace("--", "–").casefold() for title in titles}
    for path in rules.notebooks(ROOT / "notebooks"):
        texts = [c.source for c in rules.read(path).cells if c.cell_type == "markdown"]
        _, _, after = "\n\n".join(texts).partition("## References\n")
        listed = re.findall(r"^(?:-|\d+\.) .+$", after.partition("\n## ")[0], re.M)
        for entry in listed:
            title = re.search(r"\*(.+?)\*", entry)[1].casefold()
            project = re.search("project|MXNet", entry)  # one of the five
            assert title in known or project, f"{path.stem}: want it in references.bib"

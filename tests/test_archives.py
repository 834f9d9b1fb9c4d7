"""Archives of a GPU's results: what is taken over, and what is refused."""

import datetime
import hashlib
import io
import json
import math
import os
import re
import shutil
import zipfile
from itertools import product

import pandas as pd
import pytest
from conftest import HOSTILE
from filed import filed, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st

from lstm_report import archives, cards
from lstm_report.measure import results
from lstm_report.pages import page_04

CARD = {"name": "Card", "driver": "1.2"}
TABLE, RECORD, CHECKS = FILES = archives.FILES
posix = pytest.mark.skipif(os.name == "nt", reason="POSIX files and signals")


@pytest.fixture
def place(tmp_path):
    """A machine's folder with results of a GPU."""
    sizes = {"L": 1, "T": 12, "B": 16, "D": 1, "H": 32, "N": 16, "process": 0}
    rows = rows_of(1.0, 2.0).assign(variant="airline", **sizes)
    path = filed(tmp_path, rows, "gpu", gpu=CARD)
    (path.parent / CHECKS).write_text('{"probe": "right", "dirty": null}')
    return path.parent


def content_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def zipped(path, place, **changed):
    """An archive of a folder's files: "record" holds other values by name, "table" is a
    function of the rows or their bytes, which the record is made to tell of.
    """
    files = content_of(place)
    table = changed.pop("table", None)
    if callable(table):
        rows = table(pd.read_csv(io.BytesIO(files[TABLE])))
        table = rows.to_csv(index=False).encode()
    files[TABLE] = table or files[TABLE]
    about = {"sha256": hashlib.sha256(files[TABLE]).hexdigest()}
    about |= changed.pop("record", {})
    files[RECORD] = json.dumps(json.loads(files[RECORD]) | about).encode()
    return written(path, {f"{place.name}/{name}": files[name] for name in FILES})


def written(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_results_come_over_as_they_are(place, tmp_path):
    path = archives.pack(place, tmp_path / "a.zip")
    where, what = archives.take(path, tmp_path / "there")
    assert what == "Card, 1 parts, 2 rows"
    assert where == tmp_path / "there" / place.name
    assert content_of(where) == content_of(place)
    assert results.record("gpu", where.name, where.parent)["gpu"] == CARD
    archives.take(path, tmp_path / "there")  # the same once more
    assert "Packed: " in archives.packed(place, tmp_path / "b.zip")
    nothing = "There is no archive: nothing was measured."
    assert archives.packed(tmp_path / "none", tmp_path / "c.zip") == nothing
    # Beside rows of an earlier run
    (place / CHECKS).write_text('{"rows": 0}')
    assert archives.packed(place, tmp_path / "c.zip") == nothing
    assert not (tmp_path / "c.zip").exists()


# What a field of a table may hold, a record, an archive's list of names
FIELDS = ["", "-1", "0", "0.5", "1e300", "inf", "True", "fast", "=1+1", "numpy_", "x,x"]
FIELDS += ["<img src=x>", "[a](b)", "a  b", "a" * 200, "\u0443", "a\rb", "\0", '"']
VALUES = ["x", "a\x1b[31m", "a" * 9999, "tomorrow", "2999-01-01", "20260101", "<b>`a`"]
VALUES += [10**40, math.nan, 3, None, [], [{}], {}, {"L1d": 5}]
NO_RECORDS = [b"{", b"[" * 100_000, b"[]", b'{"cpu":' + b"[" * 900 + b"]" * 900 + b"}"]
NAMES = ["../../x", "/x", "x", "m/gpu.csv", TABLE, "../there/x", None]


def mutants(files):
    """Files by name, in each of which one thing is other than `pack` writes it."""
    table, record, checks = files
    about = json.loads(files[record])
    for key, value in product([*about, "another"], VALUES):
        yield files | {record: json.dumps(about | {key: value}).encode()}
    for name, content in product((record, checks), NO_RECORDS):
        yield files | {name: content}
    for name, other in product(files, NAMES):
        rest = {n: content for n, content in files.items() if n != name}
        yield rest | ({other: files[name]} if other else {})
    lines = [line.split(",") for line in files[table].decode().splitlines()]
    for line, column, field in product((0, 1), range(len(lines[0])), FIELDS):
        changed = [*map(list, lines)]
        changed[line][column] = field
        content = "".join(f"{','.join(each)}\n" for each in changed).encode()
        of_it = about | {"sha256": hashlib.sha256(content).hexdigest()}
        yield files | {table: content, record: json.dumps(of_it).encode()}


def check_sound(where):
    """What is there is as `pack` writes it, and pages can show it."""
    record, table = json.loads((where / RECORD).read_bytes()), where / TABLE
    assert (record["name"], record["preset"]) == (where.name, "paper")
    assert record["sha256"] == hashlib.sha256(table.read_bytes()).hexdigest()
    day = datetime.date.fromisoformat(record["date"])
    assert day.isoformat() == record["date"]
    assert day <= datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(1)
    rows = pd.read_csv(table, index_col=False)
    assert list(rows) == results.COLUMNS
    assert len({line.count(",") for line in table.read_text().splitlines()}) == 1
    assert set(rows["experiment"]) == {"gpu"}
    assert rows["seconds"].between(1e-9, 1e6).all()
    for name in ("version", "variant", "stage"):
        assert rows[name].map(lambda text: re.fullmatch(r"[\w .,/-]{1,61}", text)).all()
    for name in ("L", "T", "B", "D", "H", "repeat", "process"):
        assert (rows[name] % 1 == 0).all()
        assert rows[name].between(name in "LTBDH", 1e9).all()
    shown = results.caption(results.record("gpu", where.name, where.parent))
    shown += cards.told(where.parent, recorded=True)
    assert shown.isprintable()
    assert not {*"<>`[]"} & {*shown}  # which Markdown would read
    rows = results.read("gpu", where.parent)
    for show in page_04.small, page_04.large, page_04.power:
        show(rows)


def test_what_pack_has_not_made_is_refused_or_as_good(place, tmp_path):
    files = {f"{place.name}/{name}": content_of(place)[name] for name in FILES}
    path, there, refused = tmp_path / "a.zip", tmp_path / "there", []

    def take():
        try:
            where, _ = archives.take(path, there)
        except ValueError as error:
            refused.append(str(error))
        else:
            check_sound(where)
            assert sorted(content_of(where)) == sorted(FILES)
            shutil.rmtree(there)
        assert {p.name for p in tmp_path.iterdir()} == {path.name, place.name}

    for changed in mutants(files):
        written(path, changed)
        take()
    content = written(path, files).read_bytes()

    @settings(max_examples=5000 if HOSTILE else 100)
    @given(at=st.integers(0, len(content) - 1), byte=st.binary(), cut=st.booleans())
    def damaged(at, byte, cut):
        path.write_bytes(content[:at] + byte + content[at + len(byte) :] * (not cut))
        take()

    damaged()
    assert len(refused) > 500
    for said in refused:
        assert re.match("(?s)archive: .*got .*, want ", said)
        assert len(said) < 1000


@posix
def test_what_is_no_archive_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    held = os.open(tmp_path / "fifo", os.O_RDWR)  # who opens it does not wait
    for path in (tmp_path / "fifo", tmp_path, os.devnull):
        with pytest.raises(ValueError, match=r"^archive: got .* path of a regular f"):
            archives.take(path, tmp_path)
    os.close(held)
    with pytest.raises(FileNotFoundError):
        archives.take(tmp_path / "none.zip", tmp_path)
    large, bomb = tmp_path / "large.zip", tmp_path / "bomb.zip"
    with open(large, "wb") as file:
        file.truncate(13 << 20)
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in FILES:
            archive.writestr(f"m/{name}", b"0" * (5 << 20))
    for path, said in ((large, "got 13631488 bytes"), (bomb, "more than 4194304 byt")):
        with pytest.raises(ValueError, match=rf"^archive: .*{said}"):
            archives.take(path, tmp_path)


def half(rows):
    return rows.assign(seconds=rows["seconds"] / 2)


def twice(rows):
    return pd.concat([rows, rows.assign(variant="other")])


ANOTHER = "of another machine"
# What is there, changed; whether `replace` allows to take over what is refused.
THERE = [
    ({"record": {"cpu": "another"}}, f"cpu {ANOTHER}", False),
    ({"record": {"cores": 99}}, f"cores {ANOTHER}", False),
    ({"record": {"gpu": CARD | {"name": "B"}}}, f"gpu {ANOTHER}", False),
    ({"record": {"date": "2999-01-01"}}, "want those of 2999-01-01 or later", False),
    ({"table": half}, r"got other rows of .* or --replace", True),
    ({"table": twice}, r"got no rows of other, want what .* --replace", True),
    ({"record": {"gpu": CARD | {"driver": "9"}}}, "", True),  # the same machine
]


@pytest.mark.parametrize(("changed", "said", "allowed"), THERE)
@pytest.mark.parametrize("replace", [False, True])
def test_only_what_is_meant_to_be_is_replaced(
    place, tmp_path, changed, said, allowed, replace
):
    path = archives.pack(place, tmp_path / "a.zip")
    where, _ = archives.take(path, tmp_path / "there")
    with zipfile.ZipFile(zipped(tmp_path / "b.zip", place, **changed)) as archive:
        archive.extractall(where.parent)
    before = content_of(where)
    if not said or (replace and allowed):
        archives.take(path, where.parent, replace=replace)
        assert content_of(where) == content_of(place)
        return
    with pytest.raises(ValueError, match=said):
        archives.take(path, where.parent, replace=replace)
    assert content_of(where) == before


@pytest.mark.parametrize("about", [{"cores": 99}, None])
def test_results_of_a_cpu_are_a_machines_too(place, tmp_path, about):
    """Of another one, and without a record."""
    path = archives.pack(place, tmp_path / "a.zip")
    where, _ = archives.take(path, tmp_path / "there")
    shutil.copy(where / TABLE, where / "grid.csv")
    if about:
        record = json.loads((where / RECORD).read_bytes()) | about
        (where / "grid.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=ANOTHER if about else "without its record"):
        archives.take(path, where.parent, replace=True)


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("written", [1, 2])
def test_what_a_killed_take_leaves_is_refused_and_put_right(
    place, tmp_path, is_there, written
):
    path, there = archives.pack(place, tmp_path / "a.zip"), tmp_path / "there"
    if is_there:
        archives.take(zipped(tmp_path / "old.zip", place, table=half), there)
    (there / place.name).mkdir(parents=True, exist_ok=True)
    for name in [CHECKS, RECORD][:written]:
        shutil.copy(place / name, there / place.name)
    if is_there and written == 2:
        with pytest.raises(ValueError, match=r"gpu\.json is of other"):
            results.record("gpu", place.name, there)
    where, _ = archives.take(path, there, replace=True)
    assert content_of(where) == content_of(place)

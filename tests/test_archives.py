"""Archives of a GPU's results: what is taken over, and what is refused."""

import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest
from filed import rows_of

from lstm_report import archives
from lstm_report.measure import provenance, results

CARD = {"name": "Card", "driver": "1.2"}
FILES = archives.FILES
posix = pytest.mark.skipif(os.name == "nt", reason="POSIX files and signals")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A machine's folder with results of a GPU."""
    monkeypatch.setattr(provenance, "gpu", lambda: CARD)
    sizes = {"L": 1, "T": 12, "B": 16, "D": 1, "H": 32, "N": 16, "process": 0}
    rows = rows_of(1.0, 2.0).assign(variant="airline", **sizes)
    path = results.write("gpu", rows, preset="paper", folder=tmp_path)
    (path.parent / "gpu-checks.json").write_text('{"probe": "right", "dirty": null}')
    return path.parent


def files_of(place):
    return {f"{place.name}/{name}": (place / name).read_bytes() for name in FILES}


def zipped(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def with_csv(files, change, name="gpu.csv"):
    """The files with changed rows, of which the record tells as if they were its."""
    changed = dict(files)
    for key in files:
        if key.endswith("gpu.csv"):
            rows = pd.read_csv(io.BytesIO(files[key]))
            changed[key] = change(rows).to_csv(index=False).encode()
            digest = hashlib.sha256(changed[key]).hexdigest()
    return with_record(changed, {"sha256": digest})


def with_record(files, changes):
    return {
        name: json.dumps(json.loads(content) | changes).encode()
        if name.endswith("gpu.json")
        else content
        for name, content in files.items()
    }


def test_results_come_over_as_they_are(place, tmp_path):
    path = archives.pack(place, tmp_path / "a.zip")
    where, what = archives.take(path, tmp_path / "there")
    assert what == "Card, 1 parts, 2 rows"
    assert where == tmp_path / "there" / place.name
    for name in FILES:
        assert (where / name).read_bytes() == (place / name).read_bytes()
    assert sorted(p.name for p in where.iterdir()) == sorted(FILES)
    assert results.record("gpu", where.name, where.parent)["gpu"] == CARD
    archives.take(path, tmp_path / "there")  # the same once more
    assert "Packed: " in archives.packed(place, tmp_path / "b.zip")
    said = archives.packed(tmp_path / "none", tmp_path / "c.zip")
    assert said == "There is no archive: nothing was measured."
    assert not (tmp_path / "c.zip").exists()


HOSTILE = {
    "a path out": (
        lambda f: {n.replace("gpu.csv", "../../x"): c for n, c in f.items()},
        "entries",
    ),
    "an absolute path": (lambda f: {f"/{n}": c for n, c in f.items()}, "entries"),
    "another file": (
        lambda f: f | {f"{next(iter(f)).partition('/')[0]}/x": b""},
        "entries",
    ),
    "a file less": (lambda f: dict([*f.items()][:2]), "entries"),
    "two machines": (
        lambda f: {
            f"m{k}/{n.partition('/')[2]}": c for k, (n, c) in enumerate(f.items())
        },
        "entries",
    ),
    "nothing": (lambda f: {}, "entries"),
    "a bomb": (
        lambda f: {n: c if "csv" not in n else b"0" * (5 << 20) for n, c in f.items()},
        "more than 4194304 bytes",
    ),
    "no JSON": (
        lambda f: {n: c if "gpu.json" not in n else b"{" for n, c in f.items()},
        "no JSON",
    ),
    "JSON without end": (
        lambda f: {n: c if "checks" not in n else b"[" * 200_000 for n, c in f.items()},
        "no JSON",
    ),
    "digits without end": (
        lambda f: {
            n: b'{"rows": ' + b"7" * 9000 + b"}" if "checks" in n else c
            for n, c in f.items()
        },
        "no JSON",
    ),
    "a number of many digits": (
        lambda f: with_record(f, {"cores": 10**40}),
        "the number 1000",
    ),
    "no number": (lambda f: with_record(f, {"memory": float("nan")}), "the number nan"),
    "lists where a text is due": (
        lambda f: {
            n: b'{"cpu":' + b"[" * 900 + b"]" * 900 + b"}" if "gpu.json" in n else c
            for n, c in f.items()
        },
        "lists in lists",
    ),
    "a list": (
        lambda f: {n: c if "checks" not in n else b"[]" for n, c in f.items()},
        "got a list",
    ),
    "a record of less": (lambda f: with_record(f, {"blas": None}), "blas"),
    "a card without a name": (
        lambda f: with_record(f, {"gpu": {}}),
        "its name and its driver",
    ),
    "another machine's name": (
        lambda f: with_record(f, {"name": "m"}),
        "results of 'm'",
    ),
    "small sizes": (lambda f: with_record(f, {"preset": "smoke"}), "preset 'smoke'"),
    "no day": (lambda f: with_record(f, {"date": "tomorrow"}), "date"),
    "a control character": (lambda f: with_record(f, {"cpu": "a\x1b[31m"}), "the text"),
    "a long text": (lambda f: with_record(f, {"cpu": "a" * 9999}), "the text"),
    "other rows": (lambda f: with_record(f, {"sha256": "0"}), "changed since"),
    "a column more": (lambda f: with_csv(f, lambda r: r.assign(x=1)), "columns"),
    "another experiment": (
        lambda f: with_csv(f, lambda r: r.assign(experiment="grid")),
        "experiments",
    ),
    "markup": (
        lambda f: with_csv(f, lambda r: r.assign(version="<img src=x>")),
        "in version, want a name",
    ),
    "a formula": (
        lambda f: with_csv(f, lambda r: r.assign(version="=1+1")),
        "in version, want a name",
    ),
    "a link": (
        lambda f: with_csv(f, lambda r: r.assign(variant="[a](b)")),
        "in variant, want a name",
    ),
    "a long name": (
        lambda f: with_csv(f, lambda r: r.assign(variant="a" * 200)),
        "a name",
    ),
    "negative time": (
        lambda f: with_csv(f, lambda r: r.assign(seconds=-1.0)),
        "seconds",
    ),
    "no time": (lambda f: with_csv(f, lambda r: r.assign(seconds=None)), "seconds"),
    "infinite time": (
        lambda f: with_csv(f, lambda r: r.assign(seconds=float("inf"))),
        "finite",
    ),
    "time in words": (
        lambda f: with_csv(f, lambda r: r.assign(seconds="fast")),
        "texts in seconds",
    ),
    "no rows": (lambda f: with_csv(f, lambda r: r[:0]), "0 rows"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_pack_has_not_made_is_refused(place, tmp_path, name):
    change, said = HOSTILE[name]
    path = zipped(tmp_path / "a.zip", change(files_of(place)))
    there = tmp_path / "there"
    with pytest.raises(ValueError, match=r"^archive: ") as caught:
        archives.take(path, there)
    assert said in str(caught.value)
    assert "want" in str(caught.value)
    assert not there.exists()
    assert not (tmp_path / "x").exists()


def with_lines(files, change):
    """The files with changed lines of rows, as text."""
    (name,) = (name for name in files if name.endswith("gpu.csv"))
    lines = change(files[name].decode().splitlines())
    content = "".join(f"{line}\n" for line in lines).encode()
    sums = {"sha256": hashlib.sha256(content).hexdigest()}
    return with_record(files | {name: content}, sums)


NO_TABLES = {
    "a name many times": (lambda t: [",".join(["name"] * 30_000)], "columns"),
    "names in another order": (lambda t: [t[0][::-1], *t[1:]], "columns"),
    "an index that no column names": (lambda t: [t[0], *(f"x,{r}" for r in t[1:])], ""),
    "a field after the last": (lambda t: [*t[:2], f"{t[2]},"], "19 fields in line 3"),
    "a field less": (lambda t: [*t[:2], t[2][1 + len("gpu") :]], "17 fields in line 3"),
    "a line without fields": (lambda t: [*t[:2], "", *t[2:]], "0 fields in line 3"),
    "a text without end": (lambda t: [*t[:2], t[2].replace("numpy", '"numpy')], ""),
    "a text with more behind": (lambda t: [*t[:2], t[2].replace("numpy", '"a"b')], ""),
    "a field of many letters": (
        lambda t: [*t, t[2].replace("numpy", "a" * 200_000)],
        "",
    ),
    "letters of another alphabet": (
        lambda t: [*t, t[2].replace("y", "\u0443")],
        "ASCII",
    ),
    "a line's end in a line": (lambda t: [*t, t[2].replace("y", "\r")], "ASCII"),
    "a zero byte": (lambda t: [*t, t[2].replace("y", "\0")], "ASCII"),
}


@pytest.mark.parametrize("name", NO_TABLES)
def test_rows_have_their_form_before_they_are_parsed(
    place, tmp_path, monkeypatch, name
):
    change, said = NO_TABLES[name]
    path = zipped(tmp_path / "a.zip", with_lines(files_of(place), change))
    monkeypatch.setattr(pd, "read_csv", lambda *what, **how: pytest.fail("parsed"))
    with pytest.raises(ValueError, match=rf"^archive: gpu.csv: got .*{said}") as caught:
        archives.take(path, tmp_path / "there")
    assert len(str(caught.value)) < 1000
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("change", [lambda row: f"x,{row}", lambda row: f"{row},x"])
def test_recorded_rows_with_more_fields_than_the_header_are_not_cut(place, change):
    path = place / "gpu.csv"
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *map(change, rows), ""]))
    said = r"gpu.csv: got 19 fields in line 2, want 18 as in the header"
    with pytest.raises(ValueError, match=said):
        results.recorded("gpu", place.parent)


def test_a_record_of_lists_without_end_cannot_be_read(place):
    (place / "gpu.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"gpu.json cannot be read .*want JSON"):
        results.record("gpu", place.name, place.parent)


def test_an_archive_has_a_size(tmp_path):
    path = tmp_path / "a.zip"
    with open(path, "wb") as file:
        file.truncate(13 << 20)
    with pytest.raises(ValueError, match=r"^archive: a.zip: got 13631488 bytes"):
        archives.take(path, tmp_path)


@posix
def test_what_is_no_regular_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    held = os.open(tmp_path / "fifo", os.O_RDWR)  # who opens it does not wait
    for path in (tmp_path / "fifo", tmp_path, os.devnull):
        with pytest.raises(ValueError, match=r"^archive: got .* path of a regular f"):
            archives.take(path, tmp_path)
    os.close(held)


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04" + b"\0" * 60])
def test_a_file_that_is_no_archive(tmp_path, content):
    path = tmp_path / "a.zip"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^archive: a.zip: got .* want a file that"):
        archives.take(path, tmp_path)
    with pytest.raises(FileNotFoundError):
        archives.take(tmp_path / "none.zip", tmp_path)


def test_another_machine_is_never_overwritten(place, tmp_path):
    path = archives.pack(place, tmp_path / "a.zip")
    where, _ = archives.take(path, tmp_path / "there")
    record = where / "gpu.json"
    good = record.read_bytes()
    for changes, said in (
        ({"cpu": "another"}, "cpu of another machine"),
        ({"gpu": CARD | {"name": "B"}}, "gpu of another machine"),
        ({"date": "2999-01-01"}, "want those of 2999-01-01 or later"),
    ):
        record.write_text(json.dumps(json.loads(good) | changes))
        before = {p.name: p.read_bytes() for p in where.iterdir()}
        with pytest.raises(ValueError, match=said):
            archives.take(path, tmp_path / "there")
        assert before == {p.name: p.read_bytes() for p in where.iterdir()}
    record.write_bytes(good)
    # The CPU's results of a machine of that name are another machine's too.
    rows = pd.read_csv(where / "gpu.csv")
    rows.to_csv(where / "grid.csv")
    (where / "grid.json").write_text(json.dumps(json.loads(good) | {"cores": 99}))
    with pytest.raises(ValueError, match="cores of another machine"):
        archives.take(path, tmp_path / "there")


BREAKS_PAGES = {  # what a page would stop at
    "a date of another form": {"date": "20260101"},
    "a date to come": {"date": "2999-01-01"},
    "libraries without names": {"blas": [{}]},
    "no packages": {"packages": {}},
    "a clock in words": {"measured_ghz": "fast"},
    "caches of numbers": {"caches": {"L1d": 5}},
}
BREAKS_ROWS = {
    "no units": {"H": 0},
    "half a unit": {"H": 0.5},
    "no samples told": {"B": None},
    "as many as stars": {"B": 1e300},
    "no round": {"repeat": None},
    "no name": {"version": None},
    "a name with markup's end": {"version": "numpy_"},
    "two spaces": {"variant": "a  b"},
    "a truth for a time": {"seconds": True},
    "no windows": {"N": 0},
}


@pytest.mark.parametrize("name", [*BREAKS_PAGES, *BREAKS_ROWS])
def test_what_would_stop_a_page_is_refused(place, tmp_path, name):
    files = files_of(place)
    if name in BREAKS_PAGES:
        files = with_record(files, BREAKS_PAGES[name])
    else:
        files = with_csv(files, lambda r: r.assign(**BREAKS_ROWS[name]))
    with pytest.raises(ValueError, match=r"^archive: "):
        archives.take(zipped(tmp_path / "a.zip", files), tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_rows_of_the_same_day_are_not_replaced_unasked(place, tmp_path):
    there, files = tmp_path / "there", files_of(place)
    where, _ = archives.take(zipped(tmp_path / "a.zip", files), there)
    faster = with_csv(files, lambda r: r.assign(seconds=r["seconds"] / 100))
    path = zipped(tmp_path / "b.zip", faster)
    with pytest.raises(ValueError, match=r"got other rows of .* or --replace"):
        archives.take(path, there)
    archives.take(path, there, replace=True)
    (where / "gpu.json").unlink()  # whose rows are these?
    with pytest.raises(ValueError, match="without its record"):
        archives.take(path, there, replace=True)


def test_a_run_without_rows_is_not_packed(place, tmp_path):
    (place / "gpu-checks.json").write_text(
        '{"rows": 0}'
    )  # beside rows of an earlier one
    with pytest.raises(FileNotFoundError, match="no rows of the last run"):
        archives.pack(place, tmp_path / "a.zip")
    assert "nothing was measured" in archives.packed(place, tmp_path / "a.zip")


def test_fewer_parts_take_the_place_of_more_only_where_asked(place, tmp_path):
    there = tmp_path / "there"
    whole = files_of(place)
    more = with_csv(
        whole, lambda r: pd.concat([r.assign(variant="a"), r.assign(variant="b")])
    )
    archives.take(zipped(tmp_path / "more.zip", more), there, replace=True)
    less = zipped(
        tmp_path / "less.zip", with_csv(whole, lambda r: r.assign(variant="a"))
    )
    with pytest.raises(ValueError, match=r"got no rows of b, want what .* --replace"):
        archives.take(less, there)
    where, what = archives.take(less, there, replace=True)
    assert what == "Card, 1 parts, 2 rows"
    # Another driver is no other machine.
    newer = with_record(whole, {"gpu": CARD | {"driver": "9"}})
    newer = with_csv(newer, lambda r: r.assign(variant="a"))
    archives.take(zipped(tmp_path / "newer.zip", newer), there, replace=True)
    assert results.record("gpu", where.name, there)["gpu"]["driver"] == "9"


# --- whole or not at all

KILLED = """
import ctypes, itertools, json, os, shutil, signal, sys
from pathlib import Path
from lstm_report import archives
from lstm_report.measure import results

archive, other, start, folder, can_swap = sys.argv[1:]
if can_swap == "no":
    ctypes.CDLL = None

def take_until(step):
    steps = itertools.count()
    def hook(event, words):
        if folder in str(words) and next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    archives.take(archive, folder, replace=True)
    os._exit(0)

def found():
    # What pages would read.
    for path in results.find("*/gpu.csv", folder):
        results.record("gpu", path.parent.name, folder)
    held = {p.name: p.read_text() for p in Path(folder).glob("[!.]*/*")}
    return held, sorted(os.listdir(folder))

def taken(path):
    try:
        archives.take(Path(path), folder, replace=True)
    except ValueError:
        pass
    return found()

for step in itertools.count():
    shutil.copytree(start, folder)
    if not (child := os.fork()):
        take_until(step)
    ended = os.waitpid(child, 0)[1]
    print(json.dumps([ended, found(), taken(other), taken(archive)]), flush=True)
    shutil.rmtree(folder)
    if not ended:
        break
"""


@posix
@pytest.mark.parametrize(
    ("is_there", "can_swap"), [(True, "yes"), (True, "no"), (False, "yes")]
)
def test_whenever_take_is_killed_all_files_are_old_or_all_are_new(
    place, tmp_path, is_there, can_swap
):
    start, files = tmp_path / "start", files_of(place)
    start.mkdir()
    if is_there:
        older = with_csv(files, lambda r: r.assign(seconds=r["seconds"] / 2))
        where, _ = archives.take(zipped(tmp_path / "old.zip", older), start)
        (where / "notes").write_text("kept")
    archive = archives.pack(place, tmp_path / "new.zip")
    earlier = zipped(tmp_path / "bad.zip", with_record(files, {"date": "2000-01-01"}))
    # What is older than what is there is refused, and all the same tidied up for.
    words = [
        archive,
        earlier if is_there else archive,
        start,
        tmp_path / "folder",
        can_swap,
    ]
    run = [sys.executable, "-W", "ignore", "-c", KILLED, *map(str, words)]
    lines = subprocess.check_output(run, text=True, timeout=300).splitlines()
    old = {p.name: p.read_text() for p in start.glob("*/*")}
    new = old | {p.name: p.read_text() for p in place.iterdir()}
    assert len(lines) > 20
    for line in lines:
        ended, (held, _), (after, _), (last, names) = json.loads(line)
        # Two renames have a moment between them, and the next call puts all back.
        assert held in ((old, new) if can_swap == "yes" else (old, new, {}))
        assert after in (old, new)
        assert (last, names) == (new, [place.name])
    assert (ended, held) == (0, new)


def test_what_is_written_meanwhile_is_kept(place, tmp_path, monkeypatch):
    path = archives.pack(place, tmp_path / "a.zip")
    where, _ = archives.take(path, tmp_path / "there")
    replace = results.replace

    def beside(path, data):
        replace(where / "grid.csv", "rows\n")
        replace(path, data)

    monkeypatch.setattr(results, "replace", beside)
    with pytest.raises(ValueError, match="got files written meanwhile, want a folder"):
        archives.take(path, tmp_path / "there")
    monkeypatch.undo()
    assert (where / "grid.csv").read_text() == "rows\n"
    assert [p.name for p in where.parent.iterdir()] == [where.name]


def test_several_may_take_at_once(place, tmp_path):
    path = archives.pack(place, tmp_path / "a.zip")
    with ThreadPoolExecutor(4) as pool:
        works = [pool.submit(archives.take, path, tmp_path / "there") for _ in range(9)]
    (where,) = {work.result()[0] for work in works}
    assert {p.name: p.read_bytes() for p in where.iterdir()} == {
        p.name: p.read_bytes() for p in place.iterdir()
    }
    assert [p.name for p in where.parent.iterdir()] == [where.name]

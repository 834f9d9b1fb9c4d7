"""The schedule explorer: its schedules are those of Python, and its controls draw
them.
"""

import json
import random
from pathlib import Path

import pytest
from browser import chromium, needs_site

from lstm_kernels.schedules import Costs, Graph, wavefront
from lstm_kernels.simulate import simulate, speedup_bound

pytestmark = needs_site
PAGE = Path(__file__).parents[1] / "tools" / "page"
SCRIPT = (PAGE / "schedules.js").read_text()
STILL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
ORDERS = ("point-to-point", "barrier")
PORTED = """
const {Graph, wavefront, simulate, bound} = lstmSchedules;
return JSON.stringify(arguments[0].map(({layers, steps, workers, chunk, ...how}) => {
  const schedule = wavefront(new Graph(layers, steps), workers, chunk, how);
  const tasks = schedule.tasks.map((t) => [t.layer, t.start, t.stop, t.worker, t.after]);
  const {spans, makespan} = simulate(schedule, how.costs);
  const times = spans.map((span) => [span.task, span.worker, span.start, span.stop]);
  return [tasks, times, makespan, bound(layers, steps, chunk)];
}));
"""
# What a port gets wrong: old and new text.
FAULTS = {
    "a tie goes to a worker that ran another layer": (
        "moved, place, worker]",
        "0, place, worker]",
    ),
    "a tie goes to the last worker": (
        "compare(key, first) < 0",
        "compare(key, first) < 2",
    ),
    "columns instead of diagonals": ("layer + start / chunk]", "start / chunk]"),
    "a hand-over costs the same worker too": (" * (other.worker !== worker)", ""),
    "simulate forgets hand-overs": (" * (spans[other].worker !== worker)", " * 0"),
    "only the first worker free is tried": (" && !near.has(worker)", ""),
    "a worker's first task does not read weights": (
        "before === task.layer",
        "before == null",
    ),
    "all layers advance together": ("Math.floor(layer / side)", "0"),
    "a barrier is point to point": ("order === 'barrier' ?", "order === '' ?"),
    "it waits for the first task of a worker": (".sort(ascending).forEach", ".forEach"),
    "one worker is slowed by itself": ("workers > 1 ? costs", "workers > 0 ? costs"),
    "more workers than layers": ("), graph.layers);  //", "), Infinity);  //"),
    "the costs are not those of the schedule": (
        "costsOf(graph, costs)));",
        "costsOf(graph)));",
    ),
}


def cases():
    """Sizes and costs by name: chosen ones, then drawn ones."""
    names = ("layers", "steps", "workers", "chunk")
    chosen = [
        (1, 1, 1, 1),
        (1, 9, 3, 2),
        (4, 48, 2, 4),
        (8, 48, 8, 1),
        (3, 7, 9, 7),
        (5, 12, 4, 5),
    ]
    found = [
        dict(zip(names, sizes, strict=True), order=way)
        for sizes in chosen
        for way in ORDERS
    ]
    draw = random.Random(5)
    for _ in range(60):
        layers, steps = draw.randint(1, 8), draw.randint(1, 40)
        divisor = draw.choice([c for c in range(1, steps + 1) if steps % c == 0])
        chunk = min(steps, max(1, divisor + draw.choice((-1, 0, 1))))
        sizes = dict(
            zip(names, (layers, steps, draw.randint(1, 9), chunk), strict=True)
        )
        costs = {"step": [draw.choice((0.1, 0.3, 1, 1.7)) for _ in range(layers)]}
        for name in ("task", "hand", "moved"):
            costs[name] = draw.choice((0, 0, 0.1, 1, draw.random()))
        costs["shared"] = draw.choice((1, 1.1, draw.uniform(1, 2)))
        together = draw.choice((None, draw.randint(1, layers)))
        found.append(
            sizes | {"together": together, "order": draw.choice(ORDERS), "costs": costs}
        )
    return found


def of_python(case):
    """The tasks, the spans, the makespan and the bound of a case."""
    case = dict(case)
    layers, steps, workers, chunk = (
        case.pop(n) for n in ("layers", "steps", "workers", "chunk")
    )
    costs = case.pop("costs", {"step": [1.0] * layers})
    costs = Costs(**costs | {"step": tuple(costs["step"])})
    schedule = wavefront(Graph(layers, steps), workers, chunk, **case, costs=costs)
    tasks = [[t.layer, t.start, t.stop, t.worker, [*t.after]] for t in schedule.tasks]
    line = simulate(schedule, costs)
    spans = [[*span] for span in line.spans]
    return [tasks, spans, line.makespan, speedup_bound(layers, steps, chunk)]


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture
def explorer(tmp_path, browser):
    """Opens a page that holds the figure alone, with `script` for its script."""

    def opened(script=SCRIPT, **how):
        page = tmp_path / "page.html"
        page.write_text(
            "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><title>Explorer</title>"
            "<meta name='viewport' content='width=device-width, initial-scale=1'>"
            f"<style>{(PAGE / 'style.css').read_text()}</style></head><body><main>"
            f"<div data-interactive='schedules'><img src='{STILL}' alt='Still'></div>"
            f"</main><script>{script}</script></body></html>"
        )
        browser.open(page, **how)
        return browser

    return opened


def differing(browser):
    """The cases for which JavaScript's schedule, or its times, are not Python's."""
    got = json.loads(browser.run(PORTED, cases()))
    return [
        case for case, one in zip(cases(), got, strict=True) if one != of_python(case)
    ]


def press(browser, name, *keys):
    """Press keys on the control of that name."""
    browser.driver.find_element("name", name).send_keys(*keys)


def said(browser):
    return browser.run("return document.querySelector('[aria-live]').textContent")


def test_schedules_and_times_are_those_of_python(explorer):
    assert differing(explorer()) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_script_is_noticed(explorer, fault):
    old, new = FAULTS[fault]
    assert SCRIPT.count(old) == 1
    assert differing(explorer(SCRIPT.replace(old, new)))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("new Graph(0, 3)", "layers: got 0"),
        ("wavefront(new Graph(2, 3), 0, 1)", "workers: got 0"),
        (
            "wavefront(new Graph(2, 3), 1, 4)",
            "chunk: got 4, want a whole number, 1 to 3",
        ),
        ("wavefront(new Graph(2, 3), 1, 1, {order: 'none'})", "order: got 'none'"),
        (
            "wavefront(new Graph(2, 3), 1, 1, {costs: {step: [1]}})",
            "costs: got 1 layers' steps",
        ),
    ],
)
def test_bad_input_is_named(explorer, call, named):
    script = f"const {{Graph, wavefront}} = lstmSchedules; try {{ {call} }} catch (e) "
    assert named in explorer().run(script + "{ return e.message }")


def test_the_figure_takes_the_place_of_the_picture(explorer):
    browser = explorer()
    labels = browser.run(
        "return [...document.querySelectorAll('input, select')].map((e) => e.labels[0].textContent)"
    )
    assert len(labels) == 6
    assert all(labels)
    assert browser.run("return document.images.length") == 0
    tasks, _, makespan, bound = of_python(
        {"layers": 4, "steps": 48, "workers": 2, "chunk": 4}
        | {"costs": {"step": [1.0] * 4, "hand": 0.1}}
    )
    assert f"Makespan {makespan:.3g} steps" in said(browser)
    assert f"is {bound:.3g}x" in said(browser)
    drawn = "return [...document.querySelectorAll('.task')].map((p) => p.getAttribute('d')).join('')"
    assert browser.run(drawn).count("M") == len(tasks)
    assert said(browser) in browser.run(
        "return document.querySelector('svg').ariaLabel"
    )
    assert browser.logged() == []


@pytest.mark.parametrize(
    "name", ["layers", "steps", "chunk", "workers", "hand", "order"]
)
def test_a_key_changes_text_and_picture(explorer, name):
    browser, picture = explorer(), "return document.querySelector('svg').innerHTML"
    before = said(browser), browser.run(picture)
    # Arrows: down, right
    press(browser, name, "\ue015" if name == "order" else "\ue014")
    after = said(browser), browser.run(picture)
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_a_chunk_is_no_longer_than_the_steps(explorer):
    browser = explorer()
    chunk = "return ['max', 'value'].map((k) => document.forms[0].chunk[k])"
    press(browser, "steps", "\ue011", "\ue014")  # home, right: one step, then two
    assert browser.run(chunk) == ["2", "1"]
    press(browser, "steps", "\ue010")  # end
    assert browser.run(chunk) == ["200", "1"]


def test_without_scripts_the_picture_stays(explorer):
    browser = explorer(scripts=False)
    [image] = browser.driver.find_elements("tag name", "img")
    assert image.is_displayed()
    assert not browser.driver.find_elements("tag name", "form")


@pytest.mark.parametrize("width", [390, 1100])
def test_the_largest_stack_fits_the_window(explorer, width):
    browser = explorer(width=width)
    for name in ("layers", "steps", "workers"):
        press(browser, name, "\ue010")
    press(browser, "chunk", "\ue011")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    right = "[...document.querySelectorAll('svg *')].map((e) => e.getBoundingClientRect().right)"
    assert browser.run(f"return Math.max(...{right})") <= width


def luminance(colour):
    """The relative luminance of WCAG 2 of a colour, red, green and blue in 0 to 255."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour
    ]
    return sum(
        c * weight for c, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True)
    )


@pytest.mark.parametrize("dark", [False, True])
def test_numbers_can_be_read_on_their_tasks(explorer, dark):
    browser = explorer(dark=dark, width=1400)
    press(browser, "layers", "\ue010")
    press(browser, "chunk", *["\ue014"] * 20)  # tasks wide enough for two digits
    found = browser.run("""
      const context = document.createElement('canvas').getContext('2d');
      const colour = (element) => {
        context.fillStyle = getComputedStyle(element).fill;
        context.fillRect(0, 0, 1, 1);
        return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3).map((c) => c / 255);
      };
      const tasks = [...document.querySelectorAll('.task')];
      return [...document.querySelectorAll('svg .on')].map((number) => (
        [number.textContent, colour(number), colour(tasks[number.textContent])]
      ));""")
    assert {number for number, _, _ in found} == {str(layer) for layer in range(16)}
    for number, ink, paper in found:
        low, high = sorted((luminance(ink), luminance(paper)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, f"layer {number}"

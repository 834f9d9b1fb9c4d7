/* The schedule explorer: wavefronts of a stack, scheduled and drawn while the controls move.
 *
 * The first part is a port of the forward wavefront of lstm_kernels/schedules.py and simulate.py,
 * which are the source: for the same input it gives the same tasks in the same order, and the same
 * times to the last bit. For that, sums keep their order and ties break as Python compares tuples;
 * tests/test_explorer.py compares the two. The second part takes the place of the still picture in
 * each element [data-interactive="schedules"].
 */
(() => {
'use strict';

/* Schedules. Times are in whatever unit the costs are counted in; here that is steps. */

function whole(name, value, least = 1, most = Infinity) {
  if (!Number.isInteger(value) || value < least || value > most) {
    throw new RangeError(`${name}: got ${value}, want a whole number, ${least} to ${most}`);
  }
  return value;
}

class Graph {
  constructor(layers, steps) {
    this.layers = whole('layers', layers);
    this.steps = whole('steps', steps);
  }

  /* The cells that cell (layer, step) needs: of the layer below, and of the step before. */
  needs(layer, step) {
    const cells = [[layer - 1, step], [layer, step - 1]];
    return cells.filter(([l, t]) => 0 <= l && 0 <= t);
  }

  /* Every task of up to `chunk` steps, layer by layer. */
  tasks(chunk) {
    whole('chunk', chunk, 1, this.steps);
    const tasks = [];
    for (let layer = 0; layer < this.layers; layer++) {
      for (let start = 0; start < this.steps; start += chunk) {
        tasks.push({layer, start, stop: Math.min(start + chunk, this.steps), worker: 0, after: []});
      }
    }
    return tasks;
  }
}

/* What list scheduling and `simulate` count with; `Costs` of schedules.py says what each is. */
function costsOf(graph, {step, task = 0, hand = 0, moved = 0, shared = 1} = {}) {
  const costs = {step: step ?? Array(graph.layers).fill(1), task, hand, moved, shared};
  if (costs.step.length !== graph.layers) {
    throw new RangeError(`costs: got ${costs.step.length} layers' steps, want ${graph.layers}`);
  }
  return costs;
}

/* What a task takes on a worker that ran layer `before`, one of so many. */
function seconds(costs, task, before, workers) {
  let time = costs.task + costs.step[task.layer] * (task.stop - task.start);
  time += before === task.layer ? 0 : costs.moved;
  return time * (workers > 1 ? costs.shared : 1);
}

/* Chunks along the diagonals, given to `workers` by list scheduling. */
function wavefront(graph, workers, chunk, {together, order = 'point-to-point', costs} = {}) {
  workers = Math.min(whole('workers', workers), graph.layers);  // more have no task
  const side = whole('together', together ?? graph.layers);
  if (!['point-to-point', 'barrier'].includes(order)) {
    throw new RangeError(`order: got '${order}', want 'point-to-point' or 'barrier'`);
  }
  const rank = ({layer, start}) => [Math.floor(layer / side), layer + start / chunk];
  const tasks = graph.tasks(chunk);
  tasks.sort((one, other) => compare(rank(one), rank(other)));
  const ranks = tasks.map(rank);
  const needed = order === 'barrier' ? diagonalBefore(ranks) : needsOf(graph, tasks, chunk);
  return waiting(graph, ...listSchedule(tasks, needed, workers, ranks, costsOf(graph, costs)));
}

/* As Python compares tuples: negative where `one` comes first. */
function compare(one, other) {
  const place = one.findIndex((value, index) => value !== other[index]);
  return place < 0 ? 0 : one[place] - other[place];
}

/* For each task the places of those that it needs; chunks need each other as cells do. */
function needsOf(graph, tasks, chunk) {
  const name = (layer, count) => `${layer} ${count}`;
  const places = new Map(tasks.map((task, i) => [name(task.layer, task.start / chunk), i]));
  return tasks.map(({layer, start}) => (
    graph.needs(layer, start / chunk).map((need) => places.get(name(...need)))
  ));
}

/* For each task the places of the whole diagonal before its own. */
function diagonalBefore(ranks) {
  let [before, own] = [[], []];
  return ranks.map((rank, place) => {
    if (place > 0 && compare(rank, ranks[place - 1])) [before, own] = [own, []];
    own.push(place);
    return before;
  });
}

/* The tasks in the order in which they start, with their workers, and what each needs of that
 * order. The next is the task that can start first; among several that of lowest rank, on a worker
 * that ran its layer before. */
function listSchedule(tasks, needed, workers, ranks, costs) {
  const free = Array(workers).fill(0);  // when each worker is
  const before = Array(workers).fill(null);  // the layer that it ran last
  const [done, started, ready] = [[], [], new Map()];
  const missing = needed.map((needs) => needs.length);
  const users = tasks.map(() => []);
  needed.forEach((needs, place) => needs.forEach((need) => users[need].push(place)));

  // What a task needs is done once it is ready: what it waits for on each worker is known then.
  const makeReady = (place) => {
    const others = needed[place].map((need) => done[need]);
    const arrived = free.map((_, worker) => Math.max(
      0, ...others.map((other) => other.stop + costs.hand * (other.worker !== worker)),
    ));
    ready.set(place, {arrived, near: new Set(others.map((other) => other.worker))});
  };
  missing.forEach((count, place) => count || makeReady(place));

  while (ready.size) {
    const idle = free.indexOf(Math.min(...free));
    let first = null;
    for (const [place, {arrived, near}] of ready) {
      for (let worker = 0; worker < workers; worker++) {
        const moved = before[worker] !== tasks[place].layer;
        if (moved && worker !== idle && !near.has(worker)) continue;
        const start = Math.max(free[worker], arrived[worker]);
        if (first && start > first[0]) continue;
        const key = [start, ...ranks[place], moved, place, worker];
        if (!first || compare(key, first) < 0) first = key;
      }
    }
    const [start, place, worker] = [first[0], ...first.slice(-2)];
    const task = {...tasks[place], worker};
    free[worker] = start + seconds(costs, task, before[worker], workers);
    before[worker] = task.layer;
    done[place] = {stop: free[worker], worker, index: started.length};
    started.push({task, place});
    ready.delete(place);
    users[place].forEach((user) => --missing[user] || makeReady(user));
  }
  return [
    started.map(({task}) => task),
    started.map(({place}) => needed[place].map((need) => done[need].index)),
  ];
}

/* A schedule in which a task waits for the last task that it needs of each other worker. */
function waiting(graph, tasks, needed) {
  const ascending = (one, other) => one - other;
  const waits = tasks.map((task, index) => {
    const last = new Map();
    [...needed[index]].sort(ascending).forEach((need) => last.set(tasks[need].worker, need));
    last.delete(task.worker);
    return {...task, after: [...last.values()].sort(ascending)};
  });
  return {graph, tasks: waits};
}

/* A span for each task: it starts when its worker is free and its waits are over. */
function simulate(schedule, given) {
  const costs = costsOf(schedule.graph, given);
  const [spans, free, before] = [[], new Map(), new Map()];
  const employed = new Set(schedule.tasks.map((task) => task.worker)).size;
  schedule.tasks.forEach((task, index) => {
    const worker = task.worker;
    let start = free.get(worker) ?? 0;
    for (const other of task.after) {
      start = Math.max(start, spans[other].stop + costs.hand * (spans[other].worker !== worker));
    }
    const stop = start + seconds(costs, task, before.get(worker), employed);
    spans.push({task: index, worker, start, stop});
    free.set(worker, stop);
    before.set(worker, task.layer);
  });
  const makespan = spans.reduce((most, span) => Math.max(most, span.stop), 0);
  const busy = spans.reduce((sum, span) => sum + span.stop - span.start, 0);
  return {spans, makespan, idle: makespan ? 1 - busy / (makespan * employed) : 0};
}

/* The speed-up that a wavefront on any number of workers cannot pass: L T / (T + (L-1) C). */
function bound(layers, steps, chunk) {
  return layers * steps / (steps + (layers - 1) * whole('chunk', chunk, 1, steps));
}

globalThis.lstmSchedules = {Graph, wavefront, simulate, bound};

/* The figure. Its colours are rules of the stylesheet. */

const SLIDERS = [
  {name: 'layers', text: 'Layers', max: 16, value: 4},
  {name: 'steps', text: 'Steps', max: 200, value: 48},
  {name: 'chunk', text: 'Chunk, in steps', max: 48, value: 4},
  {name: 'workers', text: 'Workers', max: 16, value: 2},
  {name: 'hand', text: 'Hand-over, in steps', min: 0, max: 4, step: 0.1, value: 0.1},
];
const ORDERS = {'point-to-point': 'point to point', barrier: 'barrier'};
const BOUND = 'L T / (T + (L − 1) C)'.replaceAll(' ', '\u00a0');  // stays on one line
const [LANE, TOP, BOTTOM, LEFT, RIGHT] = [22, 24, 44, 70, 12];  // pixels

const SVG = 'http://www.w3.org/2000/svg';
function make(tag, attributes = {}, ...children) {
  const drawn = ['svg', 'path', 'rect', 'line', 'text'].includes(tag);
  const element = drawn ? document.createElementNS(SVG, tag) : document.createElement(tag);
  Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
  element.append(...children);
  return element;
}

/* Three significant digits, and no zeros after them. */
const digits = (value) => String(Number(value.toPrecision(3)));

function speed(ratio) {
  if (Math.abs(ratio - 1) < 0.005) return 'as fast as one worker';
  if (ratio < 1) return `${digits(100 * (1 - ratio))} % slower than one worker`;
  return `${digits(ratio)}x as fast as one worker`;
}

/* What the settings give, with the sentences that say so. */
function result({layers, steps, chunk, workers, hand, order}) {
  const graph = new Graph(layers, steps);
  const schedule = wavefront(graph, workers, chunk, {order, costs: {hand}});
  const {spans, makespan, idle} = simulate(schedule, {hand});
  const [most, one] = [bound(layers, steps, chunk), layers * steps];
  const said = `Makespan ${digits(makespan)} steps, ${speed(one / makespan)} (${one} steps). `
    + `The bound ${BOUND} is ${digits(most)}x, on ${workers} worker${workers > 1 ? 's' : ''} `
    + `${digits(Math.min(workers, most))}x. Idle: ${digits(100 * idle)} %.`;
  return {tasks: schedule.tasks, spans, makespan, said, chain: steps + (layers - 1) * chunk};
}

/* The Gantt chart: a lane per worker, a rectangle per task, the longest chain as a line. */
function draw(svg, {layers, workers}, {tasks, spans, makespan, chain, said}, width) {
  const [end, low] = [Math.max(makespan, chain), TOP + LANE * workers];
  const scale = (width - LEFT - RIGHT) / end;
  const x = (time) => LEFT + time * scale;
  const parts = [];
  for (let worker = 0; worker < workers; worker++) {
    const y = TOP + LANE * worker;
    const lane = {class: 'lane', x: LEFT, y: y + 1, width: x(end) - LEFT, height: LANE - 2};
    const name = make('text', {x: LEFT - 6, y: y + 15, 'text-anchor': 'end'}, `worker ${worker}`);
    parts.push(make('rect', lane), name);
  }
  // One path per layer: thousands of elements would take longer than a slider moves.
  const paths = Array.from({length: layers}, () => []);
  const numbers = [];
  spans.forEach(({worker, start, stop}, index) => {
    const [layer, y, room] = [tasks[index].layer, TOP + LANE * worker, (stop - start) * scale];
    const wide = Math.max(room - (room > 4 ? 1 : 0), 0.5);  // a gap between tasks that have room
    const across = wide.toFixed(2);
    paths[layer].push(`M${x(start).toFixed(2)} ${y + 1}h${across}v${LANE - 2}h-${across}z`);
    if (room < 3 + 8 * String(layer).length) return;
    const kind = hue(layer, layers) < LATE ? 'on' : 'on late';
    const place = {x: x((start + stop) / 2).toFixed(2), y: y + 15, 'text-anchor': 'middle'};
    numbers.push(make('text', {class: kind, ...place}, layer));
  });
  const shapes = paths.map((path, layer) => (
    make('path', {class: 'task', d: path.join(''), style: `--hue: ${100 * hue(layer, layers)}%`})
  ));
  const step = niceStep(end / (width / 90));
  const ticks = [];
  for (let time = 0; time <= end; time += step) {
    ticks.push(make('line', {class: 'axis', x1: x(time), x2: x(time), y1: low, y2: low + 5}));
    ticks.push(make('text', {x: x(time), y: low + 18, 'text-anchor': 'middle'}, String(time)));
  }
  const unit = {x: LEFT, y: low + 38};
  const side = x(chain) > LEFT + 150 ? 'end' : 'start';
  const chainName = {class: 'chain', x: x(chain), y: TOP - 8, 'text-anchor': side};
  svg.replaceChildren(
    ...parts, ...shapes, ...numbers, ...ticks,
    make('text', unit, 'steps; a number is the layer of a task'),
    make('line', {class: 'chain', x1: x(chain), x2: x(chain), y1: TOP - 4, y2: low + 2}),
    make('text', chainName, `longest chain: ${digits(chain)}`),
  );
  svg.setAttribute('viewBox', `0 0 ${width} ${low + BOTTOM}`);
  svg.setAttribute('aria-label', `Tasks over time, a lane per worker. ${said}`);
}

const LATE = 0.73;  // from here on tasks are bright in light mode, and their numbers dark
const hue = (layer, layers) => layer / Math.max(1, layers - 1);

/* The round number of steps between ticks: 1, 2 or 5 times a power of ten, at least `least`. */
function niceStep(least) {
  const power = 10 ** Math.max(0, Math.floor(Math.log10(least)));
  return power * ([1, 2, 5].find((times) => times * power >= least) ?? 10);
}

function slider({name, text, min = 1, max, step = 1, value}, id) {
  const input = make('input', {type: 'range', id, name, min, max, step, value});
  const shown = make('output', {for: id});
  return make('div', {}, make('label', {for: id}, text), shown, input);
}

function mount(host, index) {
  const id = (name) => `schedules-${index}-${name}`;
  const choices = Object.entries(ORDERS).map(([value, text]) => make('option', {value}, text));
  const select = make('select', {id: id('order'), name: 'order'}, ...choices);
  const form = make(
    'form', {class: 'settings', 'aria-label': 'Settings of the schedule', autocomplete: 'off'},
    ...SLIDERS.map((about) => slider(about, id(about.name))),
    make('div', {}, make('label', {for: id('order')}, 'Order'), select),
  );
  const text = make('p', {'aria-live': 'polite'});
  const svg = make('svg', {role: 'img'});
  host.classList.add('explorer');
  host.replaceChildren(form, text, svg);

  let found, settings, width;
  const redraw = () => {
    width = host.clientWidth;
    draw(svg, settings, found, Math.max(280, width));
  };
  const update = () => {
    form.chunk.max = form.steps.value;  // a larger chunk becomes this one
    settings = {order: select.value};
    for (const {name} of SLIDERS) {
      const input = form.elements[name];
      settings[name] = input.valueAsNumber;
      input.previousSibling.value = input.value;
    }
    found = result(settings);
    text.textContent = found.said;
    redraw();
  };
  form.addEventListener('input', update);
  form.addEventListener('submit', (event) => event.preventDefault());
  update();
  new ResizeObserver(() => host.clientWidth === width || redraw()).observe(host);
}

const mountAll = () => document.querySelectorAll('[data-interactive="schedules"]').forEach(mount);
if (document.readyState === 'loading') addEventListener('DOMContentLoaded', mountAll);
else mountAll();
})();

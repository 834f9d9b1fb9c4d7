/* The schedule explorer takes the place of figures of class `schedules`.
 *
 * `wavefront` is a port of the forward wavefront of lstm_kernels/schedules.py, which counts with
 * a step and a hand-over: the same tasks in the same order, and their times to the last bit, so
 * ties break as Python compares tuples. tests/test_explorer.py compares the two.
 */
(() => {
'use strict';

/* The tasks {layer, start, stop, worker, from, to} in the order in which they start. The next is
 * the one that can start first; among several that of the first diagonal, on a worker that ran
 * its layer before. Times are in steps. */
function wavefront({layers, steps, chunk, workers, hand, order}) {
  const free = Array(Math.min(workers, layers)).fill(0);  // when each worker is
  const ran = [];  // the layer that each ran last
  const rows = Array.from({length: layers}, () => []);  // the tasks of each layer
  const [chunks, started] = [Math.ceil(steps / chunk), []];
  // What chunk `count` of a layer waits for, or null while that has not all been started.
  const waits = (layer, count) => {
    const all = order === 'barrier' ? rows.map((_, l) => [l, layer + count - 1 - l])
      : [[layer - 1, count], [layer, count - 1]];
    const cells = all.filter(([l, c]) => l >= 0 && c >= 0 && c < chunks);
    const tasks = cells.map(([l, c]) => rows[l][c]);
    return tasks.includes(undefined) ? null : tasks;
  };
  while (started.length < layers * chunks) {
    const idle = free.indexOf(Math.min(...free));
    let best = null;
    for (let layer = 0; layer < layers; layer++) {
      const count = rows[layer].length;
      const others = count < chunks ? waits(layer, count) : null;
      if (!others) continue;
      free.forEach((time, worker) => {
        const moved = ran[worker] !== layer;
        if (moved && worker !== idle && !others.some((other) => other.worker === worker)) return;
        const handed = others.map((other) => other.to + hand * (other.worker !== worker));
        const key = [Math.max(time, ...handed), layer + count, +moved, layer, worker];
        const place = best ? key.findIndex((value, k) => value !== best[k]) : 0;
        if (!best || key[place] < best[place]) best = key;
      });
    }
    const [from, diagonal, , layer, worker] = best;
    const start = (diagonal - layer) * chunk;
    const stop = Math.min(start + chunk, steps);
    const task = {layer, start, stop, worker, from, to: from + (stop - start)};
    [free[worker], ran[worker]] = [task.to, layer];
    rows[layer].push(task);
    started.push(task);
  }
  return started;
}
globalThis.lstmWavefront = wavefront;

const SLIDERS = {  // text, least, most, step, value
  layers: ['Layers', 1, 16, 1, 4],
  steps: ['Steps', 1, 200, 1, 48],
  chunk: ['Chunk, in steps', 1, 48, 1, 4],
  workers: ['Workers', 1, 16, 1, 2],
  hand: ['Hand-over, in steps', 0, 4, 0.1, 0.1],
};
const digits = (value) => String(Number(value.toPrecision(3)));

function make(tag, attributes, ...children) {
  const drawn = ['svg', 'rect', 'text'].includes(tag);
  const space = drawn ? 'http://www.w3.org/2000/svg' : 'http://www.w3.org/1999/xhtml';
  const element = document.createElementNS(space, tag);
  Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
  element.append(...children);
  return element;
}

/* What a schedule takes, in words. */
function told({layers, steps, chunk}, tasks) {
  const end = Math.max(...tasks.map((task) => task.to));
  const [one, bound] = [layers * steps, layers * steps / (steps + (layers - 1) * chunk)];
  const employed = new Set(tasks.map((task) => task.worker)).size;
  const idle = Math.max(0, 100 * (1 - one / (end * employed)));
  const fast = end > one ? `${digits(100 * (1 - one / end))} % slower than` : `${digits(one / end)}x`;
  return `Makespan ${digits(end)} steps, ${fast} one worker (${one} steps). The bound `
    + `L T / (T + (L − 1) C) is ${digits(bound)}x. Idle: ${digits(idle)} %.`;
}

/* The Gantt chart: a lane per worker, a rectangle per task with the number of its layer. */
function draw(svg, {layers}, tasks, width) {
  const end = Math.max(...tasks.map((task) => task.to));
  const [left, lane, scale] = [64, 22, (width - 70) / end];
  const lanes = 1 + Math.max(...tasks.map((task) => task.worker));
  const parts = [];
  for (let worker = 0; worker < lanes; worker++) {
    parts.push(make('text', {x: 0, y: lane * worker + 15}, `worker ${worker}`));
  }
  for (const {layer, worker, from, to} of tasks) {
    const [x, wide, y] = [left + from * scale, (to - from) * scale, lane * worker];
    const hue = `--hue: ${100 * layer / Math.max(1, layers - 1)}%`;
    const size = {x, y, width: Math.max(wide - 1, 0.5), height: lane - 2};
    parts.push(make('rect', {style: hue, ...size}));
    if (wide < 18) continue;
    parts.push(make('text', {class: 'on', x: x + wide / 2 - 8, y: y + 15}, layer));
  }
  const unit = `0 to ${digits(end)} steps; a number is the layer of a task`;
  parts.push(make('text', {x: left, y: lane * lanes + 16}, unit));
  svg.replaceChildren(...parts);
  svg.setAttribute('viewBox', `0 0 ${width} ${lane * lanes + 24}`);
}

function mount(host) {
  const [form, text] = [make('form', {'aria-label': 'Schedule'}), make('p', {'aria-live': 'polite'})];
  const svg = make('svg', {role: 'img', 'aria-label': 'Tasks over time, a lane per worker'});
  for (const [name, [label, min, max, step, value]] of Object.entries(SLIDERS)) {
    const input = make('input', {type: 'range', name, min, max, step, value});
    form.append(make('label', {}, `${label}: `, make('span', {}), input));
  }
  const choices = ['point-to-point', 'barrier'].map((value) => make('option', {value}, value));
  form.append(make('label', {}, 'Order', make('select', {name: 'order'}, ...choices)));
  host.replaceChildren(form, text, svg);
  const update = () => {
    form.chunk.max = Math.min(48, form.steps.value);  // a larger chunk becomes this one
    const settings = {order: form.order.value};
    for (const name of Object.keys(SLIDERS)) {
      settings[name] = form[name].valueAsNumber;
      form[name].previousSibling.textContent = form[name].value;
    }
    const tasks = wavefront(settings);
    text.textContent = told(settings, tasks);
    draw(svg, settings, tasks, Math.max(320, host.clientWidth));
  };
  form.addEventListener('input', update);
  new ResizeObserver(update).observe(host);
}

addEventListener('DOMContentLoaded', () => document.querySelectorAll('.schedules').forEach(mount));
})();

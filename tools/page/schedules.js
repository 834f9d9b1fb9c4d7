/* The schedule explorer stands below figures of class `schedules`.
 *
 * `wavefront` is a port of the forward wavefront of lstm_kernels/schedules.py, which counts with
 * a step and a hand-over: the same tasks in the same order, and their times to the last bit, so
 * ties break as Python compares tuples. tests/test_explorer.py compares the two.
 */
'use strict';

/* The tasks {layer, start, stop, worker, from, to} in the order in which they start. The next is
 * the one that can start first; among several that of the first diagonal, on a worker that ran
 * its layer before. Times are in steps. */
function wavefront({layers, steps, chunk, workers, hand}) {
  const free = Array(Math.min(workers, layers)).fill(0);  // when each worker is
  const ran = [];  // the layer that each ran last
  const rows = Array.from({length: layers}, () => []);  // the tasks of each layer
  const [chunks, started] = [Math.ceil(steps / chunk), []];
  // What chunk `count` of a layer waits for, or null while that has not all been started.
  const waits = (layer, count) => {
    const cells = [[layer - 1, count], [layer, count - 1]].filter(([l, c]) => l >= 0 && c >= 0);
    const tasks = cells.map(([l, c]) => rows[l][c]);
    return tasks.includes(undefined) ? null : tasks;
  };
  while (started.length < layers * chunks) {
    const idle = free.indexOf(Math.min(...free));
    let best = null;
    rows.forEach(({length: count}, layer) => {
      const others = count < chunks ? waits(layer, count) : null;
      if (others) free.forEach((time, worker) => {
        const moved = ran[worker] !== layer;
        if (moved && worker !== idle && !others.some((other) => other.worker === worker)) return;
        const handed = others.map((other) => other.to + hand * (other.worker !== worker));
        const key = [Math.max(time, ...handed), layer + count, +moved, layer, worker];
        const place = best ? key.findIndex((value, k) => value !== best[k]) : 0;
        if (!best || key[place] < best[place]) best = key;
      });
    });
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

const SLIDERS = {  // text, least, most, step, value
  layers: ['Layers', 1, 16, 1, 4],
  steps: ['Steps', 1, 200, 1, 48],
  chunk: ['Chunk, in steps', 1, 48, 1, 4],
  workers: ['Workers', 1, 16, 1, 2],
  hand: ['Hand-over, in steps', 0, 4, 0.1, 0.1],
};

function make(tag, attributes, ...children) {
  const drawn = ['svg', 'rect', 'text'].includes(tag) ? '2000/svg' : '1999/xhtml';
  const element = document.createElementNS(`http://www.w3.org/${drawn}`, tag);
  Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
  element.append(...children);
  return element;
}

/* What a schedule takes, in words. */
function told({layers, steps, chunk}, end) {
  const [one, digits] = [layers * steps, (value) => Number(value.toPrecision(3))];
  const ratio = end > one ? `${digits(100 * (1 - one / end))} % slower than` : `${digits(one / end)}x`;
  const bound = digits(one / (steps + (layers - 1) * chunk));
  return `Makespan ${digits(end)} steps, ${ratio} one worker (${one} steps). `
    + `The bound L T / (T + (L − 1) C) is ${bound}x. A lane is a worker, a number a layer.`;
}

/* The Gantt chart: a lane per worker, a rectangle per task. */
function drawn({layers}, tasks, end, width) {
  return tasks.flatMap(({layer, worker, from, to}) => {
    const [x, y, wide] = [(from / end) * width, 22 * worker, ((to - from) / end) * width];
    const hue = `--hue: ${100 * layer / Math.max(1, layers - 1)}%`;
    const size = {width: Math.max(wide - 1, 0.5), height: 20};
    const number = make('text', {x: x + wide / 2, y: y + 15}, wide < 18 ? '' : layer);
    return [make('rect', {style: hue, x, y, ...size}), number];
  });
}

function mount(host) {
  const form = make('form', {'aria-label': 'Schedule'});
  const text = make('p', {'aria-live': 'polite'});
  const svg = make('svg', {role: 'img', 'aria-label': 'Tasks over time, a lane per worker'});
  for (const [name, [label, min, max, step, value]] of Object.entries(SLIDERS)) {
    const input = make('input', {type: 'range', name, min, max, step, value});
    form.append(make('label', {}, `${label}: `, make('span', {}), input));
  }
  host.append(form, text, svg);
  const update = () => {
    form.chunk.max = Math.min(48, form.steps.value);  // a larger chunk becomes this one
    const settings = {};
    for (const name of Object.keys(SLIDERS)) {
      settings[name] = form[name].valueAsNumber;
      form[name].previousSibling.textContent = form[name].value;
    }
    const [tasks, width] = [wavefront(settings), Math.max(300, host.clientWidth)];
    const end = Math.max(...tasks.map((task) => task.to));
    text.textContent = told(settings, end);
    svg.replaceChildren(...drawn(settings, tasks, end, width));
    svg.setAttribute('viewBox', `0 0 ${width} ${22 * settings.workers}`);
  };
  form.addEventListener('input', update);
  new ResizeObserver(update).observe(host);
}

addEventListener('DOMContentLoaded', () => document.querySelectorAll('.schedules').forEach(mount));

"use strict";
/* What the ranks hold at any moment. A cell is the place of a chunk (of a segment) at a rank; in it is a set of
   ranks, those whose values are summed there. Sets are numbered, so that a memory is an array of small numbers. */

class Sets {
  constructor() {
    this.members = [[]];
    this.numbers = new Map([["", 0]]);
    this.unions = new Map();
  }

  of(ranks) {
    const key = ranks.join();
    if (!this.numbers.has(key)) {
      this.numbers.set(key, this.members.length);
      this.members.push(ranks);
    }
    return this.numbers.get(key);
  }

  union(a, b) {
    if (a === b || b === 0) return a;
    if (a === 0) return b;
    const key = a < b ? `${a} ${b}` : `${b} ${a}`;
    if (!this.unions.has(key)) {
      const ranks = new Set([...this.members[a], ...this.members[b]]);
      this.unions.set(key, this.of([...ranks].sort((x, y) => x - y)));
    }
    return this.unions.get(key);
  }
}

/* A message of the data is [step, source, target, first transfer, transfers, bytes of a segment]. */
const STEP = 0, SOURCE = 1, TARGET = 2, FIRST = 3, COUNT = 4, BYTES = 5;

class Replay {
  constructor(view) {
    this.view = view;
    this.sets = new Sets();
    this.columns = view.chunks * view.segments;
    this.start = new Int32Array(view.ranks * view.chunks);
    this.wanted = new Uint8Array(view.ranks * view.chunks);
    this.whole = view.starts.map((ranks) => this.sets.of(ranks));
    view.starts.forEach((ranks, chunk) => {
      for (const rank of ranks) this.start[rank * view.chunks + chunk] = this.sets.of([rank]);
    });
    view.ends.forEach((ranks, chunk) => {
      for (const rank of ranks) this.wanted[rank * view.chunks + chunk] = 1;
    });
    this.byStep = Array.from({ length: view.steps }, () => []);
    view.messages.forEach((message, number) => this.byStep[message[STEP]]?.push(number));
    this.values = this.run();
    this.events = [...new Set([0, ...view.end_s])].sort((a, b) => a - b);
  }

  /* The set that each transfer carries: all transfers of a step read before any of them writes. */
  run() {
    const { view } = this;
    const values = new Int32Array(view.transfers.length);
    const held = this.start.slice();
    for (const numbers of this.byStep) {
      for (const number of numbers) {
        this.each(number, (transfer, chunk) => {
          values[transfer] = held[view.messages[number][SOURCE] * view.chunks + chunk];
        });
      }
      for (const number of numbers) this.deliver(held, view.chunks, 1, 0, number, values);
    }
    return values;
  }

  each(number, visit) {
    const { view } = this;
    const message = view.messages[number];
    for (let t = message[FIRST]; t < message[FIRST] + message[COUNT]; t++) visit(t, view.transfers[t], view.reduces[t]);
  }

  /* Write one message into cells of `columns` a rank, where a chunk has `segments` of them. */
  deliver(held, columns, segments, segment, number, values = this.values) {
    const target = this.view.messages[number][TARGET];
    this.each(number, (transfer, chunk, reduces) => {
      const cell = target * columns + chunk * segments + segment;
      held[cell] = reduces ? this.sets.union(held[cell], values[transfer]) : values[transfer];
    });
  }

  /* Cells by rank, chunk and segment, before anything was sent. */
  spread() {
    const { segments } = this.view;
    const held = new Int32Array(this.start.length * segments);
    for (let cell = 0; cell < held.length; cell++) held[cell] = this.start[Math.floor(cell / segments)];
    return held;
  }

  /* Cells after the steps below `step`; goes on from the last ones asked for, where those are earlier. */
  atStep(step) {
    const { segments } = this.view;
    const known = this.known && this.known.step <= step ? this.known : { step: 0, held: this.spread() };
    const held = known.held.slice();
    this.known = { step, held };
    for (const numbers of this.byStep.slice(known.step, step)) {
      for (const number of numbers) {
        for (let s = 0; s < segments; s++) this.deliver(held, this.columns, segments, s, number);
      }
    }
    return held.slice();
  }

  /* Cells at a moment. Writes of a cell count in the order of steps, whenever they came. */
  atTime(time_s) {
    const { view } = this;
    const held = this.spread();
    for (let number = 0; number < view.messages.length; number++) {
      for (let s = 0; s < view.segments; s++) {
        if (view.end_s[s * view.messages.length + number] <= time_s) {
          this.deliver(held, this.columns, view.segments, s, number);
        }
      }
    }
    return held;
  }

  /* Messages on their way: number, segment (-1: all of them) and how far. */
  movingAtStep(position) {
    const step = Math.floor(position);
    const part = position - step;
    return part > 0 && step < this.byStep.length ? this.byStep[step].map((number) => ({ number, segment: -1, part })) : [];
  }

  movingAtTime(time_s) {
    const { messages, start_s, end_s, segments } = this.view;
    const found = [];
    for (let place = 0; place < messages.length * segments; place++) {
      if (start_s[place] <= time_s && time_s < end_s[place]) {
        const part = (time_s - start_s[place]) / (end_s[place] - start_s[place]);
        found.push({ number: place % messages.length, segment: Math.floor(place / messages.length), part });
      }
    }
    return found;
  }

  /* Whether every receiver holds every chunk complete. */
  complete(held) {
    const { segments } = this.view;
    return held.every((set, cell) => {
      const place = Math.floor(cell / segments);
      return !this.wanted[place] || set === this.whole[place % this.view.chunks];
    });
  }
}

const seconds = (value) => {
  for (const [unit, scale, limit] of [["us", 1e6, 1e-3], ["ms", 1e3, 0.1], ["s", 1, Infinity]]) {
    if (value < limit) return `${value ? (value * scale).toPrecision(3) : "0"} ${unit}`;
  }
  return "";
};

const bytes = (value) => {
  for (const [unit, scale] of [["B", 1], ["kB", 1e3], ["MB", 1e6], ["GB", 1e9]]) {
    if (value < 999.5 * scale || unit === "GB") return `${+(value / scale).toPrecision(3)} ${unit}`;
  }
  return "";
};

/* "0, 1, 2" or "0, 1, 2 and 5 more". */
const listed = (items, most = 6) =>
  items.length <= most ? items.join(", ") : `${items.slice(0, most).join(", ")} and ${items.length - most} more`;

/* What a chunk is called in the page. */
const chunkName = (view, chunk) => {
  const block = Math.floor((chunk * view.blocks) / view.chunks);
  if (view.collective === "all_to_all") {
    const group = view.group;
    return `${group[Math.floor(block / group.length)]}\u2192${group[block % group.length]}`;
  }
  return `${chunk}`;
};

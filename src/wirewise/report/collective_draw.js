/* Memories, messages, time lines and the network, drawn for one moment. */

const LIGHT = { ink: "#1b1f24", soft: "#5a6470", rule: "#d9dee4", paper: "#fff", panel: "#f6f7f9" };
const FONT = 'system-ui,-apple-system,"Segoe UI",Roboto,sans-serif';

/* Colours of the page as it is shown; on paper always the light ones. */
const inks = (printing) => {
  if (printing) return LIGHT;
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(Object.keys(LIGHT).map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
};

/* Neighbouring ranks differ in hue, and in lightness too where there are many. */
const colours = new Map();
const rankColour = (rank, ranks) => {
  if (!colours.has(ranks)) {
    const light = (n) => (ranks > 8 && n % 2 ? 68 : 52);
    const of = (_, n) => `hsl(${Math.round((360 * n) / ranks + 205) % 360} 62% ${light(n)}%)`;
    colours.set(ranks, Array.from({ length: ranks }, of));
  }
  return colours.get(ranks)[rank];
};

const prepare = (canvas, width, height) => {
  const scale = Math.max(window.devicePixelRatio || 1, 2);
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.clearRect(0, 0, width, height);
  return pen;
};

/* Where things lie on a stage of this width; `small`: one of the strip's pictures; `ranks`: those that have rows. */
const layout = (view, width, small, ranks = everyRank(view), zoom = 1) => {
  const room = small ? 150 : 430 * zoom;
  const row = Math.max(small ? 2 : 11, Math.min(small ? 20 : 46, room / ranks.length));
  const label = small ? 18 : 72;
  const arcs = Math.min(small ? 44 : 150, width * (view.chunks ? 0.2 : 0.5));
  const top = small ? 2 : 20;
  const grid = width - label - arcs;
  const edges = chunkEdges(view).map((part) => label + grid * part);
  const at = new Map(ranks.map((rank, number) => [rank, number]));
  const middle = (rank) => top + row * (at.get(rank) + 0.5);
  return { row, label, arcs, top, grid, edges, height: top + row * ranks.length + 4, small, ranks, at, middle };
};

const everyRank = (view) => Array.from({ length: view.ranks }, (_, rank) => rank);

/* Ranks of words such as "0-7, 12"; all where they name none. */
const chosenRanks = (view, words) => {
  const wanted = new Set();
  for (const [, first, last] of words.matchAll(/(\d+)(?:\s*-\s*(\d+))?/g)) {
    for (let rank = +first; rank <= Math.min(+(last ?? first), view.ranks - 1); rank++) wanted.add(rank);
  }
  const found = everyRank(view).filter((rank) => wanted.has(rank));
  return found.length ? found : everyRank(view);
};

/* Where chunks begin and the last one ends, as parts of a row: each is as wide as its part of the bytes. */
const chunkEdges = (view) => {
  const sizes = view.shares.length ? view.shares : Array(view.chunks).fill(1);
  const whole = sizes.reduce((sum, size) => sum + size, 0);
  let sum = 0;
  return [0, ...sizes.map((size) => (sum += size) / whole)];
};

/* Left end and width of a cell: one segment of a chunk. */
const cellAt = (view, place, column) => {
  const chunk = Math.floor(column / view.segments);
  const wide = (place.edges[chunk + 1] - place.edges[chunk]) / view.segments;
  return { x: place.edges[chunk] + wide * (column % view.segments), wide };
};

/* The cell under a point of a row; -1: none. */
const columnUnder = (view, place, x) => {
  const chunk = place.edges.findLastIndex((edge) => edge <= x);
  if (chunk < 0 || chunk >= view.chunks) return -1;
  const part = (x - place.edges[chunk]) / (place.edges[chunk + 1] - place.edges[chunk]);
  return chunk * view.segments + Math.min(Math.floor(part * view.segments), view.segments - 1);
};

const drawStage = (canvas, width, replay, held, moving, options = {}) => {
  const { view } = replay;
  const place = layout(view, width, options.small, options.ranks, options.zoom);
  const pen = prepare(canvas, width, place.height);
  const ink = inks(options.printing);
  drawLabels(pen, view, place, ink, moving);
  if (view.chunks) {
    drawCells(pen, replay, held, place, ink);
    if (!options.small) drawHeads(pen, replay, place, ink);
    drawTokens(pen, replay, moving, place, ink);
  } else if (!options.small) {
    drawDoing(pen, view, options.time_s, place, ink);
  }
  drawArcs(pen, view, moving, place);
  pen.globalAlpha = 0.45;
  drawArcs(pen, view, options.next ?? [], place);
  return place;
};

const drawLabels = (pen, view, place, ink, moving) => {
  const busy = new Set(moving.flatMap(({ number }) => view.messages[number].slice(SOURCE, TARGET + 1)));
  const size = Math.min(13, place.row * 0.85);
  pen.textBaseline = "middle";
  for (const rank of place.ranks) {
    const y = place.middle(rank);
    pen.fillStyle = rankColour(rank, view.ranks);
    const chip = Math.min(10, place.row - 2);
    pen.fillRect(place.small ? 3 : 0, y - chip / 2, chip, chip);
    if (place.small) continue;
    pen.fillStyle = busy.has(rank) ? ink.ink : ink.soft;
    pen.font = `${busy.has(rank) ? 600 : 400} ${size}px ${FONT}`;
    pen.fillText(place.row >= 16 ? `rank ${rank}` : `${rank}`, 15, y + 0.5);
  }
};

/* Numbers of chunks above the grid: of each one, or of as many as have room. */
const drawHeads = (pen, replay, place, ink) => {
  const { view } = replay;
  pen.fillStyle = ink.soft;
  pen.textAlign = "center";
  const longest = chunkName(view, view.chunks - 1);
  const mean = place.grid / view.chunks;
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((n) => fitted(pen, longest, 11, mean * n - 3)) ?? view.chunks;
  if (every > 1) {
    pen.font = `${Math.min(11, fitted(pen, longest, 11, mean * every - 3) || 11)}px ${FONT}`;
    for (let chunk = 0; chunk < view.chunks; chunk += every) {
      const x = place.edges[chunk];
      pen.fillRect(x, 14, 0.8, 5);
      pen.fillText(chunkName(view, chunk), Math.max(x + (place.edges[chunk + 1] - x) / 2, place.label + 4), 9);
    }
    pen.textAlign = "start";
    return;
  }
  for (let chunk = 0; chunk < view.chunks; chunk++) {
    const name = chunkName(view, chunk);
    const wide = place.edges[chunk + 1] - place.edges[chunk];
    const size = fitted(pen, name, 11, wide - 3);
    if (!size) continue;
    pen.font = `${size}px ${FONT}`;
    pen.fillText(name, place.edges[chunk] + wide / 2, 9);
  }
  pen.textAlign = "start";
};

const drawCells = (pen, replay, held, place, ink) => {
  const { view } = replay;
  const lane = place.row > 8 ? Math.min(5, place.row / 6) : 0.6;
  const boxes = Array.from({ length: replay.columns }, (_, column) => {
    const { x, wide } = cellAt(view, place, column);
    const gap = wide > 7 ? Math.min(3, wide / 7) : 0;
    // Where segments are too narrow for gaps, chunks still have them.
    const last = (column + 1) % view.segments === 0 && wide * view.segments > 7;
    return { x, w: wide - (gap || (last ? 1.5 : 0)) };
  });
  for (const rank of place.ranks) {
    const y = place.top + place.row * place.at.get(rank) + lane / 2;
    for (let column = 0; column < replay.columns; column++) {
      const chunk = Math.floor(column / view.segments);
      const { x, w } = boxes[column];
      const box = { x, y, w, h: place.row - lane };
      const set = held[rank * replay.columns + column];
      pen.fillStyle = ink.panel;
      pen.fillRect(box.x, box.y, box.w, box.h);
      drawSet(pen, replay, set, box);
      const wanted = replay.wanted[rank * view.chunks + chunk];
      if (wanted) drawGoal(pen, box, set === replay.whole[chunk], ink);
      if (set && !place.small) drawName(pen, cellName(replay, set, column), box, ink);
    }
  }
};

/* One colour for moved values; for sums a stripe for each rank whose value is in, lying where cells are narrow. */
const drawSet = (pen, replay, set, box) => {
  const { view, sets } = replay;
  const ranks = sets.members[set];
  if (!view.sums) {
    if (ranks.length) pen.fillStyle = rankColour(ranks[0], view.ranks);
    if (ranks.length) pen.fillRect(box.x, box.y, box.w, box.h);
    return;
  }
  if (box.w < 3 * view.group.length && box.h >= 2 * view.group.length) {
    const high = box.h / view.group.length;
    for (const rank of ranks) {
      pen.fillStyle = rankColour(rank, view.ranks);
      pen.fillRect(box.x, box.y + high * view.group.indexOf(rank), box.w + 0.3, high + 0.3);
    }
    return;
  }
  if (box.w < 3 * view.group.length) {
    // As high as the logarithm of how many values are in: a faint colour for one of 64 was nothing to see.
    const part = Math.log2(1 + ranks.length) / Math.log2(1 + view.group.length);
    const high = part === 1 ? box.h : Math.min(box.h * part, box.h - 1);
    pen.fillStyle = part === 1 ? "hsl(150 55% 38%)" : "hsl(205 62% 48%)";
    if (ranks.length) pen.fillRect(box.x, box.y + box.h - high, box.w, high);
    return;
  }
  const wide = box.w / view.group.length;
  for (const rank of ranks) {
    pen.fillStyle = rankColour(rank, view.ranks);
    pen.fillRect(box.x + wide * view.group.indexOf(rank), box.y, wide + 0.3, box.h);
  }
};

/* Where a chunk has to be at the end: dashed until it is there complete. */
const drawGoal = (pen, box, reached, ink) => {
  // Among many ranks its dashes would hide what is in the cells.
  if (box.w < 12 || box.h < 10) return;
  pen.lineWidth = reached ? 1.6 : 1;
  pen.strokeStyle = reached ? ink.ink : ink.soft;
  pen.setLineDash(reached ? [] : [2, 2.5]);
  pen.strokeRect(box.x + 0.8, box.y + 0.8, box.w - 1.6, box.h - 1.6);
  pen.setLineDash([]);
};

/* Of sums how many values are in; else which chunk it is, and which segment of it. */
const cellName = ({ view, sets }, set, column) => {
  if (view.sums) return `${sets.members[set].length}`;
  const name = chunkName(view, Math.floor(column / view.segments));
  return view.segments > 1 ? `${name}.${column % view.segments}` : name;
};

/* Size of text that fits a width; 0: it would be too small to read. */
const fitted = (pen, text, size, width) => {
  pen.font = `600 ${size}px ${FONT}`;
  const smaller = size * Math.min(1, width / pen.measureText(text).width);
  return smaller < 7.5 ? 0 : smaller;
};

const drawName = (pen, name, box, ink) => {
  // Measuring text is slow, and nothing of it fits into small cells: 16 thousand of 128 ranks took seconds.
  if (box.h < 10 || box.w < 9) return;
  const size = fitted(pen, name, Math.min(12, box.h * 0.6), box.w - 4);
  if (!size) return;
  pen.font = `600 ${size}px ${FONT}`;
  const [x, y] = [box.x + box.w / 2, box.y + box.h / 2 + 0.5];
  pen.textAlign = "center";
  pen.lineWidth = 3;
  pen.lineJoin = "round";
  pen.strokeStyle = ink.paper;
  pen.strokeText(name, x, y);
  pen.fillStyle = ink.ink;
  pen.fillText(name, x, y);
  pen.textAlign = "start";
};

/* Chunks on their way: each travels in its column from row to row. */
const drawTokens = (pen, replay, moving, place, ink) => {
  const { view } = replay;
  const high = Math.max(place.row * 0.5, 2);
  for (const { number, segment, part } of moving) {
    const message = view.messages[number];
    const [from, to] = [place.middle(message[SOURCE]), place.middle(message[TARGET])];
    if (Number.isNaN(from) || Number.isNaN(to)) continue;
    const y = from + (to - from) * part;
    replay.each(number, (transfer, chunk) => {
      for (let s = 0; s < view.segments; s++) {
        if (segment !== -1 && segment !== s) continue;
        const { x, wide } = cellAt(view, place, chunk * view.segments + s);
        const inset = Math.min(3, wide * 0.12);
        const box = { x: x + inset, y: y - high / 2, w: Math.max(wide - 2 * inset - 1, 1), h: high };
        pen.fillStyle = ink.paper;
        pen.fillRect(box.x, box.y, box.w, box.h);
        drawSet(pen, replay, replay.values[transfer], box);
        pen.lineWidth = 1;
        pen.strokeStyle = ink.ink;
        if (box.w > 3) pen.strokeRect(box.x, box.y, box.w, box.h);
      }
    });
  }
};

/* What each rank of a recorded run is in at a moment. */
const drawDoing = (pen, view, time_s, place, ink) => {
  pen.font = `${Math.min(13, place.row * 0.7)}px ${FONT}`;
  pen.fillStyle = ink.ink;
  for (const rank of place.ranks) {
    const found = view.doing[rank].filter(([start, end]) => start <= time_s && time_s < end).map((one) => one[2]);
    pen.fillText(listed([...new Set(found)], 3), place.label + 6, place.middle(rank));
  }
};

const thickness = (view, size) => 1 + 4 * Math.sqrt(size / (view.largest_bytes || 1));

/* One arc a message beside the memories, from the row of its source to that of its target. */
const drawArcs = (pen, view, moving, place) => {
  const left = place.label + place.grid + (place.small ? 3 : 8);
  const seen = new Set();
  for (const { number } of moving) {
    const [, source, target, , , size] = view.messages[number];
    if (seen.has(source * view.ranks + target) || !place.at.has(source) || !place.at.has(target)) continue;
    seen.add(source * view.ranks + target);
    const wide = thickness(view, size) * (place.small ? 0.45 : 1);
    const up = target < source;
    const shift = place.row * (up ? -0.12 : 0.12);
    const from = place.middle(source) + shift;
    const to = place.middle(target) - shift;
    const reach = left + (place.arcs - 22) * (0.25 + 0.75 * (Math.abs(source - target) / Math.max(view.ranks - 1, 1)));
    pen.strokeStyle = pen.fillStyle = rankColour(source, view.ranks);
    pen.lineWidth = wide;
    pen.beginPath();
    pen.moveTo(left, from);
    pen.bezierCurveTo(reach, from, reach, to, left + 3 + wide, to);
    pen.stroke();
    const head = place.small ? 2 + wide : 3.5 + wide;
    pen.beginPath();
    pen.moveTo(left - 2, to);
    pen.lineTo(left - 2 + head * 1.5, to - head * 0.75);
    pen.lineTo(left - 2 + head * 1.5, to + head * 0.75);
    pen.fill();
  }
};

/* Messages of each rank over time: what it sends above, what it receives below. */
const drawTimes = (canvas, width, view, span_s, printing) => {
  const row = Math.max(6, Math.min(24, 420 / view.ranks));
  const [label, top, height] = [72, 2, row * view.ranks + 26];
  const pen = prepare(canvas, width, height);
  const ink = inks(printing);
  const x = (time) => label + ((width - label - 24) * time) / (span_s || 1);
  drawTicks(pen, x, span_s, Math.max(2, Math.floor(width / 130)), top, row * view.ranks, ink);
  for (let rank = 0; rank < view.ranks; rank++) {
    pen.fillStyle = ink.soft;
    pen.textBaseline = "middle";
    pen.font = `${Math.min(12, row * 0.9)}px ${FONT}`;
    pen.fillText(row >= 12 ? `rank ${rank}` : `${rank}`, 0, top + row * (rank + 0.5));
    pen.fillStyle = ink.rule;
    pen.fillRect(label, top + row * (rank + 1) - 0.5, width - label - 24, 0.5);
  }
  for (const [start, end, rank, kind] of view.spans ?? []) {
    pen.fillStyle = ink.rule;
    pen.fillRect(x(start), top + row * rank + 1, Math.max(x(end) - x(start), 0.8), row - 2);
    if (kind && x(end) - x(start) > 60 && row >= 12) {
      pen.fillStyle = ink.soft;
      pen.fillText(kind, x(start) + 4, top + row * (rank + 0.5), x(end) - x(start) - 8);
    }
  }
  view.start_s.forEach((start, place) => {
    const [, source, target] = view.messages[place % view.messages.length];
    pen.fillStyle = rankColour(source, view.ranks);
    const wide = Math.max(x(view.end_s[place]) - x(start), 0.8);
    const edge = wide > 3 ? 0.5 : 0;
    pen.globalAlpha = 1;
    pen.fillRect(x(start) + edge, top + row * source + row * 0.08, wide - 2 * edge, row * 0.38);
    pen.globalAlpha = 0.55;
    pen.fillRect(x(start) + edge, top + row * target + row * 0.52, wide - 2 * edge, row * 0.38);
    pen.globalAlpha = 1;
  });
  return { x, row, top, height, label };
};

const drawTicks = (pen, x, span_s, count, top, high, ink) => {
  const raw = span_s / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const each = [1, 2, 2.5, 5, 10].map((m) => m * power).find((step) => step >= raw * 0.7);
  pen.font = `11px ${FONT}`;
  pen.textAlign = "center";
  pen.textBaseline = "alphabetic";
  for (let tick = 0; tick <= span_s * 1.0001; tick += each) {
    pen.fillStyle = ink.rule;
    pen.fillRect(x(tick), top, 0.6, high);
    pen.fillStyle = ink.soft;
    pen.fillText(tick ? seconds(tick) : "0", x(tick), top + high + 16);
  }
  pen.textAlign = "start";
};

/* The network as SVG text: heat is the part of the time that an edge is busy; the tight cut is red. */
const networkSvg = (view, network) => {
  const [width, height] = [560, 470];
  const at = (v) => [width / 2 + network.places[v][0] * 205, height / 2 + network.places[v][1] * 205];
  const fastest = Math.max(...network.edges.map((edge) => edge[2]), 1);
  const cut = new Set(view.cut_edges);
  const parts = network.edges.map(([source, target, rate], number) => {
    const [[ax, ay], [bx, by]] = [at(source), at(target)];
    const long = Math.hypot(bx - ax, by - ay) || 1;
    const [ux, uy] = [(bx - ax) / long, (by - ay) / long];
    // Each direction keeps to its right, as traffic does.
    const [ox, oy] = [-uy * 4, ux * 4];
    const [sx, sy, tx, ty] = [ax + ux * 15 + ox, ay + uy * 15 + oy, bx - ux * 17 + ox, by - uy * 17 + oy];
    const bend = Math.min(16, long * 0.06);
    const path = `M${sx.toFixed(1)} ${sy.toFixed(1)}Q${((sx + tx) / 2 - uy * bend).toFixed(1)} ${((sy + ty) / 2 + ux * bend).toFixed(1)} ${tx.toFixed(1)} ${ty.toFixed(1)}`;
    const share = Math.min(view.edge_busy_s[number] / (view.finish_s || 1), 1);
    const wide = 1.2 + 3.2 * Math.sqrt(rate / fastest);
    const tip = `${network.names[source]} to ${network.names[target]}${rate ? `, ${rateName(rate)}` : ""}: ${bytes(view.edge_bytes[number])}, busy ${(100 * share).toFixed(0)} % of the time${cut.has(number) ? "; crosses the tight cut" : ""}`;
    const red = cut.has(number) ? `<path d="${path}" class="cut" style="stroke-width:${wide + 5}"/>` : "";
    return `${red}<path d="${path}" class="edge" data-edge="${number}" data-tip="${escaped(tip)}" style="stroke-width:${wide.toFixed(1)};--heat:${share.toFixed(3)}"/>`;
  });
  const inside = new Set(view.cut);
  const linked = new Set(network.edges.flatMap(([source, target]) => [source, target]));
  network.names.forEach((name, v) => {
    const [x, y] = at(v);
    const rank = v < network.ranks;
    if (!rank && !linked.has(v)) return;
    const shape = rank
      ? `<circle cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="14" style="fill:${rankColour(v, network.ranks)}"`
      : `<rect x="${(x - 10).toFixed(1)}" y="${(y - 10).toFixed(1)}" width="20" height="20" rx="4"`;
    parts.push(`${shape} class="vertex${inside.has(v) ? " inside-cut" : ""}" data-tip="${escaped(rank ? `rank ${v}: ${name}` : name)}"/>`);
    parts.push(rank
      ? `<text x="${x.toFixed(1)}" y="${(y + 4.5).toFixed(1)}" class="rank-name">${v}</text>`
      : `<text x="${x.toFixed(1)}" y="${(y + 24).toFixed(1)}" class="vertex-name">${escaped(name)}</text>`);
  });
  return `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="The network and the load of its links">${parts.join("")}</svg>`;
};

const rateName = (rate) => {
  const bits = rate * 8;
  const [unit, scale] = bits >= 1e9 ? ["Gbit/s", 1e9] : bits >= 1e6 ? ["Mbit/s", 1e6] : ["kbit/s", 1e3];
  return `${+(bits / scale).toPrecision(3)} ${unit}`;
};

const escaped = (text) => text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

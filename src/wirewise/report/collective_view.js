/* The controls: what is shown, which moment, playing, and the quiz. */

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("views").textContent);
const STEP_S = 1.1, RUN_S = 9;
/* A frame that comes late, in a busy or hidden window, skips no step. */
const FRAME_S = 0.1;
/* Most pictures of the strip. */
const STRIP = 36;
/* Ranks above which pictures of the strip wait until they are seen. */
const MANY = 32;
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;

/* `position`: steps done, with a fraction while one goes on; or seconds. */
const state = { shown: [0], steps: true, position: 0, playing: false, speed: 1, quiz: null, right: 0, asked: 0, zoom: 1, ranks: "" };
const replays = new Map();
let printing = false;

const replayOf = (number) => {
  if (!replays.has(number)) replays.set(number, new Replay(data.views[number]));
  return replays.get(number);
};
const shownReplays = () => state.shown.map(replayOf);
const recorded = () => shownReplays().some(({ view }) => view.chunks === 0);
const span = () => Math.max(...shownReplays().map(({ view }) => (state.steps ? view.steps : view.finish_s)));

/* Moments that forward and back stop at. */
const stops = () => {
  if (state.steps) return Array.from({ length: span() + 1 }, (_, step) => step);
  return [...new Set(shownReplays().flatMap((replay) => replay.events))].sort((a, b) => a - b);
};

/* Rows that are shown, and how large. */
const rows = ({ view }) => ({ ranks: chosenRanks(view, state.ranks), zoom: state.zoom });

const moment = (replay) => {
  if (!state.steps) return { held: replay.atTime(state.position), moving: replay.movingAtTime(state.position) };
  const position = Math.min(state.position, replay.view.steps);
  return { held: replay.atStep(Math.floor(position)), moving: replay.movingAtStep(position) };
};

const draw = () => {
  shownReplays().forEach((replay, side) => {
    const canvas = byId(`stage${side}`);
    const { held, moving } = moment(replay);
    const next = state.steps && !moving.length && state.quiz === null ? replay.movingAtStep(state.position + 1e-9) : [];
    canvas.style.width = `${100 * state.zoom}%`;
    drawStage(canvas, canvas.clientWidth, replay, held, moving, { printing, next, time_s: state.position, ...rows(replay) });
    byId(`said${side}`).textContent = said(replay, held, moving);
    lightEdges(replay, moving);
    const marker = byId(`now${side}`);
    marker.hidden = state.steps;
    if (!state.steps) marker.style.left = `${times[side].x(state.position)}px`;
  });
  const slider = byId("slider");
  slider.max = span();
  slider.step = state.steps ? 1 : span() / 1000;
  slider.value = state.position;
  slider.setAttribute("aria-valuetext", where());
  byId("where").textContent = where();
  byId("play").setAttribute("aria-pressed", state.playing);
  byId("play").querySelector("span").textContent = state.playing ? "Pause" : "Play";
  for (const one of document.querySelectorAll("#strip button")) {
    one.classList.toggle("here", state.steps && +one.dataset.step === Math.floor(state.position));
  }
};

const where = () =>
  state.steps ? `step ${Math.floor(state.position)} of ${span()}` : `${seconds(state.position)} of ${seconds(span())}`;

/* What happens, in words. */
const said = (replay, held, moving) => {
  const { view } = replay;
  if (state.quiz !== null && !moving.length) return "What comes next?";
  const messages = moving.length || !state.steps ? moving.map(({ number }) => number) : replay.byStep[state.position] ?? [];
  if (!messages.length) {
    if (!view.chunks) return "No message is on its way.";
    if (replay.complete(held)) return "Done: every rank holds what it should.";
    return "Nothing is sent here.";
  }
  const one = sentence(replay, messages[0], state.steps ? -1 : moving[0].segment);
  const more = messages.length > 1 ? ` ${messages.length - 1} other message${messages.length > 2 ? "s" : ""} at the same time.` : "";
  return `${state.steps && !moving.length ? "Next: " : ""}${one}${more}`;
};

const sentence = (replay, number, segment) => {
  const { view } = replay;
  const [, source, target, , , size] = view.messages[number];
  if (!view.chunks) return `Rank ${source} sends ${bytes(size)} to rank ${target}.`;
  const part = segment >= 0 && view.segments > 1 ? `segment ${segment} of ` : "";
  const count = segment >= 0 ? 1 : view.segments;
  return `Rank ${source} sends ${part}${freight(replay, number)} to rank ${target}, ${bytes(size * count)}.`;
};

const freight = (replay, number) => {
  const names = [];
  let adds = 0;
  replay.each(number, (transfer, chunk, reduces) => {
    names.push(chunkName(replay.view, chunk));
    adds ||= reduces;
  });
  return `chunk${names.length > 1 ? "s" : ""} ${listed(names, 4)}${adds ? " to be added" : ""}`;
};

const lightEdges = (replay, moving) => {
  const { view } = replay;
  const side = state.shown.indexOf(data.views.indexOf(view));
  const used = new Set(moving.flatMap(({ number }) => view.routes[view.messages[number].slice(SOURCE, TARGET + 1).join()] ?? []));
  for (const edge of byId(`network${side}`).querySelectorAll(".edge")) {
    edge.classList.toggle("used", used.has(+edge.dataset.edge));
  }
};

/* All that depends on what is shown and not on the moment. */
let times = [];
const show = () => {
  const both = state.shown.length > 1;
  document.body.classList.toggle("both", both);
  for (const side of [0, 1]) for (const part of document.querySelectorAll(`.side${side}`)) part.hidden = side >= state.shown.length;
  if (recorded()) state.steps = false;
  byId("mode-steps").disabled = recorded();
  byId("quiz-toggle").disabled = recorded();
  byId("mode-steps").checked = state.steps;
  byId("mode-time").checked = !state.steps;
  const longest = Math.max(...shownReplays().map(({ view }) => view.finish_s));
  times = shownReplays().map(({ view }, side) => {
    byId(`title${side}`).textContent = view.title;
    byId(`times-title${side}`).textContent = view.title;
    const canvas = byId(`times${side}`);
    const network = data.networks[view.network];
    byId(`network${side}`).innerHTML = networkSvg(view, network);
    byId(`cut${side}`).textContent = view.cut_words;
    byId(`network-title${side}`).textContent = `${view.title} on ${network.name}`;
    return drawTimes(canvas, canvas.clientWidth, view, longest, printing);
  });
  state.position = Math.min(state.position, span());
  drawStrip();
  draw();
};

/* One picture a step; the only moving thing on paper. */
const drawStrip = () => {
  const strip = byId("strip");
  strip.replaceChildren();
  for (const replay of shownReplays()) {
    if (state.shown.length > 1) strip.append(element("h3", "", replay.view.title));
    for (const at of stripMoments(replay)) strip.append(picture(replay, at));
  }
};

const stripMoments = ({ view }) => {
  const begins = [...view.start_s, ...(view.spans ?? []).map(([start]) => start)];
  const all = view.chunks
    ? Array.from({ length: view.steps + 1 }, (_, step) => step)
    : [...new Set(begins)].sort((a, b) => a - b);
  if (all.length <= STRIP) return all;
  return Array.from({ length: STRIP }, (_, i) => all[Math.round((i * (all.length - 1)) / (STRIP - 1))]);
};

const picture = (replay, at) => {
  const { view } = replay;
  const button = element("button", "frame", "");
  const canvas = document.createElement("canvas");
  const inSteps = view.chunks > 0;
  const last = inSteps && at === view.steps;
  const held = inSteps ? replay.atStep(at) : replay.spread();
  const moving = inSteps ? (last ? [] : replay.movingAtStep(at + 1e-9)) : replay.movingAtTime(at);
  button.type = "button";
  button.append(canvas, element("span", "", inSteps ? (last ? "end" : `step ${at + 1}`) : seconds(at)));
  button.dataset.step = inSteps ? at : -1;
  button.addEventListener("click", () => {
    state.steps = inSteps && !recorded();
    pause();
    show();
    move(at);
  });
  const drawn = () =>
    drawStage(canvas, 232, replay, held, inSteps ? moving.map((one) => ({ ...one, part: 0 })) : moving, { small: true, printing });
  // Of many ranks a picture takes a while: those that nobody looks at are not drawn.
  if (printing || view.ranks <= MANY) drawn();
  else whenSeen(button, drawn);
  return button;
};

const whenSeen = (one, action) => {
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    action();
  });
  observer.observe(one);
};

const element = (tag, name, text) => {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.textContent = text;
  return made;
};

const move = (position) => {
  state.position = Math.max(0, Math.min(position, span()));
  if (state.quiz !== null) ask();
  draw();
  remember();
};

const pause = () => { state.playing = false; };

const forward = () => {
  pause();
  move(stops().find((stop) => stop > state.position + 1e-12) ?? span());
};
const back = () => {
  pause();
  move(stops().findLast((stop) => stop < state.position - 1e-12) ?? 0);
};

const play = () => {
  state.playing = !state.playing;
  if (state.playing && state.position >= span()) state.position = 0;
  if (state.playing) {
    let before = null;
    const tick = (now) => {
      if (!state.playing) return;
      const passed = Math.min((now - (before ?? now)) / 1000, FRAME_S) * state.speed;
      before = now;
      const rate = state.steps ? 1 / STEP_S : span() / RUN_S;
      state.position = Math.min(state.position + passed * rate, span());
      if (state.position >= span()) pause();
      draw();
      if (state.playing) requestAnimationFrame(tick);
      else remember();
    };
    requestAnimationFrame(tick);
  } else if (state.steps) {
    state.position = Math.round(state.position);
  }
  draw();
};

/* With less motion, playing goes from step to step. */
const playCalmly = () => {
  state.playing = !state.playing;
  const tick = () => {
    if (!state.playing) return;
    const next = stops().find((stop) => stop > state.position + 1e-12);
    if (next === undefined) pause();
    else move(next);
    if (state.playing) setTimeout(tick, (STEP_S * 1000) / state.speed);
    else draw();
  };
  if (state.playing && state.position >= span()) state.position = 0;
  setTimeout(tick, 0);
  draw();
};

/* The quiz: what does one rank get in the next step? */
const ask = () => {
  const replay = replayOf(state.shown[0]);
  const step = Math.floor(state.position);
  const box = byId("quiz");
  box.replaceChildren();
  state.quiz = step;
  if (step >= replay.view.steps) {
    box.append(element("p", "question", `The end. ${score()}`));
    return;
  }
  const { target, choices, answer } = question(replay, step);
  box.append(element("p", "question", `Step ${step + 1}: what does rank ${target} get next?`));
  choices.forEach((text, number) => {
    const button = element("button", "choice", `${number + 1}  ${text}`);
    button.type = "button";
    button.addEventListener("click", () => answered(number, answer));
    box.append(button);
  });
  box.append(element("p", "verdict", score()));
};

const question = (replay, step) => {
  const numbers = replay.byStep[step];
  const into = new Map();
  for (const number of numbers) {
    const target = replay.view.messages[number][TARGET];
    into.set(target, [...(into.get(target) ?? []), number]);
  }
  const targets = [...into.keys()];
  const target = targets.length ? targets[(step * 5 + 1) % targets.length] : 0;
  const right = into.has(target) ? told(replay, into.get(target)[0]) : "nothing";
  const actual = new Set((into.get(target) ?? []).map((number) => told(replay, number)));
  const others = new Set(replay.view.messages.map((_, number) => told(replay, number, target)).filter(Boolean));
  const wrong = [...others].filter((text) => !actual.has(text));
  if (right !== "nothing") wrong.push("nothing");
  const picked = spaced(wrong, 3, step);
  const place = (step * 7 + 2) % (picked.length + 1);
  picked.splice(place, 0, right);
  return { target, choices: picked, answer: place };
};

/* A message from a rank's view; null if the rank itself sends it. */
const told = (replay, number, target) => {
  const source = replay.view.messages[number][SOURCE];
  return source === target ? null : `${freight(replay, number)} from rank ${source}`;
};

/* Some of the items, the same ones every time. */
const spaced = (items, count, seed) => {
  const left = [...items];
  const picked = [];
  let drawn = seed * 2654435761 + 12345;
  while (left.length && picked.length < count) {
    drawn = (drawn * 1103515245 + 12345) % 2147483648;
    picked.push(...left.splice(drawn % left.length, 1));
  }
  return picked;
};

const score = () => (state.asked ? `${state.right} of ${state.asked} right.` : "Keys 1 to 4 answer.");

const answered = (number, answer) => {
  const box = byId("quiz");
  const buttons = [...box.querySelectorAll(".choice")];
  if (buttons.some((button) => button.disabled)) return;
  state.asked += 1;
  if (number === answer) state.right += 1;
  buttons.forEach((button, place) => {
    button.disabled = true;
    if (place === answer) button.classList.add("right");
    else if (place === number) button.classList.add("wrong");
  });
  box.querySelector(".verdict").textContent = `${number === answer ? "Right." : "No."} ${score()} Right arrow: next step.`;
};

const toggleQuiz = () => {
  if (recorded()) return;
  const on = state.quiz === null;
  state.quiz = on ? 0 : null;
  state.right = state.asked = 0;
  byId("quiz").hidden = !on;
  document.body.classList.toggle("quizzing", on);
  byId("quiz-toggle").setAttribute("aria-pressed", on);
  pause();
  if (on) setMode(true);
  state.position = Math.floor(state.position);
  if (on) ask();
  draw();
};

const setMode = (steps) => {
  if (steps === state.steps) return;
  // The place in the run is kept as a share of it.
  const share = state.position / (span() || 1);
  state.steps = steps && !recorded();
  pause();
  state.position = state.steps ? Math.round(share * span()) : share * span();
  if (!state.steps && state.quiz !== null) toggleQuiz();
  show();
  remember();
};

/* The state is in the address, so that a moment can be linked to. */
const remember = () => {
  const words = [`show=${state.shown.join("+")}`, `mode=${state.steps ? "steps" : "time"}`, `at=${+state.position.toPrecision(6)}`];
  history.replaceState(null, "", `#${words.join("&")}`);
};
const recall = () => {
  const words = new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B"));
  const wanted = (words.get("show") ?? "").split("+").filter(Boolean).map(Number).filter((n) => n in data.views);
  if (wanted.length) state.shown = wanted.slice(0, 2);
  state.steps = words.get("mode") !== "time";
  state.position = Math.max(Number(words.get("at")) || 0, 0);
  if (recorded()) state.steps = false;
  state.position = Math.min(state.position, span());
  byId("left").value = state.shown[0];
  byId("right").value = state.shown[1] ?? -1;
};

const start = () => {
  recall();
  const toggle = calm ? playCalmly : play;
  const actions = { first: () => { pause(); move(0); }, back, play: toggle, forward, last: () => { pause(); move(span()); }, "quiz-toggle": toggleQuiz };
  for (const [id, action] of Object.entries(actions)) byId(id).addEventListener("click", action);
  byId("slider").addEventListener("input", (event) => { pause(); move(+event.target.value); });
  byId("speed").addEventListener("change", (event) => { state.speed = +event.target.value; });
  byId("mode-steps").addEventListener("change", () => setMode(true));
  byId("mode-time").addEventListener("change", () => setMode(false));
  const choose = () => {
    const chosen = [+byId("left").value, +byId("right").value];
    state.shown = chosen[1] < 0 || chosen[1] === chosen[0] ? [chosen[0]] : chosen;
    byId("right").value = state.shown[1] ?? -1;
    pause();
    state.position = 0;
    show();
    if (state.quiz !== null) ask();
    remember();
  };
  for (const id of ["left", "right"]) byId(id).addEventListener("change", choose);
  byId("zoom").addEventListener("change", (event) => { state.zoom = +event.target.value; draw(); });
  byId("ranks").addEventListener("input", (event) => { state.ranks = event.target.value; draw(); });
  const keys = { " ": toggle, ArrowRight: forward, ArrowLeft: back, Home: actions.first, End: actions.last, q: toggleQuiz, m: () => setMode(!state.steps) };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select, input[type=radio], input[type=text]")) return;
    if (event.key === " " && event.target.matches("button")) return;
    const choice = byId("quiz").querySelectorAll(".choice")[event.key - 1];
    const action = choice ? () => choice.click() : keys[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  for (const side of [0, 1]) {
    byId(`stage${side}`).addEventListener("pointermove", (event) => point(event, side));
    byId(`times${side}`).addEventListener("pointermove", (event) => pointTime(event, side));
  }
  let wide = byId("viewer").clientWidth;
  new ResizeObserver(() => {
    // The first call comes at once, and a change of height needs no new pictures.
    if (byId("viewer").clientWidth === wide) return;
    wide = byId("viewer").clientWidth;
    show();
  }).observe(byId("viewer"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  addEventListener("beforeprint", () => { printing = true; show(); });
  addEventListener("afterprint", () => { printing = false; show(); });
  addEventListener("hashchange", () => { recall(); show(); });
  show();
};

/* What lies under the pointer. */
const point = (event, side) => {
  const replay = replayOf(state.shown[side]);
  const { view } = replay;
  const canvas = event.target;
  const { ranks: shown, zoom } = rows(replay);
  const place = layout(view, canvas.clientWidth, false, shown, zoom);
  const rank = place.ranks[Math.floor((event.offsetY - place.top) / place.row)] ?? -1;
  const column = columnUnder(view, place, event.offsetX);
  if (rank < 0 || rank >= view.ranks) delete canvas.dataset.tip;
  else if (!view.chunks || column < 0) canvas.dataset.tip = `rank ${rank}`;
  else {
    const chunk = Math.floor(column / view.segments);
    const ranks = replay.sets.members[moment(replay).held[rank * replay.columns + column]];
    const part = view.segments > 1 ? `, segment ${column % view.segments}` : "";
    const what = ranks.length ? `value${ranks.length > 1 ? "s" : ""} of rank${ranks.length > 1 ? "s" : ""} ${listed(ranks, 16)}` : "empty";
    const goal = replay.wanted[rank * view.chunks + chunk] ? "; has to be complete at the end" : "";
    canvas.dataset.tip = `rank ${rank}, chunk ${chunkName(view, chunk)}${part}: ${what}${goal}`;
  }
};

const pointTime = (event, side) => {
  const { view } = replayOf(state.shown[side]);
  const { x, row, top } = times[side];
  const rank = Math.floor((event.offsetY - top) / row);
  const sends = (event.offsetY - top) / row - rank < 0.5;
  const under = view.start_s.findIndex((start, place) => {
    const message = view.messages[place % view.messages.length];
    const near = x(start) - 1 <= event.offsetX && event.offsetX <= x(view.end_s[place]) + 1;
    return near && message[sends ? SOURCE : TARGET] === rank;
  });
  if (under < 0) {
    delete event.target.dataset.tip;
    return;
  }
  const [step, source, target, , , size] = view.messages[under % view.messages.length];
  const when = `${seconds(view.start_s[under])} to ${seconds(view.end_s[under])}`;
  event.target.dataset.tip = `rank ${source} to rank ${target}, ${view.chunks ? `step ${step + 1}, ` : ""}${bytes(size)}: ${when}`;
};

start();

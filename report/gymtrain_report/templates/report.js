"use strict";

const PAGE = 50;
const text = document.getElementById("data").textContent.trim();
const embedded = text ? JSON.parse(text) : null;

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function short(value, digits = 3) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits)));
}

// --- where rollouts come from: the file itself, or who serves the page ---

const local = {
  async overview() { return embedded.overview; },
  async search(wanted) {
    const words = wanted.q.toLowerCase().split(/\s+/).filter(Boolean);
    const same = (one, name) => wanted[name] === "" || String(one[name]) === wanted[name];
    const found = embedded.rollouts.filter((one) =>
      ["outcome", "agent", "step", "group"].every((name) => same(one, name))
      && words.every((word) => (one.words ??= JSON.stringify([one.conversation, one.error]).toLowerCase()).includes(word)));
    const last = (value, least) => value ?? (least ? Infinity : -Infinity);
    const orders = {
      newest: (a, b) => b.step - a.step || a.id - b.id,
      oldest: (a, b) => a.step - b.step || a.id - b.id,
      reward: (a, b) => last(b.reward) - last(a.reward) || b.step - a.step,
      "-reward": (a, b) => last(a.reward, true) - last(b.reward, true) || b.step - a.step,
      tokens: (a, b) => last(b.tokens) - last(a.tokens),
      seconds: (a, b) => last(b.seconds) - last(a.seconds),
    };
    found.sort(orders[wanted.sort]);
    return { total: found.length, rollouts: found.slice(wanted.offset, wanted.offset + PAGE) };
  },
  async rollout(id) { return embedded.rollouts[id]; },
};

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(20000) });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

const remote = {
  overview: () => ask("api/overview"),
  search: (wanted) => ask("api/rollouts?" + new URLSearchParams(wanted)),
  rollout: (id) => ask("api/rollouts/" + id),
};

const source = embedded ? local : remote;

// --- curves ---

function chart(title, series, { zero = false } = {}) {
  const [width, height, left, right, top, bottom] = [420, 190, 46, 10, 8, 22];
  const points = series.flatMap((one) => one.points);
  if (points.length === 0) return null;
  const xs = points.map((p) => p.x), ys = points.flatMap((p) => [p.low ?? p.y, p.high ?? p.y]);
  let [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  if (zero) y0 = Math.min(0, y0);
  if (x1 === x0) x1 = x0 + 1;
  if (y1 === y0) y1 = y0 + 1;
  const x = (value) => (left + (value - x0) / (x1 - x0) * (width - left - right)).toFixed(1);
  const y = (value) => (height - bottom - (value - y0) / (y1 - y0) * (height - top - bottom)).toFixed(1);
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  for (let tick = 0; tick <= 3; tick += 1) {
    const value = y0 + (y1 - y0) * tick / 3;
    drawn.append(
      svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 6, y: Number(y(value)) + 4, "text-anchor": "end" }, short(value, 2)));
  }
  drawn.append(svg("text", { x: left, y: height - 6 }, `step ${short(x0)}`),
    svg("text", { x: width - right, y: height - 6, "text-anchor": "end" }, short(x1)));
  series.forEach((one, number) => {
    const color = one.color ?? `c${number % 4}`;
    const bands = one.points.filter((p) => p.low !== undefined && p.low !== null && p.high !== null);
    if (bands.length > 1) {
      const edge = [...bands.map((p) => `${x(p.x)},${y(p.high)}`), ...bands.reverse().map((p) => `${x(p.x)},${y(p.low)}`)];
      drawn.append(svg("polygon", { class: `band ${color}`, points: edge.join(" ") }));
    }
    drawn.append(svg("polyline", { class: `curve ${color}`, points: one.points.map((p) => `${x(p.x)},${y(p.y)}`).join(" ") }));
    if (one.points.length <= 40) for (const p of one.points) {
      drawn.append(svg("circle", { class: color, cx: x(p.x), cy: y(p.y), r: 2.2 },
        svg("title", {}, `${one.name}, step ${p.x}: ${short(p.y)}`)));
    }
  });
  const legend = series.length > 1
    ? series.map((one, number) => el("span", { class: `legend ${one.color ?? `c${number % 4}`}` }, one.name)) : [];
  return el("figure", {}, el("figcaption", {}, title), drawn, ...legend);
}

// --- where rollouts' seconds went ---

const HOPS = [
  ["waiting for a slot", (one) => one.slot_s],
  ["earlier tries", (one) => one.earlier_s],
  ["start", (one) => one.start_s],
  ["waiting for vLLM", (one) => one.queue_s],
  ["in vLLM", (one) => one.vllm_s],
  ["rest of model calls", (one) => (one.model_s ?? null) === null ? null : Math.max(0, one.model_s - one.queue_s - one.vllm_s)],
  ["tools", (one) => one.tools_s],
  ["verification", (one) => one.verify_s],
];

function legend(one) {
  return HOPS.map(([name, value], number) => [name, value(one) ?? null, number]).filter(([, seconds]) => seconds !== null)
    .map(([name, seconds, number]) => el("span", { class: "hop" }, el("i", { class: `h${number}` }), `${name} ${short(seconds)} s`));
}

const all = (one) => ["slot_s", "earlier_s", "start_s", "model_s", "tools_s", "verify_s"].reduce((sum, name) => sum + (one[name] ?? 0), 0);

function bar(one, longest) {
  const calls = one.queue_s + one.vllm_s; // summed: side by side they have less room
  const room = calls > one.model_s ? one.model_s / calls : 1;
  const parts = HOPS.map(([name, value], number) => {
    const part = el("span", { class: `h${number}`, title: `${name}: ${short(value(one))} s` });
    part.style.width = `${100 * (value(one) ?? 0) * (number === 3 || number === 4 ? room : 1) / longest}%`;
    return part;
  });
  return el("div", { class: "bar" }, ...parts);
}

function drawHops(agents) {
  const place = document.getElementById("hops");
  if (!agents.length) return place.replaceChildren(el("p", {}, "It is not known of any rollout (docs/records.md)."));
  const longest = Math.max(...agents.map(all), 1e-9);
  place.replaceChildren(
    el("p", {}, ...HOPS.map(([name], number) => el("span", { class: "hop" }, el("i", { class: `h${number}` }), name))),
    el("table", {},
      el("thead", {}, el("tr", {}, ...["agent", "rollouts", "mean s", ...HOPS.map(([name]) => name), ""].map((name) => el("th", {}, name)))),
      el("tbody", {}, ...agents.map((one) => el("tr", {}, el("td", {}, one.agent),
        ...[one.count, all(one), ...HOPS.map(([, value]) => value(one))].map((value) => el("td", { class: "number" }, short(value))),
        el("td", {}, bar(one, longest)))))));
}

// One line for each model call that others overlap; what lies between them is in the first.
function timeline(one) {
  const before = (one.slot_s ?? 0) + (one.earlier_s ?? 0);
  const calls = (one.calls ?? []).filter((call) => call.at !== null);
  const told = legend(one);
  if (!told.length || one.seconds === null || one.seconds === undefined) return [];
  const [width, height, gap] = [1000, 16, 3];
  const scale = width / Math.max(before + one.seconds, 1e-9);
  const drawn = svg("svg", { role: "img", "aria-label": "Where its seconds went", preserveAspectRatio: "none" });
  const add = (hop, from, seconds, lane, title) => {
    if (seconds <= 0) return;
    drawn.append(svg("rect", { class: `h${hop}`, x: (before + from) * scale, y: lane * (height + gap), width: seconds * scale, height },
      svg("title", {}, `${title ?? HOPS[hop][0]}: ${short(seconds)} s`)));
  };
  add(0, -before, one.slot_s ?? 0, 0);
  add(1, (one.slot_s ?? 0) - before, one.earlier_s ?? 0, 0);
  const ends = [0]; // of the last call in each lane
  let busy = 0;
  if ((one.model_s ?? null) !== null) {
    calls.map((call, number) => ({ ...call, number: number + 1 })).sort((a, b) => a.at - b.at).forEach((call, place) => {
      add(place ? 6 : 2, busy, call.at - busy, 0);
      let lane = ends.findIndex((end) => end <= call.at + 0.001);
      if (lane < 0) lane = ends.push(0) - 1;
      ends[lane] = call.at + call.seconds;
      busy = Math.max(busy, call.at + call.seconds);
      const what = `call ${call.number}, ${short(call.prompt)} tokens, then ${short(call.tokens)}`;
      const [queue, vllm] = [Math.min(call.queue, call.seconds), Math.min(call.vllm, Math.max(0, call.seconds - call.queue))];
      add(3, call.at, queue, lane, `${what}: ${HOPS[3][0]}`);
      add(4, call.at + queue, vllm, lane, `${what}: ${HOPS[4][0]}`);
      add(5, call.at + queue + vllm, call.seconds - queue - vllm, lane, `${what}: ${HOPS[5][0]}`);
    });
    add(7, busy, one.seconds - busy, 0);
  }
  const tall = ends.length * (height + gap);
  drawn.setAttribute("viewBox", `0 0 ${width} ${tall}`);
  drawn.style.height = `${tall}px`;
  const body = calls.map((call, number) => [number + 1, call.at, call.seconds, call.queue, call.vllm, call.prompt, call.tokens]);
  const made = el("table", {}, el("thead", {}, el("tr", {}, ...["call", "from s", "s", "waiting for vLLM", "in vLLM", "prompt", "tokens"].map((name) => el("th", {}, name)))),
    el("tbody", {}, ...body.map((row) => el("tr", {}, ...row.map((value) => el("td", { class: "number" }, short(value)))))));
  return [el("div", { class: "timeline" }, drawn, ...told,
    ...(calls.length ? [el("details", {}, el("summary", {}, `${calls.length} model calls`), made)] : []))];
}

function drawOverview(told) {
  const steps = told.steps;
  // Of one environment alone, all are that one.
  const names = new Set(told.evaluations.map((row) => row.environment));
  const evaluations = told.evaluations.filter((row) => names.size !== 2 || row.environment !== "(all)");
  const column = (name, value) => ({
    name, points: steps.filter((row) => value(row) !== null && !Number.isNaN(value(row))).map((row) => ({ x: row.step, y: value(row) })),
  });
  const environments = new Map();
  for (const row of evaluations) {
    if (row.reward === null) continue;
    if (!environments.has(row.environment)) environments.set(row.environment, []);
    environments.get(row.environment).push({ x: row.step, y: row.reward, low: row.reward_low, high: row.reward_high });
  }
  const perSecond = (row) => (row.seconds > 0 ? row.tokens / row.seconds : null);
  document.getElementById("charts").replaceChildren(...[
    chart("Reward", [column("reward", (row) => row.reward)]),
    chart("Evaluation reward, with its 95 % interval", [...environments].map(([name, points]) => ({ name, points }))),
    chart("Deviation of rewards in a group", [column("deviation", (row) => row.reward_std)], { zero: true }),
    chart("Staleness, weight versions", [column("staleness", (row) => row.staleness)], { zero: true }),
    chart("Where a step's seconds go", [
      column("all", (row) => row.seconds),
      column("waiting for rollouts", (row) => row.rollout_wait_s ?? null),
      column("weight sync", (row) => row.weight_sync_s ?? null),
    ].filter((one, number) => number === 0 || one.points.length), { zero: true }),
    chart("Where a rollout's seconds go, mean of a step", HOPS.map(([name, value], number) => ({
      name, color: `h${number}`, points: told.hops.step.map((row) => ({ x: row.step, y: value(row) })),
    })).filter((one) => one.points.some((point) => point.y >= 0.001)), { zero: true }),
    chart("Trained tokens a second", [column("tokens", perSecond)], { zero: true }),
  ].filter(Boolean));
  const last = steps.at(-1);
  const facts = last
    ? [`step ${short(last.step)}`, `reward ${short(last.reward)}`, `${short(steps.reduce((sum, row) => sum + row.tokens, 0))} tokens trained`]
    : ["no step has ended"];
  document.getElementById("facts").textContent = facts.join(" · ");
  table("evaluations", evaluations.length ? [
    ["step", "environment", "reward", "from", "to", "pass@1", "pass@k", "k", "tasks", "tokens", "truncated", "failed"],
    ...evaluations.map((row) => [row.step, row.environment, row.reward, row.reward_low, row.reward_high,
      row.pass_1, row.pass_k, row.k, row.tasks, row.tokens, row.truncated, row.failed]),
  ] : null, "The run is not evaluated, or not yet (spec.evaluation).");
  table("ends", told.ends.length ? [
    ["outcome", "reason", "agent", "rollouts"],
    ...told.ends.map((row) => [row.outcome, row.reason || "–", row.agent, row.count]),
  ] : null, "No rollout is recorded (spec.trainer.records.rollouts).");
  drawHops(told.hops.agent);
  fill("outcome", [...new Set(told.ends.map((row) => row.outcome))]);
  fill("agent", told.agents);
}

function table(place, rows, otherwise) {
  if (!rows) return document.getElementById(place).replaceChildren(el("p", {}, otherwise));
  const [head, ...body] = rows;
  const numeric = head.map((_, number) => body.every((row) => typeof row[number] !== "string"));
  const kind = (number) => ({ class: numeric[number] ? "number" : null });
  document.getElementById(place).replaceChildren(el("table", {},
    el("thead", {}, el("tr", {}, ...head.map((name, number) => el("th", kind(number), name)))),
    el("tbody", {}, ...body.map((row) => el("tr", {}, ...row.map((value, number) => el("td", kind(number), short(value))))))));
}

// --- the rollouts ---

const filters = document.getElementById("filters");
const list = document.getElementById("list");
let offset = 0;
let asked = 0;

function fill(name, values) {
  const select = filters.elements[name];
  const known = new Set([...select.options].map((one) => one.value));
  for (const value of values) if (!known.has(value)) select.append(el("option", { value }, value));
}

function wanted() {
  return { ...Object.fromEntries(new FormData(filters)), offset };
}

async function show() {
  const number = asked += 1;
  let answer;
  try {
    answer = await source.search(wanted());
  } catch (error) {
    document.getElementById("found").textContent = `The rollouts can't be listed: ${error.message}`;
    return;
  }
  if (number !== asked) return; // a later question is under way
  const shown = answer.rollouts.length ? `${short(offset + 1)} to ${short(offset + answer.rollouts.length)} of ` : "";
  document.getElementById("found").textContent = `${shown}${short(answer.total)} rollouts`;
  document.getElementById("before").disabled = offset === 0;
  document.getElementById("after").disabled = offset + PAGE >= answer.total;
  const names = ["step", "outcome", "agent", "reward", "advantage", "tokens", "turns", "what it came to"];
  list.tHead.replaceChildren(el("tr", {}, ...names.map((name) => el("th", {}, name))));
  list.tBodies[0].replaceChildren(...answer.rollouts.map((one) => {
    const outcome = el("td", { class: one.outcome }, one.outcome, one.reason ? ` (${one.reason})` : "");
    const row = el("tr", { tabindex: 0, "data-id": one.id }, el("td", { class: "number" }, short(one.step)), outcome,
      el("td", {}, one.agent),
      ...["reward", "advantage", "tokens", "turns"].map((name) => el("td", { class: "number" }, short(one[name]))),
      el("td", { class: "preview" }, one.preview));
    row.addEventListener("click", () => open(one.id));
    row.addEventListener("keydown", (event) => { if (event.key === "Enter") open(one.id); });
    return row;
  }));
}

async function open(id) {
  const place = document.getElementById("rollout");
  let one;
  try {
    one = await source.rollout(id);
  } catch (error) {
    one = { error: `It can't be read: ${error.message}`, conversation: {} };
  }
  for (const row of list.tBodies[0].rows) row.setAttribute("aria-selected", String(row.dataset.id === String(id)));
  const facts = ["step", "outcome", "reason", "error", "agent", "group", "rollout", "reward", "advantage", "ratio", "versions",
    "staleness", "turns", "tokens", "forks", "truncated", "constrained", "seconds", "tries"];
  const told = facts.filter((name) => ![null, undefined, "", false].includes(one[name]));
  place.replaceChildren(
    el("dl", {}, ...told.flatMap((name) => [el("dt", {}, name), el("dd", {}, short(Array.isArray(one[name]) ? one[name].join(", ") : one[name]))])),
    ...timeline(one), ...messages(one.conversation), ...sampledTokens(one.sampled));
  place.hidden = false;
  place.scrollTop = 0;
  document.getElementById("browser").className = "open";
}

function content(value) {
  if (typeof value === "string") return value;
  if (Array.isArray(value)) return value.map((part) => (typeof part === "string" ? part : part.text ?? part.refusal ?? `[${part.type}]`)).join("");
  return value === null || value === undefined ? "" : JSON.stringify(value, null, 2);
}

function pretty(value) {
  if (typeof value !== "string") return content(value);
  try { return JSON.stringify(JSON.parse(value), null, 2); } catch { return value; }
}

function messages(conversation) {
  const made = [];
  const say = (role, body) => made.push(el("div", { class: `message ${role}` }, el("b", {}, role), el("pre", {}, body)));
  const fold = (role, summary, body) => made.push(el("details", { class: `message ${role}` },
    el("summary", {}, summary), el("pre", {}, body)));
  const { input, tools = [], output = [] } = conversation;
  if (tools.length) fold("tool", `${tools.length} tools`, JSON.stringify(tools, null, 2));
  for (const item of [...(typeof input === "string" ? [{ role: "user", content: input }] : input ?? []), ...output]) {
    if (item.type === "function_call") fold("tool", `call of ${item.name}`, pretty(item.arguments));
    else if (item.type === "function_call_output") fold("tool", "its result", pretty(item.output));
    else if (item.type === "reasoning") fold("assistant", "reasoning", content(item.summary?.length ? item.summary : item.content));
    else if (item.role) say(item.role, content(item.content));
    else fold("tool", item.type ?? "item", JSON.stringify(item, null, 2));
  }
  if (!made.length) made.push(el("p", {}, "Nothing of what was said is known."));
  return made;
}

// A token that the step's weights find likelier than when it was sampled is green, a less likely one red.
function sampledTokens(sampled) {
  if (!sampled) return [];
  const body = el("pre", { class: "tokens" });
  sampled.texts.forEach((text, number) => {
    const ratio = sampled.ratios[number];
    if (text === null) return body.append(el("span", { class: "apart" }, "\n…\n"));
    const far = Math.min(1, Math.abs(Math.log(Math.max(ratio, 1e-6))) / Math.log(2));
    const token = el("span", { title: `ratio ${short(ratio)}` }, text);
    token.style.backgroundColor = far < 0.02 ? "" : `color-mix(in srgb, var(${ratio > 1 ? "--green" : "--red"}) ${Math.round(far * 70)}%, transparent)`;
    return body.append(token);
  });
  return [el("details", { class: "message assistant", open: "" },
    el("summary", {}, "sampled tokens by ratio: red is less likely under the weights that trained on them, green more"), body)];
}

let typing;
for (const event of ["input", "change"]) { // of lists, some browsers tell the latter alone
  filters.addEventListener(event, () => { clearTimeout(typing); typing = setTimeout(() => { offset = 0; show(); }, 150); });
}
filters.addEventListener("submit", (event) => event.preventDefault());
document.getElementById("before").addEventListener("click", () => { offset = Math.max(0, offset - PAGE); show(); });
document.getElementById("after").addEventListener("click", () => { offset += PAGE; show(); });

async function refresh() {
  try {
    drawOverview(await source.overview());
    document.getElementById("sample").textContent = embedded ? embedded.sample : "Live: all rollouts that are recorded so far.";
  } catch (error) {
    document.getElementById("sample").textContent = `Not live: ${error.message}`;
  }
}

refresh().then(show);
if (!embedded) setInterval(() => { refresh(); if (offset === 0 && !document.getElementById("browser").className) show(); }, 10000);

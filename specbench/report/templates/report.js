// Tables that sort.
for (const table of document.querySelectorAll("table.sorted")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") !== "descending", sign = down ? -1 : 1;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const order = row => row.cells[column].dataset.order;
    const rows = [...body.rows].sort((one, other) => {
      const a = order(one), b = order(other);
      if (a === "" || b === "") return (a === "") - (b === "");  // blanks last, either way
      return sign * (a - b || (isNaN(a - b) ? a.localeCompare(b) : 0));
    });
    body.append(...rows);
  }));
}

const FIGURES = JSON.parse(document.getElementById("figure-data").textContent);
const MARK = 0.95;  // pixels of a mark's half width for each point of its size in print
const DARK = matchMedia("(prefers-color-scheme: dark)");

/** A new element of SVG or HTML with attributes and children; texts stay texts. */
function make(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "circle", "text", "polyline", "title"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const onPaper = look => look[DARK.matches ? "dark" : "light"];
const colour = method => onPaper(FIGURES.methods[method]);

function mark(method) {
  const look = FIGURES.methods[method];
  return make("path", { class: "mark", d: look.outline, fill: colour(method), transform: `scale(${look.size * MARK})` });
}

/** Round numbers across a range, about as many as asked for. */
function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at++) found.push(+(at * step).toPrecision(12));
  return found;
}

/** The ends of an axis: all values with their intervals, and a margin. */
function range(values) {
  const all = values.flat().filter(value => value !== null);
  const low = Math.min(...all), high = Math.max(...all);
  const margin = 0.06 * (high - low) || 0.1 * Math.abs(high) || 1;
  return [low - margin, high + margin];
}

const shown = value => value === null ? "" : Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3);
const spelt = ([value, low, high]) => low === null ? shown(value) : `${shown(value)} (${shown(low)} to ${shown(high)})`;

/** What is known of a point, a line each. */
function lines(point, quality) {
  const known = [["quality", quality], ...Object.entries(FIGURES.axes)]
    .filter(([name]) => point.values[name]).map(([name, label]) => `${label}: ${spelt(point.values[name])}`);
  return point.run ? [...known, `Run: ${point.run}`] : known;
}

/** Draw points of a panel against each other into a box. */
function scatter(box, panel, across, up, labels) {
  const seen = panel.points.filter(point => point.values[across] && point.values[up]);
  if (!seen.length) {
    box.replaceChildren(make("p", { class: "soft" }, "Nothing here has both figures."));
    return;
  }
  const width = box.clientWidth || 640, height = Math.min(420, Math.max(260, 0.62 * width));
  const left = 48, right = 12, top = 26, bottom = 44;
  const [x0, x1] = range(seen.map(point => point.values[across]));
  const [y0, y1] = range(seen.map(point => point.values[up]));
  const x = value => left + (value - x0) / (x1 - x0) * (width - left - right);
  const y = value => height - bottom - (value - y0) / (y1 - y0) * (height - top - bottom);

  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": `${labels[1]} against ${labels[0]}; arrow keys go from point to point` });
  for (const at of ticks(x0, x1, width < 480 ? 4 : 6)) svg.append(
    make("line", { class: "grid", x1: x(at), x2: x(at), y1: top, y2: height - bottom }),
    make("text", { x: x(at), y: height - bottom + 17, "text-anchor": "middle" }, String(at)));
  for (const at of ticks(y0, y1, 5)) svg.append(
    make("line", { class: "grid", x1: left, x2: width - right, y1: y(at), y2: y(at) }),
    make("text", { x: left - 7, y: y(at) + 4, "text-anchor": "end" }, String(at)));
  svg.append(
    make("line", { class: "frame", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
    make("line", { class: "frame", x1: left, x2: left, y1: top, y2: height - bottom }),
    make("text", { class: "name", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, labels[0]),
    make("text", { class: "name", x: 0, y: 14 }, labels[1]));

  const corners = up === "quality" ? panel.fronts[across].map(i => panel.points[i].values) : [];
  if (corners.length > 1) svg.append(make("polyline", {
    class: "front", stroke: colour("static"),
    points: corners.map(values => `${x(values[across][0])},${y(values[up][0])}`).join(" "),
  }));

  const tip = make("div", { class: "tip", hidden: "" });
  const places = seen.map(point => [x(point.values[across][0]), y(point.values[up][0])]);
  const groups = seen.map((point, i) => {
    const [px, py] = places[i], [, xl, xh] = point.values[across], [, yl, yh] = point.values[up];
    const told = lines(point, panel.quality ?? "Quality");
    const group = make("g", { class: "point", tabindex: -1, role: "img", "aria-label": [point.label, ...told].join("; ") });
    if (xl !== null) group.append(make("line", { class: "bar", stroke: colour(point.method), x1: x(xl), x2: x(xh), y1: py, y2: py }));
    if (yl !== null) group.append(make("line", { class: "bar", stroke: colour(point.method), x1: px, x2: px, y1: y(yl), y2: y(yh) }));
    group.append(make("g", { transform: `translate(${px} ${py})` }, make("circle", { class: "ring", r: 11 }), mark(point.method)));
    group.addEventListener("focus", () => choose(i));
    group.addEventListener("blur", () => choose(-1));
    return group;
  });
  const layers = [...groups.keys()].sort((a, b) => FIGURES.methods[seen[a].method].layer - FIGURES.methods[seen[b].method].layer);
  svg.append(...layers.map(i => groups[i]));
  box.replaceChildren(svg, tip);

  const order = [...places.keys()].sort((a, b) => places[a][0] - places[b][0]);
  groups[order[0]].setAttribute("tabindex", 0);

  function choose(i) {
    groups.forEach((group, k) => group.classList.toggle("chosen", k === i));
    tip.hidden = i < 0;
    if (i < 0) return;
    tip.replaceChildren(make("b", {}, seen[i].label), ...lines(seen[i], panel.quality ?? "Quality").map(line => make("span", {}, line)));
    const [px, py] = places[i], room = box.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(room, px - tip.offsetWidth / 2))}px`;
    tip.style.top = `${py > tip.offsetHeight + 16 ? py - tip.offsetHeight - 14 : py + 16}px`;
  }

  /** The point next to the pointer or finger, if it is near any. */
  function nearest(event) {
    const frame = svg.getBoundingClientRect();
    const away = places.map(([px, py]) => Math.hypot(event.clientX - frame.left - px, event.clientY - frame.top - py));
    const best = away.indexOf(Math.min(...away));
    choose(away[best] < 28 ? best : -1);
  }
  svg.addEventListener("pointermove", nearest);
  svg.addEventListener("pointerdown", nearest);
  svg.addEventListener("pointerleave", event => event.pointerType === "mouse" && choose(-1));
  svg.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") choose(-1);
    if (!step) return;
    event.preventDefault();
    const at = order.findIndex(i => groups[i] === document.activeElement);
    const next = order[Math.max(0, Math.min(order.length - 1, at + step))];
    for (const group of groups) group.setAttribute("tabindex", -1);
    groups[next].setAttribute("tabindex", 0);
    groups[next].focus();
  });
}

/** A bar for each method: what the parts of a mean round take. */
function rounds(box, panel) {
  const seen = panel.points.filter(point => point.round);
  if (!seen.length) {
    box.replaceChildren(make("p", { class: "soft" }, "Not measured: run again to have it."));
    return;
  }
  const parts = Object.entries(FIGURES.parts).map(([name, look]) => [name, `background:${onPaper(look)}`]);
  const whole = point => point.round.reduce((sum, part) => sum + part, 0);
  const longest = Math.max(...seen.map(whole));
  const key = make("ul", { class: "parts" }, ...parts.map(([name, style]) => make("li", {}, make("i", { style }), name)));
  box.replaceChildren(key, ...seen.map(point => {
    const bar = point.round.map((time, i) => make("i", { style: `width:${100 * time / longest}%;${parts[i][1]}` }));
    const words = point.round.map((time, i) => `${parts[i][0]} ${shown(time)}`).join(", ");
    const name = point.run ? `${point.label}, ${point.run}` : point.label;
    return make("div", { class: "round" }, make("span", {}, name), make("div", { class: "stack", "aria-hidden": "true" }, ...bar),
      make("div", { class: "told-parts" }, `${shown(whole(point))} ms for ${point.tokens === 1 ? "1 token" : `${shown(point.tokens)} tokens`}: ${words}`));
  }));
}

/** Fill a choice; one that leaves no choice is not shown. */
function offer(select, options) {
  const before = select.value;
  select.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
  if (options.some(([value]) => value === before)) select.value = before;
  select.parentElement.hidden = options.length < 2;
}

const unique = values => [...new Set(values)];
const plain = values => unique(values).map(value => [value, value]);

// Figures of the chosen task and setting.
{
  const { task, setting } = document.getElementById("panel-choices").elements;
  const { axis } = document.getElementById("axis-choices").elements;
  const panelsOf = name => FIGURES.panels.filter(panel => panel.task === name);

  function draw() {
    offer(setting, plain(panelsOf(task.value).map(panel => panel.setting)));
    const panel = panelsOf(task.value).find(found => found.setting === setting.value);
    const axes = Object.entries(FIGURES.axes).filter(([name]) => panel.points.some(point => point.values[name]));
    offer(axis, axes);
    const methods = unique(panel.points.map(point => point.method));
    document.getElementById("methods").replaceChildren(...Object.keys(FIGURES.methods).filter(name => methods.includes(name)).map(name =>
      make("li", {}, make("svg", { viewBox: "-11 -11 22 22", "aria-hidden": "true" }, mark(name)), FIGURES.methods[name].label)));
    scatter(document.getElementById("pareto"), panel, axis.value, "quality", [FIGURES.axes[axis.value], panel.quality ?? "Quality"]);
    scatter(document.getElementById("acceptance-time"), panel, "seconds", "acceptance", [FIGURES.axes.seconds, FIGURES.axes.acceptance]);
    rounds(document.getElementById("rounds"), panel);
  }

  offer(task, plain(FIGURES.panels.map(panel => panel.task)));
  draw();
  for (const choice of [task, setting, axis]) choice.addEventListener("change", draw);
  DARK.addEventListener("change", draw);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
}

// Traces, a prompt at a time.
const choices = document.getElementById("trace-choices");
if (choices) {
  const { task, method, back, on } = choices.elements, said = choices.querySelector("output");
  const prompts = [...document.querySelectorAll(".prompt")];
  const ALL = "";
  let at = 0;

  function page() {
    const mine = prompts.filter(prompt => prompt.dataset.task === task.value);
    at = Math.max(0, Math.min(mine.length - 1, at));
    const traces = [...mine[at].querySelectorAll(".told")];
    offer(method, [[ALL, "all"], ...plain(mine.flatMap(prompt => [...prompt.querySelectorAll(".told")].map(told => told.dataset.method)))]);
    for (const prompt of prompts) prompt.hidden = prompt !== mine[at];
    for (const told of traces) told.hidden = ![ALL, told.dataset.method].includes(method.value);
    said.textContent = `${at + 1} of ${mine.length}`;
    back.disabled = at === 0;
    on.disabled = at === mine.length - 1;
  }

  offer(task, plain(prompts.map(prompt => prompt.dataset.task)));
  page();
  for (const choice of [task, method]) choice.addEventListener("change", page);
  back.addEventListener("click", () => { at--; page(); });
  on.addEventListener("click", () => { at++; page(); });
}

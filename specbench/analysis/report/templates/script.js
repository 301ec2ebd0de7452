"use strict";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// Click a header to sort by its column; blanks come last.
for (const table of all(".sorted table")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const value = (row, column) => row.cells[column].firstChild?.textContent ?? "";
  heads.forEach((head, column) => {
    const sort = () => {
      const down = head.getAttribute("aria-sort") !== "descending", sign = down ? -1 : 1;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      body.append(...[...body.rows].sort((one, other) => {
        const a = value(one, column), b = value(other, column);
        if (a === "" || b === "") return (a === "") - (b === "");
        const apart = parseFloat(a) - parseFloat(b);  // of values with units or intervals, too
        return sign * (apart || a.localeCompare(b));
      }));
    };
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => event.key === "Enter" && sort());
  });
}

// Pointer, touch or arrow keys choose a token or a point of a figure and show its details.
const FATES = { MARK: "accepted, a mismatch", DEL: "drafted and rejected", INS: "correction" };

function describe(part) {
  if (part.dataset.tooltip) return part.dataset.tooltip;
  const weight = part.style.getPropertyValue("--w"), probability = part.dataset.a;
  return [
    `“${part.textContent}”`,
    FATES[part.tagName] ?? (probability ? "accepted, agreed" : "from the target"),
    `round ${part.dataset.r}`,
    probability ? `acceptance probability ${probability}` : "",
    weight ? `w ${weight}` : "",
  ].filter(Boolean).join(" · ");
}

for (const box of all(".inspectable")) {
  const parts = all("[data-tooltip], [data-r]", box), details = box.parentElement.querySelector("output");
  let chosen = null;
  const choose = part => {
    chosen?.classList.remove("chosen");
    chosen = part;
    chosen?.classList.add("chosen");
    details.textContent = chosen ? describe(chosen) : "";
  };
  const near = event => {  // points of a figure are small, so choose the nearest one
    const distance = part => {
      const { x, y, width, height } = part.getBoundingClientRect();
      return Math.hypot(event.clientX - x - width / 2, event.clientY - y - height / 2);
    };
    const nearest = parts.reduce((best, part) => distance(part) < distance(best) ? part : best, parts[0]);
    return nearest && distance(nearest) < 24 ? nearest : null;
  };
  const point = event => choose(event.target.closest("[data-r]") ?? (box.matches(".figure") ? near(event) : null));
  box.addEventListener("pointermove", point);
  box.addEventListener("pointerdown", point);
  box.addEventListener("pointerleave", event => event.pointerType === "mouse" && choose(null));
  box.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose(parts[Math.max(0, Math.min(parts.length - 1, parts.indexOf(chosen) + step))]);
  });
}

// A section shows one item at a time, among those that match the chosen filters.
function setOptions(select, values) {
  const before = select.value, known = [...new Set(values)];
  select.replaceChildren(...known.map(value => new Option(value || "all", value)));
  if (known.includes(before)) select.value = before;
  select.parentElement.hidden = known.length < 2;
}

for (const form of all("form.choices:not(#find)")) {
  const items = all(".item", form.parentElement), { method, back, next } = form.elements;
  const filters = all("select", form).filter(select => select !== method);
  let at = 0, shown = null;
  const show = () => {
    let fitting = items;
    for (const select of filters) {
      setOptions(select, fitting.map(item => item.dataset[select.name]));
      fitting = fitting.filter(item => item.dataset[select.name] === select.value);
    }
    at = Math.max(0, Math.min(fitting.length - 1, at));
    if (shown) shown.hidden = true;
    shown = fitting[at];
    shown.hidden = false;
    if (!next) return;
    const parts = all("[data-method]", shown);
    setOptions(method, ["", ...parts.map(part => part.dataset.method)]);
    for (const part of parts) part.hidden = !["", part.dataset.method].includes(method.value);
    form.querySelector("output").textContent = `${at + 1} of ${fitting.length}`;
    back.disabled = at === 0;
    next.disabled = at === fitting.length - 1;
  };
  for (const item of items) item.hidden = true;
  form.hidden = items.length === 0;
  form.addEventListener("change", show);
  back?.addEventListener("click", () => { at--; show(); });
  next?.addEventListener("click", () => { at++; show(); });
  if (items.length) show();
}

// The answers of two methods side by side, filtered and searched.
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), sign => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const BASELINES = /^(autoregressive|sd|static)\b/;
const KINDS = {
  any: (left, right) => left[0] !== right[0] || left[2] !== right[2],
  score: (left, right) => left[0] !== right[0],
  better: (left, right) => right[0] > left[0],
  worse: (left, right) => right[0] < left[0],
};

function element(tag, className, text, ...inside) {
  const made = document.createElement(tag);
  made.className = className;
  made.append(text, ...inside);
  return made;
}

function beside(prompt, names) {
  const sides = names.map(name => {
    const [, facts, text] = prompt.answers[name];
    return element("div", "", element("p", "facts", `${name}: ${facts}`), element("p", "text", prompt.texts[text]));
  });
  const asked = element("details", "", element("summary", "", "Prompt"), element("p", "text", prompt.prompt));
  const parts = [element("h3", "", `${prompt.task}, ${prompt.sample}`), ...(prompt.prompt ? [asked] : [])];
  return element("div", "pair", ...parts, element("div", "beside", ...sides));
}

function search(form, prompts) {
  const { task, left, right, kind, words } = form.elements, found = document.querySelector("#found");
  const show = () => {
    setOptions(task, prompts.map(prompt => prompt.task));
    const ofTask = prompts.filter(prompt => prompt.task === task.value), before = [left.value, right.value];
    for (const side of [left, right]) setOptions(side, ofTask.flatMap(prompt => Object.keys(prompt.answers)));
    const names = [...left.options].map(option => option.value);
    if (!names.includes(before[0])) left.value = names.includes("sd") ? "sd" : names[0];
    if (!names.includes(before[1])) right.value = names.find(name => !BASELINES.test(name)) ?? names.at(-1);
    const wanted = words.value.toLowerCase(), pair = [left.value, right.value];
    const fitting = ofTask.filter(({ prompt, sample, texts, answers }) => {
      const [one, two] = pair.map(name => answers[name]);
      if (!one || !two || !KINDS[kind.value](one, two)) return false;
      return [prompt, sample, texts[one[2]], texts[two[2]]].some(text => text.toLowerCase().includes(wanted));
    });
    found.replaceChildren(...fitting.map(prompt => beside(prompt, pair)));
    form.querySelector("output").textContent = `${fitting.length} of ${ofTask.length} prompts`;
  };
  form.addEventListener("input", show);
  form.addEventListener("submit", event => event.preventDefault());
  form.hidden = false;
  show();
}

const packed = document.querySelector("#packed");
if (packed) unpack(packed.textContent).then(prompts => search(document.querySelector("#find"), prompts));

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
        return sign * (a - b || (isNaN(a - b) ? a.localeCompare(b) : 0));
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

for (const form of all("form.choices")) {
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

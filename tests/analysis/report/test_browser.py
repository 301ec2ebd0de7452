"""The report in a browser."""

import re

import pytest

from .conftest import METHODS

HELPERS = """
const every = selector => [...document.querySelectorAll(selector)];
const choose = (name, value) => {
  const select = every(`#traces select[name=${name}]`)[0];
  select.value = value;
  select.dispatchEvent(new Event("change", { bubbles: true }));
};
const press = (box, key) => box.dispatchEvent(new KeyboardEvent("keydown", { key }));
"""


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (320, True)])
def test_the_page_fits_without_errors_or_requests(ask, page, width, dark):
    layout = ask(
        page,
        """return {
          wrong, fetched: performance.getEntriesByType("resource").length,
          dark: matchMedia("(prefers-color-scheme: dark)").matches, width: innerWidth,
          wide: document.documentElement.scrollWidth - innerWidth,
          clipped: [...document.querySelectorAll("body *")].filter(
            e => getComputedStyle(e).overflowX !== "visible" && e.scrollWidth > e.clientWidth
              && e.checkVisibility()).map(e => e.outerHTML.slice(0, 100)),
        }""",
        width,
        dark,
    )
    fitting = {"wrong": [], "fetched": 0, "wide": 0, "clipped": []}
    assert layout == fitting | {"dark": dark, "width": width}


def test_points_tables_and_traces_answer_to_pointer_and_keys(ask, page):
    """One page load for all of them, since starting a browser takes a second."""
    (hovered, left, focused), (as_run, down, up), (seen, token) = ask(
        page,
        HELPERS
        + """
        const points = () => {
          const box = every(".figure")[0], output = box.parentElement.querySelector("output");
          const { x, y } = box.querySelector("[data-tooltip]").getBoundingClientRect();
          box.dispatchEvent(new PointerEvent("pointermove", { clientX: x + 3, clientY: y + 3 }));
          const hovered = output.textContent;
          box.dispatchEvent(new PointerEvent("pointerleave", { pointerType: "mouse" }));
          const left = output.textContent, focused = [];
          for (let i = 0; i < 3; i++) {
            press(box, "ArrowRight"); focused.push(output.textContent);
          }
          return [hovered, left, focused];
        };
        const orders = () => {
          const table = every(".sorted table")[0], names = [...table.tHead.rows[0].cells];
          const order = () => [...table.tBodies[0].rows].map(row => row.cells[0].textContent);
          const column = names.find(name => name.textContent.startsWith("tokens /round"));
          const sort = () => { column.click(); return order(); };
          return [order(), sort(), sort()];
        };
        const traces = () => {
          const shown = selector => every(selector).filter(e => e.checkVisibility());
          const look = () => [shown("#traces .item > h3").map(e => e.textContent).join(),
            shown(".trace").length, every("#traces .choices output")[0].textContent];
          const seen = [look()];
          every("button[name=next]")[0].click(); seen.push(look());
          choose("method", "sd"); seen.push(look());
          choose("task", "mini-headline"); seen.push(look());
          const trace = shown(".trace .text")[0];
          press(trace, "ArrowRight");
          return [seen, trace.parentElement.querySelector("output").textContent];
        };
        return [points(), orders(), traces()];""",
    )
    assert "accuracy " in hovered and "[" in hovered
    assert left == ""
    assert len(set(focused)) == 3
    assert as_run == ["autoregressive", "sd", "static w=0.4", "diversed"]
    assert down[-1] == up[-1] == "autoregressive"  # no value, so it comes last
    assert down[:-1] == up[:-1][::-1]
    assert seen == [
        ["mini-math, test-0", len(METHODS), "1 of 5"],
        ["mini-math, test-1", len(METHODS), "2 of 5"],
        ["mini-math, test-1", 1, "2 of 5"],
        ["mini-headline, test-1", 1, "2 of 5"],
    ]
    assert "round 1" in token


def test_answers_are_filtered_by_methods_and_scores_and_searched(ask, page):
    first, worse, none = ask(
        page,
        HELPERS
        + """
        const set = (name, value) => {
          const part = every("#find")[0].elements[name];
          part.value = value;
          part.dispatchEvent(new Event("input", { bubbles: true }));
          const texts = selector => every(selector).map(e => e.textContent);
          return [texts("#find output")[0], texts("#found .facts")];
        };
        return [set("task", "mini-math"), set("kind", "worse"), set("words", "no such text")];""",
    )
    shown, total = map(int, re.findall(r"\d+", first[0]))
    assert 0 < shown <= total <= 10 and len(first[1]) == 2 * shown
    assert first[1][0].startswith("sd: ") and first[1][1].startswith("diversed: ")
    assert len(worse[1]) <= len(first[1]) and none == [f"0 of {total} prompts", []]

"""The report as a browser shows it."""

from pathlib import Path

import pytest

from specbench.report.build import build

from .conftest import METHODS, TASKS, Ask

HELPERS = """
const all = selector => [...document.querySelectorAll(selector)];
const text = selector => all(selector).map(e => e.textContent);
const choose = (name, value) => {
  const select = all(`select[name=${name}]`)[0];
  select.value = value;
  select.dispatchEvent(new Event("change"));
};
"""


@pytest.fixture(scope="module")
def page(finished: Path) -> str:
    return build([finished]).html


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390, 320])
def test_it_fits_and_nothing_is_wrong_or_fetched(
    ask: Ask, page: str, width: int, dark: bool
) -> None:
    found = ask(
        page,
        """return {
          wrong, fetched: performance.getEntriesByType("resource").length,
          dark: matchMedia("(prefers-color-scheme: dark)").matches, width: innerWidth,
          wide: document.documentElement.scrollWidth - innerWidth,
          viewport: document.querySelector("meta[name=viewport]").content,
        }""",
        width,
        dark,
    )
    # Without the viewport a telephone lays the page out for a wide screen and shrinks it.
    assert found.pop("viewport").startswith("width=device-width")
    assert found == {"wrong": [], "fetched": 0, "dark": dark, "width": width, "wide": 0}


def test_figures_follow_what_is_chosen(ask: Ask, page: str) -> None:
    first, second, tasks = ask(
        page,
        HELPERS
        + """
        const look = () => [all("#pareto .point").length, all("#acceptance-time .point").length,
          all("#rounds .round").length, text("#pareto .name"), all("#pareto .front").length];
        const before = look();
        choose("axis", "seconds"); choose("task", "mini-headline");
        return [before, look(), text("select[name=task]")];""",
    )
    drafting = len(METHODS) - 1
    assert first == [
        drafting,
        drafting,
        len(METHODS),
        ["Accepted / drafted (%)", "Accuracy (%)"],
        1,
    ]
    assert second[:3] == [len(METHODS), drafting, len(METHODS)]
    assert second[3] == ["Time per sample (s)", "ROUGE-2 F1 (×100)"]
    assert tasks[0] == "".join(TASKS)


def test_a_point_tells_its_values_to_pointer_and_keys(ask: Ask, page: str) -> None:
    hovered, left, focused = ask(
        page,
        HELPERS
        + """
        const svg = all("#pareto svg")[0], tip = () => all("#pareto .tip")[0];
        const told = () => tip().hidden ? "" : tip().innerText;
        const at = all("#pareto .point")[0].querySelector(".ring").getBoundingClientRect();
        const move = (x, y) => svg.dispatchEvent(new PointerEvent("pointermove",
          { clientX: x, clientY: y, pointerType: "mouse", bubbles: true }));
        move(at.x + at.width / 2 + 5, at.y + at.height / 2);
        const hovered = told();
        svg.dispatchEvent(new PointerEvent("pointerleave", { pointerType: "mouse" }));
        const left = told(), focused = [];
        all("#pareto .point[tabindex='0']")[0].focus();
        for (let i = 0; i < 3; i++) {
          focused.push(told().split("\\n")[0]);
          document.activeElement.dispatchEvent(new KeyboardEvent("keydown",
            { key: "ArrowRight", bubbles: true }));
        }
        return [hovered, left, focused];""",
    )
    assert hovered.startswith("static w=0.4\nAccuracy (%): ")
    assert "Accepted / drafted (%): " in hovered
    assert " to " in hovered  # the interval
    assert left == ""
    assert sorted(focused) == ["diversed", "sd", "static w=0.4"]


def test_tables_sort(ask: Ask, page: str) -> None:
    columns, orders = ask(
        page,
        HELPERS
        + """
        const table = all("table.sorted")[0], names = [...table.tHead.rows[0].cells];
        const order = () => [...table.tBodies[0].rows].map(row => row.cells[0].textContent);
        const column = names.findIndex(name => name.textContent.startsWith("tokens / round"));
        const press = () => { names[column].querySelector("button").click(); return order(); };
        return [column, [order(), press(), press()]];""",
    )
    assert columns > 2
    as_run, down, up = orders
    assert as_run == ["autoregressive", "sd", "static w=0.4", "diversed"]
    assert down[-1] == up[-1] == "autoregressive"  # it drafts nothing
    assert down[:-1] == up[:-1][::-1]


def test_traces_are_paged_and_tell_of_tokens(ask: Ask, page: str) -> None:
    seen, token = ask(
        page,
        HELPERS
        + """
        const shown = selector => all(selector).filter(e => e.checkVisibility());
        const look = () => [shown(".prompt > h3").map(e => e.textContent).join(),
          shown(".trace").length, text(".pager output")[0]];
        const seen = [look()];
        all("button[name=on]")[0].click(); seen.push(look());
        choose("method", "sd"); seen.push(look());
        all("#trace-choices select[name=task]")[0].value = "mini-headline";
        all("#trace-choices select[name=task]")[0].dispatchEvent(new Event("change"));
        seen.push(look());
        const trace = shown(".trace .text")[0];
        trace.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
        return [seen, trace.parentElement.querySelector(".token").textContent];""",
    )
    assert seen == [
        ["mini-math, test-0", 4, "1 of 5"],
        ["mini-math, test-1", 4, "2 of 5"],
        ["mini-math, test-1", 1, "2 of 5"],
        ["mini-headline, test-1", 1, "2 of 5"],
    ]
    assert "round 1" in token

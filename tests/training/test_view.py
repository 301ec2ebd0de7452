import io

import pytest
from rich.console import Console

from specbench.training.recipe import HeadRecipe
from specbench.training.verifier import Progress
from specbench.training.view import BARS, View, live_view, remaining, sparkline


def progress(step: int, **changes: float) -> Progress:
    values = dict.fromkeys(Progress._fields, 0.0) | {
        "rollout_seconds": 3.0,
        "update_seconds": 1.0,
        **changes,
    }
    return Progress(**(values | {"step": step}))  # type: ignore[arg-type]


def console(terminal: bool, width: int = 80) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=terminal, width=width), stream


def drawn(view: View, width: int = 80) -> str:
    screen, stream = console(terminal=True, width=width)
    screen.print(view)
    return stream.getvalue()


def test_the_panel_shows_latest_values_means_and_what_is_wished() -> None:
    recipe = HeadRecipe(steps=40, target_acceptance=0.7)
    view = View("mini-math on mini", recipe, clock=lambda: 0.0)
    for step in range(1, 13):
        view.add(progress(step, reward=step / 100, acceptance=0.5, kl=7.25))
    text = drawn(view)
    assert "mini-math on mini" in text
    assert "step 12 of 40" in text
    assert "0:01:52 left" in text  # 28 steps of 4 s
    (reward,) = (line for line in text.splitlines() if "reward" in line)
    assert "0.120" in reward
    assert "0.075" in reward  # of steps 3 to 12
    assert BARS[0] in reward
    assert BARS[-1] in reward
    assert "acceptance (wish 0.7)" in text
    for word in ("mean weight", "loss", "lambda", "KL", "7.25", "roll-out, s", "update, s", "3.00"):
        assert word in text


@pytest.mark.parametrize("width", [80, 60])
def test_the_panel_fits_the_terminal(width: int) -> None:
    view = View("a title", HeadRecipe(steps=400, target_acceptance=0.75), clock=lambda: 0.0)
    for step in range(1, 101):
        view.add(progress(step, reward=step / 100))
    lines = Console(width=width).render_lines(view, pad=False)
    assert {sum(segment.cell_length for segment in line) for line in lines} == {min(width, 78)}
    if width == 80:
        assert "…" not in drawn(view)


def test_a_long_step_moves_the_clock() -> None:
    now = 0.0
    view = View("a title", HeadRecipe(steps=3), clock=lambda: now)
    now = 90.0
    assert "first roll-outs, 90 s" in drawn(view)
    view.add(progress(1))
    now = 93.0
    assert "0:00:05 left" in drawn(view)  # two steps of 4 s, 3 s of them over


@pytest.mark.parametrize(
    ("done", "waited", "said"),
    [
        (2, 0.0, "0:00:08 left"),
        (2, 100.0, "0:00:04 left"),  # a slow step does not eat up those to come
        (4, 5.0, "steps done, scores follow"),
    ],
)
def test_what_remains(done: int, waited: float, said: str) -> None:
    assert remaining([progress(i + 1) for i in range(done)], 4, waited) == said


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ([0.0, 1.0], 10, "▁█"),
        ([3.0, 3.0, 3.0], 10, "▁▁▁"),
        ([0.0, 0.0, 0.2, 0.4, 1.0, 1.0], 3, "▁▃█"),  # means of two each
        ([5.0], 10, "▁"),
    ],
)
def test_a_sparkline_goes_from_the_least_to_the_greatest(
    values: list[float], width: int, line: str
) -> None:
    assert sparkline(values, width) == line


def test_a_terminal_gets_a_panel_that_stays() -> None:
    screen, stream = console(terminal=True)
    with live_view("mini-math", HeadRecipe(steps=1), True, screen) as report:
        report(progress(1, reward=0.25))
    assert "0.250" in stream.getvalue()
    assert stream.getvalue().rstrip().endswith(("╯", "\x1b[?25h"))


def test_elsewhere_a_line_comes_every_ten_steps(capsys: pytest.CaptureFixture[str]) -> None:
    screen, stream = console(terminal=False)
    with live_view("mini-math", HeadRecipe(steps=25), True, screen) as report:
        for step in range(1, 26):
            report(progress(step, reward=0.5))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        f"mini-math: step {step}" for step in (1, 10, 20, 25)
    ]
    assert "reward 0.500" in lines[0]
    assert stream.getvalue() == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_is_shown_where_it_is_not_wanted(
    terminal: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    screen, stream = console(terminal)
    with live_view("mini-math", HeadRecipe(steps=1), False, screen) as report:
        report(progress(1))
    assert stream.getvalue() + capsys.readouterr().err == ""

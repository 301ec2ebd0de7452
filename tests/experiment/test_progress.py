"""The progress display in a terminal and elsewhere."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event

import pytest
from rich.console import Console

from specbench.experiment.progress import LINE_AFTER, LINES, progress_bar, step_status, training_bar
from specbench.methods.registry import PARAMETER_COLUMNS

BLANK = dict.fromkeys(PARAMETER_COLUMNS)


def record(**changes: object) -> dict[str, object]:
    counts = {"accepted": 3, "proposed": 4, "output_tokens": 30}
    times = {"prefill_seconds": 1.0, "decode_seconds": 2.0}
    return {"task": "mini-math", "method": "sd", **BLANK, **counts, **times, **changes}


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=terminal, width=160), stream


def test_the_bar_shows_method_task_count_acceptance_speed_and_what_is_done_last():
    bar, stream = console(terminal=True)
    with progress_bar(4, shown=True, console=bar) as display:
        display.resumed(1)
        display(record())
        display(record(accepted=1, output_tokens=60))  # 4 of 8 accepted, 90 tokens in 6 s
        display({"task": "mini-math", "method": "sd", **BLANK, "status": "error"})
    for text in ("mini-math", "sd", "4/4", "acceptance 50 %", "15 tokens/s", "1 failed"):
        assert text in stream.getvalue()
    with progress_bar(1, shown=True, console=bar) as display:
        display(record())
        display.doing("reading texts")
    assert "reading texts" in stream.getvalue()


def test_every_worker_has_a_line():
    bar, stream = console(terminal=True)
    with progress_bar(3, shown=True, console=bar) as display:
        for number in range(2):
            display.worker(number, "loading")
            display.worker(number, "decoding", f"here cpu:{number}")
        display(record(device="here cpu:1", status="ok"))
        display.worker(0, "lost, starting again")
    lines = ("worker 0" + stream.getvalue().rpartition("worker 0")[2]).splitlines()
    assert "here cpu:0" in lines[0] and "lost, starting again" in lines[0] and "0/3" in lines[0]
    assert "here cpu:1" in lines[1] and "mini-math, sd" in lines[1] and "1/3" in lines[1]


@pytest.mark.parametrize(("terminal", "shown"), [(False, True), (True, False)])
def test_no_progress_without_a_terminal_or_on_request(terminal, shown):
    bar, stream = console(terminal)
    with progress_bar(1, shown=shown, console=bar) as display:
        display.worker(0, "loading")
        display(record())
    assert stream.getvalue() == ""


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1e6
        for module in ("specbench.experiment.progress", "rich.console"):
            monkeypatch.setattr(f"{module}.monotonic", lambda: self.now)
        LINES.begin()


@pytest.fixture
def said(monkeypatch, capsys) -> Callable[[float], str]:
    """Return a function that waits so many seconds and returns what was said in that time."""
    clock, progresses = Clock(monkeypatch), list[Callable[[], str]]()

    @contextmanager
    def printed(progress: Callable[[], str]) -> Iterator[None]:
        progresses.append(progress)
        yield
        progresses.pop()

    monkeypatch.setattr(LINES, "printed", printed)

    def wait(seconds: float) -> str:
        clock.now += seconds
        for progress in progresses:
            LINES.print_due(progress)
        return capsys.readouterr().err.removesuffix("\n")

    return wait


Waiting = Callable[[float], str]


def test_without_a_terminal_there_is_a_line_a_minute(said):
    with progress_bar(180, shown=True, console=console(False)[0]) as display:
        display.doing("loading the models")
        assert said(29) == ""
        assert said(1) == "progress: 0 of 180 samples, 0:00:30 so far: loading the models"
        assert said(59) == ""
        display.resumed(20)  # now it decodes
        display.doing("sd", "mini-math")
        assert said(1) == "progress: 20 of 180 samples, 0:00:01 so far: mini-math, sd"
        display(*[record()] * 40)
        assert said(58) == ""
        line = "progress: 60 of 180 samples, 39.3 a minute, 0:03:03 left: mini-math, sd"
        assert said(2) == line
        display(*[record(task="mini-code")] * 120)
        assert said(60) == "progress: 180 of 180 samples, finishing: mini-code, sd"


def test_the_steps_of_a_command_share_the_minute(said):
    with step_status(shown=True, console=console(False)[0]) as show:
        assert said(20) == ""
        show("loading the models")
        assert said(20) == "progress: loading the models, 0:00:40 so far"
        show.expect(8)
        for number in range(3):
            show(f"scoring {number}")
        assert said(30) == ""
    with training_bar("a head", 9, console=console(False)[0]) as draw:
        draw(3, "reward 0.5")
        assert said(20) == "a head: step 3, reward 0.5"  # what it learns has lines of its own
        line = "progress: 3 of 9 steps, 6.0 a minute, 0:01:00 left: a head, reward 0.5"
        assert said(10).endswith(line)


def test_slow_steps_have_a_line_each(monkeypatch, capsys):
    clock = Clock(monkeypatch)
    with training_bar("mini-math", 9, console=console(False)[0]) as draw:
        for step in range(1, 10):
            clock.now += LINE_AFTER if step in (4, 5) else 1
            draw(step, "")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("step ")[1] for line in lines] == ["1, ", "4, ", "5, ", "9, "]


def test_steps_before_a_resume_say_nothing_of_the_pace(said):
    with training_bar("mini-math", 60, console=console(False)[0], done=9) as draw:
        for step in (1, 9):  # of the first session
            draw(step, "reward 0.5")
        draw(10, "reward 0.6")
        assert "10 of 60 steps, 0.5 a minute, 1:40:00 left" in said(120)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("shown", [True, False])
def test_a_training_is_a_bar_on_a_terminal_and_lines_elsewhere(terminal, shown, capsys):
    bar, stream = console(terminal)
    with training_bar("mini-math", 25, shown, console=bar) as draw:
        for step in range(1, 26):
            draw(step, f"reward 0.{step:03}")
    lines = capsys.readouterr().err.splitlines()
    expected = [f"mini-math: step {n}, reward 0.{n:03}" for n in (1, 10, 20, 25)]
    assert lines == (expected if shown and not terminal else [])
    for text in ("reward 0.025", "25/25"):
        assert (text in stream.getvalue()) == (shown and terminal)


@pytest.mark.parametrize(("terminal", "shown"), [(True, True), (True, False), (False, False)])
def test_no_lines_on_a_terminal_or_on_request(said, terminal, shown):
    with progress_bar(180, shown, console(terminal)[0]), step_status(shown, console(terminal)[0]):
        assert said(1000) == ""


def test_a_line_comes_while_nothing_is_finished(monkeypatch, capsys):
    pauses = []

    class Waiting(Event):
        def wait(self, timeout=None):
            pauses.append(timeout)
            clock.now += timeout or 0
            return len(pauses) > 2

    clock = Clock(monkeypatch)
    monkeypatch.setattr("specbench.experiment.progress.Event", Waiting)
    with LINES.printed(lambda: "loading"):
        pass
    assert pauses == [30, 60, 60] and capsys.readouterr().err == "progress: loading\n" * 2

"""The progress display in a terminal."""

import io

import pytest
from rich.console import Console

from specbench.experiment.progress import progress_bar
from specbench.methods.registry import PARAMETER_COLUMNS

BLANK = dict.fromkeys(PARAMETER_COLUMNS)


def record(**changes: object) -> dict[str, object]:
    counts = {"accepted": 3, "proposed": 4, "output_tokens": 30}
    times = {"prefill_seconds": 1.0, "decode_seconds": 2.0}
    return {"task": "mini-math", "method": "sd", **BLANK, **counts, **times, **changes}


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=terminal, width=160), stream


def test_the_bar_shows_method_task_count_acceptance_and_speed() -> None:
    bar, stream = console(terminal=True)
    with progress_bar(4, shown=True, console=bar) as display:
        display.resumed(1)
        display(record())
        display(record(accepted=1, output_tokens=60))  # 4 of 8 accepted, 90 tokens in 6 s
        display({"task": "mini-math", "method": "sd", **BLANK, "status": "error"})
    shown = stream.getvalue()
    for text in ("mini-math", "sd", "4/4", "acceptance 50 %", "15 tokens/s", "1 failed"):
        assert text in shown


def test_the_bar_says_what_is_done_after_the_last_sample() -> None:
    bar, stream = console(terminal=True)
    with progress_bar(1, shown=True, console=bar) as display:
        display(record())
        display.doing("reading texts")
    assert "reading texts" in stream.getvalue()


def test_every_worker_has_a_line() -> None:
    bar, stream = console(terminal=True)
    with progress_bar(3, shown=True, console=bar) as display:
        for number in range(2):
            display.worker(number, "loading")
            display.worker(number, "decoding", f"here cpu:{number}")
        display(record(device="here cpu:1", status="ok"))
        display.worker(0, "lost, starting again")
    last = stream.getvalue().rpartition("worker 0")[2]
    lines = ("worker 0" + last).splitlines()
    assert "here cpu:0" in lines[0] and "lost, starting again" in lines[0] and "0/3" in lines[0]
    assert "here cpu:1" in lines[1] and "mini-math, sd" in lines[1] and "1/3" in lines[1]


@pytest.mark.parametrize(("terminal", "shown"), [(False, True), (True, False)])
def test_no_progress_without_a_terminal_or_on_request(terminal: bool, shown: bool) -> None:
    bar, stream = console(terminal)
    with progress_bar(1, shown=shown, console=bar) as display:
        display.worker(0, "loading")
        display(record())
    assert stream.getvalue() == ""

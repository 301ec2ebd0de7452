import io
from typing import Any

from rich.console import Console

from specbench.analysis.frames import PARAMETERS
from specbench.cluster.view import MOST_ROWS, View, crew_view


def drawn(view: View) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(view)
    return console.file.getvalue()  # type: ignore[attr-defined]


def record(device: str, status: str = "ok") -> dict[str, Any]:
    cell = {"task": "mini-math", "method": "sd", **dict.fromkeys(PARAMETERS)}
    return {**cell, "device": device, "status": status}


def test_workers_devices_samples_failures_and_time_left_are_shown() -> None:
    now = 0.0
    view = View(9, clock=lambda: now)
    view.watch(0, "loading")
    assert "loading" in drawn(view)
    view.watch(0, "decoding", "here cpu:0")
    view.watch(1, "decoding", "here cpu:1")
    view.report({"task": "mini-math", "method": "sd"})  # was there before
    view.report(record("here cpu:0"))
    now = 10.0
    view.report(record("here cpu:1", "error"))
    shown = drawn(view)
    assert "3 of 9, 1 failed" in shown
    assert "0:01:00 left" in shown  # six more, one in 10 seconds
    assert "here cpu:1" in shown and "mini-math, sd" in shown


def test_failures_are_counted_and_a_lost_worker_is_said_to_be() -> None:
    view = View(4)
    view.watch(0, "decoding", "here cpu:0")
    view.report(record("here cpu:0"))
    view.report(record("here cpu:0", "error"))
    view.watch(0, "lost, starting again")
    shown = drawn(view)
    assert "2 of 4, 1 failed" in shown
    assert "lost, starting again" in shown and "here cpu:0" in shown


def test_many_workers_are_summed_up() -> None:
    view = View(4)
    for number in range(MOST_ROWS + 3):
        view.watch(number, "decoding", f"here cuda:{number}")
    view.watch(MOST_ROWS, "loading")
    shown = drawn(view)
    assert f"here cuda:{MOST_ROWS - 1}" in shown
    assert f"here cuda:{MOST_ROWS + 1}" not in shown
    assert "1 loading, 2 decoding" in shown


def test_without_a_terminal_nothing_is_drawn() -> None:
    console = Console(file=io.StringIO())
    with crew_view(4, True, console) as view:
        view.report(record("x"))
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]

import io

import pytest
from rich.console import Console

from specbench.analysis.frames import PARAMETERS
from specbench.analysis.labels import method_label
from specbench.experiment.progress import progress_bar

BLANK = dict.fromkeys(PARAMETERS)


def record(**changes: object) -> dict[str, object]:
    counts = {"accepted": 3, "proposed": 4, "output_tokens": 30}
    times = {"prefill_seconds": 1.0, "decode_seconds": 2.0}
    return {"task": "mini-math", "method": "sd", **BLANK, **counts, **times, **changes}


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"method": "sd"}, "sd"),
        ({"method": "static", "weight": 0.5}, "static w=0.5"),
        ({"method": "static", "weight": 0.5, "alpha": float("nan")}, "static w=0.5"),
        (
            {"method": "speccascade", "rule": "token-v3", "alpha": 0.25},
            "speccascade token-v3 α=0.25",
        ),
    ],
)
def test_a_method_is_labelled_with_its_parameters(changes: dict[str, object], label: str) -> None:
    assert method_label(BLANK | changes) == label


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=terminal, width=160), stream


def test_the_bar_shows_method_task_count_acceptance_and_speed() -> None:
    bar, stream = console(terminal=True)
    with progress_bar(2, shown=True, console=bar) as report:
        report(record())
        report(record(accepted=1, output_tokens=60))  # 4 of 8 accepted, 90 tokens in 6 s
    shown = stream.getvalue()
    for text in ("mini-math", "sd", "2/2", "acceptance 50%", "15 tokens/s"):
        assert text in shown


@pytest.mark.parametrize(("terminal", "shown"), [(False, True), (True, False)])
def test_nothing_is_drawn_without_a_terminal_or_where_it_is_not_wanted(
    terminal: bool, shown: bool
) -> None:
    bar, stream = console(terminal)
    with progress_bar(1, shown=shown, console=bar) as report:
        report(record())
    assert stream.getvalue() == ""


def test_a_failed_sample_counts_as_done() -> None:
    bar, stream = console(terminal=True)
    with progress_bar(1, shown=True, console=bar) as report:
        report({"task": "t", "method": "sd", **BLANK, "status": "error"})
    assert "1/1" in stream.getvalue()

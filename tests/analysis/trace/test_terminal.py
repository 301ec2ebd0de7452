"""Traces in the terminal, with and without colours."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from specbench.analysis.trace import show
from specbench.analysis.trace import Trace, trace

from .made import Round, decode, made

ROUNDS: list[Round] = [("aB\n", "x", "c"), ("d$", "", "")]


def seen(found: Trace, colours: str | None) -> str:
    out = io.StringIO()
    # A width larger than any line, and without NO_COLOR from the environment.
    terminal: dict[str, Any] = {"force_terminal": bool(colours), "color_system": colours}
    show(found, Console(file=out, width=200, no_color=False, **terminal))
    return out.getvalue()


def styles(text: str, output: str) -> set[str]:
    """Return the ANSI codes that style a text."""
    (codes,) = re.findall(rf"\x1b\[([\d;]+)m{re.escape(text)}\x1b", output)
    return set(codes.split(";"))


def test_without_colours_marks_are_printed() -> None:
    found = trace(made(*ROUNDS, end=True), "sd", decode)
    head, facts, legend, _, first, second = seen(found, None).splitlines()
    assert head == "sums, a: sd, N = 5"
    assert facts == (
        "6 tokens in 2 rounds; 5 of 10 drafts accepted (50.0 %); 1 of them mismatches; "
        "accuracy 100.0"
    )
    assert legend == "agreed  {~mismatch~}  [-rejected-]  {+correction+}"
    assert (first, second) == ("a{~B~}", "[-x-]{+c+}d⟨end⟩")


def test_the_prompt_precedes_the_text_and_a_long_one_is_shortened() -> None:
    output = seen(trace(made(*ROUNDS), "sd", decode, "Why\x1b?\n"), None)
    assert "\n\nprompt: Why␛?\n\na{~B~}" in output
    long = seen(trace(made(*ROUNDS), "sd", decode, 3000 * "a" + "end"), None)
    assert "[... 1,003 characters ...]" in long and "aend\n\na{~B~}" in long


def test_in_colours_each_kind_has_its_own_style() -> None:
    body = seen(trace(made(*ROUNDS), "sd", decode), "standard").split("\n\n")[1]
    assert body.startswith("a\x1b")
    assert styles("B", body) == {"4", "32"}  # green, underlined
    assert styles("x", body) == {"9", "31"}  # red, struck through
    assert styles("c", body) == {"1"}


def test_a_weight_is_a_shade() -> None:
    output = seen(trace(made(("ab", "x", "c"), weight=0.0), "static", decode), "truecolor")
    legend, body = output.split("\n\n")
    assert "mean w 0.00" in legend
    paler, deeper = (int(re.findall(rf"48;2;(\d+);\d+;\d+m{letter}", body)[0]) for letter in "ab")
    assert paler > deeper
    # The rejected draft and its correction have the same weight.
    assert len(set(re.findall(r"48;2;(\d+);\d+;\d+m[xc]", body))) == 1
    assert "48;2" not in seen(trace(made(("ab", "x", "c")), "sd", decode), "truecolor")


def test_autoregressive_needs_no_marks() -> None:
    record = made(("", "", "a"), ("", "", "b"), method="autoregressive", draft_length=0)
    output = seen(trace(record, "autoregressive", decode), None)
    assert "sums, a: autoregressive\n2 tokens in 2 rounds" in output
    assert output.endswith("drawn from the target\n\nab\n")


@pytest.mark.parametrize("colours", [None, "truecolor"])
def test_a_text_cannot_control_the_terminal(colours: str | None) -> None:
    output = seen(trace(made(("\x1b]0;owned\x07", "\x1b", "c")), "sd", decode), colours)
    assert "\x1b]" not in output
    assert "␛" in output

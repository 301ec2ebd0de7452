"""Words of messages: no control characters, and no secrets."""

import pytest

from specbench.errors import mask_tokens, printable, shown

HARMLESS_TEXT = "line\n\t é 漢 👩\u200d🔬 می\u200cخواهم \u00a0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b]0;title\x07red\x1b[31m", "�]0;title�red�[31m"),
        ("a\x00b\x7fc\x9bd\r\b", "a�b�c�d��"),
        ("file\u202etxt.exe\u2066\ufeff", "file�txt.exe��"),
        ("one\u2028two\u2029\ud800", "one�two��"),
        (HARMLESS_TEXT, HARMLESS_TEXT),
        ("", ""),
    ],
)
def test_characters_that_steer_a_terminal_are_replaced(text, expected):
    assert printable(text) == expected
    assert printable(expected) == expected


def test_a_quoted_text_is_printable():
    assert shown("a\x1b[2J\nb") == "a�[2J b"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("403 for hf_AbCdEfGhIjKl, twice hf_AbCdEfGhIjKl", "403 for hf_***, twice hf_***"),
        ("https://me:hf_AbCdEfGhIjKl@hub/x", "https://me:hf_***@hub/x"),
        ("models/hf_8B/half_hf_AbCdEfGh", "models/hf_8B/half_hf_AbCdEfGh"),
        ("", ""),
    ],
)
def test_anything_that_looks_like_a_token_is_masked(text, masked):
    assert mask_tokens(text) == masked


def test_the_token_in_use_is_masked_whatever_it_looks_like(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "from-somewhere-else")
    assert mask_tokens("from-somewhere-else is wrong") == "hf_*** is wrong"

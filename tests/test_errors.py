import pytest

from specbench.errors import printable, shown

KEPT = "line\n\t é 漢 👩\u200d🔬 می\u200cخواهم \u00a0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b]0;title\x07red\x1b[31m", "�]0;title�red�[31m"),
        ("a\x00b\x7fc\x9bd\r\b", "a�b�c�d��"),
        ("file\u202etxt.exe\u2066\ufeff", "file�txt.exe��"),
        ("one\u2028two\u2029\ud800", "one�two��"),
        (KEPT, KEPT),
        ("", ""),
    ],
)
def test_characters_that_steer_a_terminal_are_replaced(text: str, expected: str) -> None:
    assert printable(text) == expected
    assert printable(expected) == expected


def test_a_quoted_text_is_printable() -> None:
    assert shown("a\x1b[2J\nb") == "a�[2J b"

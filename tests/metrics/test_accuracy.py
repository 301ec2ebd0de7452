"""The number that an answer ends in, in all the forms that models write it."""

from decimal import Decimal

import pytest

from specbench.errors import UsageError
from specbench.metrics.accuracy import accuracy, final_number
from specbench.tasks.example import Example


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 + 4 = 7\n#### 7", "7"),
        ("####7", "7"),
        ("####\n7", "7"),
        ("#### 7.", "7"),
        ("#### 7.\nMore talk, 8.", "7"),
        ("#### 7 apples", "7"),
        ("#### 1,234,567", "1234567"),
        ("#### 1,234.", "1234"),
        ("#### 3, then 4", "3"),
        ("#### 2.50", "2.5"),
        ("#### .5", "0.5"),
        ("#### -12", "-12"),
        ("#### +12", "12"),
        ("#### - 12", "-12"),
        ("#### $18", "18"),
        ("#### $ 1,000.75.", "1000.75"),
        ("#### -$5", "-5"),
        ("#### $-5", "-5"),
        ("#### 1 #### 2", "2"),
        ("##### 9", "9"),
        ("#### 1\n#### none", None),
        ("#### 1\n####", None),
        ("#### the answer is 7", None),
        ("#### --5", None),
        ("#### -$-5", None),
        ("#### ,5", None),
        ("the answer is 7", None),
        ("", None),
        ("#### \u0663", None),  # an Arabic-Indic three
    ],
)
def test_final_number(text: str, number: str | None) -> None:
    assert final_number(text) == (None if number is None else Decimal(number))


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        ("so #### 18", "16 - 3 + 5 = 18\n#### 18", 1.0),
        ("so #### 18.00", "18", 1.0),
        ("so #### $1,800", "1800", 1.0),
        ("so #### -18", "18", 0.0),
        ("so 18", "#### 18", 0.0),
        ("#### 18\n#### 19", "#### 18", 0.0),
        # As floats these would be equal.
        (f"#### {2**53 + 1}", str(2**53), 0.0),
        (f"#### 1{'0' * 400}", f"2{'0' * 400}", 0.0),
    ],
)
def test_numbers_are_compared_by_value(text: str, reference: str, expected: float) -> None:
    assert accuracy(text, Example("e", "prompt", reference)) == expected


def test_reference_without_a_number_is_the_users_error() -> None:
    with pytest.raises(UsageError, match="reference of example `e3` has no number"):
        accuracy("#### 1", Example("e3", "prompt", "as many as before"))

"""Parameters in the columns of tables and back."""

import math

import pytest

from specbench.errors import UsageError
from specbench.methods.registry import PARAMETER_COLUMNS, from_columns, to_columns


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"weight": 0.3},
        {"keep": 10.0, "margin": 0.1},
        {"rule": "opt", "alpha": -1.0, "form": "ratio", "ratio": 1 / 3},
    ],
)
def test_columns_hold_all_parameters(parameters: dict[str, object]) -> None:
    columns = to_columns(parameters)
    assert tuple(columns) == PARAMETER_COLUMNS
    blanks = {name: math.nan if value is None else value for name, value in columns.items()}
    for row in (columns, blanks):
        assert from_columns(row) == pytest.approx(parameters)


@pytest.mark.parametrize("text", ["two words", "a=b"])
def test_a_text_that_cannot_be_read_back_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="mode cannot be"):
        to_columns({"mode": text})


@pytest.mark.parametrize("text", ["1e3", "nan", "inf", "007", "top"])
def test_a_text_that_reads_like_a_number_is_read_back(text: str) -> None:
    assert from_columns(to_columns({"mode": text})) == {"mode": text}

"""The final number of an answer, in all formats that models use."""

import json
import os
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.tasks.example import Example
from specbench.tasks.metrics.accuracy import (
    accuracy,
    accuracy_flexible,
    final_number,
    flexible_number,
)

from ...told import DATA
from .conftest import takes_less


def numbers(name: str) -> Iterator[tuple[Decimal | None, str]]:
    """Yield the number of each text of a file, in which ⏎ is the end of a line."""
    for line in (DATA / name).read_text(encoding="utf-8").splitlines():
        number, text = line.replace("⏎", "\n").split("\t")
        yield (None if number == "none" else Decimal(number)), text


def test_final_number():
    for number, text in numbers("marked.tsv"):
        assert final_number(text) == number, text


def test_numbers_are_compared_by_value():
    for text, reference, expected in (
        *(("so #### 18", "16 - 3 + 5 = 18\n#### 18", 1.0), ("so #### 18.00", "18", 1.0)),
        *(("so #### $1,800", "1800", 1.0), ("so #### -18", "18", 0.0), ("so 18", "#### 18", 0.0)),
        *(("#### 18\n#### 19", "#### 18", 1.0), ("#### 19\n#### 18", "#### 18", 0.0)),
        # As floats these would be equal.
        (f"#### {2**53 + 1}", str(2**53), 0.0),
        (f"#### 1{'0' * 400}", f"2{'0' * 400}", 0.0),
    ):
        assert accuracy(text, Example("e", "prompt", reference)) == expected


LOOKALIKES = [  # signs and spaces that are not those of ASCII
    *(("-5", "It fell by \u22125 degrees"), ("-5", "The answer is \u20135 degrees")),
    *(("-7", "It fell to \u20117"), ("5", "pages 3\u20135"), ("-0.5", "\u2212\u00bd")),
    *(("1234", "1\u2009234 or 1\u202f234"), ("1234.5", "1\u00a0234,50 \u20ac"), ("10", "10\u00b2")),
    *(("1234567.25", "1\u2019234\u2019567.25"), ("18", "Ответ \u2014 18 за 2 дня")),
]


def test_flexible_number():
    for number, text in (*numbers("numbers.tsv"), *((Decimal(n), t) for n, t in LOOKALIKES)):
        assert flexible_number(text) == number, text


def test_references_are_numbers_in_any_form_and_strict_for_flexible_accuracy():
    for reference, right, wrong in (
        *(("1 234", "#### 1,234", "#### 1"), ("\u20135", "#### -5", "#### 5")),
        *(("\uff11\uff18", "#### 18", "#### 1"), ("2 1/2", "#### 5/2", "#### 2")),
        ("1/2", "#### 2/4", "#### 1/3"),
    ):
        example = Example("e", "prompt", reference)
        for metric in (accuracy, accuracy_flexible):
            assert (metric(right, example), metric(wrong, example)) == (1, 0)
    example = Example("e", "prompt", "9 * 200 = 1\n#### 1,800")
    for text in ("In all 1,800.00 dollars", r"\boxed{1800}", "#### 1800"):
        assert accuracy_flexible(text, example) == 1
    for text in ("In all -1800", "In all 1800.5", "The answer is 1800/2", "#### 18\n1800", ""):
        assert accuracy_flexible(text, example) == 0


FIVES = [*("5kg", "$5.00", r"5\%", r"5^{\circ}", r"5\text{cm}"), "5: 3 each", "5 - so", "10/2"]
NO_NUMBERS = [
    r"5\sqrt{3}",
    r"5\pi",
    "5:30",
    "5-12",
    "5 - 12",
    "5x+2",
    "5x^2",
    "5^{9}",
    "2024-01-05",
]


def test_a_reference_of_more_than_a_number_is_refused():
    for reference in FIVES:
        example = Example("e", "prompt", reference)
        assert (accuracy("#### 5", example), accuracy("#### 6", example)) == (1, 0)
    for reference in NO_NUMBERS:
        with pytest.raises(UsageError, match="is not one number"):
            accuracy("", Example("e", "prompt", reference))


@pytest.mark.skipif("SPECBENCH_TEST_DATA" not in os.environ, reason="needs the real files")
@pytest.mark.parametrize(("split", "rows"), [("train", 7473), ("test", 1319)])
def test_gold_answers_of_gsm8k_are_right_and_those_of_others_wrong(split, rows):
    path = Path(os.environ["SPECBENCH_TEST_DATA"]) / "gsm8k" / f"{split}.jsonl"
    gold = [json.loads(line)["answer"] for line in path.open(encoding="utf-8")]
    assert len(gold) == rows
    examples = [Example("e", "prompt", answer) for answer in gold]
    for metric in (accuracy, accuracy_flexible):
        assert all(metric(e.reference or "", e) == 1 for e in examples)
        swapped = sum(metric(other, e) for other, e in zip(gold[1:], examples, strict=False))
        assert swapped / rows < 0.05
    # In the formats of model answers, and without any marker.
    forms = ("So the answer is ${} in 1 day.", r"Thus \boxed{{\text{{{} eggs}}}} for 2.")
    for form in forms:
        for example in examples:
            worked, _, number = (example.reference or "").rpartition("#### ")
            text = worked + form.format(number)
            assert accuracy(text, example) == 0 and accuracy_flexible(text, example) == 1
    bare = sum(accuracy_flexible((e.reference or "").split("####")[0], e) for e in examples)
    assert bare / rows > 0.97


def test_parsing_takes_linear_time():
    """Twenty thousand blanks after "answer:" once took 7.8 s; they take a millisecond."""
    for before in ("####", "answer:", "answer", r"\boxed", r"\frac{", "", "<<"):
        for filler in (
            *(" ", "*", "#### ", "1,111", "answer: ", "\\boxed{", "9 * ", "<answer>", "1 111 "),
            "\n",
        ):
            text = before + filler * (20_000 // len(filler)) + "x"
            assert takes_less(partial(flexible_number, text), 0.5), (before, filler)

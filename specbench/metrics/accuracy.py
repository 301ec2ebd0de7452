"""Accuracy of worked answers by their final number, read strictly or flexibly.

The references of GSM8K end in ``#### number``. ``accuracy`` asks the same of an answer;
``accuracy-flexible`` takes the number that the answer gives in any of the usual ways.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING

from specbench.errors import UsageError

if TYPE_CHECKING:
    from specbench.example import Example

MARK = "####"
# Optional sign and dollar in either order, then digits with commas and perhaps decimals. A full
# stop that no digit follows ends the sentence and is no part of the number. Here and below a
# possessive ``*+`` keeps a long run of blanks from taking quadratic time.
_MARKED = re.compile(
    rf"{MARK}\s*+(?:([-+]?)\s*+\$?\s*+|\$\s*+([-+]))"
    r"((?:[0-9][0-9,]*)?\.[0-9]+|[0-9][0-9,]*)"
)
# An operator with the number to its right.
_OPERATION = re.compile(r"(?:[-+*/×·÷^]|\\(?:times|cdot|div)\b|(?<![A-Za-z])x)\s*+[$£€(]*+\.?[0-9]")

_ANNOTATION = re.compile(r"<<[^<>]*>>")  # GSM8K's notes for a calculator
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
# Of "Answer:" only where the number follows, for many a text works the answer out after it.
_SAID = re.compile(
    r"\banswer(?:\s+is\b[\s:*_=]*|[*_]*\s*:[\s*_]*+(?=[-+$£€\\\s]*+\.?[0-9]))([^\n]*)",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}")
_LATEX_COMMA = re.compile(r"(?<=[0-9])(?:\{,\}|,?\\[,!])(?=[0-9])")
_MINUS = "\u2212"
# A minus is a sign only where nothing stands before it that could be subtracted from; digits that
# follow a letter are part of a name (x2, H2O); commas count where they part thousands.
_LOOSE = re.compile(
    r"(?P<sign>(?<![A-Za-z0-9)\]}%])-\\?[$£€]?)?"
    r"(?<![A-Za-z0-9])"
    r"(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
    r"(?:/(?P<divisor>0*[1-9][0-9]{0,5})(?![0-9/]|\.[0-9]))?"
)


def final_number(text: str) -> Decimal | None:
    """Return the number after the first ``####`` that has one, or None where there is none.

    The first, as in GSM8K's own evaluation and in lm-evaluation-harness's strict match: models
    often continue after it with a question of their own.
    """
    found = _MARKED.search(text)
    return None if found is None else _marked_value(found)


def flexible_number(text: str) -> Decimal | None:
    r"""Return the number that an answer gives, or None where there is no number at all.

    The first of these that gives one: the strict ``#### number``, or where that begins a
    calculation, as in ``#### 9 * 2 = 18``, the line's result; the last ``\boxed{...}``; the last
    "the answer is ...", or "Answer:" with a number next, up to the end of its sentence, after the
    ``=`` if there is one; the last number of the text. Currencies, percent signs and units are
    passed over, and so are GSM8K's annotations ``<<3+4=7>>``.
    """
    if marked := _MARKED.search(text):
        return _result(text, marked)
    plain = _plain(text)
    for said in (_BOXED.findall(plain), _SAID.findall(plain)):
        if said:
            sentence = _SENTENCE_END.split(said[-1], maxsplit=1)[0]
            found = _LOOSE.search(sentence.rpartition("=")[2])
            if found:
                return _value(found)
    numbers = list(_LOOSE.finditer(plain))
    return _value(numbers[-1]) if numbers else None


def accuracy(text: str, example: Example) -> float:
    """Return 1 where ``final_number`` of the text is that of the reference, else 0.

    Raises:
        UsageError: The reference, a worked answer or the number alone, has no number.
    """
    expected = _expected(example)
    return float(final_number(text) == expected)


def accuracy_flexible(text: str, example: Example) -> float:
    """Return 1 where ``flexible_number`` of the text is that of the reference, else 0.

    The reference is read strictly; see ``accuracy``.
    """
    expected = _expected(example)
    return float(flexible_number(text) == expected)


def _expected(example: Example) -> Decimal:
    reference = example.reference or ""
    expected = final_number(reference if MARK in reference else MARK + reference)
    if expected is None:
        raise UsageError(
            f"the reference of example `{example.id}` has no number; end it with `{MARK} number`"
        )
    return expected


def _plain(text: str) -> str:
    """Return a text without annotations and with minus signs, commas and fractions as typed."""
    text = _ANNOTATION.sub("", text).replace(_MINUS, "-")
    return _FRACTION.sub(r"\1/\2", _LATEX_COMMA.sub(",", text))


def _result(text: str, marked: re.Match[str]) -> Decimal:
    """Return the number that the line of a marked number states, or the result it computes.

    Of a calculation the last side of an ``=`` that is a number and no calculation itself.
    """
    rest = text[marked.end() :].partition("\n")[0]
    if _OPERATION.search(_plain(rest).partition("=")[0]):
        for side in reversed(_plain(marked[0].removeprefix(MARK) + rest).split("=")):
            found = _LOOSE.search(side)
            if found and not _OPERATION.search(side, found.end()):
                return _value(found)
    return _marked_value(marked)


def _marked_value(found: re.Match[str]) -> Decimal:
    return Decimal((found[1] or found[2] or "") + found[3].replace(",", ""))


def _value(found: re.Match[str]) -> Decimal:
    value = Decimal(found["number"].replace(",", ""))
    if found["divisor"]:
        value /= int(found["divisor"])
    return -value if found["sign"] else value

"""Accuracy by the final number of an answer, parsed strictly or flexibly.

The references of GSM8K end in ``#### number``. ``accuracy`` requires this format of an answer;
``accuracy-flexible`` accepts the final number in any common format. Of an answer that the limit on
new tokens cut, it accepts only a number that the answer states as its result.
"""

from __future__ import annotations

import re
from decimal import Decimal

from specbench.errors import UsageError
from specbench.tasks.example import Example
from specbench.tasks.metrics.metric import metric
from specbench.tasks.metrics.numbers import plain_numbers

MARK = "####"
# Optional sign and dollar in either order, then digits with commas and optional decimals. A full
# stop without a following digit ends the sentence and is not part of the number. Here and below, a
# possessive ``*+`` avoids quadratic time on long runs of blanks.
_MARKED = re.compile(
    rf"{MARK}\s*+(?:([-+]?)\s*+\$?\s*+|\$\s*+([-+]))"
    r"((?:[0-9][0-9,]*)?\.[0-9]+|[0-9][0-9,]*)"
    r"(?:/(?P<divisor>0*[1-9][0-9]{0,5})(?![0-9/]|\.[0-9]))?"
)
# What follows the first number of a reference that is more: 10-12, 3:30, 2^{10}, 3x+2.
_GOES_ON = re.compile(
    r"[A-Za-z]?\s*[-+*/]\s*[{(\\$]*[0-9]|:[0-9]|[A-Za-z]?\^(?!\{?\\circ)"
    r"|\s*\\(?:sqrt|pi|cdot|times|pm)"
)
# An operator and the number to its right.
_OPERATION = re.compile(r"(?:[-+*/×·÷^]|\\(?:times|cdot|div)\b|(?<![A-Za-z])x)\s*+[$£€(]*+\.?[0-9]")

_ANNOTATION = re.compile(r"<<[^<>]*>>")  # GSM8K's calculator annotations
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
# "Answer:" only if a number follows, since many texts continue with the calculation.
_STATED = re.compile(
    r"(?:(?:\banswer|答案)(?:\s+is\b[\s:*_=]*|[是为為]\s*|[*_]*\s*:[\s*_]*+(?=[-+$£€\\\s]*+\.?[0-9]))"
    r"|(?:答え?|こたえ|解答)\s*[はが:]|(?:정답|답)\s*[은는이:]"
    r"|\bответ(?:ом)?[*_]*\s*(?:[:—-]|равен\b|является\b|это\b|будет\b)"
    r"|\b(?:jawaban|cevap|odpowiedź|đáp án|उत्तर|الجواب)[*_]*\s*:"
    r"|\b(?:antwort|réponse|respuesta|resposta|risposta)(?:\s+(?:ist|lautet|est|es|é|è)\b|[*_]*\s*:))"
    r"([^\n]*)",
    re.IGNORECASE,
)
# Another statement in the same line, with its number.
_STATED_AGAIN = re.compile(r"\banswer\s+is\b[\s:*_=]*(?=[-+$£€\\]*\.?[0-9])", re.IGNORECASE)
# What a text goes on with behind its answer: another question, or why a number alone is right.
_NEXT = re.compile(
    r"\n(?:(?!\n)[\s*_#])*+(?:(?:next|new) )?(?:(?:question|q|problem|exercise)[ \t]*"
    r"(?:\d+[*_]*\s*[.:]|[*_]*\s*:)"
    r"|(?:user|human)[*_]*:)|\n#+ *(?:question|problem)\b",
    re.I,
)
# The number of a heading, which is no answer where they count from 1.
_HEADING = re.compile(r"^#{4,} *([0-9]+)[.)] +(?=[^\W\d_]).*$", re.MULTILINE)
_WHY = re.compile(
    r"[\s*_#(]*(?:expla|reason|because|why|erkl|begr|explic|解释|説明|설명|объясн)", re.I
)
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)|。")
_TAGGED = re.compile(
    r"(?:<|\[)((?:final[ _-]?)?(?:answer|result))(?:>|\])(.{0,1000}?)(?:</|\[/)\1", re.DOTALL | re.I
)
# A minus is a sign unless it follows something to subtract from. Digits after a letter belong to a
# name (x2, H2O). Commas are accepted as thousands separators.
_LOOSE = re.compile(
    r"(?P<sign>(?<![A-Za-z0-9)\]}%])-\\?[$£€]?)?"
    r"(?<![A-Za-z0-9])"
    r"(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
    r"(?:/(?P<divisor>0*[1-9][0-9]{0,5})(?![0-9/]|\.[0-9]))?"
)


def final_number(text: str, *, divided: bool = False) -> Decimal | None:
    """Return the number after the first ``####`` that has one, or None; ``divided`` reads 1/2.

    GSM8K's own evaluation and lm-evaluation-harness's strict match also take the first: models
    often continue with another question.
    """
    match = _MARKED.search(text)
    return None if match is None else _marked_value(match, divided)


def flexible_number(text: str, *, cut: bool = False) -> Decimal | None:
    r"""Return the final number of an answer, or None if it has no number.

    These are tried in order: the strict ``#### number``, or if a calculation follows, as in
    ``#### 9 * 2 = 18``, its result; the last ``\boxed{...}``; the last "the answer is ...", or
    "Answer:" followed by a number, up to the end of its sentence and after the ``=`` if there is
    one, or the last ``<answer>``; the only number of a first line that is in bold or has an
    explanation behind it; the last number of the text, unless the text is ``cut``. Another question
    and what follows it are left out, and so are numbered headings.
    Currencies, percent signs, units and GSM8K's annotations ``<<3+4=7>>`` are skipped. Digits may
    be of any script, thousands may be apart by spaces, apostrophes or commas, and ``2 1/2`` is 2.5.
    """
    plain = _plain(text)
    if (following := _NEXT.search(plain)) and _LOOSE.search(plain, 0, following.start()):
        answer = plain[: following.start()]
        if not answer.rstrip("*_# \n").endswith(":"):  # which announces it
            plain, cut = answer, False
    headings = _HEADING.findall(plain)
    if len(headings) > 1 and headings == [str(n) for n in range(1, len(headings) + 1)]:
        plain = _HEADING.sub("", plain)
    if (stated := _stated(plain)) is not None:
        return stated
    first, _, behind = plain.strip().partition("\n")
    alone = list(_LOOSE.finditer(first))
    is_bold = "**" in first and _LOOSE.fullmatch(first.strip(" *_$£€%.`"))
    if len(alone) == 1 and behind and (is_bold or _WHY.match(behind)):
        return _value(alone[0])
    numbers = [] if cut else list(_LOOSE.finditer(plain))
    return _value(numbers[-1]) if numbers else None


def _stated(plain: str) -> Decimal | None:
    """Return the number that a text names as its answer, if it does."""
    if marked := _MARKED.search(plain):
        return _result(plain, marked)
    tagged = [answer for _, answer in _TAGGED.findall(plain)]
    for matches in (_BOXED.findall(plain), tagged, _STATED.findall(plain)):
        if matches:
            last = _STATED_AGAIN.split(matches[-1])[-1]
            sentence = _SENTENCE_END.split(last, maxsplit=1)[0]
            match = _LOOSE.search(sentence.rpartition("=")[2])
            if match:
                return _value(match)
    return None


@metric("accuracy")
def accuracy(text: str, example: Example) -> float:
    """Return 1 if the number after ``####`` equals the reference's, else 0.

    The reference may be a full solution or just the number.
    """
    expected, is_fraction = _expected(example)
    return float(final_number(text, divided=is_fraction) == expected)


@metric("flexible accuracy")
def accuracy_flexible(text: str, example: Example) -> float:
    """Return 1 if the final number, in any common format, equals the reference's, else 0.

    The reference is parsed strictly; see ``accuracy``.
    """
    expected, _ = _expected(example)
    return float(flexible_number(text, cut=example.cut) == expected)


def _expected(example: Example) -> tuple[Decimal, bool]:
    """Return the number of the reference, and whether it is written as a fraction."""
    reference = _plain(example.reference or "")
    reference = reference if MARK in reference else MARK + reference
    match = _MARKED.search(reference)
    if match is None or _GOES_ON.match(reference, match.end()):
        lacks = "has no number" if match is None else "is not one number"
        raise UsageError(
            f"the reference of example `{example.id}` {lacks}; end it with `{MARK} number`"
        )
    return _marked_value(match, True), match["divisor"] is not None


def _plain(text: str) -> str:
    return plain_numbers(_ANNOTATION.sub("", text))


def _result(text: str, marked: re.Match[str]) -> Decimal:
    """Return the marked number of a plain text, or the result of the calculation in its line.

    The result is the last side of an ``=`` that is a number rather than a calculation.
    """
    line = text[marked.end() :].partition("\n")[0]
    if _OPERATION.search(line.partition("=")[0]):
        for side in reversed((marked[0].removeprefix(MARK) + line).split("=")):
            match = _LOOSE.search(side)
            if match and not _OPERATION.search(side, match.end()):
                return _value(match)
    return _marked_value(marked, True)


def _marked_value(match: re.Match[str], divided: bool) -> Decimal:
    value = Decimal((match[1] or match[2] or "") + match[3].replace(",", ""))
    return value / int(match["divisor"]) if divided and match["divisor"] else value


def _value(match: re.Match[str]) -> Decimal:
    value = Decimal(match["number"].replace(",", ""))
    if match["divisor"]:
        value /= int(match["divisor"])
    return -value if match["sign"] else value

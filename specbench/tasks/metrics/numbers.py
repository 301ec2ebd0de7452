"""Numbers as people and models write them, in the one form that metrics read."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal

_OTHER = re.compile(r"[^\x00-\x7f]")
_ALIKE = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2012\u2013\u2212\u2796\ufe63", "-"),  # hyphens, en dash, minus
        **dict.fromkeys("\u2018\u2019\u02bc", "'"),
        **dict.fromkeys("\u2044\u2215", "/"),
        "\u066b": ".",  # Arabic decimal and thousands separators
        "\u066c": ",",
    }
)
_WIDE_COMMA = re.compile("(?<=[\uff10-\uff19])\uff0c(?=[\uff10-\uff19]{3})")  # not of prose
_FRACTION = re.compile(
    r"([0-9]?)\\[cdt]?frac\s*(?:\{\s*(-?[0-9]+)\s*\}|([0-9]))\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))"
)
_LATEX_COMMA = re.compile(r"(?<=[0-9])(?:\{,\}|,?\\[,!])(?=[0-9])")
# Thousands apart by spaces, apostrophes, underscores or several points; Indian groups; a comma
# before decimals only behind such groups.
_GROUPS = re.compile(
    r"(?<![\w.,/'])(?<![0-9][ -])(?:"
    r"([0-9]{1,3}([ '_])[0-9]{3}(?:\2[0-9]{3})*|[0-9]{1,3}(?:\.[0-9]{3}){2,}"
    r"|[0-9]{1,3}\.[0-9]{3}(?=,[0-9]{1,2}(?![0-9,])))(,[0-9]{1,2}(?![0-9,]))?"
    r"|([0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}))(?![0-9]|[/'_,-][0-9]| [0-9])"
)
_MIXED = re.compile(
    r"(?<![\w.,/])([0-9]{1,9})(?: and)? ([0-9]{1,4})/([0-9]{1,4})(?![0-9/]|\.[0-9])"
)
_SCIENTIFIC = re.compile(
    r"(?<![\w.,^])(?:([0-9]+(?:\.[0-9]+)?)[eE]([-+]?[0-9]{1,2})"
    r"|(?:([0-9]+(?:\.[0-9]+)?)\s*(?:[\u00d7x*\u00b7]|\\times|\\cdot)\s*)?"
    r"10\s*(?:\^|\*\*)\s*(?:\{\s*)?([-+]?[0-9]{1,2})(?:\s*\})?)(?![0-9A-Za-z])"
)
_EUROS = re.compile(
    r"((?:\u20ac|\bEUR\b|R\$)\s*)([0-9]{1,3})\.([0-9]{3})(?![0-9.,]*[0-9])"
    r"|(?<![\w.,])([0-9]{1,3})\.([0-9]{3})(?=\s*(?:\u20ac|EUR\b|euros?\b|kr\b))",
    re.IGNORECASE,
)
_MINUS = re.compile(
    r"(\b(?:is|are|was|were|be|equals?|to|of|gives?)\s+|[=:]\s*|\A[\s*]*)"
    r"(?:minus|negative)\s+(?=[$£€]?[0-9])",
    re.IGNORECASE,
)


def plain_numbers(text: str) -> str:
    """Return a text with every number as ``-1234.5`` or ``5/2``; commas of thousands may remain.

    Digits may be of any script, a sign may be a dash or a word, and a fraction may be one
    character, LaTeX or behind a whole number. Ambiguous numbers, such as 1.234, are unchanged.
    """
    text = _OTHER.sub(_ascii, _WIDE_COMMA.sub(",", text))
    text = _FRACTION.sub(_fraction, _LATEX_COMMA.sub(",", text))
    text = _SCIENTIFIC.sub(_written_out, _EUROS.sub(r"\1\2\3\4\5", text))
    return _MINUS.sub(r"\1-", _MIXED.sub(_improper, _GROUPS.sub(_ungrouped, text)))


def _written_out(match: re.Match[str]) -> str:
    """Return ``1.5e3``, ``1.5 x 10^3`` or a power of ten with its digits."""
    factor, exponent = match[1] or match[3] or "1", match[2] or match[4]
    return f"{Decimal(factor).scaleb(int(exponent)):f}"


def _ascii(match: re.Match[str]) -> str:
    """Return a character of numbers as ASCII has it, any other unchanged, such as superscripts."""
    character = match[0]
    if unicodedata.category(character) == "Nd":
        return str(unicodedata.decimal(character))
    kind = unicodedata.decomposition(character)
    if character == "\uff0c" or not kind.startswith(
        ("<wide>", "<noBreak>", "<fraction>", "<compat> 0020")
    ):
        return character.translate(_ALIKE)
    simple = unicodedata.normalize("NFKC", character).translate(_ALIKE)
    behind_digit = match.string[match.start() - 1 : match.start()].isdecimal()
    return f" {simple}" if behind_digit and "<fraction>" in kind else simple


def _fraction(match: re.Match[str]) -> str:
    whole, *parts = (part or "" for part in match.groups())
    return f"{whole} " * bool(whole) + "{}{}/{}{}".format(*parts)


def _ungrouped(match: re.Match[str]) -> str:
    """Return a number without what is between its groups of digits."""
    whole = re.sub("[^0-9]", "", match[1] or match[4])
    return whole + (match[3] or "").replace(",", ".")


def _improper(match: re.Match[str]) -> str:
    """Return ``2 1/2`` as ``5/2``; other pairs of a number and a fraction unchanged."""
    whole, part, parts = map(int, match.groups())
    return f"{whole * parts + part}/{parts}" if part < parts else match[0]

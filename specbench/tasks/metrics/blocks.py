"""Blocks of code in a Markdown text, as CommonMark has them and as models write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_MOST_BLOCKS = 60  # of one text; each is parsed as a program
_FENCE = re.compile(r"`{3,}|~{3,}")
_LANGUAGE = re.compile(r"[\w+#.:/-]*(?:[ \t]+[^\s(=]+=\S*|[ \t]*\{[^}]*\})*[ \t]*\r?")


def readings(text: str) -> Iterator[list[str]]:
    """Yield the blocks of code in a text in several readings, the strictest first.

    These are the fenced blocks of CommonMark, also in lists and quotes; the same if the prompt has
    opened the first block; and whatever stands between fences anywhere, such as in the middle of a
    line. A last block may be unclosed.
    """
    blocks = _fenced(text)
    yield [content for content, _ in blocks]
    if blocks and not blocks[0][1]:
        yield [content for content, _ in _fenced("```\n" + text)]
    documents = [content for content, info in blocks if info.lower() in ("markdown", "md")]
    if documents:
        yield [code for content in documents for code, _ in _fenced(content)]
    parts = _FENCE.split(text)[1 : 2 * _MOST_BLOCKS : 2]
    yield [code for part in parts for code in _after_fence(part)]


def _fenced(text: str) -> list[tuple[str, str]]:
    """Return the content and the info string of each fenced block."""
    tokens = [token for token in _markdown().parse(text) if token.type == "fence"]
    return [(token.content, token.info.strip()) for token in tokens[:_MOST_BLOCKS]]


@cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    # Tags such as <answer> would hide the fences behind them; only blocks are of interest.
    return MarkdownIt("commonmark").disable(["html_block", "reference", "inline", "text_join"])


def _after_fence(part: str) -> Iterator[str]:
    """Yield the code behind an opening fence, without its language; also a first line of code."""
    line, _, code = part.partition("\n")
    if not _LANGUAGE.fullmatch(line):
        yield re.sub(r"^[A-Za-z]\w*[ \t]+(?=\w+ |@)", "", line, count=1) + "\n" + code
    yield code

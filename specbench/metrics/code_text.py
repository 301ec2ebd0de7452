"""From a generated text to a program: fences of chat models, continuations of a signature."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specbench.example import Example

# A line that opens or closes a block of code in Markdown, and the language that it names.
_FENCE = re.compile(r"^[ \t]*```[ \t]*(?:([\w+-]+)[ \t]*)?\r?$", re.MULTILINE)
_MOST_CUTS = 50  # each parses all that is left
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def program_of(text: str, example: Example) -> str:
    """Return the program that a model's text stands for.

    A text with fences is taken to be what is in them, see ``fenced``. It follows the example's
    ``code_prefix``, unless it defines the entry point anew; then only the rest of the prefix, its
    imports and helpers, goes before it. Where an entry point is known, a program that does not
    parse is cut after the last line up to which it does, since a base model writes on after the
    function (peers cut at stop strings); otherwise the text is kept as it is.

    Args:
        text: Generated text, without the end-of-sequence token.
        example: Knows the entry point and the text that the program continues.
    """
    code = fenced(text, example)
    if not example.entry_point:
        return example.code_prefix + code
    anew = example.entry_point in _defined(_cut("", code)[1])
    rest = _without(example.code_prefix, example.entry_point)
    return _cut(rest and rest + "\n" if anew else example.code_prefix, code)[0]


def fenced(text: str, example: Example) -> str:
    """Return the block of code in a chat model's answer, or the text where there is none.

    Of several it is the first that defines the entry point, else the first that defines anything,
    else the first that parses, else the longest. The last may be left open, as at the token limit;
    the first may have been opened by the prompt.
    """
    blocks = list(_blocks(text))
    if not blocks:
        return text
    trees = [_parsed(block) or _parsed(example.code_prefix + block) for block in blocks]
    defined = [_defined(tree) for tree in trees]
    wishes: tuple[Iterable[object], ...] = (
        (example.entry_point in names for names in defined),
        defined,
        (tree is not None and tree.body for tree in trees),
    )
    for wish in wishes:
        for block, granted in zip(blocks, wish, strict=True):
            if granted:
                return block
    return max(blocks, key=len)


def helpers_of(example: Example) -> tuple[str, ...]:
    """Return what the tests need of the example's ``code_prefix``: helpers beside the entry point.

    They go before the tests, so that a program cannot replace a helper that says what is right.
    """
    rest = _without(example.code_prefix, example.entry_point)
    return (rest,) if _defined(_parsed(rest)) else ()


def _blocks(text: str) -> Iterable[str]:
    fences = list(_FENCE.finditer(text))
    # An odd number that begins with a bare one: perhaps the prompt opened the first block.
    if len(fences) % 2 and not fences[0][1]:
        yield text[: fences[0].start()]
    for opening, closing in zip(fences[::2], [*fences[1::2], None], strict=False):
        yield text[opening.end() + 1 : closing.start() if closing else len(text)]


def _cut(prefix: str, code: str) -> tuple[str, ast.Module | None]:
    """Return the prefix and as many lines of the code as parse; all of them where none do.

    Returns:
        The program, and its tree where it parses.
    """
    lines = list(StringIO(prefix + code, newline=""))  # as Python counts them
    least = prefix.count("\n")
    kept = len(lines)
    for _ in range(_MOST_CUTS):
        if kept <= least:
            break
        program = "".join(lines[:kept])
        tree, line = _read(program)
        if tree:
            return program, tree
        # What is wrong in a line stays so with fewer lines after it.
        kept = min(kept - 1, line - 1) if line else kept // 2
    return prefix + code, None


def _read(program: str) -> tuple[ast.Module | None, int | None]:
    """Return the tree of a program, or the line where it is wrong, as far as that is known."""
    try:
        with warnings.catch_warnings():  # about the generated code, of no use to the user
            warnings.simplefilter("ignore")
            return ast.parse(program), None
    except SyntaxError as error:
        return None, error.lineno
    except (ValueError, RecursionError, MemoryError):
        return None, None


def _parsed(program: str) -> ast.Module | None:
    return _read(program)[0]


def _defined(tree: ast.Module | None) -> set[str]:
    """Return the names of the functions and classes of a module."""
    return {node.name for node in tree.body if isinstance(node, _DEFINITIONS)} if tree else set()


def _without(prefix: str, name: str) -> str:
    """Return a program without one of its functions; nothing where it does not parse."""
    tree = _parsed(prefix)
    if tree is None:
        return ""
    tree.body = [
        node for node in tree.body if not (isinstance(node, _DEFINITIONS) and node.name == name)
    ]
    return ast.unparse(tree)

"""pass@1: whether the program in a generated text passes its tests in the sandbox.

A text may be a chat model's answer with fenced code, or the continuation of a signature. See
``specbench.tasks.metrics.sandbox`` for the protection against hostile programs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from io import StringIO
from itertools import combinations
from math import comb
from operator import itemgetter
from textwrap import dedent, indent
from typing import TYPE_CHECKING

from specbench.tasks.example import Example
from specbench.tasks.metrics.metric import metric
from specbench.tasks.metrics.sandbox.launch import Limits, judge
from specbench.tasks.metrics.sandbox.statements import (
    bound_names,
    free_names,
    read_python,
    read_tests,
)

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_MOST_CUTS = 50  # each parses the remaining text
_MOST_JOINED = 6  # blocks of a program that is spread over several
_MOST_BLOCKS = 60  # of one text; each is parsed as a program
_FENCE = re.compile(r"`{3,}|~{3,}")
_LANGUAGE = re.compile(r"[\w+#.:/-]*(?:[ \t]*\{[^}]*\}|[ \t]+[^\s(=]+=\S*)*+[ \t]*\r?")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BINDING = (*_DEFINITIONS, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Try)
# What some servers write where a text ends; a program may have it between quotes.
_END_MARK = re.compile(
    r"(?<![\"'`])(?:<[|\uff5c][\w \u2581]+[|\uff5c]>|</s>|<eos>|<pad>|<end_of_turn>|\[EOS\])"
    r"(?![\"'`])"
)
_FUTURE = re.compile(r"^from __future__ import (?:\([^)]*\)|[^\n(]*).*\n?", re.MULTILINE)
_TABS = re.compile(r"^[ \t]*\t", re.MULTILINE)
Rank = tuple[int, bool, bool, bool]
# Values of k to show, up to the number of repeats, which is also shown.
BUDGETS = (2, 5, 10, 20, 50, 100)


@metric("pass@1", name="pass@1", needs="tests", executes=True)
def pass_at_1(text: str, example: Example) -> float:
    """Return 1 if the generated program passes the example's tests, else 0."""
    tests = (*helpers_of(example), *example.tests)
    return float(passes(program_of(text, example), tests, example.entry_point))


@lru_cache(maxsize=4096)
def passes(
    program: str, tests: tuple[str, ...], entry_point: str = "", limits: Limits | None = None
) -> bool:
    """Return whether a program passes its tests; results are cached. See ``judge``."""
    return judge(program, tests, entry_point, limits)[0]


def program_of(text: str, example: Example) -> str:
    """Return the program in a model's text.

    If the text has fences, the program is the fenced code, see ``fenced``. It follows the example's
    ``code_prefix``, whose body it continues even if its first line lost its indentation. If it
    redefines the entry point, as a function or a method, only the rest of the prefix, its imports
    and helpers, comes first. Imports from ``__future__`` are moved to the top. If an entry point is
    known, a program that does not parse is cut after the last line up to which it does, since base
    models keep writing after the function (other implementations cut at stop strings). Otherwise
    the text is unchanged.
    """
    code, prefix, name = fenced(text, example), example.code_prefix, example.entry_point
    tree = _cut("", code)[1] if name else None
    program = prefix + code
    if name in _bound(tree) or (name in _methods(tree) and not code[:1].isspace()):
        helpers = _without(prefix, name)
        program = _cut(helpers and helpers + "\n", code)[0]
    elif name:
        program = _continued_body(code, prefix, name)
    if future := "".join(match.rstrip() + "\n" for match in _FUTURE.findall(program)):
        program = future + _FUTURE.sub("", program)
    methods = _methods(tree := _parsed(program))
    for method in sorted(_wanted(example) & methods.keys() - _bound(tree)):
        program += f"\n{method} = {methods[method]}().{method}\n"
    return program


def _continued_body(code: str, prefix: str, name: str) -> str:
    """Return the rest of a function behind its beginning, with blanks that servers stripped.

    These are blanks of the first line or of all, or tabs where the beginning has blanks.
    """
    begun = _function(_parsed(prefix), name)
    margin = (begun.body[0].col_offset if begun else 4) * " "
    blanks = _TABS.sub(lambda tabs: tabs[0].expandtabs(4), code)
    programs = []
    for form in (code, blanks, margin + blanks.lstrip(), indent(dedent(blanks), margin)):
        program, tree = _cut(prefix, form)
        function = _function(tree, name)
        goes_on = function and (function.end_lineno or 0) > prefix.count("\n")
        if tree and goes_on and not any(isinstance(n, ast.Return) for n in tree.body):
            programs.append(program)
    # Most of the text, in the first of equal forms.
    return max(programs or [_cut(prefix, code)[0]], key=lambda program: program.count("\n"))


def _wanted(example: Example) -> set[str]:
    """Return the names that a program must define, if they are known."""
    if example.entry_point or not example.tests:
        return {example.entry_point} - {""}
    tests = read_tests(example.tests)
    return {*(tests.names or tests.shadowed)}


def fenced(text: str, example: Example) -> str:
    """Return the code in a chat model's answer, or the text if it has no blocks; see ``readings``.

    Among several blocks, it is the last that defines the entry point or what the tests call, since
    it may correct those before, else the first that defines anything, else the first that parses,
    else the longest. If it lacks a name that another block defines or imports, this definition
    precedes it.
    """
    text = _END_MARK.split(text.removeprefix("\ufeff"), maxsplit=1)[0]
    wanted = _wanted(example)
    first: list[str] = []
    ranked: list[tuple[Rank, str, list[str]]] = []
    for blocks in _choices(text):
        first = first or blocks
        for block in blocks:
            code = block
            if not (_parsed(block) or _parsed(example.code_prefix + block)):
                # Common indentation, such as of a list, is left out if it parses only so.
                code = plain if _parsed(plain := dedent(block)) else block
            ranked.append((_rank(code, example, wanted), code, blocks))
        best = max(ranked, key=itemgetter(0), default=None)  # the first of equal ones
        if best and wanted and best[0][0] == len(wanted):
            best = next(each for each in reversed(ranked) if each[0][0] == len(wanted))
        if best and (best[0][0] == len(wanted) if wanted else best[0][2]):
            break
    if not best or not any(best[0]):
        return max(first, key=len, default=text)
    _, code, blocks = best
    return _completed(code, blocks, wanted)


def _choices(text: str) -> Iterator[list[str]]:
    """Yield the readings of an answer: its blocks, neighbours joined, or the text itself."""
    every = []
    for blocks in readings(text):
        every.append(_continued(blocks) or [text])
        yield every[-1]
    for blocks in every:
        spans = combinations(range(len(blocks[:_MOST_JOINED]) + 1), 2)
        yield ["\n".join(blocks[i:j]) for i, j in spans if j - i > 1]
    if every[0] != [text]:
        yield [_cut("", text)[0]]  # the program may stand before the blocks


def _continued(blocks: list[str]) -> list[str]:
    """Join an indented block, which is no program of its own, with the one that it continues."""
    joined: list[str] = []
    for block in blocks:
        if joined and block[:1].isspace() and not _parsed(block) and _parsed(joined[-1] + block):
            joined[-1] += block
        else:
            joined.append(block)
    return joined


def _rank(block: str, example: Example, wanted: set[str]) -> Rank:
    """Return how many wanted names a block defines with a body, and whether at all, or others."""
    tree = _parsed(block) or _parsed(example.code_prefix + block)
    defined = _defined(tree) | _methods(tree).keys()
    body = tree.body if tree else []
    # A stub has no more than a docstring, ``pass`` or ``...``.
    whole = {
        getattr(node, "name", "")
        for node in body
        if not all(
            isinstance(n, ast.Pass)
            or (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
            for n in getattr(node, "body", [])
        )
    }
    whole |= _methods(tree).keys()
    return len(wanted & defined & whole), bool(wanted & defined), bool(defined), bool(body)


def _completed(block: str, blocks: list[str], wanted: set[str]) -> str:
    """Return a block behind the definitions and imports of other blocks that it needs."""
    tree = _parsed(block)
    if tree is None or len(blocks) == 1:
        return block
    trees = [parsed for code in blocks if code != block and (parsed := _parsed(dedent(code)))]
    statements = [node for tree in trees for node in tree.body if isinstance(node, _BINDING)]
    needed: list[ast.stmt] = []
    while True:
        program = "\n".join([*map(ast.unparse, needed), block])
        tree = _parsed(program)
        missing = (free_names(program) | wanted) - _defined(tree) - _methods(tree).keys()
        new = [n for n in statements if n not in needed and not missing.isdisjoint(bound_names(n))]
        if not new:
            return program
        needed = [n for n in statements if n in needed or n in new[:1]]


def helpers_of(example: Example) -> tuple[str, ...]:
    """Return the definitions in the example's ``code_prefix`` other than the entry point.

    They precede the tests, so that a program cannot replace a helper that computes expected values.
    """
    helpers = _without(example.code_prefix, example.entry_point)
    return (helpers,) if _defined(_parsed(helpers)) else ()


def _cut(prefix: str, code: str) -> tuple[str, ast.Module | None]:
    """Return the prefix with as many lines of code as parse, or all if none do, and the tree."""
    lines = list(StringIO(prefix + code, newline=""))  # as Python counts them
    least = prefix.count("\n")
    end = len(lines)
    for _ in range(_MOST_CUTS):
        if end <= least:
            break
        program = "".join(lines[:end])
        tree, line = read_python(program)
        if tree:
            return program, tree
        # An error in a line remains when later lines are removed.
        end = min(end - 1, line - 1) if line else end // 2
    return prefix + code, None


def _parsed(program: str) -> ast.Module | None:
    return read_python(program)[0]


def _defined(tree: ast.Module | None) -> set[str]:
    """Return the names of the functions and classes of a module."""
    return {node.name for node in tree.body if isinstance(node, _DEFINITIONS)} if tree else set()


def _bound(tree: ast.Module | None) -> set[str]:
    """Return all names that a module binds at its top."""
    nodes = [node for node in tree.body if isinstance(node, _BINDING)] if tree else []
    return {name for node in nodes for name in bound_names(node)}


def _methods(tree: ast.Module | None) -> dict[str, str]:
    """Return the classes of a module by the names of their methods."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)] if tree else []
    return {n.name: c.name for c in classes for n in c.body if isinstance(n, ast.FunctionDef)}


def _function(tree: ast.Module | None, name: str) -> ast.FunctionDef | None:
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)] if tree else []
    return next((function for function in functions if function.name == name), None)


def _without(prefix: str, name: str) -> str:
    """Return a program without one of its functions; empty if it does not parse."""
    tree = _parsed(prefix)
    if tree is None:
        return ""
    tree.body = [n for n in tree.body if not (isinstance(n, _DEFINITIONS) and n.name == name)]
    return ast.unparse(tree)


def readings(text: str) -> Iterator[list[str]]:
    """Yield the blocks of code in a text in several readings, the strictest first.

    These are the fenced blocks of CommonMark, also in lists and quotes; the same if the prompt has
    opened the first block; and whatever stands between fences anywhere, such as in the middle of a
    line. A last block may be unclosed.
    """
    blocks = _blocks_in(text)
    yield [content for content, _ in blocks]
    if blocks and not blocks[0][1]:
        yield [content for content, _ in _blocks_in("```\n" + text)]
    documents = [content for content, info in blocks if info.lower() in ("markdown", "md")]
    if documents:
        yield [code for content in documents for code, _ in _blocks_in(content)]
    anywhere = []
    for part in _FENCE.split(text)[1 : 2 * _MOST_BLOCKS : 2]:
        line, _, code = part.partition("\n")  # behind an opening fence, with its language
        if not _LANGUAGE.fullmatch(line):  # a first line of code
            line = re.sub(r"^[A-Za-z]\w*[ \t]+(?=\w+ |@)", "", line, count=1)
            anywhere.append(f"{line}\n{code}")
        anywhere.append(code)
    yield anywhere


def _blocks_in(text: str) -> list[tuple[str, str]]:
    """Return the content and the info string of each fenced block."""
    tokens = [token for token in _markdown().parse(text) if token.type == "fence"]
    return [(token.content, token.info.strip()) for token in tokens[:_MOST_BLOCKS]]


@cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    # Tags such as <answer> would hide the fences behind them; only blocks are of interest.
    return MarkdownIt("commonmark").disable(["html_block", "reference", "inline", "text_join"])


def pass_at_k(programs: int, passed: int, k: int) -> float:
    """Return the unbiased estimate: the fraction of k-subsets with a program that passes."""
    return 1 - comb(programs - passed, k) / comb(programs, k)

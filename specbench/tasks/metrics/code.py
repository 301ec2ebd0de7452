"""pass@1: whether the program in a generated text passes its tests in the sandbox.

A text may be a chat model's answer with fenced code, or the continuation of a signature. See
``specbench.tasks.metrics.sandbox`` for the protection against hostile programs.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from io import StringIO
from math import comb
from typing import TYPE_CHECKING

from specbench.tasks.metrics.metric import metric
from specbench.tasks.metrics.sandbox.launch import Limits, judge
from specbench.tasks.metrics.sandbox.statements import read_python

if TYPE_CHECKING:
    from specbench.tasks.example import Example

# A line that opens or closes a Markdown code block, with its language.
_FENCE = re.compile(r"^[ \t]*```[ \t]*(?:([\w+-]+)[ \t]*)?\r?$", re.MULTILINE)
_MOST_CUTS = 50  # each parses the remaining text
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# Values of k to show, up to the number of repeats, which is also shown.
BUDGETS = (2, 5, 10, 20, 50, 100)


@metric("pass@1", name="pass@1", needs="tests", executes=True)
def pass_at_1(text: str, example: Example) -> float:
    """Return 1 if the generated program passes the example's tests, else 0.

    Raises:
        UsageError: The system is not POSIX, or the example has no tests.
        RunError: The sandbox could not be started, or the tests are broken.
    """
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
    ``code_prefix``. If it redefines the entry point, only the rest of the prefix, its imports and
    helpers, comes first. If an entry point is known, a program that does not parse is cut after the
    last line up to which it does, since base models keep writing after the function (other
    implementations cut at stop strings). Otherwise the text is unchanged.
    """
    code = fenced(text, example)
    if not example.entry_point:
        return example.code_prefix + code
    is_redefined = example.entry_point in _defined(_cut("", code)[1])
    helpers = _without(example.code_prefix, example.entry_point)
    return _cut(helpers and helpers + "\n" if is_redefined else example.code_prefix, code)[0]


def fenced(text: str, example: Example) -> str:
    """Return the code block in a chat model's answer, or the text if it has none.

    Among several blocks, it is the first that defines the entry point, else the first that defines
    anything, else the first that parses, else the longest. The last block may be unclosed, as at
    the token limit; the first may have been opened by the prompt.
    """
    fences = list(_FENCE.finditer(text))
    # An odd number of fences, the first without a language: the prompt may have opened a block.
    blocks = [text[: fences[0].start()]] if len(fences) % 2 and not fences[0][1] else []
    for opening, closing in zip(fences[::2], [*fences[1::2], None], strict=False):
        blocks.append(text[opening.end() + 1 : closing.start() if closing else len(text)])
    if not blocks:
        return text

    def rank(block: str) -> tuple[bool, bool, bool]:
        tree = _parsed(block) or _parsed(example.code_prefix + block)
        defined = _defined(tree)
        return example.entry_point in defined, bool(defined), bool(tree and tree.body)

    ranks = [rank(block) for block in blocks]
    best = max(ranks)
    return blocks[ranks.index(best)] if any(best) else max(blocks, key=len)


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


def _without(prefix: str, name: str) -> str:
    """Return a program without one of its functions; empty if it does not parse."""
    tree = _parsed(prefix)
    if tree is None:
        return ""
    tree.body = [n for n in tree.body if not (isinstance(n, _DEFINITIONS) and n.name == name)]
    return ast.unparse(tree)


def pass_at_k(programs: int, passed: int, k: int) -> float:
    """Return the unbiased estimate: the fraction of k-subsets with a program that passes.

    Args:
        programs: Number of programs sampled for one prompt, at least ``k``.
        passed: Number of programs that passed.
        k: Size of the subsets.
    """
    return 1 - comb(programs - passed, k) / comb(programs, k)

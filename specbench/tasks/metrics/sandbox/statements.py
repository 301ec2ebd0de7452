"""Static analysis of an example's tests: the names that they take from a program."""

from __future__ import annotations

import ast
import builtins
import sys
import warnings
from collections.abc import Iterator
from functools import lru_cache
from symtable import SymbolTable, symtable
from typing import NamedTuple

from specbench.errors import RunError, UsageError

_NO_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)


class Tests(NamedTuple):
    """The tests of an example as Python statements, and the names that they need."""

    text: str
    imports: str  # import statements that the tests need
    # Names taken from the program. Builtins are excluded, since `def abs(x): return 0` would help
    # against `abs(f(x) - 3) < 1e-6`, unless one is the entry point. Modules of the standard library
    # used only for attributes, as in `math.isclose`, are excluded too: the tests import them.
    names: tuple[str, ...]
    # Without such names: builtins, one of which the program may redefine, as for
    # `assert sum(10, 15) == 6`.
    shadowed: tuple[str, ...]


def broken(reason: str) -> RunError:
    """Return the error for tests that no program can pass."""
    return RunError(f"the tests of the example are broken: {reason}; correct its data")


def read_python(program: str) -> tuple[ast.Module | None, int | None]:
    """Return the syntax tree of a program, or the line of its error if known."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of generated code: no help to the user
            return ast.parse(program), None
    except _NO_PYTHON as error:
        return None, error.lineno if isinstance(error, SyntaxError) else None


@lru_cache(maxsize=1024)
def read_tests(tests: tuple[str, ...], entry_point: str = "") -> Tests:
    """Return what the tests need, given the entry point if it is known."""
    text = "\n".join(tests)
    try:
        with warnings.catch_warnings(action="ignore"):  # of the data: no help to the user
            tree = ast.parse(text)
            compile(tree, "<tests>", "exec", dont_inherit=True)
            tables = list(_tables(symtable(text, "<tests>", "exec")))
    except _NO_PYTHON as error:
        raise broken(f"{type(error).__name__}: {error}") from error
    if not tree.body:
        raise UsageError("an example has no tests, so that any program would pass; add statements")
    assigned = _taken(tables)
    # Modules of the standard library that are used only for attributes.
    owners = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    alone = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in owners}
    modules = (assigned - {entry_point} - alone) & sys.stdlib_module_names
    shadowing = {name for name in assigned if hasattr(builtins, name)} - {entry_point}
    names = tuple(sorted(assigned - modules - shadowing))
    # Imports of the module and of its functions; conditional imports may fail.
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.FunctionDef)]
    imports = [
        *(n for block in blocks for n in block.body if isinstance(n, ast.Import | ast.ImportFrom)),
        *(ast.Import([ast.alias(name)]) for name in sorted(modules)),
    ]
    shadowed = () if names else tuple(sorted(shadowing))
    return Tests(text, "\n".join(map(ast.unparse, imports)), names, shadowed)


def names_of(tests: Tests, program: str) -> tuple[str, ...]:
    """Return the names that the tests take from this program."""
    if not tests.shadowed:
        return tests.names
    body = tree.body if (tree := read_python(program)[0]) else []
    defined = {n.name for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    shadowed = defined.intersection(tests.shadowed)
    return tuple(shadowed) if len(shadowed) == 1 else ()


def free_names(program: str) -> set[str]:
    """Return the global names that a program uses without binding them; builtins are excluded."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tables = list(_tables(symtable(program, "<program>", "exec")))
    except _NO_PYTHON:
        return set()
    return {name for name in _taken(tables) if not hasattr(builtins, name)}


def bound_names(statement: ast.stmt) -> set[str]:
    """Return the names that a definition, an import or an assignment binds; none of a wrong one."""
    try:  # what has a syntax tree may be wrong, such as `import *` in a function
        table = symtable(ast.unparse(statement), "<statement>", "exec")
    except _NO_PYTHON:
        return set()
    return {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}


def _tables(table: SymbolTable) -> Iterator[SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _taken(tables: list[SymbolTable]) -> set[str]:
    """Return the global names that are used and not bound."""
    used, bound = set(), set()
    for table in tables:
        for symbol in table.get_symbols():
            is_module = table is tables[0]
            if symbol.is_referenced() and symbol.is_global():
                used.add(symbol.get_name())
            if symbol.is_assigned() and (is_module or symbol.is_declared_global()):
                bound.add(symbol.get_name())
            if symbol.is_imported() and is_module:
                bound.add(symbol.get_name())
    return used - bound

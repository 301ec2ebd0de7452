"""What the tests of an example take from a program, found without running them."""

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
    """The tests of an example as Python statements, and what they need."""

    text: str
    imports: str  # those of its statements without which the tests cannot run
    # What the tests take from the program, and nothing else. Builtins are not among them, or
    # `def abs(x): return 0` would help against `abs(f(x) - 3) < 1e-6`, except for one that is the
    # entry point; nor is a module of the standard library of which only attributes are used, as in
    # `math.isclose`: the tests have their own.
    names: tuple[str, ...]
    # Where there are no such names, builtins in whose place the program may define one function,
    # as in `assert sum(10, 15) == 6`.
    shadowed: tuple[str, ...]


def broken(reason: str) -> RunError:
    """Return the error of tests that no program can pass."""
    return RunError(f"the tests of the example are broken: {reason}; correct its data")


def read_python(program: str) -> tuple[ast.Module | None, int | None]:
    """Return the syntax tree of a program, or the line of its error where that is known."""
    try:
        with warnings.catch_warnings():  # about the generated code, of no use to the user
            warnings.simplefilter("ignore")
            return ast.parse(program), None
    except _NO_PYTHON as error:
        return None, error.lineno if isinstance(error, SyntaxError) else None


@lru_cache(maxsize=1024)
def read_tests(tests: tuple[str, ...], entry_point: str = "") -> Tests:
    """Return what tests need, given the entry point if it is known.

    Raises:
        UsageError: There is no statement.
        RunError: They are no Python.
    """
    text = "\n".join(tests)
    try:
        with warnings.catch_warnings():  # about the data, of no use to the user
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
            compile(tree, "<tests>", "exec", dont_inherit=True)
            tables = list(_tables(symtable(text, "<tests>", "exec")))
    except _NO_PYTHON as error:
        raise broken(f"{type(error).__name__}: {error}") from error
    if not tree.body:
        raise UsageError("an example has no tests, so that any program would pass; add statements")
    taken = _taken(tables)
    modules = _modules(tree, taken - {entry_point})
    own = {name for name in taken if hasattr(builtins, name)} - {entry_point}
    names = tuple(sorted(taken - modules - own))
    # Those of the module and of its functions; conditional ones need not succeed.
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.FunctionDef)]
    imports = [
        *(n for block in blocks for n in block.body if isinstance(n, ast.Import | ast.ImportFrom)),
        *(ast.Import([ast.alias(name)]) for name in sorted(modules)),
    ]
    shadowed = () if names else tuple(sorted(own))
    return Tests(text, "\n".join(map(ast.unparse, imports)), names, shadowed)


def names_of(tests: Tests, program: str) -> tuple[str, ...]:
    """Return the names that tests take from one program."""
    if not tests.shadowed:
        return tests.names
    body = tree.body if (tree := read_python(program)[0]) else []
    defined = {n.name for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    found = defined.intersection(tests.shadowed)
    return tuple(found) if len(found) == 1 else ()


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


def _modules(tree: ast.Module, names: set[str]) -> set[str]:
    """Return those of the names that are modules of the standard library, used as such."""
    owners = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    others = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in owners}
    return (names - others) & sys.stdlib_module_names

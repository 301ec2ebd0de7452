"""What the tests of an example need, found without running them."""

from __future__ import annotations

import ast
import builtins
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from symtable import Symbol, SymbolTable, symtable

from specbench.errors import RunError, UsageError


@dataclass(frozen=True)
class Tests:
    """The tests of an example.

    Attributes:
        text: Python statements.
        imports: Those that import modules without which the tests cannot run.
        names: What tests take from the program, and nothing else. Builtins are not among them, or
            ``def abs(x): return 0`` would help against ``abs(f(x) - 3) < 1e-6``, except for one
            that is the entry point; nor is a module of the standard library of which only
            attributes are used, as in ``math.isclose``: the tests have their own.
        shadowed: Where there are no such names, builtins in whose place the program may define one
            function, as in ``assert sum(10, 15) == 6``.
    """

    text: str
    imports: str
    names: list[str]
    shadowed: list[str]


@lru_cache(maxsize=1024)
def understood(tests: tuple[str, ...], entry_point: str = "") -> Tests:
    """Return what tests need.

    Args:
        tests: Python statements.
        entry_point: Function that they test, where that is known.

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
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise RunError(
            f"the tests of the example are broken: {reason}; correct its data"
        ) from error
    if not tree.body:
        raise UsageError("an example has no tests, so that any program would pass; add statements")
    taken = _taken(tables)
    modules = sorted(_modules(tree, taken - {entry_point}))
    imports = [*map(ast.unparse, _imports(tree)), *(f"import {name}" for name in modules)]
    taken -= {*modules}
    own = {name for name in taken if hasattr(builtins, name)} - {entry_point}
    names = sorted(taken - own)
    return Tests(text, "\n".join(imports), names, [] if names else sorted(own))


def broken(reason: str) -> RunError:
    """Return the error of tests that no program can pass."""
    return RunError(f"the tests of the example are broken: {reason}; correct its data")


def _tables(table: SymbolTable) -> Iterator[SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _is_used(symbol: Symbol) -> bool:
    return symbol.is_referenced() and symbol.is_global()


def _taken(tables: list[SymbolTable]) -> set[str]:
    """Return the global names that are used and not bound."""
    module, *inner = tables
    used = {s.get_name() for table in tables for s in table.get_symbols() if _is_used(s)}
    bound = {s.get_name() for s in module.get_symbols() if s.is_assigned() or s.is_imported()}
    for table in inner:
        symbols = table.get_symbols()
        bound |= {s.get_name() for s in symbols if s.is_declared_global() and s.is_assigned()}
    return used - bound


def _modules(tree: ast.Module, names: set[str]) -> set[str]:
    """Return those of the names that are modules of the standard library, used as such."""
    owners = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    others = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in owners}
    return {name for name in names - others if name in sys.stdlib_module_names}


def _imports(tree: ast.Module) -> Iterator[ast.stmt]:
    """Return the imports that are not conditional: those of the module and of its functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef):
            yield from (part for part in node.body if isinstance(part, ast.Import | ast.ImportFrom))

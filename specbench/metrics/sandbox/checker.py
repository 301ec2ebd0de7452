"""The checker: runs the tests, with stand-ins for what the program defines."""

from __future__ import annotations

import builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .objects import Program

_ONLY_TREE = 0x400  # ``ast.PyCF_ONLY_AST``; the module itself is slow to import


class Broken(Exception):
    """The tests are at fault, whatever the program is."""


def holds(tests: tuple[str, str, list[str], list[str]], source: str, program: Program) -> bool:
    """Return whether a program runs to its end and no test fails.

    Args:
        tests: The fields of ``statements.Tests``.
        source: Text of the program.
        program: The program, which has not run yet.

    Raises:
        Broken: A module that the tests import is not there.
    """
    text, imports, names, shadowed = tests
    space: dict[str, Any] = {"__builtins__": vars(builtins)}
    try:
        exec(imports, space)
    except Exception as error:
        raise Broken(f"{type(error).__name__}: {error}") from error
    try:
        program.ask("run")
        # Compiled apart from the program, so that no open string or block can swallow them.
        code = compile(text, "<tests>", "exec", dont_inherit=True)
        if shadowed:
            names = _lone(source, shadowed)
        found = program.exactly(dict, "find", names)
        exec(code, space | {name: found[name] for name in names if name in found})  # and no other
    except BaseException:  # whatever it is, SystemExit included
        return False
    return not program.gone  # also where a test caught it


def _lone(source: str, shadowed: list[str]) -> list[str]:
    """Return the builtin in whose place a program defines a function; of several none."""
    tree: Any = compile(source, "<program>", "exec", _ONLY_TREE, dont_inherit=True)
    kinds = ("FunctionDef", "AsyncFunctionDef")
    defined = {node.name for node in tree.body if type(node).__name__ in kinds}
    found = [name for name in shadowed if name in defined]
    return found if len(found) == 1 else []

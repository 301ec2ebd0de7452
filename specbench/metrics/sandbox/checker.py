"""The checker: runs the tests, with stand-ins for what the program defines."""

from __future__ import annotations

import builtins

from .kinds import exception, refill
from .objects import Object, number
from .pipes import Gone, receive, send
from .wire import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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


class Program:
    """The other end of the program's process; nothing that comes from there is trusted.

    Attributes:
        gone: Whether the process ended, was late or sent nonsense.
    """

    def __init__(self, requests: int, replies: int, deadline: float) -> None:
        """Take the pipes to and from the process, and the time of the clock when to give up."""
        self._requests, self._replies, self._deadline = requests, replies, deadline
        self._standing: dict[int, Object] = {}
        self.gone = False

    def ask(self, operation: str, *args: object) -> Any:
        """Return the result of one of the operations of ``program.Objects``.

        Lists and the like among the arguments, and in them, are then as the program left them.

        Raises:
            BaseException: What the operation raised there, as the builtin type that it derives
                from.
            Gone: No answer.
        """
        shared: list[Any] = []
        request = encode((operation, *args), number, shared)
        try:
            send(self._requests, request, self._deadline)
            reply = decode(receive(self._replies, self._deadline), self._stand_in, shared)
            return self._result(reply, shared)
        except Gone:
            self.gone = True
            raise

    def _result(self, reply: object, shared: list[Any]) -> Any:
        # Exact types: an object of the program may say that it is of any.
        if type(reply) is not tuple or len(reply) != 3 or type(reply[2]) is not dict:
            raise Gone("neither a result nor an exception")
        succeeded, result, changes = reply
        try:
            for at, items in changes.items():
                refill(shared[at], items)
            error = None if succeeded is True else exception(*result)
        except Exception as nonsense:
            raise Gone("nothing that can be") from nonsense
        if error is not None:
            raise error
        return result

    def exactly(self, kind: type, operation: str, *args: object) -> Any:
        """Return a result that must be of a certain plain type."""
        result = self.ask(operation, *args)
        if type(result) is not kind:
            self.gone = True
            raise Gone("not what was asked for")
        return result

    def _stand_in(self, number: int) -> Object:
        if number not in self._standing:
            self._standing[number] = Object(self, number)
        return self._standing[number]

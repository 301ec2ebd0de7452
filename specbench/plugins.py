"""Functions and classes that are declared where they are defined: in specbench, or by the user.

Those of the user's own are given as ``FILE.py:FUNCTION``. They are loaded by name in every process
that needs them. A digest of the source identifies the version, so that samples of an edited rule or
metric are not mistaken for those of the new one.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from traceback import extract_tb
from types import CodeType, ModuleType
from typing import Any, NamedTuple, TypeVar

from specbench.errors import SpecbenchError, UsageError, meant

_IN_FILE = ".py:"
_DECLARATION = "_specbench"  # attribute of what is declared

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Plugin(NamedTuple):
    """A function that is not part of specbench."""

    name: str  # as typed
    function: Callable[..., Any]
    digest: str  # of the source
    source: str  # its file


def declare(function: F, declaration: object) -> F:
    """Attach to a function or class what a decorator declares it as, and return it."""
    setattr(function, _DECLARATION, declaration)
    return function


def declared(value: object, kind: type[T]) -> T | None:
    """Return what a value was declared as if it is such a function or class, else None."""
    is_declarable = inspect.isfunction(value) or inspect.isclass(value)
    declaration = vars(value).get(_DECLARATION) if is_declarable else None
    return declaration if isinstance(declaration, kind) else None


def bundled(package: str, kind: type[T], order: Sequence[str]) -> list[T]:
    """Return what the functions and classes of a package are declared as.

    Those of the modules in ``order`` come first, then those of all others by name of the module.
    """
    content = iter_modules(import_module(package).__path__)
    names = sorted(module.name for module in content if not module.ispkg)
    modules = [import_module(f"{package}.{name}") for name in dict.fromkeys([*order, *names])]
    return [declaration for module in modules for declaration in declared_in(module, kind)]


def declared_in(module: ModuleType, kind: type[T]) -> list[T]:
    """Return what the functions and classes of a module are declared as, in their order."""
    return [
        declaration
        for value in list(vars(module).values())
        if getattr(value, "__module__", "") == module.__name__
        and (declaration := declared(value, kind)) is not None
    ]


def in_file(name: str) -> bool:
    """Return whether a name is that of a function in a file, ``FILE.py:FUNCTION``."""
    return _IN_FILE in name or name.endswith(".py")


def short_name(name: str) -> str:
    """Return the name shown in labels: that of the function, without the file."""
    return name.rpartition(_IN_FILE)[2]


def find(name: str) -> Plugin | None:
    """Load a function by its name, ``FILE.py:FUNCTION``, once per version; None for another name.

    Raises:
        UsageError: There is no such file or function, or the file raises when it is executed.
    """
    if not in_file(name):
        return None
    file, _, function = name.rpartition(":") if _IN_FILE in name else (name, "", "")
    path = Path(file)
    content = _content(path)
    digest = content_digest(content)
    module = _execute(path.resolve(), content, str(path), digest)
    value = getattr(module, function, None)
    if not inspect.isfunction(value):
        defined = [
            n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__
        ]
        lack = f"has no function `{function}`" if function else "needs the name of a function in it"
        advice = meant(function, defined) if defined else "define one"
        raise UsageError(f"{path} {lack}; {advice}")
    return Plugin(f"{path}:{function}", value, digest, str(path))


def matching_name(recorded: str, names: Iterable[str]) -> str | None:
    """Return the user's name for a function that a run names, by its short name, or None."""
    return next((name for name in names if short_name(name) == short_name(recorded)), None)


def digest_of(name: str) -> str | None:
    """Return the digest of a function's file, which is read and not executed.

    Raises:
        UsageError: The file cannot be read.
    """
    return content_digest(_content(Path(name.rpartition(":")[0]))) if in_file(name) else None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}): give FILE.py:FUNCTION, a Python file and a "
            "function in it"
        ) from error


def content_digest(content: bytes) -> str:
    """Return a digest of 32 hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def require_distinct(
    names: Iterable[str], built_in: Collection[str], reserved: Collection[str], kind: str
) -> None:
    """Refuse the user's own functions whose short name is used twice, or is reserved.

    Args:
        names: All that are used together.
        built_in: Those among them that are not the user's own.
        reserved: Names that no function may have.
        kind: What has that name, for the message.

    Raises:
        UsageError: A name is not distinct.
    """
    chosen = [*dict.fromkeys(names)]
    number = Counter(map(short_name, chosen))
    for name in chosen:
        short = short_name(name)
        if name not in built_in and (number[short] > 1 or short in reserved):
            raise UsageError(f"{name}: another {kind} is named {short}: rename the function")


def place(name: str, function: Callable[..., Any]) -> str:
    """Return a function's name with the line of its definition, for messages."""
    return f"{name} (line {code_of(function).co_firstlineno})"


def function_name(function: Callable[..., Any]) -> str:
    """Return a function's own name with file and line: ``geometric (my_rules.py, line 22)``."""
    code = code_of(function)
    return f"{code.co_name} ({Path(code.co_filename).name}, line {code.co_firstlineno})"


def code_of(function: Callable[..., Any]) -> CodeType:
    """Return the code of a function, which may be decorated or have bound parameters."""
    while isinstance(function, partial):
        function = function.func
    code: CodeType = inspect.unwrap(function).__code__
    return code


@contextmanager
def user_code(function: Callable[..., Any], described_as: str | None = None) -> Iterator[None]:
    """Turn an error of a function that may be the user's, even ``sys.exit``, into one sentence.

    ``described_as`` is its name in the sentence, by default its own.

    Raises:
        UsageError: It raised anything but a ``SpecbenchError`` or Ctrl-C.
    """
    try:
        yield
    except (SpecbenchError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if type(error).__name__ == "OutOfMemoryError":  # of PyTorch: no fault of the function
            raise
        name = described_as or function_name(function)
        reason = described(error, code_of(function).co_filename)
        raise UsageError(f"{name} failed ({reason}): correct it") from error


def described(error: BaseException, path: str) -> str:
    """Describe an error in one line: the last line of a file that it passed through, and itself."""
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == path]
    line = error.lineno if isinstance(error, SyntaxError) else next(reversed(lines), None)
    reason = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    location = "" if line is None else f"line {line}: "
    return f"{location}{type(error).__name__}: {reason}"


@cache
def _execute(path: Path, content: bytes, shown: str, digest: str) -> ModuleType:
    module = ModuleType(f"{path.stem}_{digest[:8]}")
    module.__file__ = str(path)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # for modules beside the file
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(content, path, "exec"), vars(module))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # even SystemExit
        del sys.modules[module.__name__]
        raise UsageError(f"{shown} cannot be imported ({described(error, str(path))})") from error
    return module

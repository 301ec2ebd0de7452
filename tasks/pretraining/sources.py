"""Python source code that an installation already has: the standard library and its packages.

A recipe lists packages in three splits, each with its version and a digest of its files, so that
another environment is recognised before it yields another split. ``train`` is for the models,
``choice`` for heads and settings, ``test`` for measurements only. Tests, vendored copies of other
packages, generated files and large ones are left out. A packed file carries the source code to
machines with other packages.
"""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import random
import re
import sysconfig
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

from specbench.errors import UsageError
from specbench.files import open_text, packing, replacing
from specbench.tasks.metrics.sandbox.statements import read_python

SPLITS = ("train", "choice", "test")
LIBRARY = "python"  # name of the standard library among the packages
LARGEST = 120_000  # bytes of a file
HEADER = 1000  # characters at the start of a file, which say that a program wrote it
MOST_LINES = 40  # of a function with its docstring
DIGEST = 12  # hexadecimal digits of a package's digest
# Folders, and files that a test runner reads or that state how a wheel was built.
_LEFT_OUT = {"test", "tests", "testing", "idle_test", "_vendor", "vendored", "extern"}
_LEFT_OUT |= {"conftest.py", "version.py", "_version.py"}
_GENERATED = re.compile(r"(auto-?|automatically )generated|generated (by|from)", re.IGNORECASE)
_NOT_LIBRARY = ("site-packages", "dist-packages", "lib-dynload", "lib2to3")


class CorpusSource(NamedTuple):
    """A file of a package."""

    package: str
    path: str  # below the package's root
    text: str


def read_package(name: str) -> list[CorpusSource]:
    """Return the source files of an installed package, or of the standard library.

    Raises:
        UsageError: The package is not installed.
    """
    documents = []
    for path, file in sorted(_files(name)):
        parts = Path(path).parts
        last = parts[-1]
        if _LEFT_OUT.intersection(parts) or last.startswith("test_") or last.endswith("_test.py"):
            continue
        content = file.read_bytes()
        if not 0 < len(content) <= LARGEST:
            continue
        try:
            text = content.decode().replace("\r\n", "\n")
        except UnicodeDecodeError:
            continue
        if not _GENERATED.search(text[:HEADER]):
            documents.append(CorpusSource(name, path, text))
    return documents


def digest(sources: list[CorpusSource]) -> str:
    """Return a digest of the paths and texts of files."""
    digest_of_sources = hashlib.sha256()
    for source in sources:
        digest_of_sources.update(f"{source.path}\0{source.text}\0".encode())
    return digest_of_sources.hexdigest()[:DIGEST]


def version_of(name: str) -> str:
    """Return a package's version, without a local part such as ``+cpu``.

    Raises:
        UsageError: The package is not installed.
    """
    return platform.python_version() if name == LIBRARY else _installed(name).version.split("+")[0]


def read_splits(
    packages: Mapping[str, Mapping[str, str]], packed: Path | None = None
) -> dict[str, list[CorpusSource]]:
    """Return the files of each split, without files whose text occurred before, test files first.

    Args:
        packages: For each split the version and digest of each package, such as
            ``"3.6.1 0123456789ab"``.
        packed: A file of ``pack_sources`` to read instead of the installed packages.

    Raises:
        UsageError: A package is missing or differs from the recipe's; it is the first in order.
    """
    sources = _installed_sources(packages) if packed is None else _packed_sources(packages, packed)
    seen: set[str] = set()
    splits: dict[str, list[CorpusSource]] = {}
    for split in reversed(SPLITS):
        splits[split] = []
        for source in (file for name in packages[split] for file in sources[name]):
            if source.text not in seen:
                seen.add(source.text)
                splits[split].append(source)
    return splits


def pack_sources(packages: Mapping[str, Mapping[str, str]], path: Path) -> None:
    """Write the files of a recipe's packages, one JSON array per line, packed as ``path`` says.

    Raises:
        UsageError: A package is missing or differs from the recipe's.
    """
    sources = _installed_sources(packages)
    with replacing(path) as file, packing(path, file) as lines:
        for files in sources.values():
            lines.writelines(f"{json.dumps(source)}\n".encode() for source in files)


def documents(sources: list[CorpusSource], seed: int) -> Iterator[str]:
    """Yield the files and, as further texts, functions with the first sentence of their docstring.

    The order is shuffled. A function's text is that of the task ``python-docstring``: its code
    without the docstring, then the sentence.
    """
    texts = [source.text for source in sources]
    for source in sources:
        texts.extend(f'{code}{sentence}"""\n' for code, sentence in documented(source.text))
    random.Random(seed).shuffle(texts)
    yield from texts


def documented(text: str) -> list[tuple[str, str]]:
    """Return the functions of a file that have a docstring, as code and sentence.

    The code lacks the docstring and ends with three quotes, after which the sentence follows.
    """
    functions = []
    tree = read_python(text)[0]
    lines = text.split("\n")
    for node in ast.walk(tree) if tree else ():
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or len(node.body) < 2:
            continue
        sentence = first_sentence(ast.get_docstring(node) or "")
        quoted = node.body[0]
        first, last = node.lineno - 1, node.end_lineno or 0
        if sentence and first < quoted.lineno - 1 and last - first <= MOST_LINES:
            body = lines[first : quoted.lineno - 1] + lines[quoted.end_lineno : last]
            functions.append((dedent("\n".join(body)) + '\n"""', sentence))
    return functions


def first_sentence(docstring: str) -> str:
    """Return the first sentence of a docstring on one line; empty if it is not a short text."""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    sentence = paragraph.split(". ")[0].rstrip(".")
    fits = 15 <= len(sentence) <= 120 and sentence[0].isalpha() and '"' not in sentence
    return sentence + "." if fits and "\\" not in sentence else ""


def _installed_sources(packages: Mapping[str, Mapping[str, str]]) -> dict[str, list[CorpusSource]]:
    sources = {}
    for name, wanted in _versions(packages):
        sources[name] = read_package(name)
        installed = f"{version_of(name)} {digest(sources[name])}"
        if installed != wanted:
            raise UsageError(
                f"{name} is {installed} here, and {wanted} in the recipe (version, digest of its "
                "files): build the pair in an environment with the recipe's packages"
            )
    return sources


def _packed_sources(
    packages: Mapping[str, Mapping[str, str]], path: Path
) -> dict[str, list[CorpusSource]]:
    sources: dict[str, list[CorpusSource]] = {name: [] for name, _ in _versions(packages)}
    with open_text(path) as lines:
        for source in (CorpusSource(*json.loads(line)) for line in lines):
            sources.setdefault(source.package, []).append(source)
    for name, wanted in _versions(packages):
        if digest(sources[name]) != wanted.split()[-1]:
            raise UsageError(f"{path}: the files of {name} are not the recipe's: pack them again")
    return sources


def _versions(packages: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield all packages with version and digest, those of the last split first."""
    for split in reversed(SPLITS):
        yield from packages[split].items()


def _files(name: str) -> Iterator[tuple[str, Path]]:
    """Yield the path below the root and the place of each Python file of a package."""
    if name == LIBRARY:
        root = Path(sysconfig.get_paths()["stdlib"])
        for file in root.rglob("*.py"):
            path = file.relative_to(root)
            if path.parts[0] not in _NOT_LIBRARY and not file.name.startswith("_sysconfigdata"):
                yield path.as_posix(), file
        return
    for entry in _installed(name).files or ():
        if entry.suffix == ".py" and ".." not in entry.parts:
            yield entry.as_posix(), Path(str(entry.locate()))


def _installed(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError:
        raise UsageError(f"{name} is not installed: install the recipe's packages") from None

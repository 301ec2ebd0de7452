"""JSON files of other tools, which may be anyone's: bounded, and every mistake located."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from specbench.client import parsed
from specbench.errors import UsageError, first_line, require

LARGEST = 2**28  # bytes of a file
_KINDS = {dict: "an object", list: "a list", int: "a whole number"}


class Located(NamedTuple):
    """An object of a file, and where it is."""

    location: str
    values: dict[str, Any]

    def get(self, key: str, kind: type[Any]) -> Any:
        """Return the dictionary, list or whole number under a key, empty if null or missing.

        Raises:
            UsageError: It has another type.
        """
        value = self.values.get(key)
        if value is None:
            return kind()
        good = type(value) is kind
        require(good, f"{self.location}: `{key}` must be {_KINDS[kind]}: export again")
        return value

    def part(self, key: str) -> Located:
        """Return the object under a key."""
        return Located(f"{self.location}: `{key}`", self.get(key, dict))


class File(NamedTuple):
    """A file and its content."""

    path: Path
    content: bytes

    @classmethod
    def read(cls, path: Path) -> File:
        """Read a file.

        Raises:
            UsageError: It is no regular file, too large, or cannot be read.
        """
        try:
            require(path.is_file(), f"{path} is not a file: give a file that a benchmark wrote")
            size = path.stat().st_size
            excess = f"{path} has {size:,} bytes, more than {LARGEST:,}: measure in several files"
            require(size <= LARGEST, excess)
            return cls(path, path.read_bytes())
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error

    def objects(self) -> Iterator[Located]:
        """Yield the JSON objects: one in the whole file, or one in each line.

        Raises:
            UsageError: There is none; something is not an object, has a key twice or a number that
                is not finite, or is nested too deeply.
        """
        numbered = enumerate(self.content.splitlines(), start=1)
        lines = [(f"{self.path}, line {n}", line) for n, line in numbered if line.strip()]
        require(bool(lines), f"{self.path} is empty: give a file that a benchmark wrote")
        if len(lines) == 1 or not lines[0][1].rstrip().endswith(b"}"):
            lines = [(str(self.path), self.content)]
        for location, text in lines:
            try:
                values = parsed(text)
            except RecursionError as error:
                raise UsageError(f"{location} is nested too deeply: export again") from error
            except ValueError as error:
                raise UsageError(f"{location} is not JSON: {first_line(error)}") from error
            require(isinstance(values, dict), f"{location} is not a JSON object: export again")
            yield Located(location, values)

    @property
    def sha256(self) -> str:
        """The digest of the content."""
        return hashlib.sha256(self.content).hexdigest()

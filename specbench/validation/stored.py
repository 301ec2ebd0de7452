"""The texts of an audit on disk, so that an interrupted one goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

from specbench.files import clear_errors

TEXTS = "texts.jsonl"
PART = 64  # texts that are decoded between two writes
Texts = list[list[int]]


class StoredTexts:
    """Tokens of decoded texts by prompt, temperature, length and seed.

    Args:
        path: A file with one line per part; None stores nothing. Damaged lines are ignored, and
            their texts decoded again.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._parts: dict[str, Texts] = {}
        if path is not None and path.is_file():
            for line in path.read_bytes().splitlines():
                try:
                    key, texts = json.loads(line)
                    if _are_tokens(texts):
                        self._parts[key] = texts
                except (ValueError, TypeError, RecursionError):
                    continue

    def __len__(self) -> int:
        """Return the number of texts."""
        return sum(map(len, self._parts.values()))

    def decoded(
        self,
        prompt: Sequence[int],
        temperature: float,
        limit: int,
        seeds: Sequence[int],
        decode: Callable[[int, int], Texts],
    ) -> Texts:
        """Return the texts with these seeds; ``decode(seed, count)`` decodes missing ones."""
        texts: Texts = []
        name = sha256(json.dumps(list(prompt)).encode()).hexdigest()[:16]
        for start in range(0, len(seeds), PART):
            part = seeds[start : start + PART]
            key = f"{name} {temperature:g} {limit} {part[0]} {len(part)}"
            if key not in self._parts:
                self._parts[key] = decode(part[0], len(part))
                self._write(key)
            texts += self._parts[key]
        return texts

    def _write(self, key: str) -> None:
        if self._path is not None:
            # The first line feed ends a line that was torn.
            with clear_errors(self._path), self._path.open("a", encoding="utf-8") as file:
                file.write(f"\n{json.dumps([key, self._parts[key]])}\n")


def _are_tokens(texts: object) -> bool:
    return isinstance(texts, list) and all(
        isinstance(text, list) and all(type(token) is int and token >= 0 for token in text)
        for text in texts
    )

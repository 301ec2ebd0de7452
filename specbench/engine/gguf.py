"""GGUF files: their metadata, shards and configuration, without weights.

A file's metadata is read once and kept until the file changes: with a vocabulary of 150,000 tokens
that takes a second, and several parts of a command need it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from transformers import PreTrainedConfig

from specbench.engine.pairs import require_model
from specbench.engine.recommended import that_change
from specbench.errors import UsageError, require

T = TypeVar("T")
FINGERPRINT_KEY = "specbench.fingerprint"
TOKENIZER_KEY = "tokenizer.huggingface.json"
TEMPLATE_KEY = "tokenizer.chat_template"
SAMPLING_KEYS = "general.sampling."  # what they begin with
TOKENS_KEY, KINDS_KEY = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
SPECIAL = {"bos": "bos", "eos": "eos", "pad": "padding"}  # Transformers', GGUF's
# The format's types of single values, as letters of ``struct``; the others are texts and lists.
NUMBERS = dict(enumerate("BbHhIif?")) | dict(enumerate("Qqd", 10))
TEXT, LIST = 8, 9
LENGTH = struct.Struct("<Q")  # of a text
BUFFER = 1 << 20  # bytes
UNUSED = 5  # the kind of a token that fills up the rows of a model


class GgufFile(NamedTuple):
    """What a file holds beside its weights."""

    metadata: Mapping[str, Any]
    parameters: int  # numbers in the tensors of this file

    def value(self, key: str, default: Any = None) -> Any:
        """Return a value of the architecture, such as ``block_count``; the largest of a list."""
        value = self.metadata.get(f"{self.metadata['general.architecture']}.{key}", default)
        return max(value, default=default) if isinstance(value, list) else value

    @property
    def tokens(self) -> list[str]:
        """The tokens without the unused ones behind the last, which only pad the weights."""
        tokens: list[str] = self.metadata[TOKENS_KEY]
        kinds = self.metadata.get(KINDS_KEY) or [0] * len(tokens)
        size = len(tokens)
        while size and kinds[size - 1] == UNUSED:
            size -= 1
        return tokens[:size]


def once_per_file(read: Callable[[Path], T]) -> Callable[[Path], T]:
    """Keep what a function reads from a file until the file changes."""

    @lru_cache(maxsize=8)
    def read_version(path: Path, size: int, changed: int) -> T:
        return read(path)

    @wraps(read)
    def read_once(path: Path) -> T:
        require_model(str(path))
        status = path.stat()
        return read_version(path, status.st_size, status.st_mtime_ns)

    return read_once


_BROKEN = (
    *(OSError, ValueError, struct.error, KeyError, TypeError, OverflowError),
    *(MemoryError, RecursionError),
)


@once_per_file
def read_gguf(path: Path) -> GgufFile:
    """Return what a file holds beside its weights."""
    try:
        with path.open("rb", buffering=BUFFER) as file:
            return _parsed(file, path.stat().st_size)
    except _BROKEN as error:
        raise UsageError(
            f"cannot read {path} ({error}): give a complete GGUF file of a language model"
        ) from error


def _parsed(file: BinaryIO, size: int) -> GgufFile:
    """Parse the header; source: ``docs/gguf.md`` of ggml, versions 2 and 3."""

    def content(length: int) -> bytes:
        if length > size:
            raise ValueError("a length is greater than the file")
        return file.read(length)

    def numbers(letters: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{letters}", content(struct.calcsize(f"<{letters}")))

    def text() -> str:
        (length,) = LENGTH.unpack(file.read(LENGTH.size))
        return content(length).decode(errors="replace")

    def value(kind: int) -> Any:
        if kind == TEXT:
            return text()
        if kind != LIST:
            return numbers(NUMBERS[kind])[0]
        inner, count = numbers("IQ")
        if inner in (TEXT, LIST):
            return [value(inner) for _ in range(count)]
        return list(numbers(f"{count}{NUMBERS[inner]}"))

    magic, version, tensors, entries = numbers("4sIQQ")
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError("it does not begin as a GGUF file of version 2 or 3")
    metadata = {text(): value(*numbers("I")) for _ in range(entries)}
    if not isinstance(metadata["general.architecture"], str):
        raise ValueError("its architecture has no name")
    parameters = 0
    for _ in range(tensors):
        text()
        (dimensions,) = numbers("I")
        parameters += prod(numbers(f"{dimensions}Q"))
        numbers("IQ")
    return GgufFile(metadata, parameters)


def gguf_config(path: Path) -> PreTrainedConfig:
    """Return the sizes of a model by Transformers' names."""
    file = read_gguf(path)
    heads = file.value("attention.head_count", 0)
    values = {
        "vocab_size": len(file.metadata.get(TOKENS_KEY) or ()),
        "hidden_size": file.value("embedding_length"),
        "intermediate_size": file.value("feed_forward_length", 0),
        "num_hidden_layers": file.value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.value("attention.head_count_kv", heads),
        "head_dim": file.value("attention.key_length"),
        "max_position_embeddings": file.value("context_length"),
    }
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"):
        require(
            isinstance(values[name], int) and values[name] > 0,
            f"{path} has no {name}: give a complete GGUF file of a language model",
        )
    config = PreTrainedConfig(**{n: v for n, v in values.items() if v is not None})
    vars(config)["model_type"] = file.metadata["general.architecture"]
    return config


def stored_sampling(path: Path) -> dict[str, Any]:
    """Return the sampling that a file recommends, as decimals that a person would write."""
    return that_change(
        {
            key.removeprefix(SAMPLING_KEYS): float(f"{v:.6g}") if isinstance(v, float) else v
            for key, v in read_gguf(path).metadata.items()
            if key.startswith(SAMPLING_KEYS)
        }
    )

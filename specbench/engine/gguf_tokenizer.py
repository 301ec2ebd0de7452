"""The tokenizer of a GGUF file, read and written, checked against llama.cpp's own tokenizer.

llama.cpp reimplements tokenizers in two families: byte-level BPE, with the regular expression of
its first split chosen by a name, and SentencePiece, where U+2581 marks spaces and bytes have tokens
of their own. With the wrong family or name llama.cpp would silently split texts in another way, so
the tokens of ``PROBES`` are compared before a file counts as written. llama.cpp does not normalise
Unicode, so the probes are composed (NFC).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import c_int32
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from specbench.engine import gguf
from specbench.engine.llamacpp_library import library, load_file
from specbench.errors import UsageError

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's mark of a space
BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"  # llama.cpp's names of the families
#: llama.cpp's names of the first split of byte-level tokenizers, in the order of the trials.
SPLITS = ("smollm", "llama-bpe", "qwen2", "gpt-2", "gpt-4o", "tekken")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
NEVER = -1e9  # score of a token that no merge makes
PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "It's 1234567 o'clock, isn't it? WE'LL SEE: I'M here!",
    "  two  spaces,\ttabs\t\tand\n\nlines\r\n   end  ",
    "def add(x, y_2=3.14):\n    return x+y_2  # == 42",
    "na\u00efve caf\u00e9, \u00dcber \u2014 \u201cquoted\u201d \u2026",
    "\u65e5\u672c\u8a9e and \u0440\u0443\u0441\u0441\u043a\u0438\u0439, \u0639\u0631\u0628\u064a",
    "emoji \U0001f642\U0001f680, HelloWorld, camelCase, XMLHttpRequest",
    " ",
    "\n",
    "a",
)


class _Vocabulary(NamedTuple):
    """The tokenizer's own keys, without special tokens."""

    family: str
    split: str  # the name of the first split; "default" for SentencePiece
    scores: list[float] | None = None
    space_prefix: bool | None = None


class ModelFacts(NamedTuple):
    """What llama.cpp says of a file without reading its weights."""

    eos_ids: frozenset[int]  # all tokens at which it ends a text
    adds_start: bool  # whether a text begins with the start token
    has_state: bool  # whether some layers keep a state, from which no token can be taken back


@gguf.once_per_file
def model_facts(path: Path) -> ModelFacts:
    """Return what llama.cpp says of a file.

    Raises:
        UsageError: llama.cpp cannot read the file.
    """
    with _without_weights(path) as (loaded, model):
        vocabulary = loaded.llama_model_get_vocab(model)
        tokens = range(loaded.llama_vocab_n_tokens(vocabulary))
        return ModelFacts(
            frozenset(t for t in tokens if loaded.llama_vocab_is_eog(vocabulary, t)),
            loaded.llama_vocab_get_add_bos(vocabulary),
            loaded.llama_model_is_recurrent(model) or loaded.llama_model_is_hybrid(model),
        )


def tokenize(path: Path, texts: Iterable[str]) -> list[list[int]]:
    """Return the tokens of texts by a GGUF file's tokenizer, without a start token.

    The file may lack tensors.

    Raises:
        UsageError: llama.cpp does not know this kind of tokenizer.
    """
    with _without_weights(path) as (loaded, model):
        vocabulary, tokens = loaded.llama_model_get_vocab(model), []
        for text in texts:
            encoded = text.encode()
            ids = (c_int32 * (len(encoded) + 8))()
            number = loaded.llama_tokenize(
                vocabulary, encoded, len(encoded), ids, len(ids), False, False
            )
            tokens.append(list(ids[:number]))
        return tokens


@contextmanager
def _without_weights(path: Path) -> Iterator[tuple[Any, Any]]:
    """Yield the library and a model of which only metadata and vocabulary are read."""
    model = load_file(path, vocab_only=True)
    try:
        yield library(), model
    finally:
        library().llama_model_free(model)


_tokenizers: dict[bytes, PreTrainedTokenizerFast] = {}  # by the digest of what a file holds


@gguf.once_per_file
def read_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a file: the one of Transformers if it has it, else llama.cpp's.

    Raises:
        UsageError: Its kind is unknown, or it splits texts in another way than llama.cpp.
    """
    file = gguf.read_gguf(path)
    # The two files of a pair mostly hold the same one, and converting it takes seconds.
    stored = sorted(item for item in file.metadata.items() if item[0].startswith("tokenizer."))
    version = repr((file.metadata["general.architecture"], stored, file.tokens))
    if (converted := _tokenizers.get(digest := sha256(version.encode()).digest())) is not None:
        return converted
    options: dict[str, Any] = {}
    try:
        if gguf.TOKENIZER_KEY in file.metadata:
            backend = Tokenizer.from_str(file.metadata[gguf.TOKENIZER_KEY])
        else:
            backend = _converted(file.metadata, file.tokens)
            options["add_bos_token"] = model_facts(path).adds_start
        for name, kind in gguf.SPECIAL.items():
            number = file.metadata.get(f"tokenizer.ggml.{kind}_token_id")
            if number is not None:
                options[f"{name}_token"] = backend.id_to_token(number)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise UsageError(
            f"cannot read the tokenizer of {path} ({error}): give the folder that the file was "
            "made from"
        ) from error
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **options
    )
    tokenizer.chat_template = file.metadata.get(gguf.TEMPLATE_KEY)
    if gguf.TOKENIZER_KEY not in file.metadata:
        for text, tokens in zip(PROBES, tokenize(path, PROBES), strict=True):
            if tokenizer.encode(text, add_special_tokens=False) != tokens:
                raise UsageError(
                    f"the tokenizer of {path} would split {text!r} in another way than llama.cpp: "
                    "give the folder that the file was made from"
                )
    _tokenizers[digest] = tokenizer
    return tokenizer


def _converted(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    """Return llama.cpp's tokenizer as one of Transformers."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import (
        GGUF_TOKENIZER_MAPPING,
        convert_gguf_tokenizer,
    )

    names = GGUF_TOKENIZER_MAPPING["tokenizer"].items()
    values = {
        name: metadata[f"tokenizer.{key}"] for key, name in names if f"tokenizer.{key}" in metadata
    }
    values["tokens"] = list(tokens)
    backend, _ = convert_gguf_tokenizer(metadata["general.architecture"], values)
    converted: Tokenizer = backend
    return converted


def write_tokenizer(
    writer: Any, tokenizer: PreTrainedTokenizerFast, splits: Sequence[str] = SPLITS
) -> None:
    """Write a BPE tokenizer into a GGUF file that llama.cpp tokenizes in the same way.

    Args:
        writer: The file's ``GGUFWriter``.
        tokenizer: The tokenizer.
        splits: Names of the first split to try.

    Raises:
        UsageError: llama.cpp has no tokenizer that gives the same tokens.
    """
    stored = json.loads(tokenizer.backend_tokenizer.to_str())
    if stored["model"]["type"] != "BPE":
        raise UsageError(
            f"cannot export a {stored['model']['type']} tokenizer: use llama.cpp's "
            "convert_hf_to_gguf.py"
        )
    expected = [tokenizer.encode(text, add_special_tokens=False) for text in PROBES]
    wrong: dict[int, str] = {len(PROBES): PROBES[0]}  # a text by the number of wrong ones
    for vocabulary in _candidates(tokenizer, stored, splits):
        tokens = _tokens_of(vocabulary, tokenizer, stored)
        pairs = zip(PROBES, tokens, expected, strict=True)
        differing = [text for text, ours, theirs in pairs if ours != theirs]
        if not differing:
            _write(writer, vocabulary, tokenizer, stored)
            return
        wrong[len(differing)] = differing[0]
    raise UsageError(
        f"cannot export this tokenizer: llama.cpp would split {wrong[min(wrong)]!r} into other "
        "tokens; use its convert_hf_to_gguf.py, which knows more kinds"
    )


def _candidates(
    tokenizer: PreTrainedTokenizerFast, stored: dict[str, Any], splits: Sequence[str]
) -> Iterator[_Vocabulary]:
    """Yield the ways in which llama.cpp might tokenize like a tokenizer."""
    words = tokenizer.get_vocab()
    if not any(word.startswith(SPACE) for word in words):
        yield from (_Vocabulary(BYTE_LEVEL, split) for split in splits)
    elif all(byte in words for byte in BYTES):  # without them llama.cpp ends the process
        ranks: dict[str, int] = {}
        for rank, pair in enumerate(_merges(stored)):
            ranks.setdefault(pair.replace(" ", ""), rank)
        ordered = sorted(words, key=words.__getitem__)
        scores = [float(-ranks[word]) if word in ranks else NEVER for word in ordered]
        for space_prefix in (True, False):
            yield _Vocabulary(SENTENCEPIECE, "default", scores, space_prefix)


def _tokens_of(
    vocabulary: _Vocabulary, tokenizer: PreTrainedTokenizerFast, stored: dict[str, Any]
) -> list[list[int]]:
    """Return the tokens of the probes by llama.cpp."""
    from gguf import GGUFWriter

    with TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        writer = GGUFWriter(path, "llama")
        _write(writer, vocabulary, tokenizer, stored)
        gguf.finish(writer)
        return tokenize(path, PROBES)


def _write(
    writer: Any, vocabulary: _Vocabulary, tokenizer: PreTrainedTokenizerFast, stored: dict[str, Any]
) -> None:
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    writer.add_tokenizer_model(vocabulary.family)
    writer.add_tokenizer_pre(vocabulary.split)
    writer.add_token_list(words)
    writer.add_token_types([_kind(i, word, tokenizer) for i, word in enumerate(words)])
    if vocabulary.scores is None:
        writer.add_token_merges(_merges(stored))
    else:
        writer.add_token_scores(vocabulary.scores)
        writer.add_add_space_prefix(vocabulary.space_prefix)
    for name, kind in gguf.SPECIAL.items():
        number = getattr(tokenizer, f"{name}_token_id")
        if number is not None:
            writer.add_uint32(f"tokenizer.ggml.{kind}_token_id", number)
    writer.add_add_bos_token(tokenizer.bos_token_id is not None)
    writer.add_string(gguf.TOKENIZER_KEY, tokenizer.backend_tokenizer.to_str())
    if isinstance(tokenizer.chat_template, str):
        writer.add_string(gguf.TEMPLATE_KEY, tokenizer.chat_template)


def _kind(number: int, word: str, tokenizer: PreTrainedTokenizerFast) -> Any:
    """Return the GGUF type of a token."""
    from gguf import TokenType

    added = tokenizer.added_tokens_decoder.get(number)
    if word == tokenizer.unk_token:
        return TokenType.UNKNOWN
    if added is not None:
        return TokenType.CONTROL if added.special else TokenType.USER_DEFINED
    return TokenType.BYTE if word in BYTES else TokenType.NORMAL


def _merges(stored: dict[str, Any]) -> list[str]:
    merges = stored["model"]["merges"]
    return [pair if isinstance(pair, str) else " ".join(pair) for pair in merges]

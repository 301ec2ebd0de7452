"""The tokenizer of a GGUF file, checked against llama.cpp's own tokenizer.

llama.cpp does not normalise Unicode, so the probes are composed (NFC).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import c_int32
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from specbench.engine import gguf
from specbench.engine.llamacpp_library import library, load_file
from specbench.errors import UsageError

PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "It's 1234567 o'clock, isn't it? WE'LL SEE: I'M here!",
    "  two  spaces,\ttabs\t\tand\n\nlines\r\n   end  ",
    "def add(x, y_2=3.14):\n    return x+y_2  # == 42",
    "na\u00efve caf\u00e9, \u00dcber \u2014 \u201cquoted\u201d \u2026",
    "\u65e5\u672c\u8a9e and \u0440\u0443\u0441\u0441\u043a\u0438\u0439, \u0639\u0631\u0628\u064a",
    "emoji \U0001f642\U0001f680, HelloWorld, camelCase, XMLHttpRequest",
    *(" ", "\n", "a"),
)


class ModelFacts(NamedTuple):
    """What llama.cpp says of a file without reading its weights."""

    eos_ids: frozenset[int]  # all tokens at which it ends a text
    adds_start: bool  # whether a text begins with the start token
    has_state: bool  # whether some layers keep a state, from which no token can be taken back


@gguf.once_per_file
def model_facts(path: Path) -> ModelFacts:
    """Return what llama.cpp says of a file."""
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
    is_whole = gguf.TOKENIZER_KEY in file.metadata
    options: dict[str, Any] = {} if is_whole else {"add_bos_token": model_facts(path).adds_start}
    try:
        if is_whole:
            backend = Tokenizer.from_str(file.metadata[gguf.TOKENIZER_KEY])
        else:
            backend = _converted(file.metadata, file.tokens)
        for name, kind in gguf.SPECIAL.items():
            number = file.metadata.get(f"tokenizer.ggml.{kind}_token_id")
            if number is not None:
                options[f"{name}_token"] = backend.id_to_token(number)
    except Exception as error:  # the type that tokenizers raises
        raise UsageError(
            f"cannot read the tokenizer of {path} ({error}): give the folder that the file was "
            "made from"
        ) from error
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **options
    )
    tokenizer.chat_template = file.metadata.get(gguf.TEMPLATE_KEY)
    if not is_whole:
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
    return backend

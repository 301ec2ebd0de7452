"""Tokenizers in GGUF files: llama.cpp's own tokenizer gives the same tokens, or export refuses."""

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from specbench.errors import UsageError

from .conftest import needs_llamacpp

pytestmark = needs_llamacpp
CORPUS = [
    "The quick brown fox jumps over the lazy dog. Isn't it 12345678 o'clock? HelloWorld!",
    "def add(x, y):\n    return x + y\n\n\ttabs, camelCase and XMLHttpRequest",
    "na\u00efve caf\u00e9 \u201cquoted\u201d \u2026 \u65e5\u672c\u8a9e \u0440\u0443\u0441",
] * 20
UNSEEN = "Whether 98765 or 4,321: it's naïve\n\n  to print(add(x, 3))  \U0001f642"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level(digits: str, *, ignore_merges: bool) -> PreTrainedTokenizerFast:
    """A tokenizer like those of Llama 3 and Qwen: a regular expression, then bytes."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    split = pre_tokenizers.Split(Regex("|".join((SHORT, WORD, digits, SYMBOLS))), "isolated")
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, in_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|begin|>", "<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|begin|>", eos_token="<|end|>"
    )


def sentencepiece(prefix: bool, in_bytes: bool = True) -> PreTrainedTokenizerFast:
    """A tokenizer like those of Llama 2 (with a prefix) and Gemma (without): marked spaces."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    spaces = normalizers.Replace(" ", "\u2581")
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend("\u2581"), spaces]) if prefix else spaces
    )
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=special + BYTES * in_bytes,
        max_token_length=8,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    stored = json.loads(tokenizer.to_str())
    stored["added_tokens"] = [t for t in stored["added_tokens"] if t["content"] in special]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(stored)),
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )


def export(tokenizer: PreTrainedTokenizerFast, path: Path, *splits: tuple[str, ...]) -> Path:
    from gguf import GGUFWriter

    from specbench.engine.gguf import finish
    from specbench.engine.gguf_tokenizer import write_tokenizer

    writer = GGUFWriter(path, "llama")
    write_tokenizer(writer, tokenizer, *splits)
    finish(writer)
    return path


@pytest.mark.parametrize(
    "tokenizer",
    [
        pytest.param(lambda: byte_level(r"\p{N}{1,3}", ignore_merges=True), id="Llama 3"),
        pytest.param(lambda: byte_level(r"\p{N}", ignore_merges=False), id="Qwen"),
        pytest.param(lambda: sentencepiece(prefix=True), id="Llama 2"),
        pytest.param(lambda: sentencepiece(prefix=False), id="Gemma"),
    ],
)
def test_llamacpp_splits_an_unseen_text_in_the_same_way(tokenizer, tmp_path):
    from specbench.engine.gguf_tokenizer import read_tokenizer, tokenize

    original = tokenizer()
    path = export(original, tmp_path / "vocabulary.gguf")
    expected = original.encode(UNSEEN, add_special_tokens=False)
    assert tokenize(path, [UNSEEN]) == [expected]
    assert read_tokenizer(path).encode(UNSEEN, add_special_tokens=False) == expected
    twin = Path(shutil.copy(path, tmp_path / "twin.gguf"))
    assert read_tokenizer(twin) is read_tokenizer(path)  # converting it takes seconds


def test_another_split_gives_other_tokens(tmp_path):
    """The negative control: the right name is not among those to try."""
    with pytest.raises(UsageError, match=r"would split .* into other tokens"):
        export(byte_level(r"\p{N}{1,3}", ignore_merges=True), tmp_path / "v.gguf", ("gpt-2",))


def test_marked_spaces_without_byte_tokens_are_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot export this tokenizer"):
        export(sentencepiece(prefix=True, in_bytes=False), tmp_path / "v.gguf")

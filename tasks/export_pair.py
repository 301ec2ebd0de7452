"""Write a pair of Llama models as GGUF files, for ``--engine llamacpp`` and llama.cpp's server.

llama.cpp's own ``convert_hf_to_gguf.py`` exports published models, but not the tokenizers of the
bundled pairs:

    python tasks/export_pair.py mini --type q8_0 --output results/gguf/mini

llama.cpp reimplements tokenizers in two families: byte-level BPE, with the regular expression of
its first split chosen by a name, and SentencePiece, where U+2581 marks spaces and bytes have tokens
of their own. With the wrong family or name llama.cpp would silently split texts in another way, so
the tokens of ``PROBES`` are compared before a file counts as written.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from specbench.engine import gguf
from specbench.engine.gguf_tokenizer import PROBES, tokenize
from specbench.engine.loading import load_pair
from specbench.engine.pairs import Loading, PairSpec, get_pair
from specbench.engine.sources import load_tokenizer, require_package
from specbench.errors import SpecbenchError, UsageError
from specbench.files import check_writable, clear_errors, sync

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's mark of a space
BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"  # llama.cpp's names of the families
#: llama.cpp's names of the first split of byte-level tokenizers, in the order of the trials.
SPLITS = ("smollm", "llama-bpe", "qwen2", "gpt-2", "gpt-4o", "tekken")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
NEVER = -1e9  # score of a token that no merge makes
# Types of the weight matrices, with llama.cpp's name for such a file.
FILE_TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0"}


class _Vocabulary(NamedTuple):
    """The tokenizer's own keys, without special tokens."""

    family: str
    split: str  # the name of the first split; "default" for SentencePiece
    scores: list[float] | None = None
    space_prefix: bool | None = None


def main() -> None:
    """Export the pair that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pair", help="a pair's name, as in: specbench list pairs")
    parser.add_argument(
        "--type",
        choices=FILE_TYPES,
        default="f32",
        help="type of the weight matrices: 32 or 16 bits, or 8 bits with a scale per 32 weights "
        "(default: f32)",
    )
    parser.add_argument("--output", type=Path, help="folder to write (default: results/gguf/PAIR)")
    options = parser.parse_args()
    folder = options.output or Path("results/gguf") / options.pair
    try:
        spec = get_pair(options.pair)
        check_writable(folder)
        files = export_pair(spec, folder, options.type)
    except SpecbenchError as error:
        sys.exit(f"error: {error}")
    print(*files, sep="\n")


def export_pair(spec: PairSpec, folder: Path, form: str) -> list[Path]:
    """Write each model of a pair to ``<role>-<form>.gguf`` in a folder; return the files.

    Raises:
        UsageError: A model cannot be exported, the package gguf is missing, or the folder is not
            writable.
    """
    require_package("gguf", "a GGUF file")
    pair = load_pair(spec, Loading(device="cpu", dtype="float32"))
    files = []
    with clear_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for role, runner in zip(spec.models, pair.runners, strict=False):
            files.append(folder / f"{role}-{form}.gguf")
            tokenizer = cast(PreTrainedTokenizerFast, load_tokenizer(spec, role, Loading()))
            unfinished = files[-1].with_suffix(".partial")
            write_gguf(unfinished, runner.model, tokenizer, runner.fingerprint(), form)
            sync(unfinished)
            unfinished.replace(files[-1])
        sync(folder)
    return files


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    fingerprint: str,
    form: str,
) -> None:
    """Write a Llama model with a BPE tokenizer as a GGUF file.

    The file keeps the model's fingerprint, so heads for the model serve the file as well. In f16
    and q8_0 the norms stay float32; rows that q8_0 cannot divide into blocks of 32 become f16.

    Raises:
        UsageError: The model has another architecture, or llama.cpp no tokenizer like its own.
    """
    from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
    from gguf.quants import quantize

    config = model.config
    rotary = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    kind = config.model_type if rotary == "default" else f"{config.model_type} ({rotary} angles)"
    if kind != "llama":  # frequencies of Llama 3 are scaled
        raise UsageError(f"cannot export a {kind} model: use llama.cpp's convert_hf_to_gguf.py")
    writer = GGUFWriter(path, "llama")
    _describe(writer, config, LlamaFileType[FILE_TYPES[form]])
    write_tokenizer(writer, tokenizer)
    writer.add_string(gguf.FINGERPRINT_KEY, fingerprint)
    for name, weights in _tensors(model):
        stored_as = GGMLQuantizationType.F32
        if weights.ndim > 1 and form != "f32":
            fits = form == "q8_0" and weights.shape[-1] % 32 == 0
            stored_as = GGMLQuantizationType.Q8_0 if fits else GGMLQuantizationType.F16
        writer.add_tensor(name, quantize(weights, stored_as), raw_dtype=stored_as)
    finish(writer)


def _describe(writer: Any, config: PretrainedConfig, file_type: int) -> None:
    width = config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(file_type)


def _tensors(model: PreTrainedModel) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield each tensor with llama.cpp's name, in its order of rotary dimensions."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    config = model.config
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        weights = tensor.float().cpu().numpy()
        part = name.split(".")[-2]
        if part in heads:
            # Transformers rotates the two halves of a head, llama.cpp neighbouring dimensions.
            split = weights.reshape(heads[part], 2, -1, *weights.shape[1:])
            weights = split.swapaxes(1, 2).reshape(weights.shape)
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        yield stored, np.ascontiguousarray(weights)


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
        finish(writer)
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


def finish(writer: Any) -> None:
    """Write the keys and tensors of a file's ``GGUFWriter``, and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()

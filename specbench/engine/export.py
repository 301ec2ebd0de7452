"""Export of a pair of Llama models to GGUF files, for llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from specbench.engine.gguf import FINGERPRINT_KEY, finish
from specbench.engine.gguf_tokenizer import write_tokenizer
from specbench.engine.loading import load_pair
from specbench.engine.pairs import Loading, PairSpec
from specbench.engine.sources import load_tokenizer, require_package
from specbench.errors import UsageError
from specbench.files import clear_errors, sync

# Types of the weight matrices, with llama.cpp's name for such a file.
FILE_TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0"}


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
    if config.model_type != "llama":
        raise UsageError(
            f"cannot export a {config.model_type} model: use llama.cpp's convert_hf_to_gguf.py"
        )
    writer = GGUFWriter(path, "llama")
    _describe(writer, config, LlamaFileType[FILE_TYPES[form]])
    write_tokenizer(writer, tokenizer)
    writer.add_string(FINGERPRINT_KEY, fingerprint)
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

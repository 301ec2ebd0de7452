"""Loading a pair: the tokenizer, the target and the draft, and checks that they match."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from specbench.config import AUTO, Loading
from specbench.engine.attention import exclude_cudnn
from specbench.engine.device import choose_device
from specbench.engine.pair import LoadedPair
from specbench.engine.runner import Runner, context_length
from specbench.engine.sources import commit, load_config, load_model, load_tokenizer
from specbench.errors import UsageError
from specbench.pairs.registry import GGUF, PairSpec

# Below this hidden size a step is too short for several threads: they would wait for each other in
# every layer, and for any other process on their cores.
ONE_THREAD_WIDTH = 512


class Reader(NamedTuple):
    """The part of a ``LoadedPair`` that encodes prompts and checks their length."""

    tokenizer: PreTrainedTokenizerBase
    context: int | None
    thinking: bool

    @property
    def eos_ids(self) -> frozenset[int]:
        """The token that ends an output."""
        return frozenset(filter(None, [self.tokenizer.eos_token_id]))


def load_reader(spec: PairSpec, loading: Loading) -> Reader:
    """Load a pair's tokenizer and configurations without its weights."""
    context = shared_context(spec, loading)
    return Reader(load_tokenizer(spec, "target", loading), context, spec.thinking)


def shared_context(spec: PairSpec, loading: Loading) -> int | None:
    """Return ``LoadedPair.context`` without loading the pair."""
    contexts = [context_length(load_config(spec, role, loading)) for role in spec.models]
    return min(filter(None, contexts), default=None)


def load_pair(spec: PairSpec, loading: Loading | None = None) -> LoadedPair:
    """Load the models of a pair; by default as the pair and the device suggest.

    Raises:
        UsageError: A model is not available, the device does not exist or the tokenizers differ.
    """
    loading = loading or Loading()
    torch_device = choose_device(loading.device)
    if torch_device.type == "cuda":
        if torch_device.index is not None:
            torch.cuda.set_device(torch_device)  # for streams and graphs
        exclude_cudnn()
    dtype = choose_dtype(spec, loading, torch_device)
    # Small files first, so that a missing model is reported before large downloads.
    configs = [load_config(spec, role, loading) for role in spec.models]
    tokenizers = [load_tokenizer(spec, role, loading) for role in spec.models]
    vocabulary = shared_vocabulary(tokenizers[0], tokenizers[-1])
    if spec.gguf:
        return _load_gguf(spec, loading, configs, tokenizers)
    try:
        models = [
            load_model(spec, role, loading, config, torch_device, dtype)
            for role, config in zip(spec.models, configs, strict=True)
        ]
        rows = min(model.get_output_embeddings().weight.shape[0] for model in models)
        # A dummy borrows a tokenizer, but keeps the cost of its own vocabulary.
        rows = rows if loading.dummy else min(vocabulary, rows)
        runners = [Runner(model, rows) for model in models]
        target, draft = runners[0], runners[-1]
    except torch.OutOfMemoryError as error:
        raise UsageError(
            f"{spec.name} does not fit into the memory of {torch_device}: choose a smaller pair or "
            "another --dtype"
        ) from error
    if target.device != draft.device:
        raise UsageError(
            f"the target is on {target.device} and the draft on {draft.device}: choose another "
            "--device-map"
        )
    if torch_device.type == "cpu":
        _use_one_thread(target.hidden_size)
    ends = frozenset() if loading.dummy else end_tokens(models[0], tokenizers[0])
    # Resolved commits, whichever names the revisions have.
    facts = {
        "load_format": loading.load_format,
        "quantization": loading.quantization,
        "device_map": loading.device_map,
        "thinking": spec.thinking,
        "shared_vocabulary": rows,
        **{f"{role}_commit": commit(spec, role, loading) for role in spec.models},
    }
    return LoadedPair(
        spec.name,
        target,
        draft,
        tokenizers[0],
        ends,
        spec.thinking,
        facts,
        drafters=spec.drafters,
    )


def _load_gguf(
    spec: PairSpec,
    loading: Loading,
    configs: Sequence[PretrainedConfig],
    tokenizers: Sequence[PreTrainedTokenizerBase],
) -> LoadedPair:
    """Load a pair of GGUF files, for llama.cpp."""
    from specbench.engine.llamacpp import LlamaCppModel

    if loading.dummy or loading.quantization or loading.device_map:
        raise UsageError(
            "GGUF files have their own weights and run on the CPU: omit --load-format, "
            "--quantization and --device-map"
        )
    if loading.dtype not in (AUTO, "float32"):
        raise UsageError(f"GGUF files have their own types: omit --dtype {loading.dtype}")
    if any(not model.endswith(GGUF) for model in spec.models.values()):
        raise UsageError("a pair has two GGUF files or none: export the other model as well")
    rows = min(
        shared_vocabulary(tokenizers[0], tokenizers[-1]), *(config.vocab_size for config in configs)
    )
    runners = [
        LlamaCppModel(Path(model), config, rows)
        for model, config in zip(spec.models.values(), configs, strict=True)
    ]
    _use_one_thread(runners[0].hidden_size)
    ends = {configs[0].eos_token_id, tokenizers[0].eos_token_id} - {None}
    facts = {"shared_vocabulary": rows, "thinking": spec.thinking}
    return LoadedPair(
        spec.name, runners[0], runners[-1], tokenizers[0], frozenset(ends), spec.thinking, facts
    )


def _use_one_thread(width: int) -> None:
    """Use one thread for a small target, unless the user chose a number."""
    if width < ONE_THREAD_WIDTH and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def shared_vocabulary(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> int:
    """Return the number of ids, from 0, that mean the same token in both tokenizers.

    Tokens are compared one by one. Added tokens beyond the last id of the other tokenizer are
    ignored: they are special tokens that only one of the models has.

    Raises:
        UsageError: An id means two tokens, or a regular token is known to one model only; the
            message names the first.
    """
    of_target = {index: token for token, index in target.get_vocab().items()}
    of_draft = {index: token for token, index in draft.get_vocab().items()}
    size = min(max(of_target), max(of_draft)) + 1
    added = {*target.added_tokens_decoder, *draft.added_tokens_decoder}
    different = [
        index
        for index in sorted(of_target.keys() | of_draft.keys())
        if of_target.get(index) != of_draft.get(index) and (index < size or index not in added)
    ]
    if different:
        first = different[0]
        in_target = repr(of_target[first]) if first in of_target else "nothing"
        in_draft = repr(of_draft[first]) if first in of_draft else "nothing"
        raise UsageError(
            f"the models do not share a vocabulary: token {first} is {in_target} in the target "
            f"and {in_draft} in the draft ({len(different)} ids differ); choose a draft of the "
            "target's family"
        )
    return size


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Collect end tokens from the generation settings, the configuration and the tokenizer."""
    end_ids: set[int] = set()
    for source in (model.generation_config, model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        end_ids.update([] if ids is None else [ids] if isinstance(ids, int) else ids)
    return frozenset(end_ids)


def choose_dtype(spec: PairSpec, loading: Loading, device: torch.device) -> torch.dtype:
    """Return the dtype chosen by the user, else by the pair, else by the device."""
    name = spec.dtype if loading.dtype == AUTO else loading.dtype
    if name == AUTO:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype: torch.dtype = getattr(torch, name)
    return dtype

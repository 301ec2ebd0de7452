"""Loading a pair: the tokenizer, the target and the draft, and checks that they match."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from specbench.config import AUTO
from specbench.engine.cache import context_length
from specbench.engine.device import choose_device, keep_freed_memory
from specbench.engine.hardware import available_memory
from specbench.engine.hub import gguf_path, origin
from specbench.engine.limits import busy_share, usable_cores
from specbench.engine.llamacpp import LIBRARY, LlamaCppModel
from specbench.engine.packing import pack
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import GGUF, Loading, PairSpec
from specbench.engine.runner import MOST_PROMPT_BYTES, Runner
from specbench.engine.sources import load_config, load_ends, load_model, load_tokenizer
from specbench.engine.vocabulary import DraftTokens, draft_tokens, vocabulary_size
from specbench.engine.weights import check_weights, require_quantiser
from specbench.errors import UsageError

# Below this hidden size a step is too short for several threads: they would wait for each other in
# every layer, and for any other process on their cores.
ONE_THREAD_WIDTH = 512
PROMPTS_SHARE = 8  # the free memory by what the states of a model's prompts may take of it
# PyTorch's implementations of attention; it chooses one of the enabled ones per call.
BACKENDS = ("flash", "mem_efficient", "math", "cudnn")
log = logging.getLogger(__name__)


class Reader(NamedTuple):
    """What is known of a pair without its weights."""

    tokenizer: PreTrainedTokenizerBase  # the target's tokenizer
    context: int | None
    thinking: bool
    eos_ids: frozenset[int]
    configs: Sequence[PretrainedConfig]  # of each model
    vocabulary: int  # V, the number of the target's tokens
    present: DraftTokens | None  # which of them the draft has; None if it has all


def load_reader(spec: PairSpec, loading: Loading) -> Reader:
    """Load tokenizers and configurations of a pair without its weights."""
    # Small files first, so that a missing model is reported before large downloads.
    configs = [load_config(spec, role, loading) for role in spec.models]
    tokenizers = [load_tokenizer(spec, role, loading) for role in spec.models]
    # A dummy borrows a tokenizer, but keeps the cost of its own vocabulary.
    rows = [config.vocab_size for config in configs]
    size = rows[0] if loading.dummy else vocabulary_size(tokenizers[0], rows[0])
    return Reader(
        tokenizers[0],
        context_length(configs[0]),
        spec.thinking,
        load_ends(spec, loading, configs[0], tokenizers[0]),
        configs,
        size,
        draft_tokens(tokenizers[0], tokenizers[-1], size, rows[-1]),
    )


def load_pair(spec: PairSpec, loading: Loading | None = None) -> LoadedPair:
    """Load the models of a pair; by default as the pair and the device suggest."""
    loading = loading or Loading()
    torch_device = choose_device(loading.device)
    if torch_device.type == "cuda":
        if torch_device.index is not None:
            torch.cuda.set_device(torch_device)  # for streams and graphs
        exclude_cudnn()
    dtype = choose_dtype(spec, loading, torch_device)
    reader = load_reader(spec, loading)
    size, present, configs = reader.vocabulary, reader.present, reader.configs
    shared = size if present is None else int(present.present.sum())
    facts: dict[str, Any] = {"shared_vocabulary": shared, "thinking": spec.thinking}
    for role in spec.models:  # resolved commits, whichever names the revisions have
        facts |= origin(spec, role, loading)
    pair = partial(LoadedPair, spec.name, tokenizer=reader.tokenizer, eos_ids=reader.eos_ids)
    pair = partial(pair, thinking=spec.thinking, drafters=spec.drafters)
    if spec.gguf:
        files = _load_gguf(spec, loading, configs, size, present)
        weights = {role: file.describe() for role, file in zip(spec.models, files, strict=True)}
        keep_freed_memory()
        return pair(files[0], files[-1], facts=facts, weights=weights, library=LIBRARY)
    if not loading.dummy:
        for role, config in zip(spec.models, configs, strict=True):
            check_weights(spec, role, config)
            require_quantiser(spec.models[role], config, torch_device, dtype)
    try:
        models = [
            load_model(spec, role, loading, config, torch_device, dtype)
            for role, config in zip(spec.models, configs, strict=True)
        ]
        runners = [Runner(models[0], size), *(Runner(m, size, present) for m in models[1:])]
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
        for model in models:
            pack(model)
        set_threads(loading, target.hidden_size)
        keep_freed_memory()
    free = available_memory(torch_device)
    if free is not None:
        for runner in runners:
            runner.prompt_bytes = min(MOST_PROMPT_BYTES, free // PROMPTS_SHARE)
    facts |= {
        "load_format": loading.load_format,
        "quantization": loading.quantization,
        "device_map": loading.device_map,
    }
    return pair(target, draft, facts=facts)


def _load_gguf(
    spec: PairSpec,
    loading: Loading,
    configs: Sequence[PretrainedConfig],
    size: int,
    present: DraftTokens | None,
) -> list[LlamaCppModel]:
    """Load the GGUF files of a pair, for llama.cpp."""
    if loading.dummy or loading.quantization or loading.device_map:
        raise UsageError(
            "GGUF files have their own weights and run on the CPU: omit --load-format, "
            "--quantization and --device-map"
        )
    if loading.dtype not in (AUTO, "float32"):
        raise UsageError(f"GGUF files have their own types: omit --dtype {loading.dtype}")
    if any(not model.endswith(GGUF) for model in spec.models.values()):
        raise UsageError("a pair has two GGUF files or none: export the other model as well")
    models = [
        LlamaCppModel(gguf_path(spec, role), config, size, missing)
        for role, config, missing in zip(spec.models, configs, (None, present), strict=False)
    ]
    set_threads(loading, models[0].hidden_size)
    return models


def set_threads(loading: Loading, width: int) -> None:
    """Use as many threads as the user chose, one for a small hidden size, or one per free core.

    Threads of llama.cpp and PyTorch wait for each other, so one that has no core stops all.
    """
    if loading.threads is not None:
        torch.set_num_threads(loading.threads)
    elif "OMP_NUM_THREADS" not in os.environ:
        cores, busy = (1, 0.0) if width < ONE_THREAD_WIDTH else (usable_cores(), busy_share())
        idle = round((os.cpu_count() or 1) * (1 - busy))
        most = min(torch.get_num_threads(), cores)
        threads = max(1, min(most, idle))
        if threads < most:
            log.warning(
                f"other processes use {100 * busy:.0f} % of the processor, so "
                f"{threads} of {most} threads are used: stop them, or choose with --threads"
            )
        torch.set_num_threads(threads)


def choose_dtype(spec: PairSpec, loading: Loading, device: torch.device) -> torch.dtype:
    """Return the dtype chosen by the user, else by the pair, else by the device."""
    of_pair = "float32" if spec.gguf else spec.dtype
    name = of_pair if loading.dtype == AUTO else loading.dtype
    if name == AUTO:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def exclude_cudnn() -> None:
    """Disable cuDNN's attention on GPUs, so that all engines use the same kernels.

    PyTorch prefers it on recent GPUs. It builds a plan for every new shape, that is in every round
    of the eager engine.
    """
    torch.cuda.init()  # otherwise the setting may be lost
    torch.backends.cuda.enable_cudnn_sdp(False)
    assert "cudnn" not in enabled_backends()


def enabled_backends() -> list[str]:
    """Return the names of the enabled implementations of attention."""
    return [name for name in BACKENDS if getattr(torch.backends.cuda, f"{name}_sdp_enabled")()]

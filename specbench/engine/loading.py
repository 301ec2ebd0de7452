"""Loading a pair: tokenizer, target and draft, checked to belong together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from specbench.engine.engines import Engine
from specbench.engine.runner import Runner, context_length
from specbench.engine.settings import AUTO, Loading
from specbench.engine.sources import (
    commit,
    load_config,
    load_model,
    load_tokenizer,
    model_name,
    wanted_revision,
)
from specbench.engine.tokenizers import end_tokens, shared_vocabulary
from specbench.errors import UsageError
from specbench.pairs.checked import DTYPES, ROLES
from specbench.pairs.registry import PairSpec

# Below this hidden size a step is too short to share between threads: they would wait for each
# other at every layer, and for any other program that holds one of their cores.
ONE_THREAD_WIDTH = 512


@dataclass
class LoadedPair:
    """Two models over one vocabulary, ready to decode.

    Attributes:
        name: Name of the pair.
        target: The model whose distribution is p.
        draft: The model whose distribution is q.
        tokenizer: The target's tokenizer.
        eos_ids: Tokens that end an output; none for random weights, which would end at random.
        thinking: Whether the chat template lets the models think before they answer.
        facts: What is worth recording of how it was loaded, in plain values.
        engine: How rounds are carried out.
    """

    name: str
    target: Runner
    draft: Runner
    tokenizer: PreTrainedTokenizerBase
    eos_ids: frozenset[int]
    thinking: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    engine: Engine = field(default_factory=Engine)

    def reserve(self, tokens: int, rows: int = 1) -> None:
        """Make room for rows of so many tokens at once, so that no later text has to wait."""
        for runner in (self.target, self.draft):
            runner.reserve(rows, tokens)

    def forget(self) -> None:
        """Let go of the caches, so that the pair is as it was loaded."""
        for runner in (self.target, self.draft):
            runner.cache = None

    @property
    def context(self) -> int | None:
        """Number of positions that both models were made for; None where neither says."""
        return min(filter(None, (self.target.context, self.draft.context)), default=None)


class Reader(NamedTuple):
    """What prompts are made and measured with; for the attributes see ``LoadedPair``."""

    tokenizer: PreTrainedTokenizerBase
    context: int | None
    thinking: bool


def load_reader(spec: PairSpec, loading: Loading) -> Reader:
    """Load what is known of a pair without its weights.

    Raises:
        UsageError: A configuration or the tokenizer cannot be had.
    """
    contexts = [context_length(load_config(spec, role, loading)) for role in ROLES]
    tokenizer = load_tokenizer(spec, "target", loading)
    return Reader(tokenizer, min(filter(None, contexts), default=None), spec.thinking)


def load_pair(spec: PairSpec, loading: Loading | None = None) -> LoadedPair:
    """Load both models of a pair.

    Args:
        spec: Where the models are.
        loading: How to load them; None leaves everything to the device and the pair.

    Raises:
        UsageError: A model cannot be had, the device does not exist or the tokenizers differ.
    """
    loading = loading or Loading()
    place = choose_device(loading.device)
    if place.type == "cuda" and place.index is not None:
        torch.cuda.set_device(place)  # where streams and graphs are made
    dtype = choose_dtype(spec, loading, place)
    # Small files first: what cannot be had is known before anything large is fetched.
    configs = [load_config(spec, role, loading) for role in ROLES]
    tokenizers = [load_tokenizer(spec, role, loading) for role in ROLES]
    vocabulary = shared_vocabulary(*tokenizers)
    try:
        models = [
            load_model(spec, role, loading, config, place, dtype)
            for role, config in zip(ROLES, configs, strict=True)
        ]
        rows = min(model.get_output_embeddings().weight.shape[0] for model in models)
        # A dummy's tokenizer is not its own, and its vocabulary takes its time all the same.
        rows = rows if loading.dummy else min(vocabulary, rows)
        target, draft = (Runner(model, rows) for model in models)
    except torch.OutOfMemoryError as error:
        raise UsageError(
            f"{spec.name} does not fit into the memory of {place}: choose a smaller pair or "
            "another --dtype"
        ) from error
    if target.device != draft.device:
        raise UsageError(
            f"the target is on {target.device} and the draft on {draft.device}: choose another "
            "--device-map"
        )
    chosen = "OMP_NUM_THREADS" in os.environ
    if place.type == "cpu" and target.hidden_size < ONE_THREAD_WIDTH and not chosen:
        torch.set_num_threads(1)
    ends = frozenset() if loading.dummy else end_tokens(models[0], tokenizers[0])
    facts = _facts(spec, loading, rows)
    return LoadedPair(spec.name, target, draft, tokenizers[0], ends, spec.thinking, facts)


def choose_device(name: str) -> torch.device:
    """Return the device of that name; ``auto`` is the first GPU, else the CPU.

    Raises:
        UsageError: It is not there, or nothing can be decoded on it.
    """
    if name == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"no device {name} here: use --device cpu or auto") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"cannot decode on {name}: use --device cpu, cuda or auto")
    return device


def choose_dtype(spec: PairSpec, loading: Loading, device: torch.device) -> torch.dtype:
    """Return the number format the user asks for, else the pair's, else the device's.

    Raises:
        UsageError: There is no such floating point type.
    """
    name = spec.dtype if loading.dtype == AUTO else loading.dtype
    if name == AUTO:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise UsageError(f"unknown dtype {name}: use auto, float32, bfloat16 or float16")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _facts(spec: PairSpec, loading: Loading, vocabulary: int) -> dict[str, Any]:
    """How the pair was loaded: the commits found, whatever name the revisions were asked by."""
    commits = {
        f"{role}_commit": None
        if loading.dummy
        else commit(model_name(spec, role), wanted_revision(spec, role, loading))
        for role in ROLES
    }
    return {
        "load_format": loading.load_format,
        "quantization": loading.quantization,
        "device_map": loading.device_map,
        "thinking": spec.thinking,
        "shared_vocabulary": vocabulary,
        **commits,
    }

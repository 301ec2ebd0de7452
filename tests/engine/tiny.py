"""Tiny random models of three families, and pairs of them that agree on most tokens."""

import string
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from specbench.engine.pair import LoadedPair
from specbench.engine.runner import Runner

CHARACTERS = string.ascii_letters + string.digits + " ."
VOCABULARY = len(CHARACTERS)
WINDOW = 8

# Large weights separate the largest logit, so that rounding cannot change an argmax.
SIZES: dict[str, Any] = {
    **{"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
    **{"initializer_range": 0.4, "tie_word_embeddings": False, "bos_token_id": None},
    **{"eos_token_id": None, "pad_token_id": None},
}


def config(family: str, **changes: Any) -> PreTrainedConfig:
    sizes = SIZES | changes
    if family == "gemma3":
        kinds = ["sliding_attention", "full_attention"]
        gemma = {"sliding_window": WINDOW, "layer_types": kinds, "query_pre_attn_scalar": 8}
        return Gemma3TextConfig(**(gemma | sizes))
    return LlamaConfig(**sizes) if family == "llama" else Qwen3Config(**sizes)


FAMILIES = ("llama", "qwen3", "gemma3")


def build(settings: PreTrainedConfig, seed: int = 0, dtype: torch.dtype = torch.float32):
    """A random model; its weights depend only on the configuration and the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: Any = AutoModelForCausalLM.from_config(settings, attn_implementation="sdpa")
    built: PreTrainedModel = model.to(dtype).eval()
    return built


def blurred(model: PreTrainedModel, noise: float, seed: int = 1) -> PreTrainedModel:
    """The model with noise on its weights: a draft that is usually right."""
    generator = torch.Generator().manual_seed(seed)
    draft = deepcopy(model)
    with torch.no_grad():
        for weights in draft.parameters():
            if weights.ndim > 1:
                weights.add_(noise * torch.randn(weights.shape, generator=generator))
    return draft


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.WordLevel({c: i for i, c in enumerate(CHARACTERS)}, unk_token="."))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=inner, clean_up_tokenization_spaces=False)


def pair_of(target: PreTrainedModel, draft: PreTrainedModel) -> LoadedPair:
    p, q = (Runner(model, model.config.vocab_size) for model in (target, draft))
    return LoadedPair("tiny", p, q, tokenizer(), eos_ids=frozenset())


@cache
def tiny_pair(family: str) -> LoadedPair:
    """A target, and a draft that agrees with it on many tokens."""
    target = build(config(family))
    return pair_of(target, blurred(target, noise=0.01))


def random_prompt(length: int, vocabulary: int = VOCABULARY) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(vocabulary, (length,), generator=generator).tolist()


@torch.inference_mode()
def read(runner: Runner, tokens: Sequence[int], begin: int = 0) -> tuple[Tensor, Tensor]:
    """Logits and hidden states ``[k, ...]`` of tokens at positions from ``begin`` on."""
    at = torch.arange(begin, begin + len(tokens))[None]
    states = runner.forward(torch.tensor([list(tokens)]), at, begin + len(tokens))[0]
    hidden = states[:, : runner.hidden_size]  # a drafter may have left its layers set
    return runner.logits(hidden), hidden


@torch.inference_mode()
def own_logits(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    logits: Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits

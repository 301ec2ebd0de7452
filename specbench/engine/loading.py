"""Loading a pair: tokenizer, target and draft, checked to belong together."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from specbench.engine.runner import Runner
from specbench.errors import UsageError
from specbench.pairs.registry import PairSpec

HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")

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
        eos_ids: Tokens that end an output.
    """

    name: str
    target: Runner
    draft: Runner
    tokenizer: PreTrainedTokenizerBase
    eos_ids: frozenset[int]


def load_pair(spec: PairSpec, device: str, dtype: str) -> LoadedPair:
    """Load both models of a pair.

    Args:
        spec: Where the models are.
        device: ``auto`` (the first GPU, else the CPU) or a PyTorch device.
        dtype: ``auto`` (bfloat16 on a GPU, float32 on a CPU) or the name of a floating point type.

    Raises:
        UsageError: A model cannot be had, the device does not exist or the tokenizers differ.
    """
    place = choose_device(device)
    kind = _dtype(dtype, place)
    for name in (spec.target, spec.draft):
        load_pretrained(AutoConfig, name)  # one small file: what cannot be had is known soonest
    tokenizers = [load_pretrained(AutoTokenizer, name) for name in (spec.target, spec.draft)]
    vocabulary = _shared_vocabulary(spec, tokenizers[0], tokenizers[1])
    models: list[PreTrainedModel] = [
        load_pretrained(AutoModelForCausalLM, name, dtype=kind, attn_implementation="sdpa")
        .to(place)
        .eval()
        for name in (spec.target, spec.draft)
    ]
    rows = min(vocabulary, *(model.get_output_embeddings().weight.shape[0] for model in models))
    target, draft = (Runner(model, rows) for model in models)
    chosen = "OMP_NUM_THREADS" in os.environ
    if place.type == "cpu" and target.hidden_size < ONE_THREAD_WIDTH and not chosen:
        torch.set_num_threads(1)
    return LoadedPair(spec.name, target, draft, tokenizers[0], end_tokens(models[0], tokenizers[0]))


def load_pretrained(factory: Any, name: str, **options: object) -> Any:
    """Call ``from_pretrained``.

    Raises:
        UsageError: The model cannot be had; what went wrong is told in one sentence.
    """
    if not Path(name).exists() and not HUB_ID.fullmatch(name):
        raise UsageError(f"no model folder {name}: give a folder or a hub id like owner/name")
    try:
        return factory.from_pretrained(name, **options)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".:")
        if Path(name).exists():
            raise UsageError(
                f"cannot load {name} ({reason}): give a folder with a model and its tokenizer"
            ) from error
        token = "" if os.environ.get("HF_TOKEN") else " and set HF_TOKEN"
        raise UsageError(
            f"cannot load {name} from the hub ({reason}): check the network, accept the model's "
            f"licence on its page{token}, or give local folders with --target and --draft"
        ) from error


def encode(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """Tokenise a prompt, as one user message where the model has a chat template.

    The template's own tokens are taken as they are, so that no start token is doubled.
    """
    if tokenizer.chat_template is None:
        return list(tokenizer(prompt)["input_ids"])
    message = [{"role": "user", "content": prompt}]
    return list(
        tokenizer.apply_chat_template(
            message,
            add_generation_prompt=True,
            return_dict=False,
            enable_thinking=False,  # Qwen3's template: answer at once; other templates ignore it
        )
    )


def choose_device(name: str) -> torch.device:
    """Return the device of that name; ``auto`` is the first GPU, else the CPU.

    Raises:
        UsageError: It is not there, or nothing can be decoded on it.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"no device {name} here: use --device cpu or auto") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"cannot decode on {name}: use --device cpu, cuda or auto")
    return device


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Collect end tokens from the generation settings, the configuration and the tokenizer."""
    found: set[int] = set()
    for source in (model.generation_config, model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        found.update([] if ids is None else [ids] if isinstance(ids, int) else ids)
    return frozenset(found)


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(f"unknown dtype {name}: use auto, float32, bfloat16 or float16")
    return dtype


def _shared_vocabulary(
    spec: PairSpec, target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase
) -> int:
    """Return the vocabulary's size after comparing the tokens themselves, not their number."""
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours != theirs:
        number = len(set(ours.items()) ^ set(theirs.items()))
        raise UsageError(
            f"{spec.target} and {spec.draft} do not share a vocabulary ({number} tokens differ): "
            "choose a draft of the target's family"
        )
    return max(ours.values()) + 1

"""Tokenizers and untrained Llama models of a recipe's shape, and their optimizers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn import Parameter
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
POSITIONS = 2048
PRE_TOKENIZER = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
)


@dataclass(frozen=True)
class ModelRecipe:
    """Shape and training of one model, a table of ``recipe.toml``."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    steps: int
    learning_rate: float
    seed: int
    decay: float = 1.0  # share of the steps in which the learning rate falls to zero
    style: str | None = None  # of generated texts, see ``specbench.tasks.mini.writer``


def build_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on texts; every digit is a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = PRE_TOKENIZER
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def build_model(recipe: ModelRecipe, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Create an untrained Llama model with the recipe's shape."""
    torch.manual_seed(recipe.seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        intermediate_size=recipe.intermediate,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def build_optimizers(
    parameters: Iterable[tuple[str, Parameter]], rate: float
) -> list[torch.optim.Optimizer]:
    """Return Muon for the weight matrices and AdamW for the embeddings and norms."""
    named = list(parameters)
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in named if p.ndim < 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]

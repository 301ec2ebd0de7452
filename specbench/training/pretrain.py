"""Making the bundled pair: a tokenizer and two Llama models trained on the generated tasks.

The two models see the same facts in different styles (see ``specbench.tasks.mini.writer``). The
loss covers the answers only. Weight matrices learn with Muon, embeddings and norms with AdamW.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.tasks.mini import MODULES, generate
from specbench.tasks.mini.writer import Style

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
POSITIONS = 2048
IGNORED = -100  # label of a token without loss
WARMUP_STEPS = 100


@dataclass(frozen=True)
class ModelRecipe:
    """Shape and training of one model, a table of ``recipe.toml``."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    steps: int
    learning_rate: float
    style: Style
    seed: int


Report = Callable[[int, dict[str, float]], None]


def build_tokenizer(vocabulary: int, examples: int) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE tokenizer on training examples; every digit stays a token.

    Args:
        vocabulary: Number of tokens.
        examples: Training examples per task to learn the merges from.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(examples), trainer)
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


def _texts(examples: int) -> Iterator[str]:
    for name in MODULES:
        for index in range(examples):
            example = generate(name, "train", index)
            yield example.prompt
            yield example.reference or ""


def build_model(recipe: ModelRecipe, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Create an untrained Llama model of the recipe's shape."""
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


def train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    recipe: ModelRecipe,
    examples: dict[str, int],
    report: Report,
) -> None:
    """Train a model in place on freshly generated examples, none of them seen twice.

    Args:
        model: Model to train.
        tokenizer: Its tokenizer.
        recipe: Steps, learning rate and style.
        examples: Examples of each task in one step.
        report: Called after every step with its number and the loss per task.
    """
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim < 2 or "embed" in n]
    rate = recipe.learning_rate
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda step: min((step + 1) / WARMUP_STEPS, 1.0) * (1 - step / recipe.steps),
        )
        for optimizer in optimizers
    ]
    model.train()
    total = sum(examples.values())
    for step in range(recipe.steps):
        losses = {}
        for name, number in examples.items():
            indices = range(step * number, (step + 1) * number)
            ids, labels = batch(tokenizer, name, indices, recipe.style)
            with torch.autocast("cpu", torch.bfloat16):
                hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
                logits = model.lm_head(hidden).float()
            loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
            (loss * number / total).backward()
            losses[name] = loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        report(step + 1, losses)
    model.eval()


def batch(
    tokenizer: PreTrainedTokenizerFast, name: str, indices: range, style: Style
) -> tuple[Tensor, Tensor]:
    """Return token ids and next-token labels ``[B, T]``; prompts and padding carry no loss."""
    rows, labels = [], []
    for index in indices:
        example = generate(name, "train", index, style)
        prompt = tokenizer(example.prompt)["input_ids"]
        answer = tokenizer(example.reference, add_special_tokens=False)["input_ids"]
        answer = [*answer, tokenizer.eos_token_id]
        rows.append(prompt + answer[:-1])
        labels.append([IGNORED] * (len(prompt) - 1) + answer)
    return padded(rows, tokenizer.pad_token_id), padded(labels, IGNORED)


def padded(rows: list[list[int]], value: int) -> Tensor:
    """Fill rows up on the right to a common length, a multiple of 16: ``[B, T]``.

    So there are few distinct shapes, and the matrix kernels are prepared only once.
    """
    length = -(-max(map(len, rows)) // 16) * 16
    return torch.tensor([row + [value] * (length - len(row)) for row in rows])

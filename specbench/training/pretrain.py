"""Building the bundled pair: a tokenizer, two Llama models trained on the generated tasks, heads.

The two models see the same facts in different styles (see ``specbench.tasks.mini.writer``). The
loss covers only the answers. Muon trains the weight matrices, AdamW the embeddings and norms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.config import Loading
from specbench.engine.loading import load_pair
from specbench.errors import UsageError
from specbench.pairs.registry import ROLES, PairSpec
from specbench.tasks.mini import MODULES, generate
from specbench.tasks.mini.writer import Style
from specbench.tasks.task import load_task
from specbench.training.folder import check_writable, progress_bar
from specbench.training.material import IGNORED, Material, answer_batch
from specbench.training.recipe import head_recipe
from specbench.training.session import carry_out, prepare
from specbench.validation import load_toml

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
POSITIONS = 2048
WARMUP_STEPS = 100
LINE_EVERY = 50  # steps per line without a terminal


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


def build(recipe: Path, folder: Path, parts: Collection[str]) -> None:
    """Build parts of a pair; other parts are used from the folder unchanged.

    Raises:
        UsageError: The folder is not writable, or lacks a part that is needed and not built.
    """
    tables = load_toml(recipe, "recipe")
    folder = folder.resolve()  # a relative path could be mistaken for a hub id
    # Fail before an hour of training, not after it.
    check_writable(folder, "--output")
    missing = [r for r in ROLES if r not in parts and not (folder / r / "config.json").exists()]
    if "heads" in parts and missing:
        raise UsageError(
            f"{folder} has no {missing[0]}, which heads need for training: add --part {missing[0]}"
        )
    for role in ROLES:
        if role in parts:
            _build_model(tables, role, folder / role)
    if "heads" in parts:
        target, draft = (str(folder / role) for role in ROLES)
        spec = PairSpec(recipe.parent.name, target, draft, training=tables.get("heads", {}))
        pair = load_pair(spec, Loading(device="cpu", dtype="float32"))
        for task in map(load_task, tables["examples"]):
            head = folder / "heads" / task.name
            training = prepare(pair, task, head_recipe(spec, task, {}), head)
            with progress_bar(f"head {task.name}", training.recipe.steps) as draw:
                carry_out(training, head, lambda progress: draw(progress.step, str(progress)))


def _build_model(tables: dict[str, Any], role: str, folder: Path) -> None:
    recipe = ModelRecipe(**tables[role])
    sizes = tables["tokenizer"]
    tokenizer = build_tokenizer(task_texts(sizes["examples"]), sizes["vocabulary"])
    model = build_model(recipe, tokenizer)
    title = f"{role}, {model.num_parameters():,} parameters"
    with progress_bar(title, recipe.steps, every=LINE_EVERY) as draw:
        train(model, tokenizer, recipe, tables["examples"], draw)
    # Half the size on disk; the measured quality was the same within its interval.
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def build_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on texts; every digit is a token."""
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


def task_texts(examples: int) -> Iterator[str]:
    """Yield prompts and answers of some examples of each task."""
    for name in MODULES:
        for index in range(examples):
            example = generate(name, "train", index)
            yield example.prompt
            yield example.reference or ""


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


def train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    recipe: ModelRecipe,
    examples: dict[str, int],
    report: Callable[[int, str], None],
) -> None:
    """Train a model in place on generated examples, each used once.

    ``examples`` is the number of examples of each task per step; ``report`` gets each step's number
    and losses.
    """
    optimizers = build_optimizers(model, recipe.learning_rate)
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
        losses: dict[str, float] = {}
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
        shown = ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
        report(step + 1, f"loss {shown}")
    model.eval()


def build_optimizers(model: LlamaForCausalLM, rate: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the weight matrices and AdamW for the embeddings and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim < 2 or "embed" in n]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def batch(
    tokenizer: PreTrainedTokenizerFast, name: str, indices: range, style: Style
) -> tuple[Tensor, Tensor]:
    """Return token ids and next-token labels ``[B, T]`` of generated examples."""
    examples = [generate(name, "train", index, style) for index in indices]
    prompts = [tokenizer(example.prompt)["input_ids"] for example in examples]
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    return answer_batch(tokenizer, Material(examples, prompts), end, pad)

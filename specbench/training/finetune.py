"""Fine-tuning the draft on a task: the paper's baseline ``sd-finetuned-draft``.

A plain supervised loop over the task's training split; the target is neither loaded nor used. What
comes out is an ordinary model folder.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from specbench import __version__
from specbench.engine.loading import choose_device, encode, load_pretrained
from specbench.errors import RunError, UsageError
from specbench.files import clear_errors
from specbench.tasks.example import Example
from specbench.tasks.task import Task
from specbench.training.pretrain import IGNORED, padded

DESCRIPTION = "finetune.json"
# Learning rates of models narrower than this and of the others, where the user gives none.
SMALL_WIDTH, SMALL_RATE, LARGE_RATE = 512, 1e-3, 1e-5
WARM_UP = 0.05  # share of the steps
HELD_OUT = 64
MAX_GRADIENT = 1.0

Report = Callable[[int, float], None]


@dataclass(frozen=True)
class DraftRecipe:
    """How a draft is fine-tuned; the names are those of the options.

    Attributes:
        steps: Batches.
        batch_size: Examples in a batch; none is seen twice where the task has enough of them.
        learning_rate: AdamW's, after a short warm-up and before a cosine to zero; None takes what
            suits the model's width.
        seed: Decides the examples.

    Raises:
        UsageError: A value is out of range.
    """

    steps: int = 300
    batch_size: int = 16
    learning_rate: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size"):
            if getattr(self, name) < 1:
                option = name.replace("_", "-")
                raise UsageError(f"--{option} must be 1 or more, not {getattr(self, name)}")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise UsageError(f"--learning-rate must be above 0, not {self.learning_rate}")
        if self.seed < 0:
            raise UsageError(f"--seed must be 0 or more, not {self.seed}")

    def rate(self, step: int, width: int) -> float:
        """Return the learning rate of a step counted from 0, for a model of some hidden size."""
        peak = self.learning_rate or (SMALL_RATE if width < SMALL_WIDTH else LARGE_RATE)
        warm_up = max(1, round(WARM_UP * self.steps))
        cosine = (1 + math.cos(math.pi * step / self.steps)) / 2
        return peak * min(1.0, (step + 1) / warm_up) * cosine


def finetune_draft(
    draft: str, task: Task, recipe: DraftRecipe, folder: Path, device: str, report: Report
) -> dict[str, Any]:
    """Fine-tune a draft and save it as a model folder.

    Args:
        draft: Hugging Face id or folder of the model to start from.
        task: Gives the examples: prompts and reference answers of the training split.
        recipe: How long and how fast.
        folder: Where to; new or empty.
        device: ``auto``, or a PyTorch device.
        report: Called after every step with its number and loss.

    Returns:
        What ``finetune.json`` in the folder says: base, recipe, and held-out losses in nats per
        token of the answers before and after.

    Raises:
        UsageError: The model cannot be had, or the task has no training split or no references.
        RunError: The loss is no longer a number, or the folder cannot be written.
    """
    place = choose_device(device)
    tokenizer = load_pretrained(AutoTokenizer, draft)
    # Small updates would be lost in a half format, so the weights are float32 while they learn.
    model = load_pretrained(AutoModelForCausalLM, draft, dtype=torch.float32).to(place)
    stored = load_pretrained(AutoModelForCausalLM, draft, dtype="auto").dtype
    needed = recipe.steps * recipe.batch_size
    examples = _with_reference(task, task.examples("train", needed, recipe.seed))
    unseen = _with_reference(task, task.examples("train", HELD_OUT, recipe.seed + 1))
    started = time.perf_counter()
    before = _held_out_loss(model, tokenizer, unseen)
    _train(model, tokenizer, examples, recipe, report)
    after = _held_out_loss(model, tokenizer, unseen)
    description = {
        "base": draft,
        "task": task.name,
        "task_version": task.version,
        "recipe": asdict(recipe),
        "held_out_loss": {"n": len(unseen), "before": before, "after": after},
        "seconds": round(time.perf_counter() - started, 1),
        "versions": {"specbench": __version__, "torch": torch.__version__},
    }
    with _whole_folder(folder) as unfinished:
        model.to(stored).save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        (unfinished / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")
    return description


def _train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    recipe: DraftRecipe,
    report: Report,
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    for step in range(recipe.steps):
        first = step * recipe.batch_size
        chosen = [examples[(first + i) % len(examples)] for i in range(recipe.batch_size)]
        optimizer.param_groups[0]["lr"] = recipe.rate(
            step, model.config.get_text_config().hidden_size
        )
        loss = _loss(model, *_batch(tokenizer, chosen))
        if not loss.isfinite():
            raise RunError(
                f"the loss is {loss.item()} at step {step + 1}: start again with a lower "
                "--learning-rate; nothing was saved"
            )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT)
        optimizer.step()
        report(step + 1, loss.item())
    model.eval()


def _loss(model: PreTrainedModel, ids: Tensor, labels: Tensor) -> Tensor:
    """Mean loss over the answers' tokens."""
    device = model.device
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        logits = model(input_ids=ids.to(device), use_cache=False).logits
    flat = logits.float().flatten(0, 1)
    return cross_entropy(flat, labels.to(device).flatten(), ignore_index=IGNORED)


@torch.no_grad()
def _held_out_loss(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example]
) -> float:
    model.eval()
    return _loss(model, *_batch(tokenizer, examples)).item()


def _batch(
    tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example]
) -> tuple[Tensor, Tensor]:
    """Token ids and next-token labels ``[B, T]``; prompts and padding carry no loss."""
    rows, labels = [], []
    for example in examples:
        prompt = encode(tokenizer, example.prompt)
        answer = tokenizer(example.reference, add_special_tokens=False)["input_ids"]
        answer = [*answer, tokenizer.eos_token_id]
        rows.append(prompt + answer[:-1])
        labels.append([IGNORED] * (len(prompt) - 1) + answer)
    return padded(rows, tokenizer.eos_token_id), padded(labels, IGNORED)


def _with_reference(task: Task, examples: list[Example]) -> list[Example]:
    if not all(example.reference for example in examples):
        raise UsageError(
            f"{task.name} has examples without a reference answer: choose a task of references"
        )
    return examples


@contextmanager
def _whole_folder(folder: Path) -> Iterator[Path]:
    """Give a folder beside the wanted one that takes its place once it is filled."""
    unfinished = folder.with_name(f".{folder.name}.partial")
    with clear_errors(folder):
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            yield unfinished
            with suppress(FileNotFoundError):
                folder.rmdir()  # an empty one may be there
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

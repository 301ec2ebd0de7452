"""Fine-tuning the draft on a task: the paper's baseline ``sd-finetuned-draft``.

A plain supervised loop over the task's training split; the target is neither loaded nor used. What
comes out is an ordinary model folder.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from specbench.engine.loading import choose_device
from specbench.engine.prompts import encode
from specbench.engine.runner import Runner
from specbench.engine.sources import decoder_config, load_pretrained, load_weights, moved
from specbench.engine.tokenizers import end_tokens
from specbench.errors import RunError, UsageError
from specbench.example import Example
from specbench.experiment.plan import shown_path
from specbench.files import cannot_write, clear_errors
from specbench.tasks.task import Task
from specbench.training.draft_recipe import DraftRecipe
from specbench.training.material import Material, readable
from specbench.training.pretrain import IGNORED, padded
from specbench.version import __version__

DESCRIPTION = "finetune.json"
HELD_OUT = 64
MAX_GRADIENT = 1.0

Report = Callable[[int, float], None]
Batch = Callable[[Material], tuple[Tensor, Tensor]]


def finetune_draft(
    draft: str,
    task: Task,
    recipe: DraftRecipe,
    folder: Path,
    device: str,
    report: Report,
    revision: str | None = None,
) -> dict[str, Any]:
    """Fine-tune a draft and save it as a model folder.

    Args:
        draft: Hugging Face id or folder of the model to start from.
        task: Gives the examples: prompts and reference answers of the training split.
        recipe: How long and how fast.
        folder: Where to; new or empty.
        device: ``auto``, or a PyTorch device.
        report: Called after every step with its number and loss.
        revision: Branch, tag or commit of the draft's repository; None is the newest.

    Returns:
        What ``finetune.json`` in the folder says: base, recipe, how many examples were left out
        for their length, and held-out losses in nats per token of the answers before and after.

    Raises:
        UsageError: The model cannot be had or decoded with, the task has no training split or no
            references, or most of its prompts are too long.
        RunError: The loss is no longer a number, or the folder cannot be written.
    """
    place = choose_device(device)
    examples = _referenced(task, "train", recipe.steps * recipe.batch_size, recipe.seed)
    held_out = _referenced(task, "held-out", HELD_OUT, 0)
    config = decoder_config(draft, revision=revision)
    stored = config.dtype or torch.float32
    tokenizer = load_pretrained(AutoTokenizer, draft, revision=revision)
    # Small updates would be lost in a half format, so the weights are float32 while they learn.
    model: Any = moved(load_weights(draft, config, dtype=torch.float32, revision=revision), place)
    runner = Runner(model, len(tokenizer))
    fingerprint, recipe = runner.fingerprint(), recipe.for_width(runner.hidden_size)
    batch = partial(_batch, tokenizer, _end_token(model, tokenizer))

    def read(example: Example) -> list[int]:
        return encode(
            tokenizer,
            example.prompt,
            passage=example.passage,
            prompt_format=task.prompt_format,
            limit=recipe.max_prompt_tokens,
        ).ids

    known = readable(examples, read, f"train examples of {task.name}")
    unseen = readable(held_out, read, f"held-out examples of {task.name}")
    with _whole_folder(folder) as unfinished:
        started = time.perf_counter()
        before = _held_out_loss(model, batch, unseen, recipe.batch_size)
        _train(model, batch, known, recipe, report)
        after = _held_out_loss(model, batch, unseen, recipe.batch_size)
        description = {
            "base": shown_path(draft),
            "base_fingerprint": fingerprint,
            "task": task.name,
            "task_version": task.version,
            "prompt_format": task.prompt_format,
            "data": task.provenance(),
            "left_out": {"train": known.left_out, "held-out": unseen.left_out},
            "recipe": asdict(recipe),
            "held_out_loss": {"n": len(unseen.examples), "before": before, "after": after},
            "seconds": round(time.perf_counter() - started, 1),
            "versions": {"specbench": __version__, "torch": torch.__version__},
        }
        model.to(stored).save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        (unfinished / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")
    return description


def _train(
    model: PreTrainedModel,
    batch: Batch,
    material: Material,
    recipe: DraftRecipe,
    report: Report,
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    for step in range(recipe.steps):
        optimizer.param_groups[0]["lr"] = recipe.rate(step)
        chosen = material.taken(step * recipe.batch_size, recipe.batch_size)
        loss = _loss(model, *batch(chosen))
        optimizer.zero_grad()
        loss.backward()
        gradient = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT)
        for value in (loss, gradient):
            if not value.isfinite():
                raise RunError(
                    f"the loss or its gradient is {value.item()} at step {step + 1}: start again "
                    "with a lower --learning-rate; nothing was saved"
                )
        optimizer.step()
        report(step + 1, loss.item())
    model.eval()


def _loss(model: PreTrainedModel, ids: Tensor, labels: Tensor) -> Tensor:
    """Mean loss over the answers' tokens.

    Only those tokens get logits, which for a large vocabulary take most of the memory.
    """
    device = model.device
    labels = labels.to(device)
    wanted = labels != IGNORED
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        hidden = model.get_decoder()(input_ids=ids.to(device), use_cache=False).last_hidden_state
        logits = model.get_output_embeddings()(hidden[wanted])
    return cross_entropy(logits.float(), labels[wanted])


@torch.no_grad()
def _held_out_loss(model: PreTrainedModel, batch: Batch, material: Material, size: int) -> float:
    """Mean loss over the tokens of all answers, read some examples at a time."""
    total, tokens = 0.0, 0
    count = len(material.examples)
    for first in range(0, count, size):
        ids, labels = batch(material.taken(first, min(size, count - first)))
        number = int((labels != IGNORED).sum())
        total += _loss(model, ids, labels).item() * number
        tokens += number
    return total / tokens


def _batch(
    tokenizer: PreTrainedTokenizerBase, end: int, material: Material
) -> tuple[Tensor, Tensor]:
    """Token ids and next-token labels ``[B, T]``; prompts and padding carry no loss."""
    rows, labels = [], []
    for example, prompt in zip(material.examples, material.prompts, strict=True):
        answer = tokenizer(example.reference, add_special_tokens=False)["input_ids"]
        answer = [*answer, end]
        rows.append(prompt + answer[:-1])
        labels.append([IGNORED] * (len(prompt) - 1) + answer)
    return padded(rows, end), padded(labels, IGNORED)


def _end_token(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the token that ends an answer, with a chat template the one it writes there.

    Gemma's answers end with another token than its tokenizer's end token.
    """
    if tokenizer.chat_template is not None:
        known = end_tokens(model, tokenizer)
        turns = [{"role": role, "content": "."} for role in ("user", "assistant")]
        for token in reversed(list(tokenizer.apply_chat_template(turns, return_dict=False))):
            if token in known:
                return int(token)
    if tokenizer.eos_token_id is None:
        raise UsageError("the draft's tokenizer has no end token: choose a draft that has one")
    return int(tokenizer.eos_token_id)


def _referenced(task: Task, split: str, count: int, seed: int) -> list[Example]:
    """Examples, each with a reference answer."""
    examples = task.examples(split, count, seed)
    if not all(example.reference for example in examples):
        raise UsageError(
            f"{task.name} has examples without a reference answer: choose a task of references"
        )
    return examples


@contextmanager
def _whole_folder(folder: Path) -> Iterator[Path]:
    """Give a folder beside the wanted one that takes its place once it is filled.

    It is made at once, so that what cannot be written is known before anything is trained.
    """
    unfinished = folder.with_name(f".{folder.name}.partial")
    new = [parent for parent in folder.parents if not parent.exists()]
    with clear_errors(folder):
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            unfinished.mkdir(parents=True)
            yield unfinished
            with suppress(FileNotFoundError):
                folder.rmdir()  # an empty one may be there
            unfinished.rename(folder)
        except SafetensorError as error:  # what it says of a full disk
            raise RunError(cannot_write(folder, OSError(str(error)))) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
            with suppress(OSError):  # they hold the folder, unless something went wrong
                for parent in new:
                    parent.rmdir()

"""Fine-tuning the draft on a task: the paper's baseline ``sd-finetuned-draft``.

This is plain supervised training without the target. The result is an ordinary model folder.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from specbench import __version__
from specbench.engine.device import choose_device
from specbench.engine.runner import Runner
from specbench.engine.sources import decoder_config, end_tokens, load_pretrained, load_weights
from specbench.errors import RunError, UsageError
from specbench.files import cannot_write, clear_errors, make_folder, shown_path, sync, sync_tree
from specbench.tasks.example import Example
from specbench.tasks.task import Task
from specbench.training.material import (
    IGNORED,
    Material,
    answer_batch,
    describe_data,
    read_material,
)
from specbench.training.objective import descend
from specbench.training.recipe import DraftRecipe

DESCRIPTION = "finetune.json"
HELD_OUT = 64

ShowStep = Callable[[int, str], None]
Batch = Callable[[Material], tuple[Tensor, Tensor]]


def finetune_draft(
    draft: str,
    task: Task,
    recipe: DraftRecipe,
    folder: Path,
    device: str,
    report: ShowStep,
    revision: str | None = None,
) -> dict[str, Any]:
    """Fine-tune a draft and save it to a new or empty model folder; return ``finetune.json``.

    ``report`` gets the number of each finished step and its loss as text. Losses are in nats per
    token of the answers.
    """
    torch_device = choose_device(device)
    examples = _referenced(task, "train", recipe.steps * recipe.batch_size, recipe.seed)
    held_out = _referenced(task, "held-out", HELD_OUT, 0)
    config = decoder_config(draft, revision=revision)
    stored = config.dtype or torch.float32
    tokenizer = load_pretrained(AutoTokenizer, draft, revision=revision)
    # Half precision would lose small updates, so training uses float32.
    model: Any = load_weights(draft, config, dtype=torch.float32, revision=revision)
    model.to(torch_device)
    runner = Runner(model, len(tokenizer))
    fingerprint, recipe = runner.fingerprint(), recipe.for_width(runner.hidden_size)
    end = _end_token(model, tokenizer)
    batch = partial(answer_batch, tokenizer, end=end, pad=end)
    limit = recipe.max_prompt_tokens
    material = read_material(tokenizer, task, examples, "train", limit)
    unseen = read_material(tokenizer, task, held_out, "held-out", limit)
    with _atomic_folder(folder) as unfinished:
        started = time.perf_counter()
        before = _held_out_loss(model, batch, unseen, recipe.batch_size)
        optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
        model.train()
        for step in range(recipe.steps):
            optimizer.param_groups[0]["lr"] = recipe.rate(step)
            chosen = material.taken(step * recipe.batch_size, recipe.batch_size)
            loss = _loss(model, *batch(chosen))
            descend(loss, model, optimizer, step, "; nothing was saved")
            report(step + 1, f"loss {loss.item():.3f}")
        model.eval()
        after = _held_out_loss(model, batch, unseen, recipe.batch_size)
        description = {
            "base": shown_path(draft),
            "base_fingerprint": fingerprint,
            **describe_data(task, {"train": material.left_out, "held-out": unseen.left_out}),
            "recipe": recipe.model_dump(),
            "held_out_loss": {"n": len(unseen.examples), "before": before, "after": after},
            "seconds": round(time.perf_counter() - started, 1),
            "versions": {"specbench": __version__, "torch": torch.__version__},
        }
        model.to(stored).save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        (unfinished / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")
    return description


def _loss(model: PreTrainedModel, ids: Tensor, labels: Tensor) -> Tensor:
    """Mean loss over the answers' tokens; only these need logits, which saves most memory."""
    device = model.device
    labels = labels.to(device)
    in_answer = labels != IGNORED
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        hidden = model.get_decoder()(input_ids=ids.to(device), use_cache=False).last_hidden_state
        logits = model.get_output_embeddings()(hidden[in_answer])
    return cross_entropy(logits.float(), labels[in_answer])


@torch.no_grad()
def _held_out_loss(model: PreTrainedModel, batch: Batch, material: Material, size: int) -> float:
    """Mean loss over the tokens of all answers."""
    total, tokens = 0.0, 0
    count = len(material.examples)
    for first in range(0, count, size):
        ids, labels = batch(material.taken(first, min(size, count - first)))
        number = int((labels != IGNORED).sum())
        total += _loss(model, ids, labels).item() * number
        tokens += number
    return total / tokens


def _end_token(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the token that ends an answer; in Gemma's chat template it differs from EOS."""
    if tokenizer.chat_template is not None:
        end_ids = end_tokens(model.generation_config, model.config, tokenizer)
        turns = [{"role": role, "content": "."} for role in ("user", "assistant")]
        for token in reversed(list(tokenizer.apply_chat_template(turns, return_dict=False))):
            if token in end_ids:
                return int(token)
    if tokenizer.eos_token_id is None:
        raise UsageError("the draft's tokenizer has no end token: choose a draft that has one")
    return int(tokenizer.eos_token_id)


def _referenced(task: Task, split: str, count: int, seed: int) -> list[Example]:
    examples = task.examples(split, count, seed)
    if not all(example.reference for example in examples):
        raise UsageError(
            f"{task.name} has examples without a reference answer: choose a task with references"
        )
    return examples


@contextmanager
def _atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, and rename it to ``folder`` once it is complete."""
    unfinished = folder.with_name(f".{folder.name}.partial")
    new = [parent for parent in folder.parents if not parent.exists()]
    with clear_errors(folder):
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            unfinished.mkdir(parents=True)
            yield unfinished
            with suppress(FileNotFoundError):
                folder.rmdir()  # it may exist, empty
            sync_tree(unfinished)
            make_folder(folder.parent)
            unfinished.rename(folder)
            sync(folder.parent)
        except SafetensorError as error:  # raised for a full disk
            raise RunError(cannot_write(folder, OSError(str(error)))) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
            with suppress(OSError):  # only empty parents go, after a failure
                for parent in new:
                    parent.rmdir()

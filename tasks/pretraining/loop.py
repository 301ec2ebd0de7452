"""The training of a model: steps in bfloat16 with float32 masters, checkpoints, learning curve."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from shutil import which
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from pretraining.models import ModelRecipe, build_optimizers
from pretraining.texts import IGNORED, HeldOut, Texts
from specbench.errors import UsageError
from specbench.files import make_folder, replacing, write_atomically
from specbench.runs.labels import LOG
from specbench.training.recipe import CHECKPOINT

WARMUP_STEPS = 100
MEASURE_EVERY = 100  # steps between two rows of the learning curve
SAVE_EVERY = 120.0  # seconds between two checkpoints


def train(
    model: LlamaForCausalLM,
    texts: Texts,
    recipe: ModelRecipe,
    folder: Path,
    report: Callable[[int, str], None],
) -> None:
    """Train a model in place, from the last checkpoint in the folder if there is one.

    ``report`` gets each step's number and losses. ``training.csv`` has the learning curve; its
    losses are in nats, on held-out texts per token and per character.

    Raises:
        UsageError: The checkpoint is of another recipe.
    """
    masters = {n: p.detach().float().clone() for n, p in model.named_parameters()}
    model.bfloat16().train()
    named = [(name, torch.nn.Parameter(master)) for name, master in masters.items()]
    optimizers = build_optimizers(named, recipe.learning_rate)
    run = _loss
    if texts.one_shape and can_compile():
        if model.device.type == "cpu":
            # Compiled, the plain form of attention is faster there than the fused kernel.
            model.set_attn_implementation("eager")
        run = torch.compile(_loss)
    saved, began = time.perf_counter(), time.perf_counter()
    first, curve, spent = _resume(folder, recipe, named, optimizers)
    _copy(named, model)
    for step in range(first, recipe.steps):
        rate = recipe.learning_rate * _schedule(step, recipe)
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = rate
        losses: dict[str, list[float]] = {}
        for batch in texts.batches(step, recipe.style):
            loss = run(model, batch.ids.to(model.device), batch.labels.to(model.device))
            (loss * batch.share).backward()
            losses.setdefault(batch.name, []).append(loss.item())
        for (_, master), parameter in zip(named, model.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad, parameter.grad = parameter.grad.float(), None
        torch.nn.utils.clip_grad_norm_([master for _, master in named], 1.0)
        for optimizer in optimizers:
            optimizer.step()
        _copy(named, model)

        means = {name: sum(each) / len(each) for name, each in losses.items()}
        now = spent + time.perf_counter() - began
        done, last = step + 1, step + 1 == recipe.steps
        if done % MEASURE_EVERY == 0 or last:
            row = {"step": done, "seconds": now, "learning_rate": rate}
            row |= {f"loss_{name}": value for name, value in means.items()}
            curve.append(row | measured(model, texts.held_out))
        if time.perf_counter() - saved > SAVE_EVERY or last:
            _save(folder, recipe, done, named, optimizers, curve, now)
            saved = time.perf_counter()
        left = (now - spent) / (done - first) * (recipe.steps - done) / 60
        shown = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
        report(done, f"loss {shown}, about {left:.0f} min left")
    model.eval()


@torch.no_grad()
def measured(model: LlamaForCausalLM, held_out: dict[str, HeldOut]) -> dict[str, float]:
    """Return the mean loss on held-out texts, in nats per token and per character."""
    losses = {}
    for name, texts in held_out.items():
        total, tokens = 0.0, 0
        for batch in texts.batches:
            count = int((batch.labels != IGNORED).sum())
            loss = _loss(model, batch.ids.to(model.device), batch.labels.to(model.device))
            total += loss.item() * count
            tokens += count
        losses[f"held_out_{name}_per_token"] = total / tokens
        losses[f"held_out_{name}_per_character"] = total / texts.characters
    return losses


def _loss(model: LlamaForCausalLM, ids: Tensor, labels: Tensor) -> Tensor:
    logits = model(input_ids=ids, use_cache=False).logits.float()
    return cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def _schedule(step: int, recipe: ModelRecipe) -> float:
    """Return the factor of the learning rate: warm-up, then constant, then linear to zero."""
    return min((step + 1) / WARMUP_STEPS, 1.0, (1 - step / recipe.steps) / recipe.decay)


def _copy(named: list[tuple[str, torch.nn.Parameter]], model: LlamaForCausalLM) -> None:
    with torch.no_grad():
        for (_, master), parameter in zip(named, model.parameters(), strict=True):
            parameter.copy_(master)


def _save(
    folder: Path,
    recipe: ModelRecipe,
    done: int,
    named: list[tuple[str, torch.nn.Parameter]],
    optimizers: list[torch.optim.Optimizer],
    curve: list[dict[str, float]],
    seconds: float,
) -> None:
    make_folder(folder)
    state = {
        "recipe": asdict(recipe),
        "step": done,
        "seconds": seconds,
        "masters": {name: master.detach() for name, master in named},
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "curve": curve,
    }
    with replacing(folder / CHECKPOINT) as file:
        torch.save(state, file)
    write_atomically(folder / LOG, pd.DataFrame(curve).to_csv(index=False))


def _resume(
    folder: Path,
    recipe: ModelRecipe,
    named: list[tuple[str, torch.nn.Parameter]],
    optimizers: list[torch.optim.Optimizer],
) -> tuple[int, list[dict[str, Any]], float]:
    """Restore the last checkpoint; return its step, learning curve and seconds so far."""
    path = folder / CHECKPOINT
    if not path.exists():
        return 0, [], 0.0
    state = torch.load(path, weights_only=True, map_location=named[0][1].device)
    # More or fewer steps only change the schedule.
    if state["recipe"] | {"steps": 0} != asdict(recipe) | {"steps": 0}:
        raise UsageError(f"{path} is of another recipe: remove it, or choose another --output")
    with torch.no_grad():
        for name, master in named:
            master.copy_(state["masters"][name])
    for optimizer, stored in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(stored)
    return state["step"], state["curve"], state["seconds"]


def can_compile() -> bool:
    """Return whether there is a C++ compiler."""
    return any(which(name) for name in ("g++", "clang++", "c++"))

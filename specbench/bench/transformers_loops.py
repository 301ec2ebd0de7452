"""Transformers' own loops over the very same models: ``generate`` and assisted generation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from specbench.bench.forced import forced_in_transformers
from specbench.bench.plan import Bench, System
from specbench.bench.turn import Decoder, Prompts, Turn, request_key
from specbench.decoding.sampling import uniforms
from specbench.engine.clock import now
from specbench.engine.loading import LoadedPair

ENSEMBLE = "assistant_ensemble_weight"


class MissingError(Exception):
    """This version of Transformers has no such loop."""


class Watch(StoppingCriteria):
    """Stops nothing; notes how long the texts are after every round, and when the first ended."""

    def __init__(self, device: torch.device) -> None:
        self.lengths: list[int] = []
        self.begun = 0.0
        self._device = device

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """Say of each text that it goes on."""
        if not self.lengths:
            self.begun = now(self._device)
        self.lengths.append(input_ids.shape[1])
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def transformers_decoder(bench: Bench, system: System, pair: LoadedPair) -> Decoder:
    """Return Transformers' loop of a system's method.

    Args:
        bench: What all systems share.
        system: What is timed.
        pair: The models.

    Raises:
        MissingError: This version has no such loop.
    """
    target: Any = pair.target.model
    draft = pair.draft.model if system.draft_length else None
    options = _options(bench, system)

    def decode(prompts: Prompts, limit: int, key: str) -> Turn:
        device = pair.target.device
        inputs = torch.tensor(prompts, device=device)
        settings = GenerationConfig(max_new_tokens=limit, **options)
        watch = Watch(device)
        n = system.draft_length
        chances = uniforms(bench.seed, request_key(key, 0), limit, n)[:, n : 2 * n].tolist()
        torch.manual_seed(bench.seed)
        with _plain(target, draft, n), forced_in_transformers(system.acceptance, chances):
            began = now(device)
            target.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                generation_config=settings,
                assistant_model=draft,
                stopping_criteria=StoppingCriteriaList([watch]),
            )
            ended = now(device)
        return _turn(watch, inputs, limit, n, began, ended)

    return decode


def _turn(
    watch: Watch, inputs: Tensor, limit: int, draft_length: int, began: float, ended: float
) -> Turn:
    """Count all rounds but the first, which cannot be told from reading the prompt."""
    texts, end = len(inputs), inputs.shape[1] + limit
    steps = list(zip(watch.lengths, watch.lengths[1:], strict=False))
    proposed = [min(draft_length, end - before - 1) for before, _ in steps]
    accepted = [after - before - 1 for before, after in steps]
    rejected = sum(kept < drafts for kept, drafts in zip(accepted, proposed, strict=True))
    return Turn(
        output_tokens=texts * (watch.lengths[-1] - watch.lengths[0]),
        rounds=len(steps),
        text_rounds=texts * len(steps),
        proposed=sum(proposed),
        judged=sum(accepted) + rejected,
        accepted=sum(accepted),
        prefill_seconds=watch.begun - began,
        decode_seconds=ended - watch.begun,
    )


def _options(bench: Bench, system: System) -> dict[str, Any]:
    options: dict[str, Any] = {"do_sample": False}
    if bench.temperature:
        options = {"do_sample": True, "temperature": bench.temperature, "top_k": 0, "top_p": 1.0}
    if weight := dict(system.parameters).get("weight"):
        if not hasattr(GenerationConfig(), ENSEMBLE):
            raise MissingError(f"this version has no {ENSEMBLE}")
        options[ENSEMBLE] = weight
    return options


@contextmanager
def _plain(target: Any, draft: PreTrainedModel | None, draft_length: int) -> Iterator[None]:
    """Put the models' own settings aside: end tokens, temperatures, numbers of drafts."""
    models = [(target, GenerationConfig())]
    if draft is not None:
        # Transformers reads these off the assistant, not off the arguments of generate.
        settings = GenerationConfig(
            num_assistant_tokens=draft_length,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
        )
        models.append((draft, settings))
    kept = [model.generation_config for model, _ in models]
    for model, settings in models:
        model.generation_config = settings
    try:
        yield
    finally:
        for (model, _), settings in zip(models, kept, strict=True):
            model.generation_config = settings

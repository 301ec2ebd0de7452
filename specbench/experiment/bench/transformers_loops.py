"""Transformers' own ``generate`` and assisted generation with the same models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList
from transformers.generation import utils

from specbench.decoding.sampling import uniforms
from specbench.engine.device import now
from specbench.engine.packing import unpacked
from specbench.engine.pair import LoadedPair
from specbench.experiment.bench.decoders import Decoder, PromptTokens, Timing, request_key
from specbench.experiment.bench.plan import BenchSettings, System

ENSEMBLE = "assistant_ensemble_weight"
DECISION = "_speculative_sampling"  # Transformers' function that accepts drafts


ONE_VOCABULARY = "Transformers' assisted generation needs a draft with all tokens of the target"


class MissingError(Exception):
    """This version of Transformers lacks a feature that a system needs."""


def transformers_decoder(settings: BenchSettings, system: System, pair: LoadedPair) -> Decoder:
    """Return a decoder that uses Transformers' implementation of a system's method.

    Raises:
        MissingError: This version does not implement the method, or not for this pair.
    """
    n = system.cell.draft_length
    target: Any = pair.runners[0].model
    draft = pair.runners[1].model if n else None
    if n and pair.runners[1].present is not None:
        raise MissingError(ONE_VOCABULARY)
    options = sampling_options(settings.temperature, system.cell.values.get("weight"))

    def decode(prompts: PromptTokens, limit: int, key: str) -> Timing:
        device = pair.target.device
        inputs = torch.tensor(prompts, device=device)
        lengths = _Lengths(device)
        draws = uniforms(settings.seed, request_key(key, 0), limit, n)[:, n : 2 * n].tolist()
        torch.manual_seed(settings.seed)
        forced = forced_in_transformers(system.acceptance, draws)
        with own_settings(target, draft, n), forced, unpacked(target, draft or target):
            began = now(device)
            target.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                generation_config=GenerationConfig(max_new_tokens=limit, **options),
                assistant_model=draft,
                stopping_criteria=StoppingCriteriaList([lengths]),
            )
            ended = now(device)
        return _turn(lengths, inputs, limit, n, began, ended)

    return decode


@contextmanager
def forced_in_transformers(rate: float | None, draws: Sequence[Sequence[float]]) -> Iterator[None]:
    """Force the acceptance of Transformers' assisted generation within the context.

    Every drafted token is accepted with probability ``rate``; None forces nothing. ``draws`` are
    one uniform number per round and drafted token. They equal those of specbench's loop, so that
    both accept the same numbers of drafts.

    Raises:
        MissingError: This version has no function to replace.
    """
    if rate is None:
        yield
        return
    decide: Callable[..., Any] | None = getattr(utils, DECISION, None)
    if decide is None:
        raise MissingError(f"this version of Transformers has no {DECISION}")
    remaining = iter(draws)

    def constant(ids: Tensor, logits: Tensor, drafted: int, *rest: Any, **options: Any) -> Any:
        tokens, _ = decide(ids, logits, drafted, *rest, **options)
        numbers, accepted = next(remaining), 0
        while accepted < drafted and numbers[accepted] < rate:
            accepted += 1
        drafts = ids[:, ids.shape[1] - drafted :]
        return torch.cat((drafts[:, :accepted], tokens[:, -1:]), -1), accepted

    setattr(utils, DECISION, constant)
    try:
        yield
    finally:
        setattr(utils, DECISION, decide)


class _Lengths(StoppingCriteria):
    """Records the text length after every round and the end of the first round; never stops."""

    def __init__(self, device: torch.device) -> None:
        self.lengths: list[int] = []
        self.first_ended = 0.0
        self._device = device

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        if not self.lengths:
            self.first_ended = now(self._device)
        self.lengths.append(input_ids.shape[1])
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _turn(
    seen: _Lengths, inputs: Tensor, limit: int, draft_length: int, began: float, ended: float
) -> Timing:
    """Count all rounds but the first, which cannot be separated from reading the prompt."""
    texts, end = len(inputs), inputs.shape[1] + limit
    steps = list(zip(seen.lengths, seen.lengths[1:], strict=False))
    proposed = [min(draft_length, end - before - 1) for before, _ in steps]
    accepted = [after - before - 1 for before, after in steps]
    rejected = sum(
        accepted_drafts < drafts for accepted_drafts, drafts in zip(accepted, proposed, strict=True)
    )
    return Timing(
        output_tokens=texts * (seen.lengths[-1] - seen.lengths[0]),
        rounds=len(steps),
        text_rounds=texts * len(steps),
        proposed=sum(proposed),
        judged=sum(accepted) + rejected,
        accepted=sum(accepted),
        prefill_seconds=seen.first_ended - began,
        decode_seconds=ended - seen.first_ended,
    )


def sampling_options(temperature: float, weight: float | None) -> dict[str, Any]:
    """Return the options of ``generate`` for a temperature and a weight on the target.

    Raises:
        MissingError: This version has no such weight.
    """
    options: dict[str, Any] = {"do_sample": False}
    if temperature:
        options = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    if weight:
        if not hasattr(GenerationConfig(), ENSEMBLE):
            raise MissingError(f"this version of Transformers has no {ENSEMBLE}")
        options[ENSEMBLE] = weight
    return options


@contextmanager
def own_settings(target: Any, draft: PreTrainedModel | None, draft_length: int) -> Iterator[None]:
    """Replace the models' own generation settings within the context.

    The draft, if any, drafts ``draft_length`` tokens in every round.
    """
    models = [(target, GenerationConfig())]
    if draft is not None:
        # Transformers reads these from the assistant, not from the arguments of generate.
        settings = GenerationConfig(
            num_assistant_tokens=draft_length,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
        )
        models.append((draft, settings))
    earlier = [model.generation_config for model, _ in models]
    for model, settings in models:
        model.generation_config = settings
    try:
        yield
    finally:
        for (model, _), settings in zip(models, earlier, strict=True):
            model.generation_config = settings

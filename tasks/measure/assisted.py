"""Transformers' own loops, ``generate`` and assisted generation, with the models of a pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import nan
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList
from transformers.generation import utils

from specbench.decoding.loop import MICROSECOND, DecodeOptions, Request
from specbench.decoding.records import Generation, RoundRecord
from specbench.decoding.sampling import uniforms
from specbench.engine.device import now
from specbench.engine.packing import unpacked
from specbench.engine.pair import LoadedPair
from specbench.errors import require
from specbench.methods.method import Rates

DECISION = "_speculative_sampling"  # Transformers' function that accepts drafts


class Assisted:
    """Decodes by Transformers' assisted generation, or without drafts by ``generate``.

    Args:
        pair: The pair.
        draft_length: Tokens drafted per round; 0 for ``generate``.
        acceptance: Rates at which drafts are accepted by force; None forces nothing.

    Raises:
        UsageError: This version of Transformers cannot do so, or not with this pair.
    """

    def __init__(
        self, pair: LoadedPair, draft_length: int, acceptance: Rates | None = None
    ) -> None:
        target, draft = pair.runners
        require(
            not draft_length or draft.present is None,
            "Transformers' assisted generation needs a draft with all tokens of the target: choose "
            "another draft",
        )
        require(
            acceptance is None or hasattr(utils, DECISION),
            f"this version of Transformers has no {DECISION}: install a newer one",
        )
        self._pair, self._draft_length, self._acceptance = pair, draft_length, acceptance
        self._target: Any = target.model
        self._draft = draft.model if draft_length else None

    def decode(
        self, requests: Sequence[Request], options: DecodeOptions
    ) -> Iterator[tuple[int, Generation]]:
        """Decode texts as ``decode_all`` does, in batches that are not refilled.

        All prompts have one length, and all texts are as long as the limit. The first round, which
        cannot be separated from reading the prompt, is not among the rounds. Drafts are forced by
        the uniform numbers of ``decode_all``, so that both accept the same numbers of drafts.
        """
        for start in range(0, len(requests), options.batch_size):
            batch = requests[start : start + options.batch_size]
            yield from enumerate(self._decode(batch, options), start)

    def _decode(self, batch: Sequence[Request], options: DecodeOptions) -> Iterator[Generation]:
        device, n, limit = self._pair.target.device, self._draft_length, options.max_new_tokens
        inputs = torch.tensor([[*request.prompt] for request in batch], device=device)
        seen = _Lengths(device)
        draws = uniforms(options.seed, batch[0].key, limit, n)[:, n : 2 * n].tolist()
        torch.manual_seed(options.seed)
        with (
            forced_in_transformers(self._acceptance, draws),
            unpacked(self._target, self._draft or self._target),
        ):
            began = now(device)
            texts = self._generate(inputs, options.sampling.temperature, seen, max_new_tokens=limit)
            ended = now(device)
        prompt_tokens = inputs.shape[1]
        rounds = list(_rounds(seen.lengths, prompt_tokens + limit, n))
        share = 1 / len(batch)
        decode_seconds = round(share * (ended - seen.first_ended), MICROSECOND)
        for tokens in texts[:, prompt_tokens:].tolist():
            yield Generation(
                token_ids=tokens,
                text=self._pair.text_of(tokens),
                prompt_tokens=prompt_tokens,
                output_tokens=len(tokens),
                stopped_by="length",
                prefill_seconds=round(share * (seen.first_ended - began), MICROSECOND),
                decode_seconds=decode_seconds,
                draft_seconds=nan,
                verify_seconds=nan,
                accept_seconds=nan,
                latency_seconds=round(ended - began, MICROSECOND),
                rounds=rounds,
                shared_rounds=share * len(rounds),
                full_rounds=len(rounds),
                full_seconds=decode_seconds,
            )

    def _generate(
        self, inputs: Tensor, temperature: float, *criteria: StoppingCriteria, **options: Any
    ) -> Tensor:
        """Continue texts ``[B, T]`` without the models' own settings."""
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature:
            sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        models: list[tuple[Any, GenerationConfig]] = [(self._target, GenerationConfig())]
        if self._draft is not None:
            # Transformers reads these from the assistant, not from the arguments of generate.
            settings = GenerationConfig(
                num_assistant_tokens=self._draft_length,
                num_assistant_tokens_schedule="constant",
                assistant_confidence_threshold=0.0,
            )
            models.append((self._draft, settings))
        earlier = [model.generation_config for model, _ in models]
        for model, settings in models:
            model.generation_config = settings
        try:
            texts: Tensor = self._target.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                generation_config=GenerationConfig(**sampling, **options),
                assistant_model=self._draft,
                stopping_criteria=StoppingCriteriaList(criteria),
            )
            return texts
        finally:
            for (model, _), settings in zip(models, earlier, strict=True):
                model.generation_config = settings


@contextmanager
def forced_in_transformers(
    acceptance: Rates | None, draws: Sequence[Sequence[float]]
) -> Iterator[None]:
    """Force the acceptance of Transformers' assisted generation within the context.

    Drafts are accepted with the rates of their positions; None forces nothing. ``draws`` are one
    uniform number per round and drafted token.
    """
    if acceptance is None:
        yield
        return
    decide: Callable[..., Any] = getattr(utils, DECISION)
    remaining, rates = iter(draws), acceptance.by_position

    def constant(ids: Tensor, logits: Tensor, drafted: int, *rest: Any, **options: Any) -> Any:
        tokens, _ = decide(ids, logits, drafted, *rest, **options)
        numbers, accepted = next(remaining), 0
        while accepted < drafted and numbers[accepted] < rates[min(accepted, len(rates) - 1)]:
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


def _rounds(lengths: Sequence[int], end: int, draft_length: int) -> Iterator[RoundRecord]:
    """Yield the rounds between the text lengths after each; the first one ended at the first.

    The chances of acceptance are not known, so each judged draft has 1 or 0, as it came out.
    """
    for before, after in pairwise(lengths):
        proposed, accepted = min(draft_length, end - before - 1), after - before - 1
        judged = (1.0,) * accepted + (0.0,) * (accepted < proposed)
        yield RoundRecord(proposed, accepted, accepted + 1, expected=judged)

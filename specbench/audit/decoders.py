"""Decoders under audit, and Transformers' own loop as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from transformers import GenerationConfig

from specbench.bench.transformers_loops import MissingError, own_settings, sampling_options
from specbench.engine.loading import LoadedPair
from specbench.errors import UsageError


class Completion(NamedTuple):
    """A text that a decoder wrote after a prompt, without its end token."""

    text: str
    tokens: list[int] | None  # None if the decoder returns only the text
    ended: bool  # by an end token, not by the limit


class Decoder(Protocol):
    """What an audit needs of a decoder."""

    def complete(
        self, prompt: Sequence[int], temperature: float, count: int, limit: int, seed: int
    ) -> list[Completion]:
        """Continue a prompt ``count`` times with other random numbers, by ``limit`` tokens at most.

        Temperature 0 is greedy. All tokens of the vocabulary may be sampled.
        """


class Assisted:
    """Assisted generation of Transformers with a pair's models.

    Args:
        pair: The pair.
        draft_length: Tokens drafted per round.
        weight: ``assistant_ensemble_weight``; None verifies against the target.

    Raises:
        UsageError: This version of Transformers has no such weight, or the pair is not PyTorch's.
    """

    def __init__(self, pair: LoadedPair, draft_length: int, weight: float | None) -> None:
        self._target: Any = pair.runners[0].model
        self._draft, self._ends = pair.runners[1].model, sorted(pair.eos_ids)
        self._draft_length, self._weight = draft_length, weight
        try:
            sampling_options(1.0, weight)
        except MissingError as error:
            raise UsageError(f"{error}: install a newer one, or omit --weight") from error

    def complete(
        self, prompt: Sequence[int], temperature: float, count: int, limit: int, seed: int
    ) -> list[Completion]:
        """Continue a prompt; see ``Decoder.complete``."""
        inputs = torch.tensor([list(prompt)], device=self._target.device)
        how = GenerationConfig(
            max_new_tokens=limit,
            eos_token_id=self._ends or None,
            pad_token_id=self._ends[0] if self._ends else 0,
            **sampling_options(temperature, self._weight),
        )
        found = []
        for number in range(seed, seed + count):
            torch.manual_seed(number)
            with own_settings(self._target, self._draft, self._draft_length):
                text = self._target.generate(
                    inputs,
                    attention_mask=torch.ones_like(inputs),
                    generation_config=how,
                    assistant_model=self._draft,
                )
            tokens = text[0, inputs.shape[1] :].tolist()
            ended = bool(tokens) and tokens[-1] in self._ends
            found.append(Completion("", tokens[: len(tokens) - ended], ended))
        return found

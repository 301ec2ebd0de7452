"""Decode a batch of prompts with specbench's loop, or Transformers', and time it.

Transformers has ``generate`` and assisted generation, which here run the same models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import nan
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList
from transformers.generation import utils

from specbench.decoding.heads.bind import bind
from specbench.decoding.loop import DecodeOptions, Request, decode_all
from specbench.decoding.records import Generation
from specbench.decoding.sampling import Sampling, uniforms
from specbench.engine.device import now
from specbench.engine.packing import unpacked
from specbench.engine.pair import LoadedPair
from specbench.experiment.bench.plan import BenchSettings, System
from specbench.methods import Positions, Rule, Verdict
from specbench.methods.control import DraftControl, warmup_lengths

PromptTokens = Sequence[Sequence[int]]
Decoder = Callable[[PromptTokens, int, str], "Timing"]
"""``decoder(prompts, limit, key) -> timing``; the key selects the random numbers."""
ENSEMBLE = "assistant_ensemble_weight"
DECISION = "_speculative_sampling"  # Transformers' function that accepts drafts
ONE_VOCABULARY = "Transformers' assisted generation needs a draft with all tokens of the target"


@dataclass(frozen=True)
class Timing:
    """Counts and times of one batch."""

    output_tokens: int  # new tokens of all texts, generated within `decode_seconds`
    rounds: int  # of the batch, that is of its longest text
    text_rounds: int  # sum over all texts
    proposed: int  # drafted tokens of all texts
    judged: int  # drafted tokens up to and including the first rejection of each round
    accepted: int
    prefill_seconds: float  # reading all prompts; Transformers' loops: until the first tokens
    decode_seconds: float  # all rounds; Transformers' loops: all but the first
    draft_seconds: float = nan  # part of decoding; NaN if the parts are unknown
    verify_seconds: float = nan
    accept_seconds: float = nan


def forced(rule: Rule, rate: float) -> Rule:
    """Return a rule that accepts every drafted token with a fixed probability.

    The original rule is still computed, so the time of a round does not change. This gives time
    as a function of acceptance even for an untrained pair.
    """

    def constant(at: Positions, x: Tensor) -> Verdict:
        verdict = rule(at, x)
        # Depends on the rule's result, so that a compiler cannot remove its computation.
        return verdict._replace(accept=verdict.accept.clamp(rate, rate))

    return constant


def specbench_decoders(
    settings: BenchSettings, system: System, pair: LoadedPair, *, alike: bool = False
) -> tuple[Decoder, list[Decoder]]:
    """Return a decoder with a system's rule, and decoders that warm it up.

    The warm-up decoders cover every draft length of the system's control. With ``alike``, all texts
    of a batch have the same random numbers: at a forced acceptance they end together.

    Raises:
        UsageError: The head does not fit the pair.
    """
    cell = system.cell
    bound = bind(cell.method, cell.values, pair)
    rule, control = bound.rule, bound.control
    if rule is not None and system.acceptance is not None:
        rule = forced(rule, system.acceptance)

    def decoder(control: DraftControl | None) -> Decoder:
        def decode(prompts: PromptTokens, limit: int, key: str) -> Timing:
            options = DecodeOptions(
                bound.sampling(Sampling(temperature=settings.temperature)),
                cell.draft_length,
                limit,
                seed=settings.seed,
                batch_size=len(prompts),
                control=control,
            )
            requests = [
                Request(prompt, key if alike else f"{key}/{i}") for i, prompt in enumerate(prompts)
            ]
            return timing_of([text for _, text in decode_all(pair, rule, requests, options)])

        return decode

    lengths = warmup_lengths(control, cell.draft_length, pair.engine.static)
    return decoder(control), [decoder(length) for length in lengths]


def timing_of(generations: Sequence[Generation]) -> Timing:
    """Sum the records of texts that were decoded in one batch."""
    rounds = [record for text in generations for record in text.rounds]
    # The time of a round is divided among its texts, so these sums equal the elapsed time.
    seconds = {
        name: sum(getattr(text, name) for text in generations)
        for name in Timing.__dataclass_fields__
        if name.endswith("_seconds")
    }
    return Timing(
        output_tokens=sum(text.output_tokens for text in generations),
        rounds=max(len(text.rounds) for text in generations),
        text_rounds=len(rounds),
        proposed=sum(record.proposed for record in rounds),
        judged=sum(record.accepted + (record.rejected is not None) for record in rounds),
        accepted=sum(record.accepted for record in rounds),
        **seconds,
    )


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
        draws = uniforms(settings.seed, f"{key}/0", limit, n)[:, n : 2 * n].tolist()
        torch.manual_seed(settings.seed)
        forced = forced_in_transformers(system.acceptance, draws)
        with forced, unpacked(target, draft or target):
            began = now(device)
            generate(target, draft, n, inputs, lengths, max_new_tokens=limit, **options)
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


def generate(
    target: Any,
    draft: PreTrainedModel | None,
    draft_length: int,
    inputs: Tensor,
    *criteria: StoppingCriteria,
    **options: Any,
) -> Tensor:
    """Continue texts ``[B, T]`` by Transformers' own loops, without the models' own settings.

    The draft, if any, drafts ``draft_length`` tokens in every round. ``options`` are those of a
    ``GenerationConfig``.
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
        texts: Tensor = target.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            generation_config=GenerationConfig(**options),
            assistant_model=draft,
            stopping_criteria=StoppingCriteriaList(criteria),
        )
        return texts
    finally:
        for (model, _), settings in zip(models, earlier, strict=True):
            model.generation_config = settings

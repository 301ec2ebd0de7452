"""Decode a batch of prompts with specbench's loop and time it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan

from torch import Tensor

from specbench.decoding.heads.bind import bind
from specbench.decoding.loop import DecodeOptions, Request, decode_all
from specbench.decoding.records import Generation
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.experiment.bench.plan import BenchSettings, System
from specbench.methods import Positions, Rule, Verdict
from specbench.methods.control import DraftControl, warmup_lengths

PromptTokens = Sequence[Sequence[int]]
Decoder = Callable[[PromptTokens, int, str], "Timing"]
"""``decoder(prompts, limit, key) -> timing``; the key selects the random numbers."""


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


def request_key(key: str, number: int) -> str:
    """Return the key of the random numbers of one text of a batch."""
    return f"{key}/{number}"


def same_key(key: str, number: int) -> str:
    """Return one key for all texts of a batch: at a forced acceptance they end together."""
    return key


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
    settings: BenchSettings,
    system: System,
    pair: LoadedPair,
    key_of: Callable[[str, int], str] = request_key,
) -> tuple[Decoder, list[Decoder]]:
    """Return a decoder with a system's rule, and decoders that warm it up.

    The warm-up decoders cover every draft length of the system's control. ``key_of`` returns the
    key of the random numbers of a text by the key and the number of the text.

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
            requests = [Request(prompt, key_of(key, i)) for i, prompt in enumerate(prompts)]
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

"""One turn of a system: a batch of prompts decoded by specbench's loop, and what that took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan

from torch import Tensor

from specbench.bench.plan import BenchSettings, System
from specbench.decoding.loop import DecodeOptions, Request, decode_all
from specbench.decoding.records import Generation
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import LoadedPair
from specbench.heads.bind import bind
from specbench.methods import Positions, Rule, Verdict
from specbench.methods.control import DraftControl, warmup_lengths

Prompts = Sequence[Sequence[int]]
Decoder = Callable[[Prompts, int, str], "Turn"]
"""``decoder(prompts, limit, key) -> turn``; the key names the draws."""


@dataclass(frozen=True)
class Turn:
    """What a batch took."""

    output_tokens: int  # new tokens of all texts that `decode_seconds` went into
    rounds: int  # of the batch: of its longest text
    text_rounds: int  # of all texts
    proposed: int  # drafted tokens of all texts that were up for judgement
    judged: int  # those up to the first rejection of a round
    accepted: int
    prefill_seconds: float  # reading all prompts; Transformers' loops: until the first tokens
    decode_seconds: float  # all rounds; Transformers' loops: all but the first
    draft_seconds: float = nan  # part of decoding; NaN where the parts are unknown
    verify_seconds: float = nan
    accept_seconds: float = nan


def request_key(key: str, number: int) -> str:
    """Name the draws of one text of a turn."""
    return f"{key}/{number}"


def forced(rule: Rule, rate: float) -> Rule:
    """Return the rule with every drafted token accepted at one rate, whatever the models say.

    Only the decision is forced. The rule is computed all the same, so that a round costs what it
    costs, and time can be drawn against acceptance for a pair that nobody trained.
    """

    def constant(at: Positions, x: Tensor) -> Verdict:
        verdict = rule(at, x)
        # Computed from the rule's own number, which a compiler would otherwise leave out.
        return verdict._replace(accept=verdict.accept.clamp(rate, rate))

    return constant


def specbench_decoders(
    settings: BenchSettings, system: System, pair: LoadedPair
) -> tuple[Decoder, list[Decoder]]:
    """Return specbench's own loop with a system's rule, and loops that warm it up.

    The latter meet every length of a round, which the system's own first texts may not.

    Raises:
        UsageError: The head does not fit the pair.
    """
    cell = system.cell
    bound = bind(cell.method, dict(cell.parameters), pair)
    rule, control = bound.rule, bound.control
    if rule is not None and system.acceptance is not None:
        rule = forced(rule, system.acceptance)

    def decoder(control: DraftControl | None) -> Decoder:
        def decode(prompts: Prompts, limit: int, key: str) -> Turn:
            options = DecodeOptions(
                Sampling(temperature=settings.temperature),
                cell.draft_length,
                limit,
                seed=settings.seed,
                batch_size=len(prompts),
                control=control,
            )
            requests = [Request(prompt, request_key(key, i)) for i, prompt in enumerate(prompts)]
            return turn_of([text for _, text in decode_all(pair, rule, requests, options)])

        return decode

    lengths = warmup_lengths(control, cell.draft_length, pair.engine.static)
    return decoder(control), [decoder(each) for each in lengths]


def turn_of(generations: Sequence[Generation]) -> Turn:
    """Add up texts that were decoded side by side from their first round on."""
    rounds = [record for text in generations for record in text.rounds]
    # Texts share the time of a round, so these add up to the time that passed.
    seconds = {
        name: sum(getattr(text, name) for text in generations)
        for name in Turn.__dataclass_fields__
        if name.endswith("_seconds")
    }
    return Turn(
        output_tokens=sum(text.output_tokens for text in generations),
        rounds=max(len(text.rounds) for text in generations),
        text_rounds=len(rounds),
        proposed=sum(record.proposed for record in rounds),
        judged=sum(record.accepted + (record.rejected is not None) for record in rounds),
        accepted=sum(record.accepted for record in rounds),
        **seconds,
    )

"""One turn of a system: a batch of prompts decoded, and what that took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan

from specbench.bench.forced import forced
from specbench.bench.plan import Bench, System
from specbench.decoding.loop import decode_all
from specbench.decoding.records import Generation
from specbench.decoding.round import Verify
from specbench.decoding.rows import Request
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import LoadedPair
from specbench.heads.files import load_head
from specbench.heads.registry import HeadFile
from specbench.methods.control import DraftControl, rehearsals
from specbench.methods.registry import get_method

Prompts = Sequence[Sequence[int]]
Decoder = Callable[[Prompts, int, str], "Turn"]
"""Decodes prompts up to a limit; the text names the draws."""


@dataclass(frozen=True)
class Turn:
    """What a batch took.

    Attributes:
        output_tokens: New tokens of all texts that ``decode_seconds`` went into.
        rounds: Rounds of the batch: of its longest text.
        text_rounds: Rounds of all texts.
        proposed: Drafted tokens that were up for judgement, of all texts.
        judged: Those that were judged: up to the first rejection of a round.
        accepted: Those accepted.
        prefill_seconds: Reading all prompts; Transformers' loops: until the first tokens.
        decode_seconds: All rounds; Transformers' loops: all but the first.
        draft_seconds: Of that, drafting; NaN where the parts of a round are not told apart.
        verify_seconds: Of that, the target's passes.
        accept_seconds: Of that, judging drafts and drawing tokens.
    """

    output_tokens: int
    rounds: int
    text_rounds: int
    proposed: int
    judged: int
    accepted: int
    prefill_seconds: float
    decode_seconds: float
    draft_seconds: float = nan
    verify_seconds: float = nan
    accept_seconds: float = nan


def request_key(key: str, number: int) -> str:
    """Name the draws of one text of a turn."""
    return f"{key}/{number}"


def turn_of(generations: Sequence[Generation]) -> Turn:
    """Add up texts that were decoded side by side from their first round on."""
    rounds = [record for text in generations for record in text.rounds]
    return Turn(
        output_tokens=sum(text.output_tokens for text in generations),
        rounds=max(len(text.rounds) for text in generations),
        text_rounds=len(rounds),
        proposed=sum(record.proposed for record in rounds),
        judged=sum(record.accepted + (record.rejected is not None) for record in rounds),
        accepted=sum(record.accepted for record in rounds),
        prefill_seconds=sum(text.prefill_seconds for text in generations),
        # Texts share the time of a round, so these add up to the time that passed.
        decode_seconds=sum(text.decode_seconds for text in generations),
        draft_seconds=sum(text.draft_seconds for text in generations),
        verify_seconds=sum(text.verify_seconds for text in generations),
        accept_seconds=sum(text.accept_seconds for text in generations),
    )


def rehearsing_decoders(bench: Bench, system: System, pair: LoadedPair) -> list[Decoder]:
    """Return what meets the lengths of a system's rounds that its own first texts may not.

    For the arguments and what is raised see ``specbench_decoder``.
    """
    _, control = _rule(system, pair)
    lengths = rehearsals(control, system.draft_length, pair.engine.static)
    return [specbench_decoder(bench, system, pair, each) for each in lengths]


def specbench_decoder(
    bench: Bench, system: System, pair: LoadedPair, instead: DraftControl | None = None
) -> Decoder:
    """Return specbench's own loop with a system's rule.

    Args:
        bench: What all systems share.
        system: What is timed.
        pair: The models, without end tokens and with the system's engine.
        instead: Controls the drafting in the place of the method's own control.

    Raises:
        UsageError: The head does not fit the pair.
    """
    verify, control = _rule(system, pair)

    def decode(prompts: Prompts, limit: int, key: str) -> Turn:
        done = decode_all(
            pair,
            verify,
            [Request(prompt, request_key(key, number)) for number, prompt in enumerate(prompts)],
            sampling=Sampling(bench.temperature),
            draft_length=system.draft_length,
            max_new_tokens=limit,
            seed=bench.seed,
            batch_size=len(prompts),
            control=instead or control,
        )
        return turn_of([generation for _, generation in done])

    return decode


def _rule(system: System, pair: LoadedPair) -> tuple[Verify | None, DraftControl | None]:
    parameters = {
        name: load_head(value.path, pair).weigh if isinstance(value, HeadFile) else value
        for name, value in system.parameters
    }
    rule, control = get_method(system.method).bind(parameters)
    if rule is not None and system.acceptance is not None:
        rule = forced(rule, system.acceptance)
    return rule, control

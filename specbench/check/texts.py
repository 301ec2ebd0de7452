"""What a check decodes, and sampling many texts of it with the real loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from specbench.check.passes import plain_pass
from specbench.decoding.loop import decode, decode_all
from specbench.decoding.records import Generation
from specbench.decoding.round import Verify
from specbench.decoding.rows import Request
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import LoadedPair
from specbench.heads.head import Head
from specbench.methods.control import DraftControl

ROUNDS = 2  # whole rounds that the texts have at least, so that caches are rewound and overwritten
LEAD = 24  # tokens after a prompt among which rounds may begin


class Context(NamedTuple):
    """A prompt as it is decoded.

    Attributes:
        name: Task and example.
        prompt: Its tokens.
    """

    name: str
    prompt: Sequence[int]


@dataclass(frozen=True)
class Rule:
    """A method as it decodes one prompt.

    Attributes:
        method: Its name.
        verify: The rule under test, None where nothing is drafted.
        parameters: As its law takes them, but for the head.
        head: Gives the weights, for methods that have one.
        control: Decides how many tokens are drafted; None drafts N always.
    """

    method: str
    verify: Verify | None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    head: Head | None = None
    control: DraftControl | None = None


@dataclass(frozen=True)
class Sampled:
    """How rounds are sampled.

    Attributes:
        texts: From all prompts together.
        draft_length: N.
        batch_size: Texts side by side.
        seed: Decides all draws, those of the tests included.
        alpha: Chance of a false alarm of one test.
        exact: False where the numbers' format is too coarse for probabilities to be compared.
    """

    texts: int
    draft_length: int
    batch_size: int
    seed: int
    alpha: float
    exact: bool = True


def telling(pair: LoadedPair, context: Context) -> Context:
    """Go on from a prompt, greedily, to where the target is unsure and the draft differs.

    After a prompt the next token is often certain, and then no fault shows in it.
    """
    alone = decode(
        pair,
        None,
        context.prompt,
        sampling=Sampling(temperature=0),
        draft_length=0,
        max_new_tokens=LEAD,
        seed=0,
        sample_key="",
    )
    known = alone.token_ids
    text = [*context.prompt, *known, 0]
    p, q = (
        plain_pass(runner, [text], last=len(known) + 1).logits[0].softmax(-1)
        for runner in (pair.target, pair.draft)
    )
    entropy = torch.special.entr(p).sum(-1)
    most = int(((p - q).abs().sum(-1) * entropy).argmax())
    return Context(context.name, [*context.prompt, *known[:most]])


def sample(
    pair: LoadedPair,
    rule: Rule,
    context: Context,
    texts: int,
    sampling: Sampling,
    how: Sampled,
) -> list[Generation]:
    """Decode one prompt many times, each with draws of its own; nothing ends a text but its length.

    The token that ends a text is no part of it, and a test of all others would be a biased one.
    """
    requests = [Request(context.prompt, f"check/{context.name}/{i}") for i in range(texts)]
    decoded = decode_all(
        replace(pair, eos_ids=frozenset()),
        rule.verify,
        requests,
        sampling=sampling,
        draft_length=how.draft_length,
        max_new_tokens=text_length(how.draft_length),
        seed=how.seed,
        batch_size=min(how.batch_size, texts),
        control=rule.control,
    )
    return [generation for _, generation in sorted(decoded, key=lambda found: found[0])]


def text_length(draft_length: int) -> int:
    """Return how many tokens are sampled of each text."""
    return ROUNDS * (draft_length + 1) + 1


def describe(sampling: Sampling) -> str:
    """Return the processing of the logits in short."""
    parts = [f"T={sampling.temperature:g}"]
    parts += [f"top-k {sampling.top_k}"] if sampling.top_k is not None else []
    parts += [f"top-p {sampling.top_p:g}"] if sampling.top_p is not None else []
    return " ".join(parts)

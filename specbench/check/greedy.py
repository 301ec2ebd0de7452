"""Greedy decoding: `sd` against the target alone, and the target alone against plain passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.check.findings import FAILED, OK, REPORT, WEAK, Finding
from specbench.check.passes import plain_pass
from specbench.check.texts import Context
from specbench.decoding.loop import decode
from specbench.decoding.records import Generation
from specbench.decoding.round import Verify
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import LoadedPair
from specbench.engine.runner import Runner
from specbench.methods.rules import sd

PART = "greedy"
PLAIN, EQUAL = "autoregressive against plain passes", "sd against autoregressive"
LIMIT = 64  # new tokens of a text
# Logits closer than this are a tie in float32: rounding, which depends on how many tokens are read
# at once, may decide between them, and no decoding is more right than the other.
TIE = 1e-3
END = -1  # stands for any end token
NEVER = -1e9  # logit of an end where there are no end tokens


class Lag(NamedTuple):
    """By how much each token of a text was not the target's first choice, in logits.

    Attributes:
        behind: ``[T]`` the largest logit less that of the token.
        margin: ``[T]`` the largest logit less the second largest.
    """

    behind: Tensor
    margin: Tensor


def check_greedy(
    pair: LoadedPair, contexts: Sequence[Context], draft_length: int, *, strict: bool
) -> list[Finding]:
    """Decode prompts greedily, alone and speculatively, and compare.

    Args:
        pair: The models.
        contexts: The prompts.
        draft_length: Drafted tokens per round, N.
        strict: False makes a report of it, where the numbers' format is coarse.
    """
    alone, drafted, lags = [], [], []
    unlike = 0
    for context in contexts:
        alone.append(_text(pair, None, context, draft_length))
        drafted.append(_text(pair, sd, context, draft_length))
        lags.append(lag(pair.target, context, alone[-1], pair.eos_ids))
        # Where the draft would have gone on otherwise, accepting it would have shown.
        unlike += int((lag(pair.draft, context, alone[-1], pair.eos_ids).behind > TIE).sum())
    subject = f"T=0, {str(pair.target.dtype).removeprefix('torch.')}"
    return [
        _against_plain(subject, contexts, alone, lags, strict),
        _against_alone(subject, pair, contexts, alone, drafted, unlike, strict),
    ]


def lag(runner: Runner, context: Context, text: Sequence[int], ends: frozenset[int]) -> Lag:
    """Read a text as a whole and return how far its tokens are behind the model's first choices."""
    known = [token for token in text if token != END]
    # One more position than there are tokens: what follows the last one.
    read = [*context.prompt, *known, 0]
    logits = plain_pass(runner, [read], last=len(known) + 1).logits[0]
    best = logits.topk(2, -1).values
    ending = [token for token in ends if token < runner.vocabulary]
    choices = [ending if token == END else [token] for token in text]
    said = [logits[at][chosen].max() if chosen else NEVER for at, chosen in enumerate(choices)]
    best = best[: len(text)]
    return Lag(best[:, 0].cpu() - torch.tensor(said), (best[:, 0] - best[:, 1]).cpu())


def _text(
    pair: LoadedPair, verify: Verify | None, context: Context, draft_length: int
) -> list[int]:
    """A greedy text with its end."""
    found: Generation = decode(
        pair,
        verify,
        context.prompt,
        sampling=Sampling(temperature=0),
        draft_length=draft_length,
        max_new_tokens=LIMIT,
        seed=0,
        sample_key=f"check/{context.name}",
    )
    return [*found.token_ids, *([END] if found.stopped_by == "eos" else [])]


def _against_plain(
    subject: str,
    contexts: Sequence[Context],
    texts: Sequence[list[int]],
    lags: Sequence[Lag],
    strict: bool,
) -> Finding:
    wrong = [
        {
            "prompt": context.name,
            "position": int((found.behind > TIE).nonzero()[0]),
            "behind": float(found.behind.max()),
        }
        for context, found in zip(contexts, lags, strict=True)
        if bool((found.behind > TIE).any())
    ]
    tokens = sum(map(len, texts))
    clear = sum(int((found.margin > TIE).sum()) for found in lags)
    facts: dict[str, Any] = {"texts": len(texts), "tokens": tokens, "clear": clear, "wrong": wrong}
    says = f"{tokens:,} tokens of {len(texts)} texts, each the first choice"
    verdict = OK if clear else WEAK
    if wrong:
        verdict = FAILED
        first = wrong[0]
        says = (
            f"{len(wrong)} of {len(texts)} texts hold a token that is not the target's first "
            f"choice, first at token {first['position']} of {first['prompt']}, up to "
            f"{first['behind']:.2g} behind"
        )
    return Finding(PART, subject, PLAIN, verdict if strict else REPORT, says, facts)


def _against_alone(
    subject: str,
    pair: LoadedPair,
    contexts: Sequence[Context],
    alone: Sequence[list[int]],
    drafted: Sequence[list[int]],
    unlike: int,
    strict: bool,
) -> Finding:
    found = [
        divergence(pair, context, one, other)
        for context, one, other in zip(contexts, alone, drafted, strict=True)
        if one != other
    ]
    wrong = [each for each in found if not each["tie"]]
    tokens = sum(map(len, alone))
    facts = {"texts": len(alone), "tokens": tokens, "draft_unlike": unlike, "divergences": found}
    says = f"{len(alone) - len(found)} of {len(alone)} texts equal, {tokens:,} tokens"
    verdict = FAILED if wrong else OK
    if found:
        first = (wrong or found)[0]
        says += (
            f"; first divergence at token {first['position']} of {first['prompt']}, "
            f"top-1/top-2 margin there {first['margin']:.2g}" + (" (a tie)" if first["tie"] else "")
        )
    if not wrong and not unlike:
        verdict = WEAK
        says += "; the draft never differs, so accepting everything would pass as well"
    return Finding(PART, subject, EQUAL, verdict if strict else REPORT, says, facts)


def divergence(
    pair: LoadedPair, context: Context, alone: list[int], drafted: list[int]
) -> dict[str, Any]:
    """Describe where two texts part ways, by a plain pass up to there.

    Both tokens are as good as the target's first choice where it is a tie.
    """
    texts = [*alone, END], [*drafted, END]  # one may be the other's beginning
    at = next(i for i, (one, other) in enumerate(zip(*texts, strict=False)) if one != other)
    both = [lag(pair.target, context, text[: at + 1], pair.eos_ids) for text in texts]
    behind = [float(each.behind[at]) for each in both]
    return {
        "prompt": context.name,
        "position": at,
        "margin": float(both[0].margin[at]),
        "behind": behind,
        "tie": max(behind) <= TIE,
    }

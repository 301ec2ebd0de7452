"""Greedy decoding: `sd` against the target alone, and the target alone against plain passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.check.findings import FAILED, OK, REPORT, WEAK, Finding
from specbench.check.passes import plain_pass
from specbench.check.texts import Context, decode_one
from specbench.engine.loading import LoadedPair
from specbench.engine.runner import Runner
from specbench.methods import Rule
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
    """By how much each token of a text was not the target's first choice, in logits."""

    behind: Tensor  # [T] the largest logit less that of the token
    margin: Tensor  # [T] the largest logit less the second largest

    @property
    def wrong(self) -> Tensor:
        """``[T]`` whether a token is not the first choice and no tie of it."""
        return self.behind > TIE


def check_greedy(
    pair: LoadedPair, contexts: Sequence[Context], draft_length: int, *, strict: bool
) -> list[Finding]:
    """Decode prompts greedily, alone and speculatively, and compare.

    Without ``strict`` the findings are reports, as the numbers' format is coarse.
    """
    alone, drafted = (
        [_text(pair, rule, context, draft_length) for context in contexts] for rule in (None, sd)
    )
    found = {
        PLAIN: _against_plain(pair, contexts, alone),
        EQUAL: _against_alone(pair, contexts, alone, drafted),
    }
    subject = f"T=0, {str(pair.target.dtype).removeprefix('torch.')}"
    return [
        Finding(PART, subject, name, verdict if strict else REPORT, says, facts)
        for name, (verdict, says, facts) in found.items()
    ]


def lag(runner: Runner, context: Context, text: Sequence[int], ends: frozenset[int]) -> Lag:
    """Read a text as a whole and return how far its tokens are behind the model's first choices."""
    known = [token for token in text if token != END]
    # One more position than there are tokens: what follows the last one.
    logits = plain_pass(runner, [[*context.prompt, *known, 0]], last=len(known) + 1).logits[0]
    best = logits.topk(2, -1).values[: len(text)]
    ending = [token for token in ends if token < runner.vocabulary]
    choices = [ending if token == END else [token] for token in text]
    chosen = [logits[at][tokens].max() if tokens else NEVER for at, tokens in enumerate(choices)]
    return Lag(best[:, 0].cpu() - torch.tensor(chosen), (best[:, 0] - best[:, 1]).cpu())


def divergence(
    pair: LoadedPair, context: Context, alone: list[int], drafted: list[int]
) -> dict[str, Any]:
    """Describe where two texts diverge, by a plain pass up to there.

    It is a tie where both tokens are as good as the target's first choice.
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


def _text(pair: LoadedPair, rule: Rule | None, context: Context, draft_length: int) -> list[int]:
    """Return a greedy text with its end."""
    found = decode_one(pair, context, LIMIT, rule=rule, draft_length=draft_length)
    return [*found.token_ids, *([END] if found.stopped_by == "eos" else [])]


def _against_plain(
    pair: LoadedPair, contexts: Sequence[Context], texts: Sequence[list[int]]
) -> tuple[str, str, dict[str, Any]]:
    lags = [lag(pair.target, *both, pair.eos_ids) for both in zip(contexts, texts, strict=True)]
    wrong = [
        {
            "prompt": context.name,
            "position": int(found.wrong.nonzero()[0]),
            "behind": float(found.behind.max()),
        }
        for context, found in zip(contexts, lags, strict=True)
        if found.wrong.any()
    ]
    tokens = sum(map(len, texts))
    clear = sum(int((found.margin > TIE).sum()) for found in lags)
    facts = {"texts": len(texts), "tokens": tokens, "clear": clear, "wrong": wrong}
    if not wrong:
        says = f"{tokens:,} tokens of {len(texts)} texts, each the first choice"
        return OK if clear else WEAK, says, facts
    first = wrong[0]
    says = (
        f"{len(wrong)} of {len(texts)} texts hold a token that is not the target's first choice, "
        f"first at token {first['position']} of {first['prompt']}, up to {first['behind']:.2g} "
        "behind"
    )
    return FAILED, says, facts


def _against_alone(
    pair: LoadedPair,
    contexts: Sequence[Context],
    alone: Sequence[list[int]],
    drafted: Sequence[list[int]],
) -> tuple[str, str, dict[str, Any]]:
    texts = list(zip(contexts, alone, drafted, strict=True))
    # Where the draft's own choice differs, accepting it wrongly would have shown.
    unlike = sum(int(lag(pair.draft, c, one, pair.eos_ids).wrong.sum()) for c, one, _ in texts)
    found = [divergence(pair, *text) for text in texts if text[1] != text[2]]
    wrong = [each for each in found if not each["tie"]]
    tokens = sum(map(len, alone))
    facts = {"texts": len(alone), "tokens": tokens, "draft_unlike": unlike, "divergences": found}
    says = f"{len(alone) - len(found)} of {len(alone)} texts equal, {tokens:,} tokens"
    if found:
        first = (wrong or found)[0]
        says += (
            f"; first divergence at token {first['position']} of {first['prompt']}, "
            f"top-1/top-2 margin there {first['margin']:.2g}" + (" (a tie)" if first["tie"] else "")
        )
    if not wrong and not unlike:
        says += "; the draft never differs, so accepting everything would pass as well"
        return WEAK, says, facts
    return FAILED if wrong else OK, says, facts

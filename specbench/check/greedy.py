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
from specbench.engine.runner import Model
from specbench.methods import Rule
from specbench.methods.rules import sd

PART = "greedy"
PLAIN, EQUAL = "autoregressive against plain passes", "sd against autoregressive"
LIMIT = 256  # new tokens per text, which should end before
# Logits closer than this are a tie in float32. Rounding depends on the number of tokens per pass
# and may favour either one, so both are correct.
TIE = 1e-3
END = -1  # represents any end token
NEVER = -1e9  # logit of an end if there are no end tokens


class Lag(NamedTuple):
    """How far each token of a text is behind the model's first choice, in logits."""

    behind: Tensor  # [T] the largest logit minus that of the token
    margin: Tensor  # [T] the largest logit minus the second largest

    @property
    def wrong(self) -> Tensor:
        """``[T]`` whether a token is behind the first choice by more than a tie."""
        return self.behind > TIE


def check_greedy(
    pair: LoadedPair, contexts: Sequence[Context], draft_length: int, *, strict: bool
) -> list[Finding]:
    """Decode prompts greedily, alone and speculatively, and compare.

    Without ``strict`` the findings are only reports, because the dtype is too coarse.
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
        Finding(PART, subject, name, verdict if strict else REPORT, sentence, facts)
        for name, (verdict, sentence, facts) in found.items()
    ]


def lag(runner: Model, context: Context, text: Sequence[int], ends: frozenset[int]) -> Lag:
    """Return how far the tokens of a text are behind the model's first choices, by a plain pass."""
    known = [token for token in text if token != END]
    # One position more than there are tokens, to predict what follows the last one.
    logits = plain_pass(runner, [[*context.prompt, *known, 0]], last=len(known) + 1).logits[0]
    best = logits.topk(2, -1).values[: len(text)]
    ending = [token for token in ends if token < runner.vocabulary]
    choices = [ending if token == END else [token] for token in text]
    chosen = [logits[at][tokens].max() if tokens else NEVER for at, tokens in enumerate(choices)]
    return Lag(best[:, 0].cpu() - torch.tensor(chosen), (best[:, 0] - best[:, 1]).cpu())


def divergence(
    pair: LoadedPair, context: Context, alone: list[int], drafted: list[int]
) -> dict[str, Any]:
    """Describe the first difference of two texts, by plain passes up to it.

    It is a tie if the target's logits of both tokens equal its largest logit up to ``TIE``.
    """
    texts = [*alone, END], [*drafted, END]  # one text may be a prefix of the other
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
    """Return the tokens of a greedy text, with ``END`` if it ended."""
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
        sentence = f"{tokens:,} tokens of {len(texts)} texts, all the target's first choice"
        return OK if clear else WEAK, sentence, facts
    first = wrong[0]
    sentence = (
        f"{len(wrong)} of {len(texts)} texts contain a token that is not the target's first "
        f"choice, first at token {first['position']} of {first['prompt']}, up to "
        f"{first['behind']:.2g} behind"
    )
    return FAILED, sentence, facts


def _against_alone(
    pair: LoadedPair,
    contexts: Sequence[Context],
    alone: Sequence[list[int]],
    drafted: Sequence[list[int]],
) -> tuple[str, str, dict[str, Any]]:
    texts = list(zip(contexts, alone, drafted, strict=True))
    # Accepting a draft wrongly is visible only where the draft's first choice differs.
    unlike = sum(int(lag(pair.draft, c, one, pair.eos_ids).wrong.sum()) for c, one, _ in texts)
    found = [divergence(pair, *text) for text in texts if text[1] != text[2]]
    wrong = [each for each in found if not each["tie"]]
    tokens = sum(map(len, alone))
    ended = sum(text[-1:] == [END] for text in alone)
    facts = {
        "texts": len(alone),
        "tokens": tokens,
        "ended": ended,
        "draft_unlike": unlike,
        "divergences": found,
    }
    sentence = (
        f"{len(alone) - len(found)} of {len(alone)} texts equal, {tokens:,} tokens, {ended} to "
        "their end"
    )
    if found:
        first = (wrong or found)[0]
        sentence += (
            f"; first divergence at token {first['position']} of {first['prompt']}, "
            f"top-1/top-2 margin there {first['margin']:.2g}" + (" (a tie)" if first["tie"] else "")
        )
    if not wrong and not unlike:
        sentence += "; the draft never differs, so accepting every draft would also pass"
        return WEAK, sentence, facts
    return FAILED if wrong else OK, sentence, facts

"""Greedy decoding: `sd` against the target alone, and the target alone against plain passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.decoding.drafters.registry import MODEL, DrafterSpec
from specbench.engine.pair import LoadedPair, Model
from specbench.engine.passes import plain_pass
from specbench.experiment.comparison import rounding_of
from specbench.experiment.rounding import END, NEVER, Lead, first_difference, with_end
from specbench.methods.strict import sd
from specbench.validation.findings import REPORT, Finding, Judgement, judged
from specbench.validation.texts import Context, decode_one

PART = "greedy"
PLAIN, EQUAL = "autoregressive against plain passes", "sd against autoregressive"
# Logits closer than this are a tie in float32. Rounding depends on the number of tokens per pass
# and may favour either one, so both are correct.
TIE = 1e-3
NEVER_UNLIKE = "the draft never differs, so accepting every draft would also pass"


class Lag(NamedTuple):
    """How far each token of a text is behind the model's first choice, in logits."""

    behind: Tensor  # [T] the largest logit minus that of the token
    margin: Tensor  # [T] the largest logit minus the second largest


class FirstChoices(NamedTuple):
    """Greedy texts against the first choices of both models."""

    tokens: int
    clear: int  # tokens at which the target's first choice leads by more than a tie
    draft_unlike: int  # tokens that are not the draft's: only there a wrong acceptance is visible
    forks: list[dict[str, Any]]  # of each text, the token that is farthest behind the target's


def check_greedy(
    pair: LoadedPair,
    contexts: Sequence[Context],
    draft_length: int,
    limit: int,
    *,
    strict: bool,
    drafters: Sequence[DrafterSpec] = (MODEL,),
) -> list[Finding]:
    """Decode prompts greedily, alone and speculatively with each drafter, and compare.

    Texts should end before the limit of tokens. Without ``strict`` the findings are only reports,
    because the dtype is too coarse.
    """
    greedy = [decode_one(pair, context, limit) for context in contexts]
    alone = [with_end(text.token_ids, text.stopped_by) for text in greedy]
    choices = first_choices(pair, contexts, alone)
    ended = sum(text[-1:] == [END] for text in alone)
    subject = f"T=0, {str(pair.target.dtype).removeprefix('torch.')}"
    facts = choices._asdict() | {"texts": len(alone), "ended": ended}
    findings = [Finding(PART, subject, PLAIN, *against_plain(choices, facts))]
    for drafter in drafters:
        speculate = partial(decode_one, pair, rule=sd, draft_length=draft_length)
        loaded = drafter.kind.load(pair)
        drafted = [speculate(context, limit, drafter=loaded) for context in contexts]
        marked = [with_end(text.token_ids, text.stopped_by) for text in drafted]
        texts = zip(contexts, alone, marked, strict=True)
        differ = [divergence(pair, *text) for text in texts if text[1] != text[2]]
        rejected = sum(r.accepted < r.proposed for text in drafted for r in text.rounds)
        judgement = _against_alone(facts | {"divergences": differ, "rejected": rejected})
        about = subject if drafter == MODEL else f"{subject}, {drafter}"
        findings.append(Finding(PART, about, EQUAL, *judgement))
    return findings if strict else [replace(finding, verdict=REPORT) for finding in findings]


def first_choices(
    pair: LoadedPair, contexts: Sequence[Context], texts: Sequence[Sequence[int]], tie: float = TIE
) -> FirstChoices:
    """Compare each token of greedy texts with the first choice after the tokens before."""
    clear, unlike, forks = 0, 0, []
    for context, text in zip(contexts, texts, strict=True):
        to_target = lag(pair.target, context, text, pair.eos_ids)
        to_draft = lag(pair.draft, context, text, pair.eos_ids)
        clear += int((to_target.margin > tie).sum())
        unlike += int((to_draft.behind > tie).sum())
        position = int(to_target.behind.argmax())
        if (behind := float(to_target.behind[position])) > 0:
            fork = {"prompt": context.name, "position": position}
            forks.append(fork | {"margin": float(to_target.margin[position]), "behind": behind})
    return FirstChoices(sum(map(len, texts)), clear, unlike, forks)


def lag(runner: Model, context: Context, text: Sequence[int], ends: frozenset[int]) -> Lag:
    """Return how far the tokens of a text are behind the model's first choices, by a plain pass."""
    tokens = [token for token in text if token != END]
    # One position more than there are tokens, to predict what follows the last one.
    logits = plain_pass(runner, [[*context.prompt, *tokens, 0]], last=len(tokens) + 1).logits[0]
    best = logits.topk(2, -1).values[: len(text)]
    ending = [token for token in ends if token < runner.vocabulary]
    choices = [ending if token == END else [token] for token in text]
    chosen = [logits[index][same].max() if same else NEVER for index, same in enumerate(choices)]
    return Lag(best[:, 0].cpu() - torch.tensor(chosen), (best[:, 0] - best[:, 1]).cpu())


def divergence(
    pair: LoadedPair, context: Context, alone: list[int], drafted: list[int]
) -> dict[str, Any]:
    """Describe the first difference of two texts, by a plain pass up to it.

    It is a tie if the target's logits of both tokens equal its largest logit up to rounding.
    """
    difference = first_difference(alone, drafted)
    assert difference is not None
    first, tokens = difference
    text = [*context.prompt, *alone[:first], 0]
    logits = plain_pass(pair.target, [text], last=1).logits[0, 0]
    lead = Lead.of(logits, tokens, sorted(pair.eos_ids))
    tie = lead.behind <= rounding_of(pair)
    return {"prompt": context.name, "position": first, **lead._asdict(), "tie": tie}


def against_plain(
    choices: FirstChoices, facts: dict[str, Any], tie: float = TIE, weakness: str = ""
) -> Judgement:
    """Judge texts by the target's first choices; a ``weakness`` says why no fault would show."""
    behind = [float(fork["behind"]) for fork in choices.forks]
    wrong = [fork for fork, logits in zip(choices.forks, behind, strict=True) if logits > tie]
    sentence = f"{choices.tokens:,} tokens of {facts['texts']} texts, all the target's first choice"
    if wrong:
        worst = max(wrong, key=lambda fork: float(fork["behind"]))
        sentence = (
            f"{len(wrong)} of {facts['texts']} texts contain a token that is not the target's "
            f"first choice, the worst at token {worst['position']} of {worst['prompt']}, "
            f"{worst['behind']:.2g} behind"
        )
    elif max(behind, default=0) > TIE:
        sentence += f" up to rounding, at most {max(behind):.2g} behind"
    if weakness:
        sentence += f"; {weakness}"
    return judged(bool(wrong), bool(weakness) or not choices.clear, sentence, facts)


def _against_alone(facts: dict[str, Any]) -> Judgement:
    texts, divergences = facts["texts"], facts["divergences"]
    equal = texts - len(divergences)
    sentence = (
        f"{equal} of {texts} texts equal, {facts['tokens']:,} tokens, {facts['ended']} to their end"
    )
    wrong = [fork for fork in divergences if not fork["tie"]]
    if divergences:
        apart = median(fork["margin"] for fork in divergences)
        sentence += (
            f"; where they first differ, the two likeliest tokens are {apart:.2g} apart (median), "
        )
        sentence += (
            f"and {len(wrong)} of these differences are more than rounding explains, the first at "
            f"token {wrong[0]['position']} of {wrong[0]['prompt']}"
            if wrong
            else "which rounding explains"
        )
    if not wrong and not facts["rejected"]:
        sentence += "; no draft is rejected, so accepting every draft would also pass"
    return judged(bool(wrong), not facts["rejected"], sentence, facts)

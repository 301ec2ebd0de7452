"""Expected rounds of a text, by the law of its renewals, without decoding.

In lossless chain drafting a draft is accepted, given that the text has y there, with a probability
that depends on y, the text before and, for a module that drafts, the start of the round alone. The
probability that a round which starts at s accepts at least k drafts is therefore known from the
text's scores: ``reach``. A round with n drafts emits k + 1 tokens with probability
reach[k] - reach[k + 1] for k < n, and reach[n] for k = n, and the next round starts after them.
The probability that a round starts at each token follows in one walk along the text (``starts``),
and every expected number is a sum over it.

All arrays have one row for each text. T is the length of the longest text and N the largest number
of drafts; the start of a round is the index of the token that it emits first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view
from scipy.optimize import brentq

from specbench.analysis.statistics.estimates import wide
from specbench.analysis.statistics.intervals import FEWEST, bootstrap, estimate, ratio
from specbench.analysis.tables.shown import Row, ShownFigure
from specbench.analysis.tables.table import Field, Table
from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafters.policies import Drafting, Floats, Integers, Policy
from specbench.errors import require
from specbench.pricing.scores import Scores
from specbench.runs.frames import rows_of

TINY = 1e-300  # stands for a probability of 0 in logarithms
# Where no acceptance is given, .7 of the first drafts, and a tenth less at each further position.
USUAL, FALL = 0.7, 0.9


@dataclass(frozen=True)
class PricedRounds:
    """The expected numbers of a drafter and a policy on n prompts, for L draft lengths."""

    drafter: DrafterKind
    lengths: tuple[int, ...]  # N
    tokens: Floats  # [n] emitted in rounds
    rounds: Floats  # [n, L]
    drafted: Floats  # [n, L] drafts verified
    is_exact: bool = False  # whether rates were given, so that there is no interval
    is_assumed: bool = False  # whether not even rates were given

    @property
    def resampled(self) -> Floats:
        """Tokens per round of the prompts and of their resamples ``[1 + RESAMPLES, L]``."""
        totals = bootstrap(np.column_stack([self.tokens, self.rounds]))
        return totals[:, :1] / totals[:, 1:]


def rates_of(text: str, longest: int) -> list[float]:
    """Return the rate of each position, given that drafts before it are accepted; or one of all."""
    try:
        rates = [float(rate) for rate in text.split(",")]
    except ValueError:
        rates = []
    require(
        len(rates) > 0 and all(0 <= rate <= 1 for rate in rates),
        f"--acceptance {text}: give a rate from 0 to 1 for each position, as .8,.72,.65, or one "
        "for all",
    )
    return rates if len(rates) > 1 else rates * longest


def mean_lengths(
    flag: str, texts: Sequence[str], drafts: int | None, *, is_share: bool = False
) -> dict[str, tuple[float, int]]:
    """Return tokens per round and N by the name of a drafter, empty for an unnamed one.

    The texts of an option are ``[NAME=]L[@N]``, of which N is ``drafts`` by default. They may say
    the share of drafts that is accepted in place of L.
    """
    means = {}
    for text in texts:
        match = re.fullmatch(r"(?:([^=]+)=)?(\d*\.?\d+)(?:@(\d+))?", text)
        require(match is not None, f"{flag} {text}: give a number, as 2.9, mtp=2.4 or mtp=2.4@3")
        assert match
        number = int(match[3] or drafts or 0)
        require(
            number > 0,
            f"{flag} is a mean of rounds with N drafts: give that N by --draft-length, or {text}@N",
        )
        accepted = float(match[2])
        require(not is_share or accepted <= 1, f"{flag} {text}: give a share from 0 to 1")
        means[match[1] or ""] = (1 + number * accepted if is_share else accepted), number
    return means


def rate_of_length(accepted: float, drafts: int) -> float:
    """Return the rate at every position that gives so many tokens per round with N drafts."""
    require(
        1 <= accepted <= drafts + 1,
        f"--accepted-length {accepted:g} is no mean of rounds with {drafts} drafts, which emit "
        f"1 to {drafts + 1} tokens: give the N of its server by --draft-length",
    )
    return float(brentq(lambda rate: sum(rate**k for k in range(drafts + 1)) - accepted, 0, 1))


def rounds_of_rates(
    rates: Sequence[float] | None, drafter: DrafterKind, longest: int = 1
) -> PricedRounds:
    """Return rounds in which position k is accepted at a rate, given that those before it are.

    The rates are taken as exact: all prompts are alike, so that intervals are those of costs.
    Without rates they are usual ones, for the choice of N up to the longest.
    """
    is_assumed = rates is None
    rates = [USUAL * FALL**k for k in range(longest)] if rates is None else rates
    tokens_per_round = 1 + np.cumprod(rates).cumsum()
    lengths = np.arange(1, len(rates) + 1)
    rounds = np.tile(1 / tokens_per_round, (FEWEST, 1))
    numbers = tuple(lengths.tolist())
    drafted = rounds * lengths
    return PricedRounds(drafter, numbers, np.ones(FEWEST), rounds, drafted, True, is_assumed)


def windows(columns: Floats, size: int) -> Floats:
    """Return the next ``size`` values of each place ``[B, T]`` as ``[B, T, size]``; 0 behind.

    Columns of a module ``[B, T, D]`` have them already.
    """
    if columns.ndim == 3:
        return columns[..., :size]
    padded = np.pad(columns, ((0, 0), (0, size - 1)))
    return sliding_window_view(padded, size, axis=1)


def reach_of(accepted: Floats, most: int) -> Floats:
    """Return ``reach`` ``[B, T, N + 1]`` from independent probabilities ``[B, T]`` of tokens."""
    return with_one(windows(accepted, most).cumprod(-1))


def block(scores: Scores, most: int) -> Floats:
    """Return ``reach`` of drawn drafts that block verification judges together.

    With rho_j the product of q / p over the first j tokens of the round, at least k drafts are
    accepted with the least of 1, rho_1, ..., rho_k.
    """
    logarithms = np.log(np.maximum(scores.q, TINY)) - np.log(np.maximum(beside_q(scores), TINY))
    least = np.minimum.accumulate(windows(logarithms, most).cumsum(-1), axis=-1)
    return with_one(np.exp(np.minimum(least, 0)))


def acceptance(scores: Scores) -> Floats:
    """Return min(1, q / p) of each token; 0 where the target cannot have drawn it."""
    p = beside_q(scores)
    return np.minimum(1, np.divide(scores.q, p, out=np.zeros_like(scores.q), where=p > 0))


def beside_q(scores: Scores) -> Floats:
    """Return p in the shape of q."""
    return scores.p if scores.q.ndim == 2 else windows(scores.p, scores.q.shape[-1])


def starts(reach: Floats, drafts: Integers, length: Integers) -> Floats:
    """Return the probability that a round starts at each token ``[B, T]``.

    Args:
        reach: ``[B, T, N + 1]`` probability that at least k drafts are accepted.
        drafts: ``[B, T]`` how many drafts a round has that starts at each token, at most N.
        length: ``[B]`` tokens of each text.
    """
    texts, tokens, size = reach.shape
    emitted = np.where(np.arange(size) <= drafts[..., None], reach, 0)
    emitted[..., :-1] -= emitted[..., 1:].copy()  # now of exactly k + 1 tokens
    visits = np.zeros((texts, tokens + size))
    visits[:, 0] = 1
    for s in range(tokens):
        visits[:, s + 1 : s + 1 + size] += visits[:, s, None] * emitted[:, s]
    return np.where(np.arange(tokens) < length[:, None], visits[:, :tokens], 0)


def with_one(reach: Floats) -> Floats:
    """Return ``reach`` of 1, 2, ... drafts with that of none before it."""
    return np.concatenate([np.ones_like(reach[..., :1]), reach], axis=-1)


def drafting(scores: Scores, drafter: DrafterKind, rule: str, most: int) -> Drafting:
    """Return what is known of all rounds of texts, with up to ``most`` drafts.

    A drafter with weights of its own is one of ``scores.modules``. The rule that judges drawn
    drafts is ``match``, ``block``, or ``sd`` and its like.
    """
    if drafter.copies:
        return _copied(scores, drafter, most)
    scores = scores.modules.get(drafter, scores)
    top, entropy = windows(scores.top_q, most), windows(scores.entropy_q, most)
    if likeliest := drafter.greedy or scores.temperature == 0:  # every rule accepts these alike
        reach = reach_of((scores.rank_q == 1).astype(np.float64), most)
    elif rule == "block":
        reach = block(scores, most)
    else:
        reach = reach_of(scores.q if rule == "match" else acceptance(scores), most)
    return Drafting(
        top if likeliest else windows(scores.q, most),
        top,
        entropy,
        reach,
        np.full(scores.tokens.shape, most),
        scores.length,
    )


def _copied(scores: Scores, drafter: DrafterKind, most: int) -> Drafting:
    """Return the rounds of copied drafts, which depend on where a round starts."""
    shape = (*scores.tokens.shape, most)
    copied, proposed = np.full(shape, -1), np.zeros(shape[:2], dtype=np.int64)
    for text, prompt in enumerate(scores.prompts):
        size = int(scores.length[text])
        drafts, number = drafter.copied(prompt, scores.tokens[text, :size].tolist(), most)
        copied[text, :size], proposed[text, :size] = drafts.numpy(), number.numpy()
    following = windows(scores.tokens.astype(np.float64), most)
    is_proposed = np.arange(most) < proposed[..., None]
    equal = ((copied == following) & is_proposed).astype(np.float64)
    sure, reach = np.ones(shape), with_one(equal.cumprod(-1))
    return Drafting(sure, sure, np.zeros(shape), reach, proposed, scores.length)


def visits(rounds: Drafting, policy: Policy) -> tuple[Floats, Floats]:
    """Return the expected rounds that start at each token, and their drafts, each ``[B, T]``."""
    drafts = np.minimum(policy(rounds), rounds.most)
    started = starts(rounds.reach, drafts, rounds.length)
    return started, started * drafts


def price(
    scores: Scores,
    drafter: DrafterKind,
    policy: Policy,
    lengths: Sequence[int],
    *,
    rule: str = "sd",
) -> PricedRounds:
    """Return the expected rounds and drafts of each prompt for each N of ``lengths``."""
    whole = drafting(scores, drafter, rule, max(lengths))
    walks = [visits(whole.within(length), policy) for length in lengths]
    counts = [count.sum(-1) for column in zip(*walks, strict=True) for count in column]
    sums = scores.by_prompt(np.column_stack([scores.length, *counts]))
    expected, verified = np.split(sums[:, 1:], 2, axis=1)
    return PricedRounds(drafter, tuple(lengths), sums[:, 0], expected, verified)


def priced_rows(
    scores: Scores,
    drafters: Sequence[tuple[DrafterKind, str]],
    policies: Sequence[Policy],
    lengths: Sequence[int],
    by: str = "",
) -> pd.DataFrame:
    """Return a row for each drafter, policy and N, of all texts or of each category.

    ``drafters`` are pairs of a drafter and a rule, and ``by`` is empty or names the column
    ``category``.
    """
    rows: list[dict[str, Any]] = []
    categories = [name.category or "" if by else "" for name in scores.names]
    for drafter, rule in drafters:
        whole = drafting(scores, drafter, rule, max(lengths))
        # With a one-hot q, or drafts that are checked one by one, the rule does not matter.
        alike = drafter.copies or drafter.greedy or rule == "sd"
        label = f"{drafter}" if alike else f"{drafter}, {rule}"
        for length, policy in product(lengths, policies):
            rounds = visits(whole.within(length), policy)
            columns = np.stack([scores.is_token, *rounds], axis=-1).sum(1)
            setting = {"drafter": label, "policy": policy.label, "draft_length": length}
            for category in sorted({*categories}):
                texts = [text for text, name in enumerate(categories) if name == category]
                sums = scores.of(texts).by_prompt(columns[texts])  # [n, 3] by prompt
                totals, n = bootstrap(sums), len(sums)
                figures = {
                    "tokens_per_round": estimate(ratio(totals[:, :2]), n),
                    "drafted_per_round": estimate(ratio(totals[:, [2, 1]]), n),
                }
                category_of = {by: category} if by else {}
                rows.append({**category_of, **setting, **wide(figures), "n": n})
    return pd.DataFrame(rows)


def price_table(rows: pd.DataFrame, title: str, by: str) -> Table:
    """Return a readable table of ``priced_rows``."""
    ends = " [95 %]" if rows["tokens_per_round_low"].notna().any() else ""
    fields: list[Field[Row]] = [
        *([(by, lambda row: row[by])] if by else []),
        ("drafter", lambda row: row["drafter"]),
        ("policy", lambda row: row["policy"]),
        ("N", lambda row: str(row["draft_length"])),
        (f"tokens/round{ends}", ShownFigure("tokens_per_round", "", form=".3f").interval),
        ("drafts/round", ShownFigure("drafted_per_round", "", form=".2f").number),
    ]
    return Table.of(rows_of(rows), fields, title, stub=3 + bool(by))

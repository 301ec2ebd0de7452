"""Does speculation pay? Seconds per token of every drafter, draft length and batch size.

A text of T tokens takes R expected rounds (``pricing.rounds``), and a round of its batch takes s
seconds (``pricing.costs``). Speculation with N drafts is then faster by ``(T s(0)) / (R(N) s(N))``,
where s(0) is a pass without drafts. The interval covers the choice of prompts and, for costs that
were measured repeatedly, the noise of the mean of their repeats; that of what is computed from a
machine's figures is the bound of ``pricing.bounds``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise, product
from math import exp, inf, isnan, nan
from pathlib import Path

import numpy as np
import pandas as pd

from specbench.analysis.statistics.estimates import wide
from specbench.analysis.statistics.intervals import Floats, Interval, bootstrap, estimate, student
from specbench.analysis.tables.table import Field, Table, number, with_interval
from specbench.decoding.drafters.kind import DrafterKind
from specbench.errors import require
from specbench.files import write_atomically
from specbench.pricing.costs import COSTS, Costs
from specbench.pricing.flags import Schedule
from specbench.pricing.rounds import PricedRounds, rate_of_length

DECISION = "decision.csv"
NOTICED = 0.0005  # of a speed-up
PAYS, LOSES, OPEN, UNTOLD = "pays", "loses", "undecided", "measure"
MEASURE = "Not decided by computing: measure one minute"


@dataclass(frozen=True)
class PricedSetting:
    """A drafter with a draft length at a batch size, and what it brings."""

    batch: int
    drafter: DrafterKind
    length: int
    tokens_per_round: Interval
    seconds_per_token: float  # of one text in the batch
    speedup: Interval  # over no speculation at the same batch size; nan where none is told
    resampled: Floats  # speed-up of the data and of its resamples [1 + RESAMPLES]
    break_even: Interval  # tokens per round at which both are equally fast

    @property
    def verdict(self) -> str:
        """Whether speculation pays, by the interval of the speed-up."""
        if self.tokens_per_round.value <= 1:  # as many as a pass without drafts gives
            return LOSES
        value, low, high = self.speedup[:3]
        if isnan(value):
            return UNTOLD
        if round(value if isnan(low) else low, 2) > 1:  # as it is printed
            return PAYS
        return LOSES if round(value if isnan(high) else high, 2) < 1 else OPEN

    @property
    def pays_from(self) -> str:
        """The break-even in words, and the rate at every position that it needs."""
        accepted, most = self.break_even.value, self.length + 1
        if accepted > most:
            return f"{self.drafter} cannot pay at batch {self.batch} with N = {self.length}"
        rate = rate_of_length(max(accepted, 1.0), self.length)
        return (
            f"{self.drafter} pays from {with_interval(*self.break_even[:3], '.2f')} tokens per "
            f"round (N = {self.length}, {100 * rate:.0f} % accepted) at batch {self.batch}"
        )

    @property
    def times(self) -> str:
        """The speed-up in words, with its interval if it has one."""
        text = with_interval(*self.speedup[:3], ".2f")
        return f"{text} times as fast with {self.drafter} at batch {self.batch}"


@dataclass(frozen=True)
class Decision:
    """All settings, and the fastest one of each drafter at each batch size."""

    costs: Mapping[DrafterKind, Costs]
    settings: tuple[PricedSetting, ...]

    @property
    def batches(self) -> list[int]:
        """The batch sizes, sorted."""
        return sorted({setting.batch for setting in self.settings})

    @property
    def drafters(self) -> list[DrafterKind]:
        """The drafters, in their order."""
        return list(dict.fromkeys(setting.drafter for setting in self.settings))

    def sizes(self, batches: Sequence[int]) -> str:
        """Return batch sizes in words; neighbours of those that were decided are a range."""
        places = [self.batches.index(batch) for batch in batches]
        runs = [[*run] for _, run in groupby(enumerate(places), lambda pair: pair[1] - pair[0])]
        ends = [(self.batches[run[0][1]], self.batches[run[-1][1]]) for run in runs]
        return ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in ends)

    def fastest(self, batch: int, drafter: DrafterKind | None = None) -> PricedSetting:
        """Return the fastest setting at a batch size, of all drafters or of one.

        One that is shown to pay stands before those that may be faster by their noise alone.
        """
        return max(
            (s for s in self.settings if s.batch == batch and drafter in (None, s.drafter)),
            key=lambda setting: (setting.verdict == PAYS, setting.resampled[0]),
        )

    def first_that_pays(self) -> PricedSetting | None:
        """Return the fastest setting at the smallest batch size at which speculation pays."""
        best = (self.fastest(batch) for batch in self.batches)
        return next((setting for setting in best if setting.verdict == PAYS), None)

    def schedule(self, drafter: DrafterKind) -> Schedule:
        """Return the schedule of a drafter; N is 0 where it does not pay.

        At a priced batch size N is that of ``fastest``. Between two of them it is the smaller one.
        The first row begins at batch 1, as vLLM requires.
        """
        best = {batch: self.fastest(batch, drafter) for batch in self.batches}
        lengths = {b: s.length if s.verdict == PAYS else 0 for b, s in best.items()}
        steps = [(1, self.batches[0], lengths[self.batches[0]])]
        for before, batch in pairwise(self.batches):
            steps.append((before + 1, batch - 1, min(lengths[before], lengths[batch])))
            steps.append((batch, batch, lengths[batch]))
        filled = [step for step in steps if step[0] <= step[1]]
        rows = [[*run] for _, run in groupby(filled, lambda step: step[2])]
        return [(run[0][0], run[-1][1], run[0][2]) for run in rows]

    @property
    def is_computed(self) -> bool:
        """Whether a machine's figures gave the seconds."""
        return any(costs.bound for costs in self.costs.values())

    @property
    def is_told(self) -> bool:
        """Whether there are speed-ups."""
        return not isnan(self.settings[0].speedup.value)

    def table(self) -> pd.DataFrame:
        """Return one row for each setting."""
        return pd.DataFrame(
            {
                "batch_size": setting.batch,
                "drafter": str(setting.drafter),
                "draft_length": setting.length,
                **wide({"tokens_per_round": setting.tokens_per_round}),
                "seconds_per_token": setting.seconds_per_token,
                **wide({"speedup": setting.speedup, "break_even": setting.break_even}),
                "verdict": setting.verdict,
            }
            for setting in self.settings
        )


def decide(
    priced: Iterable[PricedRounds],
    costs: Costs | Mapping[DrafterKind, Costs],
    batches: Sequence[int],
    lengths: Collection[int] | None = None,
) -> Decision:
    """Return the speed-up of every drafter at every batch size, with each of the draft lengths.

    Draft lengths beyond those of the costs or of the rounds are left out.

    Raises:
        UsageError: A batch size is outside of the costs, or no draft length is left.
    """
    settings, priced = [], list(priced)
    if isinstance(costs, Costs):
        costs = dict.fromkeys((rounds.drafter for rounds in priced), costs)
    for rounds in priced:
        n, resampled, of_drafter = len(rounds.tokens), rounds.resampled, costs[rounds.drafter]
        for batch, (column, length) in product(batches, enumerate(rounds.lengths)):
            is_asked = lengths is None or length in lengths
            if not (is_asked and of_drafter.lengths[1] <= length <= of_drafter.lengths[-1]):
                continue
            plain = of_drafter.seconds(batch, 0, rounds.drafter)
            seconds = of_drafter.seconds(batch, length, rounds.drafter)
            tokens_per_round, prompts = resampled[:, column], of_drafter.prompt_seconds(batch)
            if len(plain) == 1:
                ratio = (plain + prompts) / (seconds + prompts * tokens_per_round)
            else:
                totals = bootstrap(np.column_stack([plain, seconds]))
                ratios = totals[:, 0] / totals[:, 1]
                # The draws of prompts come in the same order, and must be independent of these.
                ratio = np.concatenate([ratios[:1], ratios[:0:-1]])
            speedups = tokens_per_round * ratio
            value, bound = float(speedups[0]), of_drafter.bound
            if rounds.is_assumed or (bound and bound.is_open):
                speedup = Interval(nan, nan, nan, n)
            elif bound:
                speedup = Interval(value, value / bound.factor, value * bound.factor, n)
            elif rounds.is_exact and len(plain) == 1:
                speedup = Interval(value, nan, nan, n)
            else:
                speedup = _speedup(tokens_per_round, plain, seconds, n)
            tokens = estimate(tokens_per_round, n)
            settings.append(
                PricedSetting(
                    batch,
                    rounds.drafter,
                    length,
                    tokens._replace(low=nan, high=nan) if rounds.is_exact else tokens,
                    float(seconds.mean() / tokens_per_round[0] + prompts),
                    speedup,
                    speedups,
                    break_even(of_drafter, batch, length, rounds.drafter),
                )
            )
    require(len(settings) > 0, "no --draft-length has both an acceptance and a cost: name others")
    return Decision(costs, tuple(settings))


def break_even(costs: Costs, batch: int, length: int, drafter: DrafterKind) -> Interval:
    """Return the tokens per round from which N drafts are faster than none.

    Its ends, within the bound of computed costs, are those below which N surely loses and from
    which it surely pays.
    """
    plain, seconds = (float(costs.seconds(batch, n, drafter).mean()) for n in (0, length))
    prompts, factor = costs.prompt_seconds(batch), nan
    if costs.bound and not costs.bound.is_open:
        factor = costs.bound.factor

    def tokens(speedup: float) -> float:
        left = (plain + prompts) / speedup - prompts
        return inf if left <= 0 else seconds / left

    return Interval(tokens(1.0), tokens(1 / factor), tokens(factor), 0)


def _speedup(tokens_per_round: Floats, plain: Floats, seconds: Floats, n: int) -> Interval:
    """Return the speed-up with its interval.

    The logarithm of the ratio of mean seconds has the variance of a mean over R repeats. It is
    added to that of the tokens per round ``[1 + RESAMPLES]``, which the bootstrap over n prompts
    gives. Seconds are those of a pass without drafts, and of a round, in every repeat ``[R]``.
    """
    ratio, repeats = plain.mean() / seconds.mean(), len(plain)
    if repeats == 1:
        return estimate(ratio * tokens_per_round, n, log=True)
    of_prompts = float(np.log(tokens_per_round[1:]).var() * n / (n - 1))
    noise = plain / plain.mean() - seconds / seconds.mean()  # of the logarithm, to first order
    of_costs = float(noise.var(ddof=1) / repeats)
    half = student(0.0, n, (of_costs, repeats - 1), (of_prompts, n - 1)).high
    value = float(ratio * tokens_per_round[0])
    return Interval(value, value * exp(-half), value * exp(half), n)


def answer(decision: Decision) -> str:
    """Say whether to speculate, with which N at which batch sizes, and how sure that is."""
    bests = {batch: decision.fastest(batch) for batch in decision.batches}
    best = decision.first_that_pays() or max(bests.values(), key=lambda s: s.resampled[0])
    bound = decision.costs[best.drafter].bound
    how_far = [str(bound)] if bound and not bound.is_open else []
    if not decision.is_told:
        start = [MEASURE] if bound and bound.is_open else []
        begin = [decision.fastest(decision.batches[0], d).pays_from for d in decision.drafters]
        return "\n".join([*start, *begin, *how_far])
    doubt = "measure it" if bound else "more prompts or times"
    words = {
        PAYS: "Speculate at batch {}{}",
        OPEN: f"Not decided at batch {{}} ({doubt}){{}}",
        LOSES: "Leave it off at batch {}",
    }
    parts = []
    for verdict, text in words.items():
        if batches := [batch for batch, s in bests.items() if s.verdict == verdict]:
            parts.append(text.format(decision.sizes(batches), _lengths_at(decision, batches)))
    return "\n".join([f"{'; '.join(parts)}.", f"{best.times}.", *how_far])


def _lengths_at(decision: Decision, batches: Sequence[int]) -> str:
    """Return the best drafter and N, with the batch sizes of each if they differ."""
    chosen: dict[str, list[int]] = {}
    start = f" with {decision.drafters[0]}: " if len(decision.drafters) == 1 else ": "
    for batch in batches:
        best = decision.fastest(batch)
        name = "" if f" {best.drafter}:" in start else f"{best.drafter} with "
        chosen.setdefault(f"{name}N = {best.length}", []).append(batch)
    texts = [f"{text} at {decision.sizes(of)}" for text, of in chosen.items()]
    return start + (", ".join(texts) if len(texts) > 1 else next(iter(chosen)))


def remarks(decision: Decision, priced: Sequence[PricedRounds]) -> Iterator[str]:
    """Say where a larger N may be faster, and in which way the speed-ups may be too large."""
    bests = [decision.fastest(batch) for batch in decision.batches]
    for drafter in decision.drafters:
        longest = max(s.length for s in decision.settings if s.drafter == drafter)
        at = [str(s.batch) for s in bests if (s.drafter, s.length) == (drafter, longest)]
        if longest > 1 and at:
            yield (
                f"{drafter}: N = {longest} is the largest that was priced, and the best at batch "
                f"{', '.join(at)}, so a larger one may be faster"
            )
    for rounds in priced:
        if rounds.drafter.copies and rounds.is_exact:
            yield (
                f"{rounds.drafter}: every round is taken to have N drafts, and finding them to "
                "cost nothing, so servers gain less"
            )
        elif rounds.drafter.copies:
            drafts = rounds.drafted[:, -1].sum() / rounds.rounds[:, -1].sum()
            yield (
                f"{rounds.drafter} is priced as if every round had N drafts, as specbench pads "
                f"them: with N = {rounds.lengths[-1]} it copies {drafts:.1f} in the mean, so "
                "engines that verify only these gain more"
            )
    # By how much the best of all settings looks too fast, as it was chosen: in every resample the
    # fastest one is chosen anew and compared with its value in the data (Efron 1983,
    # doi:10.2307/2288636). This is the mean over experiments; a single one may be off by more.
    most = 0.0
    for batch in decision.batches:
        values = np.array([s.resampled for s in decision.settings if s.batch == batch])
        chosen = values[:, 1:].argmax(axis=0)
        most = max(most, float((values[:, 1:].max(axis=0) - values[chosen, 0]).mean()))
    if most >= NOTICED:
        yield (
            f"expect a speed-up about {most:.3f} smaller: picking the best of many settings "
            "flatters it"
        )
    if any(r.is_exact and not r.is_assumed for r in priced) and not decision.is_computed:
        yield "the rates are taken as exact: intervals cover the noise of repeated costs alone"


def decision_table(decision: Decision) -> Table:
    """Return the fastest setting at each batch size, beside the other drafters."""
    best = [decision.fastest(batch) for batch in decision.batches]
    several = len(decision.drafters) > 1

    def cell(drafter: DrafterKind, s: PricedSetting) -> str:
        of_drafter = decision.fastest(s.batch, drafter)
        return f"{of_drafter.length}: {of_drafter.speedup.value:.2f}"

    fields: list[Field[PricedSetting]] = [("batch", lambda s: str(s.batch))]
    if several:
        fields += [(f"{d}\nN: gain", partial(cell, d)) for d in decision.drafters]
    fields.append(("best", lambda s: str(s.drafter)))
    if not several:  # beside the gains, these do not fit a screen
        ends = " [95 %]" if any(not isnan(s.tokens_per_round.low) for s in best) else ""
        tokens = f"tokens/\nround{ends}"
        fields += [
            ("N", lambda s: str(s.length)),
            (tokens, lambda s: with_interval(*s.tokens_per_round[:3], form=".2f")),
            ("pays\nfrom", lambda s: number(s.break_even.value, ".2f")),
        ]
    ends = "[95 %]" if any(not isnan(s.speedup.low) for s in best) else ""
    ends = "[9 in 10]" if decision.is_computed else ends
    fields += [
        (f"speed-up\n{ends}", lambda s: with_interval(*s.speedup[:3], form=".2f")),
        ("verdict" if several else "speculation", lambda s: s.verdict),
    ]
    return Table.of(best, fields, stub=1)


def break_even_table(decision: Decision) -> Table:
    """Return the tokens per round from which each N pays, and the N to begin with."""
    best = [decision.fastest(batch, d) for batch in decision.batches for d in decision.drafters]
    settings = {(s.batch, s.drafter, s.length): s.break_even.value for s in decision.settings}
    lengths = [*dict.fromkeys(setting.length for setting in decision.settings)][:5]

    def cell(length: int, s: PricedSetting) -> str:
        value = settings.get((s.batch, s.drafter, length), nan)
        return "never" if value > length + 1 else number(value, ".2f")

    fields: list[Field[PricedSetting]] = [
        ("batch", lambda s: str(s.batch)),
        ("drafter", lambda s: str(s.drafter)),
        ("begin\nwith N", lambda s: str(s.length)),
    ]
    fields += [(f"N = {n}\npays from", partial(cell, n)) for n in lengths]
    return Table.of(best, fields, stub=2)


def write_tables(folder: Path, decision: Decision) -> None:
    """Write every setting, and the costs, as CSV files."""
    alike = len({id(costs) for costs in decision.costs.values()}) == 1
    tables = {COSTS if alike else f"costs-{d}.csv": c.table() for d, c in decision.costs.items()}
    tables[DECISION] = decision.table()
    for name, table in tables.items():
        write_atomically(folder / name, table.to_csv(index=False, float_format="%.6g"))

"""Does speculation pay? Seconds per token of every drafter, draft length and batch size.

A text of T tokens takes R expected rounds (``pricing.rounds``), and a round of its batch takes s
seconds (``pricing.costs``). Speculation with N drafts is then faster by ``(T s(0)) / (R(N) s(N))``,
where s(0) is a pass without drafts. The interval covers the choice of prompts and, for costs that
were measured repeatedly, the noise of the mean of their repeats. The settings of engines for each
drafter are methods of its class in ``decoding.drafters``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, product
from math import exp, isnan, nan
from pathlib import Path

import numpy as np
import pandas as pd

from specbench.analysis.statistics.intervals import Floats, Interval, bootstrap, estimate, student
from specbench.analysis.tables.table import Table, number, with_interval
from specbench.decoding.drafters.kind import DrafterKind
from specbench.errors import require
from specbench.files import write_atomically
from specbench.pricing.costs import COSTS, Costs
from specbench.pricing.flags import Schedule
from specbench.pricing.heads import kind_called
from specbench.pricing.rounds import PricedRounds
from specbench.pricing.tables import ends_of
from specbench.pricing.tried import how_sure

DECISION = "decision.csv"
NOTICED = 0.0005  # of a speed-up
PAYS, LOSES, OPEN = "pays", "loses", "undecided"


@dataclass(frozen=True)
class PricedSetting:
    """A drafter with a draft length at a batch size, and what it brings."""

    batch: int
    drafter: DrafterKind
    length: int
    tokens_per_round: Interval
    seconds_per_token: float  # of one text in the batch
    speedup: Interval  # over no speculation at the same batch size; no ends if it is computed
    resampled: Floats  # speed-up of the data and of its resamples [1 + RESAMPLES]
    error: float | None = None  # relative, of a computed speed-up in nine of ten

    @property
    def verdict(self) -> str:
        """Whether speculation pays, by the interval of the speed-up, or by its error."""
        if self.tokens_per_round.value <= 1:  # as many as a pass without drafts gives
            return LOSES
        low, high = self.speedup[1:3]
        if self.error is not None:
            low, high = (self.speedup.value / (1 + e) for e in (self.error, -self.error))
        if low > 1:
            return PAYS
        return LOSES if high < 1 else OPEN

    @property
    def times(self) -> str:
        """The speed-up in words, with its interval if it has one."""
        text = with_interval(*self.speedup[:3], ".2f")
        return f"{self.drafter}, N = {self.length}, {text} times as fast at batch {self.batch}"


@dataclass(frozen=True)
class Decision:
    """All settings, and the fastest one of each drafter at each batch size."""

    costs: Costs
    settings: tuple[PricedSetting, ...]

    @property
    def batches(self) -> list[int]:
        """The batch sizes, sorted."""
        return sorted({setting.batch for setting in self.settings})

    @property
    def drafters(self) -> list[DrafterKind]:
        """The drafters, in their order."""
        return list(dict.fromkeys(setting.drafter for setting in self.settings))

    def fastest(self, batch: int, drafter: DrafterKind | None = None) -> PricedSetting:
        """Return the fastest setting at a batch size, of all drafters or of one."""
        return max(
            (s for s in self.settings if s.batch == batch and drafter in (None, s.drafter)),
            key=lambda setting: setting.speedup.value,
        )

    def first_that_pays(self) -> PricedSetting | None:
        """Return the fastest setting at the smallest batch size at which speculation pays."""
        best = (self.fastest(batch) for batch in self.batches)
        return next((setting for setting in best if setting.verdict == PAYS), None)

    def optimism(self, batch: int) -> float:
        """Return by about how much the best of all settings looks too fast, as it was chosen.

        In every resample the fastest setting is chosen anew and compared with its value in the
        data. This estimates the mean over experiments; a single one may be off by more.

        Source: Efron 1983, doi:10.2307/2288636.
        """
        values = np.array([s.resampled for s in self.settings if s.batch == batch])
        chosen = values[:, 1:].argmax(axis=0)
        return max(0.0, float((values[:, 1:].max(axis=0) - values[chosen, 0]).mean()))

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

    def table(self) -> pd.DataFrame:
        """Return one row for each setting."""
        return pd.DataFrame(
            {
                "batch_size": setting.batch,
                "drafter": str(setting.drafter),
                "draft_length": setting.length,
                **ends_of("tokens_per_round", setting.tokens_per_round),
                "seconds_per_token": setting.seconds_per_token,
                **ends_of("speedup", setting.speedup),
                "verdict": setting.verdict,
            }
            for setting in self.settings
        )


def decide(
    priced: Iterable[PricedRounds],
    costs: Costs,
    batches: Sequence[int],
    lengths: Collection[int] | None = None,
) -> Decision:
    """Return the speed-up of every drafter at every batch size, with each of the draft lengths.

    Draft lengths beyond those of the costs or of the rounds are left out.

    Raises:
        UsageError: A batch size is outside of the costs, or no draft length is left.
    """
    settings = []
    for rounds in priced:
        n, resampled = len(rounds.tokens), rounds.resampled
        for batch, (column, length) in product(batches, enumerate(rounds.lengths)):
            is_asked = lengths is None or length in lengths
            if not (is_asked and costs.lengths[1] <= length <= costs.lengths[-1]):
                continue
            plain = costs.seconds(batch, 0, rounds.drafter)
            seconds = costs.seconds(batch, length, rounds.drafter)
            tokens_per_round, prompts = resampled[:, column], costs.prompt_seconds(batch)
            error: float | None = None
            if costs.machine:
                speedups = (plain + prompts) / (seconds / tokens_per_round + prompts)
                error = how_sure(costs.machine, kind_called(str(rounds.drafter)), batch).error
            else:
                speedups = tokens_per_round * _resampled_ratio(plain, seconds)
                if rounds.is_exact and len(plain) == 1:  # nothing has noise that is known
                    error = 0.0
            speedup = (
                _speedup(tokens_per_round, plain, seconds, n)
                if error is None
                else Interval(float(speedups[0]), nan, nan, n)
            )
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
                    error,
                )
            )
    require(len(settings) > 0, "no --draft-length has both an acceptance and a cost: name others")
    return Decision(costs, tuple(settings))


def _speedup(tokens_per_round: Floats, plain: Floats, seconds: Floats, n: int) -> Interval:
    """Return the speed-up with its interval.

    The logarithm of the ratio of mean seconds has the variance of a mean over R repeats. It is
    added to that of the tokens per round, which the bootstrap over n prompts gives.

    Args:
        tokens_per_round: Of the prompts and of their resamples ``[1 + RESAMPLES]``.
        plain: Seconds of a pass without drafts in every repeat ``[R]``.
        seconds: Seconds of a round ``[R]``.
        n: Number of prompts.
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


def _resampled_ratio(plain: Floats, seconds: Floats) -> Floats:
    """Return the ratio of mean seconds over repeats and of their resamples [1 + RESAMPLES]."""
    if len(plain) == 1:
        return np.ones(1) * plain / seconds
    totals = bootstrap(np.column_stack([plain, seconds]))
    ratios = totals[:, 0] / totals[:, 1]
    # The draws of prompts come in the same order, and must be independent of these.
    return np.concatenate([ratios[:1], ratios[:0:-1]])


def answer(decision: Decision) -> str:
    """Say in one sentence whether to speculate, with what, and how sure that is."""
    bests = [decision.fastest(batch) for batch in decision.batches]
    best = decision.first_that_pays()
    if best is not None:
        paying = [setting.batch for setting in bests if setting.verdict == PAYS]
        sizes = "every batch size" if len(paying) == len(bests) else f"batch {_listed(paying)}"
        text = f"Speculate at {sizes}: {best.times}"
    else:
        best = max(bests, key=lambda setting: setting.speedup.value)
        is_open = any(setting.verdict == OPEN for setting in bests)
        doubt = "a measurement shows" if decision.costs.machine else "more prompts or times show"
        why = (
            f"Not decided: leave it off until {doubt} a gain"
            if is_open
            else "Leave it off: speculation loses at every batch size"
        )
        text = f"{why} (best: {best.times})"
    if machine := decision.costs.machine:
        text += f".\n{how_sure(machine, kind_called(str(best.drafter)), best.batch).words}"
    return f"{text}."


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def remarks(decision: Decision, priced: Sequence[PricedRounds]) -> Iterator[str]:
    """Say where a larger N may be faster, and in which way the speed-ups may be too large."""
    for drafter in decision.drafters:
        longest = max(s.length for s in decision.settings if s.drafter == drafter)
        best = [decision.fastest(batch, drafter) for batch in decision.batches]
        if longest > 1 and (at := [s.batch for s in best if s.length == longest]):
            yield (
                f"{drafter}: N = {longest} is the largest that was priced, and the best at batch "
                f"{_listed(at)}, so a larger one may be faster"
            )
    for rounds in priced:
        if rounds.drafter.copies and not rounds.is_exact:
            drafts = rounds.drafted[:, -1].sum() / rounds.rounds[:, -1].sum()
            yield (
                f"{rounds.drafter} is priced as if every round had N drafts, as specbench pads "
                f"them: with N = {rounds.lengths[-1]} it copies {drafts:.1f} in the mean, so "
                "engines that verify only these gain more"
            )
    if (most := max(decision.optimism(batch) for batch in decision.batches)) >= NOTICED:
        yield (
            f"expect a speed-up about {most:.3f} smaller: picking the best of many settings "
            "flatters it"
        )
    if any(rounds.is_exact for rounds in priced) and not decision.costs.machine:
        yield "the rates are taken as exact: intervals cover the noise of repeated costs alone"


def where_not_to_draft(decision: Decision, drafter: DrafterKind) -> Iterator[str]:
    """Say at which batch sizes a drafter does not pay, and which one does there."""
    batches: dict[str, list[int]] = {}
    for batch in decision.batches:
        best = decision.fastest(batch)
        if best.verdict != PAYS:
            batches.setdefault("leave speculation off", []).append(batch)
        elif decision.fastest(batch, drafter).verdict != PAYS:
            only = f"only {best.drafter} pays, with N = {best.length}"
            batches.setdefault(only, []).append(batch)
    for advice, sizes in batches.items():
        yield f"at batch {_listed(sizes)} {advice}"


def decision_table(decision: Decision) -> Table:
    """Return the fastest setting of each drafter at each batch size."""
    best = [decision.fastest(b, d) for b in decision.batches for d in decision.drafters]
    ends = {
        name: " [95 %]" if any(not isnan(getattr(s, name).low) for s in best) else ""
        for name in ("tokens_per_round", "speedup")
    }
    computed = ",\ncomputed" if decision.costs.machine else ""
    return Table.of(
        best,
        [
            ("batch", lambda s: str(s.batch)),
            ("drafter", lambda s: str(s.drafter)),
            ("N", lambda s: str(s.length)),
            (
                f"tokens/\nround{ends['tokens_per_round']}",
                lambda s: with_interval(*s.tokens_per_round[:3], ".2f"),
            ),
            ("ms/\ntoken", lambda s: number(1e3 * s.seconds_per_token, "3s")),
            (
                f"speed-up{ends['speedup']}{computed}",
                lambda s: with_interval(*s.speedup[:3], ".2f"),
            ),
            ("speculation", lambda s: s.verdict),
        ],
        stub=2,
    )


def write_tables(folder: Path, decision: Decision) -> None:
    """Write every setting, and the costs, as CSV files.

    Raises:
        SpecbenchError: A file cannot be written.
    """
    tables = {DECISION: decision.table(), COSTS: decision.costs.table()}
    for name, table in tables.items():
        write_atomically(folder / name, table.to_csv(index=False, float_format="%.6g"))

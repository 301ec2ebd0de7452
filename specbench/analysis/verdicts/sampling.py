"""Whether the texts of each method follow the distribution of another one's, in words.

Texts of one prompt and repeat may share their random numbers, so half of each arm's repeats are
compared: see ``statistics.sampled``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import pandas as pd

from specbench.analysis.statistics.sampled import (
    COOLER,
    FEWEST_TEXTS,
    GREEDY,
    LEVEL,
    Fault,
    Sampled,
    Text,
    compare_texts,
    power,
)
from specbench.analysis.tables.table import percent
from specbench.analysis.verdicts.contrasts import Row
from specbench.analysis.verdicts.margin import SETTING, TASK, arm_named
from specbench.runs.frames import rows_of

DIFFER, SAME, UNKNOWN = "texts differ", "no difference seen", "not known"
FEW = (
    "there are too few texts to show whether they follow the distribution of {}: measure with "
    "--repeats 8, or more prompts"
)
FIGURES = ("same_texts_p", "same_texts_power")
ENOUGH = 0.8  # power that a requirement asks for
LIKELY = 0.5  # power against the largest fault without which nothing is said
#: The fault that a requirement must have been able to see.
REQUIRED = GREEDY[1]
_WORDS = re.compile(r"\w+|[^\w\s]|\s+")
_SHARES = {0.1: "one of ten answers", 0.2: "one of five answers", 0.5: "half of the answers"}


def sampling_rows(texts: pd.DataFrame, method: str) -> pd.DataFrame:
    """Compare the texts of each method with those of one.

    Args:
        texts: A row per text, with the columns of ``margin.with_arms``.
        method: The baseline; see ``margin.arm_named``.

    Returns:
        A row per setting: ``same_texts_p`` after Holm's correction, the outcome in words
        ``same_texts``, the power against ``REQUIRED`` with that correction, and sentences.
    """
    against = arm_named(method, texts)
    rows: list[Row] = []
    pairs: list[tuple[Row, list[list[Text]], list[list[Text]]]] = []
    texts = texts[(texts["temperature"] > 0) & ~(texts["turn"] > 1)]
    for _, cells in texts.groupby(TASK, sort=False, dropna=False):
        base, compared = cells[cells["arm"] == against], cells[cells["arm"] != against]
        for _, cell in compared.groupby(SETTING, sort=False, dropna=False):
            of_load = base[base["load"] == cell["load"].iloc[0]]
            row: Row = cell.iloc[0][[*TASK, *SETTING]].to_dict() | dict.fromkeys(FIGURES, math.nan)
            row |= {"same_texts": UNKNOWN, "same_texts_sentence": FEW.format(against)}
            row["same_texts_seen"] = ""
            rows.append(row)
            ours, theirs = _by_prompt(of_load if len(of_load) else base, cell)
            if ours:
                pairs.append((row, ours, theirs))
    # The level is that of the smallest p value in Holm's correction.
    level, shares = LEVEL / max(1, len(pairs)), dict[Fault, float]()
    outcomes: list[tuple[Row, Sampled]] = []
    for number, (row, ours, theirs) in enumerate(pairs):
        outcomes.append((row, compare_texts(ours, theirs, level=level)))
        if not number or ours != pairs[number - 1][1]:
            shares = power(ours, level=level)
        row |= {"same_texts_power": shares[REQUIRED], "same_texts_seen": _seen(shares)}
        if shares[GREEDY[-1]] >= LIKELY:  # else so few texts show nothing
            row["same_texts"] = SAME
    p = 0.0
    ordered = sorted(outcomes, key=lambda outcome: outcome[1].p)
    for number, (row, outcome) in enumerate(ordered):  # Holm's correction
        p = max(p, min(1.0, outcome.p * (len(ordered) - number)))
        row["same_texts_p"] = p
        if p <= LEVEL:
            row["same_texts"] = DIFFER
        if row["same_texts"] != UNKNOWN:
            row["same_texts_sentence"] = _sentence(outcome, p, against)
    columns = [*TASK, *SETTING, *FIGURES, "same_texts", "same_texts_sentence", "same_texts_seen"]
    return pd.DataFrame(rows, columns=columns)


def sampling_verdicts(judged: pd.DataFrame) -> pd.DataFrame:
    """Return a sentence on the texts of each method of ``Results.against``, and on the power."""
    sampled = judged[judged["same_texts"].isin([SAME, DIFFER])]
    of_arms = sampled.assign(sentence=sampled["label"] + ": " + sampled["same_texts_sentence"])
    of_faults = sampled.assign(sentence=sampled["same_texts_seen"])
    return pd.concat([of_arms, of_faults]).drop_duplicates([*TASK, "sentence"])


def _by_prompt(base: pd.DataFrame, cell: pd.DataFrame) -> tuple[list[list[Text]], list[list[Text]]]:
    """Return the texts of the prompts of which both have all repeats; none if they are too few."""
    repeats = int(min(base["repeat"].max(), cell["repeat"].max())) + 1 if len(base) else 0
    if repeats < FEWEST_TEXTS or "token_ids" not in base:  # the run is there without its records
        return [], []
    ids, words = (pd.concat([base, cell])[name] for name in ("token_ids", "text"))
    # A server that returns no ids has an empty list of them, and a text.
    has_ids = all(isinstance(i, list) and (i or not w) for i, w in zip(ids, words, strict=True))
    sides = []
    for side in (base, cell):
        prompts: dict[str, dict[int, Text]] = {}
        for row in rows_of(side[["sample_id", "repeat", "text", "token_ids", "stopped_by"]]):
            tokens = row["token_ids"] if has_ids else _WORDS.findall(row["text"] or "")
            text = (*tokens, row["stopped_by"])
            prompts.setdefault(row["sample_id"], {}).setdefault(row["repeat"], text)
        sides.append(prompts)
    shared = [
        name
        for name, of_base in sides[0].items()
        if all(r in of_base and r in sides[1].get(name, {}) for r in range(repeats))
    ]
    first, second = ([[side[n][r] for r in range(repeats)] for n in shared] for side in sides)
    return (first, second) if len(shared) > 1 else ([], [])


def _sentence(outcome: Sampled, p: float, against: str) -> str:
    value = "p < .001" if p < 0.001 else f"p = {p:.2g}".replace("0.", ".")
    if p <= LEVEL:
        varied = "less" if outcome.is_alike else "more"
        return (
            f"texts differ from those of {against} ({value}): those of a prompt vary {varied} than "
            "its own"
        )
    return (
        f"texts follow the distribution of {against} as far as {outcome.texts} texts of each on "
        f"{outcome.prompts} prompts show ({value})"
    )


def _seen(shares: Mapping[Fault, float]) -> str:
    """Say which mildest faults would have been seen, in what share of such runs."""
    greedy, cooler = (
        next((fault for fault in faults if shares[fault] >= ENOUGH), faults[-1])
        for faults in (GREEDY, COOLER)
    )
    return (
        f"greedy texts in {_SHARES[greedy.greedy]} would have been seen in "
        f"{percent(shares[greedy], '.0f')} of such runs, a temperature "
        f"{percent(1 - cooler.temperature, '.0f')} lower in at least "
        f"{percent(shares[cooler], '.0f')}"
    )

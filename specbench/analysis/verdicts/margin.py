"""Verdicts with a margin: every method of a run against one of them, such as a plain server.

Both sides are compared on the answers that both have, paired by prompt: turns and repeats of a
prompt stay together. Methods match at the same task, temperature, draft length and concurrency; one
that decodes B texts together has a concurrency of B. Engine and drafter may differ.

A method is within the margin if the lower end of the 95 % interval of its difference is above minus
the margin, also with the failures that n prompts cannot exclude (``limit_with_failures``), and with
answers that it alone lacks counted as wrong. The noise of times is how much the same server under
another name differs from the baseline, or ``sd`` from itself if a run names it twice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis.statistics import estimates
from specbench.analysis.statistics.blocks import by_time_unit, count_blocks, has_comparable_times
from specbench.analysis.statistics.estimates import DENSITY, LENGTH, QUALITY_LESS, SPEED, TIMES
from specbench.analysis.statistics.intervals import (
    CONFIDENCE,
    UNKNOWN,
    Floats,
    Interval,
    limit_with_failures,
)
from specbench.analysis.statistics.points import Setting, scored_alike, shared_points, timed_points
from specbench.analysis.statistics.proportions import ERRORS, is_binary
from specbench.analysis.statistics.sessions import TaskRun, recipe_key
from specbench.analysis.verdicts.arm_remarks import CONTENT_WORDS, contents_of, remarks_on
from specbench.analysis.verdicts.contrasts import Row
from specbench.analysis.verdicts.sentences import margin_verdict
from specbench.analysis.verdicts.slower import why_slower
from specbench.analysis.verdicts.words import CONCURRENCY
from specbench.errors import UsageError, listed, unknown
from specbench.methods.registry import METHOD_COLUMNS, from_columns, to_columns
from specbench.plugins import short_name
from specbench.runs.frames import example_ids, first_decodes, rows_of, without_repeats
from specbench.runs.labels import method_labels
from specbench.tasks.metrics import shown_metric

UNEQUAL_COUNTS = 1.1  # ratio of tokens per byte from which two servers do not count alike
TASK = ["run_id", "task", "temperature"]
SETTING = ["arm", "load", "draft_length"]
#: Latencies of an answer: the median, and the 99th percentile.
QUANTILES = {"p50": 0.5, "p99": 0.99}


def margin_rows(
    samples: pd.DataFrame,
    against: str,
    margin: float,
    methods: Collection[str] | None = None,
    same_server: Collection[str] = (),
) -> pd.DataFrame:
    """Compare the methods of runs with one of them: a row per run, task, method and setting.

    Args:
        samples: Samples of runs, with those of ``timings.csv``.
        against: Label of the baseline, such as ``static w=0.5``, or a method that has one label.
        margin: Loss of quality that is accepted, in points of the metric as it is shown.
        methods: Names of the methods to compare; by default all.
        same_server: Names of the methods that are the baseline's server again (an A/A test).

    Returns:
        Figures with the ends of their intervals, the outcomes ``speed`` and ``loss`` in words, how
        many ``more_prompts`` would decide, and ``sentence``. Rows of the baseline have none.

    Raises:
        UsageError: No method or several are the baseline, or there is no other method.
    """
    samples = with_arms(samples)
    baseline = arm_named(against, samples)
    rows: list[Row] = []
    for _, cells in samples.groupby(TASK, sort=False, dropna=False):
        base, compared = cells[cells["arm"] == baseline], cells[cells["arm"] != baseline]
        if methods is not None:
            compared = compared[compared["method"].map(short_name).isin(map(short_name, methods))]
        if base.empty or compared.empty:
            continue
        shared = base.iloc[0][["pair", "engine", "batch_size"]].to_dict()
        shared["blocks"], noise = count_blocks(base), TaskRun.of(cells).noise
        rows += [shared | _facts(cell) for _, cell in base.groupby(SETTING, sort=False)]
        settings = [cell for _, cell in compared.groupby(SETTING, sort=False)]
        recipes = _recipes(settings)
        seeded = {index for _, heads in recipes for index in heads}
        apart = [_compare(cell, base, margin) for cell in settings]
        for index, cell in enumerate(settings):
            row = _facts(cell) | {"seeds": 1 if index in seeded else math.nan}
            rows.append(shared | row | apart[index])
        for label, heads in recipes:
            cells_of_heads = [settings[index] for index in heads]
            row = _facts(pd.concat(cells_of_heads)) | {"arm": label, "seeds": len(heads)}
            figures = pd.DataFrame([apart[index] for index in heads])
            rows.append(shared | row | _mean(cells_of_heads, base, figures))
        for row in rows[-len(settings) - len(recipes) :]:
            row |= {"against": baseline, "margin": margin, "again": row["method"] in same_server}
            row["noise"] = noise.get(row["session"], math.nan)
    table = pd.DataFrame(rows)
    if table.empty:
        raise UsageError(f"the runs hold no method to compare with {baseline}: measure one too")
    several = table.groupby("arm")["draft_length"].transform("nunique") > 1
    lengths = ", N = " + table["draft_length"].astype("str")
    table.insert(0, "label", table["arm"] + lengths.where(several, ""))
    again = table["again"].eq(True)
    factors = np.fmax(table[f"{TIMES}_high"], 1 / table[f"{TIMES}_low"]).where(again)
    settings = [table[name] for name in (*TASK, "load")]
    floor = factors.groupby(settings, dropna=False).transform("max")
    table["noise"] = floor.fillna(table["noise"]).mask(again)
    verdicts = [margin_verdict(row) if row["against"] == baseline else {} for row in rows_of(table)]
    return table.join(pd.DataFrame(verdicts)).drop(columns=["session"])


def prompts_needed(differences: Floats, margin: float, failure: float = 0) -> int:
    """Return how many prompts in all decide, in 4 of 5 runs, whether a method keeps to a margin.

    So many show that equal methods are within the margin, and also that a loss as large as the
    margin is a loss: with variance v of a difference, n = (1.96 + 0.84)^2 v / margin^2 for both. To
    the measured prompts two that differ are added, since a few equal prompts do not show that v is
    0, and the margin, which a loss adds to v at most. Further prompts do not undo a measured loss:
    n is the smallest with ``margin n - loss >= sqrt(2.8^2 v n + (3.7 failure)^2)``. A gain is not
    trusted to last.

    Args:
        differences: [prompts] score of each prompt less the baseline's, -1 to 1.
        margin: The margin as a score, 0 to 1.
        failure: What a failure loses that no prompt shows, 0 to 1; 0 for scores of 0 and 1.
    """
    n, unequal = len(differences), differences[differences != 0]
    square = float(np.mean(unequal**2)) if len(unequal) else 1.0
    variance = square * (len(unequal) + 2) / (n + 4) + margin
    loss, unseen = max(-float(differences.sum()), 0.0), failure * -math.log((1 - CONFIDENCE) / 2)
    # The larger root of (margin n - loss)^2 = ERRORS^2 variance n + unseen^2.
    half = margin * loss + ERRORS**2 * variance / 2
    root = math.sqrt(half**2 - margin**2 * (loss**2 - unseen**2))
    return math.ceil((half + root) / margin**2)


def prompts_at_share(share: float, margin: float) -> int:
    """Return how many prompts are needed if such a share of scores, 0 or 1, will differ."""
    return math.ceil(ERRORS**2 * (share + margin) / margin**2)


def with_arms(samples: pd.DataFrame) -> pd.DataFrame:
    """Add each sample's label without a concurrency, its concurrency (NaN for none) and load."""
    keys = ["task", *METHOD_COLUMNS, "drafter", "batch_size"]
    cell_of = samples.groupby(keys, sort=False, dropna=False).ngroup()
    cells = rows_of(samples[keys][~cell_of.duplicated()])
    loads = []
    for cell in cells:
        parameters = from_columns(cell)
        loads.append(float(parameters.pop(CONCURRENCY, math.nan)))
        cell |= to_columns(parameters)
    concurrency = cell_of.map(dict(enumerate(loads)))
    return samples.assign(
        arm=cell_of.map(dict(enumerate(method_labels(cells)))),
        load=concurrency.fillna(samples["batch_size"]),
        answer=samples.groupby([example_ids(samples), "turn", "repeat"], dropna=False).ngroup(),
        **{CONCURRENCY: concurrency},
    )


def arm_named(name: str, samples: pd.DataFrame) -> str:
    """Return the label of the arm that has this label, or this method."""
    methods = samples.drop_duplicates("arm").set_index("arm")["method"]
    if name in methods.index:
        return name
    arms = methods.index[methods.map(short_name) == short_name(name)]
    if arms.empty:
        raise UsageError(f"--against: {unknown('method of these runs', name, methods.index)}")
    if len(arms) > 1:
        raise UsageError(f"--against: {name} has several settings; choose one of {listed(arms)}")
    return str(arms[0])


def _facts(cell: pd.DataFrame) -> Row:
    """Return the figures that one setting has without a baseline."""
    texts = first_decodes(cell)
    names = [*TASK, "session", "quality_metric", "method", *SETTING, CONCURRENCY]
    facts: Row = texts.iloc[0][names].to_dict()
    facts["quality"] = estimates.score_interval(texts, "quality", facts["quality_metric"]).value
    facts |= {"n": texts["sample_id"].nunique(), "answers": len(texts)}
    contents = contents_of(texts)
    facts |= {name: contents.get(name, math.nan) for name in CONTENT_WORDS}
    facts["retries"] = (texts["retries"].sum() if "retries" in texts else 0) or math.nan
    ends = texts["stopped_by"].value_counts().items()
    facts["ends"] = ", ".join(f"{reason} {number}" for reason, number in ends)  # eos 20, length 4
    facts["refused"] = (texts["refused"].mean() if "refused" in texts else 0) or math.nan
    for figure in ("first", "inter"):
        seconds = texts.get(f"{figure}_token_seconds", pd.Series(math.nan, texts.index))
        facts |= {f"{figure}_{name}": seconds.quantile(q) for name, q in QUANTILES.items()}
    return facts


def _compare(cell: pd.DataFrame, base: pd.DataFrame, margin: float) -> Row:
    """Return the figures of one setting relative to the baseline, over the answers of both."""
    base = _matching(cell, base)
    answers, base_answers = first_decodes(cell), first_decodes(base)
    if answers["quality"].notna().any() and base_answers["quality"].notna().any():
        answers, base_answers = (side[side["quality"].notna()] for side in (answers, base_answers))
    arm, reference = _paired(answers, base_answers)
    lost = base_answers.loc[~base_answers["answer"].isin(arm.index), "quality"]
    differences = (arm["quality"] - reference["quality"]).groupby(arm["sample_id"]).mean()
    apart = differences.dropna().to_numpy()
    quality = estimates.contrast(arm, reference, QUALITY_LESS)
    counted = arm["output_tokens"].notna() & reference["output_tokens"].notna()
    length = estimates.contrast(arm[counted], reference[counted], LENGTH)
    remarks = [*remarks_on(arm, reference)]
    if unequal := _unequal_counts(arm[counted], reference[counted]):
        length = length._replace(value=math.nan, low=math.nan, high=math.nan)
        remarks.append(unequal)
    elif len(base) and base[CONCURRENCY].notna().all():
        name, other = cell["arm"].iloc[0], base["arm"].iloc[0]
        if reason := why_slower(cell, base, f"of {other}"):
            remarks.append(f"{name} is slower: {reason}")
    speeds = {metric: _speed(cell, base, metric) for metric in _speeds(cell)}
    if unequal:
        speeds |= {SPEED: length} if SPEED in speeds else {}
    figures = {QUALITY_LESS: quality, **speeds, LENGTH: length}
    score = margin / shown_metric(cell["quality_metric"].iloc[0])[1]
    binary = all(is_binary(side["quality"].dropna()) for side in (arm, reference))
    failure = 0.0 if binary or not len(apart) else max(float(reference["quality"].mean()), 0.0)
    return {
        **estimates.wide(figures),
        "n": arm["sample_id"].nunique(),
        "missing": len(lost) or math.nan,
        "missing_in_baseline": len(answers) - len(arm) or math.nan,
        "differ": np.count_nonzero(apart) / (len(apart) or math.nan),
        "prompts_needed": prompts_needed(apart, score, failure),
        "low_with_failures": limit_with_failures(apart, failure) if failure else quality.low,
        "lowest": (quality.low * len(arm) - lost.sum()) / max(len(arm) + len(lost), 1),
        "remarks": "; ".join(remarks),
        **(dict.fromkeys((f"inter_{name}" for name in QUANTILES), math.nan) if unequal else {}),
    }


def _matching(cell: pd.DataFrame, base: pd.DataFrame) -> pd.DataFrame:
    """Return the baseline with the load of a setting and, if it has several, its draft length."""
    base = base[base["load"] == cell["load"].iloc[0]]
    several = base["draft_length"].nunique() > 1
    return base[base["draft_length"] == cell["draft_length"].iloc[0]] if several else base


def _recipes(settings: Sequence[pd.DataFrame]) -> list[tuple[str, list[int]]]:
    """Return label and settings of heads that differ in the seed of their training alone."""
    recipes: dict[tuple[Any, ...], list[int]] = {}
    cells = [cell.iloc[0].to_dict() for cell in settings]
    for index, first in enumerate(cells):
        if recipe := recipe_key(first):
            key = (*recipe, first["drafter"], first["load"], first["draft_length"])
            recipes.setdefault(key, []).append(index)
    several = {key: heads for key, heads in recipes.items() if len(heads) > 1}
    firsts = [{**cells[heads[0]], "head": key[0]} for key, heads in several.items()]
    labels = zip(method_labels([*cells, *firsts])[len(cells) :], several.values(), strict=True)
    return [(f"{label}, mean of {len(heads)} seeds", heads) for label, heads in labels]


def _mean(heads: Sequence[pd.DataFrame], base: pd.DataFrame, rows: pd.DataFrame) -> Row:
    """Return the figures of a recipe relative to the baseline, as means over its heads' ``rows``.

    Seeds and prompts are random effects. Missing answers, and failures that no prompt shows, lower
    the mean by what they lower the head that they lower most.
    """
    base = _matching(heads[0], base)
    if base.empty:  # all figures are unknown, as those of each head
        return dict(rows.iloc[0])
    sides = [Setting(first_decodes(side)) for side in (*heads, base)]
    seeds = range(len(heads))
    points = shared_points(scored_alike(sides))
    texts, baseline = points.estimates(), len(heads)
    figures = {
        QUALITY_LESS: points.quality_less(texts, seeds, baseline),
        LENGTH: texts.contrast(LENGTH, seeds, baseline),
    }
    sessions = {head["session"].iloc[0] for head in heads}
    sides[-1] = Setting(without_repeats(base[base["session"].isin(sessions)]))
    for metric in _speeds(heads[0]):
        figures[metric] = UNKNOWN
        if len(sessions) == 1 and rows[f"{metric}_low"].notna().all():
            clock = timed_points(sides).estimates()
            figures[metric] = clock.contrast(metric, seeds, baseline)
    low = figures[QUALITY_LESS].low
    lowered = rows[["low_with_failures", "lowest"]].sub(rows[f"{QUALITY_LESS}_low"], axis=0).min()
    return {
        **estimates.wide(figures),
        **rows[["n", "missing", "missing_in_baseline", "differ", "prompts_needed"]].max(),
        **(low + lowered),
        "remarks": "",
    }


def _unequal_counts(arm: pd.DataFrame, base: pd.DataFrame) -> str:
    """Say whether two servers count other numbers of tokens in texts of the same length."""
    if "delivered_bytes" not in arm:
        return ""
    written = (arm["delivered_bytes"] > 0) & (base["delivered_bytes"] > 0)
    ratio = estimates.contrast(arm[written], base[written], DENSITY)
    if not (ratio.low > UNEQUAL_COUNTS or ratio.high < 1 / UNEQUAL_COUNTS):
        return ""
    return (
        f"{arm['arm'].iloc[0]} counts {ratio.value:.2f} times as many tokens in a text of the same "
        "length, so tokens and times of them are not comparable"
    )


def _speeds(cell: pd.DataFrame) -> list[str]:
    """Return the ratios of speed of a setting: per answer and, in batches, per token."""
    return [TIMES, SPEED] if (cell["batch_size"] > 1).any() else [TIMES]


def _speed(cell: pd.DataFrame, base: pd.DataFrame, metric: str) -> Interval:
    """Return a ratio of a setting's speed to the baseline's, in the setting's session."""
    of_session = without_repeats(base[base["session"] == cell["session"].iloc[0]])
    sides = _paired(first_decodes(cell), of_session)
    in_blocks = {count_blocks(side) > 0 for side in sides}
    if len(in_blocks) > 1 or not all(map(has_comparable_times, sides)):
        return UNKNOWN
    return estimates.contrast(by_time_unit(sides[0]), by_time_unit(sides[1]), metric)


def _paired(arm: pd.DataFrame, base: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the answers that both sides have, in the same order and with the same index."""
    arm, base = arm.set_index("answer"), base.set_index("answer")
    shared = arm.index.intersection(base.index, sort=False)
    return arm.loc[shared], base.loc[shared]

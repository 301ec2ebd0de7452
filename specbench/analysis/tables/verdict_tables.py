"""Readable tables of a comparison: an overview, one per task and quantity held equal, two runs."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from specbench.analysis.statistics import estimates
from specbench.analysis.statistics.estimates import (
    ABOVE,
    ABOVE_MEASURED,
    ACCEPTANCE_LESS,
    AT_LIMIT_LESS,
    COMPLETED_LESS,
    LENGTH,
    QUALITY,
    QUALITY_LESS,
    REPETITION_LESS,
    SHARE,
    SPEED,
    TIMES,
)
from specbench.analysis.statistics.intervals import FEWEST
from specbench.analysis.statistics.points import TARGET
from specbench.analysis.tables.shown import PHASES, setting_text, shown, span, temperature_text
from specbench.analysis.tables.table import Column, Field, Table, also, condensed, number, percent
from specbench.analysis.verdicts.contrasts import (
    ALONE,
    ATS,
    COIN,
    CONTROL,
    FRONT,
    OWN,
    POOLED,
    SAME_DRAFTER,
    SD,
    SD_CHOSEN,
    Row,
)
from specbench.analysis.verdicts.margin import QUANTILES, TASK
from specbench.analysis.verdicts.two_runs import EQUAL
from specbench.analysis.verdicts.words import (
    CONCURRENCY,
    legend,
    noise_range,
    place_of,
    resolution,
    speed_of,
    word,
)
from specbench.runs.columns import CALLS, NOTHING, THOUGHTS
from specbench.runs.frames import in_order, rows_of

CHOSEN = "chosen: the fastest N, chosen on one half of the prompts and measured on the other."
BY_N = (
    "by N alone: share of the method's time saving over sd at the same N that sd also reaches at "
    "its best N."
)
LESS = "Differences from sd are paired by prompt, at the same N."
FRONT_NOTE = (
    "randomised: the best mixture of static weights, of which each prompt draws one; two numbers: "
    "chosen on the same prompts, and on others. measured: the nearest static weight that was run, "
    "of lower acceptance or longer time. If quality falls with acceptance, the lead is at least "
    "the distance from it, so a distance below 0 shows nothing."
)
CONTROL_NOTE = "sharpened front: also includes `sharpened` and `cooled`, controls for sharpening."
AT_ACCEPTANCE = (
    "mixtures of static weights: the best one that accepts as much as the method; two numbers: "
    "chosen on the same prompts, and on others."
)
_PLACES = {
    "coarse": "coarse: above the mixture, but not above the nearest weight that was run.",
    "no weight": "no weight: none that was run accepts as much; the draft alone (w = 0) does.",
}
SPEEDS = (
    "Ratios of speed include prefill; above 1, the method is faster. Tokens/s and samples/s "
    "differ where texts have other lengths."
)
BIASED = (
    "The best of several noisy mixtures looks faster than it is. So a ratio above 1 shows a faster "
    "method, and a ratio below 1 shows nothing."
)
EQUAL_NOTE = "equal samples: share with the same tokens, rounds, accepted drafts and quality."
TIMES_NOTE = "samples/s: above 1, B is faster; the interval covers no change of the machine."
NONE = "/ none: the same ratio to no speculation."
_SPEEDS = {TIMES: "samples/s", SPEED: "tokens/s"}
#: Of answers, beside their number.
COUNTED = {
    **{"missing": "missing", THOUGHTS: "thoughts\nonly", CALLS: "calls\nonly", NOTHING: "empty"},
    "retries": "retries",
}
DIFFER = "differ: prompts with another score."
ALONE_NOTE = (
    "Differences are from this method's texts alone; without --against, they are from those of sd "
    "and autoregressive together."
)
LATENCIES = "p50, p99: over all answers; p99 of fewer than 100 is nearly their maximum."
NOT_BETWEEN = "between tokens: empty where answers are one chunk, or tokens are not comparable."
UNTIMED = (
    f"speed: empty, since texts in blocks are timed by block, and there are fewer than {FEWEST} "
    "whole ones: raise -n, or lower --batch-size or --concurrency."
)
SEVERAL = "Of 20 equal methods, about one is called different by chance."
_Fields = list[Field[Row]]
_KEYS = ["run_id", "temperature", "engine", "batch_size", "task"]


def comparison_tables(rows: pd.DataFrame, kinds: Collection[str] = (OWN, *ATS)) -> list[Table]:
    """Return one table per task and quantity held equal (``kinds``), in the comparison's order."""
    several = ["run_id"] if rows["run_id"].nunique() > 1 else []
    makers = {OWN: _beside_sd, "quality": _at_equal_quality}
    # The verdicts tell of static weights beside a coin.
    listed = rows[rows["at"].isin(kinds) & (rows["against"] != COIN)]
    # Prompts that both completed may be few.
    n = listed["n"].mask(listed["metric"] == COMPLETED_LESS)
    tables = []
    for (*_, kind), group in listed.groupby([*_KEYS, "at"], sort=False, dropna=False):
        where = f"{setting_text(group.iloc[0], several)}, n = {span(n[group.index].dropna())}"
        tables.append(makers.get(str(kind), _above_front)(in_order(group), where))
    return tables


def verdict_tables(rows: pd.DataFrame) -> Iterator[Table]:
    """Yield a table per task of each run: what is shown of every method, and how precisely."""
    several = [name for name in ("run_id", "engine", "batch_size") if rows[name].nunique() > 1]
    tasks: list[tuple[pd.DataFrame, pd.DataFrame, list[Row]]] = []
    for _, group in rows.groupby(_KEYS, sort=False, dropna=False):
        listed = in_order(group[group["at"].isin([OWN, "acceptance"]) & (group["points"] == 1)])
        beside_sd = (listed["against"] == SD) & (listed["method"] != "sd")
        placed = estimates.pivot(listed[beside_sd | (listed["against"] == FRONT)])
        if settings := [row for row in placed if row["against"] == SD]:
            tasks.append((group, listed, settings))
    words, places = ({show(row) for *_, of in tasks for row in of} for show in (word, place_of))
    met = [text for key, text in _PLACES.items() if any(key in place for place in places)]
    for group, listed, settings in tasks:
        first = settings[0]
        quality, speed = shown(QUALITY_LESS, first["quality_metric"]), speed_of(first)
        beside_none = estimates.pivot(listed[listed["against"] == ALONE])
        alone = {(row["label"], row["draft_length"]): row for row in beside_none}
        for row in settings:
            none = alone.get((row["label"], row["draft_length"]), {})
            row["beside_none"] = shown(speed).number(none)
        names = _NAMES if len({row["draft_length"] for row in settings}) > 1 else _NAMES[:1]
        fields: _Fields = [
            *names,
            (Column("verdict", align="left", legend=legend(words)), word),
            (f"{shown('quality', first['quality_metric']).heading}\n- sd [95 %]", quality.interval),
            (f"{_SPEEDS[speed]}\n/ sd [95 %]", shown(speed).interval),
            also(("/ none", lambda row: row["beside_none"]), NONE),
            also(shown("acceptance").column),
            *map(also, _PHASES),
            also(("above mixtures of\nstatic weights?", place_of), " ".join([AT_ACCEPTANCE, *met])),
        ]
        title = f"{setting_text(first, several)}: {_headline(settings)}"
        notes = [_of_sd(group, settings), POOLED]
        if group["drafter"].nunique() > 1 and speed in first:
            notes.append(SAME_DRAFTER)
        if noise := noise_range(first["noise"]):
            notes.append(f"Noise of times: ratios of {noise} may be noise.")
        yield condensed(Table.of(settings, fields, title, notes, stub=len(names)))


def _headline(settings: Sequence[Row]) -> str:
    """Say how precisely the prompts of some settings tell quality and speed."""
    n, scale = settings[0]["n"], shown(QUALITY_LESS, settings[0]["quality_metric"]).scale
    ends = [
        [(row[f"{name}_low"], row[f"{name}_high"]) for row in settings if name in row]
        for name in (QUALITY_LESS, speed_of(settings[0]))
    ]
    widths = [scale * (high - low) for low, high in ends[0]]
    least = resolution(widths, [high / low for low, high in ends[1]])
    prompts = f"{n} prompt{'s' if n > 1 else ''}"
    return f"{prompts} tell {least}" if least else f"{prompts}, too few for an interval"


def _of_sd(rows: pd.DataFrame, settings: Sequence[Row]) -> str:
    """Return a note with the figures of ``sd`` itself, at each N and drafter of some settings."""
    first, metric = settings[0], speed_of(settings[0])
    quality = shown("quality", first["quality_metric"])
    alone = rows[(rows["against"] == ALONE) & (rows["method"] == "sd") & (rows["points"] == 1)]
    speeds = {(row["draft_length"], row["drafter"]): row for row in estimates.pivot(alone)}
    beside = {(row["draft_length"], row["drafter"]): row for row in reversed(settings)}
    score = quality.number({"quality": first["against_quality"]})
    pooled = " (with autoregressive)" if len(alone) else ""
    parts = [f"{quality.heading} {score}{pooled}"] if score else []
    for (length, drafter), row in reversed(beside.items()):
        figures = [f"{percent(row['acceptance'] - row[ACCEPTANCE_LESS])} accepted"]
        if speed := shown(metric).interval(speeds.get((length, drafter), {})):
            figures.append(f"{speed} times the {_SPEEDS[metric]} of autoregressive")
        setting = [f"N = {length:.0f}"] if len({n for n, _ in beside}) > 1 else []
        setting += [f"drafter {drafter}"] if len({name for _, name in beside}) > 1 else []
        parts.append(": ".join(filter(None, [", ".join(setting), ", ".join(figures)])))
    return f"sd: {('; ' if len(beside) > 1 else ', ').join(parts)}."


def _beside_sd(group: pd.DataFrame, where: str) -> Table:
    """Return speed, quality and texts of each method relative to plain SD."""

    def against(row: Row) -> str:
        if row["alone"]:
            return "by N alone"
        if row["against"] == ALONE:
            return "no speculation"
        length = f"{row['against_draft_length']:.0f}"
        return f"sd, N = {length}" if row["against"] == SD else f"sd, chosen ({length})"

    metric = group["quality_metric"].iloc[0]
    share, times = shown(SHARE), shown(TIMES)
    texts = (LENGTH, COMPLETED_LESS, AT_LIMIT_LESS, REPETITION_LESS)
    fields: _Fields = [
        *_NAMES,
        ("against", against),
        also(shown(QUALITY, metric).column),
        shown(QUALITY_LESS, metric).column_with_interval,
        also(shown("acceptance").column),
        also(shown(ACCEPTANCE_LESS).column_with_interval),
        *map(also, _PHASES),
        also(shown(SPEED).column_with_interval),
        (times.column_with_interval[0], lambda row: times.interval(row) or share.with_unit(row)),
        also(_NOISE),
        *(also(shown(name, metric).column_with_interval) for name in texts),
    ]
    # The gain from choosing N alone has its own row, without the repeated columns.
    alone = group["metric"] == SHARE
    group = group.assign(alone=alone)
    group.loc[alone | (group["against"] == ALONE), ["quality", "acceptance"]] = float("nan")
    notes = [SPEEDS, LESS, POOLED, *([CHOSEN] if SD_CHOSEN in set(group["against"]) else [])]
    notes += [BY_N] if alone.any() else []
    beside = " and no speculation" if ALONE in set(group["against"]) else ""
    title = f"Against sd{beside}, each at its own quality: {where}"
    rows = estimates.pivot(group, "against", "alone")
    return condensed(Table.of(rows, fields, title, notes, stub=3))


def _above_front(group: pd.DataFrame, where: str) -> Table:
    """Return the distances from fronts at equal acceptance or time."""
    kind, metric = group["at"].iloc[0], group["quality_metric"].iloc[0]
    quality = shown(QUALITY, metric)

    def between(row: Row) -> str:
        """Name the front's next points, and the distance of their qualities if it is large."""
        is_far = row["coarse"] and row["step"] == row["step"]
        far = f", {100 * abs(row['step']):.0f} points apart" if is_far else ""
        return f"{row['between']}{far}"

    fields: _Fields = [
        *_NAMES,
        ("front", lambda row: row["against"].partition(" ")[0]),
        also(shown("acceptance" if kind == "acceptance" else "seconds").column),
        also(quality.column),
    ]
    for name, distance in (("randomised", ABOVE), ("measured", ABOVE_MEASURED)):
        front = quality._replace(name=f"{distance}_reference", heading=f"front, {name}")
        fields += [also(front.column), shown(distance, metric).column_with_interval]
    texts = {FRONT: FRONT_NOTE, CONTROL: CONTROL_NOTE}
    notes = [text for front, text in texts.items() if front in set(group["against"])]
    title = f"At equal {kind}: {where}"
    fields.append(also(("between", between)))
    return condensed(Table.of(estimates.pivot(group, "against"), fields, title, notes, 3))


def _at_equal_quality(group: pd.DataFrame, where: str) -> Table:
    """Return the speed of each method relative to the front at equal quality."""
    quality = shown(QUALITY, group["quality_metric"].iloc[0])
    fields: _Fields = [
        *_NAMES,
        quality.column,
        quality._replace(name="against_quality", heading="front's, randomised").column,
        shown("seconds").column,
        ("front's s/sample\n/ own [95 %]", shown(TIMES).interval),
        _NOISE,
    ]
    notes = [FRONT_NOTE, *([CHOSEN] if (group["points"] > 1).any() else []), BIASED]
    title = f"At equal quality: {where}"
    return condensed(Table.of(estimates.pivot(group), fields, title, notes, stub=2))


def _length(row: Row) -> str:
    """Return the draft length of a method, marked if chosen from several."""
    length = f"{row['draft_length']:.0f}"
    return length if row["points"] == 1 else f"chosen ({length})"


_PHASES: _Fields = [shown(name).column for name in PHASES]
_NAMES: _Fields = [("method", lambda row: row["label"]), ("N", _length)]
_NOISE: Field[Row] = ("sd's s/sample\n/ sd's again", lambda row: noise_range(row["noise"]))


def between_tables(rows: pd.DataFrame) -> Iterator[Table]:
    """Yield a table per task of rows from ``between_runs``."""
    groups = rows.groupby(["task", "temperature"], sort=False, dropna=False)
    for (task, temperature), group in groups:
        metric = str(group["quality_metric"].iloc[0])
        quality, acceptance = shown("quality", metric), shown("acceptance")
        of_first = f"{QUALITY_LESS}_reference", f"{ACCEPTANCE_LESS}_reference"
        fields: list[Field[Row]] = [
            ("method", lambda row: row["label"]),
            ("N", lambda row: number(row["draft_length"] or None, ".0f")),
            (f"{quality.heading}\nA", quality._replace(name=of_first[0]).number),
            ("\nB", quality.number),
            ("B less A\n[95 %]", shown(QUALITY_LESS, metric).interval),
            ("accepted /\ndrafted (%), A", acceptance._replace(name=of_first[1]).number),
            ("\nB", acceptance.number),
            ("B less A\n[95 %]", shown(ACCEPTANCE_LESS).interval),
            ("A's s/sample\n/ B's [95 %]", shown(TIMES).interval),
            shown(EQUAL).column,
        ]
        title = f"Two runs, paired by sample: {task}, {temperature_text(temperature)}"
        notes = [EQUAL_NOTE, TIMES_NOTE] if TIMES in set(group["metric"]) else [EQUAL_NOTE]
        title += f", n = {span(group['n'])}"
        yield condensed(Table.of(estimates.pivot(group), fields, title, notes, stub=2))


def facts_table(differences: Iterable[Sequence[Any]], first: str, second: str) -> Table:
    """Return a table of what differs between two runs: name, first and second value."""
    rows = [
        [name, *(value if isinstance(value, str) else json.dumps(value) for value in values)]
        for name, *values in differences
    ]
    headings = ("setting", f"A: {first}", f"B: {second}")
    title = f"What differs between {first} and {second}"
    return Table(title, [Column(heading, align="left") for heading in headings], rows)


def margin_tables(rows: pd.DataFrame) -> Iterator[Table]:
    """Yield a table per run, task and temperature of rows from ``margin_rows``."""
    several = rows["run_id"].nunique() > 1
    verdicts = [text for text in rows["verdict"] if isinstance(text, str)]
    for (run, task, temperature), group in rows.groupby(TASK, sort=False, dropna=False):
        baseline, margin = group[["against", "margin"]].dropna().iloc[0]
        metric = group["quality_metric"].iloc[0]
        fields: list[Field[Row]] = [
            ("method", lambda row: row["label"]),
            (
                Column("verdict", align="left", legend=legend(verdicts)),
                lambda row: row["verdict"] if isinstance(row["verdict"], str) else "",
            ),
            _field("concurrency", CONCURRENCY),
            also(_field("n", "n")),
            also(shown("quality", metric).column),
            (f"minus\n{baseline}'s\n[95 %]", shown(QUALITY_LESS, metric).interval),
            also(("differ", lambda row: percent(row["differ"], ".1f")), DIFFER),
            ("speed,\nratio\n[95 %]", lambda row: shown(speed_of(row)).interval(row)),
            also(("tokens,\nratio\n[95 %]", shown(LENGTH).interval)),
            *(
                also(
                    _field(Column(name, f"{heading}, ms"), f"{figure}_{name}", 1000, "3s"),
                    LATENCIES,
                )
                for figure, heading in (("first", "first token"), ("inter", "between tokens"))
                for name in QUANTILES
            ),
            also(_field("answers", "answers")),
            *(_field(heading, name) for name, heading in COUNTED.items()),
            also(("begin like\nrefusals", lambda row: percent(row["refused"], ".1f"))),
        ]
        kinds = {end.partition(" ")[0] for ends in group["ends"] for end in ends.split(", ")}
        if not kinds <= {"eos", "stop", ""}:
            fields.append(also(("ends", lambda row: row["ends"])))
        title = f"{task}, {temperature_text(temperature)}: against {baseline}, "
        title += f"margin {margin:g} points" + (f", {run}" if several else "")
        notes = [f"{remarks}." for remarks in group["remarks"].dropna() if remarks]
        notes += [ALONE_NOTE] if {*TARGET} <= {*group["method"]} and baseline in TARGET else []
        streamed = group["first_p50"].notna()
        notes += [NOT_BETWEEN] if (streamed & group["inter_p50"].isna()).any() else []
        notes += [UNTIMED] if group["blocks"].lt(FEWEST).any() else []
        notes.append(SEVERAL)
        yield condensed(Table.of(rows_of(group), fields, title, notes))


def _field(heading: str | Column, name: str, scale: float = 1, form: str = ".0f") -> Field[Row]:
    return heading, lambda row: number(scale * row[name], form)

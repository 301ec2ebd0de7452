"""The verdict on each method: one sentence that says whether it pays, and at which price.

The sentence begins with the speed relative to no speculation. Speed and quality relative to SD
follow, then the quality relative to the static front at equal acceptance and at equal time, and
whatever changes the meaning of these figures: prompts that are missing, texts of another length, a
coarse front, a lower temperature that gains as much. A difference is named only if its 95 %
interval excludes no difference. Below ``intervals.FEWEST`` prompts there is no interval and so no
verdict.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import pandas as pd

from specbench.analysis import comparison as c
from specbench.analysis.blocks import describe_blocks
from specbench.analysis.compare import compare
from specbench.analysis.intervals import FEWEST
from specbench.analysis.scores import QUALITY
from specbench.errors import UsageError
from specbench.runs.labels import DEFAULT_DRAFTER
from specbench.runs.shown import shown, temperature_text
from specbench.tasks.metrics import AGREEMENT, shown_metric

FASTER, SLOWER, HIGHER, LOWER = "faster", "slower", "higher", "lower"
#: The interval includes no difference; it reaches into the noise of sd against itself; there are
#: too few prompts; it was not measured.
UNSHOWN, NOISE, FEW, MISSING = "no difference shown", "within noise", "too few prompts", ""

_RUN = ["run_id", "pair", "temperature", "engine", "batch_size", "task"]
#: ``speculation`` is the speed relative to no speculation, ``speed`` and ``quality`` are relative
#: to ``sd``. ``front`` is quality relative to the randomised static front at equal acceptance,
#: ``front_at_time`` at equal time, ``control`` relative to the sharpened front at equal acceptance.
#: Each is one of the words above.
_SHOWN = ("speculation", "speed", "quality", "front", "front_at_time", "control")
VERDICTS = (*_RUN, "blocks", "method", "label", "draft_length", "n", "missing", *_SHOWN, "sentence")
_FRONT = "the randomised static front"
NOTICED = 0.02  # difference between two ratios of speed

_Row = dict[str, Any]


class Clause(NamedTuple):
    """What one figure shows, and how to say it."""

    shown: str
    text: str


def verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts on a comparison that includes equal acceptance: columns ``VERDICTS``.

    There is one row per task, method and draft length; several heads of one recipe are one method,
    the mean over their seeds. If ``sd`` also has several draft lengths, there is one row per task
    and method: both at their fastest, chosen as in ``compare``. ``sd`` itself has a row if the run
    has times without speculation, and the static ensemble one if all of its weights lie below a
    coin between ``sd`` and the draft.
    """
    verdicts_of_runs = []
    single_seeds = rows["seeds"] == 1
    judged = rows[rows["at"].isin([c.OWN, "acceptance", "time"]) & ~single_seeds]
    for key, run in judged.groupby(_RUN, sort=False, dropna=False):
        shared = dict(zip(_RUN, key, strict=True)) | {"blocks": run["blocks"].iloc[0]}
        beside_baseline = run[run["at"] == c.OWN]
        several_sd = (beside_baseline["against"] == c.SD_CHOSEN).any()
        for label, group in beside_baseline.groupby("label", sort=False):
            chosen = group[(group["points"] > 1) & group["against"].isin([c.SD_CHOSEN, c.ALONE])]
            chosen = chosen if several_sd else chosen[:0]
            lengths = chosen if len(chosen) else group
            for length in lengths["draft_length"].unique():
                alike = run[(run["label"] == label) & (run["draft_length"] == length)]
                single = alike[alike["points"] == 1]
                verdicts_of_runs.append(
                    shared | _verdict(single, chosen if len(chosen) else single)
                )
        verdicts_of_runs += [shared | verdict for verdict in _coin(run)]
    table = pd.DataFrame(verdicts_of_runs, columns=list(VERDICTS))
    several = table.groupby([*_RUN, "label"], dropna=False)["draft_length"].transform("nunique") > 1
    names = table["label"] + (", N = " + table["draft_length"].map("{:.0f}".format)).where(
        several, ""
    )
    return table.assign(sentence=names + ": " + table["sentence"])


def verdicts_of(samples: pd.DataFrame, methods: Collection[str] | None = None) -> pd.DataFrame:
    """Return the verdicts on all or some methods of runs; empty without ``sd`` to compare with."""
    names = None if methods is None else {*methods} - {"sd"}
    try:
        return verdicts(compare(samples, ["acceptance", "time"], names, [QUALITY]).rows)
    except UsageError:
        return pd.DataFrame(columns=list(VERDICTS))


def _records(table: pd.DataFrame) -> list[_Row]:
    records: list[_Row] = table.to_dict("records")
    return records


def word(row: _Row) -> str:
    """Return one word for what a method changes relative to ``sd`` at the same N.

    Args:
        row: A setting with the ends of its figures, such as ``times_as_fast_low``.
    """
    if row["against"] != c.SD:
        return ""
    if row["n"] < FEWEST:
        return "few"

    def ends(metric: str) -> _Row:
        low, high = (row.get(f"{metric}_{end}", math.nan) for end in ("low", "high"))
        return {"ci_low": low, "ci_high": high, "noise": row["noise"]}

    speed = sign_of_speed(ends(c.TOKENS if row["batch_size"] > 1 else c.TIMES))
    quality = _sign(ends(c.QUALITY_LESS), 0, 0, LOWER, HIGHER)
    if {speed, quality} in ({FASTER, LOWER}, {SLOWER, HIGHER}):
        return "trades"
    if quality in (LOWER, HIGHER):
        return "worse" if quality == LOWER else "better"
    return speed if speed in (FASTER, SLOWER) else "open"


def by_task(table: pd.DataFrame) -> dict[str, list[str]]:
    """Return the sentences of verdicts under a heading for each task of each run."""
    several = [name for name in ("run_id", "engine", "batch_size") if table[name].nunique() > 1]
    prompts = table.groupby(_RUN, dropna=False)["n"].transform("max")
    sentences: dict[str, list[str]] = {}
    for row in _records(table.assign(prompts=prompts)):
        parts = [f"{row['task']} on {row['pair']}", temperature_text(row["temperature"])]
        parts += [f"batch {row[name]}" if name == "batch_size" else row[name] for name in several]
        heading = ", ".join([*parts, f"n = {row['prompts']}"])
        if row["batch_size"] > 1:
            heading += f" in {describe_blocks(row['blocks'], row['batch_size'])}"
        sentences.setdefault(heading, []).append(row["sentence"])
    return sentences


def foremost(table: pd.DataFrame) -> pd.DataFrame:
    """Return the verdict to read first on each task of each run: DIVERSED's, if it was run."""
    judged = table[~table["method"].isin(["sd", "static"])]
    judged = judged if len(judged) else table
    first = judged.sort_values("method", key=lambda names: names != "diversed", kind="stable")
    return first.drop_duplicates(_RUN).sort_index()


def _verdict(alike: pd.DataFrame, speed: pd.DataFrame) -> _Row:
    """Return the verdict on a method at one draft length.

    Args:
        alike: All figures of the method at that length.
        speed: Those that compare its time with others' times, at the same or the fastest length.
    """
    by_comparison = {(row["against"], row["at"], row["metric"]): row for row in _records(alike)}
    ratio = c.TOKENS if alike["batch_size"].iloc[0] > 1 else c.TIMES
    times = {row["against"]: row for row in _records(speed) if row["metric"] == ratio}
    tokens = {row["against"]: row for row in _records(speed) if row["metric"] == c.TOKENS}
    alone = times.get(c.ALONE)
    beside_sd = times.get(c.SD_CHOSEN) or times.get(c.SD)
    first = beside_sd or alone or next(iter(by_comparison.values()))
    n, missing = int(first["n"]), int(first["missing"])
    timeless = first["batch_size"] > 1 and not first["blocks"] >= FEWEST
    verdict = {name: first[name] for name in ("method", "label", "draft_length", "n", "missing")}
    if n < FEWEST:
        few = f"too few prompts for a verdict (n = {n}; at least {FEWEST} are needed)"
        return verdict | dict.fromkeys(_SHOWN, FEW) | {"sentence": few}
    better = by_comparison.get((c.SD, c.OWN, c.QUALITY_LESS))
    has_sd = any(against in (c.SD, c.SD_CHOSEN) for against, *_ in by_comparison)
    parts = {
        "speculation": _speculation(alone, tokens.get(c.ALONE)),
        "speed": _speed(beside_sd) if has_sd and not timeless else Clause(MISSING, ""),
        "quality": _quality(better, timeless) if has_sd else Clause(MISSING, ""),
        "front": _front(by_comparison, "acceptance"),
        "front_at_time": _front(by_comparison, "time"),
        "control": _control(by_comparison),
    }
    lost = f"n = {n} of {n + missing}: {missing} prompts have no result of this method"
    sentence = [
        lost if missing else "",
        parts["speculation"].text,
        _beside_sd(parts["speed"], parts["quality"], first),
        _length(by_comparison.get((c.SD, c.OWN, c.LENGTH))),
        ", ".join(filter(None, [parts["front"].text, parts["front_at_time"].text])),
        parts["control"].text,
    ]
    outcomes = {name: part.shown for name, part in parts.items()}
    return verdict | outcomes | {"sentence": "; ".join(filter(None, sentence))}


def _coin(run: pd.DataFrame) -> Iterator[_Row]:
    """Yield a verdict on the static ensemble for each N at which all weights lie below the coin."""
    for length, weights in run[run["against"] == c.COIN].groupby("draft_length"):
        if (weights["ci_high"] < 0).all():
            first = _records(weights)[0]
            points = -_scale(first) * weights["value"]
            yield {
                "method": first["method"],
                "label": "static",
                "draft_length": length,
                "n": first["n"],
                "missing": 0,
                **dict.fromkeys(_SHOWN, MISSING),
                "sentence": (
                    "mixing is never worth it here: answering some prompts with sd and the rest "
                    "with the draft alone beats every measured weight between 0 and 1 by "
                    f"{points.min():.1f} to {points.max():.1f} points at equal acceptance"
                ),
            }


def _sign(row: _Row, least: float, most: float, low: str, high: str) -> str:
    """Return which side of a range the interval lies on: ``low``, ``high`` or neither."""
    return high if row["ci_low"] > most else low if row["ci_high"] < least else UNSHOWN


def sign_of_speed(row: _Row) -> str:
    """Return whether a speed-up is a difference that exceeds the noise of ``sd``."""
    outcome, noise = _sign(row, 1, 1, SLOWER, FASTER), row["noise"]
    if noise != noise or outcome == UNSHOWN:
        return outcome
    return outcome if _sign(row, 1 / noise, noise, SLOWER, FASTER) == outcome else NOISE


def noise_range(noise: float) -> str:
    """Return the ratios of times that noise explains; empty if the noise is unknown."""
    return f"{1 / noise:.2f} to {noise:.2f}" if noise == noise else ""


def _times(row: _Row) -> str:
    ratio = shown(row["metric"]).estimate(row["value"], row["ci_low"], row["ci_high"])
    unit = "times as many tokens/s" if row["metric"] == c.TOKENS else "times as fast per sample"
    return f"{ratio} {unit}"


def _speculation(row: _Row | None, tokens: _Row | None) -> Clause:
    """Compare with no speculation, by samples and, where that is another number, by tokens."""
    if row is None or tokens is None:
        return Clause(MISSING, "")
    outcome = sign_of_speed(row)
    phrases = {
        FASTER: "faster than no speculation",
        SLOWER: "slower than no speculation",
        UNSHOWN: "not shown to be faster or slower than no speculation",
        NOISE: "not told from no speculation beyond noise",
    }
    other = ""
    if abs(tokens["value"] - row["value"]) >= NOTICED:
        longer = tokens["value"] / row["value"]
        other = f" and {tokens['value']:.2f} times as many tokens/s, since its texts are "
        other += f"{longer:.2f} times as long"
    return Clause(outcome, f"{phrases[outcome]} ({_times(row)}{other})")


def _speed(row: _Row | None) -> Clause:
    """Compare with ``sd`` at the same or at each method's fastest draft length."""
    if row is None:
        return Clause(MISSING, "speed not comparable with sd")
    outcome, noise = sign_of_speed(row), row["noise"]
    against = f" as {_baseline(row)}"
    if row["against"] == c.SD_CHOSEN:
        lengths = (row["draft_length"], row["against_draft_length"])
        against += ", each at its fastest N ({:.0f} and {:.0f})".format(*lengths)
    slower = " (slower)" if outcome == SLOWER else ""
    if noise == noise:
        against += f" (noise {noise_range(noise)})"
    return Clause(outcome, f"{_times(row)}{against}{slower}")


def _baseline(row: _Row) -> str:
    """Name the ``sd`` that a method is compared with: that of its own drafter."""
    other = row["method"] != "sd" and row["drafter"] != DEFAULT_DRAFTER
    return f"sd {row['drafter']}" if other else "sd"


def _quality(row: _Row | None, timeless: bool) -> Clause:
    if row is None:
        return Clause(MISSING, f"{'' if timeless else 'speed only, '}quality was not measured")
    unit = shown_metric(row["quality_metric"])[0]
    outcome = _sign(row, 0, 0, LOWER, HIGHER)
    if outcome == UNSHOWN:
        return Clause(outcome, f"{unit} {_difference(row)} points")
    return Clause(outcome, f"{unit} {_size(row)} points {outcome}")


def _beside_sd(speed: Clause, quality: Clause, first: _Row) -> str:
    """Say speed and quality relative to ``sd``."""
    figures = [part for part in (speed, quality) if part.text]
    if figures and {part.shown for part in figures} <= {UNSHOWN, NOISE}:
        texts = ", ".join(part.text for part in figures)
        return f"no difference from {_baseline(first)} shown at n = {first['n']}: {texts}"
    ending = {UNSHOWN: " (no difference shown)", NOISE: " (within the timing noise)"}
    return ", ".join(part.text + ending.get(part.shown, "") for part in figures)


def _length(row: _Row | None) -> str:
    """Say how much longer texts are than those of ``sd``, if that is shown in two decimals."""
    if row is None or round(row["ci_low"], 2) <= 1 <= round(row["ci_high"], 2):
        return ""
    times = shown(row["metric"]).estimate(row["value"], row["ci_low"], row["ci_high"])
    return f"its texts are {times} times as long as those of {_baseline(row)}"


def _front(known: dict[tuple[str, str, str], _Row], at: str) -> Clause:
    """Compare with the static front; with a coarse one also at its nearest measured point."""
    if (row := known.get((c.FRONT, at, c.ABOVE))) is None:
        return Clause(MISSING, "")
    outcome = _sign(row, 0, 0, LOWER, HIGHER)
    side = {HIGHER: "above", LOWER: "below"}.get(outcome)
    name = _FRONT if at == "acceptance" else "it"
    text = f"{_size(row)} points {side} {name}" if side else f"not shown to differ from {name}"
    text += f" at equal {at}" + (f" ({_difference(row)})" if not side else "")
    measured = known[c.FRONT, at, c.ABOVE_MEASURED]
    if outcome == HIGHER and row["coarse"] and _sign(measured, 0, 0, LOWER, HIGHER) != HIGHER:
        between = f"but not above its nearest measured weight ({_difference(measured)})"
        return Clause(UNSHOWN, f"{text}, {between}")
    return Clause(outcome, text)


def _control(known: dict[tuple[str, str, str], _Row]) -> Clause:
    """Say what a lower temperature gains where a method is above the static front."""
    front = known.get((c.FRONT, "acceptance", c.ABOVE))
    cooler = known.get((c.CONTROL, "acceptance", c.ABOVE))
    if front is None or front["ci_low"] <= 0:
        return Clause(MISSING, "")
    if cooler is None:
        sampled = front["quality_metric"] == AGREEMENT and front["temperature"] > 0
        unknown = "a lower temperature may gain as much, which this run did not measure"
        return Clause(MISSING, unknown if sampled else "")
    scale = _scale(front)
    gained = scale * (front["value"] - cooler["value"])
    outcome = _sign(cooler, 0, 0, LOWER, HIGHER)
    more = f"{_difference(cooler)} more{' (no difference shown)' if outcome == UNSHOWN else ''}"
    return Clause(outcome, f"a lower temperature gains {gained:+.1f} there, and the method {more}")


def _scale(row: _Row) -> float:
    return shown_metric(row["quality_metric"])[1]


def _difference(row: _Row) -> str:
    """Return a difference with its interval, with signs."""
    difference = shown(row["metric"], row["quality_metric"])
    return difference.estimate(row["value"], row["ci_low"], row["ci_high"])


def _size(row: _Row) -> str:
    """Return a difference with its interval, without signs."""
    difference = shown(row["metric"], row["quality_metric"])._replace(form=".1f")
    low, high = sorted((abs(row["ci_low"]), abs(row["ci_high"])))
    return difference.estimate(abs(row["value"]), low, high)

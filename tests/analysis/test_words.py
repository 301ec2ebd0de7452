"""The words of verdicts: the same intervals have the same words in every mode."""

import json
import math
from itertools import product

import pandas as pd
import pytest

from specbench.analysis.statistics.estimates import (
    ACCEPTANCE_LESS,
    LENGTH,
    QUALITY_LESS,
    TIMES,
    wide,
)
from specbench.analysis.statistics.intervals import Interval
from specbench.analysis.tables.verdict_tables import margin_tables, verdict_tables
from specbench.analysis.verdicts.contrasts import COMPARISON, OWN, SD
from specbench.analysis.verdicts.sentences import margin_verdict
from specbench.analysis.verdicts.words import (
    EXCLUDED,
    FASTER,
    OPEN,
    SHOWN,
    SLOWER,
    count_words,
    word,
)
from specbench.methods.registry import METHODS

QUALITIES = [(-9.0, -5.0), (-5.0, -1.0), (-1.5, -0.02), (-3.0, 2.0), (-1.0, 1.0), (0.5, 4.0)]
SPEEDS = [(0.5, 0.9), (0.9, 1.1), (1.2, 1.5)]
MARGINS = [1.0, 2.0, 6.0]


def row_of(quality, speed, margin=math.nan, **changes):
    """A row with these intervals, of quality in points, and no prompt that decides otherwise."""
    low, high = (end / 100 for end in quality)
    figures = {
        QUALITY_LESS: Interval((low + high) / 2, low, high, 300),
        TIMES: Interval(math.sqrt(speed[0] * speed[1]), *speed, 300),
        LENGTH: Interval(1.0, 1.0, 1.0, 300),
    }
    return {
        **wide(figures),
        **{"against": SD, "label": "fast", "quality": 0.5, "quality_metric": "accuracy"},
        **{"n": 300, "batch_size": 1, "blocks": math.nan, "noise": math.nan},
        **{"margin": margin, "again": False},
        **{"low_with_failures": low, "lowest": low, "prompts_needed": 900, "differ": 0.1},
        **{"load": 1.0, "concurrency": math.nan, "remarks": "", "refused": math.nan},
        **{"missing": math.nan, "missing_in_baseline": math.nan},
    } | changes


@pytest.mark.parametrize(("quality", "speed"), [*product(QUALITIES, SPEEDS)])
def test_the_same_intervals_have_the_same_words_in_every_mode(quality, speed):
    """Beside sd, in its table, and with each margin: open is said of no interval without 0."""
    alone = word(row_of(quality, speed))
    (line,) = verdict_lines(quality, speed)
    assert alone in line
    differs, faster = quality[0] > 0 or quality[1] < 0, speed[0] > 1 or speed[1] < 1
    assert ("open" in alone) == (not differs or not faster)
    assert not differs or f"{'better' if quality[0] > 0 else 'worse'} by" in alone
    assert not faster or alone.startswith(FASTER if speed[0] > 1 else SLOWER)
    for margin in MARGINS:
        row = row_of(quality, speed, margin)
        judged = margin_verdict(row)
        within = quality[0] > -margin
        assert judged["loss"] == (EXCLUDED if within else SHOWN if quality[1] < 0 else OPEN)
        expected = alone
        if within and not differs:
            expected = alone.replace("quality open", f"within {margin:g} points")
            expected = expected.replace("points", "point") if margin == 1 else expected
            if alone == "open":
                expected = f"speed open; within {margin:g} point{'s' if margin != 1 else ''}"
        elif within and quality[1] < 0:
            expected = f"{alone}, within {margin:g}"
        assert judged["verdict"] == expected
        is_loss = quality[1] < 0 and not quality[1] < -margin
        assert ("a loss is shown" in judged["sentence"]) == is_loss
        (table,) = margin_tables(margin_frame(row | judged))
        assert expected in str(table.rows[-1])
        (written,) = json.loads(pd.DataFrame([judged]).to_json(orient="records"))
        assert written["verdict"] == expected


def verdict_lines(quality, speed):
    row = row_of(quality, speed)
    shared = dict.fromkeys(COMPARISON, math.nan) | row
    shared |= {"at": OWN, "points": 1, "method": "typical", "task": "math", "pair": "mini"}
    shared |= {"temperature": 1.0, "engine": "eager", "run_id": "run", "against_quality": 0.6}
    shared |= {"acceptance": 0.5, "draft_length": 5, "drafter": "draft", "seeds": math.nan}
    rows = [
        shared
        | {"metric": name, "value": row[name], "ci_low": row[f"{name}_low"]}
        | {"ci_high": row[f"{name}_high"], "reference": math.nan, "least": math.nan, "missing": 0}
        for name in (QUALITY_LESS, TIMES)
    ]
    accepted = {"metric": ACCEPTANCE_LESS, "value": 0.1, "ci_low": 0.05, "ci_high": 0.15}
    rows.append(rows[0] | accepted)
    frame = pd.DataFrame(rows, columns=list(COMPARISON))
    return [str(line) for table in verdict_tables(frame) for line in table.rows]


def margin_frame(row):
    """A frame of ``margin_rows``: a baseline, then this row."""
    shared = {"run_id": "run", "task": "math", "temperature": 1.0, "method": "fast"}
    shared |= {"answers": 300, "retries": math.nan, "ends": "eos 300"}
    shared |= dict.fromkeys(("thoughts", "calls", "nothing", "blocks"), math.nan)
    shared |= {f"{name}_{q}": math.nan for name in ("first", "inter") for q in ("p50", "p99")}
    baseline = {**shared, "label": "sd", "against": None, "verdict": None, "batch_size": 1}
    return pd.DataFrame([baseline | {"quality_metric": "accuracy"}, shared | row])


def test_what_is_missing_or_zero_stands_in_the_verdict():
    row = row_of((-1.0, 1.0), (1.2, 1.5), 2.0)
    assert margin_verdict(row)["verdict"] == "faster; within 2 points"
    lost = margin_verdict(row | {"missing": 206.0, "lowest": -0.5})
    assert (lost["verdict"], lost["loss"]) == ("faster; quality open; 206 missing", OPEN)
    none = {"quality": 0.0, QUALITY_LESS: 0.0}
    assert margin_verdict(row | none)["verdict"] == "faster; all scores 0"
    unmeasured = {f"{QUALITY_LESS}_{end}": math.nan for end in ("low", "high")}
    assert word(row | unmeasured) == "faster; quality not measured"
    noisy = row_of((-1.0, 1.0), (1.05, 1.1), noise=1.2)
    assert word(noisy) == "speed within noise; quality open"
    assert word(row | {"n": 9}) == "too few prompts" and word(row | {"against": None}) == ""


def test_words_are_counted_over_tasks():
    """Each task once in speed and once in quality; too few prompts say neither."""
    worse, unshown, slightly = (-9.0, -5.0), (-1.0, 1.0), (-1.5, -0.02)
    rows = [row_of(quality, (1.2, 1.5)) for quality in (worse, unshown, unshown, unshown)]
    assert count_words(rows) == "faster on 4 of 4 tasks; worse on 1, quality open on 3"
    assert count_words(rows[1:]) == "faster on 3 of 3 tasks; quality open on 3"
    rows[1:3] = row_of((0.5, 4.0), (0.5, 0.9)), row_of(worse, (0.9, 1.1), n=9)
    expected = "faster on 2 of 4 tasks, slower on 1, too few prompts on 1"
    assert count_words(rows) == f"{expected}; better on 1, worse on 1, quality open on 1"
    rows = [row_of(quality, (0.9, 1.1), 2.0) for quality in (worse, slightly, unshown)]
    rows = [row | {"loss": margin_verdict(row)["loss"]} for row in rows]
    expected = "within 2 points on 1, worse on 1, worse within 2 points on 1"
    assert count_words(rows) == f"speed open on 3 of 3 tasks; {expected}"
    untimed = {f"{TIMES}_{end}": math.nan for end in ("low", "high")}
    assert count_words([rows[0] | untimed]) == "worse on 1 of 1 task"


def test_no_method_is_called_as_a_verdict():
    """A word of a verdict never means a rule."""
    said = {
        part
        for quality, speed, margin in product(QUALITIES, SPEEDS, MARGINS)
        for part in margin_verdict(row_of(quality, speed, margin))["verdict"].split()
    }
    assert not said & {*METHODS}

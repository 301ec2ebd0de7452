"""The data dictionary: every column of every table, as the fields of their models declare them."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from specbench.runs.columns import (
    EXPECTED_ACCEPTANCE,
    FEW_PROMPTS,
    MEAN_WEIGHT,
    RUN_ID,
    UNDRAFTED,
    UNRECORDED,
    CellColumns,
    SampleColumns,
    TableRow,
    column,
)
from specbench.runs.model import SampleRecord
from specbench.tasks.metrics import METRICS as QUALITY_METRICS


class RoundRow(SampleColumns):
    """A round of a sample."""

    round: int = column("", "index of the round within the sample, from 0")
    proposed: int = column("tokens", "drafted tokens proposed to the target")
    accepted: int = column("tokens", "drafted tokens accepted before the first rejection")
    emitted: int = column(
        "tokens", "tokens added by the round: the accepted ones and usually one from the target"
    )
    expected_acceptance: float | None = EXPECTED_ACCEPTANCE
    mean_weight: float | None = MEAN_WEIGHT
    rejected: int | None = column(
        "token id", "drafted token at the first rejection", "nothing was rejected; not recorded"
    )
    agreed: int | None = column(
        "tokens",
        "accepted tokens equal to the target's argmax; the other accepted tokens are mismatches",
        UNRECORDED,
    )


class PositionRow(CellColumns):
    """The acceptance at a position of the draft."""

    kind: str = column(
        "",
        "marginal: drafts 1 to i were all accepted; conditional: draft i was accepted, given "
        "drafts 1 to i - 1",
    )
    position: int = column("", "position i of the draft in its round, from 1")
    rounds: int = column(
        "rounds",
        "rounds counted: those that proposed draft i and, if conditional, accepted drafts 1 to "
        "i - 1",
    )
    value: float = column("fraction", "share of these rounds that accepted draft i")
    ci_low: float | None = column(
        "fraction", "lower end of its 95 % interval over prompts", FEW_PROMPTS
    )
    ci_high: float | None = column(
        "fraction", "upper end of its 95 % interval over prompts", FEW_PROMPTS
    )
    n: int = column("prompts", "number of prompts used")


class SummaryRow(CellColumns):
    """A metric of a cell."""

    metric: str = column("", "metric of the cell: one of those below, a quality metric or pass@k")
    value: float | None = column(
        "see unit", "value of the metric; quality is a fraction", "not defined"
    )
    ci_low: float | None = column(
        "see unit", "lower end of the 95 % interval over prompts", FEW_PROMPTS
    )
    ci_high: float | None = column(
        "see unit", "upper end of the 95 % interval over prompts", FEW_PROMPTS
    )
    n: int = column("prompts", "number of prompts used")
    unit: str | None = column(
        "", "unit of the value; for quality, the name of its metric", "quality not scored"
    )


class Metrics(TableRow):
    """The metrics of every cell, which are columns of the wide table."""

    quality: float | None = column(
        "", "mean score over samples (corpus BLEU for BLEU); the unit is the metric", "not scored"
    )
    draft_acceptance_rate: float | None = column(
        "fraction", "pooled: accepted / proposed tokens", UNDRAFTED
    )
    draft_acceptance_rate_sample_mean: float | None = column(
        "fraction", "mean over samples of accepted / proposed", UNDRAFTED
    )
    acceptance_length: float | None = column(
        "tokens/round", "pooled: tokens emitted / rounds", UNDRAFTED
    )
    acceptance_length_sample_mean: float | None = column(
        "tokens/round", "mean over samples of tokens per round", UNDRAFTED
    )
    conditional_acceptance_rate: float | None = column(
        "fraction", "pooled: accepted / judged tokens", UNDRAFTED
    )
    expected_acceptance: float | None = column(
        "fraction",
        "predicted conditional_acceptance_rate: mean acceptance probability over the positions "
        "judged, computed before the draw",
        UNDRAFTED,
    )
    predicted_acceptance_length: float | None = column(
        "tokens/round",
        "predicted acceptance_length: (acceptance probabilities + the target's own tokens) / "
        "rounds",
        UNDRAFTED,
    )
    mean_weight: float | None = MEAN_WEIGHT
    seconds_per_sample: float = column("s", "mean time per sample, including prefill")
    tokens_per_second: float = column("tokens/s", "pooled: output tokens / time, including prefill")
    tokens_per_second_sample_mean: float = column(
        "tokens/s", "mean over samples of tokens per second"
    )
    speedup: float | None = column(
        "x",
        "pooled tokens per second / that of autoregressive on the same prompts",
        "the run lacks autoregressive",
    )
    predicted_speedup: float | None = column(
        "x",
        "predicted speedup: predicted_acceptance_length tokens per measured round time",
        "the run lacks autoregressive, or nothing is drafted",
    )
    prefill_seconds: float = column("s", "mean prefill time")
    round_seconds: float = column("s/round", "pooled: decoding time / rounds")
    draft_seconds: float | None = column("s/round", "part of it spent on drafting", UNRECORDED)
    verify_seconds: float | None = column(
        "s/round", "part of it spent on target passes", UNRECORDED
    )
    accept_seconds: float | None = column(
        "s/round", "part of it spent on acceptance tests and token draws", UNRECORDED
    )
    latency_seconds: float | None = column(
        "s", "mean wall time from the start of prefill to the end of the text", UNRECORDED
    )
    output_tokens: int = column("tokens", "mean output length, including the end token")
    rounds: int = column("rounds", "mean rounds per sample")
    length_limit_rate: float | None = column(
        "fraction", "fraction of samples that ended at the limit on new tokens", UNRECORDED
    )
    repetition: float | None = column(
        "fraction",
        "mean share of a text's 4-grams of tokens that repeat an earlier one",
        UNRECORDED,
    )
    completed_quality: float | None = column(
        "",
        "quality of the samples that ended before the limit on new tokens",
        "not scored, or no sample ended before the limit",
    )


class RunRow(TableRow):
    """A run."""

    run_id: str = RUN_ID
    pair: str | None = column("", "name of the pair of target and draft", UNRECORDED)
    folder: str = column("", "folder of the run")
    state: str | None = column("", "complete, interrupted, failed or running", UNRECORDED)
    samples_planned: int | None = column("samples", "samples planned", UNRECORDED)
    samples: int | None = column("samples", "samples recorded", UNRECORDED)
    failed: int | None = column(
        "samples", "samples that could not be decoded or scored", UNRECORDED
    )
    tasks: str | None = column("", "tasks, separated by spaces", UNRECORDED)
    target: str | None = column("", "target model: folder or hub id", UNRECORDED)
    draft: str | None = column("", "draft model: folder or hub id", UNRECORDED)
    temperature: float | None = column("", "sampling temperature; 0 is greedy", UNRECORDED)
    top_k: int | None = column("tokens", "top-k: number of most likely tokens kept", "no limit")
    top_p: float | None = column(
        "fraction", "top-p: probability mass of the most likely tokens kept", "no limit"
    )
    min_p: float | None = column(
        "fraction", "min-p: least share of the likeliest token's probability kept", "no limit"
    )
    seed: int | None = column("", "seed; determines the examples and all random draws", UNRECORDED)
    repeats: int | None = column("", "times each cell decodes each example", UNRECORDED)
    engine: str | None = column("", "engine: eager, graph, compile or llamacpp", UNRECORDED)
    batch_size: int | None = column("texts", "largest number of texts decoded together", UNRECORDED)
    device: str | None = column("", "device of the models", UNRECORDED)
    dtype: str | None = column("", "floating-point type of the models", UNRECORDED)
    hardware: str | None = column("", "first GPU, or the CPU without a GPU", UNRECORDED)
    started: str | None = column("UTC", "start time of the run", UNRECORDED)
    command: str | None = column("", "command line", UNRECORDED)
    specbench: str | None = column("", "version of specbench", UNRECORDED)
    commit: str | None = column(
        "", "git commit of specbench; unknown outside a repository", UNRECORDED
    )
    dirty: str | None = column(
        "", "whether the code differed from that commit: True, False or unknown", UNRECORDED
    )
    python: str | None = column("", "version of Python", UNRECORDED)
    torch: str | None = column("", "version of PyTorch", UNRECORDED)
    transformers: str | None = column("", "version of Transformers", UNRECORDED)


#: The models of the tables by name. ``measured`` are the optional columns of samples; ``metrics``
#: are those of a summary, which become columns in the wide table.
TABLES: dict[str, type[TableRow]] = {
    "samples": SampleRecord,
    "measured": SampleRecord,
    "summary": SummaryRow,
    "metrics": Metrics,
    "rounds": RoundRow,
    "positions": PositionRow,
    "runs": RunRow,
}
TYPES: dict[str, type] = {"text": str, "number": float, "integer": int}


class ColumnMeaning(NamedTuple):
    """A column of tables; whole numbers that may be blank are a ``number``, which is a float."""

    tables: tuple[str, ...]
    name: str
    type: str
    unit: str
    meaning: str
    blank: str
    heading: str = ""


@cache
def dictionary() -> tuple[ColumnMeaning, ...]:
    """Return all columns, those of each table in order."""
    tables: dict[ColumnMeaning, tuple[str, ...]] = {}
    for table in TABLES:
        for listed in _columns(table):
            key = listed._replace(tables=())
            tables[key] = (*tables.get(key, ()), table)
    return tuple(listed._replace(tables=names) for listed, names in tables.items())


@cache
def _columns(table: str) -> tuple[ColumnMeaning, ...]:
    """Return the columns of a table in order; metrics of quality declare their own."""
    columns = []
    for metric in QUALITY_METRICS.values() if table == "measured" else ():
        score = (metric.name, "number", "fraction", metric.meaning, "not scored by this metric")
        columns.append(ColumnMeaning((table,), *score))
    fields: dict[str, dict[str, Any]] = TABLES[table].model_json_schema()["properties"]
    of_samples = {"samples": False, "measured": True}  # whether the columns are optional
    for name, field in fields.items():
        if "unit" not in field or of_samples.get(table, False) != field["optional"]:
            continue
        kinds = {kind.get("type") for kind in field.get("anyOf", [field])}
        whole = "integer" in kinds and not field["blank"]
        kind = "integer" if whole else "number" if {"integer", "number"} & kinds else "text"
        parts = (field[part] for part in ("unit", "description", "blank", "heading"))
        columns.append(ColumnMeaning((table,), name, kind, *parts))
    return tuple(columns)


def schema(*tables: str) -> dict[str, type]:
    """Return the columns of tables in order, with the Python types of their values."""
    return {column.name: TYPES[column.type] for table in tables for column in _columns(table)}


@cache
def bounds() -> dict[str, tuple[float, float]]:
    """Return the least and the greatest value of each column of samples that declares them."""
    declared = {
        name: (kind["minimum"], kind["maximum"])
        for name, field in SampleRecord.model_json_schema()["properties"].items()
        for kind in field.get("anyOf", [field])
        if kind.keys() >= {"minimum", "maximum"}
    }
    return dict.fromkeys(QUALITY_METRICS, declared["quality"]) | declared


def may_be_blank(*tables: str) -> frozenset[str]:
    """Return the names of the columns of these tables that may be blank."""
    return frozenset(c.name for table in tables for c in _columns(table) if c.blank)

"""What a report tells of servers: latencies, ends and failures, and answers that differ most."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import combinations
from typing import NamedTuple

import pandas as pd

from specbench.analysis.figures.latency import LATENCIES
from specbench.analysis.tables.table import Field, Table, condensed, number, percent
from specbench.runs.frames import rows_of
from specbench.runs.labels import method_label, method_labels
from specbench.runs.model import ERROR, SampleRecord
from specbench.tasks.example import Example
from specbench.tasks.metrics import shown_metric

MOST_PROMPTS = 5
LONGEST = 4_000  # characters of an answer on the page, and that are compared
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_Rows = tuple[str, pd.DataFrame]


class ArmAnswer(NamedTuple):
    """An answer as the page shows it."""

    arm: str
    facts: str  # its score, and why it ended
    text: str


class Apart(NamedTuple):
    """A prompt, and the answers of all arms to it."""

    task: str
    sample: str
    prompt: str
    answers: list[ArmAnswer]


def latency_tables(samples: pd.DataFrame) -> Iterator[Table]:
    """Yield a table of the latencies of each task's arms, in milliseconds."""
    if "first_token_seconds" not in samples:
        return
    served = samples[samples["first_token_seconds"].notna()]
    for task, of_task in served.groupby("task", sort=False):
        labels = method_labels(rows_of(of_task))
        fields: list[Field[_Rows]] = [
            ("arm", lambda arm: arm[0]),
            ("answers", lambda arm: f"{len(arm[1])}"),
            *(
                (
                    f"{meaning}\n{name}",
                    lambda arm, c=column, q=share: number(1000 * arm[1][c].quantile(q), "3s"),
                )
                for column, meaning in LATENCIES.items()
                for name, share in _QUANTILES.items()
            ),
        ]
        title = f"Latency on {task} (ms, wall times of the client)"
        yield Table.of(of_task.groupby(labels, sort=False), fields, title)


def ends_tables(records: Iterable[SampleRecord]) -> Iterator[Table]:
    """Yield a table of how the answers of each task's arms ended, and how many failed."""
    tasks: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for record in records:
        end = "failed" if record.status == ERROR else record.finish_reason or record.stopped_by
        tasks[record.task][method_label(vars(record))][end or "unknown"] += 1
    for task, arms in tasks.items():
        ends = dict.fromkeys(end for counts in arms.values() for end in counts)
        fields: list[Field[tuple[str, Counter[str]]]] = [
            ("arm", lambda arm: arm[0]),
            *((end, lambda arm, end=end: percent(arm[1][end] / arm[1].total())) for end in ends),
        ]
        yield condensed(Table.of(arms.items(), fields, f"Ends of answers on {task}"))


def most_apart(
    records: Sequence[SampleRecord], examples: Mapping[str, Mapping[str, Example]]
) -> list[Apart]:
    """Return the prompts whose scores, and then whose texts, differ most between the arms."""
    answers: dict[tuple[str, str, int], dict[str, SampleRecord]] = defaultdict(dict)
    for record in records:
        if not record.repeat and record.status != ERROR:
            of_arms = answers[record.task, record.sample_id, record.turn or 0]
            of_arms[method_label(vars(record))] = record
    spreads: dict[tuple[str, str, int], tuple[float, float]] = {}
    for prompt, arms in answers.items():
        scores = [answer.quality for answer in arms.values() if answer.quality is not None]
        texts = combinations(dict.fromkeys((a.text or "")[:LONGEST] for a in arms.values()), 2)
        unlike_texts = (1 - SequenceMatcher(None, *pair).quick_ratio() for pair in texts)
        spread = max(scores) - min(scores) if scores else 0.0
        spreads[prompt] = spread, max(unlike_texts, default=0.0)
    unlike = [prompt for prompt, spread in spreads.items() if spread > (0, 0)]
    ranked = sorted(unlike, key=spreads.__getitem__, reverse=True)[:MOST_PROMPTS]
    return [
        Apart(
            task,
            sample,
            "\n\n".join(examples[task][sample].texts) if sample in examples.get(task, {}) else "",
            [
                ArmAnswer(arm, _facts(record), (record.text or "")[:LONGEST])
                for arm, record in answers[task, sample, turn].items()
            ],
        )
        for task, sample, turn in ranked
    ]


def _facts(record: SampleRecord) -> str:
    facts = [f"ended by {record.finish_reason or record.stopped_by}"]
    if record.quality_metric is not None and record.quality is not None:
        name, scale = shown_metric(record.quality_metric)
        facts.insert(0, f"{name} {scale * record.quality:.1f}")
    return ", ".join(facts)

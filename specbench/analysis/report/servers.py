"""What a report tells of servers: latencies, ends and failures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import pandas as pd

from specbench.analysis.figures.latency import LATENCIES, arm_labels, of_servers
from specbench.analysis.tables.table import Field, Table, condensed, number, percent
from specbench.runs.labels import method_label
from specbench.runs.model import ERROR, SampleRecord

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_Rows = tuple[str, pd.DataFrame]


def latency_tables(samples: pd.DataFrame) -> Iterator[Table]:
    """Yield a table of the latencies of each task's arms, in milliseconds."""
    for task, of_task in of_servers(samples).groupby("task", sort=False):
        labels = arm_labels(of_task)
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


def ends_tables(records: Iterable[SampleRecord], run: str | None = None) -> Iterator[Table]:
    """Yield a table of the ends and failures of each task's arms, of a ``run`` among several."""
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
        title = f"Ends of answers on {task}" + (f", {run}" if run else "")
        yield condensed(Table.of(arms.items(), fields, title))

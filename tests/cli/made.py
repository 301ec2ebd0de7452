"""The tables of a made-up run with 30 prompts per method, and what a run's files hold."""

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specbench.analysis.written import write_tables

from ..synthetic import records, rows, samples, write_samples

Values = dict[str, Any]

# Method, weight, draft length, quality, accepted out of 25, seconds.
Point = tuple[str, float | None, int, float, int | None, float]
POINTS: list[Point] = [
    ("autoregressive", None, 0, 0.8, None, 1.6),
    *(("sd", None, n, 0.8, 10, seconds) for n, seconds in ((3, 0.8), (5, 1.0))),
    *(("static", 0.0, n, 0.2, 25, seconds) for n, seconds in ((3, 0.4), (5, 0.5))),
    *(("diversed", None, n, 0.7, 20, seconds) for n, seconds in ((3, 0.6), (5, 0.5))),
]


def write_run(folder: Path, points: Sequence[Point] = POINTS, pair: str = "mini") -> Path:
    rng = np.random.default_rng(0)
    rows = [
        {
            **{"method": method, "weight": weight, "draft_length": length, "sample_id": f"p{i:02}"},
            "drafter": "model" if length else None,
            **{"quality": float(rng.random() < quality), "rounds": 1},
            **{"proposed": 25 if length else 0, "accepted": accepted, "prefill_seconds": 0.0},
            "decode_seconds": seconds * rng.uniform(0.9, 1.1),
        }
        for method, weight, length, quality, accepted, seconds in points
        for i in range(30)
    ]
    rates = ("draft_acceptance_rate", "expected_acceptance", "acceptance_length")
    unknown = dict.fromkeys((*rates, "judged", "repetition"))
    shared = {**unknown, "run_id": folder.name, "pair": pair}
    return write_samples(folder, samples(*rows, **shared))


def edit_object(path: Path, change: Callable[[Values], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def strict(text: str) -> Any:
    """Parse JSON; NaN and Infinity are not JSON."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


def configure(run: Path, change: Callable[[Values], object]) -> None:
    edit_object(run / "config.json", change)


def lines(path: Path, change: Callable[[list[Values]], list[Values]]) -> None:
    rows = change([json.loads(line) for line in path.read_text().splitlines()])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def edit_rows(path: Path, change: Callable[[list[Values]], object]) -> None:
    table = rows(path)
    names = list(table[0])
    change(table)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(table)


def edit_records(run: Path, change: Callable[[list[Values]], object], *methods: str) -> None:
    """Change the records of some methods, or all, and write the tables that follow from them."""

    def edit(rows: list[Values]) -> list[Values]:
        change([row for row in rows if not methods or row["method"] in methods])
        return rows

    lines(run / "samples.jsonl", edit)
    write_tables(run)


def reduce_run(run: Path, fits: Callable[[Values], bool]) -> None:
    """Leave the records and cells of a run that fit, and write the tables that follow."""
    lines(run / "samples.jsonl", lambda rows: [row for row in rows if fits(row)])
    left = len(records(run))

    def fit(config: Values) -> None:
        for task in config["tasks"]:
            task["cells"] = [cell for cell in task["cells"] if fits({**cell, "task": task["name"]})]
        config["tasks"] = [task for task in config["tasks"] if task["cells"]]
        config["samples_planned"] = config["progress"]["samples"] = left

    configure(run, fit)
    tasks = {task["name"] for task in json.loads((run / "config.json").read_text())["tasks"]}
    lines(run / "examples.jsonl", lambda rows: [row for row in rows if row["task"] in tasks])
    write_tables(run)

"""Which records of a run are priced, and which are compared with the price."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from specbench.errors import UsageError
from specbench.methods.drafters import DRAFTERS, MODEL, needs_model
from specbench.methods.parameters import METHOD_COLUMNS
from specbench.methods.registry import METHODS
from specbench.pricing.scores import Record, TextName

#: The rules whose recorded rounds a price must match.
PRICED = ("sd", "match", "block", "sd-adaptive")
_CELL = ("task", *METHOD_COLUMNS, "draft_length", "drafter")


def name_of(record: Mapping[str, Any]) -> TextName:
    """Return the name of a record's text."""
    parts = [record[name] for name in ("method", "draft_length", "drafter", "cost")]
    return TextName(
        record["task"],
        record["sample_id"],
        " ".join(str(part) for part in parts if part),
        record["repeat"],
        record.get("turn"),
        record.get("category"),
    )


def cells_of(records: Sequence[Record]) -> list[list[Record]]:
    """Return the records of each cell."""
    cells: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        cells.setdefault(tuple(map(record.get, _CELL)), []).append(record)
    return [*cells.values()]


def target_texts(
    records: Sequence[Record], tasks: Collection[str] = (), limit: int | None = None
) -> list[Record]:
    """Return the records of all texts of the target: of every lossless cell of each task.

    A limit is one of prompts.

    Raises:
        UsageError: There is none.
    """
    decoded = [record for record in records if record.get("token_ids") is not None]
    names = dict.fromkeys(record["method"] for record in decoded)
    lossless = [name for name in names if name in METHODS and METHODS[name].exact]
    if not lossless:
        raise UsageError(
            f"the texts of {', '.join(names) or 'this run'} are not the target's, so they have no "
            "price: give a run with autoregressive or sd, and token ids"
        )
    cells = cells_of([record for record in decoded if record["method"] in lossless])
    chosen = [
        record
        for cell in cells
        if not tasks or cell[0]["task"] in tasks
        for record in first_prompts(cell, limit)
    ]
    if not chosen:
        raise UsageError(f"this run has no texts of {', '.join(tasks)}: see its config.json")
    return chosen


def first_prompts(cell: Sequence[Record], limit: int | None) -> list[Record]:
    """Return the records of a cell's first prompts, with all repeats and turns."""
    prompts = {*[*dict.fromkeys(record["sample_id"] for record in cell)][:limit]}
    return [record for record in cell if record["sample_id"] in prompts]


def recorded_rounds(
    records: Sequence[Record], tasks: Collection[str], drafters: Collection[str]
) -> list[list[Record]]:
    """Return the cells of tasks whose rounds can be compared with the price.

    Heads among the ``drafters`` are scored; cells of other heads are left out.
    """
    return [
        cell
        for cell in cells_of(records)
        if cell[0]["task"] in tasks
        and cell[0]["method"] in PRICED
        and cell[0]["draft_length"]
        and set(heads_of([drafter_of(cell[0])])) <= {*drafters}
    ]


def drafter_of(record: Mapping[str, Any]) -> str:
    """Return the drafter of a record, without a policy."""
    return str(record.get("drafter") or MODEL).partition("+")[0]


def heads_of(drafters: Iterable[str]) -> list[str]:
    """Return those of the drafters that are heads."""
    return [name for name in drafters if name not in DRAFTERS and needs_model(name)]

"""Which part of runs is read: some of their tasks, methods and draft lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from specbench.errors import UsageError
from specbench.words import meant


@dataclass(frozen=True)
class Selection:
    """Which rows of the tables of runs are meant; None means all.

    Attributes:
        tasks: Names of tasks.
        methods: Names of methods, each with all its parameters.
        draft_lengths: Tokens drafted per round. What drafts nothing goes with every length.
    """

    tasks: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    draft_lengths: Sequence[int] | None = None

    def of(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows that are meant of a table with the columns task, method, draft_length.

        Raises:
            UsageError: No row has one of the names or lengths, or none has all that is asked for.
        """
        kept = table
        for column, wanted in self._chosen():
            _require_known(table, column, wanted)
            alike = kept[column].isin(wanted)
            if column == "draft_length":
                alike |= ~(kept[column] > 0)
            kept = kept[alike]
        if kept.empty and len(table):
            raise UsageError(f"these runs have no sample with {self}: choose fewer at once")
        return kept if kept is table else kept.reset_index(drop=True)

    def __str__(self) -> str:
        """Return it as it is typed."""
        return " ".join(
            f"--{column.replace('_', '-')} {','.join(map(str, wanted))}"
            for column, wanted in self._chosen()
        )

    def _chosen(self) -> Iterator[tuple[str, Sequence[Any]]]:
        columns = {"task": self.tasks, "method": self.methods, "draft_length": self.draft_lengths}
        return ((column, wanted) for column, wanted in columns.items() if wanted is not None)


def _require_known(table: pd.DataFrame, column: str, wanted: Sequence[Any]) -> None:
    known = [str(value) for value in table[column].dropna().unique() if value != 0]
    for value in wanted:
        if str(value) not in known:
            what = column.replace("_", " ")
            raise UsageError(f"these runs have no {what} {value}: {meant(str(value), known)}")

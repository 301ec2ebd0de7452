"""How a row of a data set becomes an example: one template for each part."""

from __future__ import annotations

from dataclasses import dataclass

from specbench.errors import UsageError
from specbench.example import Example
from specbench.tasks.rows import Row
from specbench.tasks.templates import columns_of, expand, fill


@dataclass(frozen=True)
class Form:
    """Templates over the columns of a data set; those that are None leave their part empty.

    Attributes:
        prompt: The prompt.
        worked: A worked example, as it stands before a prompt.
        id: Name of an example; None counts the rows.
        reference: The right answer.
        tests: Statements of a test; a column that is a list gives its entries.
        passage: The part of the prompt that may be cut.
        code_prefix: Program text before a generated continuation.
        entry_point: Function that a generated program must define.
    """

    prompt: str
    worked: str | None = None
    id: str | None = None
    reference: str | None = None
    tests: tuple[str, ...] = ()
    passage: str | None = None
    code_prefix: str | None = None
    entry_point: str | None = None

    @property
    def columns(self) -> list[str]:
        """Columns that every row must have."""
        single = (self.prompt, self.worked, self.id, self.reference, self.passage)
        code = (self.code_prefix, self.entry_point, *self.tests)
        named = (columns_of(template) for template in (*single, *code) if template)
        return list(dict.fromkeys(name for names in named for name in names))

    def example(self, row: Row, name: str) -> Example:
        """Make the example of a row.

        Args:
            row: The row.
            name: The example's name where no column gives one.

        Raises:
            UsageError: A value is missing or of the wrong type, or the prompt is empty.
        """

        def part(template: str | None) -> str:
            return fill(template, row) if template else ""

        prompt = fill(self.prompt, row)
        if not prompt.strip():
            raise UsageError(f"{row.where}: the prompt is empty; fill it in or remove the row")
        return Example(
            id=part(self.id) or name,
            prompt=prompt,
            reference=fill(self.reference, row) if self.reference else None,
            tests=tuple(test for entry in self.tests for test in expand(entry, row) if test),
            passage=part(self.passage),
            code_prefix=part(self.code_prefix),
            entry_point=part(self.entry_point),
        )

    def shot(self, row: Row) -> str:
        """Make the worked example of a row."""
        assert self.worked is not None  # whoever sets a number of shots has checked
        return fill(self.worked, row)

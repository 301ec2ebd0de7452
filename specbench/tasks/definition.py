"""Schema and templates of a task file; ``training.recipe`` has the schema of ``[training]``.

In a template, ``{column}`` is replaced by a row's value, ``{translation.de}`` by an entry of a
nested column, ``{turns.0}`` by that of a list, and ``{{word}}`` by ``{word}``; other braces are
literal. A list becomes lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from specbench.errors import UsageError, listed, shown, unknown
from specbench.schema import StrictModel, Text, Texts
from specbench.tasks.example import Example
from specbench.tasks.metrics import get_metric
from specbench.tasks.rows import Row, list_in, require_columns, require_utf8, value_of

PROMPT = "{prompt}"  # placeholder for the generator's prompt in its template

_NAME = r"([^\W\d]\w*(?:\.\w+)*)"
_PLACE = re.compile(r"\{\{" + _NAME + r"\}\}|\{" + _NAME + r"\}")
_FILE_NAME = re.compile(r"\w[\w.-]{,59}")  # at most 255 bytes including suffixes


def _file_name(name: str) -> str:
    if not _FILE_NAME.fullmatch(name):
        raise ValueError("is used in file names: use at most 60 letters, digits, `_`, `-` and `.`")
    return name


def _split_name(name: str) -> str:
    if not _FILE_NAME.fullmatch(name):
        raise ValueError(
            "must be the name of a split of the dataset, or of a file beside the task file, "
            f"without a folder, not {shown(repr(name))}: move the file there"
        )
    return name


FileName = Annotated[Text, AfterValidator(_file_name)]
SplitName = Annotated[Text, AfterValidator(_split_name)]


def columns_of(template: str) -> list[str]:
    """Return the columns named in a template, without repeats."""
    return list(dict.fromkeys(match[2] for match in _PLACE.finditer(template) if match[2]))


def _template(text: str) -> str:
    # Without a column, the text would be the same for every row.
    if not columns_of(text):
        raise ValueError("names no column; write one as `{column}`")
    return text


def _templates(texts: Iterable[str]) -> tuple[str, ...]:
    # One column is enough: other statements of a test may be the same for all rows.
    _template("\n".join(texts))
    return tuple(texts)


Template = Annotated[Text, AfterValidator(_template)]


class ExampleTable(StrictModel):
    """Templates for the parts of an example other than its prompt; None leaves a part empty."""

    id: Template | None = None  # name of the example; None numbers the rows
    reference: Template | None = None  # reference answer
    # test statements; a column with a list provides one statement per entry
    tests: Annotated[Texts, AfterValidator(_templates)] = ()
    passage: Template | None = None  # part of the prompt that may be cut
    code_prefix: Template | None = None  # program text before a generated continuation
    entry_point: Template | None = None  # function that a generated program must define
    category: Template | None = None  # group of examples, such as a domain


class SourceTable(StrictModel):
    """The source of examples: a generator, splits of a dataset on the hub, or local files.

    Without a generator and a dataset, the splits are names of files beside the task file, with or
    without their suffix.
    """

    generator: Text | None = None
    dataset: Text | None = None
    config: Text | None = None
    revision: Text | None = None
    train: SplitName | None = None
    test: SplitName | None = None

    @field_validator("generator")
    @classmethod
    def _known(cls, name: str) -> str:
        from specbench.tasks.mini import GENERATORS

        if name not in GENERATORS:
            raise ValueError(f"is an {unknown('generator', name, GENERATORS)}")
        return name

    @model_validator(mode="after")
    def _one_source(self) -> SourceTable:
        if self.generator is not None:
            if further := self.model_fields_set - {"generator"}:
                raise ValueError(f"names a generator and also {listed(sorted(further))}; keep one")
        elif self.dataset is None and (self.config or self.revision):
            raise ValueError("has a `config` or `revision`, but no `dataset` on the hub; add it")
        elif self.test is None and self.dataset is None:
            raise ValueError("names no generator, dataset or `test` file; add one of them")
        elif self.test is None:
            raise ValueError("lacks `test`, the name of the test split; add it")
        elif self.train == self.test:
            raise ValueError("has the same split as `train` and `test`; name another or none")
        return self


class PromptTable(StrictModel):
    """The template of a prompt, and of the few-shot examples before it."""

    template: Text
    format: Literal["chat", "plain"] = "chat"
    shot: Template | None = None
    shots: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _shots_have_a_template(self) -> PromptTable:
        if self.shots and self.shot is None:
            raise ValueError("has `shots` but no `shot`, the template of few-shot examples; add it")
        return self


class Definition(StrictModel):
    """A task file. Each table is checked against the tables above it."""

    name: FileName
    version: Text
    description: str = ""
    licence: str = ""
    source: SourceTable
    prompt: PromptTable
    example: ExampleTable = ExampleTable()
    metrics: Texts = ()
    max_new_tokens: int = Field(ge=1)
    stop: Texts = ()
    training: dict[str, Any] = Field(default_factory=dict)

    @field_validator("prompt")
    @classmethod
    def _fits_the_source(cls, prompt: PromptTable, info: ValidationInfo) -> PromptTable:
        source: SourceTable | None = info.data.get("source")
        if source is None:
            return prompt
        if source.generator is not None:
            if PROMPT not in prompt.template:
                raise ValueError(f"must have `{PROMPT}` in `template`")
            if prompt.shot is not None:
                raise ValueError("has a `shot`, which goes with a dataset; leave it out")
        elif not columns_of(prompt.template):
            raise ValueError("names no column in `template`; write one as `{column}`")
        if prompt.shots and source.train is None:
            raise ValueError("has `shots`, which need `source.train`; add it")
        return prompt

    @field_validator("example")
    @classmethod
    def _fits_the_prompt(cls, example: ExampleTable, info: ValidationInfo) -> ExampleTable:
        source: SourceTable | None = info.data.get("source")
        prompt: PromptTable | None = info.data.get("prompt")
        if source is not None and source.generator is not None:
            raise ValueError("goes with a dataset, not with a generator; leave it out")
        if prompt is not None and (example.passage or "") not in prompt.template:
            raise ValueError("has a `passage` that must be a part of `prompt.template`")
        return example

    @field_validator("metrics")
    @classmethod
    def _can_be_measured(cls, metrics: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        source, example = info.data.get("source"), info.data.get("example")
        for name, times in Counter(metrics).items():
            if times > 1:
                raise ValueError(f"names `{shown(name)}` {times} times; once is enough")
            try:
                needed = get_metric(name).needs
            except UsageError as error:
                raise ValueError(f"cannot be used: {error}") from error
            stored = source is not None and source.generator is None
            if stored and example is not None and not getattr(example, needed, True):
                raise ValueError(f"has `{name}`, which needs `example.{needed}`; add it")
        return metrics

    @property
    def columns(self) -> list[str]:
        """Columns that every row of the dataset must have."""
        part = self.example
        single = (part.id, part.reference, part.passage, part.code_prefix, part.entry_point)
        texts = (self.prompt.template, self.prompt.shot, *single, part.category, *part.tests)
        return columns_of("\n".join(filter(None, texts)))

    def make_example(self, row: Row, name: str) -> Example:
        """Return the example of a row; ``name`` is its id unless the task file has a template."""
        prompt, part = fill(self.prompt.template, row), self.example
        if not prompt.strip():
            raise UsageError(f"{row.location}: the prompt is empty; fill it in or remove the row")
        return Example(
            id=fill(part.id, row) or name,
            prompt=prompt,
            reference=fill(part.reference, row) if part.reference else None,
            tests=tuple(test for entry in part.tests for test in _expand(entry, row) if test),
            passage=fill(part.passage, row),
            code_prefix=fill(part.code_prefix, row),
            entry_point=fill(part.entry_point, row),
            category=fill(part.category, row),
        )


def fill(template: str | None, row: Row) -> str:
    """Fill in a row's values; raises ``UsageError`` if one is missing or not a text."""

    def value(place: re.Match[str]) -> str:
        return f"{{{place[1]}}}" if place[1] else "\n".join(_texts(place[2], row))

    return _PLACE.sub(value, template or "")


def _expand(template: str, row: Row) -> list[str]:
    """Fill a template; one that consists of a column with a list returns the list's entries."""
    match = _PLACE.fullmatch(template)
    if match is None or not match[2]:
        return [fill(template, row)]
    texts = _texts(match[2], row)
    if texts and texts[0].lstrip().startswith("["):
        # As a Python statement, a list of tests has no effect and would always pass.
        raise UsageError(f"{row.location}: `{match[2]}` must be a list of texts; write it as JSON")
    return texts


def _texts(name: str, row: Row) -> list[str]:
    require_columns(row.columns, [name], row.location)
    value = list_in(value_of(row.columns, name))
    return [_text(entry, name, row) for entry in (value if isinstance(value, list) else [value])]


def _text(value: object, name: str, row: Row) -> str:
    if value is None:
        raise UsageError(f"{row.location}: `{name}` is empty; fill it in or remove the row")
    if not isinstance(value, str | int | float):
        kind = type(value).__name__
        raise UsageError(f"{row.location}: `{name}` must be text, a number or a list, not {kind}")
    # MBPP's code has Windows line ends.
    return require_utf8(str(value).replace("\r\n", "\n"), name, row.location)

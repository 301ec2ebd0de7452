"""Task files: what may stand in one, and every mistake outside ``[training]``, a head's recipe."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specbench.errors import UsageError
from specbench.example import CHAT, FORMATS
from specbench.metrics import get_metric
from specbench.tasks.form import Form
from specbench.tasks.templates import columns_of
from specbench.words import listed, meant, shown, unknown

PROMPT = "{prompt}"  # where a generator's prompt goes in its template

Kinds = dict[str, type[Any]]

# A dot stands for a table.
_COMMON: Kinds = {
    "name": str,
    "version": str,
    "description": str,
    "licence": str,
    "metrics": list,
    "max_new_tokens": int,
    "stop": list,
    "prompt.template": str,
}
_GENERATED: Kinds = {"source.generator": str}
_DATASET: Kinds = {"source.dataset": str, "source.test": str}
_OPTIONAL: Kinds = {"training": dict, "prompt.format": str}
_DATASET_OPTIONAL: Kinds = {
    "source.config": str,
    "source.revision": str,
    "source.train": str,
    "prompt.shot": str,
    "prompt.shots": int,
    "example.id": str,
    "example.reference": str,
    "example.tests": list,
    "example.passage": str,
    "example.code_prefix": str,
    "example.entry_point": str,
}
_KINDS = {
    str: "a string",
    int: "an integer",
    list: "a list of strings",
    dict: "a table",
}
# May be empty; every other string and list of strings says something.
_MAY_BE_EMPTY = ("stop", "licence", "description")
_FILE_NAME = re.compile(r"\w[\w.-]*")
_EXAMPLE_KEYS = {"reference": "example.reference", "tests": "example.tests"}
# One without a column would be the same for every row.
_FILLED = (
    "prompt.template",
    "prompt.shot",
    "example.id",
    "example.reference",
    "example.tests",
    "example.passage",
    "example.code_prefix",
    "example.entry_point",
)


class Problem(NamedTuple):
    """A mistake in a task file: the key it is at, and what is wrong there."""

    key: str
    what: str

    def __str__(self) -> str:
        text = f"{self.key}: {self.what}" if self.key else self.what
        return " ".join(text.split())  # one line, whatever a key was called


def read_definition(path: Path) -> tuple[dict[str, Any], list[Problem]]:
    """Read a task file.

    Returns:
        Its values by dotted key, ``training`` being one value, and every mistake but those in
        it, which ``training.recipe.wrong_training`` finds.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the task file {path}: {error.strerror}") from error
    except ValueError as error:  # not TOML, or not UTF-8
        return {}, [Problem("", f"not valid TOML: {error}")]
    except RecursionError:
        return {}, [Problem("", "not valid TOML: nested too deeply")]
    values = _flat(document)
    problems = list(_wrong_keys(values))
    wrong = {problem.key for problem in problems}
    sound = {key: value for key, value in values.items() if key not in wrong}
    return values, [*problems, *_wrong_values(sound)]


def form_of(values: Mapping[str, Any]) -> Form:
    """Return the templates of a data set's task."""
    single = ("id", "reference", "passage", "code_prefix", "entry_point")
    return Form(
        prompt=values["prompt.template"],
        worked=values.get("prompt.shot"),
        tests=tuple(values.get("example.tests", ())),
        **{name: values.get(f"example.{name}") for name in single},
    )


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, dict) and value and key != "training":
            flat |= {f"{key}.{inner}": entry for inner, entry in value.items()}
        else:
            flat[key] = value
    return flat


def _wrong_keys(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Find unknown and missing keys, values of the wrong type, and empty ones."""
    generated, stored = "source.generator" in values, "source.dataset" in values
    if generated == stored:
        names = "both a generator and" if generated else "neither a generator nor"
        advice = "remove one of the two" if generated else "add one of the two"
        yield Problem("source", f"names {names} a dataset; {advice}")
    needed = _COMMON | (_DATASET if stored else {})
    known = _COMMON | _OPTIONAL
    known |= {} if stored and not generated else _GENERATED
    known |= {} if generated and not stored else _DATASET | _DATASET_OPTIONAL
    for key, value in values.items():
        if key not in known:
            yield Problem(key, f"unknown key; {meant(key, known)}")
        # Exact types: to isinstance, true is an integer.
        elif type(value) is not known[key]:
            yield Problem(key, f"must be {_KINDS[known[key]]}, not {shown(repr(value))}")
        elif known[key] is list and not all(isinstance(e, str) and e for e in value):
            yield Problem(key, "must be a list of strings that are not empty")
        elif known[key] in (str, list) and not value and key not in _MAY_BE_EMPTY:
            yield Problem(key, "is empty; fill it in")
    for key in needed:
        if key not in values:
            yield Problem(key, "missing; add it")


def _wrong_values(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Find what is wrong with values of the right type; some keys may be missing."""
    for key, least in (("max_new_tokens", 1), ("prompt.shots", 0)):
        if values.get(key, least) < least:
            yield Problem(key, f"must be at least {least}, not {values[key]}")
    if (form := values.get("prompt.format", CHAT)) not in FORMATS:
        yield Problem("prompt.format", f"must be one of {listed(FORMATS)}, not `{shown(form)}`")
    for key in ("name", "source.test", "source.train"):
        if key in values and not _FILE_NAME.fullmatch(values[key]):
            yield Problem(key, "names files too: keep to letters, digits, `_`, `-` and `.`")
    if "source.generator" in values:
        yield from _wrong_generator(values)
    if "source.dataset" in values:
        yield from _wrong_templates(values)
    for name, times in Counter(values.get("metrics", ())).items():
        if times > 1:
            yield Problem("metrics", f"names `{shown(name)}` {times} times; once is enough")
        try:
            needs = _EXAMPLE_KEYS[get_metric(name).needs]
        except UsageError as error:
            yield Problem("metrics", str(error))
        else:
            if "source.dataset" in values and needs not in values:
                yield Problem("metrics", f"`{name}` needs `{needs}`; add it")


def _wrong_generator(values: Mapping[str, Any]) -> Iterator[Problem]:
    from specbench.tasks.mini import GENERATORS

    if (name := values["source.generator"]) not in GENERATORS:
        yield Problem("source.generator", unknown("generator", name, GENERATORS))
    if PROMPT not in values.get("prompt.template", PROMPT):
        yield Problem("prompt.template", f"must contain `{PROMPT}`")


def _wrong_templates(values: Mapping[str, Any]) -> Iterator[Problem]:
    for key in _FILLED:
        # Of the statements of a test one is enough: others may be alike for all rows.
        if key in values and not columns_of("\n".join(_entries(values[key]))):
            yield Problem(key, "names no column; write one as `{column}`")
    if "source.train" in values and values["source.train"] == values.get("source.test"):
        yield Problem("source.train", "is the test split too; name another or leave it out")
    passage = values.get("example.passage", "")
    if passage not in values.get("prompt.template", passage):
        yield Problem("example.passage", "must be a part of `prompt.template`")
    if values.get("prompt.shots", 0) > 0:
        for key, what in (("prompt.shot", "the template"), ("source.train", "the split")):
            if key not in values:
                yield Problem("prompt.shots", f"needs `{key}`, {what} of worked examples; add it")


def _entries(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value

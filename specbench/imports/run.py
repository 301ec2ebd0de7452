"""Files of other tools as the arms of one run, paired by prompt."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from specbench.errors import UsageError, require
from specbench.experiment.arms import shares_of
from specbench.experiment.store import Store, Summarise
from specbench.imports.formats import FORMATS
from specbench.imports.measurement import Benchmark
from specbench.imports.reading import File
from specbench.methods.parameters import to_columns
from specbench.methods.registry import AUTOREGRESSIVE, METHODS
from specbench.runs.columns import SAMPLES, schema
from specbench.runs.records import ERROR, OK
from specbench.version import __version__
from specbench.words import shown

NOT_TOLD = "not told"
_NAME = re.compile(r"[\w.+-]{1,100}")


class BenchmarkArm(NamedTuple):
    """A measurement of an arm, with its file and the tool that wrote it."""

    name: str
    file: File
    tool: str
    measurement: Benchmark

    @property
    def cell(self) -> dict[str, Any]:
        """The cell, as ``config.json`` describes it."""
        settings, length = self.measurement.settings, self.measurement.draft_length
        return {"method": self.name, **settings, "draft_length": length}

    @property
    def prompts(self) -> dict[tuple[str, int | None], str | None]:
        """The traits of the prompts by id and turn, None for that of a failed request."""
        return {
            (request.sample_id, request.turn): None if request.error else request.trait
            for request in self.measurement.requests
        }

    @property
    def provenance(self) -> dict[str, Any]:
        """What the file is and tells, for ``config.json``."""
        path, content = self.file
        return {
            **{"arm": self.name, "tool": self.tool, "file": path.name},
            **{"bytes": len(content), "sha256": self.file.sha256},
            **self.measurement.model_dump(include={"task", "model", "engine", "further_facts"}),
        }


def read_arms(arguments: Sequence[str]) -> list[BenchmarkArm]:
    """Return the arms in files, each given as ``FILE`` or ``NAME=FILE``.

    Raises:
        UsageError: A file has no known format or is wrong, or two arms have the same name or file.
    """
    arms: list[BenchmarkArm] = []
    for argument in arguments:
        name, path = _name_and_path(argument)
        file = File.read(path)
        for arm in arms:
            both = f"{arm.file.path} and {path}"
            require(arm.file.content != file.content, f"{both} have the same content: give it once")
            require(
                arm.name != name or argument.startswith(f"{name}="),
                f"{both} would both be the arm {name}: name them, as in plain={arm.file.path}",
            )
        arms += _arms_in(name, file)
    return arms


def _name_and_path(argument: str) -> tuple[str, Path]:
    name, equals, path = argument.partition("=")
    if not (equals and _NAME.fullmatch(name)):
        name, path = Path(argument).stem, argument
    named = bool(_NAME.fullmatch(name))
    require(named, f"{argument} needs a short name for its arm, such as fast={path}")
    require(
        name == AUTOREGRESSIVE or name not in METHODS,
        f"the arm {name} would be taken for the rule {name}: choose another name",
    )
    return name, Path(path)


def _arms_in(name: str, file: File) -> Iterator[BenchmarkArm]:
    objects = file.objects()
    first = next(objects)
    for tool, keys, read in FORMATS:
        if keys <= first.values.keys():
            for measurement in read(file.path, chain([first], objects)):
                yield BenchmarkArm(name, file, tool, measurement)
            return
    tools = ", ".join(tool for tool, _, _ in FORMATS)
    raise UsageError(f"{file.path} is no file of {tools}: give the file that one of them wrote")


def pair_by_prompt(arms: Sequence[BenchmarkArm]) -> list[str]:
    """Check that arms of a task sent the same prompts, and return a sentence for each that lacks.

    Raises:
        UsageError: Arms have no prompt in common, or one that differs.
    """
    notes = []
    for task, of_task in _by_task(arms).items():
        traits: dict[Any, tuple[str, Path]] = {}
        for arm in of_task:
            for prompt, trait in arm.prompts.items():
                first, path = traits.setdefault(prompt, (trait or "", arm.file.path))
                require(
                    trait in (None, first) or not first,
                    f"prompt {shown(prompt[0])} of {task} has {shown(first)} in {path}, but "
                    f"{shown(str(trait))} in {arm.file.path}: measure the same prompts",
                )
        files = " and ".join(dict.fromkeys(str(arm.file.path) for arm in of_task))
        shared = set.intersection(*({*arm.prompts} for arm in of_task))
        require(bool(shared), f"{files} have no prompt of {task} in common: measure the same ones")
        baselines = {str(arm.cell) for arm in of_task if arm.name == AUTOREGRESSIVE}
        require(
            len(baselines) < 2,
            f"tables compare with one setting of {AUTOREGRESSIVE}, but {task} has several: import "
            "them one by one",
        )
        for arm in of_task:
            requests, missing = arm.measurement.requests, len(traits) - len(arm.prompts)
            failed = sum(bool(request.error) for request in requests)
            if missing:
                notes.append(f"{arm.name} lacks {missing} of {len(traits)} prompts of {task}")
            if failed:
                notes.append(f"{arm.name}: {failed} of {len(requests)} requests of {task} failed")
    return notes


def write_run(folder: Path, arms: Sequence[BenchmarkArm], summarise: Summarise) -> None:
    """Write the arms as a run into an empty folder; ``summarise`` writes its summaries.

    Raises:
        UsageError: No request succeeded.
    """
    records = list(_records(arms, folder.name))
    succeeded = any(record["status"] == OK for record in records)
    require(succeeded, "no request in these files succeeded: measure again")
    tasks = [
        {
            "name": task,
            "metrics": sorted({a.measurement.metric for a in of_task if a.measurement.metric}),
            "examples": len({prompt for arm in of_task for prompt in arm.prompts}),
            "cells": [arm.cell for arm in of_task],
        }
        for task, of_task in _by_task(arms).items()
    ]
    config = {
        "specbench": __version__,
        "pair": {"name": records[0]["pair"]},
        "samples_planned": len(records),
        "tasks": tasks,
        "imported": {str(n): arm.provenance for n, arm in enumerate(arms, start=1)},
    }
    with Store(folder, config, summarise) as store:
        for record in records:
            store.append(record)


def _by_task(arms: Sequence[BenchmarkArm]) -> dict[str, list[BenchmarkArm]]:
    tasks = defaultdict(list)
    for arm in arms:
        tasks[arm.measurement.task].append(arm)
    return tasks


def _records(arms: Sequence[BenchmarkArm], run_id: str) -> Iterator[dict[str, Any]]:
    """Yield a record for each request; requests of a cell for the same prompt are its repeats."""
    cells = [(arm.measurement.task, arm.cell) for arm in arms]
    tasks = list(_by_task(arms))
    prompts: dict[Any, int] = {}
    repeats: Counter[Any] = Counter()
    # One name for all arms, so that one table shows them.
    pair, engine = (
        " and ".join(dict.fromkeys(filter(None, names))) or NOT_TOLD
        for names in zip(*((a.measurement.model, a.measurement.engine) for a in arms), strict=True)
    )
    for arm in arms:
        measurement, cell = arm.measurement, cells.index((arm.measurement.task, arm.cell))
        for request, times in zip(measurement.requests, _own_times(measurement), strict=True):
            prompt = measurement.task, request.sample_id, request.turn
            number, repeat = prompts.setdefault(prompt[:2], len(prompts)), repeats[cell, prompt]
            repeats[cell, prompt] += 1
            yield {
                **dict.fromkeys(schema(SAMPLES)),
                **({} if request.error else request.columns | times),
                **to_columns(measurement.settings),
                "key": f"{cell}/{number}/{request.turn}/{repeat}",
                "place": [tasks.index(measurement.task), repeat, number, cell],
                "status": ERROR if request.error else OK,
                **({"error": request.error} if request.error else {}),
                **{"run_id": run_id, "pair": pair, "engine": engine, "task": measurement.task},
                **{"method": arm.name, "draft_length": measurement.draft_length},
                **{"temperature": measurement.temperature, "batch_size": 1, "session": 0},
                **{"repeat": repeat, "sample_id": request.sample_id, "turn": request.turn},
                "quality_metric": measurement.metric,
            }


def _own_times(measurement: Benchmark) -> list[dict[str, float | None]]:
    """Return the columns of each request's share of the elapsed time, if all times are known."""
    requests = measurement.requests
    spans = [request.span for request in requests if not request.error]
    known = [span for span in spans if span is not None]
    shares = iter(shares_of(known) if len(known) == len(spans) else ())
    columns = []
    for request in requests:
        before, after = (None, None) if request.error else next(shares, (None, None))
        seconds = None if before is None or after is None else before + after
        speed = request.output_tokens / seconds if request.output_tokens and seconds else None
        times = {"prefill_seconds": before, "decode_seconds": after, "tokens_per_second": speed}
        columns.append(times)
    return columns

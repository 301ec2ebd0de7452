"""A run's folder while the run goes on: its configuration, its environment and every sample.

``samples.jsonl`` grows by one line per sample; everything else is written to a temporary file that
then takes its place, so no table on disk is ever half a table. A run that was stopped in any way
resumes where it was: whole lines of ``samples.jsonl`` stay.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from specbench.config import EAGER, GRAPH
from specbench.errors import SpecbenchError, UsageError
from specbench.experiment.folders import (
    COMPLETE,
    CONFIG,
    ENVIRONMENT,
    LOCK,
    as_json,
    new_folder,
    require_same_run,
    unfinished_twins,
    unused,
)
from specbench.experiment.plan import Plan, Step
from specbench.experiment.records import (
    EXAMPLES,
    OK,
    RECORDS,
    cut_torn_line,
    names_of,
    read_records,
    to_line,
    write_tables,
)
from specbench.files import cannot_write, clear_errors, write_atomically
from specbench.heads.registry import HeadFile
from specbench.version import __version__

# Settings that are about the whole run and decide no single sample.
_ABOUT_THE_RUN = {"repeats", "engine", "engine_fallback"}

Key = Callable[[Step], str]


class Store:
    """A run's folder, open for writing; leaving the context writes the tables.

    The tables are written from the samples that exist, whether the run ended, failed or was
    interrupted; ``config.json`` says which. A run without any sample leaves no folder behind.

    Attributes:
        folder: The run's folder.
        run_id: The folder's name when the run began; a run in a renamed folder stays one run.
        resumed: Samples that were there when it was opened.

    Raises:
        UsageError: The folder holds something else, is in use, or cannot be written.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder, self.run_id = folder, folder.name
        self._config = config
        self._samples: dict[tuple[Any, ...], tuple[str, str]] = {}  # key and status by names
        self._finished: set[str] = set()  # keys
        self._key: Key | None = None
        self._made = not folder.exists()  # whether the folder is this run's to remove
        try:
            folder.mkdir(parents=True, exist_ok=True)
            require_same_run(folder, config)
            self._lock = lock(folder)
        except OSError as error:
            raise UsageError(cannot_write(folder, error)) from error
        self._new = not (folder / CONFIG).exists()
        try:
            cut_torn_line(folder)
            for record in read_records(folder) if (folder / RECORDS).exists() else ():
                self.run_id = record["run_id"]
                self._count(record)
            self._write_config("running")
        except SpecbenchError as error:
            if self._made:
                self._remove()
            self._lock.release()
            raise UsageError(str(error)) from error
        self.resumed = self.done

    @classmethod
    def open(
        cls, output: Path | None, label: str, config: Mapping[str, Any], fresh: bool = False
    ) -> Store:
        """Open the folder of a new run, or resume a run of the same plan.

        Without ``output`` it is ``results/<UTC time>-<label>``, or the newest of these that is
        unfinished and has the very same configuration. A ``fresh`` run starts anew; a run that is
        in ``output`` is moved aside first.
        """
        if output is not None:
            if fresh and (output / CONFIG).exists():
                lock(output).release()  # refused where it is in use
                output.rename(unused(output.with_name(f"{output.name}-before")))
            return cls(output, config)
        for folder in () if fresh else unfinished_twins(label, config):
            with suppress(UsageError):
                return cls(folder, config)
        return cls(new_folder(label), config)

    @property
    def done(self) -> int:
        """Samples recorded so far, those of earlier sessions included."""
        return len(self._samples)

    @property
    def failed(self) -> int:
        """Those of them that could not be decoded or scored."""
        return sum(status != OK for _, status in self._samples.values())

    def expect(self, plan: Plan, models: Mapping[str, Any], engine: str) -> None:
        """Say which samples are to come, before ``missing`` and ``record``; see ``sample_keys``.

        Raises:
            UsageError: A sample is there that other models, another head, device or version made.
        """
        self._key = sample_keys(plan, models, engine)
        for step in plan.steps() if self.resumed else ():
            key = self._key(step)
            before, _ = self._samples.get(names_of(plan.identify(step, engine)), (key, ""))
            if before != key and before in self._finished:
                raise UsageError(
                    f"{self.folder} holds samples of {step.cell.method} on {step.plan.task.name} "
                    "that other models, another head, engine or version made: name another "
                    "folder with --output, or move that run aside with --fresh"
                )

    def missing(self, steps: Iterable[Step]) -> list[Step]:
        """Return the steps of which there is no sample, or one that failed."""
        assert self._key is not None
        return [step for step in steps if self._key(step) not in self._finished]

    def record(self, step: Step, result: Mapping[str, Any]) -> dict[str, Any]:
        """Add the result of a step, see ``append``; return its record."""
        assert self._key is not None
        names = {"key": self._key(step), "place": step.place, "run_id": self.run_id}
        record = names | dict(result)
        self.append(record)
        return record

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record and hand it to the operating system at once.

        Raises:
            SpecbenchError: It cannot be written, for instance because the disk is full.
        """
        path = self.folder / RECORDS
        with clear_errors(path), path.open("ab") as file:
            file.write(to_line(record))
        self._count(record)

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """Write ``environment.json``."""
        write_atomically(self.folder / ENVIRONMENT, as_json(environment))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if not self.done and self._new:
                self._remove()
                return
            state = "interrupted" if kind is KeyboardInterrupt else "failed"
            # The first problem is the one to report; a second one often follows from it.
            with suppress(SpecbenchError) if kind else nullcontext():
                write_tables(self.folder)
                self._write_config(state if kind else COMPLETE)
        finally:
            self._lock.release()

    def _count(self, record: Mapping[str, Any]) -> None:
        # Of several tries of a sample the last counts, and one that failed may have been tried
        # again by other models.
        key, status, names = record["key"], record["status"], names_of(record)
        before, _ = self._samples.get(names, (key, ""))
        self._finished.discard(before)
        self._samples[names] = (key, status)
        if status == OK:
            self._finished.add(key)

    def _write_config(self, state: str) -> None:
        progress = {"state": state, "samples": self.done, "failed": self.failed}
        write_atomically(self.folder / CONFIG, as_json({**self._config, "progress": progress}))

    def _remove(self) -> None:
        """Remove a run that recorded nothing, and its folder where the run made it."""
        with suppress(OSError):
            for name in (CONFIG, ENVIRONMENT, EXAMPLES, RECORDS, LOCK):
                (self.folder / name).unlink(missing_ok=True)
            if self._made:
                self.folder.rmdir()


def lock(folder: Path) -> FileLock:
    """Lock a folder for this process; the system unlocks it when the process ends in any way.

    Raises:
        UsageError: Another process writes there.
    """
    held = FileLock(folder / LOCK)
    try:
        held.acquire(blocking=False)
    except Timeout as error:
        raise UsageError(
            f"another process is writing {folder}: wait for it, or choose another folder"
        ) from error
    return held


def sample_keys(plan: Plan, models: Mapping[str, Any], engine: str) -> Key:
    """Return the function that hashes everything that decides a sample.

    Two samples have the same key if they come from the same prompt, models, method, settings,
    engine and version of this package, and are scored alike. The models are what identifies them,
    see ``SampleRunner``; the engine is the one at the start, as the column tells which one decoded
    a sample after all.
    """
    falls_back = plan.settings.engine_fallback and engine == GRAPH
    shared = {
        "specbench": __version__,
        "models": models,
        "engine": f"{engine}, else {EAGER}" if falls_back else engine,
        "may_execute": plan.may_execute,
        "settings": plan.settings.model_dump(exclude=_ABOUT_THE_RUN),
    }

    def key(step: Step) -> str:
        task = step.plan.task
        parameters = dict(step.cell.parameters)
        if isinstance(head := parameters.get("head"), HeadFile):
            parameters["head"] = [head.name, _content(head.path)]
        facts = {
            **shared,
            "task": [task.name, task.version, list(task.metrics), list(task.stop)],
            "prompt_format": task.prompt_format,
            "max_new_tokens": step.plan.max_new_tokens,
            "example": asdict(step.example),
            "method": step.cell.method,
            "parameters": parameters,
            "draft_length": step.cell.draft_length,
            "repeat": step.repeat,
        }
        return _digest(json.dumps(facts, sort_keys=True, ensure_ascii=False).encode())

    return key


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@cache
def _content(path: Path) -> str:
    """Identify a head by its files."""
    files = sorted(path.glob("head.*")) if path.is_dir() else [path]
    return _digest(b"".join(f.name.encode() + b"\0" + f.read_bytes() for f in files if f.is_file()))

"""A run's folder during the run: its configuration, environment and samples.

``samples.jsonl`` grows by one line per sample; a sample counts as done once its line is synced to
disk. All other files are replaced atomically, so tables on disk are always complete. A run that was
stopped in any way can resume: damaged lines of ``samples.jsonl`` are moved to ``samples.damaged``,
and a lost ``config.json`` is rebuilt.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from specbench.errors import SpecbenchError, UsageError, require
from specbench.experiment import folders
from specbench.experiment.identity import Key, sample_keys
from specbench.experiment.plan import Plan, Step
from specbench.files import clear_errors, make_folder, stored, sync, write_atomically
from specbench.plugins import digest_of
from specbench.runs import records
from specbench.runs.model import ERROR, OK, SampleRecord
from specbench.runs.run import COMPLETE, CONFIG, ENVIRONMENT, read_run
from specbench.runs.running import LOCK, still_running

log = logging.getLogger(__name__)

# Samples are synced together, so that syncing takes at most this share of a run's time.
SYNC_SHARE = 0.01

#: Writes what follows from a run's tables of samples, and returns its results.
Summarise = Callable[[Path], object]


class Store(AbstractContextManager["Store"]):
    """A run's folder, open for writing; leaving the context writes the tables.

    The tables contain all recorded samples, whether the run completed, failed or was interrupted;
    ``config.json`` records that state. A run without any sample leaves no folder. ``run_id`` is the
    folder's original name, or that of all shards of the run; renaming the folder does not change
    it.
    """

    def __init__(
        self, folder: Path, config: Mapping[str, Any], summarise: Summarise = lambda folder: None
    ) -> None:
        self.folder, self.run_id = folder, folders.run_id(folder, config)
        self._config = config
        self._summarise = summarise
        self.results: object = None  # of ``summarise``, once the run has ended
        # The key and status of each sample, by its identifying columns.
        self._samples: dict[tuple[Any, ...], tuple[str, str]] = {}
        self._sources: dict[tuple[Any, ...], Mapping[str, str]] = {}  # see ``Plan.sources_of``
        self._finished: set[str] = set()  # keys
        self._plan: Plan | None = None
        self._key: Key | None = None
        self._unsynced: list[SampleRecord] = []
        self._opened = time.monotonic()
        self._sync_seconds, self._last_sync_seconds = 0.0, 0.0  # of all syncs, and of the last one
        self._named_files: set[Path] = set()  # those whose names are synced too
        self._damaged_lines = 0  # in the files beside the records
        self.writing = False  # a record, which an interrupt must not tear
        self._process = os.getpid()
        self._made = not os.path.exists(folder)  # whether this store created the folder
        with clear_errors(folder):
            make_folder(folder)
            folders.require_same_run(folder, config)
            self._lock = lock(folder)
        self._new = not (folder / CONFIG).exists()
        try:
            for name in (records.RECORDS, records.TIMED_RECORDS):
                self._recover(folder / name)
            self._lost_config = not read_run(folder, required=False).progress and self.done > 0
            if not self._lost_config:
                self._write_config("running")
        except SpecbenchError as error:
            if self._made:
                self._remove()
            self._lock.release()
            raise UsageError(str(error)) from error
        self.resumed = self.done  # samples of earlier sessions

    @classmethod
    def open(
        cls,
        output: Path | None,
        label: str,
        config: Mapping[str, Any],
        fresh: bool = False,
        summarise: Summarise = lambda folder: None,
    ) -> Store:
        """Open the folder of a new run, or resume a run of the same plan.

        Without ``output``, resume the newest unfinished run ``results/<UTC time>-<label>`` with the
        same configuration, or start a new one. ``fresh`` always starts a new run and renames an
        existing run in ``output`` first; a folder with anything else stays as it is. ``summarise``
        is called after the tables of samples are written.
        """
        if output is not None:
            # It may have lost its configuration.
            is_run = os.path.exists(stored(output / records.RECORDS))
            if fresh and (is_run or read_run(output, required=False).progress):
                lock(output).release()  # fails if it is in use
                renamed = folders.unused(output.with_name(f"{output.name}-before"))
                output.rename(renamed)
                log.warning(f"the run that was in {output} is now in {renamed}")
            return cls(output, config, summarise)
        for folder in () if fresh else folders.unfinished_twins(label, config):
            with suppress(UsageError):
                return cls(folder, config, summarise)
        return cls(folders.new_folder(label), config, summarise)

    @property
    def done(self) -> int:
        """Number of samples that are safely on disk, including those of earlier sessions."""
        return len(self._samples)

    @property
    def failed(self) -> int:
        """Number of recorded samples that could not be decoded or scored."""
        return sum(status != OK for _, status in self._samples.values())

    def expect(self, plan: Plan, models: Mapping[str, Any], engine: str) -> None:
        """Set the plan to execute, before ``missing`` and ``record``; see ``sample_keys``.

        A lost ``config.json`` is written again if the plan makes all recorded samples. None may be
        of other models, another head, device or version.
        """
        self._plan, self._key = plan, sample_keys(plan, models, engine)
        if self._lost_config:
            self._rebuild_config(plan, engine)
        edited = 0
        for step in plan.steps() if self.resumed else ():
            key = self._key(step)
            names = records.names_of(plan.identify(step, engine))
            before, _ = self._samples.get(names, (key, ""))
            if before == key or before not in self._finished:
                continue
            if self._sources.get(names, {}) == plan.sources_of(step):
                raise UsageError(
                    f"{self.folder} contains samples of {step.cell.method} on "
                    f"{step.plan.task.name} made with other models, metrics or permissions, "
                    "another head, engine or version: choose another folder with --output, or "
                    "rename that run with --fresh"
                )
            edited += 1
        if edited:
            files = ", ".join(dict.fromkeys(name.rpartition(":")[0] for name in plan.sources))
            log.warning(
                f"{files} changed: {edited} samples are decoded again, at another time than sd; "
                "to compare times, choose another folder with --output"
            )

    def missing(self, steps: Iterable[Step]) -> list[Step]:
        """Return the pending steps: those without a sample, or whose sample or turn failed."""
        assert self._key is not None
        done = self._finished
        return [step for step in steps if any(self._key(turn) not in done for turn in step.turns)]

    def has_failed(self, steps: Iterable[Step]) -> bool:
        """Return whether the sample of one of these steps failed before."""
        assert self._plan is not None
        turns = (self._plan.identify(turn, "") for step in steps for turn in step.turns)
        before = (self._samples.get(records.names_of(turn), ("", OK)) for turn in turns)
        return any(status != OK for _, status in before)

    def record(self, step: Step, record: SampleRecord) -> Sequence[SampleRecord]:
        """Append the record of a step; return the records that this makes safe, see ``sync``.

        The records are synced if all syncs, with another one like the last, take at most
        ``SYNC_SHARE`` of the time since the store was opened; the end of the context syncs the
        rest.
        """
        assert self._key is not None and self._plan is not None
        step = replace(step, turn=record.turn)
        sources = self._plan.sources_of(step)
        edited = [name for name, digest in sources.items() if digest_of(name) != digest]
        require(not edited, f"{', '.join(edited)} changed while the run went on: start it again")
        further = {"sources": sources} if sources else {}
        names = {"key": self._key(step), "run_id": self.run_id}
        self.append(record.model_copy(update=names | further))
        affordable = SYNC_SHARE * (time.monotonic() - self._opened)
        needed = self._sync_seconds + self._last_sync_seconds
        return self.sync() if needed <= affordable else ()

    def append(self, record: SampleRecord) -> None:
        """Append one record to its file (``samples.jsonl``, or ``timings.jsonl``)."""
        self._end_fork()
        path = self._file_of(record)
        self.writing = True
        try:
            with clear_errors(path), path.open("ab") as file:
                file.write(record.line())
            self._unsynced.append(record)
        finally:
            self.writing = False

    def sync(self) -> Sequence[SampleRecord]:
        """Sync the appended records to disk and return them; only now they are done."""
        began = time.monotonic()
        appended, self._unsynced = self._unsynced, []
        for path in {self._file_of(record) for record in appended}:
            with clear_errors(path):
                sync(path)
                if path not in self._named_files:
                    sync(self.folder)
                    self._named_files.add(path)
        for record in appended:
            self._count(record)
        self._last_sync_seconds = time.monotonic() - began
        self._sync_seconds += self._last_sync_seconds
        return appended

    def _end_fork(self) -> None:
        """End a process that a user's rule has forked: it would write all records again."""
        if os.getpid() != self._process:
            os._exit(1)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end_fork()
        try:
            state = "interrupted" if kind is KeyboardInterrupt else "failed"
            # Report the first error; a second one is often its consequence.
            with suppress(SpecbenchError) if kind else nullcontext():
                self.sync()
                if not self.done and self._new:
                    self._remove()
                elif not self._lost_config:
                    any_decoded = records.write_samples(self.folder)
                    self._write_config(state if kind else COMPLETE)
                    if any_decoded:  # the page says which samples failed, by the configuration
                        self.results = self._summarise(self.folder)
        finally:
            with clear_errors(self.folder / LOCK, "a rule or metric of yours may have closed it"):
                self._lock.release()

    def _recover(self, path: Path) -> None:
        """Count the records of a file, and move its damaged lines to the file beside it."""
        if path.exists():
            damaged: list[int] = []
            for record in records.read_records(path, damaged=damaged):
                self.run_id = record.run_id
                self._count(record)
            if damaged:
                aside = records.set_aside(path, damaged)
                log.warning(
                    f"{path}: {records.lines_named(damaged)} damaged and moved to {aside.name}; "
                    "the samples are decoded again"
                )
        if (aside := records.damaged_file(path)).exists():
            self._damaged_lines += sum(1 for _ in records.read_lines(aside))

    def _rebuild_config(self, plan: Plan, engine: str) -> None:
        """Write ``config.json`` again if the plan makes all recorded samples; refuse another."""
        assert self._key is not None
        planned = {
            records.names_of(plan.identify(step, engine)): self._key(step) for step in plan.steps()
        }
        for names, (key, status) in self._samples.items():
            if names not in planned or (status == OK and planned[names] != key):
                sample = dict(zip(records.NAMES, names, strict=False))
                raise UsageError(
                    f"{self.folder / CONFIG} is lost, and this command does not make the recorded "
                    f"sample {sample['sample_id']} of {sample['method']} on {sample['task']}: "
                    "repeat the command of that run, or choose another folder with --output"
                )
        self._lost_config = False
        self._write_config("running")
        log.warning(
            f"{self.folder / CONFIG} was lost and is rebuilt from this command, which makes all "
            f"{self.done} recorded samples"
        )

    def _file_of(self, record: SampleRecord) -> Path:
        return self.folder / (records.TIMED_RECORDS if record.timing else records.RECORDS)

    def _count(self, record: SampleRecord) -> None:
        # The last attempt of a sample counts. A failed one may have been retried with other models.
        names = records.names_of(record)
        before, status = self._samples.get(names, (record.key, ERROR))
        if not records.replaces(record, before, status):
            return
        self._finished.discard(before)
        self._samples[names] = (record.key, record.status)
        self._sources[names] = record.sources
        if record.status == OK:
            self._finished.add(record.key)

    def _write_config(self, state: str) -> None:
        progress = {"state": state, "samples": self.done, "failed": self.failed}
        progress |= {"damaged_lines": self._damaged_lines} if self._damaged_lines else {}
        write_atomically(
            self.folder / CONFIG, folders.as_json({**self._config, "progress": progress})
        )

    def _remove(self) -> None:
        """Remove the files of a run without samples, and its folder if this store created it."""
        with suppress(OSError):
            of_records = (records.EXAMPLES, records.RECORDS, records.TIMED_RECORDS)
            for name in (CONFIG, ENVIRONMENT, *of_records, LOCK):
                (self.folder / name).unlink(missing_ok=True)
            if self._made:
                self.folder.rmdir()


def lock(folder: Path) -> FileLock:
    """Lock a folder for this process; the operating system releases the lock when it ends."""
    held = FileLock(folder / LOCK)
    try:
        held.acquire(blocking=False)
    except Timeout as error:
        raise UsageError(
            f"another process is writing {folder} ({still_running(folder)}): wait for it, or "
            "choose another folder"
        ) from error
    return held

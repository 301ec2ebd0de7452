"""A run's folder while the run goes on: what it was asked, where it runs, and every sample.

``samples.jsonl`` grows by one line per sample; everything else is written to a temporary file that
then takes its place, so no table on disk is ever half a table. A run that was stopped, however
that came, goes on where it was: what is whole in ``samples.jsonl`` stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from specbench.errors import SpecbenchError, UsageError
from specbench.experiment.examples import EXAMPLES
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
from specbench.experiment.records import (
    OK,
    RECORDS,
    append_record,
    cut_torn_line,
    names_of,
    read_records,
)
from specbench.experiment.tables import write_tables
from specbench.files import cannot_write, write_atomically


class Store:
    """A run's folder, open for writing; leaving the context writes the tables.

    The tables are written from the samples that exist, whether the run ended, failed or was
    interrupted; ``config.json`` says which. A run without any sample leaves no folder behind.

    Attributes:
        folder: The run's folder.
        run_id: The name that the folder had when the run began: one that is renamed and gone on
            with stays one run.
        resumed: Samples that were there when it was opened.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], held: FileLock) -> None:
        """Take up what is in a folder that is locked; see ``open``."""
        self.folder = folder
        self.run_id = folder.name
        self._config, self._lock = config, held
        self._made = False  # whether the folder is this run's to remove
        self._new = not (folder / CONFIG).exists()
        self._samples: dict[tuple[Any, ...], tuple[str, str]] = {}  # key and status by names
        self._finished: set[str] = set()  # keys
        cut_torn_line(folder)
        if (folder / RECORDS).exists():
            for record in read_records(folder):
                self.run_id = record["run_id"]
                self._count(record)
        self.resumed = self.done
        self._write_config("running")

    @classmethod
    def open(
        cls, output: Path | None, label: str, config: Mapping[str, Any], fresh: bool = False
    ) -> Store:
        """Open the folder of a new run, or that of a run of the same plan to go on with it.

        Args:
            output: The folder. Without it ``results/<UTC time>-<label>``, or the newest of these
                that is unfinished and has the very same configuration.
            label: Short description for the folder's name.
            config: The resolved configuration, for ``config.json``.
            fresh: Start anew; a run that is in ``output`` is moved aside first.

        Raises:
            UsageError: The folder holds something else, is in use, or cannot be written.
        """
        if output is not None:
            if fresh and (output / CONFIG).exists():
                lock(output).release()  # refused where it is in use
                output.rename(unused(output.with_name(f"{output.name}-before")))
            return cls._open(output, config)
        for folder in () if fresh else unfinished_twins(label, config):
            with suppress(UsageError):
                return cls._open(folder, config)
        return cls._open(new_folder(label), config)

    @classmethod
    def _open(cls, folder: Path, config: Mapping[str, Any]) -> Store:
        made = not folder.exists()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            require_same_run(folder, config)
            held = lock(folder)
        except OSError as error:
            raise UsageError(cannot_write(folder, error)) from error
        try:
            store = cls(folder, config, held)
        except SpecbenchError as error:
            held.release()
            if made:
                _remove(folder, made)
            raise UsageError(str(error)) from error
        store._made = made
        return store

    @property
    def done(self) -> int:
        """Samples recorded so far, those of earlier sessions included."""
        return len(self._samples)

    @property
    def failed(self) -> int:
        """Those of them that could not be decoded or scored."""
        return sum(status != OK for _, status in self._samples.values())

    def has(self, key: str) -> bool:
        """Tell whether a sample is there and did not fail."""
        return key in self._finished

    def require_alike(self, key: str, named: Mapping[str, Any]) -> None:
        """Refuse a sample that is there by its names but was decided by something else.

        Args:
            key: The key that it would have now.
            named: Its columns.

        Raises:
            UsageError: It was decoded with other models, another head, device or version.
        """
        before, _ = self._samples.get(names_of(named), (key, ""))
        if before != key and self.has(before):
            raise UsageError(
                f"{self.folder} holds samples of {named['method']} on {named['task']} that other "
                "models, another head, engine or version made: name another folder with --output, "
                "or move that run aside with --fresh"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        try:
            if not self.done and self._new:
                _remove(self.folder, self._made)
            elif kind is None:
                self._finish(COMPLETE)
            else:
                # The first problem is the one to report; a second one often follows from it.
                with suppress(SpecbenchError):
                    self._finish("interrupted" if kind is KeyboardInterrupt else "failed")
        finally:
            self._lock.release()

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """Write ``environment.json``."""
        write_atomically(self.folder / ENVIRONMENT, as_json(environment))

    def append(self, record: dict[str, Any]) -> None:
        """Add one sample and hand it to the operating system at once.

        Raises:
            SpecbenchError: It cannot be written, for instance because the disk is full.
        """
        append_record(self.folder, record)
        self._count(record)

    def _count(self, record: dict[str, Any]) -> None:
        # A sample that was tried again counts as what became of it the last time, and one that
        # failed may have been tried again by other models.
        key, status, names = record["key"], record["status"], names_of(record)
        before, _ = self._samples.get(names, (key, ""))
        self._finished.discard(before)
        self._samples[names] = (key, status)
        if status == OK:
            self._finished.add(key)

    def _finish(self, state: str) -> None:
        write_tables(self.folder)
        self._write_config(state)

    def _write_config(self, state: str) -> None:
        progress = {"state": state, "samples": self.done, "failed": self.failed}
        write_atomically(self.folder / CONFIG, as_json({**self._config, "progress": progress}))


def lock(folder: Path) -> FileLock:
    """Lock a folder for this process; the system unlocks it when the process ends, however.

    Raises:
        UsageError: Another one writes there.
    """
    held = FileLock(folder / LOCK)
    try:
        held.acquire(blocking=False)
    except Timeout as error:
        raise UsageError(
            f"another process is writing {folder}: wait for it, or choose another folder"
        ) from error
    return held


def _remove(folder: Path, made: bool) -> None:
    """Remove a run that recorded nothing, and its folder where the run made it."""
    with suppress(OSError):
        for name in (CONFIG, ENVIRONMENT, EXAMPLES, RECORDS, LOCK):
            (folder / name).unlink(missing_ok=True)
        if made:
            folder.rmdir()

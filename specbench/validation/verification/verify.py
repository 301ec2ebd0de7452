"""Verify a finished run: its files agree with each other, with its plan and with its models.

The run may come from anyone. Nothing that it names is executed or downloaded: rules, metrics, tasks
and models that are not bundled are used only where the user names them. What cannot be checked
is counted in the last finding, and so are times, which differ between any two runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from specbench.errors import SpecbenchError, UsageError, listed, shown
from specbench.files import copies, stored
from specbench.methods.registry import METHODS
from specbench.plugins import digest_of, matching_name
from specbench.runs import records
from specbench.runs.configuration import Environment, read_section
from specbench.runs.frames import example_ids, read_samples, rows_of
from specbench.runs.model import ERROR, SampleRecord
from specbench.runs.run import CONFIG, ENVIRONMENT, Run, refuse_benchmarks
from specbench.tasks.example import Example
from specbench.tasks.metrics import METRICS, get_metric
from specbench.tasks.task import Task, local_task
from specbench.validation.findings import SKIPPED, Finding, difference, finding, finding_of
from specbench.validation.verification.decoding import Replay, ShowSample, head_difference
from specbench.validation.verification.plan import check_examples, check_plan, task_plan
from specbench.validation.verification.tables import check_counts, check_scores, check_tables

_CHECKED = {
    *(CONFIG, ENVIRONMENT, records.EXAMPLES, records.RECORDS, records.TABLE),
    *(records.SUMMARY, records.DIGEST, records.TIMINGS, records.TIMED_RECORDS),
}
TEXTS = "texts follow from tokens"
_NEEDED = {*records.TRACED, "text", "stopped_by", "rounds", "scores", "quality", "quality_metric"}


@dataclass(frozen=True)
class Verification:
    """What to verify of a run, and what the user permits for it."""

    run: Run
    samples: int  # per cell, to decode again
    seed: int = 0  # of their choice
    may_execute: bool = False  # generated code, for scoring
    metrics: tuple[str, ...] = ()  # the user's own, as are methods and tasks
    methods: tuple[str, ...] = ()
    tasks: Mapping[str, Task] = field(default_factory=dict)  # by name
    folder: Path | None = None  # with the data of bundled tasks, to read instead of the hub
    # What cannot be checked, and tasks whose examples could not be compared; by ``findings``.
    unchecked: list[str] = field(default_factory=lambda: ["times", "the machine and its software"])
    without_data: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """The largest number of samples to decode again."""
        tasks = self.run.tasks.values()
        return self.samples * sum(not cell.timing for task in tasks for cell in task.cells)

    @cached_property
    def source(self) -> str:
        """The file that the tables follow from: the samples, or their table if they are gone."""
        file = stored(self.run.folder / records.RECORDS)
        return file.name if file.is_file() else records.TABLE

    @cached_property
    def every(self) -> list[SampleRecord]:
        """The latest record of each sample; without records, the rows of their table."""
        if self.source != records.TABLE:
            return self.run.records(_NEEDED)
        rows = read_samples(self.run.folder)
        rows = rows.assign(sample_id=example_ids(rows))  # not that of an equal prompt
        return [*map(SampleRecord.of_row, rows_of(rows))]

    @cached_property
    def records(self) -> list[SampleRecord]:
        """The decoded samples."""
        return [record for record in self.every if record.status != ERROR]

    def findings(self, show_sample: ShowSample) -> Iterator[Finding]:
        """Yield one finding per check; ``show_sample`` is called with each sample decoded again."""
        run, tasks = self.run, self.run.tasks.values()
        if run.progress is None or any(
            task.metrics is None or task.prompt_format is None for task in tasks
        ):
            raise UsageError(
                f"{run.folder / CONFIG} was not written by a compatible version of specbench: "
                "give the folder of another run"
            )
        refuse_benchmarks([run.folder])
        yield from self._check_environment()
        yield from check_tables(run.folder, self.source)
        if self.source == records.TABLE:
            self.unchecked.append(f"texts, counts and rounds, without {records.RECORDS}")
        else:
            decoded_here = [record for record in self.records if record.method not in run.servers]
            if decoded_here:
                yield check_counts(decoded_here)
                yield from self._check_texts(decoded_here)
        examples = {}
        for name in run.tasks:
            examples[name], differences = self._check_examples(name)
            if differences is not None:
                yield differences
        timed = records.timed_records(run.folder)
        planned = any(cell.timing for task in tasks for cell in task.cells)
        whole = self.source != records.TABLE and (bool(timed) or not planned)
        every = [*self.every, *(timed if whole else ())]
        yield from check_plan(run, every, examples, whole)
        if self.source != records.TABLE:
            yield from self._check_scores(examples)
        yield from self._check_decoding(examples, show_sample)
        checked = {file.name for name in _CHECKED for file in copies(Path(name))}
        entries = sorted(run.folder.iterdir())
        names = [entry.name for entry in entries if not entry.name.startswith(".")]
        if other := [name for name in names if name not in checked]:
            self.unchecked.append(f"other files: {listed(other)}")
        sentence = "; ".join(dict.fromkeys(self.unchecked))
        yield Finding("", run.folder.name, SKIPPED, SKIPPED, sentence)

    def _check_texts(self, decoded_here: Sequence[SampleRecord]) -> Iterator[Finding]:
        """Check that all texts follow from their tokens, with the tokenizer alone."""
        if all(record.token_ids is None for record in decoded_here):
            self.unchecked.append("whether texts follow from tokens, which are not recorded")
            return
        from specbench.engine.detokenizer import Detokenizer
        from specbench.engine.sources import load_tokenizer

        run = self.run
        try:
            text_of = Detokenizer(load_tokenizer(run.pair, "target", run.loading))
        except (SpecbenchError, OSError):
            self.unchecked.append("whether texts follow from tokens, without the tokenizer")
            return

        def compare(record: SampleRecord) -> str:
            if record.task not in run.tasks:
                return f"its task is not in {CONFIG}"
            try:
                text = text_of(record.token_ids or [], run.tasks[record.task].stop)
            except (OverflowError, TypeError, ValueError):
                return "its tokens are not those of the models"
            return difference({"text": record.text}, {"text": text})

        compared = ((vars(record), compare(record)) for record in decoded_here)
        subject = f"{len(decoded_here):,} samples"
        yield finding(TEXTS, subject, compared)

    def _check_environment(self) -> Iterator[Finding]:
        """Yield a failure if the environment cannot be read, since comparisons depend on it."""
        path = self.run.folder / ENVIRONMENT
        environment, wrong = read_section(path, Environment)
        if wrong and path.exists():
            yield finding_of(f"{ENVIRONMENT} can be read", self.run.folder.name, [f"it {wrong}"])
        elif any(record.method not in self.run.servers for record in self.records):
            models = {**environment.models, "engine": environment.engine}
            names = ("target", "dtype", "device", "engine")
            if lacking := [name for name in names if not models.get(name)]:
                lacking_facts = f"{', '.join(lacking)} of {ENVIRONMENT}"
                self.unchecked.append(f"{lacking_facts}, which {wrong or 'lacks them'}")

    def _check_examples(self, name: str) -> tuple[dict[str, Example], Finding | None]:
        """Return the examples of a task, and the finding that compares them with its data."""
        run, recorded = self.run, self.run.tasks[name]
        has_examples = stored(run.folder / records.EXAMPLES).is_file()
        ids = list(dict.fromkeys(r.sample_id for r in self.every if r.task == name))
        examples = run.examples.get(name, {}) if has_examples else {i: Example(i, "") for i in ids}
        try:
            shots = recorded.data.get("shots")
            task = self.tasks.get(name) or local_task(name, shots, self.folder)
            if task.version != recorded.version:
                raise UsageError(f"{name} has version {task.version} here")
            if not has_examples:  # as many as there are
                count = min(recorded.examples, len(ids) + 1)
                planned = task.of_shard(run.settings.shard_slice, count, run.settings.seed)
                examples = {example.id: example for example in planned}
            return examples, check_examples(name, recorded, run.settings, examples, task)
        except SpecbenchError as error:
            self.without_data.append(name)
            self.unchecked.append(f"examples of {name} ({error})")
            return examples, None

    def _trusted(self, recorded: str, *, is_metric: bool) -> str:
        """Return a bundled function that a run names, or the user's, whose file is only read."""
        if recorded in (METRICS if is_metric else METHODS):
            return recorded
        name = matching_name(recorded, self.metrics if is_metric else self.methods)
        if name is None:
            option = "--metric" if is_metric else "--method"
            raise UsageError(f"{recorded} is not bundled: name it with {option}")
        if digest_of(name) != self.run.config.sources.get(recorded):
            raise UsageError(f"{name} was edited since the run: restore its file")
        return name

    def _metrics(self, task: str) -> list[str]:
        """Return the metrics of a task that can score here: bundled ones, and the user's."""
        names = []
        for name in self.run.tasks[task].metrics or ():
            try:
                names.append(self._trusted(name, is_metric=True))
            except SpecbenchError as error:
                self.unchecked.append(f"scores by {name} ({error})")
        return names

    def _check_scores(self, examples: Mapping[str, Mapping[str, Example]]) -> Iterator[Finding]:
        for name, task in self.run.tasks.items():
            metrics = self._metrics(name)
            harmless = [metric for metric in metrics if not get_metric(metric).executes]
            self.unchecked.extend(
                f"{metric} of the samples of {name} that are not decoded again"
                for metric in metrics
                if metric not in harmless
            )
            of_task = [record for record in self.records if record.task == name]
            if any(example.prompt for example in examples[name].values()):
                yield check_scores(name, task.metrics or (), harmless, of_task, examples[name])

    def _check_decoding(
        self, examples: Mapping[str, Mapping[str, Example]], show_sample: ShowSample
    ) -> Iterator[Finding]:
        """Compare heads and rules with those that are here, and decode samples again."""
        run, methods = self.run, {}
        if run.servers:
            names = ", ".join(map(shown, run.servers))
            self.unchecked.append(f"texts and counts of servers ({names})")
        cells_of_run = (cell for task in run.tasks.values() for cell in task.cells)
        for name in {cell.method for cell in cells_of_run} - run.servers.keys():
            try:
                methods[name] = self._trusted(name, is_metric=False)
            except SpecbenchError as error:
                self.unchecked.append(f"the rule {name} ({error})")
        replay = Replay(run, self.samples, self.seed, methods, self.may_execute)
        tasks, heads = [], 0
        faults: list[str] = []
        not_here: dict[str, list[str]] = {}  # methods, by the reason
        for name, task in run.tasks.items():
            cells = []
            for cell in task.cells:
                if cell.timing or cell.method not in methods:  # texts that are not recorded
                    continue
                try:
                    cells.append(replay.cell(cell, name))
                except SpecbenchError as error:
                    not_here.setdefault(str(error), []).append(shown(cell.method))
                    continue
                heads += cell.head is not None
                faults += filter(None, [head_difference(cell, cells[-1])])
            if cells and any(example.prompt for example in examples[name].values()):
                tasks.append(task_plan(run, name, examples[name], self._metrics(name), cells))
        for reason, absent in not_here.items():
            self.unchecked.append(f"{', '.join(dict.fromkeys(absent))} ({reason})")
        if heads:
            yield finding_of("heads are those of the run", f"{heads} cells", faults)
        if not self.samples:
            self.unchecked.append("whether the models decode these texts, without --limit")
        elif tasks:
            decoded: list[SampleRecord] = []

            def show(record: SampleRecord) -> None:
                decoded.append(record)
                show_sample(record)

            for result in replay.decode(tasks, self.records, show):
                if result.verdict == SKIPPED:
                    self.unchecked.append(result.sentence)
                else:
                    yield result
            if left := len(self.records) - len(decoded):
                chosen = f" (--seed {self.seed} chose the others)"
                self.unchecked.append(f"{left:,} samples that were not decoded again{chosen}")

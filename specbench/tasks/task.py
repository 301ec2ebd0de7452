"""Tasks, each a TOML file: source of examples, prompt, stop strings, token limit and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from specbench.errors import RunError, UsageError, unknown
from specbench.schema import read_toml
from specbench.tasks.dataset import DataOptions, Dataset
from specbench.tasks.definition import PROMPT, Definition
from specbench.tasks.example import CHAT, Example

# A generator is endless; the default number of examples is that of the paper.
GENERATED_EXAMPLES = 100
# Distance between the first indices of two seeds, so that seeds never share an example.
SEED_STRIDE = 1_000_000
# Seeds of a generator's training split from here on are used for its held-out split.
RESERVED_SEEDS = 1_000


class Source(Protocol):
    """The source of a task's examples."""

    def examples(self, split: str, limit: int | None, seed: int) -> list[Example]:
        """Return examples with their final prompts; see ``Task.examples``."""

    def provenance(self) -> dict[str, Any]:
        """Return plain values that identify the source."""


@dataclass(frozen=True)
class Generated:
    """Examples from a generator, with a template around their prompts."""

    generator: str
    template: str = PROMPT

    def examples(self, split: str, limit: int | None, seed: int) -> list[Example]:
        """Return the examples of an index range used by this split and seed only."""
        from specbench.tasks.mini import GENERATORS

        if split == "held-out":
            split, seed = "train", (seed + 1) * RESERVED_SEEDS
        first = seed * SEED_STRIDE
        count = GENERATED_EXAMPLES if limit is None else limit
        examples = (GENERATORS[self.generator](split, first + i) for i in range(count))
        # Not str.format, since a template may contain other braces, such as in JSON or code.
        return [replace(e, prompt=self.template.replace(PROMPT, e.prompt)) for e in examples]

    def provenance(self) -> dict[str, Any]:
        """Return the generator's name."""
        return {"generator": self.generator}


@dataclass(frozen=True)
class Task:
    """A set of prompts, with limits on generation and metrics."""

    name: str
    version: str  # changes if scores are no longer comparable
    description: str
    # The first one measures quality; if empty, only speed and acceptance are measured.
    metrics: tuple[str, ...]
    stop: tuple[str, ...]  # strings that end a generation
    max_new_tokens: int
    source: Source
    path: Path
    licence: str = ""
    prompt_format: str = CHAT  # `chat`, a user message if the model has a template, or `plain`
    # Overrides of the default recipe of a head.
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def metric(self) -> str | None:
        """The metric of quality; None without metrics."""
        return self.metrics[0] if self.metrics else None

    def examples(self, split: str, limit: int | None, seed: int = 0) -> list[Example]:
        """Return examples with their final prompts.

        Args:
            split: ``train``, ``test`` or ``held-out`` (training examples excluded from
                ``train``). A prompt file has only ``test``.
            limit: None means all rows of a file, or ``GENERATED_EXAMPLES`` of a generator.
            seed: 0 takes the first examples. Other seeds give a disjoint set from a generator and a
                shuffled order from a file. The seed also determines the few-shot examples, which
                are the same for all prompts.
        """
        return self.source.examples(split, limit, seed)

    def of_shard(self, shard: slice, count: int, seed: int) -> list[Example]:
        """Return up to ``count`` examples of a shard of the test split."""
        return self.examples("test", count * shard.step, seed)[shard][:count]

    def provenance(self) -> dict[str, Any]:
        """Return the source of the examples for ``config.json``, with the files read so far."""
        return self.source.provenance()


def definitions_folder(package: Path = Path(__file__).parent) -> Path:
    """Return the folder of the bundled task files: in a wheel, or ``tasks/`` in a checkout."""
    packaged = package / "definitions"
    return packaged if packaged.is_dir() else package.parents[1] / "tasks"


def task_names() -> list[str]:
    """Return the names of the bundled tasks in alphabetical order."""
    folder = definitions_folder()
    names = sorted(path.stem for path in folder.glob("*.toml"))
    if not names:
        raise RunError(f"no task files in {folder}; install specbench again")
    return names


def default_task_names() -> list[str]:
    """Return the names of the bundled tasks that need no data, in alphabetical order."""
    return [name for name in task_names() if isinstance(load_task(name).source, Generated)]


def load_task(name_or_path: str | Path, options: DataOptions = DataOptions()) -> Task:  # noqa: B008
    """Load a bundled task by its name, or any task from a TOML file, without reading its data."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        names = task_names()
        if str(name_or_path) not in names:
            raise UsageError(unknown("task", str(name_or_path), names))
        path = definitions_folder() / f"{name_or_path}.toml"
    definition = read_toml(path, Definition, "task file")
    if options.shots and definition.prompt.shot is None:
        raise UsageError(
            f"{definition.name} has no template for few-shot examples (`prompt.shot`): omit --shots"
        )
    generator, template = definition.source.generator, definition.prompt.template
    return Task(
        **definition.model_dump(exclude={"source", "prompt", "example"}),
        prompt_format=definition.prompt.format,
        source=Generated(generator, template) if generator else Dataset(definition, options, path),
        path=path,
    )


def local_task(name: str, shots: int | None = None, folder: Path | None = None) -> Task:
    """Load a bundled task whose data is in a folder, or by default in the package.

    A run may name any file, so the user names the file of a task.
    """
    if name not in task_names():
        raise UsageError(f"{name} is not bundled: name its file with --task or --prompts")
    task = load_task(name, DataOptions(shots=shots, folder=folder))
    if folder is None and isinstance(task.source, Dataset) and task.source.repository:
        raise UsageError(f"the data of {name} is on the hub: name a folder with --data")
    return task

"""Runs on disk, and their configuration, environment, examples and records: maybe anyone's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, get_args

from specbench import __version__
from specbench.config import AUTO, Group
from specbench.engine import pairs
from specbench.errors import UsageError, listed, meant, require, shown
from specbench.files import find_stored, require_plain, stored
from specbench.plugins import short_name
from specbench.runs import configuration, records
from specbench.runs.model import SampleRecord
from specbench.runs.running import still_running
from specbench.tasks.example import Example

RESULTS = Path("results")
CONFIG = "config.json"
ENVIRONMENT = "environment.json"
COMPLETE = "complete"


class Trust(NamedTuple):
    """What the user permits of a run that may come from anyone."""

    pair: pairs.PairSpec | None = None  # the run's models, if they are not bundled
    loading: pairs.Loading = pairs.Loading()  # ``pairs.TRUSTED`` is taken from here


NOTHING_TRUSTED = Trust()


@dataclass(frozen=True)
class Run:
    """The files of a run, each read on first access."""

    folder: Path
    config: configuration.RunConfig
    trust: Trust = NOTHING_TRUSTED

    @property
    def folders(self) -> list[Path]:
        """The folders of all its shards."""
        return [self.folder]

    @cached_property
    def environment(self) -> configuration.Environment:
        """The content of ``environment.json``; empty if it is missing."""
        return configuration.read_section(self.folder / ENVIRONMENT, configuration.Environment)[0]

    @cached_property
    def pair(self) -> pairs.PairSpec:
        """The pair, see ``pair_with``; every model is bundled or named by the user."""
        return self.pair_with(*pairs.ROLES)

    def pair_with(self, *roles: str) -> pairs.PairSpec:
        """Return the pair; bundled models are located in this installation of specbench.

        Raises:
            UsageError: The run does not name its models, or a model of these roles is neither
                bundled nor named by the user.
        """
        recorded = {role: getattr(self.config.pair, role) for role in pairs.ROLES}
        models = {role: model for role, model in recorded.items() if model is not None}
        if "target" not in models:
            raise UsageError(
                f"{self.folder / CONFIG} names no pair: give the folder of another run"
            )
        path = pairs.bundled_path
        for spec in pairs.pairs().values():
            bundled = {role for role in models if path(spec.models[role]) == path(models[role])}
            if spec.bundled and bundled and bundled >= {*models} & {*roles}:
                whole = bundled == {*pairs.ROLES}
                return spec if whole else replace(spec, draft=models.get("draft"), heads=None)
        if (trusted := self.trust.pair) is not None:
            if "draft" in {*models} & {*roles} and trusted.draft is None:
                raise UsageError(
                    f"the run has a draft model ({shown(models['draft'])}): name --draft"
                )
            return trusted
        if roles:
            raise UsageError(
                f"the models of {self.folder} ({', '.join(map(shown, models.values()))}) are not "
                "bundled, and a run may name any: to load them, name them with --pair, or with "
                "--target and --draft"
            )
        return pairs.custom_pair(models["target"], models.get("draft"))

    @property
    def loading(self) -> pairs.Loading:
        """How the models were loaded; permissions are the user's, not the run's.

        The dtype that ``auto`` meant is that of the environment: models that the user names do not
        know the dtype of the run's pair.
        """
        recorded = _options(self.config.loading, pairs.Loading)
        used = self.environment.models.get("dtype")
        if recorded.dtype == AUTO and used in get_args(pairs.Dtype):
            recorded = recorded.updated(dtype=used)
        permitted = {name: getattr(self.trust.loading, name) for name in pairs.TRUSTED}
        return recorded.updated(**permitted)

    @property
    def settings(self) -> configuration.Settings:
        """The settings shared by all cells."""
        return _options(self.config.settings, configuration.Settings)

    @property
    def tasks(self) -> dict[str, configuration.TaskConfig]:
        """The tasks by name."""
        return {task.name: task for task in self.config.tasks or ()}

    def task(self, name: str) -> configuration.TaskConfig:
        """Return a task, empty if the run does not record it."""
        return self.tasks.get(name, configuration.TaskConfig(name=name))

    @property
    def servers(self) -> dict[str, configuration.ServerConfig]:
        """The servers that decoded some of the texts, by name."""
        return {server.name: server for server in self.config.servers}

    def same_servers(self, name: str, elsewhere: Collection[str] = ()) -> list[str]:
        """Return the arms that are the same server as one, also at addresses ``elsewhere``."""
        recorded = self.environment.servers
        facts = {
            arm: {**server.plain(), **recorded.get(arm, {})} for arm, server in self.servers.items()
        }
        server, same = facts.pop(name, {}), []
        for arm, values in facts.items():
            ignored = {"name", "url"} if arm in elsewhere else {"name"}
            keys = sorted({*server, *values} - ignored)
            apart = [shown(key) for key in keys if server.get(key) != values.get(key)]
            if not apart and "url" in server:  # else nothing is known of either
                same.append(arm)
            elif arm in elsewhere:
                raise UsageError(
                    f"--noise: {arm} is not {name} again, since they differ in {listed(apart)}: "
                    "start both alike"
                )
        return same

    @property
    def progress(self) -> configuration.RunProgress | None:
        """The state and the numbers of samples; None if they are unknown."""
        config = self.config
        planned = config.samples_planned is not None and config.tasks is not None
        whole = {"state", "samples"} <= config.progress.model_fields_set
        return config.progress if planned and whole else None

    @cached_property
    def examples(self) -> dict[str, dict[str, Example]]:
        """The examples by task and id, see ``records.read_examples``."""
        return records.read_examples(self.folder)

    def records(self, needed: Collection[str] = ()) -> list[SampleRecord]:
        """Return one record per sample, in the plan's order, with its ``same_prompt_as``."""
        samples = records.latest_records(self.folder, needed)
        first = records.prompts_of(self.folder)
        for record in samples:
            record.same_prompt_as = first.get((record.task, record.sample_id))
        return samples


def read_run(folder: Path, trust: Trust = NOTHING_TRUSTED, *, required: bool = True) -> Run:
    """Read a run's folder.

    Raises:
        UsageError: It has links out of it, or no readable ``config.json`` although ``required``;
            without ``required`` the configuration is then empty.
    """
    require_plain(folder)
    path = folder / CONFIG
    config, wrong = configuration.read_section(path, configuration.RunConfig)
    version_numbers = configuration.version_numbers
    if version_numbers(config.specbench) > version_numbers(__version__):
        raise UsageError(
            f"{path} was written by specbench {config.specbench}, and this is {__version__}: "
            "install that version"
        )
    if wrong and required:
        if (folder / records.RECORDS).is_file():
            raise UsageError(
                f"{path} {wrong}: run the command of this run again with --output {folder}, which "
                "rebuilds it from the samples"
            )
        raise UsageError(f"{folder} is not a run folder, {path} {wrong}: give the folder of a run")
    return Run(folder, config, trust)


def require_folders(paths: Iterable[Path]) -> None:
    """Raise ``UsageError`` if a path is not a folder."""
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"no folder {path}: give a run folder, or a folder with runs")


def run_folders(paths: Sequence[Path | str], *names: str) -> list[Path]:
    """Return the absolute folders of the runs that have one of the files, without duplicates.

    ``paths`` are folders of runs, or folders that contain them.

    Raises:
        UsageError: ``paths`` is empty, or a path has no such file in it or one level below.
    """
    if not paths:
        raise UsageError("no run was given: name at least one folder under results/")
    folders: dict[Path, None] = {}
    for path in (Path(path).resolve() for path in paths):
        runs = [path]
        if not any(stored(path / name).exists() for name in names):
            require_folders([path])
            runs = sorted({file.parent for name in names for file in find_stored(path, name)})
            if not runs:
                raise UsageError(records.lacks(path, names[0]))
        folders |= dict.fromkeys(runs)
    for folder in folders:
        require_plain(folder)
    return [*folders]


def is_benchmark(folder: Path) -> bool:
    """Return whether a folder has a benchmark, whose texts are random."""
    return any(task.batch_size for task in read_run(folder, required=False).tasks.values())


def refuse_benchmarks(folders: Iterable[Path]) -> None:
    """Raise ``UsageError`` if a folder has a benchmark."""
    for folder in folders:
        if is_benchmark(folder):
            raise UsageError(
                f"{folder} is a benchmark, of times alone: give another run, or `specbench table` "
                "it alone"
            )


def require_in_runs(column: str, values: Iterable[object], present: Sequence[str]) -> None:
    """Refuse values of a column that no cell of the runs has; rules may be given as in labels."""
    for value in map(str, values):
        if value not in {*present, *map(short_name, present)}:
            name = column.replace("_", " ")
            raise UsageError(f"these runs have no {name} {value}: {meant(value, present)}")


def require_cells(folders: Iterable[Path], chosen: Mapping[str, Collection[object]]) -> None:
    """Refuse values that no cell has in these columns, if the runs say which cells they have."""
    cells: list[dict[str, Any]] = []
    for folder in folders:
        tasks = read_run(folder, required=False).tasks
        described = [
            {**vars(cell), "task": name} for name, task in tasks.items() for cell in task.cells
        ]
        if not described:
            return
        cells += described
    for column, values in chosen.items():
        present = dict.fromkeys(str(cell[column]) for cell in cells if cell[column])
        require_in_runs(column, values, list(present))


def newest_run() -> Path:
    """Return the run under ``results/`` with the newest table, or raise ``UsageError``."""
    tables = find_stored(RESULTS, records.TABLE)
    if not tables:
        for config in find_stored(RESULTS, CONFIG):
            problem = records.lacks(config.parent, records.TABLE)
            require(not still_running(config.parent), problem)
        raise UsageError(
            f"there is no run under {RESULTS}: give a run folder, or start with `specbench run`"
        )
    return max(tables, key=lambda path: path.stat().st_mtime).parent


def unfinished(folder: Path) -> str | None:
    """Describe the state of an incomplete run; None for a complete one, or one without a state."""
    run = read_run(folder, required=False)
    progress = run.progress
    if progress is None:
        path = folder / CONFIG
        _, wrong = configuration.read_section(path, configuration.RunConfig)
        return f"its {CONFIG} {wrong}" if wrong and path.exists() else None
    if progress.state == COMPLETE:
        return None
    if state := still_running(folder):
        return state
    return f"{progress.state}, {progress.samples} of {run.config.samples_planned} samples"


def _options(recorded: Mapping[str, Any], kind: type[Group]) -> Group:
    """Return recorded options, ignoring those of other versions that no longer exist."""
    return kind(**{name: value for name, value in recorded.items() if name in kind.model_fields})

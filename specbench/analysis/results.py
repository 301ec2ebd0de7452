"""Finished runs as tidy data frames and figures; ``specbench.load`` returns them in a notebook."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd

from specbench.analysis.figures import HEADS, STYLES, load_figure, source_of
from specbench.analysis.statistics.estimates import OF_TEXTS
from specbench.analysis.statistics.positions import acceptance_by_position
from specbench.analysis.statistics.sampled import FEWEST_TEXTS
from specbench.analysis.statistics.summary import cells_of, less_than_sd, summarise
from specbench.analysis.tables.run_tables import figure_tables, text_tables
from specbench.analysis.tables.table import Column, Table
from specbench.analysis.tables.verdict_tables import comparison_tables, verdict_tables
from specbench.analysis.verdicts.compare import verdict_rows, verdicts
from specbench.analysis.verdicts.margin import margin_rows, with_arms
from specbench.analysis.verdicts.remarks import measured_on, remarks
from specbench.analysis.verdicts.sampling import sampling_rows
from specbench.analysis.verdicts.slower import slower_methods
from specbench.analysis.verdicts.two_runs import why_untimed
from specbench.errors import UsageError
from specbench.runs.columns import TIMED
from specbench.runs.frames import (
    CELL,
    SAMPLES,
    Selection,
    first_decodes,
    folder_names,
    read_samples,
    read_summary,
    typed,
    without_repeats,
)
from specbench.runs.model import ERROR, RecordedRounds, SampleRecord
from specbench.runs.records import RECORDS, SUMMARY, TABLE, TRACED, latest_records, prompts_of
from specbench.runs.run import CONFIG, Run, read_run, require_folders, run_folders
from specbench.runs.shards import by_name, is_sharded, run_name, summarised_folders, whole_run
from specbench.runs.tables import may_be_blank, schema

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS, ROUNDS = schema("runs"), schema("rounds")

_START = list(ROUNDS).index("round")
# Columns that identify the sample, and all others.
_SAMPLE, _ROUND = list(ROUNDS)[:_START], list(ROUNDS)[_START:]
#: Columns of records that are needed to list the rounds, and to trace a text.
ROUND_COLUMNS = TRACED.union(_SAMPLE)

_TEXT = [*CELL, "seed", "repeat", "sample_id", "category", "turn", "stopped_by"]

# Of the display in a notebook.
_OF_RUN = ["run_id", "pair", "tasks", "samples", "state", "hardware", "started"]
_MOST_ROWS = 60


class Results:
    """The tables of one or several runs, each read on first access.

    ``specbench list columns`` describes the columns. Samples and rounds can be joined by their
    common columns up to ``turn``.

    Raises:
        UsageError: A path is not a folder. On attribute access: no run has the table, it is
            unreadable, nothing in it is selected, or two folders contain the same run.
    """

    def __init__(
        self,
        paths: Iterable[Path | str],
        selection: Selection | None = None,
        by_folder: bool = False,
    ) -> None:
        """Take run folders, or folders that contain runs, and optionally a selection.

        With ``by_folder``, a run whose folder was renamed has its new name.
        """
        self._by_folder = by_folder
        self._paths = [Path(path) for path in paths]
        self.selection = selection or Selection()
        require_folders(self._paths)

    @classmethod
    def of(cls, **tables: pd.DataFrame) -> Self:
        """Return results whose tables of these names, such as ``cells``, are given."""
        results = cls([])
        vars(results).update(tables)
        return results

    def __repr__(self) -> str:
        folders = ", ".join(map(str, self._paths))
        frames = "runs, samples, rounds, positions, summary, cells, verdicts"
        return f"<results of {folders}: {frames}>"

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per folder, also of each shard: settings, environment and final state."""
        runs = pd.DataFrame([_run(folder) for folder in run_folders(self._paths, CONFIG)])
        return self.named(typed(runs, RUNS, CONFIG, may_be_blank("runs")))

    @cached_property
    def decodes(self) -> pd.DataFrame:
        """The samples of all decodes, also of those for their times only."""
        return self.named(read_samples(*self._paths, timings=TIMED))

    @cached_property
    def _names(self) -> dict[str, str]:
        """The new names of runs whose folders were renamed, if they are wanted."""
        if not self._by_folder:
            return {}
        return folder_names(run_folders(self._paths, TABLE, SUMMARY, RECORDS, CONFIG))

    def named(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table of runs with their names in these results."""
        return table.assign(run_id=table["run_id"].replace(self._names)) if self._names else table

    @cached_property
    def samples(self) -> pd.DataFrame:
        """One row per sample."""
        samples = first_decodes(self.decodes)
        return self.selection.of(samples.drop(columns="timing", errors="ignore"))

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per round of every sample, dozens per sample."""
        folders = run_folders(self._paths, RECORDS)
        runs = [rounds_of(latest_records(folder, ROUND_COLUMNS), folder) for folder in folders]
        rounds = self.named(pd.concat(runs, ignore_index=True))
        return self.selection.of(rounds)

    @cached_property
    def positions(self) -> pd.DataFrame:
        """One row per cell, position in the block of drafts and kind: acceptance by position."""
        return acceptance_by_position(self.rounds)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per cell and metric; computed anew if the selection splits tasks."""
        if not self.selection.by:
            return self.selection.of(self._summary)
        # Methods that are not selected may be the baseline of a speedup.
        every = replace(self.selection, methods=None, draft_lengths=None, drafters=None)
        parts = summarise(without_repeats(every.of(self.decodes)))
        return replace(self.selection, tasks=None, by=()).of(parts)

    @cached_property
    def _summary(self) -> pd.DataFrame:
        """The summaries of the runs; of shards, one of all their samples."""
        whole = by_name(summarised_folders(self._paths))
        parts = [f for name in filter(is_sharded, [*whole]) for f in whole.pop(name)]
        summaries = [read_summary(*chain(*whole.values()))] if whole else []
        if parts:
            decodes = read_samples(*parts, timings=TIMED)
            summaries.append(summarise(without_repeats(decodes)))
        return self.named(pd.concat(summaries, ignore_index=True))

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per cell, with four columns per metric: value, low, high and n."""
        return cells_of(self.summary)

    @property
    def samples_of_all_methods(self) -> pd.DataFrame:
        """The samples and those of baselines in later sessions, also if not selected."""
        return Selection(by=self.selection.by).of(without_repeats(self.decodes))

    def cells_beside_sd(self, names: Collection[str] = OF_TEXTS) -> pd.DataFrame:
        """Return the cells with their differences from plain SD in figures of texts."""
        samples = first_decodes(self.samples_of_all_methods)
        return self.cells.merge(less_than_sd(samples, names), on=list(CELL), how="left")

    @cached_property
    def comparison(self) -> pd.DataFrame:
        """The methods beside ``sd`` and the front, one row per figure; none without ``sd``."""
        every = replace(self.selection, methods=None)  # sd and static are needed too
        return verdict_rows(every.of(self.decodes), self.selection.methods)

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """One row per task and method: a sentence that compares it with ``sd`` and the front."""
        return verdicts(self.comparison)

    def tables(self, *, further: bool = False) -> list[Table]:
        """Return the verdicts and the figures of the cells, as ``run`` prints them.

        ``further`` adds the distances from fronts at equal acceptance and the texts of the cells,
        and gives each figure its interval.
        """
        verdicts = [*verdict_tables(self.comparison)]
        if not further:  # differences from sd stand in the verdicts
            return [*verdicts, *figure_tables(self.cells if verdicts else self.cells_beside_sd())]
        cells = self.cells_beside_sd()
        return [
            *verdicts,
            *comparison_tables(self.comparison, ["acceptance"]),
            *figure_tables(cells, intervals=True),
            *text_tables(cells),
        ]

    @cached_property
    def servers(self) -> list[str]:
        """The names of the servers that decoded the runs."""
        return [*dict.fromkeys(name for run in chain(*self._runs.values()) for name in run.servers)]

    def against(self, method: str, margin: float, noise: Collection[str] = ()) -> pd.DataFrame:
        """Return the verdicts with a margin beside one method, see ``margin.margin_rows``.

        ``noise`` names servers that are the same as ``method`` at other addresses.
        """
        runs = chain(*self._runs.values())
        again = [name for run in runs for name in run.same_servers(method, noise)]
        every = replace(self.selection, methods=None).of(self.decodes)
        rows = margin_rows(every, method, margin, self.selection.methods, again)
        texts = first_decodes(every)
        if texts["repeat"].max() + 1 >= FEWEST_TEXTS and (texts["temperature"] > 0).any():
            with suppress(UsageError):  # a run without its records
                texts = replace(self.selection, methods=None).of(self._texts)
        of_texts = sampling_rows(with_arms(texts), method)
        return rows.merge(of_texts, how="left").drop(columns="arm")

    @cached_property
    def _texts(self) -> pd.DataFrame:
        """One row per text: its cell, prompt, repeat, text and tokens."""
        tables = []
        for folder in run_folders(self._paths, RECORDS):
            records = read_run(folder, required=False).records([*_TEXT, "text", "token_ids"])
            records = [record for record in records if record.status != ERROR]
            values = [[getattr(record, name) for name in _TEXT] for record in records]
            kinds = {name: SAMPLES[name] for name in _TEXT}
            table = typed(pd.DataFrame(values, columns=_TEXT), kinds, folder / RECORDS)
            first = [record.same_prompt_as or record.sample_id for record in records]
            texts, tokens = [r.text for r in records], [r.token_ids for r in records]
            tables.append(table.assign(sample_id=first, text=texts, token_ids=tokens))
        return self.named(pd.concat(tables, ignore_index=True))

    @cached_property
    def _runs(self) -> dict[str, list[Run]]:
        """The folders of the runs by name, which shards share."""
        return {
            self._names.get(name, name): [read_run(folder, required=False) for folder in folders]
            for name, folders in by_name(run_folders(self._paths, TABLE)).items()
        }

    @cached_property
    def remarks(self) -> list[str]:
        """What a person would notice: answers that were cut, failed prompts, why it is slow."""
        try:
            of_tasks = self.selection.whole_tasks(self.decodes["task"].unique())
            runs = {name: whole_run(runs) for name, runs in self._runs.items()}
            sentences = remarks(cells_of(of_tasks.of(self._summary)), runs)
            for run, text in slower_methods(of_tasks.of(self.decodes)):
                is_named = len(runs) < 2 or text.startswith(f"{run}:")
                sentences.append(text if is_named else f"{run}: {text}")
            return sentences
        except UsageError:  # the tables can be read without a summary
            return []

    @property
    def measured_on(self) -> list[str]:
        """The machine, weights and library of each run, as far as they are recorded."""
        return list(dict.fromkeys(filter(None, map(measured_on, chain(*self._runs.values())))))

    @property
    def untimed(self) -> str:
        """Why times of these runs do not compare, for a reader; empty if they do."""
        runs = [run for run, *_ in self._runs.values()]
        why = next(filter(None, (why_untimed(runs[0], other) for other in runs[1:])), None)
        return f"times of these runs do not compare, since {why}" if why else ""

    def plot(self, figure: str = "pareto", *, style: str = STYLES[1], **options: Any) -> Figure:
        """Draw a figure of these runs, as ``specbench plot`` does.

        Args:
            figure: A figure that ``specbench plot`` draws from runs, or ``FILE.py:FUNCTION``.
            style: ``screen``, ``paper`` for print, or a style file of matplotlib's.
            **options: Of the figure: ``against`` of ``pareto``.
        """
        from specbench.analysis.figures.style import page

        draw = load_figure(figure)
        if source_of(figure) == HEADS:
            raise UsageError(f"{figure} draws heads, not runs: use `specbench plot {figure}`")
        with page(style):
            return draw(self, **options).figure

    def _repr_html_(self) -> str:
        """Return the runs, and the figures of their cells with intervals, as HTML tables."""
        from specbench.analysis.tables.html import to_html

        tables = [*figure_tables(self.cells.head(_MOST_ROWS), intervals=True)]
        with suppress(UsageError):  # a run without its configuration
            rows = self.runs[_OF_RUN].astype({"samples": "Int64"}).astype("str").to_numpy().tolist()
            tables.insert(0, Table("", [Column(name) for name in _OF_RUN], rows))
        return to_html(*tables)


def _run(folder: Path) -> dict[str, Any]:
    """Return a run's values from ``config.json`` and ``environment.json``, None if missing."""
    run = read_run(folder, required=False)
    config, environment = run.config, run.environment
    gpus = environment.torch.gpus
    values = {
        **config.settings,
        **config.progress.plain(),
        "run_id": run_name(folder),
        "pair": config.pair.name,
        "folder": str(folder),
        "samples_planned": config.samples_planned,
        "tasks": " ".join(run.tasks),
        "target": config.pair.target,
        "draft": config.pair.draft,
        "device": environment.models.get("device"),
        "dtype": environment.models.get("dtype"),
        "hardware": (gpus[0].name if gpus else None) or environment.cpu.model,
        "started": environment.started,
        "command": shlex.join(environment.command),
        "specbench": config.specbench or None,
        **environment.git,
        "python": environment.python,
        **environment.packages,
    }
    return {name: values.get(name) for name in RUNS}


def rounds_of(records: Iterable[SampleRecord], folder: Path) -> pd.DataFrame:
    """Return the rounds of a run's records."""
    decoded = [record for record in records if "per_round" in record.model_fields_set]
    samples = pd.DataFrame([[getattr(r, n) for n in _SAMPLE] for r in decoded], columns=_SAMPLE)
    prompts = prompts_of(folder)
    samples["sample_id"] = [prompts.get((r.task, r.sample_id), r.sample_id) for r in decoded]
    columns = [_columns(record.per_round) for record in decoded]
    table = samples.loc[np.repeat(samples.index, [len(c["round"]) for c in columns])]
    rounds = {name: list(chain.from_iterable(c[name] for c in columns)) for name in _ROUND}
    table = table.reset_index(drop=True).assign(**rounds)
    return typed(table, ROUNDS, folder / RECORDS, may_be_blank("rounds"))


def _columns(rounds: RecordedRounds) -> dict[str, Sequence[Any]]:
    """Return the columns of ``_ROUND`` for one sample; older runs lack the last two."""
    lengths = [len(values) for values in vars(rounds).values() if values is not None]
    unknown = [None] * max(lengths, default=0)  # all of one length
    return {
        "round": range(len(unknown)),
        "proposed": rounds.proposed or unknown,
        "accepted": rounds.accepted or unknown,
        "emitted": rounds.emitted or unknown,
        "expected_acceptance": [fmean(v) if v else None for v in rounds.expected or unknown],
        "mean_weight": [fmean(v) if v else None for v in rounds.weights or unknown],
        "rejected": rounds.rejected or unknown,
        "agreed": unknown if rounds.agreed is None else [sum(r) for r in rounds.agreed],
    }

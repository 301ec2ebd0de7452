"""The settings of one task of a run, by session and by method, for comparisons.

Times are compared only within a session, and those of texts that were decoded together only if
there are enough ``blocks``. A method has one setting per draft length. Heads that differ in nothing
but the seed of their training are a recipe, which is compared as one method.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any, NamedTuple, Self

import pandas as pd

from specbench.analysis.blocks import count_blocks, has_comparable_times
from specbench.analysis.intervals import estimate
from specbench.analysis.pareto import STATIC_FAMILY
from specbench.analysis.points import PointEstimates, Setting, settings_of, shared_points
from specbench.heads.registry import recipe_of
from specbench.methods.parameters import PARAMETER_COLUMNS
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.runs.columns import TIMED_AGAIN
from specbench.runs.frames import first_decodes
from specbench.runs.labels import method_labels


class TaskRun(NamedTuple):
    """The settings of a task of a run."""

    settings: list[Setting]
    sessions: dict[int, list[Setting]]  # those with comparable times, by session
    noise: dict[int, float]  # by session: the largest factor between times of equal texts
    blocks: float  # number of whole blocks; NaN if texts were decoded alone or none is recorded

    @classmethod
    def of(cls, samples: pd.DataFrame) -> Self:
        """Split samples, which may include those of ``timings.csv``."""
        is_again = samples.get("timing", pd.Series(index=samples.index)) == TIMED_AGAIN
        repeated, timed = samples[is_again], samples[~is_again]
        sessions = {
            int(session): settings_of(rows)
            for session, rows in timed.groupby("session")
            if has_comparable_times(rows)
        }
        noise = {}
        for session, rows in repeated.groupby("session"):
            once, twice = (
                {(setting.draft_length, setting.drafter): setting for setting in settings}
                for settings in (sd_of(sessions.get(session, [])), settings_of(rows))
            )
            factors = [_noise(once[key], twice[key]) for key in once.keys() & twice]
            noise[session] = max(factors, default=math.nan)
        return cls(settings_of(first_decodes(samples)), sessions, noise, count_blocks(timed))

    def timed(self, session: int) -> list[Setting]:
        """Return the settings timed in a session."""
        return self.sessions.get(session, [])

    def of_drafter(self, name: str) -> TaskRun:
        """Return the settings with a drafter, and those without drafts."""

        def drafted(settings: list[Setting]) -> list[Setting]:
            return [setting for setting in settings if setting.drafter in (name, None)]

        sessions = {session: drafted(timed) for session, timed in self.sessions.items()}
        return TaskRun(drafted(self.settings), sessions, self.noise, self.blocks)


class MethodSettings(NamedTuple):
    """A method with its parameters: its settings by draft length, of one session."""

    label: str
    lengths: dict[int, Setting]
    seeds: float = math.nan  # 1 for one of several heads of a recipe
    missing: int = 0  # prompts that other settings of the run have

    @property
    def first(self) -> Setting:
        """The setting at the first draft length."""
        return next(iter(self.lengths.values()))

    @property
    def session(self) -> int:
        """The session in which it was measured."""
        return int(self.first.cell["session"])

    @property
    def choices(self) -> list[list[int]]:
        """Each draft length alone and, if there are several, all of them together."""
        return [*([n] for n in self.lengths), *([list(self.lengths)] * (len(self.lengths) > 1))]

    def facts(
        self, lengths: list[int], chosen: int, reached: PointEstimates, point: int
    ) -> dict[str, Any]:
        """Return the columns that describe the method, taken from one point of ``reached``."""
        return {
            "method": self.first.method,
            "label": self.label,
            "points": len(lengths),
            "seeds": self.seeds,
            "missing": self.missing,
            "draft_length": chosen,
            "drafter": self.first.drafter,
            "quality": reached.quality[0, point],
            "acceptance": reached.acceptance[0, point],
            "seconds": reached.seconds[0, point],
        }


class SeedGroup(NamedTuple):
    """Heads that differ in nothing but the seed of their training, of one session."""

    label: str
    heads: list[MethodSettings]

    @property
    def session(self) -> int:
        """The session in which the heads were measured."""
        return self.heads[0].session

    @property
    def lengths(self) -> list[int]:
        """The draft lengths with which all heads were measured."""
        return [n for n in self.heads[0].lengths if all(n in head.lengths for head in self.heads)]

    def settings(self, length: int) -> list[Setting]:
        """Return the heads' settings at a draft length."""
        return [head.lengths[length] for head in self.heads]

    def facts(self, length: int, reached: PointEstimates) -> dict[str, Any]:
        """Return the columns that describe the mean; the heads are the first of the points."""
        heads = slice(len(self.heads))
        return {
            "method": self.heads[0].first.method,
            "label": self.label,
            "points": 1,
            "seeds": len(self.heads),
            "missing": max(head.missing for head in self.heads),
            "draft_length": length,
            "drafter": self.heads[0].first.drafter,
            "quality": reached.quality[0, heads].mean(),
            "acceptance": reached.acceptance[0, heads].mean(),
            "seconds": reached.seconds[0, heads].mean(),
        }


def methods_of(
    settings: list[Setting], names: Collection[str] | None
) -> tuple[list[MethodSettings], list[SeedGroup]]:
    """Return the settings of these methods, and the recipes of several heads among them.

    ``names`` defaults to all methods that draft; to ``static`` if there is no other.
    """
    by_method: dict[tuple[Any, ...], dict[int, Setting]] = {}
    for setting in settings:
        if setting.draft_length > 0:
            values = (setting.cell[name] for name in PARAMETER_COLUMNS)
            parameters = (None if pd.isna(value) else value for value in values)
            key = (setting.method, setting.session, *parameters)
            by_method.setdefault(key, {})[setting.draft_length] = setting
    if names is None:
        used = {key[0] for key in by_method}
        names = used - {*STATIC_FAMILY} or used - {"sd"}
    chosen = [lengths for key, lengths in by_method.items()]
    cells = [next(iter(lengths.values())).cell for lengths in chosen]
    folders = [_recipe_folder(cell) for cell in cells]
    shared = dict.fromkeys(key for key in folders if key and folders.count(key) > 1)
    # A recipe has the label of its first head, with the folder that the heads share.
    firsts = {key: {**cells[folders.index(key)], "head": key[0]} for key in shared}
    labels = method_labels([*cells, *firsts.values()])
    prompts = {prompt for setting in settings for prompt in setting.prompts}
    missing = [_missing(lengths, prompts) for lengths in chosen]
    of_seeds = [1 if folder in shared else math.nan for folder in folders]
    methods = list(map(MethodSettings, labels, chosen, of_seeds, missing))
    recipes = []
    for key, label in zip(firsts, labels[len(cells) :], strict=True):
        heads = [method for method, folder in zip(methods, folders, strict=True) if folder == key]
        recipes.append(SeedGroup(f"{label}, mean of {len(heads)} seeds", heads))
    return (
        [method for method in methods if method.first.method in names],
        [recipe for recipe in recipes if recipe.heads[0].first.method in names],
    )


def sd_of(settings: Sequence[Setting]) -> list[Setting]:
    """Return the settings of plain SD."""
    return [setting for setting in settings if setting.method == "sd"]


def alone_of(settings: Sequence[Setting]) -> list[Setting]:
    """Return the settings without speculation."""
    return [setting for setting in settings if setting.method == AUTOREGRESSIVE]


def _missing(lengths: Mapping[int, Setting], prompts: Set[str]) -> int:
    """Return how many of the prompts a method lacks at some draft length."""
    return len(prompts - set.intersection(*(setting.prompts for setting in lengths.values())))


def _recipe_folder(cell: Any) -> tuple[Any, ...] | None:
    """Return what heads of one recipe share: their folder, the session and other parameters."""
    folder = recipe_of(cell["head"]) if isinstance(cell["head"], str) else None
    if folder is None:
        return None
    parameters = (cell[name] for name in PARAMETER_COLUMNS if name != "head")
    values = (None if pd.isna(value) else value for value in parameters)
    return (folder, cell["method"], cell["session"], *values)


def _noise(once: Setting, twice: Setting) -> float:
    """Return the largest factor in the interval of the ratio of the times of equal texts."""
    reached = shared_points([once.timed, twice.timed]).estimates()
    ratio = estimate(reached.seconds[:, 0] / reached.seconds[:, 1], reached.n, log=True)
    return max(ratio.high, 1 / ratio.low)

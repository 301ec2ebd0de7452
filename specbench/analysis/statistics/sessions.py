"""The settings of one task of a run, by session and by method, for comparisons.

Times are compared only within a session, and those of texts that were decoded together only if
there are enough blocks (``points``). A method has one setting per draft length. Heads that differ
in nothing but the seed of their training are a recipe, which is compared as one method.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Self

import pandas as pd

from specbench.analysis.statistics.blocks import count_blocks, has_comparable_times
from specbench.analysis.statistics.estimates import TIMES, share_terms
from specbench.analysis.statistics.front import STATIC_FAMILY
from specbench.analysis.statistics.points import (
    Fastest,
    PointEstimates,
    Setting,
    settings_of,
    shared_points,
)
from specbench.methods.registry import PARAMETER_COLUMNS
from specbench.plugins import short_name
from specbench.runs.columns import TIMED_AGAIN
from specbench.runs.frames import first_decodes
from specbench.runs.labels import method_labels, recipe_of

SEVERAL = -1  # the session of heads that were measured in several


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
            once = _by_length(sd_of(sessions.get(session, [])))
            twice = _by_length(settings_of(rows))
            both = [shared_points([once[n].timed, twice[n].timed]) for n in once.keys() & twice]
            ratios = [points.estimates().contrast(TIMES, [1], 0) for points in both]
            factors = (max(ratio.high, 1 / ratio.low) for ratio in ratios)
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
    """A method with its parameters: its settings by draft length.

    The figures of a recipe are means over its heads. These may be of several sessions, which leaves
    it without times.
    """

    label: str
    lengths: dict[int, list[Setting]]  # one setting for each head
    seeds: float = math.nan  # the number of heads of a recipe; 1 for each of them alone
    missing: int = 0  # prompts that other settings of the run have

    @property
    def heads(self) -> list[Setting]:
        """The heads' settings at the first draft length; a method without heads has one."""
        return next(iter(self.lengths.values()))

    @property
    def first(self) -> Setting:
        """A setting at the first draft length."""
        return self.heads[0]

    @property
    def session(self) -> int:
        """The session in which it was measured, or ``SEVERAL``."""
        sessions = {head.session for head in self.heads}
        return sessions.pop() if len(sessions) == 1 else SEVERAL

    @property
    def choices(self) -> list[list[int]]:
        """Each draft length alone and, unless it is a recipe, several of them together."""
        together = len(self.lengths) > 1 == len(self.heads)
        return [*([n] for n in self.lengths), *([list(self.lengths)] if together else [])]

    def at(self, lengths: Sequence[int]) -> list[Setting]:
        """Return the settings at some draft lengths."""
        return [setting for length in lengths for setting in self.lengths[length]]

    def points(self, fastest: Fastest) -> list[int]:
        """Return the points of the method: the fastest one, or those of all heads."""
        return [fastest.pooled] if len(self.heads) == 1 else list(range(len(self.heads)))

    def facts(
        self, lengths: list[int], chosen: int, reached: PointEstimates, points: list[int]
    ) -> dict[str, Any]:
        """Return the columns that describe the method, as means over its points."""
        texts = pd.concat([setting.samples for setting in self.lengths.get(chosen, [])])
        head = self.first.cell["head"]
        recipe = {"head": recipe_of(head)} if self.seeds > 1 else {}
        return {
            "method": self.first.method,
            **_parameters(self.first.cell),
            **recipe,
            "label": self.label,
            "points": len(lengths),
            "seeds": self.seeds,
            "missing": self.missing,
            "draft_length": chosen,
            "drafter": self.first.drafter,
            "quality": reached.quality[0, points].mean(),
            "acceptance": reached.acceptance[0, points].mean(),
            "seconds": reached.seconds[0, points].mean(),
            **{n: above.sum() / below.sum() for n, (above, below) in share_terms(texts).items()},
        }


def methods_of(settings: list[Setting], names: Collection[str] | None) -> list[MethodSettings]:
    """Return the settings of these methods, then the recipes of several heads among them.

    ``names`` defaults to all methods that draft; to ``static`` if there is no other.
    """
    by_method: dict[tuple[Any, ...], dict[int, Setting]] = {}
    for setting in settings:
        if setting.draft_length > 0:
            key = (setting.method, setting.session, *_parameters(setting.cell).values())
            by_method.setdefault(key, {})[setting.draft_length] = setting
    if names is None:
        used = {key[0] for key in by_method}
        names = used - {*STATIC_FAMILY} or used - {"sd"}
    by_length = list(by_method.values())
    cells = [next(iter(lengths.values())).cell for lengths in by_length]
    folders = [recipe_key(cell) for cell in cells]
    heads = {(key, cell["head"]) for key, cell in zip(folders, cells, strict=True) if key}
    seeds = Counter(key for key, _ in heads)  # heads that are measured again are no further ones
    shared = [key for key in dict.fromkeys(folders) if key and seeds[key] > 1]
    # A recipe has the label of its first head, with the folder that the heads share.
    firsts = [{**cells[folders.index(key)], "head": key[0]} for key in shared]
    labels = method_labels([*cells, *firsts])
    prompts = {prompt for setting in settings for prompt in setting.prompts}
    methods = [
        MethodSettings(
            label,
            {length: [setting] for length, setting in lengths.items()},
            1 if folder in shared else math.nan,
            len({prompt for one in lengths.values() for prompt in prompts - one.prompts}),
        )
        for label, lengths, folder in zip(labels, by_length, folders, strict=False)
    ]
    recipes = []
    for key, label in zip(shared, labels[len(cells) :], strict=True):
        of_recipe = [m for m, folder in zip(methods, folders, strict=True) if folder == key]
        by_session: dict[tuple[float, ...], dict[int, list[Setting]]] = {}
        for n in dict.fromkeys(n for method in of_recipe for n in method.lengths):
            of_head = {s.cell["head"]: s for method in of_recipe for s in method.lengths.get(n, ())}
            if len(of_head) == seeds[key]:  # all heads, which may be of several sessions
                sessions = tuple(s.session for s in of_head.values())
                by_session.setdefault(sessions, {})[n] = list(of_head.values())
        name = f"{label}, mean of {seeds[key]} seeds"
        missing = max(method.missing for method in of_recipe)
        for lengths in by_session.values():
            recipes.append(MethodSettings(name, lengths, seeds[key], missing))
    names = {*map(short_name, names)}
    return [each for each in (*methods, *recipes) if short_name(each.first.method) in names]


def _by_length(settings: Sequence[Setting]) -> dict[tuple[int, str | None], Setting]:
    return {(setting.draft_length, setting.drafter): setting for setting in settings}


def sd_of(settings: Sequence[Setting]) -> list[Setting]:
    """Return the settings of plain SD."""
    return [setting for setting in settings if setting.method == "sd"]


def _parameters(cell: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the parameters of a cell by column, None for a blank."""
    return {name: None if pd.isna(cell[name]) else cell[name] for name in PARAMETER_COLUMNS}


def recipe_key(cell: Mapping[Any, Any]) -> tuple[Any, ...] | None:
    """Return what heads of one recipe share: their folder and all other parameters."""
    parameters = _parameters(cell)
    head = parameters.pop("head")
    folder = recipe_of(head) if isinstance(head, str) else None
    return None if folder is None else (folder, cell["method"], *parameters.values())

"""Compare methods with plain SD and with fronts at equal acceptance, time and quality.

The main front is the randomised front of ``sd`` and the static ensemble; a second one includes
``sharpened`` and ``cooled``, too. A method that emits the target's own distribution has no distance
from a front. Drafters are compared separately, each with its own ``sd`` and front.

Comparisons are paired by prompt, or for times of texts that were decoded together by block, and
stay within one run; times stay within one of its sessions (column ``timing`` of the samples). At
equal acceptance a method is compared with the static points of its own draft length, since these
depend on it; at equal time or quality, with those of every draft length of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import pandas as pd

from specbench.analysis.statistics.blocks import describe_blocks
from specbench.analysis.statistics.estimates import ABOVE, QUALITY_LESS, pivot
from specbench.analysis.statistics.front import STATIC_FAMILY
from specbench.analysis.statistics.intervals import FEWEST
from specbench.analysis.statistics.points import GAINS
from specbench.analysis.statistics.sessions import TaskRun, methods_of
from specbench.analysis.tables.shown import setting_text
from specbench.analysis.verdicts import contrasts
from specbench.analysis.verdicts.contrasts import (
    ALONE,
    ATS,
    COIN,
    COMPARISON,
    CONTROL,
    FRONT,
    OWN,
    SD,
    SD_CHOSEN,
    TASK_RUN,
    TEXTS,
    At,
    Row,
)
from specbench.analysis.verdicts.sentences import OUTCOMES, verdict
from specbench.analysis.verdicts.words import CONCURRENCY, MISSING, count_words
from specbench.errors import UsageError
from specbench.methods.registry import CONTROLS
from specbench.runs.frames import rows_of
from specbench.tasks.metrics import shown_metric

BATCHED = (
    "texts that are decoded together share their time, and this run has too few blocks of prompts "
    f"to compare it: decode {FEWEST} blocks or more (--limit; without --refill), or one text at a "
    "time (--batch-size 1, --concurrency 1)"
)

_RUN = ["run_id", "pair", "temperature", "engine", "batch_size", "task"]
VERDICTS = (
    *(*_RUN, "blocks", "method", "label", "draft_length", "n", "missing"),
    *(*OUTCOMES, "sentence"),
)
Part = Callable[[], Iterable[Row]]


class Compared(NamedTuple):
    """A comparison with columns ``COMPARISON``, and notes on missing or coarse parts."""

    rows: pd.DataFrame
    notes: list[str]


def compare(
    samples: pd.DataFrame,
    ats: Sequence[At] = ATS,
    methods: Collection[str] | None = None,
    texts: Sequence[str] = TEXTS,
) -> Compared:
    """Compare methods with the static front and with plain SD, with 95 % intervals.

    Own quality (always included): the speed of each method and of SD relative to no speculation,
    and paired differences from plain SD at the same draft length. Against plain SD at its fastest
    draft length, ``share_of_gain`` is the share of the method's time saving that plain SD reaches
    by changing N alone. A method run with several draft lengths has another row at its fastest one
    (``Points.estimates_with_fastest``).

    Equal acceptance and equal time: ``quality_above`` the front, and ``quality_above_measured`` the
    front at its nearest point of lower gain. Equal quality: ``times_as_fast`` as the static front.

    ``texts`` are the contrasts of texts with those of plain SD; each takes a bootstrap per method.
    ``methods`` defaults to all that draft; without others, to ``static``. Rows of ``sd`` itself and
    of a coin between SD and the draft come only with the default.

    Raises:
        UsageError: No comparison is possible with these samples.
    """
    rows: list[Row] = []
    notes: dict[str, None] = {}
    for key, run in samples.groupby(TASK_RUN, sort=False, dropna=False):
        shared = dict(zip(TASK_RUN, key, strict=True))
        task_run = TaskRun.of(run)
        shared["blocks"] = task_run.blocks
        if not task_run.sessions:
            notes[BATCHED] = None
        drafters = dict.fromkeys(one.drafter for one in task_run.settings if one.drafter)
        first, *further = [task_run.of_drafter(name) for name in drafters if name] or [task_run]
        parts: list[tuple[str, Part]] = [  # sd with each further drafter, then those of each
            (OWN, partial(contrasts.versus_sd, first, method, n, texts))
            for other in further
            for method in methods_of(other.settings, ["sd"])
            for n in method.choices
        ]
        for of_drafter in (first, *further):
            parts += _parts(of_drafter, ats, methods, texts)
        for kind, part in parts:
            try:
                rows += [{**shared, "at": kind, **row} for row in part()]
            except UsageError as error:
                notes[str(error)] = None
    if not rows:
        missing = "the runs hold none of these methods: name others"
        if methods is None:
            missing = "the runs hold no method to compare with sd: measure one too"
        raise UsageError(next(iter(notes), missing))
    table = pd.DataFrame(rows, columns=list(COMPARISON))
    return Compared(table, [*notes, *cautions(table)])


def _parts(
    run: TaskRun, ats: Sequence[At], names: Collection[str] | None, texts: Sequence[str]
) -> Iterator[tuple[str, Part]]:
    """Yield the quantity held equal and a function that makes its rows, in table order."""
    methods = methods_of(run.settings, names)
    strict = methods_of(run.settings, ["sd"]) if names is None else []
    for method in (*strict, *methods):
        for n in method.choices:
            yield OWN, partial(contrasts.versus_none, run, method, n)
    for method in methods:
        for n in method.choices:
            yield OWN, partial(contrasts.versus_sd, run, method, n, texts)
        if len(run.sessions) > 1:
            yield OWN, partial(contrasts.require_times, run, method)
    relaxed = [m for m in methods if not (m.first.emits_target or m.first.method in STATIC_FAMILY)]
    has_control = any(setting.method in CONTROLS for setting in run.settings)
    for gain in (name for name in GAINS if name in ats):
        for method in relaxed:
            timed = [s for s in run.timed(method.session) if s.method in STATIC_FAMILY]
            if gain != "acceptance" and len(timed) < 2:  # added cells are timed without a front
                continue
            controlled = has_control and method.first.method not in CONTROLS
            for front in (FRONT, CONTROL)[: 1 + controlled]:
                for length in method.lengths:
                    yield gain, partial(contrasts.above_front, run, method, length, gain, front)
    if "acceptance" in ats and names is None:
        yield "acceptance", partial(contrasts.versus_coin, run)
    if "quality" in ats:
        alone = [method for method in relaxed if len(method.heads) == 1]
        for method in (method for method in alone if method.session in run.sessions):
            for n in method.choices:
                yield "quality", partial(contrasts.at_equal_quality, run, method, n)


def cautions(rows: pd.DataFrame) -> Iterator[str]:
    """Yield notes on coarse fronts and on a missing control."""
    tossed = rows[rows["against"] == COIN].groupby("task")["ci_high"].max()
    placed = rows[(rows["metric"] == ABOVE) & (rows["against"] != COIN)]
    beyond = placed[placed["value"].isna() & (placed["at"] == "acceptance") & (placed["n"] > 1)]
    for task, methods in beyond.groupby("task", sort=False)["label"].unique().items():
        yield (
            f"{task}: no measured static weight accepts as much as {', '.join(methods)}, so there "
            "is no front to compare with: add the draft alone, --set weight=0 with static"
        )
    # Between weights below the coin, more weights would not be on the front either.
    tossed_tasks = tossed.index[tossed < 0]
    coarse = placed[placed["coarse"].fillna(False).astype(bool) & placed["step"].notna()]
    coarse = coarse[~coarse["task"].isin(tossed_tasks)]
    # Between two weights, and not between two draft lengths of one or temperatures.
    is_one_weight = coarse["between"].astype(str).str.fullmatch(r"(.+) to \1")
    coarse = coarse[coarse["against"].eq(FRONT) & ~is_one_weight]
    gaps = []
    for row in coarse.drop_duplicates(["task", "between"]).itertuples():
        points = 100 * abs(row.step)
        size = f"{points:.0f} points" if points >= 1 else "under a point"
        gaps.append(f"{row.between} on {row.task} ({size})")
    if gaps:
        yield (
            "measure more weights where the qualities of neighbours are far apart: "
            f"{', '.join(gaps)}"
        )
    if (placed["temperature"] > 0).any() and CONTROL not in set(placed["against"]):
        yield (
            "a lower temperature may gain as much as these methods: add "
            "`--method cooled --set both_temperature=0.4,0.6,0.8` to the run"
        )


def verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts on a comparison that includes equal acceptance: columns ``VERDICTS``.

    There is one row per task, method and draft length; several heads of one recipe are one method,
    the mean over their seeds. If ``sd`` also has several draft lengths, there is one row per task
    and method: both at their fastest, chosen as in ``compare``. ``sd`` itself has a row if the run
    has times without speculation, and the static ensemble one if all of its weights lie below a
    coin between ``sd`` and the draft.
    """
    if rows.empty:
        return pd.DataFrame(columns=list(VERDICTS))
    verdicts_of_runs = []
    single_seeds = rows["seeds"] == 1
    judged = rows[rows["at"].isin([OWN, "acceptance", "time"]) & ~single_seeds]
    for key, run in judged.groupby(_RUN, sort=False, dropna=False):
        shared = dict(zip(_RUN, key, strict=True)) | {"blocks": run["blocks"].iloc[0]}
        beside_baseline = run[run["at"] == OWN]
        several_sd = (beside_baseline["against"] == SD_CHOSEN).any()
        for label, group in beside_baseline.groupby("label", sort=False):
            chosen = group[(group["points"] > 1) & group["against"].isin([SD_CHOSEN, ALONE])]
            chosen = chosen if several_sd else chosen[:0]
            lengths = chosen if len(chosen) else group
            for length in lengths["draft_length"].unique():
                alike = run[(run["label"] == label) & (run["draft_length"] == length)]
                single = alike[alike["points"] == 1]
                verdicts_of_runs.append(shared | verdict(single, chosen if len(chosen) else single))
        verdicts_of_runs += [shared | row for row in _coin(run)]
    table = pd.DataFrame(verdicts_of_runs, columns=list(VERDICTS))
    return table.assign(sentence=_names(table, _RUN) + ": " + table["sentence"])


def _names(table: pd.DataFrame, run: list[str]) -> pd.Series:
    """Return the methods' labels, with the draft length of those that have several in a run."""
    several = table.groupby([*run, "label"], dropna=False)["draft_length"].transform("nunique") > 1
    lengths = ", N = " + table["draft_length"].map("{:.0f}".format)
    return table["label"] + lengths.where(several, "")


def verdict_rows(samples: pd.DataFrame, methods: Collection[str] | None = None) -> pd.DataFrame:
    """Return the rows that verdicts on all or some methods need; none without ``sd``."""
    names = None if methods is None else {*methods} - {"sd"}
    try:
        return compare(samples, ["acceptance", "time"], names, [QUALITY_LESS]).rows
    except UsageError:
        return pd.DataFrame(columns=list(COMPARISON))


def by_task(table: pd.DataFrame) -> dict[str, list[str]]:
    """Return the sentences of verdicts under a heading for each task of each run."""
    several = [name for name in ("run_id", "engine", "batch_size") if table[name].nunique() > 1]
    prompts = table.groupby(_RUN, dropna=False)["n"].transform("max")
    sentences: dict[str, list[str]] = {}
    for row in rows_of(table.assign(prompts=prompts)):
        heading = f"{setting_text(row, several)}, n = {row['prompts']}"
        if row["batch_size"] > 1:
            heading += f" in {describe_blocks(row['blocks'], row['batch_size'])}"
        sentences.setdefault(heading, []).append(row["sentence"])
    return sentences


def over_tasks(rows: pd.DataFrame) -> dict[str, list[str]]:
    """Return lines that count verdicts over tasks, from rows of ``compare`` or ``margin_rows``."""
    table = rows[rows["against"].notna()]
    if "at" in rows:
        beside_sd = (rows["against"] == SD) & (rows["method"] != "sd") & (rows["points"] == 1)
        table = pd.DataFrame(pivot(rows[beside_sd], *_RUN))
    lines: dict[str, list[str]] = {}
    if table.empty:
        return lines
    names = _names(table, _RUN[:-1])
    if CONCURRENCY in table and table[CONCURRENCY].nunique() > 1:
        loads = table[CONCURRENCY].map(" at concurrency {:.0f}".format, na_action="ignore")
        names += loads.fillna("")
    several = [name for name in ("run_id", "engine", "batch_size") if table[name].nunique() > 1]
    for _, run in table.groupby(_RUN[:-1], sort=False, dropna=False):
        if (tasks := run["task"].nunique()) > 1:
            heading = setting_text({**run.iloc[0], "task": f"{tasks} tasks"}, several)
            methods = run.groupby(names, sort=False)
            lines[heading] = [f"{name}: {count_words(rows_of(rows))}" for name, rows in methods]
    return lines


def _coin(run: pd.DataFrame) -> Iterator[Row]:
    """Yield a verdict on the static ensemble for each N at which all weights lie below the coin."""
    for length, weights in run[run["against"] == COIN].groupby("draft_length"):
        if (weights["ci_high"] < 0).all():
            first = rows_of(weights)[0]
            points = -shown_metric(first["quality_metric"])[1] * weights["value"]
            ends = dict.fromkeys(f"{end:.1f}" for end in (points.min(), points.max()))
            yield {
                "method": first["method"],
                "label": "static",
                "draft_length": length,
                "n": first["n"],
                "missing": 0,
                **dict.fromkeys(OUTCOMES, MISSING),
                "sentence": (
                    "no measured weight is worth it here: answering some prompts with sd and the "
                    "rest with the draft alone beats every one between 0 and 1 by "
                    f"{' to '.join(ends)} points at equal acceptance"
                ),
            }

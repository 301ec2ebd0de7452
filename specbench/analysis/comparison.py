"""The names of what a comparison compares: quantities, fronts, figures, and its columns."""

from __future__ import annotations

from typing import Any, Literal, get_args

from specbench.analysis.intervals import Interval
from specbench.analysis.pareto import STATIC_FAMILY
from specbench.analysis.scores import AT_LIMIT, COMPLETED, QUALITY, REPETITION
from specbench.methods.registry import AUTOREGRESSIVE, CONTROLS
from specbench.runs.shown import PHASES

#: The quantity held equal.
At = Literal["acceptance", "time", "quality"]
ATS: tuple[At, ...] = get_args(At)
#: Used instead of ``quality`` for comparisons with plain SD, in which quality is not held equal.
OWN = "own quality"

FRONT, SD, SD_CHOSEN = "static front (randomised)", "sd", "sd at chosen N"
CONTROL = "sharpened front (randomised)"
#: A random choice between ``sd`` and the draft for each prompt, and no speculation.
COIN, ALONE = "coin between sd and the draft", AUTOREGRESSIVE
FRONTS = {FRONT: STATIC_FAMILY, CONTROL: (*STATIC_FAMILY, *CONTROLS)}
#: Quality minus the front's at the same gain, and at the front's nearest point of lower gain.
ABOVE, ABOVE_MEASURED = "quality_above", "quality_above_measured"
#: Ratios: baseline seconds per sample / own; own tokens/s / baseline tokens/s.
TIMES, TOKENS = "times_as_fast", "times_tokens_per_second"
#: Differences: own minus sd. Ratio: own output tokens per sample / sd's.
QUALITY_LESS, ACCEPTANCE_LESS = "quality_difference", "acceptance_difference"
LENGTH, SHARE = "length_ratio", "share_of_gain"
COMPLETED_LESS = "completed_quality_difference"
AT_LIMIT_LESS, REPETITION_LESS = "length_limit_difference", "repetition_difference"
#: Differences: own minus sd, of these figures of a summary.
TEXTS_LESS = {
    QUALITY_LESS: QUALITY,
    COMPLETED_LESS: COMPLETED,
    AT_LIMIT_LESS: AT_LIMIT,
    REPETITION_LESS: REPETITION,
}

#: The columns that the settings of a task of a run share.
TASK_RUN = ["run_id", "pair", "temperature", "engine", "batch_size", "task", "quality_metric"]
#: One row per figure: ``value`` with its interval over ``n`` prompts.
#:
#: ``points`` counts the settings that a row chose from or combined. ``draft_length`` is the
#: method's, or the chosen one; blank if the row combines several. ``quality``, ``acceptance``,
#: ``seconds`` (per sample) and ``PHASES`` belong to the method. ``reference`` is the baseline's
#: value: a quality, or seconds per sample at ``against_quality``, which for the front is the
#: method's quality, capped at the front's best. ``between`` names the front's points of next lower
#: and next higher gain; ``step`` is the difference of their qualities, and ``coarse`` whether it is
#: large (``pareto.COARSE``). ``noise`` is a factor: speed-ups from 1 / noise to noise can be noise
#: of the times; blank if ``sd`` was not timed twice. ``seeds`` counts the heads of one recipe of
#: which the row is a mean, 1 for each of them alone; it is blank for all other methods. ``missing``
#: counts prompts that other settings of the run have and the method lacks. ``blocks`` counts the
#: blocks of a run in batches, see ``analysis.blocks``.
COMPARISON = (
    *(*TASK_RUN, "blocks", "at", "method", "label", "points", "seeds", "missing", "draft_length"),
    *("drafter", "quality", "acceptance", "seconds", *PHASES),
    *("against", "against_draft_length", "against_quality", "reference", "between", "step"),
    *("coarse", "metric", "value", "ci_low", "ci_high", "n", "noise"),
)

Row = dict[str, Any]


def figure_columns(metric: str, figure: Interval, prompts_per_unit: int = 1) -> Row:
    """Return the columns of a figure, whose interval is over units of so many prompts."""
    value, low, high, units = figure
    n = units * prompts_per_unit
    return {"metric": metric, "value": value, "ci_low": low, "ci_high": high, "n": n}

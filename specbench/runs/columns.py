"""The columns that tables share, and how a column is declared: one field of a model.

A field's type, unit, meaning and the reason for blanks are all that is said of a column. Nothing
here imports pandas, which keeps the command line fast.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

#: Why a sample was decoded again for its times only (column ``timing``): as the baseline of cells
#: that were added to the run later, or to measure timing noise (an A/A test).
TIMED = TIMED_BASELINE, TIMED_AGAIN = "baseline", "a-a"

#: A sample's terms of corpus BLEU: ten integers, in tables separated by spaces.
BLEU_TERMS = "bleu_terms"
SAME_PROMPT = "same_prompt_as"  # column of samples whose prompt an earlier example has
THOUGHT_TOKENS = "thought_tokens"  # column of samples

# Why values are blank.
OTHER_METHODS = "other methods"
UNRECORDED = "not recorded"
UNDRAFTED = "nothing is drafted"
UNTOLD = "a server does not tell"
NO_SERVER = "not a server; not recorded"
NO_BENCHMARK = "not a benchmark"
UNMARKED = "no marks"
FEW_PROMPTS = "fewer than ten prompts"


DraftLength = Annotated[int, Field(ge=0, le=2**16)]


class TableRow(BaseModel):
    """A row of a table; its fields are the columns, in the order on disk.

    Types are strict, and numbers finite. Further fields are kept: metrics of the user's own, and
    columns of earlier versions.
    """

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


def column(
    unit: str, meaning: str, blank: str = "", heading: str = "", optional: bool = False
) -> Any:
    """Declare a field as a column.

    Args:
        unit: Of its values; empty for names and pure numbers.
        meaning: What the value is.
        blank: When a value is blank; empty if none can be.
        heading: Tables show the mean over all texts under it, in which a blank counts as 0.
        optional: Whether a table has the column only if one of its rows has a value.
    """
    extra: Any = {"unit": unit, "blank": blank, "heading": heading, "optional": optional}
    default: dict[str, Any] = {"default": None} if blank else {}
    return Field(**default, description=meaning, json_schema_extra=extra)


def measured(unit: str, meaning: str, blank: str, heading: str = "") -> Any:
    """Declare a column that a table has only if one of its rows has a value."""
    return column(unit, meaning, blank, heading, optional=True)


class CellColumns(TableRow):
    """The columns that define a cell: its samples differ only in prompt, seed and repeat."""

    run_id: str = column(
        "", "name of the run: that of its folder when it was created; shards of a run share one"
    )
    pair: str = column("", "name of the pair of target and draft")
    task: str = column("", "name of the task")
    method: str = column("", "verification method, as named by `specbench list methods`")
    weight: float | None = column(
        "fraction",
        "w of `static` and `gated`: weight on the target in w p + (1 - w) q",
        OTHER_METHODS,
    )
    lenience: float | None = column(
        "", "l of `lossy`: accept with probability min(1, p / (l q))", OTHER_METHODS
    )
    rule: str | None = column("", "deferral rule of `speccascade`", OTHER_METHODS)
    alpha: float | None = column("", "threshold alpha of `speccascade`", OTHER_METHODS)
    budget: float | None = column(
        "nats", "D of `mentored`: largest KL divergence from p per token", OTHER_METHODS
    )
    epsilon: float | None = column(
        "", "epsilon of `typical`: upper limit of its threshold", OTHER_METHODS
    )
    delta: float | None = column(
        "", "delta of `typical`: threshold in units of exp(-entropy)", OTHER_METHODS
    )
    divergence: float | None = column(
        "", "d of `cactus`: raise p by sqrt(2 d p (1 - p))", OTHER_METHODS
    )
    target_temperature: float | None = column(
        "",
        "`sharpened`: temperature of the target alone, applied after the run's temperature",
        OTHER_METHODS,
    )
    target_min_p: float | None = column(
        "fraction",
        "`sharpened`: drop target tokens with less than this fraction of max p",
        OTHER_METHODS,
    )
    gate: float | None = column(
        "",
        "gate of `gated` and `gated-diversed`: the plausible set is p >= gate max p",
        OTHER_METHODS,
    )
    cost: float | None = column(
        "", "cost of `sd-adaptive`: time of a draft step / time of a target pass", OTHER_METHODS
    )
    head: str | None = column(
        "", "head of `diversed` and `gated-diversed`: name or folder", OTHER_METHODS
    )
    settings: str | None = column(
        "",
        "the method's other parameters, as name=value, separated by spaces",
        "methods without any",
    )
    temperature: float = column("", "sampling temperature; 0 is greedy")
    draft_length: DraftLength = column(
        "tokens",
        "draft length N: tokens drafted per round; 0 without a draft, or if a server does not tell",
    )
    drafter: str | None = column(
        "",
        "what proposes the drafts, see `specbench docs drafters`",
        "nothing is drafted; not recorded",
    )
    engine: str = column(
        "", "engine: eager, graph, compile or llamacpp; with servers among the arms, also `servers`"
    )
    batch_size: int = column("texts", "largest number of texts decoded together")
    session: int = column(
        "",
        "0 for the first cells of a run, 1 for those added to it next ...: cells of one session"
        " were interleaved, and only their times can be compared",
    )


class SampleColumns(CellColumns):
    """The columns that identify a sample."""

    seed: int = column("", "seed of the run; determines its examples and all random draws")
    repeat: int = column("", "index of the repeat, from 0")
    sample_id: str = column(
        "", "id of the example; equal in all cells, so comparisons of methods are paired"
    )
    category: str | None = column(
        "", "group of the example, such as a domain", "tasks without categories"
    )
    turn: int | None = column(
        "", "turn of a conversation, from 1; the turns share a sample_id", "examples without turns"
    )

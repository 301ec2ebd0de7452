"""The columns that tables share, and how a column is declared: one field of a model.

A field's type, unit, meaning and the reason for blanks are all that is said of a column. Nothing
here imports pandas, which keeps the command line fast.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from specbench.methods.registry import METHODS

#: Why a sample was decoded again for its times only (column ``timing``): as the baseline of cells
#: that were added to the run later, or to measure timing noise (an A/A test).
TIMED = TIMED_BASELINE, TIMED_AGAIN = "baseline", "a-a"

#: A sample's terms of corpus BLEU: ten integers, in tables separated by spaces.
BLEU_TERMS = "bleu_terms"
SAME_PROMPT = "same_prompt_as"  # column of samples whose prompt an earlier example has

#: What a server's answer has for its reader: a text to score, or only something else.
TEXT, THOUGHTS, CALLS, NOTHING = "text", "thoughts", "calls", "nothing"

# Why values are blank.
UNRECORDED = "not recorded"
UNDRAFTED = "nothing is drafted"
UNTOLD = "a server does not tell"
NO_SERVER = "not a server; not recorded"
NO_BENCHMARK = "not a benchmark"
UNMARKED = "no marks"
FEW_PROMPTS = "fewer than ten prompts"


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


def parameter(name: str) -> Any:
    """Declare the column of a parameter, which its methods explain; a head is given by its name."""
    methods = [f"`{m.name}`" for m in METHODS.values() if name in {p.name for p in m.parameters}]
    meaning = f"parameter of {' and '.join(methods)}, see `specbench list methods`"
    return column("", meaning, "other methods")


EXPECTED_ACCEPTANCE = column(
    "fraction",
    "mean acceptance probability over the positions judged, computed before the draw",
    UNDRAFTED,
)
MEAN_WEIGHT = column(
    "fraction", "mean weight on the target over the positions judged", "rules without a weight"
)
RUN_ID = column(
    "", "name of the run: that of its folder when it was created; shards of a run share one"
)


class CellColumns(TableRow):
    """The columns that define a cell: its samples differ only in prompt, seed and repeat."""

    run_id: str = RUN_ID
    pair: str = column("", "name of the pair of target and draft")
    task: str = column("", "name of the task")
    method: str = column("", "verification method, as named by `specbench list methods`")
    weight: float | None = parameter("weight")
    lenience: float | None = parameter("lenience")
    rule: str | None = parameter("rule")
    alpha: float | None = parameter("alpha")
    budget: float | None = parameter("budget")
    epsilon: float | None = parameter("epsilon")
    delta: float | None = parameter("delta")
    divergence: float | None = parameter("divergence")
    target_temperature: float | None = parameter("target_temperature")
    target_min_p: float | None = parameter("target_min_p")
    gate: float | None = parameter("gate")
    cost: float | None = parameter("cost")
    head: str | None = parameter("head")
    settings: str | None = column(
        "",
        "the method's other parameters, as name=value, separated by spaces",
        "methods without any",
    )
    temperature: float = column("", "sampling temperature; 0 is greedy")
    draft_length: Annotated[int, Field(ge=0, le=2**16)] = column(
        "tokens",
        "draft length N: tokens drafted per round; 0 without a draft, or if a server does not tell",
    )
    drafter: str | None = column(
        "",
        "what proposes the drafts, see `specbench list drafters`",
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

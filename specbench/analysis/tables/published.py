"""Comparison with the numbers published in the paper.

``paper_results.csv`` contains the tables of arXiv 2604.07622: ``table1`` is the main table,
``finetuned_draft`` the comparison with drafts fine-tuned on a task, and ``transfer`` the evaluation
of heads on tasks that they were not trained for.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specbench.analysis.statistics.estimates import QUALITY
from specbench.analysis.statistics.summary import ACCEPTANCE
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.runs.labels import UNTRAINED

REFERENCE = "arXiv 2604.07622"

_FILE = Path(__file__).with_name("paper_results.csv")
_KEY = ["pair", "trained_on", "task", "method", "temperature", "draft_length"]
# The paper scores the first 32 words of a text on XSum; its other metrics have our names.
_METRICS = {("xsum", "rouge2"): "rouge2-32"}


def published() -> pd.DataFrame:
    """Return the published numbers, one row per method, pair, task and setting.

    ``trained_on`` is the training task of the head or draft; ``metric`` is our name for
    ``quality_metric``.
    """
    table = pd.read_csv(_FILE)
    pairs = zip(table["task"], table["quality_metric"], strict=True)
    return table.assign(metric=[_METRICS.get(pair, pair[1]) for pair in pairs])


def beside_published(table: pd.DataFrame) -> pd.DataFrame:
    """Add the paper's numbers to a main table, matched by pair, task, method and setting.

    The paper does not state its weight, lenience or deferral rule, so all settings of a method are
    compared with one number. A head or fine-tuned draft is compared with that of the same training
    task. Quality is compared only if both use the same metric.

    Returns:
        The table with ``published``, ``difference`` (own minus published), ``source`` (blank if the
        paper has no such cell) and ``published_metric`` (of its quality).
    """
    paper = published()
    paper["draft_length"] = _comparable_length(paper)
    values = [*_KEY, "source", "acceptance_rate_pct", "metric", "quality"]
    tasks = frozenset(paper["task"])  # the table's rows in the paper's names
    cells = zip(*(table[name] for name in ("pair", "task", "method", "head")), strict=True)
    named = [_named(pair, task, method, head, tasks) for pair, task, method, head in cells]
    columns = ["pair", "task", "method", "trained_on"]
    rows = pd.DataFrame(named, columns=columns, index=table.index, dtype="str")
    rows = rows.assign(temperature=table["temperature"], draft_length=_comparable_length(table))
    compared = rows[_KEY].merge(paper[values], on=_KEY, how="left", validate="many_to_one")
    compared.index = table.index
    same = (table["figure"] == QUALITY) & (table["metric"] == compared["metric"])
    rate = compared["acceptance_rate_pct"].where(table["figure"] == ACCEPTANCE)
    number = rate.fillna(compared["quality"].where(same))
    return table.assign(
        published=number,
        difference=table["value"] - number,
        source=compared["source"],
        published_metric=compared["metric"],
    )


def remarks(section: pd.DataFrame) -> list[str]:
    """Return a sentence for each part of a section that could not be compared."""
    rows = section[section["source"].notna()]
    if rows.empty:
        paper = published()
        pairs, tasks = ", ".join(paper["pair"].unique()), ", ".join(paper["task"].unique())
        temperatures = ", ".join(f"{value:g}" for value in sorted(paper["temperature"].unique()))
        lengths = ", ".join(f"{value:g}" for value in sorted(paper["draft_length"].unique()))
        return [
            f"The paper has no numbers for this setting: its pairs are {pairs}, its tasks {tasks}, "
            f"T = {temperatures}, N = {lengths}."
        ]
    missing = [task for task in section["task"].unique() if task not in set(rows["task"])]
    notes = [f"The paper has no numbers here for {', '.join(missing)}."] if missing else []
    other = rows[(rows["figure"] == QUALITY) & (rows["metric"] != rows["published_metric"])]
    other = other[other["value"].notna()].drop_duplicates(["task", "metric"])
    metrics = other[["task", "metric", "published_metric"]].itertuples(index=False)
    return notes + [
        f"Quality on {task} is not compared: {metric} here, {paper} in the paper."
        for task, metric, paper in metrics
    ]


def _named(
    pair: str, task: str, method: str, head: object, tasks: frozenset[str]
) -> tuple[str, str, str, str]:
    """Return pair, task, method and training task of a row in the paper's names."""
    base, _, draft = pair.partition("+")  # as `run --draft` names a pair with another draft
    if method == AUTOREGRESSIVE:
        return base, task, method, task  # the draft does not matter
    if draft and method == "sd":
        # A fine-tuned draft's folder is named after its task.
        return base, task, "sd-finetuned-draft", draft
    # An untrained head has no training task; that of others is a folder's name.
    folders = reversed(Path(head).parts) if isinstance(head, str) else ()
    trained_on = next((folder for folder in folders if folder in tasks), task)
    return pair, task, method, "" if head == UNTRAINED else trained_on


def _comparable_length(table: pd.DataFrame) -> pd.Series:
    """Return the draft length; 0 if nothing is drafted."""
    return table["draft_length"].mask(table["method"] == AUTOREGRESSIVE, 0)

"""Sentences on greedy texts beside those without speculation, as measured at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

import pandas as pd

from specbench.runs.run import Run
from specbench.runs.table import number


def greedy_texts(_: pd.DataFrame, run: Run) -> Iterator[str]:
    """Say how many greedy texts equal those without speculation, and why others do not."""
    same: dict[tuple[str, str, int], list[str]] = {}
    for cell in run.environment.get("greedy_texts", ()):
        if cell["equal"] == cell["texts"]:
            same.setdefault((cell["task"], cell["alone"], cell["texts"]), []).append(cell["method"])
        else:
            yield _sentence(cell)
    for (task, alone, texts), methods in same.items():
        yield (
            f"{task}: greedy texts of {', '.join(methods)} equal those of {alone} on all {texts} "
            "prompts"
        )


def _sentence(cell: dict[str, Any]) -> str:
    sentence = (
        f"{cell['task']}: greedy texts of {cell['method']} equal those of {cell['alone']} on "
        f"{cell['equal']} of {cell['texts']} prompts"
    )
    if not cell["margins"]:
        return sentence
    forks, beyond = cell["forks"], cell["beyond"]
    sentence += (
        "; where they first differ, the two likeliest tokens are "
        f"{number(median(cell['margins']), '.2g')} apart (median), "
    )
    if not beyond:
        return f"{sentence}which rounding {'explains' if cell['lossless'] else 'could explain'}"
    more = f"{beyond} of {forks} first differences are more than rounding explains"
    if cell["lossless"]:
        return f"{sentence}but {more}: find the fault with `specbench check`"
    return f"{sentence}and {more}, since {cell['method']} may change greedy texts"

"""Results whose tables are made up, and figures drawn from them."""

from collections.abc import Callable
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from specbench.analysis.frames import SAMPLES, typed
from specbench.analysis.summary import summarise
from specbench.errors import UsageError
from specbench.figures.style import Drawing
from specbench.results import ROUNDS, Results

CELL = {"run_id": "run-mini", "pair": "mini", "task": "mini-math", "temperature": 1.0}
SETTING = {"engine": "eager", "batch_size": 1, "seed": 0, "repeat": 0}


class Made(Results):
    """Results of the tables given; another one is missing as it is in a folder without it."""

    def __init__(self, **tables: pd.DataFrame) -> None:
        super().__init__([])
        self.__dict__.update(tables)

    @property
    def samples(self) -> pd.DataFrame:
        raise UsageError("there are no samples")


def from_summary(draw: Callable[..., Drawing]) -> Callable[..., Figure]:
    """A figure's function as one from a summary to the figure alone."""
    return lambda summary, *arguments, **named: (
        draw(Made(summary=summary), *arguments, **named).figure
    )


def from_samples(samples: pd.DataFrame) -> Results:
    """Results of samples, with their summary."""
    found = Results([])
    found.__dict__.update(samples=samples, summary=summarise(samples))
    return found


def sample(method: str, number: int, **changes: Any) -> dict[str, Any]:
    """One sample of 100 tokens in 40 rounds, 60 of 200 drafts accepted, 8 ms a round."""
    drafted = method != "autoregressive"
    rounds = 40 if drafted else 100
    return {
        **CELL,
        **SETTING,
        "method": method,
        "draft_length": 5 if drafted else 0,
        "sample_id": f"test-{number}",
        "quality_metric": "accuracy",
        "quality": 1.0,
        "prompt_tokens": 10,
        "output_tokens": 100,
        "rounds": rounds,
        "proposed": 200 if drafted else 0,
        "accepted": 60.0 if drafted else None,
        "draft_acceptance_rate": 0.3 if drafted else None,
        "acceptance_length": 2.5 if drafted else None,
        "prefill_seconds": 0.02,
        "decode_seconds": 0.008 * rounds,
        "draft_seconds": (0.003 if drafted else 0.0) * rounds,
        "verify_seconds": 0.002 * rounds,
        "accept_seconds": 0.001 * rounds,
        "latency_seconds": 0.02 + 0.008 * rounds,
        "tokens_per_second": 100 / (0.02 + 0.008 * rounds),
        "stopped_by": "eos",
        **changes,
    }


def samples_of(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Samples as they are read."""
    return typed(pd.DataFrame(rows).reindex(columns=list(SAMPLES)), SAMPLES, "the test")


def rounds_of(accepted: dict[str, list[list[int]]], **changes: Any) -> Results:
    """Results of rounds only.

    Args:
        accepted: For each method the drafts accepted in each round of each of its samples.
        **changes: Columns that are otherwise than usual.
    """
    rows = [
        {
            **CELL,
            **SETTING,
            "method": method,
            "draft_length": 0 if method == "autoregressive" else 3,
            "sample_id": f"test-{number}",
            "round": round_,
            "proposed": 3,
            "accepted": count,
            "emitted": count + 1,
            **changes,
        }
        for method, samples in accepted.items()
        for number, sample in enumerate(samples)
        for round_, count in enumerate(sample)
    ]
    frame = pd.DataFrame(rows).reindex(columns=list(ROUNDS))
    return Made(rounds=typed(frame, ROUNDS, "the test", may_be_blank=set(ROUNDS)))

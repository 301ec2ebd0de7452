"""Synthetic results with known figures: no noise, round numbers."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.container import ErrorbarContainer

from specbench.analysis.figures import style
from specbench.analysis.results import ROUNDS, Results
from specbench.analysis.statistics.summary import summarise
from specbench.runs.frames import SUMMARY, typed

from ...synthetic import IDENTITY, SAMPLE

METHODS = ("autoregressive", "sd", "lossy", "speccascade", "static", "diversed")
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)


PARAMETERS: dict[str, dict[str, Any]] = {
    **{"lossy": {"lenience": 0.5}, "speccascade": {"rule": "token-v3", "alpha": 0.5}}
}


def _figures_of(
    method: str, weight: float | None, length: int, head: int
) -> dict[str, float | None]:
    """Quality, acceptance and time: static ones fall in w, diversed breaks the trade-off.

    Each of several heads accepts slightly more than the one before, at the cost of quality.
    """
    strictness = {"sd": 1.0, "autoregressive": 1.0, "lossy": 0.6, "speccascade": 0.45}
    strict = strictness.get(method, 0.3 - 0.1 * head) if weight is None else weight
    acceptance = 1 - strict * (0.3 + 0.02 * length)
    seconds = 0.2 if method == "autoregressive" else 0.2 - 0.15 * acceptance
    return {
        "quality": 0.75 - 0.05 * head if method == "diversed" else 0.3 + 0.5 * strict,
        "draft_acceptance_rate": None if method == "autoregressive" else acceptance,
        **{"seconds_per_sample": seconds, "speedup": 0.2 / seconds, "prefill_seconds": 0.05},
        "round_seconds": 0.009 if method == "diversed" else 0.008,
        "draft_seconds": 0.0 if method == "autoregressive" else 0.003,
        **{"verify_seconds": 0.002, "accept_seconds": 0.001},
    }


def summary_of(
    pairs: tuple[str, ...] = ("mini",),
    tasks: tuple[str, ...] = ("mini-math", "mini-news"),
    lengths: tuple[int, ...] = (5,),
    methods: tuple[str, ...] = METHODS,
    half_width: float | None = 0.02,
    heads: tuple[str, ...] = ("bundled",),
    settings: tuple[tuple[str, int], ...] = (("eager", 1),),
) -> pd.DataFrame:
    rows = []
    for setting, pair, task, method in product(settings, pairs, tasks, methods):
        unit = "rouge2" if "news" in task else "accuracy"
        weights = WEIGHTS if method == "static" else (None,)
        names = heads if method == "diversed" else (None,)
        for length in (0,) if method == "autoregressive" else lengths:
            for weight, (place, head) in product(weights, enumerate(names)):
                for metric, value in _figures_of(method, weight, length, place).items():
                    bounds = {"ci_low": None, "ci_high": None}
                    if value is not None and half_width is not None:
                        bounds = {"ci_low": value - half_width, "ci_high": value + half_width}
                    cell = {
                        **{**IDENTITY, **PARAMETERS.get(method, {})},
                        **{"engine": setting[0], "batch_size": setting[1], "run_id": f"run-{pair}"},
                        **{"pair": pair, "task": task, "method": method, "weight": weight},
                        **{"head": head, "draft_length": length},
                        "drafter": "model" if length else None,
                        "unit": unit if metric == "quality" else "fraction",
                    }
                    rows.append(cell | {"metric": metric, "value": value, "n": 100, **bounds})
    return typed(pd.DataFrame(rows, columns=list(SUMMARY)), SUMMARY, "the test")


def made(**settings: Any) -> Results:
    """Results from a summary without samples, see ``summary_of``."""
    return Results.of(summary=summary_of(**settings))


def from_samples(samples: pd.DataFrame) -> Results:
    """Results from samples, with their summary."""
    return Results.of(samples=samples, summary=summarise(samples))


ALONE = {"draft_length": 0, "drafter": None}


def sample(method: str, number: int, **changes: Any) -> dict[str, Any]:
    """One sample of 100 tokens in 40 rounds, with 60 of 200 drafts accepted, 8 ms per round."""
    drafted = method != "autoregressive"
    rounds = 40 if drafted else 100
    return {
        **SAMPLE,
        **{"run_id": "run-mini", "method": method, "sample_id": f"test-{number}"},
        **({"draft_length": 5, "drafter": "model"} if drafted else ALONE),
        **{"output_tokens": 100, "rounds": rounds, "proposed": 200 if drafted else 0},
        "accepted": 60.0 if drafted else None,
        "draft_acceptance_rate": 0.3 if drafted else None,
        "acceptance_length": 2.5 if drafted else None,
        **dict.fromkeys(("judged", "expected_acceptance", "repetition")),
        **{"prefill_seconds": 0.02, "decode_seconds": 0.008 * rounds},
        "draft_seconds": (0.003 if drafted else 0.0) * rounds,
        **{"verify_seconds": 0.002 * rounds, "accept_seconds": 0.001 * rounds},
        "latency_seconds": 0.02 + 0.008 * rounds,
        "tokens_per_second": 100 / (0.02 + 0.008 * rounds),
        **changes,
    }


def rounds_of(accepted: dict[str, list[list[int]]], **changes: Any) -> Results:
    """Results of rounds only.

    Args:
        accepted: Accepted drafts by method, sample and round.
        **changes: Columns that differ from the default.
    """
    rows = [
        {
            **{**IDENTITY, "run_id": "run-mini", "method": method, "sample_id": f"test-{number}"},
            **(ALONE if method == "autoregressive" else {"draft_length": 3, "drafter": "model"}),
            **{"round": round_, "proposed": 3, "accepted": count, "emitted": count + 1},
            **changes,
        }
        for method, samples in accepted.items()
        for number, sample in enumerate(samples)
        for round_, count in enumerate(sample)
    ]
    frame = pd.DataFrame(rows).reindex(columns=list(ROUNDS))
    return Results.of(rounds=typed(frame, ROUNDS, "the test", may_be_blank=set(ROUNDS)))


def training_of(folder: Path, steps: int = 40, **changes: Any) -> Path:
    """The folder of a head whose training curves are straight lines."""
    folder.mkdir(parents=True)
    step = np.arange(1, steps + 1)
    table = {
        "step": step,
        "reward": 0.5 + 0.01 * step,
        "acceptance": 0.8 + 0.001 * step,
        "weight": 0.9 - 0.01 * step,
        "disagreement": np.full(steps, 0.3),
        "held_out_quality": np.where(step % 5, np.nan, 0.6),
        "held_out_acceptance": np.where(step % 5, np.nan, 0.8),
        "held_out_weight": np.where(step % 5, np.nan, 0.7),
        "held_out_distance": np.where(step % 5, np.nan, 0.002 * step),
    }
    pd.DataFrame(table | changes).to_csv(folder / "training.csv", index=False)
    return folder


def titles(drawing: style.Drawing) -> list[str]:
    return [axes.get_title() for axes in drawing.figure.axes]


def drawn_points(axes: Any) -> np.ndarray:
    """All markers of a panel, [n, (x, y)]."""
    bars = (each for each in axes.containers if isinstance(each, ErrorbarContainer))
    return np.vstack([bar.lines[0].get_xydata() for bar in bars])

"""Summaries of a made-up run whose figures can be told in advance: no noise, round numbers."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pandas as pd
import pytest

from specbench.analysis.frames import SUMMARY, typed

Summary = Callable[..., pd.DataFrame]
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)


def _cell(
    method: str,
    weight: float | None,
    head: str | None,
    length: int,
    pair: str,
    task: str,
    engine: str,
    batch_size: int,
) -> dict[str, Any]:
    return {
        "engine": engine,
        "batch_size": batch_size,
        "run_id": f"run-{pair}",
        "pair": pair,
        "task": task,
        "method": method,
        "weight": weight,
        "lenience": 0.5 if method == "lossy" else None,
        "rule": "token-v3" if method == "speccascade" else None,
        "alpha": 0.5 if method == "speccascade" else None,
        "head": head,
        "temperature": 1.0,
        "draft_length": length,
    }


def _figures_of(
    method: str, weight: float | None, length: int, head: int
) -> dict[str, float | None]:
    """Quality, acceptance and time: static ones fall in w, diversed breaks the trade-off.

    Of several heads each accepts a little more than the one before, and loses quality for it.
    """
    strictness = {"sd": 1.0, "autoregressive": 1.0, "lossy": 0.6, "speccascade": 0.45}
    strict = strictness.get(method, 0.3 - 0.1 * head) if weight is None else weight
    acceptance = 1 - strict * (0.3 + 0.02 * length)
    seconds = 0.2 if method == "autoregressive" else 0.2 - 0.15 * acceptance
    return {
        "quality": 0.75 - 0.05 * head if method == "diversed" else 0.3 + 0.5 * strict,
        "draft_acceptance_rate": None if method == "autoregressive" else acceptance,
        "seconds_per_sample": seconds,
        "speedup": 0.2 / seconds,
        "prefill_seconds": 0.05,
        "round_seconds": 0.009 if method == "diversed" else 0.008,
        "draft_seconds": 0.0 if method == "autoregressive" else 0.003,
        "verify_seconds": 0.002,
        "accept_seconds": 0.001,
    }


def _summary(
    pairs: tuple[str, ...] = ("mini",),
    tasks: tuple[str, ...] = ("mini-math", "mini-news"),
    lengths: tuple[int, ...] = (5,),
    methods: tuple[str, ...] = (
        "autoregressive",
        "sd",
        "lossy",
        "speccascade",
        "static",
        "diversed",
    ),
    half_width: float | None = 0.02,
    heads: tuple[str, ...] = ("bundled",),
    settings: tuple[tuple[str, int], ...] = (("eager", 1),),
) -> pd.DataFrame:
    rows = []
    for setting, pair, task, method in product(settings, pairs, tasks, methods):
        unit = "rouge2" if "news" in task else "accuracy"
        weights = WEIGHTS if method == "static" else (None,)
        own = heads if method == "diversed" else (None,)
        for length in (0,) if method == "autoregressive" else lengths:
            for weight, (place, head) in product(weights, enumerate(own)):
                for metric, value in _figures_of(method, weight, length, place).items():
                    bounds = {"ci_low": None, "ci_high": None}
                    if value is not None and half_width is not None:
                        bounds = {"ci_low": value - half_width, "ci_high": value + half_width}
                    found = {"metric": metric, "value": value, "n": 100, **bounds}
                    found["unit"] = unit if metric == "quality" else "fraction"
                    cell = _cell(method, weight, head, length, pair, task, *setting)
                    rows.append(cell | found)
    return typed(pd.DataFrame(rows, columns=list(SUMMARY)), SUMMARY, "the test")


@pytest.fixture(scope="session")
def summary() -> Summary:
    """Make a summary of the given pairs, tasks, draft lengths, methods, heads and settings.

    A setting is an engine and a batch size.
    """
    return _summary

"""Synthetic samples: tables by hand, and a plausible run of all methods with a weight sweep."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from .. import synthetic

WEIGHTS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
Make = Callable[..., pd.DataFrame]
Row = dict[str, Any]


PARAMETERS: dict[str, Row] = {
    **{"lossy": {"lenience": 0.5}, "speccascade": {"rule": "token-v3", "alpha": 0.5}},
    "diversed": {"head": "bundled"},
}
RATES = ("draft_acceptance_rate", "acceptance_length", "expected_acceptance")


def _plausible_sample(rng: np.random.Generator, method: str, weight: float, bias: float) -> Row:
    tokens = int(rng.integers(20, 60))
    acceptance = 1 - 0.4 * weight
    drafts = method != "autoregressive"
    rounds = int(np.ceil(tokens / (1 + 5 * acceptance))) if drafts else tokens
    proposed = 5 * rounds if drafts else 0
    accepted = int(rng.binomial(proposed, acceptance))
    rates = (accepted / proposed, tokens / rounds, acceptance) if drafts else (None, None, None)
    return {
        **{"method": method, **PARAMETERS.get(method, {}), "draft_length": 5 if drafts else 0},
        "weight": weight if method == "static" else None,
        "mean_weight": weight if method in ("static", "diversed") else None,
        **{"quality": float(rng.random() < 0.9 - 0.6 * bias), "output_tokens": tokens},
        **{"rounds": rounds, "proposed": proposed, "accepted": accepted, "judged": proposed},
        **dict(zip(RATES, rates, strict=True)),
        **{"prefill_seconds": 0.004, "decode_seconds": 0.003 * rounds + 0.0005 * proposed},
    }


@pytest.fixture(scope="session")
def make() -> Make:
    """Samples by hand: each row is a dict of the differences from an ordinary ``sd`` sample."""
    return synthetic.samples


@pytest.fixture(scope="session")
def samples() -> pd.DataFrame:
    """All methods and a sweep on 40 prompts of two tasks; ``diversed`` is above the front."""
    rng = np.random.default_rng(1)
    # name, weight on the target, fraction of the draft's errors accepted
    methods: Sequence[tuple[str, float, float]] = (
        ("autoregressive", 1.0, 0.0),
        ("sd", 1.0, 0.0),
        ("lossy", 0.6, 0.4),
        ("speccascade", 0.5, 0.5),
        *(("static", weight, 1 - weight) for weight in WEIGHTS),
        ("diversed", 0.3, 0.1),
    )
    return synthetic.samples(
        *(
            {"task": task, "sample_id": f"{task}-{index}"}
            | _plausible_sample(rng, method, weight, bias)
            for task in ("mini-math", "mini-code")
            for method, weight, bias in methods
            for index in range(40)
        )
    )


@pytest.fixture
def planted(make):
    """Return a function that makes a run of sd, three static weights and ``typical``.

    The time and the accuracy of ``typical`` are planted; ``sd`` takes about 1 s and is right in
    8 of 10 cases.
    """

    def run(*, n=200, times=1.0, better=0.0, front=(0.2, 0.4, 0.5), seed=0, **shared):
        rng = np.random.default_rng(seed)
        common = rng.random(n)  # prompts are easy or hard for all methods

        def cell(method, quality, accepted, seconds, **values):
            flips = np.where(rng.random(n) < 0.05, rng.random(n), common)
            return [
                {
                    **{"method": method, "sample_id": f"p{i:03}"},
                    **{"quality": float(flips[i] < quality), "accepted": accepted},
                    **{"prefill_seconds": 0.0, "decode_seconds": seconds * rng.uniform(0.8, 1.2)},
                    **values,
                }
                for i in range(n)
            ]

        rows = cell("sd", 0.8, 10, 1.0)
        for weight, quality in zip((0.0, 0.5, 0.9), front, strict=True):
            rows += cell("static", quality, 25 - 10 * weight, 0.7, weight=weight)
        rows += cell("typical", 0.8 + better, 18, 1 / times, epsilon=0.1, delta=0.3)
        return make(*rows, **shared)

    return run


def with_alone(samples: pd.DataFrame, seconds: float, **changes: Any) -> pd.DataFrame:
    """Add times without speculation, as multiples of the times of ``sd``."""
    sd = samples[samples["method"] == "sd"]
    times = seconds * sd["decode_seconds"]
    alone = {"method": "autoregressive", "draft_length": 0, "accepted": None, "proposed": 0}
    return pd.concat([samples, sd.assign(**alone, decode_seconds=times, **changes)])


def timed_again(samples: pd.DataFrame, timing: str, seconds: float, **changes: Any) -> pd.DataFrame:
    """Return ``sd``, decoded again in multiples of its times."""
    again = samples[samples["method"] == "sd"]
    times = seconds * again["decode_seconds"]
    return again.assign(decode_seconds=times, timing=timing, **changes)

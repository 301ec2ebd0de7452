"""What was priced, in the files of other tools.

The forms were read in the sources and proposals of vLLM, NVIDIA's simulator, InferenceX and
llama.cpp.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from specbench.files import write_atomically
from specbench.price.costs import COSTS, Costs
from specbench.price.decide import Decision
from specbench.price.rounds import PricedRounds
from specbench.servers.flags import vllm_flags

PROFILE = "speculation_profile.json"
GOLDEN = "golden_acceptance.yaml"
SCHEDULE = "vllm_speculative_config.json"
BATCH_COSTS = "llamacpp_batch_costs.txt"
DECISION = "decision.csv"


def write_all(
    folder: Path,
    decision: Decision,
    priced: Sequence[PricedRounds],
    target: str,
    draft: str,
    *,
    is_measured: bool = True,
) -> list[Path]:
    """Write the tables and the files for other tools; return their paths.

    Without a batch size at which drafting pays there is no schedule, and without N = 1 no profile,
    which begins with it. Rates that the user gives are not measured: they have neither profile nor
    golden acceptance.

    Raises:
        SpecbenchError: A file cannot be written.
    """
    best = (decision.first_that_pays() or decision.fastest(decision.batches[0])).drafter
    rounds = next(rounds for rounds in priced if rounds.drafter == best)
    schedule = decision.schedule(best)
    texts = {
        DECISION: decision.table().to_csv(index=False, float_format="%.6g"),
        COSTS: decision.costs.table().to_csv(index=False, float_format="%.6g"),
        BATCH_COSTS: batch_costs(decision.costs) + "\n",
    }
    if any(length for *_, length in schedule):
        texts[SCHEDULE] = vllm_flags(best, schedule, draft)[-1] + "\n"
    if is_measured:
        texts[GOLDEN] = golden(rounds, target, draft)
    if is_measured and rounds.lengths[0] == 1:
        texts[PROFILE] = json.dumps(profile(rounds), indent=2) + "\n"
    for name in (SCHEDULE, PROFILE, GOLDEN):
        (folder / name).unlink(missing_ok=True)  # of another decision
    for name, text in texts.items():
        write_atomically(folder / name, text)
    return [folder / name for name in texts]


def profile(rounds: PricedRounds) -> dict[str, Any]:
    """Return a profile of acceptance in the form of NVIDIA's ``speculation_profile.json``.

    The marginal rate at position k is what the k-th draft adds to the tokens of a round, so that
    their sum and 1 is the accepted length. With another N rounds begin elsewhere, so it may differ
    a little from the rate of that position at the largest N, and is cut to that of the position
    before. Missing N end the profile.
    """
    lengths = [n for i, n in enumerate(rounds.lengths) if n == i + 1]
    means = [1.0, *(interval.value for interval in rounds.tokens_per_round[: len(lengths)])]
    added = (upper - lower for lower, upper in pairwise(means))
    marginal = [*accumulate(added, min)]
    above = [1.0, *marginal]
    conditional = [m / a if a > 0 else 0.0 for m, a in zip(marginal, above, strict=False)]
    return {
        "schema_version": "1.0",
        "measured": True,
        "method": rounds.drafter,
        "num_speculative_tokens": len(lengths),
        "conditional_accept_rates": [round(rate, 4) for rate in conditional],
        "marginal_accept_rates": [round(rate, 4) for rate in marginal],
        "mean_accept_length": round(means[-1], 4),
        "accept_length_model": "measured_per_k",
        "measurement_conditions": {"num_samples": len(rounds.tokens), "source": "specbench price"},
    }


def golden(rounds: PricedRounds, target: str, draft: str) -> str:
    """Return tokens per round by N in the form of InferenceX, with intervals as comments."""
    lines = ["_metadata:", f"  draft-model: {json.dumps(draft)}", f"{json.dumps(target)}:"]
    lines.append("  thinking_off:")
    for length, interval in zip(rounds.lengths, rounds.tokens_per_round, strict=True):
        ends = f"95 % interval {interval.low:.3f} to {interval.high:.3f}, n = {interval.n}"
        lines.append(f"    {length}: {interval.value:.2f}  # {ends}")
    return "\n".join(lines) + "\n"


def batch_costs(costs: Costs) -> str:
    """Return the seconds per token of a pass with 1, 2, ... tokens, relative to one token.

    The target verifies N drafts in a pass of N + 1 tokens; this is for the smallest batch. Between
    measured N, seconds are interpolated linearly.
    """
    drafts = np.arange(costs.lengths[-1] + 1)
    passes = (costs.rounds - costs.drafts).mean(axis=0)[0]
    seconds = np.interp(drafts, costs.lengths, passes) / (drafts + 1)
    return ",".join(f"{value / seconds[0]:.3f}" for value in seconds)

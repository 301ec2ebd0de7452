"""A decision as files: tables, and a schedule for vLLM."""

from __future__ import annotations

from pathlib import Path

from specbench.files import write_atomically
from specbench.pricing.costs import COSTS
from specbench.pricing.decide import Decision
from specbench.serving.flags import vllm_flags

SCHEDULE = "vllm_speculative_config.json"
DECISION = "decision.csv"


def write_all(folder: Path, decision: Decision, draft: str) -> list[Path]:
    """Write the tables, and a schedule if drafting pays at any batch size; return their paths.

    Raises:
        SpecbenchError: A file cannot be written.
    """
    best = (decision.first_that_pays() or decision.fastest(decision.batches[0])).drafter
    schedule = decision.schedule(best)
    texts = {
        DECISION: decision.table().to_csv(index=False, float_format="%.6g"),
        COSTS: decision.costs.table().to_csv(index=False, float_format="%.6g"),
    }
    flags = vllm_flags(best, schedule, draft) if any(length for *_, length in schedule) else None
    if flags:
        texts[SCHEDULE] = flags[-1] + "\n"
    (folder / SCHEDULE).unlink(missing_ok=True)  # of another decision
    for name, text in texts.items():
        write_atomically(folder / name, text)
    return [folder / name for name in texts]

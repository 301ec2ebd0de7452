"""The tables of a made-up run with 30 prompts per method."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from specbench.analysis.frames import SAMPLES, typed
from specbench.analysis.summary import summarise

# Method, weight, draft length, quality, accepted out of 25, seconds.
Point = tuple[str, float | None, int, float, int | None, float]
POINTS: list[Point] = [
    ("autoregressive", None, 0, 0.8, None, 1.6),
    *(("sd", None, n, 0.8, 10, seconds) for n, seconds in ((3, 0.8), (5, 1.0))),
    *(("static", 0.0, n, 0.2, 25, seconds) for n, seconds in ((3, 0.4), (5, 0.5))),
    *(("diversed", None, n, 0.7, 20, seconds) for n, seconds in ((3, 0.6), (5, 0.5))),
]


def write_run(folder: Path, points: Sequence[Point] = POINTS, pair: str = "mini") -> Path:
    """Write ``samples.csv`` and ``summary.csv`` of a run on mini-math."""
    rng = np.random.default_rng(0)
    cell = {"run_id": folder.name, "pair": pair, "task": "mini-math", "temperature": 1.0}
    cell |= {"engine": "eager", "batch_size": 1, "session": 0, "quality_metric": "accuracy"}
    rows = [
        {
            **cell,
            **dict.fromkeys(("seed", "repeat", "prompt_tokens", "rounds"), 1),
            **{"method": method, "weight": weight, "draft_length": length, "sample_id": f"p{i:02}"},
            "drafter": "model" if length else None,
            **{"quality": float(rng.random() < quality), "output_tokens": 20, "stopped_by": "eos"},
            **{"proposed": 25 if length else 0, "accepted": accepted, "prefill_seconds": 0.0},
            "decode_seconds": seconds * rng.uniform(0.9, 1.1),
        }
        for method, weight, length, quality, accepted, seconds in points
        for i in range(30)
    ]
    folder.mkdir(parents=True)
    samples = typed(pd.DataFrame(rows, columns=list(SAMPLES)), SAMPLES, "the test")
    samples.to_csv(folder / "samples.csv", index=False)
    summarise(samples).to_csv(folder / "summary.csv", index=False)
    return folder

"""Small benchmarks for tests."""

from typing import Any

from specbench.bench.plan import Bench, System
from specbench.engine.settings import EAGER, Loading
from specbench.pairs.registry import get_pair

AUTOREGRESSIVE = System(EAGER, "autoregressive")
SD = System(EAGER, "sd", (), 5)


def bench_of(*systems: System, **changes: Any) -> Bench:
    """A benchmark of the bundled pair on a CPU."""
    settings: dict[str, Any] = {
        "pair": get_pair("mini"),
        "loading": Loading("cpu"),
        "systems": systems,
        "batch_sizes": (1,),
        "prompt_tokens": 4,
        "new_tokens": 8,
        "repeats": 2,
        "temperature": 1.0,
        "seed": 0,
    }
    return Bench(**(settings | changes))

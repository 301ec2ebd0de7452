"""Small benchmarks for tests."""

from typing import Any

from specbench.config import EAGER
from specbench.engine.pairs import Loading, get_pair
from specbench.experiment.bench.plan import Bench, BenchSettings, System
from specbench.experiment.cells import Cell


def system_of(
    method: str, n: int, engine: str = EAGER, rate: float | None = None, **parameters: Any
) -> System:
    return System(engine, Cell(method, tuple(parameters.items()), n), rate)


AUTOREGRESSIVE, SD = system_of("autoregressive", 0), system_of("sd", 5)


def bench_of(*systems: System, device: str = "cpu", **changes: Any) -> Bench:
    """A benchmark of the bundled pair on a CPU."""
    settings = {"prompt_tokens": 4, "new_tokens": 8, "repeats": 2}
    loading = Loading(device=device)
    return Bench(get_pair("mini"), loading, BenchSettings(**(settings | changes)), systems)

"""Short times of plain and strict rounds at several batch sizes, for `decide`."""

from __future__ import annotations

import time
from dataclasses import replace

import pandas as pd

from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, PairSpec
from specbench.experiment.bench.decoders import Decoder, specbench_decoders
from specbench.experiment.bench.measure import LoadPair, measure, prepare
from specbench.experiment.bench.plan import Bench, BenchSettings, System, build_bench
from specbench.experiment.cells import method_variants
from specbench.experiment.progress import progress_bar
from specbench.methods.registry import AUTOREGRESSIVE

# New tokens of a batch: at most, at least, and of all its texts.
MOST_TOKENS, LEAST_TOKENS, TOKENS = 48, 12, 96
# At least three repeats, and up to eight while those of all batch sizes take no longer than this.
FEW_REPEATS, REPEATS, SECONDS = 3, 8, 180.0
ACCEPTED = 0.6  # by force, so that rounds take the same time for all pairs


def time_rounds(
    pair: PairSpec, loading: Loading, settings: BenchSettings, load: LoadPair, show_progress: bool
) -> pd.DataFrame:
    """Time rounds of `sd` and of no speculation; return ``repeats``, as `measure` does.

    All batch sizes of the ``settings`` have equally many repeats.

    Raises:
        UsageError: The benchmark cannot run on this machine.
        RunError: The device runs out of memory, or a graph cannot be captured.
    """
    methods, tables = method_variants([AUTOREGRESSIVE, "sd"], {}), []
    for size in settings.batch_size:
        of_size = settings.updated(
            batch_size=[size],
            acceptance=[ACCEPTED],
            new_tokens=max(LEAST_TOKENS, min(MOST_TOKENS, TOKENS // size)),
            repeats=FEW_REPEATS,
            no_transformers=True,
        )
        bench = build_bench(pair, methods, loading, of_size)
        tables.append(_repeats(bench, load, show_progress, SECONDS / len(settings.batch_size)))
    fewest = min(table["repeat"].max() for table in tables)
    return pd.concat([table[table["repeat"] <= fewest] for table in tables], ignore_index=True)


def _repeats(bench: Bench, load: LoadPair, show_progress: bool, seconds: float) -> pd.DataFrame:
    """Time the fewest repeats of one batch size, and others as far as they fit into ``seconds``."""
    bench, pairs = prepare(bench, load)

    def decoders(plan: Bench, system: System, pair: LoadedPair) -> tuple[Decoder, list[Decoder]]:
        return specbench_decoders(plan.settings, system, pair, alike=True)

    def timed(plan: Bench) -> pd.DataFrame:
        with progress_bar(len(plan), show_progress) as report:
            return measure(plan, pairs, report, decoders, same_prompts=True).repeats

    began = time.perf_counter()
    repeats = timed(bench)
    per_repeat = (time.perf_counter() - began) / FEW_REPEATS
    more = min(REPEATS - FEW_REPEATS, int(seconds / per_repeat) - FEW_REPEATS)
    if more > 0:
        changes = {"repeats": more, "seed": bench.settings.seed + 1}
        further = timed(replace(bench, settings=bench.settings.updated(**changes)))
        further["repeat"] += FEW_REPEATS
        repeats = pd.concat([repeats, further], ignore_index=True)
    return repeats

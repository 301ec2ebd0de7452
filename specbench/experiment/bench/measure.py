"""Execute a benchmark: every repeat times every system once, interleaved.

``decide`` needs short times only: those of plain and strict rounds at several batch sizes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from specbench.config import EAGER
from specbench.decoding.heads.head import describe_models
from specbench.engine.choice import choose_engine
from specbench.engine.device import choose_device
from specbench.engine.engines import Engine
from specbench.engine.hardware import copy_bandwidth
from specbench.engine.loading import load_pair
from specbench.engine.memory import bytes_per_round, check_memory
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, PairSpec
from specbench.engine.runner import context_length
from specbench.engine.sources import load_config
from specbench.errors import RunError, require
from specbench.experiment.bench.decoders import (
    Decoder,
    MissingError,
    specbench_decoders,
    transformers_decoder,
)
from specbench.experiment.bench.plan import (
    TRANSFORMERS,
    Bench,
    BenchSettings,
    System,
    build_bench,
    name_of,
)
from specbench.experiment.cells import method_variants
from specbench.experiment.environment import describe_environment
from specbench.experiment.progress import progress_bar
from specbench.methods.registry import AUTOREGRESSIVE

DEFAULT_PROMPT = 512
# Enough for every part of a round to run: at most a third of the answers.
WARM_UP_TOKENS, WARM_UP_SHARE = 16, 3
# New tokens of a batch for `decide`: at most, at least, and of all its texts.
MOST_TOKENS, LEAST_TOKENS, TOKENS = 48, 12, 96
# At least three repeats, and up to eight while those of all batch sizes take no longer than this.
FEW_REPEATS, REPEATS, SECONDS = 3, 8, 180.0
ACCEPTED = 0.6  # by force, so that rounds take the same time for all pairs

log = logging.getLogger(__name__)

LoadPair = Callable[[PairSpec, Loading], LoadedPair]
MakeDecoders = Callable[[Bench, System, LoadedPair], tuple[Decoder, list[Decoder]]]


@dataclass(frozen=True)
class Measured:
    """The results of a benchmark."""

    repeats: pd.DataFrame  # one row per system, batch size and repeat
    systems: pd.DataFrame  # one row per system and batch size: warm-up time, bytes per round
    bandwidth: float  # bytes per second, read plus written, of a copy on the device
    environment: dict[str, Any]


def prepare(bench: Bench, load: LoadPair = load_pair) -> tuple[Bench, dict[str, LoadedPair]]:
    """Check that device, models and memory suit a benchmark, and ``load`` the pair.

    Returns the benchmark with resolved engines and prompt length, and for each engine the same
    loaded models without end tokens.

    Raises:
        UsageError: The benchmark cannot run on this machine.
    """
    loading = bench.loading
    device, spread = str(choose_device(loading.device)), loading.device_map is not None
    chosen = {TRANSFORMERS: TRANSFORMERS}
    for name in (system.engine for system in bench.systems):
        chosen[name] = chosen.get(name) or choose_engine(name, device, spread, bench.pair.gguf)
    settings = bench.settings.updated(prompt_tokens=_prompt_tokens(bench))
    systems = [replace(system, engine=chosen[system.engine]) for system in bench.systems]
    bench = replace(bench, systems=tuple(dict.fromkeys(systems)), settings=settings)
    engines = {
        name: Engine(EAGER if name == TRANSFORMERS else name)
        for name in dict.fromkeys(system.engine for system in systems)
    }
    sizes = (settings.new_tokens, bench.draft_length, max(settings.batch_size))
    check_memory(bench.pair, loading, bench.prompt_tokens, *sizes)
    pair = replace(load(bench.pair, loading), eos_ids=frozenset())
    return bench, {name: replace(pair, engine=engine) for name, engine in engines.items()}


def decoders_of(bench: Bench, system: System, pair: LoadedPair) -> tuple[Decoder, list[Decoder]]:
    """Return the decoder of a system, and those that rehearse its rounds."""
    if system.engine == TRANSFORMERS:
        return transformers_decoder(bench.settings, system, pair), []
    return specbench_decoders(bench.settings, system, pair)


def measure(
    bench: Bench,
    pairs: Mapping[str, LoadedPair],
    report: Callable[[Mapping[str, Any]], object],
    make_decoders: MakeDecoders = decoders_of,
    *,
    same_prompts: bool = False,
) -> Measured:
    """Time every system.

    Batch sizes run one after another, because caches and graphs have a fixed batch size. Within a
    batch size, all systems are interleaved in every repeat. ``report`` is called with each row of
    ``repeats``. With ``same_prompts`` all repeats have those of the warm-up, which are then in the
    cache already; their prefill takes no time.

    Raises:
        UsageError: A head does not fit the pair.
        RunError: The device runs out of memory, or a graph cannot be captured.
    """
    pair, *_ = pairs.values()
    bandwidth = copy_bandwidth(pair.target.device, pair.target.weight_bytes())
    settings, models = bench.settings, describe_models(pair)
    shared = {
        "pair": bench.pair.name,
        "device": models["device"],
        "dtype": models["dtype"],
        "temperature": settings.temperature,
        "prompt_tokens": bench.prompt_tokens,
        "new_tokens": settings.new_tokens,
    }
    warm_up = settings.repeats  # the repeat after the last has the prompts of the warm-up
    rows: list[dict[str, Any]] = []
    systems: list[dict[str, Any]] = []
    for size in settings.batch_size:
        try:
            pair.reserve(bench.prompt_tokens + settings.new_tokens + bench.draft_length + 1, size)
            decoders = {}
            for system in bench.at(size):
                try:
                    decoders[system], facts = _warmed_up(
                        bench, pairs[system.engine], system, size, make_decoders
                    )
                except MissingError as error:
                    name = name_of(system.columns())
                    log.warning(f"{system.engine} {name} is skipped: {error}")
                    continue
                systems.append({"batch_size": size, **system.columns(), **shared, **facts})
            for repeat, system in bench.interleaved(list(decoders)):
                prompts = random_prompts(bench, pair, size, warm_up if same_prompts else repeat)
                timing = decoders[system](prompts, settings.new_tokens, str(repeat))
                row = {"batch_size": size, **system.columns(), "repeat": repeat, **asdict(timing)}
                rows.append(row)
                report(row | {"task": f"{system.engine}, batch {size}"})
        except torch.OutOfMemoryError as error:
            raise RunError(
                f"a batch of {size} does not fit in the memory of {pair.target.device}: choose "
                "a smaller --batch-size, fewer systems or shorter prompts"
            ) from error
    environment = describe_environment() | {
        "models": models,
        "copy_bandwidth": bandwidth,
        "bench": bench.describe(),
    }
    return Measured(pd.DataFrame(rows), pd.DataFrame(systems), bandwidth, environment)


def random_prompts(bench: Bench, pair: LoadedPair, count: int, repeat: int) -> list[list[int]]:
    """Return prompts of random tokens, the same for all systems of a repeat."""
    generator = np.random.default_rng((bench.settings.seed, repeat))
    size = (count, bench.prompt_tokens)
    prompts: list[list[int]] = generator.integers(pair.target.vocabulary, size=size).tolist()
    return prompts


def _warmed_up(
    bench: Bench, pair: LoadedPair, system: System, size: int, make_decoders: MakeDecoders
) -> tuple[Decoder, dict[str, Any]]:
    """Compile code, capture graphs and warm up kernels; return the decoder and the warm-up time."""
    settings = bench.settings
    began = time.perf_counter()
    decoder, rehearsals = make_decoders(bench, system, pair)
    prompts = random_prompts(bench, pair, size, settings.repeats)
    tokens = max(1, min(settings.new_tokens // WARM_UP_SHARE, WARM_UP_TOKENS))
    for decode in (*rehearsals, decoder):
        decode(prompts, tokens, "warm-up")
    # On average, half of the new tokens are in the cache.
    cached = bench.prompt_tokens + settings.new_tokens / 2
    return decoder, {
        "warm_up_seconds": time.perf_counter() - began,
        "bytes_per_round": bytes_per_round(pair, system.cell.draft_length, size, cached),
    }


def _prompt_tokens(bench: Bench) -> int:
    """Return the prompt length: the requested one, or the default if it fits."""
    context = context_length(load_config(bench.pair, "target", bench.loading))
    new, length_given = bench.settings.new_tokens, bench.settings.prompt_tokens
    if context is None:
        return length_given or DEFAULT_PROMPT
    length = length_given or min(DEFAULT_PROMPT, context - new)
    require(
        0 < length <= context - new,
        f"{max(length, 1)} prompt and {new} new tokens exceed the context of {context}: lower "
        "--prompt-tokens or --new-tokens",
    )
    return length


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
        with progress_bar(len(plan), show_progress, name="measurements") as report:
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

"""Carrying out a benchmark: every system once in every repeat, all of them side by side."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from specbench.bench.forced import CannotForceError
from specbench.bench.plan import TRANSFORMERS, Bench, System, name_of
from specbench.bench.transformers_loops import MissingError, transformers_decoder
from specbench.bench.turn import Decoder, rehearsing_decoders, specbench_decoder
from specbench.engine.bandwidth import copy_bandwidth, read_per_round, weights_read
from specbench.engine.engines import Engine, choose_engine
from specbench.engine.loading import LoadedPair, choose_device, load_pair
from specbench.engine.memory import check_memory
from specbench.engine.runner import context_length
from specbench.engine.sources import load_config
from specbench.errors import RunError
from specbench.experiment.environment import describe_environment
from specbench.experiment.progress import Report
from specbench.experiment.settings import require
from specbench.heads.files import fingerprints
from specbench.pairs.checked import ROLES

USUAL_PROMPT = 512
WARM_UP_TOKENS = 16  # enough rounds that every part of one has been carried out


@dataclass(frozen=True)
class Ready:
    """A benchmark with its models.

    Attributes:
        bench: With the engines and the prompt's length that were chosen.
        prompt_tokens: That length.
        pair: The models, without end tokens.
        engines: By name.
    """

    bench: Bench
    prompt_tokens: int
    pair: LoadedPair
    engines: dict[str, Engine]


@dataclass(frozen=True)
class Measured:
    """What a benchmark found.

    Attributes:
        repeats: A row per system, batch size and repeat: ``Turn`` and what tells systems apart.
        systems: A row per system and batch size: what warming up took and a round must read.
        bandwidth: Bytes per second that a copy on the device reads and writes together.
        environment: For ``environment.json``.
    """

    repeats: pd.DataFrame
    systems: pd.DataFrame
    bandwidth: float
    environment: dict[str, Any]


def prepare(bench: Bench) -> Ready:
    """Check the benchmark against device, models and memory, and load the pair.

    Raises:
        UsageError: It cannot be carried out here.
    """
    loading = bench.loading
    device, spread = choose_device(loading.device), loading.device_map is not None

    def resolved(system: System) -> System:
        if system.engine == TRANSFORMERS:
            return system
        return replace(system, engine=choose_engine(system.engine, device, spread))

    systems = tuple(dict.fromkeys(map(resolved, bench.systems)))
    prompt_tokens = _prompt_tokens(bench)
    bench = replace(bench, systems=systems, prompt_tokens=prompt_tokens)
    names = dict.fromkeys(system.engine for system in systems if system.engine != TRANSFORMERS)
    engines = {name: Engine(name) for name in names}
    sizes = (prompt_tokens, bench.new_tokens, bench.draft_length, max(bench.batch_sizes))
    check_memory(bench.pair, loading, *sizes)
    pair = replace(load_pair(bench.pair, loading), eos_ids=frozenset())
    return Ready(bench, prompt_tokens, pair, engines)


def measure(ready: Ready, report: Report, note: Callable[[str], object]) -> Measured:
    """Time every system.

    Batch sizes come one after another, as caches and graphs are made for one of them; within one,
    all systems take turns in every repeat.

    Args:
        ready: What is timed.
        report: Called with each row of ``repeats``.
        note: Told what was left out and why.

    Raises:
        UsageError: A head does not fit the pair.
        RunError: The memory is not enough after all, or no graph can be captured.
    """
    bench, pair = ready.bench, ready.pair
    bandwidth = copy_bandwidth(pair.target.device, weights_read(pair.target))
    rows: list[dict[str, Any]] = []
    systems: list[dict[str, Any]] = []
    for size in bench.batch_sizes:
        try:
            pair.reserve(ready.prompt_tokens + bench.new_tokens + bench.draft_length + 1, size)
            decoders, known = _warmed_up(ready, size, note)
            systems += known
            for repeat, system in bench.turns(list(decoders)):
                prompts = random_prompts(ready, size, repeat)
                turn = decoders[system](prompts, bench.new_tokens, str(repeat))
                row = {"batch_size": size, **system.describe(), "repeat": repeat, **asdict(turn)}
                rows.append(row)
                report(row | {"task": f"{system.engine}, batch {size}"})
        except torch.OutOfMemoryError as error:
            raise RunError(
                f"a batch of {size} does not fit into the memory of {pair.target.device}: choose "
                "a smaller --batch-size, fewer systems or shorter prompts"
            ) from error
    environment = describe_environment() | {
        "models": _describe_models(pair),
        "copy_bandwidth": bandwidth,
        "bench": bench.describe(),
    }
    return Measured(pd.DataFrame(rows), pd.DataFrame(systems), bandwidth, environment)


def random_prompts(ready: Ready, count: int, repeat: int) -> list[list[int]]:
    """Return prompts of random tokens, the same for all systems of a repeat."""
    generator = np.random.default_rng((ready.bench.seed, repeat))
    size = (count, ready.prompt_tokens)
    prompts: list[list[int]] = generator.integers(ready.pair.target.vocabulary, size=size).tolist()
    return prompts


def _decoder(ready: Ready, system: System) -> Decoder:
    if system.engine == TRANSFORMERS:
        return transformers_decoder(ready.bench, system, ready.pair)
    return specbench_decoder(ready.bench, system, _pair(ready, system))


def _rehearsing(ready: Ready, system: System) -> list[Decoder]:
    if system.engine == TRANSFORMERS:
        return []
    return rehearsing_decoders(ready.bench, system, _pair(ready, system))


def _pair(ready: Ready, system: System) -> LoadedPair:
    return replace(ready.pair, engine=ready.engines[system.engine])


def _warmed_up(
    ready: Ready, size: int, note: Callable[[str], object]
) -> tuple[dict[System, Decoder], list[dict[str, Any]]]:
    """Make code, graphs and kernels ready by short decodes; say what that took of each system."""
    bench, decoders, known = ready.bench, {}, []
    prompts = random_prompts(ready, size, bench.repeats)
    # Half of the new tokens are there in the middle of the time.
    tokens = ready.prompt_tokens + bench.new_tokens / 2
    for system in bench.at(size):
        began = time.perf_counter()
        try:
            decoder = _decoder(ready, system)
            for each in (*_rehearsing(ready, system), decoder):
                each(prompts, min(bench.new_tokens, WARM_UP_TOKENS), "warm-up")
        except (CannotForceError, MissingError) as error:
            note(f"{system.engine} {name_of(system.describe())} is left out: {error}")
            continue
        decoders[system] = decoder
        row = {"batch_size": size, **system.describe(), **_shared(ready)}
        row["warm_up_seconds"] = time.perf_counter() - began
        row["bytes_per_round"] = read_per_round(ready.pair, system.draft_length, size, tokens)
        known.append(row)
    return decoders, known


def _prompt_tokens(bench: Bench) -> int:
    """The prompt's length that was asked for, or the usual one where it fits."""
    configs = [load_config(bench.pair, role, bench.loading) for role in ROLES]
    context = min(filter(None, map(context_length, configs)), default=None)
    asked = bench.prompt_tokens or USUAL_PROMPT
    if context is None:
        return asked
    room = context - bench.new_tokens
    if bench.prompt_tokens is None:
        asked = min(asked, room)
    require(
        0 < asked <= room,
        f"{max(asked, 1)} prompt tokens and {bench.new_tokens} new ones exceed the context of "
        f"{context}: lower --prompt-tokens or --new-tokens",
    )
    return asked


def _shared(ready: Ready) -> dict[str, Any]:
    """What all systems have in common, in the columns of ``bench.csv``."""
    return {
        "pair": ready.bench.pair.name,
        "device": str(ready.pair.target.device),
        "dtype": str(ready.pair.target.dtype).removeprefix("torch."),
        "temperature": ready.bench.temperature,
        "prompt_tokens": ready.prompt_tokens,
        "new_tokens": ready.bench.new_tokens,
    }


def _describe_models(pair: LoadedPair) -> dict[str, Any]:
    """Where the models run, a fingerprint of their weights, and how they were loaded."""
    dtype = str(pair.target.dtype).removeprefix("torch.")
    return {"device": str(pair.target.device), "dtype": dtype, **fingerprints(pair), **pair.facts}

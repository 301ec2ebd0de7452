"""Compare llama.cpp with PyTorch on the bundled pair, and both speculative loops around it.

    python tasks/measure/against_llamacpp.py [--rounds N] [--prompts N] [--threads T]

Ten systems continue the same prompts of the bundled tasks by the same number of tokens, at
temperature 1 and N = 5, in float32 on the CPU: specbench's ``autoregressive`` and ``sd`` with three
engines (``llamacpp`` on the exported pair), Transformers' ``generate`` and assisted generation, and
llama.cpp's server without and with the draft. All systems decode a prompt before the next one
starts, in rotating order. Reading the prompt is not timed, nor is compilation, nor HTTP.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import numpy as np
import torch
import transformers
from assisted import Assisted
from llamacpp_server import exported_files, llamacpp_server
from rich.console import Console
from rich.progress import track

from specbench.analysis.statistics.intervals import ratio_interval
from specbench.analysis.tables.table import Column, Table, number, with_interval
from specbench.cli.output import print_table
from specbench.config import COMPILE, EAGER, LLAMACPP, TRANSFORMERS
from specbench.decoding.loop import DecodeOptions, Request, decode
from specbench.decoding.records import Generation
from specbench.decoding.sampling import Sampling
from specbench.engine.engines import Engine
from specbench.engine.hardware import copy_bandwidth
from specbench.engine.loading import load_pair
from specbench.engine.memory import bytes_per_round
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, PairSpec, get_pair
from specbench.engine.prompts import encode
from specbench.methods.method import Rates
from specbench.methods.serving import synthetic
from specbench.methods.strict import sd
from specbench.serving.server import Server
from specbench.tasks.task import default_task_names, load_task

DRAFT_LENGTH = 5
NEW_TOKENS = 64
ALONE, DRAFTED = "autoregressive", "sd"
THEIRS = {ALONE: 0, DRAFTED: DRAFT_LENGTH}
SERVER = "llama.cpp's server"


class Timing(NamedTuple):
    """Counts and times of a text; of Transformers' loops without the first round."""

    output_tokens: int
    rounds: int
    decode_seconds: float
    verify_seconds: float = nan


Decoder = Callable[[list[int], int], Timing]
"""Continues a prompt with a seed."""


def main() -> None:
    """Measure, then print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1, help="decodes of every prompt")
    parser.add_argument("--prompts", type=int, default=6, help="prompts per task")
    parser.add_argument("--threads", type=int, default=1, help="threads of each library")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    spec, loading = get_pair("mini"), Loading(device="cpu", dtype="float32")
    pair = replace(load_pair(spec, loading), eos_ids=frozenset())
    prompts = [
        encode(pair.tokenizer, e.prompt).ids
        for task in map(load_task, default_task_names())
        for e in task.examples("test", options.prompts)
    ]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        target, draft = files = exported_files(spec.name, folder)
        exported = load_pair(PairSpec("mini", str(target), str(draft)), loading)
        exported = replace(exported, eos_ids=frozenset(), engine=Engine(LLAMACPP))
        torch.set_num_threads(options.threads)  # loading a small pair sets one thread
        engines = {EAGER: pair, COMPILE: replace(pair, engine=Engine(COMPILE)), LLAMACPP: exported}
        systems: dict[tuple[str, str], Decoder] = {
            (engine, method): with_specbench(one, method)
            for engine, one in engines.items()
            for method in THEIRS
        }
        for method in THEIRS:
            systems[TRANSFORMERS, method] = with_transformers(pair, method)
        for method, n in THEIRS.items():
            server = llamacpp_server(
                *files[: 2 if n else 1], draft_length=n, threads=options.threads
            )
            systems[SERVER, method] = with_server(stack.enter_context(server))
        report(measure(systems, prompts, options.rounds), pair, prompts, options.threads)


def with_specbench(
    pair: LoadedPair,
    method: str,
    new_tokens: int = NEW_TOKENS,
    temperature: float = 1,
    acceptance: Rates | None = None,
) -> Decoder:
    """Return specbench's loop with plain speculative decoding, or without a draft."""
    sampling, rule = Sampling(temperature=temperature), sd if method == DRAFTED else None
    if acceptance is not None:
        rule = partial(synthetic, acceptance=acceptance.by_position)

    def decoder(prompt: list[int], seed: int) -> Timing:
        options = DecodeOptions(sampling, THEIRS[method], new_tokens, seed=seed)
        return timing_of(decode(pair, rule, Request(prompt, ""), options))

    return decoder


def with_transformers(
    pair: LoadedPair,
    method: str,
    new_tokens: int = NEW_TOKENS,
    temperature: float = 1,
    acceptance: Rates | None = None,
) -> Decoder:
    """Return Transformers' loop with the same models."""
    assisted = Assisted(pair, THEIRS[method], acceptance=acceptance)
    sampling = Sampling(temperature=temperature)

    def decoder(prompt: list[int], seed: int) -> Timing:
        options = DecodeOptions(sampling, THEIRS[method], new_tokens, seed=seed)
        ((_, generation),) = assisted.decode([Request(prompt, "")], options)
        return timing_of(generation)

    return decoder


def timing_of(text: Generation) -> Timing:
    """Return the counts and times of a text."""
    emitted = sum(record.emitted for record in text.rounds)
    return Timing(emitted, len(text.rounds), text.decode_seconds, text.verify_seconds)


def with_server(server: Server, new_tokens: int = NEW_TOKENS, temperature: float = 1) -> Decoder:
    """Return llama.cpp's own loop, timed by the server from the first token on."""

    def decoder(prompt: list[int], seed: int) -> Timing:
        body = {"prompt": prompt, "max_tokens": new_tokens, "seed": seed, "ignore_eos": True}
        body |= {"top_k": 0, "top_p": 1, "min_p": 0, "cache_prompt": False}
        body |= {"temperature": temperature}
        headers = {"Content-Type": "application/json"}
        with urlopen(HttpRequest(server.endpoint, json.dumps(body).encode(), headers)) as answer:
            times = json.load(answer)["timings"]
        tokens, accepted = times["predicted_n"] - 1, times.get("draft_n_accepted", 0)
        return Timing(tokens, tokens - accepted, times["predicted_ms"] / 1000)

    return decoder


def measure(
    systems: dict[tuple[str, str], Decoder], prompts: list[list[int]], rounds: int
) -> dict[tuple[str, str], list[Timing]]:
    """Time every system on every prompt, interleaved; a first decode of each is not counted."""
    for decoder in systems.values():
        decoder(max(prompts, key=len), 0)
    by_system: dict[tuple[str, str], list[Timing]] = {name: [] for name in systems}
    names = list(systems)
    steps = [(seed, prompt) for seed in range(rounds) for prompt in prompts]
    for turn, (seed, prompt) in enumerate(track(steps, console=Console(stderr=True))):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            by_system[name].append(systems[name](prompt, seed))
    return by_system


def report(
    by_system: dict[tuple[str, str], list[Timing]],
    pair: LoadedPair,
    prompts: list[list[int]],
    threads: int,
) -> None:
    """Print rates with 95 % bootstrap intervals over prompts, and times and bytes per round."""
    bandwidth = copy_bandwidth(pair.target.device, pair.target.weight_bytes())
    length = sum(map(len, prompts)) / len(prompts) + NEW_TOKENS / 2
    rows = []
    for (engine, method), timings in by_system.items():
        totals = {name: sum(getattr(t, name) for t in timings) for name in Timing._fields}
        alone = by_system[engine, ALONE]
        step = sum(t.decode_seconds for t in alone) / sum(t.rounds for t in alone)
        verify = totals["verify_seconds"] / totals["rounds"] / step
        reads = bytes_per_round(pair, THEIRS[method], 1, length)
        rate = ratio_interval(
            [timing.output_tokens for timing in timings],
            [timing.decode_seconds for timing in timings],
            [turn % len(prompts) for turn in range(len(timings))],
        )
        round_seconds = totals["decode_seconds"] / totals["rounds"]
        rows.append(
            [
                f"{engine}, {method}",
                with_interval(*rate[:3], ".0f"),
                f"{totals['output_tokens'] / totals['rounds']:.2f}",
                f"{1000 * round_seconds:.2f}",
                number(verify if method == DRAFTED else np.nan, ".2f"),
                f"{reads / round_seconds / bandwidth:.0%}",
            ]
        )
    title = (
        f"pair mini, temperature 1, N = {DRAFT_LENGTH}, {NEW_TOKENS} tokens, float32, {threads} "
        f"threads, torch {torch.__version__}, transformers {transformers.__version__}; "
        f"{len(prompts)} prompts; copies reach {bandwidth / 1e9:.1f} GB/s"
    )
    heads = [
        "tokens/s [95 %]",
        "tokens/\nround",
        "ms/\nround",
        "verify\n/ step",
        "of copy\nbandwidth",
    ]
    print_table(Table(title, [Column("system"), *map(Column, heads)], rows))


if __name__ == "__main__":
    main()

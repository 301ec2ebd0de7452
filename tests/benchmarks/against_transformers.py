"""Compare the speed of specbench's loop with Transformers' own on the bundled pair.

    python tests/benchmarks/against_transformers.py [--rounds N] [--prompts N] [--threads T]

Six systems decode the same prompts of the bundled tasks at temperature 1 and N = 5, in float32 on
the CPU: specbench's ``autoregressive`` and ``sd`` with two engines, Transformers' ``generate``, and
its assisted generation with a constant number of drafts and no confidence threshold. All systems
decode a prompt before the next one starts, in rotating order, so that changes in machine speed
affect them equally. Compilation is not timed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.progress import track
from transformers import PreTrainedModel

from specbench.analysis.intervals import paired_interval, paired_ratio, ratio_interval
from specbench.cli.output import print_table
from specbench.config import COMPILE, Loading
from specbench.decoding.loop import DecodeOptions, Request, decode
from specbench.decoding.sampling import Sampling
from specbench.engine.engines import Engine
from specbench.engine.loading import load_pair
from specbench.engine.pair import LoadedPair
from specbench.engine.prompts import encode
from specbench.methods.strict import sd
from specbench.pairs.registry import get_pair
from specbench.table import Column, Table, with_interval
from specbench.tasks.task import default_task_names, load_task

DRAFT_LENGTH = 5
AUTOREGRESSIVE, SD = "autoregressive, eager", "sd, eager"
FAST_AUTOREGRESSIVE, FAST_SD = "autoregressive, compile", "sd, compile"
GENERATE, ASSISTED = "transformers generate", "transformers assisted"
# (faster system, slower system, target for the ratio of tokens per second)
RATIOS = [
    (AUTOREGRESSIVE, GENERATE, 1.4),
    (SD, ASSISTED, 1.6),
    (FAST_AUTOREGRESSIVE, GENERATE, 1.8),
    (FAST_SD, ASSISTED, 2.4),
    (SD, AUTOREGRESSIVE, 1.4),
    (FAST_SD, FAST_AUTOREGRESSIVE, 1.4),
]


class Prompt(NamedTuple):
    """A prompt's name, its tokens and the limit on new tokens."""

    name: str
    tokens: list[int]
    limit: int


System = Callable[[Prompt, int], int]
"""Decodes a prompt with a seed; returns the number of new tokens, including the end token."""


def main() -> None:
    """Measure, then print the rates and the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="decodes of every prompt")
    parser.add_argument("--prompts", type=int, default=6, help="prompts per task")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    pair = load_pair(get_pair("mini"), Loading(device="cpu", dtype="float32"))
    torch.set_num_threads(options.threads)  # loading a small pair sets one thread
    fast = replace(pair, engine=Engine(COMPILE))
    draft = pair.draft.model
    # Transformers reads these from the assistant, not from the arguments of generate.
    draft.generation_config.num_assistant_tokens = DRAFT_LENGTH
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0
    systems = {
        AUTOREGRESSIVE: with_specbench(pair, drafting=False),
        SD: with_specbench(pair, drafting=True),
        FAST_AUTOREGRESSIVE: with_specbench(fast, drafting=False),
        FAST_SD: with_specbench(fast, drafting=True),
        GENERATE: with_transformers(pair, None),
        ASSISTED: with_transformers(pair, draft),
    }
    prompts = [
        Prompt(f"{task.name}/{e.id}", encode(pair.tokenizer, e.prompt).ids, task.max_new_tokens)
        for task in map(load_task, default_task_names())
        for e in task.examples("test", options.prompts)
    ]
    report(*measure(systems, prompts, options.rounds), options.threads)


def with_specbench(pair: LoadedPair, *, drafting: bool) -> System:
    """Return specbench's loop with plain speculative decoding, or without a draft."""

    def system(prompt: Prompt, seed: int) -> int:
        options = DecodeOptions(Sampling(), DRAFT_LENGTH, prompt.limit, seed=seed)
        request = Request(prompt.tokens, prompt.name)
        return decode(pair, sd if drafting else None, request, options).output_tokens

    return system


def with_transformers(pair: LoadedPair, assistant: PreTrainedModel | None) -> System:
    """Return Transformers' loop with the same target, with or without an assistant."""

    model: Any = pair.target.model

    def system(prompt: Prompt, seed: int) -> int:
        torch.manual_seed(seed)
        inputs = torch.tensor([prompt.tokens])
        output = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            assistant_model=assistant,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=prompt.limit,
            eos_token_id=sorted(pair.eos_ids),
            pad_token_id=min(pair.eos_ids),
        )
        return int(output.shape[1]) - len(prompt.tokens)

    return system


def measure(
    systems: dict[str, System], prompts: list[Prompt], rounds: int
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Time every system on every prompt, interleaved; each system's first decode is not counted.

    Returns:
        New tokens and seconds ``[samples, 2]`` by system, and each sample's prompt.
    """
    for system in systems.values():
        system(max(prompts, key=lambda prompt: len(prompt.tokens) + prompt.limit), 0)
    terms: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
    names = list(systems)
    steps = [(seed, prompt) for seed in range(rounds) for prompt in prompts]
    for number, (seed, prompt) in enumerate(track(steps, console=Console(stderr=True))):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            started = time.perf_counter()
            tokens = systems[name](prompt, seed)
            terms[name].append((tokens, time.perf_counter() - started))
    return {name: np.array(found) for name, found in terms.items()}, [p.name for _, p in steps]


def report(terms: dict[str, np.ndarray], prompts: list[str], threads: int) -> None:
    """Print rates and ratios with 95 % bootstrap intervals over prompts."""
    title = (
        f"pair mini, temperature 1, N = {DRAFT_LENGTH}, float32, {threads} threads, "
        f"torch {torch.__version__}, transformers {transformers.__version__}; "
        f"{len(set(prompts))} prompts, {len(prompts)} samples per system; prefill included"
    )
    rates = [
        [name, with_interval(*ratio_interval(*found.T, prompts)[:3], ".1f")]
        for name, found in terms.items()
    ]
    ratios = []
    for fast, slow, promised in RATIOS:
        speedup = paired_interval(terms[fast], prompts, terms[slow], prompts, paired_ratio)[:3]
        ratios.append([f"{fast} / {slow}", f"{promised}", with_interval(*speedup, ".2f")])
    measured = [Column("promised"), Column("measured [95 %], paired")]
    print_table(
        Table(title, [Column("system"), Column("tokens/s [95 %]")], rates),
        Table("", [Column("ratio of tokens/s"), *measured], ratios),
    )


if __name__ == "__main__":
    main()

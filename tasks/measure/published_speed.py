"""Compare specbench's loops with those of llama.cpp and Transformers on a published pair, greedily.

    python tasks/measure/published_speed.py gguf|bfloat16 MODELS --data FOLDER [--prompts N]

MODELS is the folder of ``--models`` and FOLDER that of ``--data``; prompts are those of mbpp, as
plain text. All systems decode a prompt before the next one starts, in rotating order; reading it
is not timed. Printed are tokens per second of decoding, tokens per round, and the ratio of rates
with its 95 % interval over prompts. Use idle cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from against_llamacpp import (
    THEIRS,
    Timing,
    measure,
    with_server,
    with_specbench,
    with_transformers,
)
from llamacpp_server import llamacpp_server

from specbench.engine.hub import gguf_path
from specbench.engine.loading import load_pair
from specbench.engine.pairs import Loading, get_pair, in_folder
from specbench.engine.prompts import encode
from specbench.tasks.dataset import DataOptions
from specbench.tasks.task import load_task

PAIRS = {"gguf": "qwen2.5-coder-gguf", "bfloat16": "qwen2.5-coder"}
NEW_TOKENS = 48
RESAMPLES = 4000


def rate(timings: Sequence[Timing], chosen: np.ndarray | slice = slice(None)) -> float:
    """Return tokens per second of decoding over the chosen prompts."""
    parts = np.array([(t.output_tokens, t.decode_seconds) for t in timings])[chosen]
    tokens, seconds = parts.sum(0)
    return float(tokens / seconds)


def main() -> None:
    """Measure, then print a line per method."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=PAIRS)
    parser.add_argument("models", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=30)
    options = parser.parse_args()
    spec = in_folder(get_pair(PAIRS[options.kind]), options.models)
    loading = Loading(device="cpu")
    pair = replace(load_pair(spec, loading), eos_ids=frozenset())
    examples = load_task("mbpp", DataOptions(folder=options.data)).examples("test", options.prompts)
    prompts = [encode(pair.tokenizer, example.prompt).ids for example in examples]
    with ExitStack() as stack:
        systems = {
            ("specbench", method): with_specbench(pair, method, NEW_TOKENS, 0) for method in THEIRS
        }
        for method, n in THEIRS.items():
            if options.kind == "bfloat16":
                systems["other", method] = with_transformers(pair, method, NEW_TOKENS, 0)
                continue
            files = [gguf_path(spec, role) for role in spec.models][: 2 if n else 1]
            server = llamacpp_server(*files, draft_length=n, threads=torch.get_num_threads())
            systems["other", method] = with_server(stack.enter_context(server), NEW_TOKENS, 0)
        print_ratios(measure(systems, prompts, 1))


def print_ratios(timings: Mapping[tuple[str, str], Sequence[Timing]]) -> None:
    """Print the speeds of ``specbench`` and of the ``other`` by method, over the same prompts."""
    for method in dict.fromkeys(method for _, method in timings):
        ours, theirs = timings["specbench", method], timings["other", method]
        texts = len(ours)
        draws = np.random.default_rng(0).integers(0, texts, (RESAMPLES, texts))
        low, high = np.quantile([rate(ours, d) / rate(theirs, d) for d in draws], [0.025, 0.975])
        per_round = [
            sum(t.output_tokens for t in each) / sum(t.rounds for t in each)
            for each in (ours, theirs)
        ]
        print(
            f"{method}: {rate(ours):.1f} / {rate(theirs):.1f} tokens/s, ratio "
            f"{rate(ours) / rate(theirs):.2f} [{low:.2f}, {high:.2f}], tokens per round "
            f"{per_round[0]:.2f} / {per_round[1]:.2f}, n = {texts}"
        )


if __name__ == "__main__":
    main()

"""List the attention kernels that each engine runs, by PyTorch's profiler.

    python tasks/measure/attention_kernels.py [--pair NAME] [--device cuda] [--engine NAME,...]

Weights are random, in the real shapes of the pair. Engines are compared fairly only if they use the
same kernels. ``softmax`` outside such a kernel is the slow MATH backend, or the sampling.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch.profiler import ProfilerActivity, profile

from specbench.analysis.tables.table import Column, Table
from specbench.cli.output import print_table
from specbench.config import EAGER, GRAPH
from specbench.decoding.loop import DecodeOptions, Request, decode
from specbench.decoding.sampling import Sampling
from specbench.engine.engines import Engine
from specbench.engine.loading import load_pair
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, get_pair
from specbench.methods.strict import sd

KERNEL = re.compile("flash|fmha|sdpa|attention|softmax", re.IGNORECASE)
PROMPT, TOKENS, DRAFT_LENGTH = 512, 16, 5
WIDTH = 90  # characters of a kernel's name


def kernels(pair: LoadedPair, engine: str) -> Iterator[list[str]]:
    """Yield a row per method and kernel: engine, method, kernel, calls, milliseconds."""
    pair = replace(pair, engine=Engine(engine), eos_ids=frozenset())
    on_gpu = pair.target.device.type == "cuda"
    request = Request(list(range(PROMPT)), "prompt")
    options = DecodeOptions(Sampling(), DRAFT_LENGTH, TOKENS)
    for method, rule in (("autoregressive", None), ("sd", sd)):
        decode(pair, rule, request, options)  # captures and warms up
        with profile(
            activities=[getattr(ProfilerActivity, "CUDA" if on_gpu else "CPU")]
        ) as profiler:
            decode(pair, rule, request, options)
        for event in profiler.key_averages():
            if KERNEL.search(event.key):
                time = event.self_device_time_total if on_gpu else event.self_cpu_time_total
                name = event.key[:WIDTH]
                yield [engine, method, name, str(event.count), f"{time / 1000:.2f}"]


def show(pair: LoadedPair, engines: Sequence[str]) -> None:
    """Print the table of all engines."""
    title = f"{pair.name} on {pair.target.device}: prompt of {PROMPT} tokens, {TOKENS} new ones"
    names = ("engine", "method", "kernel", "calls", "ms")
    rows = [row for engine in engines for row in kernels(pair, engine)]
    print_table(Table(title, [Column(name) for name in names], rows, stub=3))


def main() -> None:
    """Load the pair and print its kernels."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pair", default="llama")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--engine", default=f"{EAGER},{GRAPH}")
    options = parser.parse_args()
    loading = Loading(device=options.device, load_format="dummy")
    show(load_pair(get_pair(options.pair), loading), options.engine.split(","))


if __name__ == "__main__":
    main()

"""Compare specbench with Transformers' ``generate`` and assisted generation, after a random prompt.

    python tasks/measure/transformers_speed.py [--pair NAME] [--device D] [--load-format dummy]
        [--acceptance RATE[,RATE...]] [--prompt-tokens P] [--new-tokens M] [--repeats R]

Both decode one text at a time at temperature 1 and N = 5, with the same models and, with
``--acceptance``, the same forced rates of acceptance. Transformers' first round, which it cannot
separate from reading the prompt, is not timed. Prints a line per method, as ``published_speed.py``.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from against_llamacpp import (
    ALONE,
    DRAFT_LENGTH,
    DRAFTED,
    measure,
    with_specbench,
    with_transformers,
)
from published_speed import print_ratios

from specbench.config import AUTO
from specbench.engine.choice import choose_engine
from specbench.engine.device import choose_device
from specbench.engine.engines import Engine
from specbench.engine.loading import load_pair
from specbench.engine.pairs import Loading, get_pair
from specbench.methods.method import Rates


def main() -> None:
    """Measure, then print a line per method and rate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pair", default="mini")
    parser.add_argument("--device", default=AUTO)
    parser.add_argument("--load-format", default=AUTO, choices=(AUTO, "dummy"))
    parser.add_argument("--acceptance", type=lambda text: [*map(Rates, text.split(","))])
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    device = str(choose_device(options.device))
    spec, loading = get_pair(options.pair), Loading(device=device, load_format=options.load_format)
    engine = Engine(choose_engine(AUTO, device, False, spec.gguf))
    pair = replace(load_pair(spec, loading), eos_ids=frozenset(), engine=engine)
    pair.reserve(options.prompt_tokens + options.new_tokens + DRAFT_LENGTH + 1)
    generator = torch.Generator().manual_seed(0)
    size = (1, options.prompt_tokens)
    prompts = torch.randint(pair.target.vocabulary, size, generator=generator).tolist()
    systems = {}
    drafted = ((DRAFTED, rate) for rate in options.acceptance or [None])
    for method, rate in [(ALONE, None), *drafted]:
        name = f"{method} {rate}" if rate else method
        systems["specbench", name] = with_specbench(pair, method, options.new_tokens, 1, rate)
        systems["other", name] = with_transformers(pair, method, options.new_tokens, 1, rate)
    print_ratios(measure(systems, prompts, options.repeats))


if __name__ == "__main__":
    main()

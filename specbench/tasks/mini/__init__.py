"""The bundled tasks: small generated counterparts of the paper's four.

An example is determined by its split and index. The hash of a prompt assigns it to the test or the
training split, so no test prompt occurs in training, whatever the seeds.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from functools import partial
from types import ModuleType

from specbench.tasks.example import Example
from specbench.tasks.mini import code, headline, math, news
from specbench.tasks.mini.writer import Style, Writer

MODULES: dict[str, ModuleType] = {
    "mini-math": math,
    "mini-news": news,
    "mini-headline": headline,
    "mini-code": code,
}
TEST_SHARE = 10  # one prompt in ten is a test prompt


def split_of(prompt: str) -> str:
    """Return the split of a prompt, ``train`` or ``test``."""
    return "test" if zlib.crc32(prompt.encode()) % TEST_SHARE == 0 else "train"


def generate(name: str, split: str, index: int, style: Style = "plain") -> Example:
    """Generate the example of a bundled task with an index in its ``train`` or ``test`` split.

    The style is that of the reference: ``plain``, or another for training the bundled models.
    """
    module = MODULES[name]
    rng = random.Random(f"{name}/{split}/{index}")
    while True:
        problem = module.draw(rng)
        prompt = module.prompt(problem, Writer(rng))
        if split_of(prompt) == split:
            break
    reference = module.answer(problem, Writer(rng, style))
    tests = module.tests(problem) if hasattr(module, "tests") else ()
    return Example(f"{split}-{index}", prompt, reference, tests)


GENERATORS: dict[str, Callable[[str, int], Example]] = {
    name: partial(generate, name) for name in MODULES
}

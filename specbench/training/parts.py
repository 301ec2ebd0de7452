"""Roll-outs in parts, each with draws of its own, so that several processes can share them.

What a part says, and the head, decide what is sampled; who decodes it, and after what, does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.engine.loading import LoadedPair
from specbench.heads.head import Head
from specbench.tasks.task import Task
from specbench.training.rollouts import Rollouts, joined, roll_out

Draws = int | Tensor  # a seed, or the state that a generator was left in
SEEDS = 2**62  # of parts, from 0


class Part(NamedTuple):
    """Some prompts, and all else that decides what a head samples after them.

    Attributes:
        prompts: Their tokens.
        draws: Where the draws begin.
        max_new_tokens: Limit on a text's tokens.
        copies: Texts per prompt.
        stop: Strings that end a text where they appear.
    """

    prompts: Sequence[list[int]]
    draws: Draws
    max_new_tokens: int
    copies: int
    stop: tuple[str, ...]


class Decoded(NamedTuple):
    """What was sampled of a part.

    Attributes:
        rollouts: The texts.
        draws: Where the draws ended.
    """

    rollouts: Rollouts
    draws: Tensor


RollOut = Callable[[Head, Sequence[Part]], list[Decoded]]


def here(pair: LoadedPair) -> RollOut:
    """Return what decodes parts in this process, one after the other."""
    return lambda head, parts: [decode(pair, head, part) for part in parts]


def decode(pair: LoadedPair, head: Head, part: Part) -> Decoded:
    """Sample the texts of a part.

    Args:
        pair: Loaded models.
        head: Weighs target against draft; on their device.
        part: The part.
    """
    prompts, draws, max_new_tokens, copies, stop = part
    generator = _generator(draws, pair.target.device)
    rollouts = roll_out(pair, head, prompts, max_new_tokens, generator, copies, stop)
    return Decoded(rollouts, generator.get_state())


def sample(
    roll_out: RollOut,
    head: Head,
    prompts: Sequence[list[int]],
    task: Task,
    draws: Draws,
    parts: int,
    copies: int = 1,
) -> tuple[Rollouts, Draws]:
    """Sample texts after prompts.

    Args:
        roll_out: Decodes parts.
        head: Weighs target against draft.
        prompts: Their tokens; a part gets neighbours.
        task: Says when a text ends.
        draws: A single part goes on with them; several begin with seeds drawn from them.
        parts: How many; no more than there are prompts.
        copies: Texts per prompt.

    Returns:
        The texts in the order of the prompts, and where to go on with draws.
    """
    parts = min(parts, len(prompts))
    starts: Sequence[Draws] = [draws]
    if parts > 1:
        generator = _generator(draws, "cpu")  # the same seeds for every device
        starts = torch.randint(SEEDS, (parts,), generator=generator).tolist()
        draws = generator.get_state()
    decoded = roll_out(
        head,
        [
            Part(chosen, start, task.max_new_tokens, copies, task.stop)
            for chosen, start in zip(_split(prompts, parts), starts, strict=True)
        ],
    )
    rollouts = joined([each.rollouts for each in decoded])
    return rollouts, draws if parts > 1 else decoded[0].draws


def _split(prompts: Sequence[list[int]], parts: int) -> list[Sequence[list[int]]]:
    """Cut prompts into parts of neighbours whose sizes differ by one at most."""
    bounds = [len(prompts) * part // parts for part in range(parts + 1)]
    return [prompts[first:last] for first, last in pairwise(bounds)]


def _generator(draws: Draws, device: torch.device | str) -> torch.Generator:
    generator = torch.Generator(device)
    if isinstance(draws, int):
        generator.manual_seed(draws)
    else:
        generator.set_state(draws)
    return generator

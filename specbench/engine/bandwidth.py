"""What a round has to read from memory, and how fast this device's memory is."""

from __future__ import annotations

import torch

from specbench.engine.available import available_memory
from specbench.engine.clock import now
from specbench.engine.loading import LoadedPair
from specbench.engine.runner import Runner

MOST_COPIED = 2 * 2**30  # bytes of a buffer; a larger one is no slower to copy
FREE_SHARE = 8  # a buffer takes no more than this part of the free memory
WINDOWS, WINDOW_SECONDS = 5, 0.1


def weights_read(runner: Runner) -> int:
    """Return the bytes of the weights that one step reads: layers, last norm and output head.

    The embedding table counts only where it is the output head as well: else a step reads a row.
    """
    parts = (runner.base.layers, runner.base.norm, runner.output)
    weights = {id(w): w for part in parts for w in part.parameters()}
    return sum(w.numel() * w.element_size() for w in weights.values())


def states_read(runner: Runner, tokens: float) -> float:
    """Return the bytes of keys and values that a step of one text reads after so many tokens."""
    assert runner.cache is not None
    total = 0.0
    for keys, values, kind in zip(
        runner.cache.keys, runner.cache.values, runner.kinds, strict=True
    ):
        window = runner.windows[kind]
        width = (keys[0, :, 0].numel() + values[0, :, 0].numel()) * keys.element_size()
        total += width * (tokens if window is None else min(tokens, window))
    return total


def read_per_round(pair: LoadedPair, draft_length: int, texts: int, tokens: float) -> float:
    """Return the bytes that a round must read: once with the target, N times with the draft.

    Args:
        pair: The models, with room reserved.
        draft_length: Drafted tokens per round, N.
        texts: Side by side.
        tokens: Of each text so far.
    """
    passes = [(pair.target, 1), (pair.draft, draft_length)]
    return sum(
        times * (weights_read(runner) + texts * states_read(runner, tokens))
        for runner, times in passes
    )


def copy_bandwidth(device: torch.device, size: int) -> float:
    """Return the bytes per second that a copy on the device reads and writes together.

    The best of several windows: what the device can do, not what else it was doing.

    Args:
        device: Where.
        size: Bytes to copy at a time; limited where that is a lot.
    """
    free = available_memory(device)
    size = min(size, MOST_COPIED, (free or FREE_SHARE * MOST_COPIED) // FREE_SHARE)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    copy = torch.zeros_like(source)

    def rate(times: int) -> float:
        began = now(device)
        for _ in range(times):
            copy.copy_(source)
        return 2 * size * times / (now(device) - began)

    rate(3)
    times = max(1, round(WINDOW_SECONDS * rate(3) / (2 * size)))
    return max(rate(times) for _ in range(WINDOWS))

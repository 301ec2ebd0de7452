"""The decoding loop, for every method and any number of texts side by side.

A text takes a row until it ends; then the next one takes that row. Its draws are its own and no row
sees another, so its law depends neither on the other rows nor on when it joined. The text itself
may: kernels round differently at other batch sizes, which hardly ever decides a token in float32
and at times does in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from specbench.decoding.records import Generation
from specbench.decoding.round import Verify, play_round
from specbench.decoding.rows import Request, Rows
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import LoadedPair
from specbench.methods.control import DraftControl


def decode(
    pair: LoadedPair,
    verify: Verify | None,
    prompt_ids: Sequence[int],
    *,
    sampling: Sampling,
    draft_length: int,
    max_new_tokens: int,
    seed: int,
    sample_key: str,
    stop: Sequence[str] = (),
    control: DraftControl | None = None,
) -> Generation:
    """Decode one sample; see ``decode_all``."""
    ((_, generation),) = decode_all(
        pair,
        verify,
        [Request(prompt_ids, sample_key)],
        sampling=sampling,
        draft_length=draft_length,
        max_new_tokens=max_new_tokens,
        seed=seed,
        stop=stop,
        control=control,
    )
    return generation


def decode_all(
    pair: LoadedPair,
    verify: Verify | None,
    requests: Sequence[Request],
    *,
    sampling: Sampling,
    draft_length: int,
    max_new_tokens: int,
    seed: int,
    stop: Sequence[str] = (),
    batch_size: int = 1,
    control: DraftControl | None = None,
) -> Iterator[tuple[int, Generation]]:
    """Decode samples, several at a time.

    Args:
        pair: Loaded models and tokenizer.
        verify: The rule; None decodes autoregressively, whatever the draft length.
        requests: What to decode.
        sampling: Processing of the logits, the same for both models.
        draft_length: Drafted tokens per round, N.
        max_new_tokens: Limit on each output, the end token included.
        seed: Seed of the run.
        stop: Strings that end an output where they appear.
        batch_size: Rows decoded side by side.
        control: Decides in each round how many of the N tokens are drafted; None drafts all.

    Yields:
        Each request's number in their order and its generation, as soon as it has ended. What is
        done with it until the next one is asked for is no part of any time.

    Raises:
        RunError: A prompt and its output do not fit the models' context.
    """
    n = 0 if verify is None else draft_length
    with torch.inference_mode():
        rows = Rows(pair, requests, batch_size, n, max_new_tokens, seed, stop)
    while rows.longest:
        with torch.inference_mode():
            rows.begin()
            outcome, lap = play_round(
                pair.engine,
                pair.target,
                pair.draft if n else None,
                verify,
                rows.last,
                rows.length,
                rows.reach,
                rows.chance(),
                sampling,
                control,
                rows.going,
            )
            ended = rows.advance(outcome, lap)
        yield from ended

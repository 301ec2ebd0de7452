"""A model in float32, whatever the dtype of its weights, and the check of its runner there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from specbench.errors import UsageError, cause

if TYPE_CHECKING:
    from specbench.engine.runner import Runner

# Largest relative error between a runner and the model's own forward pass: in float32, and for
# quantised weights, which cannot be computed in float32.
TOLERANCE, QUANTISED_TOLERANCE = 1e-3, 0.1
CHECKED_TOKENS = 6
CHECKED_LOGITS = 4096  # enough, as the output head treats all logits alike


@torch.no_grad()
def require_same_logits(runner: Runner) -> None:
    """Compare a runner with the model's own forward pass on a few tokens, and drop its cache.

    Raises:
        UsageError: Running the layers does not reproduce the forward pass.
    """
    quantised = getattr(runner.model, "is_quantized", False)
    stored = runner.dtype
    try:
        _require_one_table(runner)
        if quantised:
            difference = _difference(runner)
        else:
            runner.dtype = torch.float32
            layers = [*runner.base.layers, runner.base.norm]
            with in_float32(runner.base.embed_tokens, layers, runner.output, CHECKED_LOGITS):
                difference = _difference(runner)
        if not difference < (QUANTISED_TOLERANCE if quantised else TOLERANCE):
            raise ValueError(f"logits differ by {100 * difference:.2g} %")
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise UsageError(
            f"{runner.config.model_type} models cannot be run layer by layer "
            f"({cause(error)}): choose a Llama, Qwen or Gemma type of model"
        ) from error
    runner.dtype = stored
    runner.drop_cache()


def _require_one_table(runner: Runner) -> None:
    """Raise ``ValueError`` if the angles at a position depend on the text length."""
    if runner.context is None:
        return
    few = torch.arange(CHECKED_TOKENS, device=runner.device)
    whole = torch.cat((few, few.new_tensor([runner.context - 1])))
    for kind in set(runner.kinds):
        short = torch.stack(runner.angles(few, kind, torch.float32))
        long = torch.stack(runner.angles(whole, kind, torch.float32))[:, :CHECKED_TOKENS]
        if not torch.allclose(short, long, atol=TOLERANCE):
            raise ValueError("its rotary angles depend on the length of the text")


def _difference(runner: Runner) -> float:
    """Relative error of the logits of a few tokens, run in several pieces."""
    index = torch.arange(CHECKED_TOKENS, device=runner.device)[None]
    tokens = index % min(runner.vocabulary, runner.base.embed_tokens.weight.shape[0])
    runner.reserve(1, CHECKED_TOKENS)
    expected = runner.plain(tokens, CHECKED_TOKENS, hidden=False)[0][0]
    pieces = [
        runner._forward(tokens[:, positions[0]], positions, int(positions[0, -1]) + 1)
        for positions in index.split([3, 1, CHECKED_TOKENS - 4], dim=1)
    ]
    ours = runner.logits(torch.cat(pieces, dim=1))[0]
    present = ~expected.isneginf()  # where a draft has the token
    expected, ours = expected[present], ours[present]
    return float((expected - ours).norm() / expected.norm())


@contextmanager
def in_float32(
    embedding: nn.Module, layers: Iterable[nn.Module], output: nn.Module, rows: int
) -> Iterator[None]:
    """Make a model compute in float32, and only the first ``rows`` logits, within the context.

    A layer's weights are float32 only while it runs, in memory that the next layer reuses; of the
    embedding, only the output is converted. Layers must not be nested.
    """
    spare: dict[tuple[Any, ...], Tensor] = {}
    handles = [embedding.register_forward_hook(lambda module, inputs, given: given.float())]
    for layer in layers:
        handles += _widening_hooks(layer, None, spare)
    handles += _widening_hooks(output, rows, spare)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _widening_hooks(
    module: nn.Module, rows: int | None, spare: dict[tuple[Any, ...], Tensor]
) -> list[RemovableHandle]:
    stored: list[tuple[Tensor, Tensor]] = []

    def widen(*_: Any) -> None:
        for number, weights in enumerate(chain(module.parameters(), module.buffers())):
            if weights.is_floating_point() and weights.dtype != torch.float32:
                data = weights.data[:rows]
                key = (number, data.shape, data.device)
                if key not in spare:
                    spare[key] = torch.empty_like(data, dtype=torch.float32)
                stored.append((weights, weights.data))
                weights.data = spare[key].copy_(data)

    def restore(*_: Any) -> None:
        for weights, data in stored:
            weights.data = data
        stored.clear()

    return [
        module.register_forward_pre_hook(widen),
        module.register_forward_hook(restore, always_call=True),
    ]

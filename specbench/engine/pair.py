"""A pair of loaded models, and what decoding needs of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specbench.engine.engines import Engine
from specbench.engine.runner import Runner
from specbench.errors import UsageError


class Model(Protocol):
    """What decoding needs of a model, whichever library runs it."""

    vocabulary: int  # V, the target's tokens; a draft's logits are -inf for those that it lacks
    hidden_size: int
    context: int | None  # in tokens; None if unknown
    layers: Sequence[int]  # after which states are returned too; see ``Runner``
    saved_seconds: float  # which reading the last prompt took before, if it was not read again

    @property
    def device(self) -> torch.device:
        """The device of all inputs and outputs."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the hidden states."""

    def fingerprint(self) -> str:
        """Return a hash of the weights."""

    def reserve(self, rows: int, capacity: int) -> int:
        """Allocate at least ``rows`` x ``capacity`` tokens; return the capacity of a row.

        A new allocation clears the cache.
        """

    def drop_cache(self) -> None:
        """Free the cache."""

    def forget_prompts(self) -> None:
        """Read the next prompts even if their states are stored."""

    def prefill(self, prompt: Tensor, row: int = 0) -> Tensor | None:
        """Read a prompt ``[T]``, T >= 1, except its last token, into a row of the cache.

        The last token remains for the first round, like the newest token between two rounds.
        Returns the states after ``layers``, ``[T - 1, len(layers) * hidden]``, if there are any.
        """

    def read(
        self, tokens: Tensor, at: Tensor, kv_length: int | None = None, last: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Read tokens at positions ``at``, both ``[B, k]``.

        The model attends to the first ``kv_length`` slots of its cache, by default to all. Return
        hidden states ``[B, k, hidden]`` and next-token logits ``[B, k, V]``; with ``last`` those of
        the last token only, ``[B, 1, ...]``.
        """

    def plain(self, tokens: Tensor, last: int, hidden: bool) -> tuple[Tensor, Tensor]:
        """Return logits and hidden states of whole texts ``[B, T]``, without the cache.

        Both are those of the ``last`` positions, ``[B, last, V]`` and, if ``hidden``,
        ``[B, last, hidden]``.
        """

    def twin(self) -> Model:
        """Return the same weights with a cache of their own."""

    def weight_bytes(self) -> int:
        """Return the bytes of weights that one step reads, of the embedding table one row."""

    def cache_bytes(self, tokens: float) -> float:
        """Return the bytes of keys and values that a step reads for a text of so many tokens."""


class Library(NamedTuple):
    """What the models of a library are and can do; by default they are ``Runner``s."""

    has_runners: bool = True
    exact: bool = True  # whether products have inputs of their dtype, not quantised ones
    lockstep: Callable[..., Any] | None = None  # see ``lockstep``; None for ``LockstepBatch``
    reread: Callable[..., Tensor | None] = lambda *_: None  # logits of a text in the cache


PYTORCH = Library()


@dataclass
class LoadedPair:
    """Two models, of which the draft reads and writes the target's tokens, ready to decode."""

    name: str
    target: Model  # the model whose distribution is p
    # the model whose distribution is q; in a pair without one, the target, which never drafts
    draft: Model
    tokenizer: PreTrainedTokenizerBase  # the target's tokenizer
    # tokens that end an output; none for random weights, whose texts would end at random
    eos_ids: frozenset[int]
    thinking: bool = False  # whether the chat template enables thinking before the answer
    # plain values that describe how the pair was loaded, for the record of a run
    facts: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Any] = field(default_factory=dict)  # GGUF files by role, for the record
    library: Library = PYTORCH  # of both models
    engine: Engine = field(default_factory=Engine)  # runs the rounds
    drafters: Mapping[str, Path] = field(default_factory=dict)  # folders of its modules that draft

    @property
    def is_exact(self) -> bool:
        """Whether no weights are of a smaller type, which rounds by the size of a pass."""
        return all(file["type"] == "F32" for file in self.weights.values())

    def reserve(self, tokens: int, rows: int = 1) -> None:
        """Allocate both caches now, for ``rows`` rows of ``tokens`` tokens."""
        for model in (self.target, self.draft):
            model.reserve(rows, tokens)

    def drop_caches(self) -> None:
        """Free both caches, which restores the pair to its state after loading."""
        for model in (self.target, self.draft):
            model.drop_cache()

    def forget_prompts(self) -> None:
        """Read the next prompts in any case, to time that again."""
        for model in (self.target, self.draft):
            model.forget_prompts()

    @property
    def fused_layers(self) -> list[bool]:
        """Whether the layers of target and draft are kernels of our own; empty for llama.cpp."""
        return [r.fused is not None for r in self.runners] if self.library.has_runners else []

    @property
    def runners(self) -> tuple[Runner, Runner]:
        """Both models as PyTorch models."""
        if self.library.has_runners:
            return cast(Runner, self.target), cast(Runner, self.draft)
        raise UsageError(
            f"{self.name} has GGUF files, and this needs PyTorch models: give the folders that the "
            "files were made from"
        )

    def text_of(self, token_ids: Sequence[int], stop: Sequence[str] = ()) -> str:
        """Return the text of tokens before a stop string, see ``detokenizer_of``."""
        from specbench.engine.detokenizer import detokenizer_of

        return detokenizer_of(self.tokenizer)(token_ids, stop)

    @property
    def context(self) -> int | None:
        """The target's context length in tokens; None if it has none."""
        return self.target.context

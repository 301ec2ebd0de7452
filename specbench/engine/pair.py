"""A pair of loaded models, which is all that decoding knows of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from specbench.engine.engines import Engine
from specbench.engine.runner import Model, Runner
from specbench.errors import UsageError


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
    engine: Engine = field(default_factory=Engine)  # runs the rounds
    drafters: Mapping[str, Path] = field(default_factory=dict)  # folders of its modules that draft

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
    def runners(self) -> tuple[Runner, Runner]:
        """Both models as PyTorch models.

        Raises:
            UsageError: They are run by another library.
        """
        if isinstance(self.target, Runner) and isinstance(self.draft, Runner):
            return self.target, self.draft
        raise UsageError(
            f"{self.name} has GGUF files, and this needs PyTorch models: give the folders that the "
            "files were made from"
        )

    @property
    def context(self) -> int | None:
        """The target's context length in tokens; None if it has none."""
        return self.target.context

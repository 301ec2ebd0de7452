"""Kinds of drafter: what each is called, needs and costs, and how its drafts are proved.

A kind is a class declared by ``drafter``, in a file of its own beside this one. Options list the
kinds, so their modules do not import torch. Flags of engines were read in the sources and the help
of vLLM 0.32, in SGLang's documentation, in TensorRT-LLM's ``llm_args``, and in llama.cpp's build
11549.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from specbench.decoding.drafting import Drafter
from specbench.errors import UsageError
from specbench.plugins import declare

if TYPE_CHECKING:
    from torch import Tensor

    from specbench.engine.pair import LoadedPair
    from specbench.engine.passes import Pass

D = TypeVar("D", bound="type[DrafterKind]")


class DrafterKind(Drafter):
    """A kind of drafter with its parameters, before and after it is loaded for a pair.

    A drafter copies tokens, or draws them from a q that its model computes.
    """

    name: ClassVar[str]  # in options and runs; ``drafter`` sets it
    needs_draft: ClassVar[bool] = False  # whether it runs the pair's draft model
    copies: ClassVar[bool] = False  # whether it copies: then q is one-hot, and drafts cost nothing

    @classmethod
    def parse(cls, value: str) -> Self:
        """Return the drafter with the value that follows its name and a colon, if any.

        Raises:
            UsageError: It takes no such value.
        """
        if value:
            raise UsageError(f"drafter {cls.name}:{value}: {cls.name} takes no value: leave it out")
        return cls()

    @property
    def value(self) -> str:
        """What follows the name; empty by default."""
        return ""

    def __str__(self) -> str:
        return f"{self.name}:{self.value}" if self.value else self.name

    @property
    def has_weights(self) -> bool:
        """Whether it runs a model of its own, which reads other states than the draft model."""
        return not (self.copies or self.needs_draft)

    def load(self, pair: LoadedPair) -> DrafterKind:
        """Return the drafter with all that it runs.

        Raises:
            UsageError: Its files cannot be read, or are for another target.
        """
        return self

    def files(self, modules: Mapping[str, Path]) -> list[Path]:
        """Return the files that decide its drafts; ``modules`` are those of a pair, by name."""
        return []

    def fingerprint(self) -> str:
        """Return a hash of weights of its own; empty without."""
        return ""

    def propose(self, text: Sequence[int], drafts: int) -> list[int] | None:
        """Return up to N drafts after a text, by code that decoding does not share; else None.

        Drafters that draw return None, since their drafts depend on random numbers.
        """
        return None

    def plain(
        self, pair: LoadedPair, texts: Sequence[Sequence[int]], position: Tensor, hidden: bool
    ) -> Pass | None:
        """Return the logits and states that predict tokens, by plain passes; None if it copies.

        The B texts have equal length, and ``position`` ``[B, k]`` is the index of each of their
        last k tokens within its round, from 0.
        """
        return None

    def along(
        self, pair: LoadedPair, text: Sequence[int], last: int, depths: int
    ) -> Iterator[Tensor]:
        """Yield the logits ``[last, V]`` of each depth of the rounds along a text, by plain passes.

        A round starts at each of the ``last`` tokens, and all of its drafts are the text's own
        tokens. Only weights of its own have several depths. Drafts beyond the end have no meaning.

        Raises:
            NotImplementedError: It copies, see ``copied``.
        """
        raise NotImplementedError

    def copied(
        self, prompt: Sequence[int], text: Sequence[int], most: int
    ) -> tuple[Tensor, Tensor]:
        """Return what it copies before each of T tokens ``[T, N]``, and how many tokens ``[T]``.

        Raises:
            NotImplementedError: It does not copy, see ``along``.
        """
        raise NotImplementedError

    def vllm(self, drafts: int, draft: str | None) -> dict[str, Any] | None:
        """Return the value of vLLM's ``--speculative-config``; None if vLLM lacks this drafter.

        ``draft`` is the name of the draft model.
        """
        return None

    def sglang(self, drafts: int, draft: str) -> list[str] | None:
        """Return SGLang's flags; None if it lacks this drafter."""
        return None

    def tensorrt_llm(self, drafts: int, draft: str) -> dict[str, Any] | None:
        """Return TensorRT-LLM's ``speculative_config``; None if it lacks this drafter."""
        return None

    def llamacpp(self, drafts: int, draft: str) -> list[str] | None:
        """Return the flags of llama.cpp's server, for a draft in a GGUF file, or None."""
        return None


@dataclass(frozen=True)
class Declaration:
    """A declared kind of drafter."""

    kind: type[DrafterKind]
    name: str
    summary: str  # one line
    source: str  # paper or project


def drafter(name: str, source: str = "this project") -> Callable[[D], D]:
    """Declare a class, which the first line of its docstring describes, as a kind of drafter."""

    def declare_drafter(kind: D) -> D:
        kind.name = name
        summary = (inspect.getdoc(kind) or "").partition("\n")[0]
        return declare(kind, Declaration(kind, name, summary, source))

    return declare_drafter

"""Drafts copied from the text itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafting import Drafts, State
from specbench.decoding.sampling import Sampling
from specbench.methods.control import DraftControl
from specbench.methods.lazy import Tensor, torch

if TYPE_CHECKING:
    from specbench.engine.pair import LoadedPair


class CopyingDrafter(DrafterKind, ABC):
    """Copies tokens of the text; runs no model.

    A subclass says what it copies twice: for batches on a device, and plainly for ``check``.
    """

    copies = True
    reads_text = True

    @abstractmethod
    def copy(self, tokens: Tensor, length: Tensor, drafts: int) -> tuple[Tensor, Tensor]:
        """Copy up to N tokens of each text.

        Args:
            tokens: ``[B, L]`` prompt and output of each text; what follows ``length`` is ignored.
            length: ``[B]`` tokens of each text.
            drafts: N, the most tokens copied.

        Returns:
            The drafts ``[B, N]``, and how many of them are proposed ``[B]``: 0 if nothing matches.
        """

    @abstractmethod
    def propose(self, text: Sequence[int], drafts: int) -> list[int]:
        """Return the same of one text by a plain search."""

    def runners(self, pair: LoadedPair) -> Sequence[object]:
        """Return no model."""
        return []

    def prefill(self, pair: LoadedPair, prompt: Tensor, row: int, states: Tensor | None) -> None:
        """Do nothing; ``State.tokens`` has the prompt."""

    def __call__(
        self, pair: LoadedPair, state: State, sampling: Sampling, control: DraftControl | None
    ) -> Drafts:
        """Copy up to N tokens; a control has nothing to decide, since copies cost nothing."""
        return pair.engine(draft_from_text)(self, state, pair.target.vocabulary)

    def copied(
        self, prompt: Sequence[int], text: Sequence[int], most: int
    ) -> tuple[Tensor, Tensor]:
        """Return what it copies before each token of a text ``[T, N]``, and how many ``[T]``."""
        length = len(prompt) + torch.arange(len(text))
        return self.copy(torch.tensor([*prompt, *text]).expand(len(text), -1), length, most)


def draft_from_text(drafter: CopyingDrafter, state: State, vocabulary: int) -> Drafts:
    """Copy up to N tokens of every text from the text itself; q and q1 are one-hot."""
    assert state.tokens is not None
    n = state.uniforms.shape[1] // 2
    x, proposed = drafter.copy(state.tokens, state.length, n)
    # A prompt may hold special tokens that the models do not share.
    proposed = torch.minimum(proposed, (x < vocabulary).cumprod(1).sum(1))
    x = torch.where(x < vocabulary, x, 0)
    is_proposed = torch.arange(n, device=x.device) < proposed[:, None]
    q = torch.zeros(*x.shape, vocabulary, device=x.device)
    q = q.scatter(2, x[..., None], is_proposed[..., None].to(q))
    return Drafts(x, q, q, q[..., :0], proposed)


def matched_tokens(tokens: Tensor, length: Tensor, longest: int) -> Tensor:
    """Return how many tokens up to each one equal as many at the text's end ``[B, L]``.

    At most ``longest`` are compared; an occurrence ends before the text does.
    """
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    last = length[:, None] - 1
    matched = torch.zeros_like(tokens)
    running = positions < last
    for back in range(longest):
        end = tokens.gather(1, (last - back).clamp_min(0))
        earlier = tokens.gather(1, (positions - back).clamp_min(0).expand_as(tokens))
        running = running & (earlier == end) & (positions >= back) & (last >= back)
        matched += running
    return matched

"""Prompt lookup: drafts copied from the text itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.decoding.drafting import Drafts, State
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.engine.runner import Model
from specbench.methods.control import DraftControl
from specbench.methods.drafters import LONGEST, SHORTEST


@dataclass(frozen=True)
class LookupDrafter:
    """Copies what followed an earlier occurrence of the text's last n-gram; runs no model."""

    shortest: int = SHORTEST
    longest: int = LONGEST
    reads_text = True
    layers = ()

    def runners(self, pair: LoadedPair) -> Sequence[Model]:
        """Return no model."""
        return []

    def prefill(self, pair: LoadedPair, prompt: Tensor, row: int, states: Tensor | None) -> None:
        """Do nothing; ``State.tokens`` has the prompt."""

    def __call__(
        self, pair: LoadedPair, state: State, sampling: Sampling, control: DraftControl | None
    ) -> Drafts:
        """Copy up to N tokens; a control has nothing to decide, since copies cost nothing."""
        vocabulary = pair.target.vocabulary
        return pair.engine(draft_from_text)(state, self.shortest, self.longest, vocabulary)


def draft_from_text(state: State, shortest: int, longest: int, vocabulary: int) -> Drafts:
    """Copy up to N tokens of every text from the text itself; q and q1 are one-hot."""
    assert state.tokens is not None
    n = state.uniforms.shape[1] // 2
    x, proposed = lookup(state.tokens, state.length, n, shortest, longest)
    # A prompt may hold special tokens that the models do not share.
    proposed = torch.minimum(proposed, (x < vocabulary).cumprod(1).sum(1))
    x = torch.where(x < vocabulary, x, 0)
    is_proposed = torch.arange(n, device=x.device) < proposed[:, None]
    q = torch.zeros(*x.shape, vocabulary, device=x.device)
    q = q.scatter(2, x[..., None], is_proposed[..., None].to(q))
    return Drafts(x, q, q, q[..., :0], proposed)


def lookup(
    tokens: Tensor, length: Tensor, drafts: int, shortest: int, longest: int
) -> tuple[Tensor, Tensor]:
    """Copy up to N tokens from where each text's last n-gram occurred before.

    Among equally long n-grams the last occurrence wins, although an earlier one may have more
    tokens after it; engines differ in this choice.

    Args:
        tokens: ``[B, L]`` prompt and output of each text; what follows ``length`` is ignored.
        length: ``[B]`` tokens of each text.
        drafts: N, the most tokens copied.
        shortest: Tokens of the shortest n-gram, at least 1.
        longest: Tokens of the longest n-gram.

    Returns:
        The drafts ``[B, N]``, and how many of them are proposed ``[B]``: 0 where nothing matches.

    Source: Saxena 2023, prompt lookup decoding; n-gram speculation of serving engines.
    """
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    last = length[:, None] - 1
    # matched[b, i]: how many tokens up to i equal as many at the end of the text.
    matched = torch.zeros_like(tokens)
    running = positions < last  # an occurrence ends before the text does
    for back in range(longest):
        end = tokens.gather(1, (last - back).clamp_min(0))
        earlier = tokens.gather(1, (positions - back).clamp_min(0).expand_as(tokens))
        running = running & (earlier == end) & (positions >= back) & (last >= back)
        matched += running
    matched = torch.where(matched >= shortest, matched, 0)
    # The longest n-gram first, then the last occurrence.
    best, match_end = (matched * tokens.shape[1] + positions).max(1)
    has_match = best >= tokens.shape[1]
    after = match_end[:, None] + 1 + torch.arange(drafts, device=tokens.device)
    proposed = torch.where(has_match, (length - 1 - match_end).clamp_max(drafts), 0)
    return tokens.gather(1, after.clamp_max(tokens.shape[1] - 1)), proposed

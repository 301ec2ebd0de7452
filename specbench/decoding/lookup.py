"""Prompt lookup: drafts without a draft model, copied from the text itself.

The longest n-gram that ends the text and occurs earlier in it proposes the tokens that followed it
there. Its draft distribution is one-hot, so all rules apply: ``sd`` accepts x with p(x).
"""

from __future__ import annotations

import torch
from torch import Tensor


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

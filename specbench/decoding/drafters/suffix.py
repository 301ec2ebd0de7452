"""Suffix decoding: copies of what followed the longest match of the text's end most often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specbench.decoding.drafters.copying import CopyingDrafter, matched_tokens
from specbench.decoding.drafters.kind import drafter
from specbench.methods.lazy import Tensor, torch

DEPTH = 24  # tokens of the longest match, as in vLLM


@drafter("suffix", source="Oliaro et al. 2024, arXiv:2411.04975; ArcticInference")
@dataclass(frozen=True)
class SuffixDrafter(CopyingDrafter):
    """Copies what followed the longest match of the text's end most often, token by token.

    The match is searched in prompt and output of the text alone. Of tokens that followed equally
    often the last one wins.
    """

    def copy(self, tokens: Tensor, length: Tensor, drafts: int) -> tuple[Tensor, Tensor]:
        """Walk down the branch of a suffix tree that was taken most often."""
        size = tokens.shape[1]
        positions = torch.arange(size, device=tokens.device)
        matched = matched_tokens(tokens, length, DEPTH)
        alive = (matched > 0) & (matched == matched.amax(1, keepdim=True))  # ends of matches
        x, proposed = [], torch.zeros_like(length)
        for i in range(1, drafts + 1):
            alive = alive & (positions + i < length[:, None])
            following = torch.where(alive, tokens.roll(-i, 1), -1)
            ordered = following.sort(1).values
            upper = torch.searchsorted(ordered, following, right=True)
            lower = torch.searchsorted(ordered, following)
            count = torch.where(alive, upper - lower, 0)
            best = (count * size + positions).argmax(1, keepdim=True)
            x.append(following.gather(1, best).clamp_min(0))
            alive = alive & (following == x[-1])
            proposed += alive.any(1)
        return torch.cat(x, 1), proposed

    def propose(self, text: Sequence[int], drafts: int) -> list[int]:
        """Count what followed each occurrence, for shorter and shorter ends of the text."""
        for size in range(min(DEPTH, len(text) - 1), 0, -1):
            ends = range(size, len(text))
            branch = [list(text[i:]) for i in ends if text[i - size : i] == text[-size:]]
            if branch:
                break
        else:
            return []
        copied: list[int] = []
        while len(copied) < drafts and (branch := [rest for rest in branch if rest]):
            count = Counter(rest[0] for rest in branch)
            last = {rest[0]: number for number, rest in enumerate(branch)}
            copied.append(max(count, key=lambda token: (count[token], last[token])))
            branch = [rest[1:] for rest in branch if rest[0] == copied[-1]]
        return copied

    def vllm(self, drafts: int, draft: str | None) -> dict[str, Any]:
        """Return the settings with which vLLM proposes as much; it needs `arctic-inference`."""
        names = ("max_tree_depth", "max_spec_factor", "min_token_prob", "max_cached_requests")
        values = zip(names, (DEPTH, float(drafts), 0.0, 0), strict=True)
        settings = {f"suffix_decoding_{name}": value for name, value in values}
        return {"method": "suffix", **settings, "num_speculative_tokens": drafts}

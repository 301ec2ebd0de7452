"""Prompt lookup: copies of what followed the text's last n-gram before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from specbench.decoding.drafters.copying import CopyingDrafter, matched_tokens
from specbench.decoding.drafters.kind import drafter
from specbench.errors import UsageError
from specbench.methods.lazy import Tensor, torch


@drafter("prompt-lookup", source="Saxena 2023; n-gram speculation of serving engines")
@dataclass(frozen=True)
class LookupDrafter(CopyingDrafter):
    """Copies what followed an earlier occurrence of the text's last n-gram.

    The longest n-gram wins, and among its occurrences the last one, although an earlier one may
    have more tokens after it; engines differ in this choice.
    """

    shortest: int = 1  # tokens of an n-gram
    longest: int = 3

    @classmethod
    def parse(cls, value: str) -> Self:
        """Read the lengths of the shortest and the longest n-gram, such as 2-5.

        Raises:
            UsageError: They are no such numbers.
        """
        match = re.fullmatch(r"(\d{1,4})-(\d{1,4})", value)
        chosen = cls(int(match[1]), int(match[2])) if match else cls()
        if (value and not match) or not 1 <= chosen.shortest <= chosen.longest:
            raise UsageError(
                f"drafter {cls.name}:{value}: give the tokens of the shortest and of the longest "
                f"n-gram, from 1 on, as {cls.name}:2-5"
            )
        return chosen

    @property
    def value(self) -> str:
        """The lengths, unless they are the default ones."""
        return "" if self == type(self)() else f"{self.shortest}-{self.longest}"

    def copy(self, tokens: Tensor, length: Tensor, drafts: int) -> tuple[Tensor, Tensor]:
        """Copy what followed the longest n-gram, at its last occurrence."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        matched = matched_tokens(tokens, length, self.longest)
        matched = torch.where(matched >= self.shortest, matched, 0)
        best, match_end = (matched * tokens.shape[1] + positions).max(1)
        has_match = best >= tokens.shape[1]
        after = match_end[:, None] + 1 + torch.arange(drafts, device=tokens.device)
        proposed = torch.where(has_match, (length - 1 - match_end).clamp_max(drafts), 0)
        return tokens.gather(1, after.clamp_max(tokens.shape[1] - 1)), proposed

    def propose(self, text: Sequence[int], drafts: int) -> list[int]:
        """Search the n-gram backwards, the longest first."""
        for length in range(min(self.longest, len(text) - 1), self.shortest - 1, -1):
            for start in range(len(text) - length - 1, -1, -1):
                end = start + length
                if text[start:end] == text[-length:]:
                    return list(text[end : end + drafts])
        return []

    def vllm(self, drafts: int, draft: str | None) -> dict[str, Any]:
        """Return the settings of n-gram speculation."""
        lengths = {"prompt_lookup_min": self.shortest, "prompt_lookup_max": self.longest}
        return {"method": "ngram", **lengths, "num_speculative_tokens": drafts}

    def sglang(self, drafts: int, draft: str) -> list[str]:
        """Return the flags of n-gram speculation."""
        return ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", f"{drafts}"]

    def tensorrt_llm(self, drafts: int, draft: str) -> dict[str, Any]:
        """Return the settings of n-gram speculation, which drafts the newest match as this does."""
        newest = {"is_keep_all": True, "is_use_oldest": False, "is_public_pool": False}
        sizes = {"max_matching_ngram_size": self.longest, "max_draft_len": drafts}
        return {"decoding_type": "NGram", **sizes, **newest}

    def llamacpp(self, drafts: int, draft: str) -> list[str]:
        """Return the flags of n-gram speculation."""
        return ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", f"{drafts}"]

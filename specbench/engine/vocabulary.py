"""The tokens of two models: those of the target, and which of them the draft has.

The target keeps every token that it has. Where the draft lacks one, its q is 0, and it reads its
own end token instead. Any q is a valid proposal, so the law of the text does not change.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase

from specbench.errors import UsageError


class DraftTokens(NamedTuple):
    """The tokens of a target with V tokens that a draft has; at least one is missing."""

    present: Tensor  # [V + 1] whether the draft has the token; the last entry is for larger ids
    substitute: int  # the draft's token that it reads for one that it lacks

    def inputs(self, tokens: Tensor) -> Tensor:
        """Return the tokens that the draft reads for the target's ``tokens``."""
        is_present = self.present[tokens.clamp_max(len(self.present) - 1)]
        return torch.where(is_present, tokens, self.substitute)

    def outputs(self, logits: Tensor) -> Tensor:
        """Return the draft's logits ``[..., rows]`` as ``[..., V]``, -inf for missing tokens."""
        size = len(self.present) - 1
        rows = min(size, logits.shape[-1])
        logits = pad(logits[..., :rows], (0, size - rows), value=-torch.inf)
        return logits.masked_fill(~self.present[:size], -torch.inf)


def vocabulary_size(tokenizer: PreTrainedTokenizerBase, rows: int) -> int:
    """Return V: rows of the weights behind the tokenizer's last token are no tokens."""
    return min(max(tokenizer.get_vocab().values(), default=-1) + 1, rows)


def draft_tokens(
    target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, size: int, rows: int
) -> DraftTokens | None:
    """Return which of the target's ``size`` tokens the draft has; None if it has all.

    ``rows`` are those of the draft's weights. An id that means two tokens is refused, but not an
    added one, such as an end of turn in the place of a reserved token.
    """
    of_target = {index: token for token, index in target.get_vocab().items() if index < size}
    of_draft = {index: token for token, index in draft.get_vocab().items() if index < rows}
    decoders = (target.added_tokens_decoder, draft.added_tokens_decoder)
    added = {token.content for decoder in decoders for token in decoder.values()}
    different = [
        index
        for index in sorted(of_target.keys() & of_draft.keys())
        if of_target[index] != of_draft[index] and not added & {of_target[index], of_draft[index]}
    ]
    if different:
        first = different[0]
        raise UsageError(
            f"the models do not share a vocabulary: token {first} is {of_target[first]!r} in the "
            f"target and {of_draft[first]!r} in the draft ({len(different)} ids differ); choose a "
            "draft of the target's family"
        )
    present = torch.tensor([i < rows and of_target.get(i) == of_draft.get(i) for i in range(size)])
    if present.all():
        return None
    end = draft.eos_token_id
    return DraftTokens(pad(present, (0, 1)), end if end is not None and 0 <= end < rows else 0)

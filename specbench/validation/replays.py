"""Compare every draw with the random number that decides it.

The random numbers of a text are known, so p and q of plain passes determine each draft, each
acceptance, and each correction or bonus token. This detects far smaller faults than a statistical
test does, and draws that are correct one by one but not independent. Faults of the random numbers
themselves are left to the statistical tests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.decoding.heads.bind import BoundMethod
from specbench.validation.laws import Laws
from specbench.validation.texts import CORRECTED, NOTHING, TARGET, VOID, Tokens

IMPOSSIBLE = 2.0  # distance of a draw that no random number gives


def distances(method: BoundMethod, tokens: Tokens, laws: Laws, numbers: Tensor) -> Tensor:
    """Return how far random numbers are from those that give the tokens of texts.

    Args:
        method: The bound method.
        tokens: The tokens of K texts.
        laws: The laws at these tokens.
        numbers: ``[K, S, rounds, 2 N + 1]``: S alternatives of each text's random numbers.

    Returns:
        ``[K T, S]``, the largest distance over the draws of a token; 0 if all of them agree.
    """
    rounds = tokens.round[:, None, :, None].expand(-1, numbers.shape[1], -1, numbers.shape[-1])
    numbers = numbers.gather(2, rounds).transpose(1, 2).flatten(0, 1)
    tokens = tokens.flatten()
    position = tokens.position[:, None, None].expand(-1, numbers.shape[1], 1)
    n = numbers.shape[-1] // 2
    for_draft = numbers.gather(-1, position)[..., 0]
    for_acceptance = numbers.gather(-1, position + n)[..., 0]
    corrected, final, judged = tokens.kind == CORRECTED, tokens.kind == TARGET, tokens.judged
    joint = method.joint
    largest = torch.zeros_like(for_draft)
    law = laws.at.p
    if method.rule is not None:
        drafted = tokens.drafted[judged]
        largest[judged] = _outside(laws.at.q[judged], drafted, for_draft[judged])
        verdict = method.rule(laws.positions.part(judged), drafted)
        law = law.index_put((judged,), verdict.residual.double())
        final = final | (corrected & (tokens.position == 0) if joint else corrected)
    if judged.any() and not joint:
        acceptance = laws.acceptance(tokens.drafted)
        accept = verdict.accept.double() if acceptance is None else acceptance[judged]
        above = for_acceptance[judged] - accept[:, None]
        above = torch.where(corrected[judged][:, None], -above, above)
        largest[judged] = torch.maximum(largest[judged], above.clamp_min(0))
    at_end = _outside(law[final], tokens.tokens[final], numbers[final][..., -1])
    largest[final] = torch.maximum(largest[final], at_end)
    if method.control is None:  # drafting must not stop earlier
        largest[(tokens.kind == TARGET) & (tokens.proposed != NOTHING)] = IMPOSSIBLE
    largest[tokens.kind == VOID] = torch.nan
    return largest


def _outside(law: Tensor, drawn: Tensor, numbers: Tensor) -> Tensor:
    """Return how far numbers ``[R, S]`` are outside the interval of a draw from laws ``[R, V]``."""
    cumulative = law.cumsum(-1)
    mass, end = law.gather(-1, drawn[:, None]), cumulative.gather(-1, drawn[:, None])
    whole = cumulative[:, -1:]
    outside = torch.maximum((end - mass) / whole - numbers, numbers - end / whole).clamp_min(0)
    return torch.where(mass > 0, outside, IMPOSSIBLE)

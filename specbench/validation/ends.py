"""The exact laws of the tokens of an audited decoder's texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench.engine.pair import LoadedPair, Model
from specbench.engine.passes import MAX_NUMBERS, plain_pass
from specbench.validation.draws import MIN_EXPECTED
from specbench.validation.outputs import Beginning, LawsAfter, Output, enumerate_outputs
from specbench.validation.texts import Context

LIKELY = 0.5  # probability that a token is a bonus, given those before


class EndedLaws(NamedTuple):
    """A pair's exact laws of the next token, with one more column for the end of the text."""

    pair: LoadedPair
    temperature: float

    @property
    def end(self) -> int:
        """The column, and the token, of the end."""
        return self.pair.target.vocabulary

    def logs(
        self, model: Model, prompt: Sequence[int], texts: Sequence[Sequence[int]], last: int
    ) -> Tensor:
        """Return log-probabilities ``[K, last, V + 1]`` of the last tokens of K texts."""
        tokens = [[token if token != self.end else 0 for token in text] for text in texts]
        logits = plain_pass(model, [[*prompt, *text] for text in tokens], last).logits.double()
        logs = (logits / self.temperature).log_softmax(-1)
        ends = [token for token in self.pair.eos_ids if token < model.vocabulary]
        ending = logs[..., ends].logsumexp(-1, keepdim=True)
        logs[..., ends] = -torch.inf
        return torch.cat((logs, ending), -1)

    def along(self, prompt: Sequence[int], texts: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        """Return the target's log-probabilities ``[K, T + 1, V + 1]``, as ``LogLaws`` says."""
        length = max(map(len, texts)) + 1
        padded = [[*text, *(0 for _ in range(length - len(text)))] for text in texts]
        return self.logs(self.pair.target, prompt, padded, length).cpu().numpy()

    def after(self, model: Model, prompt: Sequence[int], texts: Sequence[Sequence[int]]) -> Tensor:
        """Return log-probabilities ``[K, V + 1]`` of the token after each of K texts."""
        return self.logs(model, prompt, [[*text, 0] for text in texts], last=1)[:, 0]


def positions(
    laws: EndedLaws,
    context: Context,
    drawn: Sequence[list[int]],
    models: Sequence[Model],
    draft_length: int | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield the laws ``[K, V + 1]`` by the first and last model, the tokens, and the bonus tokens.

    Without a draft length no token is a bonus token.
    """
    length = max(map(len, drawn))
    numbers = 10 * length * (laws.end + 1)
    padded = torch.tensor([tokens + [laws.end] * (length - len(tokens)) for tokens in drawn])
    real = torch.tensor(
        [[position < len(tokens) for position in range(length)] for tokens in drawn]
    )
    device = models[0].device
    for rows in torch.arange(len(drawn)).split(max(1, MAX_NUMBERS // numbers)):
        texts, seen = padded[rows].to(device), real[rows].to(device)
        laws_of = [
            laws.logs(model, context.prompt, texts.tolist(), length).exp() for model in models
        ]
        law, wrong = laws_of[0], laws_of[-1]
        bonus = torch.zeros_like(seen)
        if draft_length is not None:
            bonus = _bonus(law, wrong, texts, draft_length)
        yield law[seen], wrong[seen], texts[seen], bonus[seen]


def _bonus(p: Tensor, q: Tensor, tokens: Tensor, draft_length: int) -> Tensor:
    """Return ``[K, T]`` whether a token probably follows N accepted drafts of its round.

    It depends only on the tokens before, so the law of such a token is still p. A token x that
    was judged is an accepted draft with probability min(1, q(x) / p(x)). The first round begins
    with the first token or, if reading the prompt gives a token, with the second.
    """
    drawn = tokens[..., None]
    accepted = (q.gather(-1, drawn) / p.gather(-1, drawn))[..., 0].clamp_max(1).nan_to_num(0)
    bonus = torch.zeros_like(tokens, dtype=torch.bool)
    for start in (0, draft_length):
        state = torch.zeros(len(tokens), draft_length + 1, dtype=p.dtype, device=p.device)
        state[:, start] = 1  # probability of each place in the round
        for position in range(tokens.shape[1]):
            bonus[:, position] |= state[:, -1] >= LIKELY
            going = state[:, :-1] * accepted[:, position, None]
            state = torch.cat((1 - going.sum(1, keepdim=True), going), 1)
    return bonus


def prefixes(
    laws: EndedLaws, context: Context, drawn: Sequence[list[int]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the law of prefixes ``[C]``, the wrong law, and the prefix of each text.

    A prefix grows by a token as long as enough texts are expected to have it, so every text has
    exactly one of the C prefixes.
    """
    limit = max(map(len, drawn))

    def after(beginnings: Sequence[Beginning]) -> LawsAfter:
        texts = [text for text, _ in beginnings]
        p = laws.after(laws.pair.target, context.prompt, texts).exp().cpu()
        q = laws.after(laws.pair.draft, context.prompt, texts).exp().cpu()
        return torch.zeros_like(p), p, p, q

    def goes_on(prefix: Output) -> bool:
        return prefix[-1] != laws.end and len(prefix) < limit

    law = enumerate_outputs(after, 2 * MIN_EXPECTED / len(drawn), goes_on)
    return law.law, law.wrong, torch.tensor([law.cell(tuple(tokens)) for tokens in drawn])

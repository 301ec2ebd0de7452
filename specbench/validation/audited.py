"""The tokens of an audited decoder's texts, and their exact laws.

A decoder may return only the text, which can be spelled in several ways by the tokens of a
vocabulary. One of them is drawn by its probability given the text: if the text was sampled from the
model, so are these tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specbench.engine.pair import LoadedPair, Model
from specbench.engine.passes import MAX_NUMBERS, plain_pass
from specbench.errors import UsageError, shown
from specbench.serving.server import Completion
from specbench.validation.draws import MIN_EXPECTED
from specbench.validation.outputs import Beginning, LawsAfter, Output, enumerate_outputs
from specbench.validation.texts import Context

LIKELY = 0.5  # probability that a token is a bonus, given those before
# Log-probability below which a spelling is ignored, relative to others that are at least as far.
LEAST = -16.0
PASSES = 32  # texts in one call of the laws, which bounds its memory
Tokens = tuple[int, ...]
LogLaws = Callable[[Sequence[Tokens]], NDArray[np.float64]]
"""``laws(texts) -> [K, T + 1, V]``: log-probabilities of the token after each of the first t tokens
of K texts of up to T tokens."""


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


class Branch(NamedTuple):
    """The beginning of a spelling."""

    tokens: Tokens
    weight: float  # log-probability
    length: int  # characters


class Spelling:
    """The pieces of text that the tokens of a vocabulary stand for.

    Args:
        tokenizer: The model's tokenizer.
        end: The number of tokens, which also stands for the end of a text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end: int) -> None:
        # A piece may begin with a space that is dropped at the beginning of a text.
        (first, *_) = tokenizer.encode("a", add_special_tokens=False)
        pairs = [[first, token] for token in range(end)]
        before = len(tokenizer.decode([first]))
        self.end, self._tokens = end, defaultdict(list)
        for token, text in enumerate(tokenizer.batch_decode(pairs, skip_special_tokens=True)):
            self._tokens[text[before:]].append(token)
        self._longest: int = max(map(len, self._tokens))

    def tokens(
        self, texts: Sequence[Completion], limit: int, laws: LogLaws, random: np.random.Generator
    ) -> list[list[int]]:
        """Return the tokens of the completions of one prompt, drawn as described above.

        Raises:
            UsageError: The tokens cannot spell a text.
        """
        longest = limit * self._longest  # characters
        if over := next((text.text for text in texts if len(text.text) > longest), None):
            raise UsageError(
                f"the server's text {shown(repr(over))} has {len(over):,} characters, but {limit} "
                f"tokens of the target have at most {longest}: give the --pair or --target that "
                "the server runs"
            )
        searches = {(text, ended): Search(self, text, ended, limit) for text, _, ended in texts}
        while branches := [
            (search, branch) for search in searches.values() for branch in search.open()
        ]:
            for start in range(0, len(branches), PASSES):
                part = branches[start : start + PASSES]
                paths = [search.complete(branch) for search, branch in part]
                for (search, branch), path, law in zip(part, paths, laws(paths), strict=True):
                    search.follow(branch, path, law)
        return [searches[text, ended].draw(random) for text, _, ended in texts]

    def beginnings(self, text: str, start: int) -> Iterator[tuple[int, int]]:
        """Yield each token that may follow ``start`` characters, with its length, longest last."""
        for size in range(min(self._longest, len(text) - start) + 1):
            for token in self._tokens.get(text[start : start + size], ()):
                yield token, size


class Search:
    """Finds the likely spellings of a text.

    One pass over a spelling gives the laws of all its tokens, and so the probability of every
    spelling that branches off it by a token. A pass over each beginning of each spelling would cost
    the square of the length.
    """

    def __init__(self, spelling: Spelling, text: str, ended: bool, limit: int) -> None:
        self._spelling, self._text, self._ended, self._limit = spelling, text, ended, limit
        self._branches = [Branch((), 0.0, 0)]
        self._spelled: dict[Tokens, float] = {}  # log-probabilities
        # By number of characters, the largest log-probability of a beginning at least as long.
        self._best = np.full(len(text) + 1, -np.inf)

    def open(self) -> list[Branch]:
        """Return the likely branches that are not followed yet."""
        branches, self._branches = self._branches, []
        return [branch for branch in branches if self._likely(branch)]

    def complete(self, branch: Branch) -> Tokens:
        """Return the tokens of a branch, continued by the longest piece each time."""
        tokens, length = list(branch.tokens), branch.length
        while length < len(self._text) and len(tokens) < self._limit:
            *_, (token, size) = [(None, 0), *self._spelling.beginnings(self._text, length)]
            if token is None or not size:
                break
            tokens.append(token)
            length += size
        return tuple(tokens)

    def follow(self, branch: Branch, path: Tokens, laws: NDArray[np.float64]) -> None:
        """Weigh a path from a branch on by its laws ``[T + 1, V]``, and note new branches."""
        for law in laws[len(branch.tokens) : len(path) + 1]:
            tokens, weight, length = branch
            whole = length == len(self._text)
            if whole and (self._ended or len(tokens) == self._limit):
                end = law[self._spelling.end] if self._ended else 0.0
                self._spelled[tokens] = weight + end
            if len(tokens) == self._limit or not self._likely(branch):
                return
            for token, size in self._spelling.beginnings(self._text, length):
                longer = Branch((*tokens, token), weight + law[token], length + size)
                seen = self._best[: longer.length + 1]
                np.maximum(seen, longer.weight, out=seen)
                if longer.tokens == path[: len(longer.tokens)]:
                    branch = longer
                else:
                    self._branches.append(longer)

    def draw(self, random: np.random.Generator) -> list[int]:
        """Return a spelling, drawn by its probability.

        Raises:
            UsageError: There is none.
        """
        if not self._spelled:
            raise UsageError(
                f"the target's tokens cannot spell the server's text {shown(repr(self._text))}: "
                "give the --pair or --target that the server runs, or other --prompts if tokens "
                "are parts of characters"
            )
        weights = np.exp(np.array(list(self._spelled.values())) - max(self._spelled.values()))
        chosen = random.choice(len(weights), p=weights / weights.sum())
        return list(list(self._spelled)[chosen])

    def _likely(self, branch: Branch) -> bool:
        return bool(branch.weight >= self._best[branch.length] + LEAST)

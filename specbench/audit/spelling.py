"""The tokens of a text, for decoders that return only the text.

A text can be spelled in several ways by the tokens of a vocabulary. One of them is drawn by its
probability given the text: if the text was sampled from the model, so are these tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from specbench.audit.decoders import Completion
from specbench.errors import UsageError
from specbench.words import shown

# Log-probability below which a spelling is ignored, relative to others that are at least as far.
LEAST = -16.0
Tokens = tuple[int, ...]
LogLaws = Callable[[Sequence[Tokens]], NDArray[np.float64]]
"""``laws(texts) -> [K, V]``: log-probabilities of the token after each of K equally long texts."""


class Spelling:
    """The pieces of text that the tokens of a vocabulary stand for.

    Args:
        tokenizer: The model's tokenizer.
        size: Number of tokens.
        end: The token that ends a text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, size: int, end: int) -> None:
        # A piece may begin with a space that is dropped at the beginning of a text.
        (first, *_) = tokenizer.encode("a", add_special_tokens=False)
        pairs = [[first, token] for token in range(size)]
        before = len(tokenizer.decode([first]))
        self.end, self._tokens = end, defaultdict(list)
        for token, text in enumerate(tokenizer.batch_decode(pairs, skip_special_tokens=True)):
            if token != end:
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
        if over := next((each.text for each in texts if len(each.text) > longest), None):
            raise UsageError(
                f"the server's text {shown(repr(over))} has {len(over):,} characters, but {limit} "
                f"tokens of the target have at most {longest}: give the --pair or --target that "
                "the server runs"
            )
        # Log-probability, and number of characters, by tokens; the best of those as far.
        beams: list[dict[Tokens, tuple[float, int]]] = [{(): (0.0, 0)} for _ in texts]
        whole: list[dict[Tokens, float]] = [{} for _ in texts]
        best = [np.full(len(text.text) + 1, -np.inf) for text in texts]
        for length in range(limit + 1):
            nodes = list(dict.fromkeys(node for beam in beams for node in beam))
            if not nodes:
                break
            known = dict(zip(nodes, laws(nodes), strict=True))
            for number, (text, _, ended) in enumerate(texts):
                longer = {}
                for node, (weight, at) in beams[number].items():
                    law = known[node]
                    if at == len(text) and (ended or length == limit):
                        whole[number][node] = weight + (law[self.end] if ended else 0)
                    if length < limit:
                        for piece in range(min(self._longest, len(text) - at) + 1):
                            for token in self._tokens.get(text[at : at + piece], ()):
                                longer[*node, token] = weight + law[token], at + piece
                for weight, at in longer.values():
                    np.maximum(best[number][: at + 1], weight, out=best[number][: at + 1])
                beams[number] = {
                    node: (weight, at)
                    for node, (weight, at) in longer.items()
                    if weight >= best[number][at] + LEAST
                }
        return [self._draw(*both, random) for both in zip(texts, whole, strict=True)]

    def _draw(
        self, text: Completion, spelled: dict[Tokens, float], random: np.random.Generator
    ) -> list[int]:
        if not spelled:
            raise UsageError(
                f"the target's tokens cannot spell the server's text {shown(repr(text.text))}: "
                "give the --pair or --target that the server runs, or other --prompts if tokens "
                "are parts of characters"
            )
        weights = np.exp(np.array(list(spelled.values())) - max(spelled.values()))
        chosen = random.choice(len(spelled), p=weights / weights.sum())
        return list(list(spelled)[chosen])

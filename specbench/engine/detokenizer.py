"""Texts of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from transformers import PreTrainedTokenizerBase

from specbench.tasks.thoughts import is_mark


class Detokenizer:
    """Makes texts of tokens, without special tokens but for the marks of thoughts."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.items()
        special = {token: is_mark(str(text)) for token, text in added if text.special}
        self._marks = {token for token, mark in special.items() if mark}
        self._hidden = special.keys() - self._marks

    def __call__(self, token_ids: Sequence[int], stop: Sequence[str] = ()) -> str:
        """Return the text before the first stop string."""
        if self._marks.isdisjoint(token_ids):
            text = str(self._tokenizer.decode([*token_ids], skip_special_tokens=True))
        else:
            visible = [token for token in token_ids if token not in self._hidden]
            text = str(self._tokenizer.decode(visible))
        for string in stop:
            text = text.split(string, 1)[0]
        return text


detokenizer_of = cache(Detokenizer)
"""Return the only detokenizer of a tokenizer."""

"""Vocabularies are compared token by token, whatever their sizes."""

from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer, models
from transformers import AddedToken, PreTrainedTokenizerFast

from specbench.engine.loading import shared_vocabulary
from specbench.errors import UsageError

WORDS = ["a", "b", "c", "d", "e"]


def words(tokens: Sequence[str], *added: str) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words, and marks added behind them."""
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(tokens)}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    tokenizer.add_tokens([AddedToken(mark, special=True) for mark in added])
    return tokenizer


def test_marks_behind_the_others_last_token_are_left_out() -> None:
    for marks, others, shared in (("x", "x", 6), ("xy", "x", 6), ("xy", "", 5), ("x", "", 5)):
        longer, shorter = words(WORDS, *marks), words(WORDS, *others)
        assert shared_vocabulary(longer, shorter) == shared_vocabulary(shorter, longer) == shared


@pytest.mark.parametrize(
    ("target", "draft", "told"),
    [
        (words(WORDS), words(list("acbde")), r"token 1 is 'b' .* and 'c' .*\(2 ids"),
        (words(WORDS), words(list("abcdE")), r"token 4 is 'e' .* and 'E' .*\(1 ids differ\)"),
        # A word of the language is no mark: the longer model would lose it.
        (words(WORDS), words(WORDS[:3]), r"token 3 is 'd' .* and nothing .*\(2 ids"),
        (words(WORDS[:3]), words(WORDS), r"token 3 is nothing .* and 'd' .*\(2 ids"),
        (words(WORDS, "x"), words(WORDS, "y", "z"), "token 5 is 'x' .* and 'y'"),
        (words(WORDS[:4], "x"), words(WORDS), "token 4 is 'x' .* and 'e'"),
    ],
)
def test_the_first_difference_is_named(
    target: PreTrainedTokenizerFast, draft: PreTrainedTokenizerFast, told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        shared_vocabulary(target, draft)

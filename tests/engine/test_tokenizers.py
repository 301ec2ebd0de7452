"""Vocabularies are compared token by token, whatever their sizes."""

from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer, models
from transformers import AddedToken, PreTrainedTokenizerFast

from specbench.engine.tokenizers import shared_vocabulary
from specbench.errors import UsageError

WORDS = ["a", "b", "c", "d", "e"]


def words(tokens: Sequence[str], *added: str) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words, and marks added behind them."""
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(tokens)}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    tokenizer.add_tokens([AddedToken(mark, special=True) for mark in added])
    return tokenizer


def test_the_same_tokens_are_all_shared() -> None:
    assert shared_vocabulary(words(WORDS, "<x>"), words(WORDS, "<x>")) == 6


@pytest.mark.parametrize("marks", [["<x>", "<y>"], ["<x>"]])
def test_marks_behind_the_others_last_token_are_left_out(marks: list[str]) -> None:
    longer, shorter = words(WORDS, *marks), words(WORDS)
    assert shared_vocabulary(longer, shorter) == shared_vocabulary(shorter, longer) == 5


def test_marks_that_both_have_are_shared() -> None:
    assert shared_vocabulary(words(WORDS, "<x>", "<y>"), words(WORDS, "<x>")) == 6


@pytest.mark.parametrize(
    ("target", "draft", "told"),
    [
        (WORDS, ["a", "c", "b", "d", "e"], r"token 1 is 'b' to the target and 'c' .*\(2 ids"),
        (WORDS, [*WORDS[:4], "E"], r"token 4 is 'e' to the target and 'E' .*\(1 ids differ\)"),
        # A word of the language is no mark: the longer model would lose it.
        (WORDS, WORDS[:3], r"token 3 is 'd' to the target and nothing to the draft \(2 ids"),
        (WORDS[:3], WORDS, r"token 3 is nothing to the target and 'd' to the draft \(2 ids"),
    ],
)
def test_the_first_difference_is_named(target: list[str], draft: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        shared_vocabulary(words(target), words(draft))


def test_other_marks_at_the_same_place_are_refused() -> None:
    with pytest.raises(UsageError, match="token 5 is '<x>' to the target and '<y>' to the draft"):
        shared_vocabulary(words(WORDS, "<x>"), words(WORDS, "<y>", "<z>"))


def test_a_mark_where_the_other_has_a_word_is_refused() -> None:
    with pytest.raises(UsageError, match="token 4 is '<x>' to the target and 'e'"):
        shared_vocabulary(words(WORDS[:4], "<x>"), words(WORDS))

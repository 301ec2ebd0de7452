"""Prompt lookup against a search written the slow way."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.decoding.drafters.lookup import lookup


def slow(text: list[int], drafts: int, shortest: int, longest: int) -> list[int]:
    for n in range(min(longest, len(text) - 1), shortest - 1, -1):
        for start in range(len(text) - n - 1, -1, -1):
            if text[start : start + n] == text[-n:]:
                return text[start + n : start + n + drafts]
    return []


@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=3),
    drafts=st.integers(1, 5),
    shortest=st.integers(1, 3),
    more=st.integers(0, 2),
)
def test_it_copies_what_followed_the_longest_match(texts, drafts, shortest, more):
    width = 16
    # What lies behind a text's end must not matter: it repeats the text there.
    rows = torch.tensor([(text * width)[:width] for text in texts])
    length = torch.tensor([len(text) for text in texts])
    x, proposed = lookup(rows, length, drafts, shortest, shortest + more)
    found = [row[:n].tolist() for row, n in zip(x, proposed.tolist(), strict=True)]
    assert found == [slow(text, drafts, shortest, shortest + more) for text in texts]


def test_it_finds_something_to_copy():
    x, proposed = lookup(torch.tensor([[7, 8, 9, 7, 8, 0]]), torch.tensor([5]), 3, 1, 3)
    assert (x[0, : proposed[0]].tolist(), proposed.tolist()) == ([9, 7, 8], [3])

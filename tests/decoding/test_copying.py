"""Drafters that copy: batches are copied like each text alone; what suffix decoding copies."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.decoding.drafters.lookup import LookupDrafter
from specbench.decoding.drafters.registry import DRAFTERS
from specbench.decoding.drafters.suffix import DEPTH, SuffixDrafter

COPYING = [declared.kind.parse("") for declared in DRAFTERS.values() if declared.kind.copies]
LOOKUPS = [LookupDrafter(shortest, shortest + more) for shortest in (1, 2, 3) for more in (0, 2)]


@pytest.mark.parametrize("drafter", [*COPYING, *LOOKUPS], ids=str)
@settings(max_examples=100, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=3),
    drafts=st.integers(1, 5),
)
def test_batches_are_copied_like_each_text_alone(drafter, texts, drafts):
    width = 16
    # What lies behind a text's end must not matter: it repeats the text there.
    rows = torch.tensor([(text * width)[:width] for text in texts])
    length = torch.tensor([len(text) for text in texts])
    x, proposed = drafter.copy(rows, length, drafts)
    copies = [row[:n].tolist() for row, n in zip(x, proposed.tolist(), strict=True)]
    assert copies == [drafter.propose(text, drafts) for text in texts]


@pytest.mark.parametrize("drafter", COPYING, ids=str)
def test_it_finds_something_to_copy(drafter):
    x, proposed = drafter.copy(torch.tensor([[7, 8, 9, 7, 8, 0]]), torch.tensor([5]), 3)
    copied = x[0, : proposed[0]].tolist()
    assert len(copied) == 3
    if str(drafter) in ("prompt-lookup", "suffix"):
        assert copied == [9, 7, 8]


SUFFIX = SuffixDrafter()


@pytest.mark.parametrize(
    ("text", "copied"),
    [
        ([1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2], [3, 1, 2, 4]),  # 3 followed twice, 4 once
        ([1, 2, 4, 5, 1, 2, 3, 6, 1, 2], [3, 6, 1, 2]),  # both once: the last one
        ([1, 2, 3, 7, 2, 3, 8, 2, 3, 8, 1, 2, 3], [7, 2, 3, 8]),  # the longest match, not the most
        ([1, 2, 3], []),
    ],
)
def test_it_copies_the_most_frequent_continuation(text, copied):
    assert SUFFIX.propose(text, 4) == copied
    x, proposed = SUFFIX.copy(torch.tensor([text]), torch.tensor([len(text)]), 4)
    assert x[0, : proposed[0]].tolist() == copied


def test_it_differs_from_prompt_lookup_beyond_its_n_gram():
    text = [1, 2, 3, 4, 5, 9, 2, 3, 4, 6, 1, 2, 3, 4]
    assert SUFFIX.propose(text, 1) == [5] and LookupDrafter().propose(text, 1) == [6]
    repeated = [7] * 2 * DEPTH
    assert SUFFIX.propose(repeated, 3) == [7, 7, 7]


def test_vllm_gets_a_tree_of_one_request():
    settings = SUFFIX.vllm(3, None)
    assert settings["method"] == "suffix" and settings["num_speculative_tokens"] == 3
    assert settings["suffix_decoding_max_cached_requests"] == 0
    assert SUFFIX.sglang(3, "") is SUFFIX.llamacpp(3, "") is None

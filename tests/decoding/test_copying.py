"""Each drafter that copies does so for batches as its own plain search says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.decoding.drafters.lookup import LookupDrafter
from specbench.decoding.drafters.registry import DRAFTERS

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
    found = [row[:n].tolist() for row, n in zip(x, proposed.tolist(), strict=True)]
    assert found == [drafter.propose(text, drafts) for text in texts]


@pytest.mark.parametrize("drafter", COPYING, ids=str)
def test_it_finds_something_to_copy(drafter):
    x, proposed = drafter.copy(torch.tensor([[7, 8, 9, 7, 8, 0]]), torch.tensor([5]), 3)
    assert (x[0, : proposed[0]].tolist(), proposed.tolist()) == ([9, 7, 8], [3])

"""What became of each token, from the counts of its rounds."""

import pytest

from specbench.errors import UsageError
from specbench.trace.tokens import (
    AGREED,
    CORRECTION,
    MISMATCH,
    REJECTED,
    TARGET,
    Unreadable,
    tokens,
)

from .made import made


def test_a_round_is_its_accepted_drafts_and_one_token_of_the_target() -> None:
    found = tokens(made(("aB", "x", "c"), ("defgh", "", "i"), weight=0.3))
    assert [(chr(t.id or 0), t.kind, t.round) for t in found] == [
        ("a", AGREED, 1),
        ("B", MISMATCH, 1),
        ("x", REJECTED, 1),
        ("c", CORRECTION, 1),
        *((letter, AGREED, 2) for letter in "defgh"),
        ("i", TARGET, 2),
    ]
    # A correction stands at the place that the rejected draft was judged at; a bonus at none.
    assert [t.weight for t in found[:4]] == pytest.approx([0.3, 0.4, 0.5, 0.5])
    assert [t.expected for t in found[:4]] == pytest.approx([0.9, 0.8, 0.7, 0.7])
    assert (found[-1].expected, found[-1].weight) == (None, None)


def test_the_end_token_has_no_id() -> None:
    by_the_target = tokens(made(("ab", "x", "$"), end=True))
    assert [(t.id, t.kind) for t in by_the_target[-2:]] == [
        (ord("x"), REJECTED),
        (None, CORRECTION),
    ]
    by_the_draft = tokens(made(("ab$", "", ""), end=True))
    assert [(t.id, t.kind) for t in by_the_draft[-1:]] == [(None, AGREED)]


def test_autoregressive_tokens_are_the_target_s() -> None:
    assert {t.kind for t in tokens(made(("", "", "a"), ("", "", "b")))} == {TARGET}


@pytest.mark.parametrize("name", ["rejected", "agreed"])
def test_a_record_without_the_rejected_tokens_is_refused(name: str) -> None:
    record = made(("ab", "x", "c"))
    del record["per_round"][name]
    with pytest.raises(UsageError, match=f"per_round.{name}.*run again"):
        tokens(record)


@pytest.mark.parametrize("name", ["token_ids", "agreed", "rejected"])
def test_rounds_that_make_no_text_are_refused(name: str) -> None:
    record = made(("ab", "x", "c"), ("de", "x", "f"))
    if name == "token_ids":
        record["token_ids"] = record["token_ids"][:3]
    elif name == "agreed":
        record["per_round"]["agreed"][0].pop()
    else:
        record["per_round"]["rejected"].pop()
    with pytest.raises(Unreadable):
        tokens(record)

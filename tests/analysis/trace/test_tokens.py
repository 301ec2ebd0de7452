"""The kind of each token, from the records of rounds, and the pieces of text."""

import random
from collections.abc import Sequence

import pytest

from specbench.analysis.trace import (
    AGREED,
    BONUS,
    CORRECTION,
    END,
    MISMATCH,
    REJECTED,
    TARGET,
    Token,
    Unreadable,
    pieces,
    tokens,
    visible,
)
from specbench.errors import UsageError

from .made import decode, made


def test_a_round_is_its_accepted_drafts_and_one_token_of_the_target() -> None:
    found = tokens(made(("aB", "x", "c"), ("defgh", "", "i"), weight=0.3))
    assert [(chr(t.id or 0), t.kind, t.round) for t in found] == [
        ("a", AGREED, 1),
        ("B", MISMATCH, 1),
        ("x", REJECTED, 1),
        ("c", CORRECTION, 1),
        *((letter, AGREED, 2) for letter in "defgh"),
        ("i", BONUS, 2),
    ]
    # A correction has the position of the rejected draft; a bonus token has no judged position.
    assert [t.weight for t in found[:4]] == pytest.approx([0.3, 0.4, 0.5, 0.5])
    assert [t.expected for t in found[:4]] == pytest.approx([0.9, 0.8, 0.7, 0.7])
    assert (found[-1].expected, found[-1].weight) == (None, None)


def test_the_end_token_has_no_id() -> None:
    *_, rejected, end = tokens(made(("ab", "x", "$"), end=True))
    assert [(t.id, t.kind) for t in (rejected, end)] == [(ord("x"), REJECTED), (None, CORRECTION)]
    by_the_draft = tokens(made(("ab$", "", ""), end=True))
    assert by_the_draft[-1][:2] == (None, AGREED)
    assert [piece.text for piece in pieces(by_the_draft, decode)] == ["a", "b", END]


def test_autoregressive_tokens_are_target_tokens() -> None:
    assert {t.kind for t in tokens(made(("", "", "a"), ("", "", "b")))} == {TARGET}


def test_rounds_that_do_not_match_the_text_are_refused() -> None:
    for name in ("rejected", "agreed"):
        record = made(("ab", "x", "c"))
        del record["per_round"][name]
        with pytest.raises(UsageError, match=f"per_round.{name}.*run again"):
            tokens(record)
    torn = [made(("ab", "x", "c"), ("de", "x", "f")) for _ in range(3)]
    del torn[0]["token_ids"][3:]
    torn[1]["per_round"]["agreed"][0].pop()
    torn[2]["per_round"]["rejected"].pop()
    for record in torn:
        with pytest.raises(Unreadable):
            tokens(record)


def test_tokens_that_share_a_character_are_one_piece() -> None:
    euro = "€".encode()
    marked = [
        Token(ord("a"), AGREED, 1),
        Token(euro[0], MISMATCH, 1, weight=0.1),
        Token(euro[1], TARGET, 1),
        Token(ord("x"), REJECTED, 2),
        Token(euro[2], CORRECTION, 2, weight=0.3),
    ]
    found = list(pieces(marked, decode))
    # A token rejected within a character comes before it, with the character's first bytes.
    assert [(p.text, p.kind) for p in found] == [
        ("a", AGREED),
        ("\ufffdx", REJECTED),
        ("€", MISMATCH),
    ]
    assert (found[2].round, found[2].weight) == (2, 0.3)


def test_pieces_add_up_to_the_text() -> None:
    draw = random.Random(0)
    for _ in range(50):
        text = "".join(draw.choice("aé€🙂\n ") for _ in range(12)).encode()
        marked = []
        for byte in text[: draw.randint(1, len(text))]:
            if draw.random() < 0.3:
                marked.append(Token(draw.randrange(256), REJECTED, 1))
            marked.append(Token(byte, draw.choice([AGREED, MISMATCH]), 1))
        ids = [t.id for t in marked if t.kind != REJECTED and t.id is not None]
        found = list(pieces(marked, decode))
        assert "".join(p.text for p in found if p.kind != REJECTED) == decode(ids)
        assert sum(p.kind == REJECTED for p in found) == sum(t.kind == REJECTED for t in marked)


def test_a_tokenizer_that_drops_the_first_space() -> None:
    words = [" the", " cat", " sat", "s"]

    def like_sentencepiece(ids: Sequence[int]) -> str:
        return "".join(words[i] for i in ids).removeprefix(" ")

    kinds = enumerate((AGREED, REJECTED, CORRECTION, AGREED))
    found = pieces([Token(number, kind, 1) for number, kind in kinds], like_sentencepiece)
    assert [piece.text for piece in found] == ["the", " cat", " sat", "s"]


def test_control_characters_are_shown_as_symbols() -> None:
    assert visible("a\x1b[31m\x07\x9b\tb\n") == "a␛[31m␇␡\tb\n"
    assert visible("a\nb", marked=True) == "a↵\nb"
    assert visible("a\nb", rejected=True) == "a↵b"

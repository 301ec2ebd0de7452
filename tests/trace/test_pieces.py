"""Texts of tokens that only several of them together make."""

import random

from specbench.trace.pieces import END, pieces, visible
from specbench.trace.tokens import AGREED, CORRECTION, MISMATCH, REJECTED, TARGET, Token, tokens

from .made import decode, made


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
    # What was rejected within a character stands before it, with what there was of it.
    assert [(p.text, p.kind) for p in found] == [
        ("a", AGREED),
        ("\ufffdx", REJECTED),
        ("€", MISMATCH),
    ]
    assert (found[2].round, found[2].weight) == (2, 0.3)


def test_pieces_add_up_to_the_text() -> None:
    draw = random.Random(0)
    for _ in range(200):
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

    def like_sentencepiece(ids: list[int]) -> str:
        return "".join(words[i] for i in ids).removeprefix(" ")

    marked = [Token(0, AGREED, 1), Token(1, REJECTED, 1), Token(2, CORRECTION, 1)]
    marked.append(Token(3, AGREED, 2))
    texts = [piece.text for piece in pieces(marked, like_sentencepiece)]  # type: ignore[arg-type]
    assert texts == ["the", " cat", " sat", "s"]


def test_the_end_is_shown() -> None:
    found = list(pieces(tokens(made(("ab$", "", ""), end=True)), decode))
    assert [p.text for p in found] == ["a", "b", END]


def test_text_that_would_steer_a_terminal_is_shown_instead() -> None:
    assert visible("a\x1b[31m\x07\x9b\tb\n") == "a␛[31m␇␡\tb\n"
    assert visible("a\nb", marked=True) == "a↵\nb"
    assert visible("a\nb", rejected=True) == "a↵b"

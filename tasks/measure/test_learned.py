"""``learned.py``: kinds of tokens, their names, weights and the table by hand."""

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from measure.learned import (
    CAPITALISED,
    END,
    LOWER_CASE,
    NUMBER,
    OPERATOR,
    PIECE,
    PUNCTUATION,
    SPACE,
    draw,
    kind_of,
    readable,
    sample_tokens,
    tabulate,
    token_text,
)
from specbench.decoding.heads.head import Head
from specbench.engine.loading import load_pair
from specbench.engine.pairs import Loading, get_pair
from specbench.tasks.task import load_task
from specbench.training.material import split_material
from specbench.training.rollouts import RolloutRequest, roll_out

VOCABULARY = ["[UNK]", "a", "▁a", "▁the", "the", "##the", "ing", "##ing"]


def test_kinds_of_token():
    for kind, tokens_after in {
        NUMBER: [(" 42", " is"), ("7", "3")],
        OPERATOR: [(" +", " "), ("**", "x")],
        PUNCTUATION: [(".", "end"), ("####", "\n")],
        CAPITALISED: [(" York", " in"), ("Then", "\n")],
        LOWER_CASE: [(" trays", " of"), ("value", "("), ("def", "")],
        PIECE: [("ing", " paint"), ("Donald", " Mc")],
        SPACE: [(" ", "is"), ("\n   ", ":")],
    }.items():
        assert {kind_of(text, before) for text, before in tokens_after} == {kind}
    assert [readable(text) for text in (" a b\n\t", "\x07\r", "é$")] == ["␣a␣b⏎⇥", r"\x07\r", "é$"]


def test_tokens_read_as_inside_a_text():
    """Whether a tokenizer marks spaces, like SentencePiece, or pieces, like WordPiece."""
    vocabulary = {token: i for i, token in enumerate(VOCABULARY)}
    marks_spaces = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    marks_spaces.pre_tokenizer = pre_tokenizers.Metaspace()
    marks_spaces.decoder = decoders.Metaspace()
    marks_pieces = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    marks_pieces.pre_tokenizer = pre_tokenizers.Whitespace()
    marks_pieces.decoder = decoders.WordPiece()
    for tokenizer, token, text in (
        (marks_spaces, "▁the", " the"),
        (marks_spaces, "ing", "ing"),
        (marks_pieces, "the", " the"),
        (marks_pieces, "##ing", "ing"),
    ):
        made = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
        assert token_text(made, VOCABULARY.index(token)) == text


def test_names_in_order_are_the_texts_and_weights_those_of_the_positions():
    mini = load_pair(get_pair("mini"), Loading())
    prompts = split_material(mini, load_task("mini-headline"), "train", 5, 7, 512).prompts
    head = Head("features", (mini.target.hidden_size, mini.draft.hidden_size), 0.5)
    # Any head that reads only the total variation will do: it is the ninth feature.
    head.hidden, head.summary = None, torch.nn.Linear(10, 2)
    for parameter in head.summary.parameters():
        parameter.data.zero_()
    head.summary.weight.data[1, 8] = 3.0
    frame = sample_tokens(mini, head, prompts, 64, seed=3)
    np.testing.assert_allclose(frame["weight"], 1 / (1 + np.exp(-3 * frame["tv"])), rtol=1e-5)
    assert frame["tv"].std() > 0.1
    part = RolloutRequest([head], prompts, torch.Generator().manual_seed(3))
    texts = roll_out(mini, [part], 64)[0].texts
    for number, text in enumerate(texts):
        mine = frame[frame["text"] == number]
        assert "".join(mine.loc[mine["kind"] != END, "name"]) == readable(text)
        assert (mine["kind"] == END).sum() <= 1
    assert (frame["kind"] == END).any()


def test_the_table_by_hand_and_its_figure():
    rows = [
        (0, "7", NUMBER, 1.0, 0.5),
        (0, "7", NUMBER, 0.5, 0.0),
        (1, "7", NUMBER, 0.9, 0.5),
        (1, "␣a", LOWER_CASE, 0.2, 0.0),
        (1, "␣a", PIECE, 0.4, 0.1),
    ]
    table = tabulate(pd.DataFrame(rows, columns=["text", "name", "kind", "weight", "tv"]))
    assert table["level"].tolist() == ["all", *["kind"] * 3, *["token"] * 3]
    names = [NUMBER, PIECE, LOWER_CASE, "7", "␣a", "␣a"]
    assert table["name"].tolist() == ["all tokens", *names]
    everything, number = table.iloc[0], table.iloc[1]
    assert (everything["n"], everything["texts"]) == (5, 2)
    assert everything["mean_weight"] == pytest.approx(0.6)
    assert (number["n"], number["texts"]) == (3, 2)
    assert number["mean_weight"] == pytest.approx(0.8)
    assert np.isnan([number["ci_low"], number["ci_high"]]).all()  # two texts
    assert number["weight_q50"] == pytest.approx(0.9)
    assert number["mean_tv"] == pytest.approx(1 / 3)
    assert number["effective_weight"] == pytest.approx(0.95)  # (1.0 + 0.9) / 2
    by_kind = table[table["level"] == "token"].set_index("kind")["effective_weight"]
    assert np.isnan(by_kind[LOWER_CASE])  # the models agree
    assert by_kind[PIECE] == pytest.approx(0.4)
    drawing = draw(table.assign(n=10), "$\\frac$")  # no formula
    left, right = drawing.figure.axes
    assert [t.get_text().split("\n")[0] for t in left.get_yticklabels()] == names[:3]
    assert [t.get_text() for t in right.get_yticklabels()] == ["7 (10)", "␣a (10)", "␣a (10)"]

"""What a head has learned: kinds of tokens, their names, and the table."""

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specbench.analysis import learned
from specbench.analysis.learned import About, kind_of, readable, tabulate
from specbench.decoding.heads.head import Head
from specbench.decoding.heads.kinds import KINDS
from specbench.tasks.task import load_task
from specbench.training import rollouts
from specbench.training.material import split_material
from specbench.training.rollouts import roll_out
from specbench.training.tokens import sample_tokens, token_text

ABOUT = About("mini", "mini-math", "mini-news", "linear")


@pytest.fixture(scope="module")
def prompts(mini) -> list[list[int]]:
    return split_material(mini, load_task("mini-headline"), "train", 5, 7, 512).prompts


def test_kinds_of_token():
    for kind, tokens_after in {
        learned.NUMBER: [(" 42", " is"), ("7", "3")],
        learned.OPERATOR: [(" +", " "), ("**", "x")],
        learned.PUNCTUATION: [(".", "end"), ("####", "\n")],
        learned.CAPITALISED: [(" York", " in"), ("Then", "\n")],
        learned.LOWER_CASE: [(" trays", " of"), ("value", "("), ("def", "")],
        learned.PIECE: [("ing", " paint"), ("Donald", " Mc")],
        learned.SPACE: [(" ", "is"), ("\n   ", ":")],
    }.items():
        assert {kind_of(text, before) for text, before in tokens_after} == {kind}


def test_names_show_white_space_and_escape_unprintable_characters():
    assert readable(" a b\n\t") == "␣a␣b⏎⇥"
    assert readable("\x07\r") == r"\x07\r"
    assert readable("é$") == "é$"


VOCABULARY = ["[UNK]", "a", "▁a", "▁the", "the", "##the", "ing", "##ing"]


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


def test_names_in_order_are_the_texts(mini, prompts):
    head = Head("linear", (mini.target.hidden_size, mini.draft.hidden_size), 0.6)
    frame = sample_tokens(mini, head, prompts, 64, seed=3)
    texts = roll_out(mini, [head], prompts, 64, torch.Generator().manual_seed(3)).texts
    assert frame["text"].is_monotonic_increasing
    for number, text in enumerate(texts):
        mine = frame[frame["text"] == number]
        assert "".join(mine.loc[mine["kind"] != learned.END, "name"]) == readable(text)
        assert (mine["kind"] == learned.END).sum() <= 1
    assert (frame["kind"] == learned.END).any()


def test_weights_are_those_of_the_positions(mini, prompts):
    head = Head("features", (mini.target.hidden_size, mini.draft.hidden_size), 0.5)
    # Any head that reads only the total variation will do: it is the ninth feature.
    head.hidden, head.summary = None, torch.nn.Linear(10, 2)
    for parameter in head.summary.parameters():
        parameter.data.zero_()
    head.summary.weight.data[1, 8] = 3.0
    frame = sample_tokens(mini, head, prompts, 32, seed=0)
    np.testing.assert_allclose(frame["weight"], 1 / (1 + np.exp(-3 * frame["tv"])), rtol=1e-5)
    assert frame["tv"].std() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_head_in_chunks(mini, prompts, kind, monkeypatch):
    monkeypatch.setattr(rollouts, "AT_ONCE", 2)
    head = Head(kind, (mini.target.hidden_size, mini.draft.hidden_size), 0.7)
    frame = sample_tokens(mini, head, prompts, 8, seed=0)
    assert frame["text"].unique().tolist() == [0, 1, 2, 3, 4]
    assert kind != "linear" or frame["weight"].to_numpy() == pytest.approx(0.7)


def made_up() -> pd.DataFrame:
    rows = [
        (0, "7", learned.NUMBER, 1.0, 0.5),
        (0, "7", learned.NUMBER, 0.5, 0.0),
        (1, "7", learned.NUMBER, 0.9, 0.5),
        (1, "␣a", learned.LOWER_CASE, 0.2, 0.0),
        (1, "␣a", learned.PIECE, 0.4, 0.1),
    ]
    return pd.DataFrame(rows, columns=["text", "name", "kind", "weight", "tv"])


def test_the_table_by_hand():
    table = tabulate(made_up(), ABOUT)
    assert list(table.columns) == [*About._fields, *learned.FIGURES]
    assert (table[list(About._fields)] == list(ABOUT)).all(axis=None)
    assert table["level"].tolist() == ["all", *["kind"] * 3, *["token"] * 3]
    assert (
        table["name"].tolist()[1:] == ["number", "word piece", "lower-case word", "7"] + ["␣a"] * 2
    )
    everything, number = table.iloc[0], table.iloc[1]
    assert (everything["n"], everything["texts"]) == (5, 2)
    assert everything["mean_weight"] == pytest.approx(0.6)
    assert (number["n"], number["texts"]) == (3, 2)
    assert number["mean_weight"] == pytest.approx(0.8)
    assert np.isnan([number["ci_low"], number["ci_high"]]).all()  # two texts
    assert number["weight_q50"] == pytest.approx(0.9)
    assert number["mean_tv"] == pytest.approx(1 / 3)
    assert number["effective_weight"] == pytest.approx(0.95)  # (1.0 + 0.9) / 2
    table = table.set_index(["level", "kind"])
    alone = table.loc[("token", learned.LOWER_CASE)]
    assert np.isnan([alone["ci_low"], alone["ci_high"]]).all()  # one text
    assert np.isnan(alone["effective_weight"])  # the models agree
    assert table.loc[("token", learned.PIECE), "effective_weight"] == pytest.approx(0.4)

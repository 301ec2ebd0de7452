"""Traces: one sample among the records of a run, its tokens and pieces, and its colours."""

import io
import json
import random
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from rich.console import Console

from specbench.analysis import trace as traces
from specbench.engine.pairs import get_pair
from specbench.errors import UsageError
from specbench.runs.run import read_run

from ..synthetic import RECORD, sample_record
from ..told import refusals

Round = tuple[str, str, str]


def decode(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def made(*rounds: Round, end: bool = False, weight: float | None = None, **changes: Any) -> Any:
    """Return a record of rounds: (accepted text, rejected byte or "", token of the target or "").

    Of an accepted text, capital letters are mismatches. The acceptance probability at a place is
    0.9, then 0.8 and so on; the weight grows by 0.1.
    """
    ids: list[int] = []
    counts: dict[str, list[Any]] = {}
    for accepted, rejected, emitted in rounds:
        drafted = accepted.encode()
        judged = len(drafted) + bool(rejected)
        ids += [*drafted, *emitted.encode()]
        round_counts = {
            "proposed": 5 if judged else 0,
            "accepted": len(drafted),
            "emitted": len(drafted) + len(emitted.encode()),
            "rejected": rejected.encode()[0] if rejected else None,
            "agreed": [not 65 <= byte <= 90 for byte in drafted],
            "expected": [0.9 - 0.1 * place for place in range(judged)],
            "weights": [] if weight is None else [weight + 0.1 * n for n in range(judged)],
        }
        for name, value in round_counts.items():
            counts.setdefault(name, []).append(value)
    if end:
        ids.pop()
    fields = {
        **RECORD,
        **{"run_id": "r", "pair": "p", "task": "sums", "quality_metric": "accuracy"},
        **{"token_ids": ids, "per_round": counts, "mean_weight": weight, "quality": 1.0},
        **changes,
    }
    return sample_record(**fields)


TEXT = ("ab", "x", "c")
STATICS = [made(TEXT, method="static", weight=w).filled(weight=w) for w in (0.4, 0.8)]
MINI = get_pair("mini").target
TASKS = [made(TEXT), *STATICS, made(TEXT, task="code"), made(TEXT, sample_id="b")]
FAILED = made(TEXT, status="error", error="no memory")


def test_a_sample_is_found_refused_or_chosen(stored):
    second = {"method": "sd turn 2"}
    for records, asked, name, values in (
        (TASKS, {"sample": "b"}, "sd", {"sample_id": "b"}),
        (TASKS, {"task": "sums", "method": "static w=0.8"}, "static w=0.8", {"weight": 0.8}),
        (TASKS, {"sample": "a", "task": "code"}, "sd", {"task": "code"}),
        ([made(TEXT, draft_length=n) for n in (3, 7)], {"method": "sd N=7"}, "sd N=7", {}),
        ([FAILED, made(TEXT)], {}, "sd", {"status": "ok"}),
        ([made(TEXT, repeat=r) for r in (0, 1)], {}, "sd", {"repeat": 0}),
        ([made(TEXT, turn=t) for t in (1, 2)], second, "sd turn 2", {"turn": 2}),
        ([made(TEXT, turn=t, draft_length=t) for t in (1, 2)], second, "sd N=2 turn 2", {}),
    ):
        record, label = traces.find_sample(records, **asked)
        assert label == name
        assert vars(record).items() >= values.items()
    asked = {"sample": "c"}, {"sample": "a", "task": "sum"}, {"method": "ds"}
    refused = [partial(traces.find_sample, TASKS, **each) for each in asked]
    stored(refusals(*refused, partial(traces.find_sample, [FAILED])))
    everything = made(("ABCD", "", "e"), method="static").filled(weight=0.0)
    relaxed = made(("aB", "x", "c"), method="lossy")
    learned = made(("aBc", "x", "d"), ("a", "x", "b"), method="diversed", weight=0.5, head="h")
    shy = made(("abc", "x", "d"), method="diversed", weight=0.5, head="h", sample_id="b")
    records = [shy, everything, relaxed, learned]
    assert traces.find_sample(records)[0] is learned
    assert traces.find_sample([everything, relaxed])[0] is relaxed
    assert traces.find_sample([everything])[0] is everything
    assert traces.find_sample(records, method="static w=0")[0] is everything


@pytest.mark.parametrize(
    "config",
    [
        {"pair": {"name": "mini", "target": "/another/place/specbench/pairs/mini/target"}},
        {"pair": {"name": "mini+other", "target": "specbench/pairs/mini/target", "draft": "o"}},
        {"pair": {"name": "mine", "target": MINI, "draft": "o", "target_revision": None}},
        {"pair": {"target": "a/b", "draft": "c/d"}, "loading": {"load_format": "dummy"}},
    ],
)
def test_the_tokenizer_of_a_run_is_found(tmp_path, monkeypatch, config):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert traces.run_decoder(read_run(tmp_path))([900, 897]) == " Step one"


def test_a_run_without_a_pair_is_refused(tmp_path, stored):
    refused = refusals(lambda: traces.run_decoder(read_run(tmp_path)))
    nowhere = {"pair": {"target": "./nowhere", "draft": "d"}}
    for text in ("{}", "[]", "{", json.dumps(nowhere)):
        (tmp_path / "config.json").write_text(text)
        refused += refusals(lambda: traces.run_decoder(read_run(tmp_path)))
    stored(refused)


def test_a_round_is_its_accepted_drafts_and_a_token_of_the_target_and_the_end_has_no_id():
    marked = traces.tokens(made(("aB", "x", "c"), ("defgh", "", "i"), weight=0.3))
    kinds = traces.AGREED, traces.MISMATCH, traces.REJECTED, traces.CORRECTION
    expected = [(letter, kind, 1) for letter, kind in zip("aBxc", kinds, strict=True)]
    expected += [*((letter, traces.AGREED, 2) for letter in "defgh"), ("i", traces.BONUS, 2)]
    assert [(chr(t.id or 0), t.kind, t.round) for t in marked] == expected
    # A correction has the position of the rejected draft; a bonus token has no judged position.
    assert [t.weight for t in marked[:4]] == pytest.approx([0.3, 0.4, 0.5, 0.5])
    assert [t.expected for t in marked[:4]] == pytest.approx([0.9, 0.8, 0.7, 0.7])
    assert (marked[-1].expected, marked[-1].weight) == (None, None)
    *_, rejected, end = traces.tokens(made(("ab", "x", "$"), end=True))
    assert (rejected[:2], end[:2]) == ((120, traces.REJECTED), (None, traces.CORRECTION))
    by_the_draft = traces.tokens(made(("ab$", "", ""), end=True))
    assert by_the_draft[-1][:2] == (None, traces.AGREED)
    assert [piece.text for piece in traces.pieces(by_the_draft, decode)] == ["a", "b", traces.END]
    assert {t.kind for t in traces.tokens(made(("", "", "a"), ("", "", "b")))} == {traces.TARGET}


def test_rounds_that_do_not_match_the_text_are_refused():
    for name in ("rejected", "agreed"):
        record = made(("ab", "x", "c"))
        setattr(record.per_round, name, None)
        with pytest.raises(UsageError, match=f"per_round.{name}.*run again"):
            traces.tokens(record)
    torn = [made(("ab", "x", "c"), ("de", "x", "f")) for _ in range(3)]
    del torn[0].token_ids[3:]
    torn[1].per_round.agreed[0].pop()
    torn[2].per_round.rejected.pop()
    for record in torn:
        with pytest.raises(UsageError, match="do not match its tokens"):
            traces.tokens(record)


def test_tokens_that_share_a_character_are_one_piece():
    euro = "€".encode()
    marked = [
        traces.Token(ord("a"), traces.AGREED, 1),
        traces.Token(euro[0], traces.MISMATCH, 1, weight=0.1),
        traces.Token(euro[1], traces.TARGET, 1),
        traces.Token(ord("x"), traces.REJECTED, 2),
        traces.Token(euro[2], traces.CORRECTION, 2, weight=0.3),
    ]
    text_pieces = list(traces.pieces(marked, decode))
    # A token rejected within a character comes before it, with the character's first bytes.
    assert [p.text for p in text_pieces] == ["a", "\ufffdx", "€"]
    assert [p.kind for p in text_pieces[1:]] == [traces.REJECTED, traces.MISMATCH]
    assert (text_pieces[2].round, text_pieces[2].weight) == (2, 0.3)


def test_pieces_add_up_to_the_text():
    draw = random.Random(0)
    for _ in range(50):
        text = "".join(draw.choice("aé€🙂\n ") for _ in range(12)).encode()
        marked = []
        for byte in text[: draw.randint(1, len(text))]:
            if draw.random() < 0.3:
                marked.append(traces.Token(draw.randrange(256), traces.REJECTED, 1))
            marked.append(traces.Token(byte, draw.choice([traces.AGREED, traces.MISMATCH]), 1))
        ids = [t.id for t in marked if t.kind != traces.REJECTED and t.id is not None]
        text_pieces = list(traces.pieces(marked, decode))
        assert "".join(p.text for p in text_pieces if p.kind != traces.REJECTED) == decode(ids)
        assert sum(p.kind == traces.REJECTED for p in text_pieces) == sum(
            t.kind == traces.REJECTED for t in marked
        )


def test_a_tokenizer_may_drop_the_first_space_and_control_characters_are_symbols():
    words = [" the", " cat", " sat", "s"]

    def like_sentencepiece(ids):
        return "".join(words[i] for i in ids).removeprefix(" ")

    kinds = enumerate((traces.AGREED, traces.REJECTED, traces.CORRECTION, traces.AGREED))
    text_pieces = traces.pieces(
        [traces.Token(number, kind, 1) for number, kind in kinds], like_sentencepiece
    )
    assert [piece.text for piece in text_pieces] == ["the", " cat", " sat", "s"]
    assert traces.visible("a\x1b[31m\x07\x9b\tb\n") == "a␛[31m␇␡\tb\n"
    assert traces.visible("a\nb", traces.MISMATCH) == "a↵\nb"
    assert traces.visible("a\nb", traces.REJECTED) == "a↵b"


ROUNDS: list[Round] = [("aB\n", "x", "c"), ("d$", "", "")]


def seen(traced: traces.Trace, colours: str | None) -> str:
    out = io.StringIO()
    # A width larger than any line, and without NO_COLOR from the environment.
    terminal: dict[str, Any] = {"force_terminal": bool(colours), "color_system": colours}
    traces.show(traced, Console(file=out, width=200, no_color=False, **terminal))
    return out.getvalue()


def styles(text: str, output: str) -> set[str]:
    (codes,) = re.findall(rf"\x1b\[([\d;]+)m{re.escape(text)}\x1b", output)
    return set(codes.split(";"))


def test_without_colours_marks_are_printed_after_a_prompt_that_may_be_shortened(stored):
    marked = [traces.trace(made(*ROUNDS, end=True), "sd", decode)]
    prompts = ("Why\x1b?\n", 3000 * "a" + "end")
    marked += [traces.trace(made(*ROUNDS), "sd", decode, prompt) for prompt in prompts]
    alone = made(("", "", "a"), ("", "", "b"), method="autoregressive", draft_length=0)
    marked += [traces.trace(alone, "autoregressive", decode)]  # which needs no marks
    stored(*(seen(traced, None) for traced in marked))


def test_in_colours_each_kind_has_its_own_style_and_a_weight_is_a_shade():
    body = seen(traces.trace(made(*ROUNDS), "sd", decode), "standard").split("\n\n")[1]
    assert body.startswith("a\x1b")
    assert styles("B", body) == {"4", "32"}  # green, underlined
    assert styles("x", body) == {"9", "31"}  # red, struck through
    assert styles("c", body) == {"1"}
    output = seen(traces.trace(made(("ab", "x", "c"), weight=0.0), "static", decode), "truecolor")
    legend, body = output.split("\n\n")
    assert "mean w 0.00" in legend
    paler, deeper = (int(re.findall(rf"48;2;(\d+);\d+;\d+m{letter}", body)[0]) for letter in "ab")
    assert paler > deeper
    # The rejected draft and its correction have the same weight.
    assert len(set(re.findall(r"48;2;(\d+);\d+;\d+m[xc]", body))) == 1
    assert "48;2" not in seen(traces.trace(made(("ab", "x", "c")), "sd", decode), "truecolor")


@pytest.mark.parametrize("colours", [None, "truecolor"])
def test_a_text_cannot_control_the_terminal(colours):
    output = seen(traces.trace(made(("\x1b]0;owned\x07", "\x1b", "c")), "sd", decode), colours)
    assert "\x1b]" not in output
    assert "␛" in output

"""What is counted of a batch, by specbench's loop and by Transformers'."""

import math
from dataclasses import replace
from typing import Any

import pytest
from transformers import GenerationConfig

from specbench.bench.plan import TRANSFORMERS, System
from specbench.bench.transformers_loops import transformers_decoder
from specbench.bench.turn import rehearsing_decoders, specbench_decoder, turn_of
from specbench.decoding.loop import decode_all
from specbench.decoding.records import Generation, RoundRecord
from specbench.engine.engines import Engine
from specbench.engine.settings import EAGER

from ..engine.tiny import random_prompt, tiny_pair
from .benches import SD, bench_of


def text(*rounds: RoundRecord, seconds: float) -> Generation:
    """A text whose rounds took so many seconds, of which a tenth, two and three are parts."""
    return Generation(
        [], "", 4, sum(r.emitted for r in rounds), "length", 0.5, seconds,
        seconds / 10, seconds / 5, 3 * seconds / 10, seconds, list(rounds),
    )  # fmt: skip


def test_texts_side_by_side_share_their_rounds() -> None:
    whole, rejected, cut = RoundRecord(2, 2, 3), RoundRecord(2, 1, 2, 7), RoundRecord(1, 1, 1)
    turn = turn_of([text(whole, rejected, cut, seconds=1.0), text(whole, whole, seconds=2.0)])
    assert (turn.output_tokens, turn.rounds, turn.text_rounds) == (12, 3, 5)
    assert (turn.proposed, turn.judged, turn.accepted) == (9, 9, 8)
    assert turn.prefill_seconds == 1.0
    assert turn.decode_seconds == 3.0
    parts = (turn.draft_seconds, turn.verify_seconds, turn.accept_seconds)
    assert parts == pytest.approx((0.3, 0.6, 0.9))


@pytest.mark.parametrize("texts", [1, 3])
@pytest.mark.parametrize("method", ["autoregressive", "sd"])
def test_every_text_has_as_many_tokens_as_asked_for(method: str, texts: int) -> None:
    system = System(EAGER, method, (), 0 if method == "autoregressive" else 3)
    decode = specbench_decoder(bench_of(system), system, tiny_pair("llama"))
    turn = decode([random_prompt(5)] * texts, 20, "key")
    assert turn.output_tokens == 20 * texts
    assert turn.rounds <= 20
    parts = turn.draft_seconds + turn.verify_seconds + turn.accept_seconds
    assert 0 < parts < turn.decode_seconds


def test_every_length_of_an_adaptive_round_is_met_before_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Static(Engine):
        static = True

    drafted: list[int | None] = []

    def watched(*args: Any, control: Any, **options: Any) -> Any:
        drafted.append(getattr(control, "drafts", None))
        return decode_all(*args, control=control, **options)

    monkeypatch.setattr("specbench.bench.turn.decode_all", watched)
    system = System(EAGER, "sd-adaptive", (("cost", 0.1),), 3)
    pair = replace(tiny_pair("llama"), engine=Static())
    rehearsing = rehearsing_decoders(bench_of(system), system, pair)
    for decode in (*rehearsing, specbench_decoder(bench_of(system), system, pair)):
        decode([random_prompt(5)], 20, "0")
    assert drafted == [1, 2, 3, None]
    assert rehearsing_decoders(bench_of(SD), SD, pair) == []


@pytest.mark.parametrize(
    ("method", "n", "texts"), [("autoregressive", 0, 2), ("sd", 3, 1)], ids=["generate", "assisted"]
)
def test_transformers_decodes_all_tokens_too_though_the_model_has_end_tokens(
    method: str, n: int, texts: int
) -> None:
    pair = tiny_pair("llama")
    models = [runner.model for runner in (pair.target, pair.draft)]
    own = [GenerationConfig(eos_token_id=list(range(40)), pad_token_id=0) for _ in models]
    kept = [model.generation_config for model in models]
    for model, settings in zip(models, own, strict=True):
        model.generation_config = settings
    try:
        system = System(TRANSFORMERS, method, (), n, 0.0 if n else None)
        decode = transformers_decoder(bench_of(system), system, pair)
        turn = decode([random_prompt(5)] * texts, 20, "key")
        assert [model.generation_config for model in models] == own
    finally:
        for model, settings in zip(models, kept, strict=True):
            model.generation_config = settings
    # The first round is that of the prompt; where every draft is rejected, all give one token.
    assert turn.output_tokens == 19 * texts
    assert (turn.rounds, turn.text_rounds) == (19, 19 * texts)
    # Two tokens before the end there is room for one draft, and before the last one for none.
    assert turn.proposed == (0 if n == 0 else 16 * 3 + 2 + 1 + 0)
    assert math.isnan(turn.verify_seconds)
    assert turn.prefill_seconds > 0 < turn.decode_seconds

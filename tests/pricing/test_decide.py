"""Decisions from priced rounds and costs, the sentences, and the flags of engines."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from specbench.analysis.tables.table import to_text
from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafters.lookup import LookupDrafter
from specbench.decoding.drafters.model import GreedyDrafter, ModelDrafter
from specbench.decoding.drafters.suffix import SuffixDrafter
from specbench.engine.pairs import custom_pair, get_pair
from specbench.errors import UsageError
from specbench.pricing import bounds
from specbench.pricing.bounds import Kind, bound
from specbench.pricing.costs import Costs, costs_of
from specbench.pricing.decide import (
    Decision,
    answer,
    break_even,
    break_even_table,
    decide,
    decision_table,
    remarks,
)
from specbench.pricing.figures import draw_crossover
from specbench.pricing.flags import engine_flags, gguf_draft, tensorrt_llm_settings, vllm_flags
from specbench.pricing.rounds import (
    PricedRounds,
    mean_lengths,
    rate_of_length,
    rates_of,
    rounds_of_rates,
)

MODEL, GREEDY, LOOKUP = ModelDrafter(), GreedyDrafter(), LookupDrafter()
LENGTHS = (1, 2, 3, 4)


def constant(drafter: DrafterKind, acceptance: float, spread: float = 0.0) -> PricedRounds:
    """Return rounds of texts whose positions all accept alike, with a spread between prompts."""
    random = np.random.default_rng(0)
    rates = np.clip(acceptance + spread * random.standard_normal(200), 0.01, 0.99)
    tokens = np.full(200, 30.0)
    rounds = np.column_stack([tokens / sum(rates**i for i in range(n + 1)) for n in LENGTHS])
    return PricedRounds(drafter, LENGTHS, tokens, rounds, rounds * np.array(LENGTHS))


def costs(repeats: int = 1) -> Costs:
    """Return costs of 1 a pass of up to four positions, then 1 for each four; .1 a draft."""
    rows = [
        (b, n, repeat, max(1, b * (n + 1) / 4) + 0.1 * n, 0.1 * n)
        for b in (1, 2, 8)
        for n in (0, *LENGTHS)
        for repeat in range(repeats)
    ]
    columns = ["batch_size", "draft_length", "repeat", "round_seconds", "draft_seconds"]
    return costs_of(pd.DataFrame(rows, columns=columns), "by hand")


def decision() -> Decision:
    priced = [constant(MODEL, 0.8, 0.1), constant(GREEDY, 0.7, 0.1), constant(LOOKUP, 0.1, 0.02)]
    return decide(priced, costs(), (1, 2, 8))


def test_speed_ups_by_hand_and_noise_of_costs_widens_their_interval():
    (setting, *_) = decide([constant(MODEL, 0.5)], costs(), (1,)).settings
    assert setting.tokens_per_round.value == pytest.approx(1.5)
    assert setting.seconds_per_token == pytest.approx(1.1 / 1.5)
    assert setting.speedup.value == pytest.approx(1.5 / 1.1)
    assert setting.speedup.low == pytest.approx(1.5 / 1.1)  # all prompts are alike
    noisy = costs(8).table()
    noisy["round_seconds"] *= np.random.default_rng(1).lognormal(0, 0.1, len(noisy))
    priced = [constant(MODEL, 0.5)]
    (exact, *_) = decide(priced, costs(), (1,)).settings
    (wide, *_) = decide(priced, costs_of(noisy, "noisy"), (1,)).settings
    assert exact.speedup.high - exact.speedup.low < 1e-9
    assert 0.03 < wide.speedup.high - wide.speedup.low < 0.6


def test_few_repeats_of_costs_give_intervals_that_contain_the_truth():
    random, times, table = np.random.default_rng(0), 100, costs(3).table()
    contained = 0
    for _ in range(times):
        noisy = table.assign(
            round_seconds=table["round_seconds"] * random.lognormal(0, 0.05, len(table)),
            draft_seconds=0.0,
        )
        (setting,) = decide([constant(MODEL, 0.5)], costs_of(noisy, "noisy"), (1,), (1,)).settings
        contained += setting.speedup.low <= 1.5 / 1.1 <= setting.speedup.high
    assert contained >= 0.9 * times


def test_where_it_pays_and_where_it_loses():
    pair_decision = decision()
    assert pair_decision.fastest(1).drafter == MODEL
    assert pair_decision.fastest(1, MODEL).verdict == "pays"
    assert pair_decision.fastest(8, MODEL).verdict == "loses"
    assert answer(pair_decision).startswith("Speculate at batch 1 to 2: model with N = ")
    assert "; Leave it off at batch 8.\n" in answer(pair_decision)
    assert pair_decision.fastest(1, LOOKUP).verdict == "pays"  # copies are free
    schedule = pair_decision.schedule(MODEL)
    assert schedule[0][0] == 1 and schedule[-1][1] == 8 and schedule[-1][2] == 0
    assert [row[0] for row in schedule[1:]] == [row[1] + 1 for row in schedule[:-1]]


@pytest.mark.parametrize("seed", range(8))
def test_the_schedule_drafts_where_speculation_pays_and_nowhere_else(seed):
    noise = np.random.default_rng(seed)
    table = costs(4).table()
    table["round_seconds"] *= noise.lognormal(0, 0.25, len(table))
    table["draft_seconds"] = 0.0
    both = [constant(MODEL, 0.3, 0.2), constant(LOOKUP, 0.2)]
    pair_decision = decide(both, costs_of(table, ""), (1, 2, 8))
    for drafter in pair_decision.drafters:
        steps = pair_decision.schedule(drafter)
        drafts = {b: n for first, last, n in steps for b in range(first, last + 1)}
        for batch in pair_decision.batches:
            best = pair_decision.fastest(batch, drafter)
            assert drafts[batch] == (best.length if best.verdict == "pays" else 0)
        assert all(drafts[batch] == min(drafts[2], drafts[8]) for batch in range(3, 8))


def test_rates_by_position_are_conditional_and_one_means_the_same_at_every_position():
    rounds = rounds_of_rates(rates_of(".8,.5,.5", 8), MODEL)
    assert rounds.resampled[0] == pytest.approx([1.8, 2.2, 2.4])
    for text in (".8,1.2", "nothing", "", ".8,,.7", "nan"):
        with pytest.raises(UsageError, match="a rate from 0 to 1"):
            rates_of(text, 8)
    for longest in (1, 4, 8):
        assert rates_of(".8", longest) == rates_of(",".join([".8"] * longest), longest)


@pytest.mark.parametrize(("accepted", "drafts"), [(3.4, 4), (1.0, 3), (5.0, 4), (2.02, 2)])
def test_a_mean_accepted_length_is_a_rate(accepted, drafts):
    rate = rate_of_length(accepted, drafts)
    assert rounds_of_rates([rate] * drafts, MODEL).resampled[0][-1] == pytest.approx(accepted)
    with pytest.raises(UsageError, match=f"with {drafts} drafts, which emit 1 to {drafts + 1}"):
        rate_of_length(drafts + 1.5, drafts)


KIND = Kind("vLLM", "dense", 16, 16, "NVIDIA", "draft_model")


def computed(rate: float, batches: tuple[int, ...] = (1, 8), **kind: str) -> Decision:
    table = dataclasses.replace(costs(), bound=bound(KIND._replace(**kind)))
    return decide([rounds_of_rates([rate] * 4, MODEL)], table, batches)


def test_what_is_computed_has_the_bound_of_other_people():
    decision = computed(0.9)
    assert "Computed; 9 of 10 measurements " in answer(decision)
    factor = bound(KIND).factor
    for setting in decision.settings:
        value, low, high, *_ = setting.speedup
        assert (low * factor, high / factor) == pytest.approx((value, value))
    assert decision.table()["tokens_per_round_low"].isna().all()
    assert "[9 in 10]" in to_text(decision_table(decision), width=100)


@pytest.mark.parametrize("kind", [{"chip": "Apple"}, {"chip": "AMD"}, {"layers": "experts"}])
def test_no_number_where_none_transfers(kind):
    decision = computed(0.9, **kind)
    first, second = answer(decision).splitlines()
    assert first == "Not decided by computing: measure one minute"
    assert second.startswith("model pays from 1.30 tokens per round (N = 3")
    assert {setting.verdict for setting in decision.settings} == {"measure"}
    assert decision.table()["speedup"].isna().all()
    assert decision.table()["break_even"].notna().all()
    assert decision.first_that_pays() is None


@pytest.mark.parametrize(
    ("rate", "batch", "verdict"), [(0.9, 1, "pays"), (0.2, 1, "undecided"), (0.2, 8, "loses")]
)
def test_the_bound_decides_as_an_interval_does(rate, batch, verdict):
    (setting,) = (s for s in computed(rate, (batch,)).settings if s.length == 1)
    assert setting.verdict == verdict
    for ends in ((1.004, 1.3), (0.7, 0.996)):  # as printed, they reach 1
        close = dataclasses.replace(
            setting, speedup=setting.speedup._replace(low=ends[0], high=ends[1])
        )
        assert close.verdict == "undecided"


def test_bounds_count_people_once_and_widen_where_few_measured(monkeypatch, tmp_path):
    rows = [("a", 0.1), ("a", 0.1), ("b", 0.1), ("c", 0.1)]
    table = pd.DataFrame([{"person": p, **KIND._asdict(), "rms": rms} for p, rms in rows])
    monkeypatch.setattr(bounds, "errors", lambda: table)
    assert bound(KIND).people == 3
    # Student's t with three degrees of freedom is 2.353 there.
    assert bound(KIND).factor == pytest.approx(np.exp(2.353 * 0.1 * (4 / 3) ** 0.5), rel=1e-3)
    few = bound(KIND, without="a")
    assert few.people == 2 and few.factor == pytest.approx(np.exp(1.645 * (0.0256 + 0.0081) ** 0.5))
    nobody = bound(KIND._replace(cache=8))
    assert nobody.factor == few.factor and "nobody measured this kind" in str(nobody)
    table["rms"] = 0.4
    assert bound(KIND).is_open and not few.is_open  # beyond a factor of 1.5


def test_the_break_even_is_the_seconds_of_a_round_in_passes():
    table = costs()
    assert break_even(table, 1, 2, MODEL).value == pytest.approx(1.2)
    assumed = decide([rounds_of_rates(None, MODEL, 4)], table, (1, 8))
    one, eight = (assumed.fastest(batch) for batch in (1, 8))
    assert one.length == 3 and one.break_even.value == pytest.approx(1.3)
    pays_from = "model pays from 1.30 tokens per round (N = 3, 23 % accepted) at batch 1"
    assert one.pays_from == pays_from
    assert one.verdict == "measure" and not assumed.is_told
    assert "cannot pay at batch 8" in eight.pays_from
    assert re.search(r"^8 .*never", to_text(break_even_table(assumed), width=80), re.MULTILINE)
    with_bound = break_even(dataclasses.replace(table, bound=bound(KIND)), 1, 2, MODEL)
    assert with_bound.high / with_bound.value == pytest.approx(bound(KIND).factor)


def test_what_is_shown_to_pay_stands_before_what_may_be_faster():
    noise = np.random.default_rng(2)
    table = costs(3).table()
    wide = table["draft_length"] == 4
    table.loc[wide, "round_seconds"] *= noise.lognormal(-0.5, 0.9, wide.sum())
    table["draft_seconds"] = 0.0
    pair_decision = decide([constant(MODEL, 0.8, 0.02)], costs_of(table, ""), (1,))
    best = pair_decision.fastest(1)
    faster = [s for s in pair_decision.settings if s.speedup.value > best.speedup.value]
    assert best.verdict == "pays" and {s.verdict for s in faster} == {"undecided"}
    assert answer(pair_decision).startswith("Speculate at batch 1 with model: N = ")


def test_mean_lengths_have_names_and_n_and_a_best_n_below_the_largest_has_no_remark():
    for texts, drafts, is_share, expected in (
        (["2.9"], 4, False, {"": (2.9, 4)}),
        (["mtp=2.4@3", "eagle3=2"], 5, False, {"mtp": (2.4, 3), "eagle3": (2.0, 5)}),
        (["mtp=.7@3"], None, True, {"mtp": (pytest.approx(3.1), 3)}),
    ):
        assert mean_lengths("--x", texts, drafts, is_share=is_share) == expected
        for wrong in ("x", "mtp=", "2@"):
            with pytest.raises(UsageError, match="give a number"):
                mean_lengths("--x", [wrong], 3)
        with pytest.raises(UsageError, match="give that N"):
            mean_lengths("--x", ["2"], None)
    assert not list(remarks(computed(0.9, batches=(1,)), []))


def test_flags_stand_in_one_block_for_each_engine_with_the_ranges_that_differ():
    lines = list(engine_flags(MODEL, [(1, 4, 5), (5, 8, 2), (9, 32, 0)], custom_pair("o/t", "o/d")))
    at = lines.index("start SGLang with:")
    assert [line.rpartition("  # ")[2] for line in lines[at + 1 : at + 3]] == [
        "batch 1 to 4",
        "batch 5 to 8",
    ]
    flags = [*engine_flags(SuffixDrafter(), [(1, 4, 5)], None)]
    assert "SGLang has no drafter like suffix" in flags


def test_the_schedule_for_vllm_begins_at_batch_1_and_flags_of_engines_count_as_they_do():
    schedule = decision().schedule(MODEL)
    settings = json.loads(vllm_flags(MODEL, schedule, "org/d")[-1])
    assert settings["num_speculative_tokens_per_batch_size"] == [[*row] for row in schedule]
    assert settings["model"] == "org/d"
    rows = [(b, n, b + 0.9 * n) for b in (4, 32) for n in (0, 3)]  # pays for 32 texts, not for 4
    table = pd.DataFrame(rows, columns=["batch_size", "draft_length", "round_seconds"])
    pair_decision = decide([constant(MODEL, 0.3, 0.1)], costs_of(table, "by hand"), (4, 32))
    assert (paying := pair_decision.first_that_pays()) is not None and paying.batch == 32
    (first, *_) = pair_decision.schedule(MODEL)
    assert first[0] == 1 and first[2] == 0  # vLLM refuses a schedule that begins later
    assert MODEL.sglang(3, "d")[-1] == "4"  # the token after the drafts is counted
    assert GREEDY.llamacpp(3, "d")[-1] == "greedy"
    assert "--model-draft" not in LOOKUP.llamacpp(3, "d")


def test_the_schedule_for_tensorrt_llm_ends_where_drafting_does():
    schedule = [(1, 4, 5), (5, 8, 2), (9, 32, 0)]
    text = tensorrt_llm_settings(MODEL, schedule, "org/d") or ""
    settings = yaml.safe_load(text)["speculative_config"]
    assert settings["draft_len_schedule"] == {4: 5, 8: 2, 32: 0}
    assert (settings["max_draft_len"], settings["speculative_model"]) == (5, "org/d")
    assert "NGram" in (tensorrt_llm_settings(LOOKUP, schedule, "") or "")
    assert "schedule" not in (tensorrt_llm_settings(MODEL, [(1, 16, 3)], "org/d") or "")
    rising = tensorrt_llm_settings(MODEL, [(1, 4, 0), (5, 8, 3)], "org/d") or ""
    assert "draft_len_schedule" not in yaml.safe_load(rising)["speculative_config"]
    assert tensorrt_llm_settings(SuffixDrafter(), schedule, "") is None


def test_the_draft_of_llamacpp_is_a_file_or_has_the_command_that_makes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert gguf_draft(custom_pair("whole.gguf", "half.gguf")) == ("half.gguf", "")
    file, command = gguf_draft(get_pair("mini"))
    assert command == "python tasks/export_pair.py mini" and not Path(file).exists()
    Path(file).parent.mkdir(parents=True)
    Path(file).touch()
    assert gguf_draft(get_pair("mini")) == (file, "")
    file, command = gguf_draft(custom_pair("org/large", "org/small"))
    assert file == "small.gguf" and "--remote org/small --outfile small.gguf" in command
    Path("folder of mine").mkdir()
    file, command = gguf_draft(custom_pair("org/large", "folder of mine/"))
    assert "'folder of mine' --outfile" in command and "--remote" not in command
    (tmp_path / "spare").mkdir()
    assert "convert_hf" in gguf_draft(custom_pair(get_pair("mini").target, "spare"))[1]


def test_the_figure_is_drawn():
    drawing = draw_crossover(decision())
    assert len(drawing.data) == 3 * 3 * 4
    (axes,) = drawing.figure.axes
    even, *drawn = [line.get_ydata() for line in axes.get_lines()]
    assert [*even] == [1, 1]
    for drafter, speedups in zip((MODEL, GREEDY, LOOKUP), drawn, strict=True):
        fastest = [decision().fastest(batch, drafter).speedup.value for batch in (1, 2, 8)]
        assert speedups.tolist() == fastest
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "8"]

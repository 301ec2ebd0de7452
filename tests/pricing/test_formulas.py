"""Seconds of passes and rounds by figures: by hand, at limits, and against measurements."""

from __future__ import annotations

from pathlib import Path

import pytest
from measure.public_measurements import seconds_per_token

from specbench.decoding.drafters.lookup import LookupDrafter
from specbench.decoding.drafters.model import ModelDrafter
from specbench.errors import UsageError
from specbench.pricing.costs import read_costs
from specbench.pricing.formulas import (
    Workload,
    computed_costs,
    most_texts,
    pass_seconds,
    prompt_seconds,
    require_fits_machine,
    round_seconds,
)
from specbench.pricing.heads import HEADS, DraftPasses, drafting_of
from specbench.pricing.machines import (
    Deployment,
    Machine,
    ServingEngine,
    engines,
    find_machine,
    machines,
)
from specbench.pricing.shapes import Precision, ServedModel, Shape, known_shapes

ROOT = Path(__file__).parents[2]
PLAIN = ServingEngine(description="e", share=0.5, compute=0.5)


def tiny(width: int, layers: int = 1) -> ServedModel:
    shape = Shape(
        **{"layers": layers, "width": width, "feed_forward": 1, "heads": 1, "kv_heads": 1},
        **{"head_size": 1, "vocabulary": 10, "attention": 5 * width},
    )
    return ServedModel("tiny", shape)


def known(name: str, layers: float = 16, cache: float = 16) -> ServedModel:
    head = layers if layers == 5 else 16
    return ServedModel(name, known_shapes()[name], Precision(layers, head, cache))


def test_a_pass_and_a_round_by_hand():
    machine = Machine(description="m", bandwidth=10, flops=100)
    engine = PLAIN.model_copy(update={"fixed": 0.5, "step": 0.25, "round": 2, "layer": 0.125})
    server, target, draft = Deployment(machine, engine), tiny(1), tiny(1)
    # 18 weights of 2 bytes; 2 numbers of 2 bytes for each of 5 tokens in the cache.
    one = (36 + 20) / 5 + 3 * 2 * 18 / 50 + 0.125
    assert pass_seconds(server, target, 1, 3, 5) == pytest.approx(one)
    drafts = 2 * ((36 + 20) / 5 + 36 / 50 + 0.125 + 0.25)
    seconds = round_seconds(server, target, DraftPasses(draft), 2, 1, Workload(5, 0))
    assert seconds == pytest.approx((one + 0.5 + drafts + 2, drafts))
    assert round_seconds(server, target, None, 0, 1, Workload(5, 0))[0] == pytest.approx(
        (36 + 20) / 5 + 36 / 50 + 0.125 + 0.5
    )
    joined = Deployment(machine, engine.model_copy(update={"overlap": 2.0}))
    expected = ((56 / 5) ** 2 + (108 / 50) ** 2) ** 0.5 + 0.125
    assert pass_seconds(joined, target, 1, 3, 5) == pytest.approx(expected)


def test_figures_of_a_machine_replace_an_engines_and_devices_share_layers():
    machine = Machine(description="m", bandwidth=10, flops=100, overhead=0.5, share=1.0)
    server = Deployment.of(machine, engines()["vllm"].model_copy(update={"overlap": 1.0}))
    seconds = round_seconds(server, tiny(1), DraftPasses(tiny(1)), 1, 1, Workload(5, 0))
    pass_of = lambda tokens: 5.6 + tokens * 0.36 + 0.5  # noqa: E731
    assert seconds[0] == pytest.approx(pass_of(2) + pass_of(1))
    machine = Machine(description="m", bandwidth=10, flops=100, link=8, hop=0.5)
    target = tiny(4, layers=3)
    one, two = (pass_seconds(Deployment(machine, PLAIN, n), target, 1, 2, 0) for n in (1, 2))
    assert two == pytest.approx(one / 2 + 6 * (0.5 + 2 * 4 * 2 / 8))
    turns = PLAIN.model_copy(update={"splits_layers": True})
    assert pass_seconds(Deployment(machine, turns, 2), target, 1, 2, 0) == pytest.approx(one)


def test_few_rows_of_quantised_weights_are_unpacked_again():
    machine = Machine(description="m", bandwidth=1e9, flops=50, vector=100)
    engine = PLAIN.model_copy(update={"few_rows": {"cuda": 0.5, "rocm": 0.5}})
    target = ServedModel("q", tiny(1).shape, Precision(4, 4))
    server = Deployment(machine, engine)
    for rows in (2, 4, 8):
        assert pass_seconds(server, target, 1, rows, 0) == pytest.approx((rows - 1) * 36 / 50)
    assert pass_seconds(server, tiny(1), 1, 8, 0) == pytest.approx(8 * 36 / 25)  # of 16 bits
    slow = machine.model_copy(update={"vector": 1.0, "backend": "rocm"})
    tile = pass_seconds(Deployment(slow, engine), target, 1, 9, 0)
    few = [pass_seconds(Deployment(slow, engine), target, 1, rows, 0) for rows in (2, 8)]
    assert few == pytest.approx([tile, tile])  # never dearer than a tile there
    assert tile == pytest.approx(32 * 36 / 25)


def test_a_shared_prompt_is_read_once_and_not_prefilled():
    machine = Machine(description="m", bandwidth=10, flops=100)
    engine = PLAIN.model_copy(update={"prefill": 0.5})
    server = Deployment(machine, engine)
    alone = pass_seconds(server, tiny(1), 4, 1, 5)
    shared = pass_seconds(server, tiny(1), 4, 1, 5, 3)
    assert alone - shared == pytest.approx(3 * 3 * 4 / 5)  # three texts, three tokens of 4 bytes
    assert prompt_seconds(server, tiny(1), 4, Workload(8, 4, 8)) == 0
    assert prompt_seconds(server, tiny(1), 4, Workload(8, 4)) > 0
    one = Deployment(machines()["h100"], PLAIN), known("llama-3.1-8b"), None
    some, more = (most_texts(*one, Workload(32_000, 256, shared)) for shared in (0, 31_000))
    assert 10 < some < 20 and more > 15 * some
    gemma = known("gemma-3-27b")
    windows = gemma._replace(shape=gemma.shape.model_copy(update={"windowed_layers": 62}))
    whole, beyond = (pass_seconds(server, windows, 4, 1, 8192, shared) for shared in (0, 4096))
    assert whole == beyond  # no window reaches the tokens that all share


def test_devices_beyond_the_key_value_heads_store_copies():
    machine, target = machines()["h200"], known("qwen3-30b-a3b")  # with 4 heads
    four, eight = (Deployment(machine, engines()["vllm"], gpus) for gpus in (4, 8))
    most = [most_texts(server, target, None, Workload(512, 256)) for server in (four, eight)]
    assert most[0] < most[1] < 1.3 * most[0]  # the weights are stored once
    require_fits_machine(eight, target, DraftPasses(None), Workload(512, 256), 1)


def test_eagle3_heads_cost_more_in_vllm_before_2026():
    target = known("llama-3.1-8b")
    drafting = {kind: drafting_of(kind, target) for kind in ("eagle", "eagle3")}
    old, new = (Deployment(machines()["h100"], engines()[n]) for n in ("vllm-2025", "vllm"))
    for kind, more in (("eagle3", 8e-4), ("eagle", 0.0)):
        times = [
            [
                round_seconds(server, target, drafting[kind], n, 1, Workload(100, 0))[0]
                for n in (2, 5)
            ]
            for server in (old, new)
        ]
        (a, b), (c, d) = times
        assert (b - a) - (d - c) == pytest.approx(3 * more)


@pytest.mark.parametrize(
    ("machine", "target", "kv", "slower"),
    [("a100", "llama-3.1-8b", 8, True), ("h100", "llama-3.1-8b", 8, False)],
)
def test_a_small_cache_costs_time_where_8_bits_are_no_units(machine, target, kv, slower):
    server = Deployment(machines()[machine], engines()["vllm"])
    rounds = [
        round_seconds(server, known(target, cache=bits), DraftPasses(None), 4, 1, Workload(512, 0))[
            0
        ]
        for bits in (16, kv)
    ]
    assert (rounds[1] > rounds[0]) == slower
    if slower:
        assert rounds[1] - rounds[0] == pytest.approx(6.7e-3, rel=0.05)


def test_a_round_on_an_h200_costs_what_was_measured_there():
    """Within an eighth, in passes without drafts; the longer of both terms alone is 29 % off."""
    server = Deployment(machines()["h200"], engines()["specbench"])
    drafting, workload = DraftPasses(known("llama-3.2-1b")), Workload(512, 128)
    costs = computed_costs(
        server, known("llama-3.1-8b"), drafting, workload, (1, 4, 32), (5,), "draft_model"
    )
    measured = read_costs(ROOT / "results/gpu/fused-llama")
    for batch in (1, 4, 32):
        predicted, expected = (
            c.seconds(batch, 5, ModelDrafter()).mean() / c.seconds(batch, 0, ModelDrafter()).mean()
            for c in (costs, measured)
        )
        assert predicted == pytest.approx(expected, rel=0.125), batch
    assert costs.seconds(1, 5, LookupDrafter()) < costs.seconds(1, 5, ModelDrafter())


# Machine, devices, engine, target with bits, what drafts, N, batch, prompt and answer, tokens per
# round, and the published speed-up; sources on page predictions.
PUBLISHED = [
    ("h100-94gb", 1, "vllm", ("qwen3-32b", 16), "eagle3", 3, 1, (170, 147), 2.18, 1.977),
    ("h100-94gb", 1, "vllm", ("qwen3-32b", 16), "qwen3-1.7b", 4, 16, (170, 147), 2.85, 1.801),
    ("h100-94gb", 2, "vllm", ("llama-3.3-70b", 16), "llama-3.2-1b", 8, 4, (170, 147), 5.71, 3.376),
    ("a100", 1, "vllm", ("llama-3.1-8b", 16), "eagle3", 5, 8, (1200, 256), 2.88, 1.80),
    ("rtx5090", 1, "llama.cpp", ("qwen3.8-27b", 5), "mtp", 4, 1, (60, 400), 3.588, 2.167),
    ("v100", 1, "llama.cpp", ("qwen3.8-27b", 5), "mtp", 2, 1, (60, 400), 2.5, 1.430),
]


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row[0]}-{row[4]}-{row[6]}")
def test_published_speed_ups_are_met_within_a_tenth(row):
    name, gpus, engine, (target, bits), kind, drafts, batch, lengths, accepted, speedup = row
    server = Deployment(machines()[name], engines()[engine], gpus)
    served = known(target, bits)
    drafting = drafting_of(kind, served) if kind in HEADS else DraftPasses(known(kind))
    workload = Workload(*lengths)
    plain = seconds_per_token(server, served, None, 0, 1, batch, workload)
    rounds = seconds_per_token(server, served, drafting, drafts, accepted, batch, workload)
    assert plain / rounds == pytest.approx(speedup, rel=0.1)


def test_requests_that_do_not_fit_wait_outside_of_the_batch():
    server, target = Deployment(machines()["h100-94gb"], engines()["vllm"]), known("qwen3-32b")
    workload = Workload(170, 147)
    large = [seconds_per_token(server, target, None, 0, 1, b, workload) for b in (64, 512, 4096)]
    assert large[0] < large[1] == pytest.approx(large[2])
    alone, batch = (prompt_seconds(server, target, rows, workload) for rows in (1, 8))
    assert alone == 0 < batch


@pytest.mark.parametrize(
    ("machine", "gpus", "target", "batch", "complaint"),
    [
        ("rtx4090", 1, "llama-3.3-70b", 1, "the weights .* do not fit the memory of NVIDIA"),
        ("h100", 1, "qwen3-32b", 512, r"--batch-size 512 does not fit .*: at most \d+ texts do"),
        ("h100", 3, "llama-3.3-70b", 1, "--gpus 3 cannot share the 64 heads and 8 key-value heads"),
        ("h200", 12, "llama-3.3-70b", 1, "choose 2 or 4 or 8 or 16$"),
        ("h200", 12, "qwen3-30b-a3b", 1, "the 32 heads and 4 key-value heads"),
    ],
)
def test_what_a_machine_cannot_hold_is_refused(machine, gpus, target, batch, complaint):
    server = Deployment(machines()[machine], engines()["vllm"], gpus)
    with pytest.raises(UsageError, match=complaint):
        require_fits_machine(server, known(target), DraftPasses(None), Workload(512, 256), batch)


def test_machines_are_named_or_read(tmp_path):
    assert find_machine("h100").bandwidth == pytest.approx(3.35e12)
    assert find_machine("2x RTX 3090") == machines()["rtx3090"]
    assert [find_machine(name).memory for name in ("w7900", "Titan RTX")] == [5.15e10, 2.58e10]
    with pytest.raises(UsageError, match=r"no figures of a machine `h1000`: .*did you mean `h100`"):
        find_machine("h1000")
    mine = tmp_path / "mine.toml"
    mine.write_text("[mine]\ndescription = 'm'\nbandwidth = 1e9\nflops = 1e12\noverhead = 0\n")
    assert find_machine(str(mine)).overhead == 0
    mine.write_text("[mine]\ndescription = 'm'\nbandwidth = -1\nflops = 1e12\noverhead = 0\n")
    with pytest.raises(UsageError, match="bandwidth"):
        find_machine(str(mine))

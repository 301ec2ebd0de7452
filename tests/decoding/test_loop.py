"""The loop against a naive one; what it records; prompts are read once for all cells."""

import math
from collections.abc import Iterator
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from specbench.decoding.heads.head import Head
from specbench.decoding.loop import Request
from specbench.decoding.sampling import Sampling, uniforms
from specbench.engine.pair import LoadedPair
from specbench.engine.runner import Runner
from specbench.errors import RunError
from specbench.methods import Rule, laws
from specbench.methods.ensembles import diversed, static
from specbench.methods.exact import block
from specbench.methods.strict import lossy, sd

from ..engine.tiny import FAMILIES, build, config, pair_of, random_prompt, tiny_pair
from .exact import Array, last_logits, softmax
from .helpers import GREEDY, constantly, own_draft, run, run_all, with_eos
from .test_rows import rules

PROMPT = random_prompt(6)
WEIGHTS = {"static": 0.4, "diversed": 0.6}  # of the rules of other tests


@pytest.mark.parametrize(("method", "limit"), list(product(rules(tiny_pair("gemma3")), (1, 4, 16))))
def test_counts_are_consistent(method, limit):
    pair, n = tiny_pair("gemma3"), 4
    output = run(pair, PROMPT, rules(pair)[method], draft_length=n, max_new_tokens=limit)
    assert output.prompt_tokens == len(PROMPT)
    assert output.output_tokens == sum(record.emitted for record in output.rounds) == limit
    assert output.text == pair.tokenizer.decode(output.token_ids)
    for record in output.rounds:
        assert 0 <= record.accepted <= record.proposed <= n
        assert record.emitted in (record.accepted, record.accepted + 1)
        assert len(record.expected) == min(record.accepted + 1, record.proposed)
        assert all(0 <= chance <= 1 + 1e-6 for chance in record.expected)
        weights = [WEIGHTS[method]] * len(record.expected) if method in WEIGHTS else []
        assert record.weights == pytest.approx(weights)
    for record in output.rounds[:-1]:
        assert record.emitted == record.accepted + 1
        assert record.proposed == (0 if method == "autoregressive" else n)


@pytest.mark.parametrize(("rule", "law"), [(sd, laws.sd), (static, laws.static)])
def test_tokens_that_the_target_would_never_emit_are_counted(rule, law):
    values = {} if rule is sd else {"weight": 0.3}
    options = {"sampling": Sampling(top_k=3), "law": lambda at, w: law(at, **values)}
    requests = [Request(random_prompt(6 + i), str(i)) for i in range(4)]
    texts = run_all(tiny_pair("gemma3"), partial(rule, **values), requests, **options)
    rounds = [record for text in texts for record in text.rounds]
    never = [sum(log_p <= math.log(laws.TINY) for log_p, _ in record.laws) for record in rounds]
    assert [record.zero_p for record in rounds] == never
    assert (sum(never) > 0) == (rule is static)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_target_that_drafts_for_itself_is_always_accepted(family):
    pair = own_draft(tiny_pair(family))
    for sampling in (GREEDY, Sampling()):
        output = run(pair, PROMPT, sd, max_new_tokens=60, sampling=sampling)
        assert [(r.proposed, r.accepted, r.emitted) for r in output.rounds] == [(5, 5, 6)] * 10
        assert all(x == pytest.approx(1, abs=1e-4) for r in output.rounds for x in r.expected)


def test_an_end_token_inside_an_accepted_block_ends_all_counts():
    pair = own_draft(tiny_pair("llama"))
    block = run(pair, PROMPT, sd, max_new_tokens=6).token_ids
    assert len(set(block)) == 6, "each token of this block must be able to be the first end token"
    for position, end in enumerate(block):  # the last one is also the limit
        output = run(with_eos(pair, end), PROMPT, sd, max_new_tokens=6)
        (record,) = output.rounds
        assert (output.stopped_by, output.token_ids) == ("eos", block[:position])
        assert output.text == pair.tokenizer.decode(block[:position])
        assert output.output_tokens == record.emitted == position + 1
        assert record.accepted == record.proposed == min(position + 1, 5)
        assert len(record.expected) == record.proposed


@pytest.mark.parametrize("verify", [None, sd], ids=["autoregressive", "sd"])
def test_a_stop_string_ends_the_output_and_is_cut_off(verify):
    pair = own_draft(tiny_pair("llama"))
    whole = run(pair, PROMPT, verify).text
    stop = whole[6:9]  # three tokens, not at the end of a block
    output = run(pair, PROMPT, verify, stop=["not there", stop])
    assert output.stopped_by == "stop" and output.text == whole[:6]
    assert output.output_tokens == sum(r.emitted for r in output.rounds) == 9
    assert run(pair, PROMPT, verify, stop=["not there"]).text == whole


def test_a_request_beyond_the_context_is_refused():
    pair = pair_of(build(config("llama", max_position_embeddings=64)), build(config("llama")))
    with pytest.raises(RunError, match="60 tokens and 5 new ones exceed the context of 64"):
        run(pair, [1] * 60, sd, max_new_tokens=5)


def test_the_weight_does_not_depend_on_the_token():
    """Weights up to and including a rejected position depend only on the tokens before it."""
    generator = torch.Generator().manual_seed(0)
    head = Head("linear", (32, 32)).requires_grad_(False)
    head.summary.weight.copy_(torch.randn(2, 64, generator=generator) / 8)
    pair, prompt = tiny_pair("llama"), random_prompt(5)
    rule, first, drafts = partial(diversed, head=head.weigh), set(), set()
    for key in "abcdef":
        first.add(run(pair, prompt, rule, sample_key=key).rounds[0].weights[0])
        drafts.add(run(pair, prompt, constantly(1), sample_key=key).token_ids[0])
    assert len(drafts) > 1 and max(first) - min(first) < 1e-5


SEVERAL: list[Rule | None] = [None, sd, partial(lossy, lenience=0.5), block, None]
LENGTHS = (30, 2, 12, 1)
HOUR = 3600.0


@pytest.fixture
def read(monkeypatch) -> Iterator[list[int]]:
    """The lengths of prompts that were read, less the last token."""
    lengths: list[int] = []
    forward = Runner._forward

    def counted(self: Runner, tokens: torch.Tensor, *args: object) -> torch.Tensor:
        if args[2:]:
            lengths.append(tokens.shape[1])
        return forward(self, tokens, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Runner, "_forward", counted)
    yield lengths


def texts(pair: LoadedPair, rule: Rule | None, requests: list[Request]) -> list[object]:
    generations = run_all(pair, rule, requests, batch_size=len(requests), max_new_tokens=12)
    return [(g.token_ids, g.rounds, g.stopped_by) for g in generations]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [1, 4])
def test_a_prompt_that_is_not_read_again_has_the_same_text(family, size, read):
    pair = tiny_pair(family)
    requests = [Request(random_prompt(length), f"{length}") for length in LENGTHS[:size]]
    expected = []
    for rule in SEVERAL:
        pair.drop_caches()
        expected.append(texts(pair, rule, requests))
    pair.drop_caches()
    pair.reserve(64, size)
    read.clear()
    assert [texts(pair, rule, requests) for rule in SEVERAL] == expected
    # Once by each model.
    assert sorted(n for n in read if n) == sorted(2 * [n - 1 for n in LENGTHS[:size] if n > 1])


def test_the_time_of_reading_counts_for_every_cell():
    pair, requests = tiny_pair("llama"), [Request(random_prompt(20), "")]
    pair.drop_caches()

    def generation(rule):
        return run_all(pair, rule, requests)[0]

    assert 0 < generation(sd).prefill_seconds < HOUR
    for model in pair.runners:
        assert model.cache is not None
        ((tokens, states),) = model.cache.prompts.items()
        model.cache.prompts[tokens] = states._replace(seconds=HOUR)
    assert HOUR < generation(None).prefill_seconds < 2 * HOUR < generation(sd).prefill_seconds
    assert generation(sd).latency_seconds > 2 * HOUR


def test_an_overwritten_prompt_is_restored_in_any_row(read):
    pair = tiny_pair("llama")
    pair.drop_caches()
    requests = [Request(random_prompt(length), "") for length in (20, 12)]
    expected = texts(pair, sd, requests)
    for slot in (0, 7, 17):
        read.clear()
        pair.target.read(torch.tensor([[3], [3]]), torch.tensor([[slot], [slot]]), slot + 1)
        assert texts(pair, sd, requests) == expected
        assert texts(pair, sd, requests[::-1]) == expected[::-1] and not read
    *start, last = requests[0].prompt
    changed = [requests[0]._replace(prompt=[*start, (last + 1) % 8]), requests[1]]
    assert texts(pair, sd, changed) != expected and read == [19, 19]


def test_the_states_of_prompts_take_no_more_than_their_share_of_memory(read, monkeypatch):
    pair = tiny_pair("llama")
    pair.drop_caches()
    requests = [Request(random_prompt(length), "") for length in (20, 12, 16)]
    expected = [texts(pair, None, [request]) for request in requests]
    assert pair.target.cache is not None
    sizes = [states.size for states in pair.target.cache.prompts.values()]
    monkeypatch.setattr(pair.target, "prompt_bytes", sizes[1] + sizes[2])
    read.clear()
    assert texts(pair, None, [requests[0]]) == expected[0] and not read
    pair.target.forget_prompts()
    assert [texts(pair, None, [request]) for request in requests] == expected
    assert read == [19, 11, 15]  # the first is no longer stored
    again = [texts(pair, None, [requests[number]]) for number in (1, 2, 0)]
    assert again == [expected[number] for number in (1, 2, 0)] and read == [19, 11, 15, 19]


def test_a_prompt_is_read_again_after_one_whose_reading_broke_off(monkeypatch):
    pair = tiny_pair("llama")
    pair.drop_caches()
    requests = [Request(random_prompt(20), "")]
    expected = texts(pair, None, requests)
    last = pair.target.base.layers[-1]
    with monkeypatch.context() as broken:
        broken.setitem(vars(last), "forward", None)  # calling it raises: its keys stay as they are
        with pytest.raises(TypeError):
            pair.target.prefill(torch.arange(20) % 8)
    assert texts(pair, None, requests) == expected


LIMIT = 20
PROMPTS = [random_prompt(length) for length in (1, 6, 13)]


def law(model: PreTrainedModel, tokens: list[int]) -> Array:
    return softmax(last_logits(model, tuple(tokens)).double().numpy())


def pick(distribution: Array, uniform: float) -> int:
    cumulative = distribution.cumsum()
    return int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))


def naive_round(pair: LoadedPair, tokens: list[int], chance: Array) -> list[int]:
    """New tokens of one round: whole forward passes, NumPy, no cache, no tensors.

    Every model call processes the whole sequence, so an error in caching, rereading, the bonus
    token or a wrapped window shows up as a different token.
    """
    n = len(chance) // 2
    drafts: list[int] = []
    qs: list[Array] = []
    for i in range(n):
        qs.append(law(pair.draft.model, tokens + drafts))
        drafts.append(pick(qs[i], chance[i]))
    for i, (q, x) in enumerate(zip(qs, drafts, strict=True)):
        p = law(pair.target.model, tokens + drafts[:i])
        if chance[n + i] >= p[x] / q[x]:
            return [*drafts[:i], pick(np.maximum(p - q, 0), chance[-1])]
    return [*drafts, pick(law(pair.target.model, tokens + drafts), chance[-1])]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [0, 1, 3, 5])
def test_the_sampled_loop_equals_the_naive_one(family, n):
    pair = tiny_pair(family)
    for prompt in PROMPTS:
        expected = list(prompt)
        for chance in uniforms(7, "naive", LIMIT, n).numpy():
            if len(expected) < len(prompt) + LIMIT:
                expected += naive_round(pair, expected, chance)
        how = {"draft_length": n, "max_new_tokens": LIMIT, "seed": 7, "sample_key": "naive"}
        output = run(pair, prompt, sd if n else None, **how)
        assert prompt + output.token_ids == expected[: len(prompt) + LIMIT]

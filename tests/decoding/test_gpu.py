"""The same loop on a CUDA device; skipped without one (``make test-gpu``)."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from specbench.config import COMPILE, EAGER, GRAPH
from specbench.decoding.drafters.registry import parse_kind
from specbench.decoding.loop import Request
from specbench.decoding.records import Generation
from specbench.decoding.sampling import Sampling
from specbench.engine.engines import Engine
from specbench.engine.loading import load_pair
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, get_pair
from specbench.engine.prompts import encode
from specbench.methods.ensembles import static
from specbench.methods.strict import sd
from specbench.tasks.task import default_task_names, load_task
from specbench.validation import greedy as check_greedy
from specbench.validation.texts import Context

from .helpers import GREEDY, generate, require_equal_up_to_ties, run, run_all, said
from .test_rows import rules

pytestmark = pytest.mark.gpu
ENGINES = (EAGER, GRAPH, COMPILE)


@pytest.fixture(scope="module")
def pair() -> LoadedPair:
    return load_pair(get_pair("mini"), Loading(device="cuda", dtype="float32"))


def prompts(pair: LoadedPair, count: int = 5) -> list[Request]:
    requests = [
        Request(encode(pair.tokenizer, example.prompt).ids, f"{task}/{example.id}")
        for task in default_task_names()
        for example in load_task(task).examples("test", 2)
    ]
    return sorted(requests, key=lambda request: -len(request.prompt))[:count]


def texts(pair: LoadedPair, engine: str, verify: Any, **changes: Any) -> list[Generation]:
    settings: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 48}
    fast = replace(pair, engine=Engine(engine))
    return run_all(fast, verify, prompts(pair), **(settings | changes))


def require_equal_up_to_a_tie(
    pair: LoadedPair, request: Request, expected: list[int], token_ids: list[int]
) -> None:
    """Fail unless the target's greedy texts are equal up to a tie; their rounds may differ."""
    if token_ids != expected:
        context = Context(request.key, list(request.prompt))
        first = check_greedy.divergence(pair, context, expected, token_ids)
        print(first)
        assert first["tie"], first


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("task", default_task_names())
def test_greedy_decoding_equals_generate(pair, task, engine):
    prompt = encode(pair.tokenizer, load_task(task).examples("test", 1)[0].prompt).ids
    expected = [token for token in generate(pair, prompt, 128) if token not in pair.eos_ids]
    fast = replace(pair, engine=Engine(engine))
    for verify in (None, sd):
        token_ids = run(fast, prompt, verify, sampling=GREEDY, max_new_tokens=128).token_ids
        require_equal_up_to_a_tie(pair, Request(prompt, task), expected, token_ids)


@pytest.mark.parametrize(
    "method", ["autoregressive", "sd", "lossy", "speccascade", "static", "block", "mentored"]
)
@pytest.mark.parametrize("engine", [GRAPH, COMPILE])
def test_engines_agree_greedily(pair, engine, method):
    verify = rules(pair)[method]
    by_engine = [texts(pair, name, verify) for name in (EAGER, engine)]
    require_equal_up_to_ties(pair, prompts(pair), *by_engine)


@pytest.mark.parametrize("name", get_pair("mini").drafters)
@pytest.mark.parametrize("engine", ENGINES)
def test_modules_draft_for_greedy_texts(pair, engine, name):
    drafter = parse_kind(name, pair.drafters).load(pair)
    expected = texts(pair, EAGER, None)
    generations = texts(pair, engine, sd, drafter=drafter, batch_size=2)
    for request, one, other in zip(prompts(pair), expected, generations, strict=True):
        require_equal_up_to_a_tie(pair, request, one.token_ids, other.token_ids)
    assert any(r.accepted for text in generations for r in text.rounds)


@pytest.mark.parametrize("n", [1, 3, 15])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_graph_serves_any_draft_length_and_batch(pair, n, rows):
    expected = texts(pair, EAGER, sd, draft_length=n)
    generations = texts(pair, GRAPH, sd, draft_length=n, batch_size=rows)
    require_equal_up_to_ties(pair, prompts(pair), expected, generations)


def test_draws_are_those_of_the_eager_engine(pair):
    """At temperature 1 texts may diverge where rounding decides between two tokens; most do not."""
    eager, graph = (texts(pair, name, sd, sampling=Sampling()) for name in (EAGER, GRAPH))
    same = [said(one) == said(other) for one, other in zip(eager, graph, strict=True)]
    assert sum(same) >= 4


def test_logits_of_a_replayed_pass_are_those_of_an_eager_one(pair):
    from specbench.decoding.drafting import State
    from specbench.decoding.round import target_forward

    pair.reserve(256)
    prompt = torch.tensor(prompts(pair)[0].prompt, device="cuda")
    pair.target.prefill(prompt)
    length = torch.tensor([len(prompt)], device="cuda")
    state = State(prompt[None, -2:], length, torch.rand(1, 1, device="cuda"), length > 0, None)
    with torch.inference_mode():
        eager, replayed, again = (
            engine(target_forward)(pair.target, state, None, Sampling()).p.clone()
            for engine in (Engine(EAGER), *[Engine(GRAPH)] * 2)
        )
    torch.testing.assert_close(replayed, eager, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(again, replayed, rtol=0, atol=0)


def test_alternating_graphs_of_many_cells_equal_the_eager_engine(pair):
    """Graphs share memory, and each is replayed after others have been captured."""
    pair.reserve(512)
    fast = Engine(GRAPH)
    names = ("sd", "static", "block", "mentored", "autoregressive")
    plan = [(rules(pair)[name], n) for n in (5, 2) for name in names]
    request = prompts(pair)[0]
    for sampling in (GREEDY, Sampling(temperature=0.7, top_p=0.9)):
        expected, *replayed = (
            [
                run(replace(pair, engine=engine), list(request.prompt), verify, **settings)
                for verify, n in plan
                for settings in [{"sampling": sampling, "draft_length": n}]
            ]
            for engine in (Engine(EAGER), fast, fast)
        )
        if sampling.greedy:
            for texts in replayed:
                require_equal_up_to_ties(pair, [request] * len(plan), expected, texts)
        else:  # cumulative sums are not deterministic on a GPU
            same = [said(one) == said(other) for one, other in zip(*replayed, strict=True)]
            assert sum(same) >= len(plan) - 1


def test_graphs_of_many_rules_take_no_more_memory(pair):
    pair.reserve(512)
    fast = replace(pair, engine=Engine(GRAPH))
    prompt, held = list(prompts(pair)[0].prompt), []
    for weight in range(10):
        run(fast, prompt, partial(static, weight=weight / 10), draft_length=15)
        torch.cuda.empty_cache()
        held.append(torch.cuda.memory_reserved())
    assert held[-1] - held[1] < 4 * 2**20  # a separate pool takes at least 2 MiB


def test_decoding_continues_eagerly_after_a_failed_capture(pair):
    def waiting(at, x):
        assert x[0].item() >= 0  # waits for the device, which a capture must not
        return sd(at, x)

    request, told = prompts(pair)[0], []
    prompt = list(request.prompt)
    expected = run(replace(pair, engine=Engine(EAGER)), prompt, sd, sampling=GREEDY)
    fallen = Engine(GRAPH, told.append)
    generation = run(replace(pair, engine=fallen), prompt, waiting, sampling=GREEDY)
    require_equal_up_to_ties(pair, [request], [expected], [generation])
    assert fallen.name == EAGER and len(told) == 1 and "cannot be captured" in told[0]
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    again = Engine(GRAPH)
    generation = run(replace(pair, engine=again), prompt, sd, sampling=GREEDY)
    require_equal_up_to_ties(pair, [request], [expected], [generation])
    assert again.name == GRAPH

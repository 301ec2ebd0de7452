"""Drafters: their texts follow the rule's law, and copied drafts need no draft model."""

from copy import copy, deepcopy
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.decoding.drafters.copying import draft_from_text
from specbench.decoding.drafters.lookup import LookupDrafter
from specbench.decoding.drafters.model import GreedyDrafter
from specbench.decoding.drafters.registry import (
    DRAFTERS,
    MODEL,
    DrafterSpec,
    parse_drafter,
    parse_kind,
    recorded_drafter,
)
from specbench.decoding.drafters.suffix import DEPTH, SuffixDrafter
from specbench.decoding.drafting import State
from specbench.decoding.loop import Request
from specbench.decoding.sampling import Sampling
from specbench.errors import UsageError
from specbench.methods import METHODS, Rule, laws, strict
from specbench.methods.laws import Next, likeliest
from specbench.runs.labels import DEFAULT_DRAFTER
from specbench.training.rollouts import _draft_law

from ..engine.tiny import FAMILIES, pair_of, tiny_pair
from .exact import LOWEST_P, Tokens, p_value
from .helpers import GREEDY, module_drafter, run, run_all, said
from .test_law import CERTAIN, LENGTH, VOCABULARY, N, lookup_pair, sample
from .test_law import enumeration as of_prompt
from .test_rows import rules as every_rule

LOOKUP, SUFFIX, LIKELIEST = LookupDrafter(), SuffixDrafter(), GreedyDrafter()
PROMPT = [1, 2, 3, 1, 2]  # 3 follows the last two tokens
REQUESTS = [Request([*range(n), *range(n // 2)], f"sample {n}") for n in (3, 9, 2, 14)]
enumeration = partial(of_prompt, PROMPT)


def texts(rule: Rule | None, **settings: Any) -> list[Tokens]:
    return sample(lookup_pair(), rule, prompt=PROMPT, **settings)


@pytest.mark.parametrize("drafter", [LOOKUP, SUFFIX, LIKELIEST], ids=str)
@pytest.mark.parametrize("method", ["sd", "block", "match"])
def test_lossless_rules_emit_the_target_whatever_drafts(method, drafter):
    processing = {"temperature": 0.7, "top_k": 4}
    samples = texts(METHODS[method].rule, sampling=Sampling(**processing), drafter=drafter)
    law = enumeration(**processing).law(laws.sd, 0, LENGTH)
    assert p_value(samples, law) > LOWEST_P
    wrong = enumeration(temperature=0.8, top_k=4).law(laws.sd, 0, LENGTH)
    assert p_value(samples, wrong) < CERTAIN


def copied(at: Next) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor([3]), VOCABULARY).to(at.q)


@pytest.mark.parametrize(
    ("drafter", "q"), [(LOOKUP, copied), (SUFFIX, copied), (LIKELIEST, lambda at: likeliest(at.q))]
)
@pytest.mark.parametrize(("method", "parameters"), [("static", {"weight": 0.4}), ("sd", {})])
def test_rules_receive_the_one_hot_q_that_the_draft_is_drawn_from(method, parameters, drafter, q):
    def law(at):
        emitted = METHODS[method].law
        assert emitted is not None
        return emitted(at._replace(q=q(at)), **parameters)

    rule = METHODS[method].rule
    assert rule is not None
    samples = texts(partial(rule, **parameters), drafter=drafter, max_new_tokens=1)
    assert p_value(samples, enumeration().law(law, N, 1)) > LOWEST_P
    if parameters:  # the emitted distribution depends on q
        soft = enumeration().law(partial(laws.static, **parameters), N, 1)
        assert p_value(samples, soft) < CERTAIN


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_texts_with_copied_drafts_are_the_targets_own(family):
    pair = tiny_pair(family)
    how = {"sampling": GREEDY, "drafter": LOOKUP}
    alone, with_lookup = (run_all(pair, rule, REQUESTS, **how) for rule in (None, strict.sd))
    assert [t.token_ids for t in with_lookup] == [t.token_ids for t in alone]
    assert any(t.rounds[0].proposed for t in with_lookup)


@pytest.mark.parametrize("drafter", [LOOKUP, LIKELIEST], ids=str)
def test_a_text_does_not_depend_on_its_neighbours(drafter):
    pair = tiny_pair("llama")
    # A rule that sees rows alone, one that sees whole blocks, and one with hidden states.
    for name in ("sd", "block") if drafter is LOOKUP else ("sd", "block", "diversed"):
        rule = every_rule(pair)[name]
        settings = {"drafter": drafter, "max_new_tokens": 12}
        alone = [said(run(pair, list(r.prompt), rule, r.key, **settings)) for r in REQUESTS]
        together = run_all(pair, rule, REQUESTS, batch_size=3, **settings)
        assert [said(text) for text in together] == alone, name


def test_prompt_lookup_never_runs_the_draft_model_nor_proposes_what_it_lacks():
    pair = tiny_pair("llama")
    pair = pair_of(pair.target.model, deepcopy(pair.draft.model))
    for layer in pair.draft.model.modules():
        layer.register_forward_pre_hook(lambda *_: pytest.fail("it ran"))
    generations = run_all(pair, strict.sd, REQUESTS, drafter=LOOKUP)
    rounds = [record for text in generations for record in text.rounds]
    assert {0, 5} <= {record.proposed for record in rounds}  # a round may propose nothing
    assert all(bool(record.expected) == (record.proposed > 0) for record in rounds)
    tokens = torch.tensor([[1, 2, 9, 1, 0, 0], [1, 9, 2, 1, 0, 0]])
    four, on = torch.tensor([4, 4]), torch.tensor([True, True])
    state = State(tokens[:, 2:4], four, torch.zeros(2, 7), on, None, tokens)
    drafts = draft_from_text(LOOKUP, state, vocabulary=5)
    assert drafts.proposed is not None and drafts.proposed.tolist() == [1, 0]
    assert drafts.q.sum(-1).tolist() == [[1, 0, 0], [0, 0, 0]] and int(drafts.x.max()) < 5


def test_names():
    assert str(parse_drafter("prompt-lookup:1-3")) == "prompt-lookup"
    assert str(parse_drafter("prompt-lookup:2-2")) == "prompt-lookup:2-2"
    assert parse_drafter("greedy+svip:0.6") == DrafterSpec(GreedyDrafter(), "svip:0.6")
    assert str(parse_drafter("eagle3+svip", ["eagle3"])) == "eagle3+svip"
    for name in DRAFTERS:
        assert str(parse_drafter(name)) == name and recorded_drafter(name) == parse_drafter(name)
    wrong = ("lookup", "prompt-lookup:3-2", "prompt-lookup:0-2", "prompt-lookup:3", "model:1")
    wrong += (f"prompt-lookup:1-{'9' * 5000}",)  # more digits than ``int`` reads
    for name in (*wrong, "prompt-lookup+svip", "eagle3"):
        with pytest.raises(UsageError):
            parse_drafter(name)
    gone = recorded_drafter("results/gone+svip:0.6")  # a run may name a module that is gone
    assert str(gone) == "results/gone+svip:0.6"
    assert gone.kind.has_weights and not gone.kind.files({})
    assert str(MODEL) == DEFAULT_DRAFTER  # of tables


def test_a_folder_does_not_hide_a_drafter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("model", "suffix", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    assert parse_drafter("model") == MODEL and parse_drafter("suffix").kind.copies
    assert parse_drafter("other").kind.has_weights
    with pytest.raises(UsageError, match="has the name of a drafter"):
        parse_drafter("suffix", ["suffix"])


@cache
def greedy_texts() -> list[list[int]]:
    return [t.token_ids for t in run_all(tiny_pair("llama"), None, REQUESTS, sampling=GREEDY)]


# A law makes rounds draft in which no text of the batch has room for drafts.
@pytest.mark.parametrize(
    ("context", "batch_size", "law"),
    [
        *((1, 1, None), (7, 1, None), (7, 3, None), (20, 3, None)),
        *((1, 3, _draft_law), (7, 3, _draft_law)),
    ],
)
@pytest.mark.parametrize("kind", ["model", "greedy", "eagle3", "mtp", "block"])
def test_nothing_is_drafted_beyond_the_drafters_context(kind, context, batch_size, law):
    pair = tiny_pair("llama")
    if kind in ("model", "greedy"):
        pair = replace(pair, draft=copy(pair.draft))
        pair.draft.context, drafter = context, parse_kind(kind)
    else:
        drafter = module_drafter(pair, kind)
        drafter.context = context
    settings = {"sampling": GREEDY, "drafter": drafter, "batch_size": batch_size, "law": law}
    texts = run_all(pair, strict.sd, REQUESTS, **settings)
    assert [t.token_ids for t in texts] == greedy_texts()
    for request, text in zip(REQUESTS, texts, strict=True):
        length = len(request.prompt)
        for record in text.rounds[:-1]:  # the last one ends with its text
            assert record.proposed == min(5, max(0, context + 1 - length))
            length += record.emitted


COPYING = [declared.kind.parse("") for declared in DRAFTERS.values() if declared.kind.copies]
LOOKUPS = [LookupDrafter(shortest, shortest + more) for shortest in (1, 2, 3) for more in (0, 2)]


@pytest.mark.parametrize("drafter", [*COPYING, *LOOKUPS], ids=str)
@settings(max_examples=100, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=3),
    drafts=st.integers(1, 5),
)
def test_batches_are_copied_like_each_text_alone(drafter, texts, drafts):
    width = 16
    # What lies behind a text's end must not matter: it repeats the text there.
    rows = torch.tensor([(text * width)[:width] for text in texts])
    length = torch.tensor([len(text) for text in texts])
    x, proposed = drafter.copy(rows, length, drafts)
    copies = [row[:n].tolist() for row, n in zip(x, proposed.tolist(), strict=True)]
    assert copies == [drafter.propose(text, drafts) for text in texts]


@pytest.mark.parametrize("drafter", COPYING, ids=str)
def test_it_finds_something_to_copy(drafter):
    x, proposed = drafter.copy(torch.tensor([[7, 8, 9, 7, 8, 0]]), torch.tensor([5]), 3)
    copied = x[0, : proposed[0]].tolist()
    assert len(copied) == 3
    if str(drafter) in ("prompt-lookup", "suffix"):
        assert copied == [9, 7, 8]


def test_suffix_copies_the_most_frequent_continuation_unlike_prompt_lookup():
    for text, copied in (
        ([1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2], [3, 1, 2, 4]),  # 3 followed twice, 4 once
        ([1, 2, 4, 5, 1, 2, 3, 6, 1, 2], [3, 6, 1, 2]),  # both once: the last one
        ([1, 2, 3, 7, 2, 3, 8, 2, 3, 8, 1, 2, 3], [7, 2, 3, 8]),  # the longest match, not the most
        ([1, 2, 3], []),
    ):
        assert SUFFIX.propose(text, 4) == copied
        x, proposed = SUFFIX.copy(torch.tensor([text]), torch.tensor([len(text)]), 4)
        assert x[0, : proposed[0]].tolist() == copied
    text = [1, 2, 3, 4, 5, 9, 2, 3, 4, 6, 1, 2, 3, 4]
    assert SUFFIX.propose(text, 1) == [5] and LookupDrafter().propose(text, 1) == [6]
    repeated = [7] * 2 * DEPTH
    assert SUFFIX.propose(repeated, 3) == [7, 7, 7]
    settings = SUFFIX.vllm(3, None)
    assert settings["method"] == "suffix" and settings["num_speculative_tokens"] == 3
    assert settings["suffix_decoding_max_cached_requests"] == 0
    assert SUFFIX.sglang(3, "") is SUFFIX.llamacpp(3, "") is None

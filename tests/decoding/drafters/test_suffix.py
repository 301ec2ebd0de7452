"""Suffix decoding: it copies the most frequent continuation, and rules keep the target's law."""

from functools import partial

import pytest
import torch

from specbench.decoding.drafters.lookup import LookupDrafter
from specbench.decoding.drafters.suffix import DEPTH, SuffixDrafter
from specbench.decoding.sampling import Sampling
from specbench.methods import METHODS, laws
from specbench.methods.laws import Next, Split

from ..exact import LOWEST_P, p_value
from ..helpers import constantly
from ..test_drafters import CERTAIN, LENGTH, enumeration, first_tokens, texts
from ..test_law import VOCABULARY, N

SUFFIX = SuffixDrafter()


@pytest.mark.parametrize("method", ["sd", "block", "match"])
def test_lossless_rules_emit_the_target(method: str) -> None:
    processing = {"temperature": 0.7, "top_k": 4}
    samples = texts(METHODS[method].rule, sampling=Sampling(**processing), drafter=SUFFIX)
    assert p_value(samples, enumeration(**processing).law(laws.sd, 0, LENGTH)) > LOWEST_P
    wrong = enumeration(temperature=0.8, top_k=4).law(laws.sd, 0, LENGTH)
    assert p_value(samples, wrong) < CERTAIN


def test_a_rule_that_loses_something_is_found_out() -> None:
    samples = texts(constantly(0.7), drafter=SUFFIX)
    assert p_value(samples, enumeration().law(laws.sd, 0, LENGTH)) < CERTAIN


def test_an_ensemble_moves_towards_the_one_hot_q() -> None:
    def law(at: Next) -> Split:
        copied = torch.nn.functional.one_hot(torch.tensor([3]), VOCABULARY)
        return laws.static(at._replace(q=copied.to(at.q)), weight=0.4)

    rule = METHODS["static"].rule
    assert rule is not None
    samples = first_tokens(texts(partial(rule, weight=0.4), drafter=SUFFIX))
    assert p_value(samples, enumeration().law(law, N, 1)) > LOWEST_P
    soft = enumeration().law(partial(laws.static, weight=0.4), N, 1)
    assert p_value(samples, soft) < CERTAIN


@pytest.mark.parametrize(
    ("text", "copied"),
    [
        ([1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2], [3, 1, 2, 4]),  # 3 followed twice, 4 once
        ([1, 2, 4, 5, 1, 2, 3, 6, 1, 2], [3, 6, 1, 2]),  # both once: the last one
        ([1, 2, 3, 7, 2, 3, 8, 2, 3, 8, 1, 2, 3], [7, 2, 3, 8]),  # the longest match, not the most
        ([1, 2, 3], []),
    ],
)
def test_it_copies_the_most_frequent_continuation(text: list[int], copied: list[int]) -> None:
    assert SUFFIX.propose(text, 4) == copied
    x, proposed = SUFFIX.copy(torch.tensor([text]), torch.tensor([len(text)]), 4)
    assert x[0, : proposed[0]].tolist() == copied


def test_it_differs_from_prompt_lookup_beyond_its_n_gram() -> None:
    text = [1, 2, 3, 4, 5, 9, 2, 3, 4, 6, 1, 2, 3, 4]
    assert SUFFIX.propose(text, 1) == [5] and LookupDrafter().propose(text, 1) == [6]
    repeated = [7] * 2 * DEPTH
    assert SUFFIX.propose(repeated, 3) == [7, 7, 7]


def test_vllm_gets_a_tree_of_one_request() -> None:
    settings = SUFFIX.vllm(3, None)
    assert settings["method"] == "suffix" and settings["num_speculative_tokens"] == 3
    assert settings["suffix_decoding_max_cached_requests"] == 0
    assert SUFFIX.sglang(3, "") is SUFFIX.llamacpp(3, "") is None

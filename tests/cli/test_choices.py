"""From the options for models to a pair."""

import re

import pytest

from specbench.cli.choices import choose_pair
from specbench.errors import UsageError
from specbench.pairs.registry import get_pair

MINE = "results/drafts/mini/mini-math"


def test_a_pair_alone_is_taken_as_it_is() -> None:
    assert choose_pair(None, None, None) == get_pair("mini")
    assert choose_pair("qwen3", None, None) == get_pair("qwen3")


@pytest.mark.parametrize(("named", "name"), [(None, "mini"), ("mini", "mini"), ("llama", "llama")])
def test_a_draft_takes_the_place_of_the_pairs_own(named: str | None, name: str) -> None:
    own, pair = get_pair(name), choose_pair(named, None, MINE)
    assert (pair.name, pair.draft) == (f"{name}+mini-math", MINE)
    assert (pair.target, pair.dtype) == (own.target, own.dtype)
    assert pair.heads is None


def test_a_target_and_a_draft_are_a_pair_of_their_own() -> None:
    pair = choose_pair(None, "org/big", "org/small")
    assert (pair.name, pair.target, pair.draft) == ("big+small", "org/big", "org/small")


@pytest.mark.parametrize(
    ("pair", "target", "draft", "told"),
    [
        (None, "a/b", None, "--draft is missing: --target goes with a draft"),
        ("mini", "a/b", None, "--pair and --target name the target twice: give one of the two"),
        ("mini", "a/b", "a/c", "--pair and --target name the target twice: give one of the two"),
        ("mimi", None, MINE, "unknown pair `mimi`; did you mean `mini`?"),
    ],
)
def test_what_names_no_pair_is_refused(
    pair: str | None, target: str | None, draft: str | None, told: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        choose_pair(pair, target, draft)

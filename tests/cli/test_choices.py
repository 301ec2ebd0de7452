"""From the options for models to a pair."""

import pytest

from specbench.cli.options import Models
from specbench.errors import UsageError
from specbench.pairs.registry import get_pair

MINE = "results/drafts/mini/mini-math"


def test_a_pair_is_taken_by_name_with_another_draft_or_made_of_two_models() -> None:
    assert Models().spec() == get_pair("mini")
    for name in ("mini", "llama"):
        own, pair = get_pair(name), Models(pair=name, draft=MINE).spec()
        assert (pair.name, pair.draft) == (f"{name}+mini-math", MINE)
        assert (pair.target, pair.dtype, pair.heads) == (own.target, own.dtype, None)
    pair = Models(target="org/big", draft="org/small").spec()
    assert (pair.name, pair.target, pair.draft) == ("big+small", "org/big", "org/small")


@pytest.mark.parametrize(
    ("names", "place"),
    [
        ((None, "a/b", None), "--draft is missing"),
        (("mini", "a/b", None), "--pair and --target"),
        (("mini", "a/b", "a/c"), "--pair and --target"),
        (("mimi", None, MINE), "did you mean `mini`?"),
    ],
)
def test_names_of_no_pair_are_refused(names: tuple[str | None, ...], place: str) -> None:
    with pytest.raises(UsageError, match=place):
        Models(**dict(zip(("pair", "target", "draft"), names, strict=True))).spec()

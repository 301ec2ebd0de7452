from dataclasses import replace
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.pairs.registry import custom_pair, get_pair, pairs, with_draft


def test_the_known_pairs() -> None:
    assert list(pairs()) == ["mini", "llama", "qwen3", "gemma3"]
    llama = get_pair("llama")
    assert llama.target == "meta-llama/Llama-3.1-8B-Instruct"
    assert llama.draft == "meta-llama/Llama-3.2-1B-Instruct"
    assert llama.heads is None


def test_the_bundled_pair_lies_beside_the_registry() -> None:
    mini = get_pair("mini")
    import specbench.pairs.registry as module

    folder = Path(module.__file__).parent / "mini"
    assert (Path(mini.target), Path(mini.draft)) == (folder / "target", folder / "draft")
    assert mini.heads == folder / "heads"


@pytest.mark.parametrize(
    ("name", "hint"), [("mimi", "did you mean `mini`?"), ("zzz", "choose one of `mini`, `llama`")]
)
def test_an_unknown_pair_is_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint.replace("?", r"\?")):
        get_pair(name)


@pytest.mark.parametrize(
    ("target", "draft", "name"),
    [
        ("org/big", "org/small", "big+small"),
        ("/models/big/", "./small", "big+small"),
    ],
)
def test_a_pair_of_the_user_is_named_after_its_models(target: str, draft: str, name: str) -> None:
    pair = custom_pair(target, draft)
    assert (pair.name, pair.target, pair.draft) == (name, target, draft)


def test_a_pair_may_have_another_draft() -> None:
    pair = with_draft(get_pair("mini"), "results/drafts/mini/mini-math/")
    assert (pair.name, pair.draft) == ("mini+mini-math", "results/drafts/mini/mini-math/")
    assert pair.target == get_pair("mini").target
    assert pair.heads is None  # heads were trained for the pair's own draft


def test_another_draft_has_neither_revision_nor_architecture_of_the_pairs_own() -> None:
    own = replace(get_pair("qwen3"), target_revision="t", draft_revision="d")
    pair = with_draft(own, "org/small")
    assert (pair.target_revision, pair.draft_revision) == ("t", None)
    assert list(pair.architecture) == ["target"]


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_the_papers_pairs_do_not_think_and_say_what_they_are(name: str) -> None:
    pair = get_pair(name)
    assert not pair.thinking
    assert list(pair.architecture) == ["target", "draft"]

from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.pairs.registry import PairSpec, custom_pair, find_head, get_pair, pairs


def make_head(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("head.safetensors", "head.json"):
        (folder / name).touch()
    return folder


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
    ("name", "hint"), [("mimi", "did you mean mini?"), ("zzz", "choose one of mini, llama")]
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


def test_heads_are_found_wherever_they_may_be(tmp_path: Path) -> None:
    bundled = make_head(tmp_path / "heads" / "math")
    spec = PairSpec("p", "t", "d", heads=tmp_path / "heads")
    assert find_head(spec, "math") == bundled
    alone = make_head(tmp_path / "alone")
    assert find_head(spec, "math", alone) == alone
    assert find_head(spec, "math", alone / "head.safetensors") == alone
    # The folder of the task comes before the folder itself.
    assert find_head(spec, "math", tmp_path / "heads") == bundled
    assert find_head(spec, "math", bundled / "head.json") == bundled


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (None, "pair p has no head for news"),
        ("missing", "there is no head at"),
        ("empty", "holds no head for news"),
    ],
)
def test_a_missing_head_is_refused(tmp_path: Path, head: str | None, message: str) -> None:
    (tmp_path / "empty").mkdir()
    spec = PairSpec("p", "t", "d", heads=tmp_path / "heads")
    with pytest.raises(UsageError, match=message):
        find_head(spec, "news", None if head is None else tmp_path / head)


def test_half_a_head_is_no_head(tmp_path: Path) -> None:
    (tmp_path / "head.safetensors").touch()
    with pytest.raises(UsageError, match=r"head\.json"):
        find_head(PairSpec("p", "t", "d"), "news", tmp_path)

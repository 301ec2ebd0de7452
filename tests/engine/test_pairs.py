"""The known pairs, a user's own file of pairs, and pairs named by their models."""

from dataclasses import replace
from pathlib import Path

import pytest

from specbench.engine import pairs
from specbench.errors import UsageError

from ..told import DATA, refusals

ONE = """
[mine]
target = "./models/big"
draft = "org/small"
"""
FULL = (DATA / "pairs.toml").read_text(encoding="utf-8")
PAIR = "[m]\ntarget = 'a/b'\ndraft = 'a/c'\n"
DRAFT = f"{PAIR}[m.architecture.draft]\nmodel_type = 'llama'\n"


def test_bundled_pairs_lie_beside_their_file_and_those_of_users_are_named_after_their_models():
    bundled = {"mini", "python"}
    for name in bundled:
        pair, folder = pairs.get_pair(name), pairs.PAIRS_FILE.parent / name
        assert (Path(pair.target), Path(pair.draft)) == (folder / "target", folder / "draft")
        assert pair.bundled and pair.heads == folder / "heads"
    for pair in [pair for name, pair in pairs.pairs().items() if name not in bundled]:
        assert list(pair.architecture) == ([] if pair.gguf else ["target", "draft"])
        assert (pair.heads, pair.thinking, pair.bundled) == (None, False, False)
    for target, draft in (("org/big", "org/small"), ("/models/big/", "./small")):
        pair = pairs.custom_pair(target, draft)
        assert (pair.name, pair.target, pair.draft) == ("big+small", target, draft)
    alone = pairs.custom_pair("org/big", None)
    assert alone.name == "big" and list(alone.models) == ["target"]


@pytest.mark.parametrize("pair", ["qwen2.5-coder", "qwen2.5-coder-gguf"])
def test_models_of_the_hub_are_taken_from_a_folder_by_their_names(pair, tmp_path):
    spec = pairs.get_pair(pair)
    with pytest.raises(UsageError, match=r"^no (?i:qwen2.5-coder-1.5b)\S* in .*: put it there"):
        pairs.in_folder(spec, tmp_path)
    names = {role: pairs.short_name(model) for role, model in spec.models.items()}
    for name in names.values():
        (tmp_path / name.lower()).touch()
    paths = {role: str(tmp_path / name.lower()) for role, name in names.items()}
    assert pairs.in_folder(spec, tmp_path).models == paths
    assert pairs.in_folder(pairs.get_pair("mini"), tmp_path) == pairs.get_pair("mini")
    with pytest.raises(UsageError, match="no folder"):
        pairs.in_folder(spec, tmp_path / "none")


def test_a_file_of_the_hub_has_a_name_and_another_draft_nothing_of_the_pairs_own(tmp_path):
    for repository, file in (("org/a-GGUF", "a.gguf"), ("org/b", "q4/b-00001-of-00002.gguf")):
        assert pairs.hub_file(f"{repository}:{file}") == (repository, file)
        assert pairs.custom_pair(f"{repository}:{file}", None).name == Path(file).name
        pairs.require_model(f"{repository}:{file}")
    for other in ("org/a", "a.gguf", "/models/a.gguf", "org/a:b.bin", "a:b.gguf"):
        assert pairs.hub_file(other) is None
    with pytest.raises(UsageError, match=r"no file a:b\.gguf: give a GGUF file, or OWNER/NAME"):
        pairs.require_model("a:b.gguf")
    pair = pairs.with_draft(pairs.get_pair("mini"), "results/drafts/mini/mini-math/")
    assert (pair.name, pair.draft) == ("mini+mini-math", "results/drafts/mini/mini-math/")
    assert pair.target == pairs.get_pair("mini").target
    assert pair.heads is None  # heads were trained for the pair's own draft
    revised = replace(pairs.get_pair("qwen3"), target_revision="t", draft_revision="d")
    pair = pairs.with_draft(revised, "org/small")
    assert (pair.target_revision, pair.draft_revision) == ("t", None)
    assert list(pair.architecture) == ["target"]


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "my pairs.toml"


def test_every_key_is_read_and_the_only_pair_of_a_file_needs_no_name(file):
    file.write_text(ONE)
    pair = pairs.get_pair(str(file))
    target = str(file.parent / "models/big")
    assert (pair.name, pair.target, pair.draft) == ("mine", target, "org/small")
    assert pair == pairs.get_pair(f"{file}:mine")
    assert (pair.thinking, pair.target_revision, pair.heads) == (False, None, None)
    file.write_text(FULL)
    pair = pairs.get_pair(f"{file}:mine")
    assert (pair.target, pair.draft) == (str(file.parent / "../big"), "/models/small")
    assert (pair.heads, pair.dtype, pair.thinking) == (file.parent / "heads", "float32", True)
    assert (pair.target_revision, pair.draft_revision) == ("v1", "abc123")
    assert pair.training == {"learning_rate": 0.1} and pair.description == "two of mine"
    (role, values), *rest = pair.architecture.items()
    assert (role, rest) == ("target", [])
    assert values == {"model_type": "llama", "hidden_size": 64, "rope_theta": 10000.0}
    assert isinstance(values["rope_theta"], float)


WRONG = (
    *(FULL, "", "['a/b']\ntarget = 'a/b'\ndraft = 'a/c'", "[m]\ntarget = 'a/b'"),
    *(
        f"{PAIR}{more}"
        for more in ("targt = 'x'", *(f"[m.architecture.{r}]" for r in ("big", "target")))
    ),
    *(f"{DRAFT}{more}" for more in ("hiden_size = 1", "hidden_size = 0")),
)


def test_what_is_wrong_is_told_with_its_place(file, stored):
    messages = []
    for text in WRONG:
        file.write_text(text)
        messages.append(refusals(lambda: pairs.get_pair(str(file))))
    file.write_text(ONE)
    stored(*messages, refusals(lambda: pairs.get_pair(f"{file}:mime")))

"""Pretraining: which tokens have loss, and a complete build at toy size."""

from pathlib import Path

import pytest

from specbench.config import Loading
from specbench.engine.loading import load_pair
from specbench.errors import UsageError
from specbench.heads.files import load_head
from specbench.pairs.registry import PARTS, PairSpec
from specbench.tasks.mini import MODULES, generate
from specbench.training.material import IGNORED
from specbench.training.pretrain import batch, build, build_tokenizer, task_texts

RECIPE = """
[tokenizer]
vocabulary = 400
examples = 30

[examples]
mini-headline = 4

[target]
hidden = 16
layers = 2
heads = 2
intermediate = 32
steps = 30
learning_rate = 0.01
style = "target"
seed = 1

[draft]
hidden = 16
layers = 1
heads = 2
intermediate = 32
steps = 10
learning_rate = 0.01
style = "draft"
seed = 2

[heads]
steps = 1
prompts_per_step = 2
rollouts = 2
epochs_per_rollout = 1
"""


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(task_texts(50), vocabulary=600)


def test_digits_stay_single_and_any_text_survives(tokenizer):
    assert "12" not in tokenizer.get_vocab()
    text = "Zoë paid 1234 € for 56?\n\tYes."
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("name", MODULES)
def test_only_answers_carry_loss(tokenizer, name):
    ids, labels = batch(tokenizer, name, range(3), "target")
    assert ids.shape == labels.shape
    assert ids.shape[1] % 16 == 0
    for row in range(3):
        example = generate(name, "train", row, "target")
        wanted = labels[row][labels[row] != IGNORED]
        assert wanted[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(wanted[:-1]) == example.reference
        first = int((labels[row] != IGNORED).nonzero()[0])
        # The first answer token is predicted at the prompt's last token.
        prompt = tokenizer.decode(ids[row, : first + 1], skip_special_tokens=True)
        assert prompt == example.prompt


@pytest.mark.usefixtures("unmeasured")
def test_a_pair_is_built_completely_and_its_head_fits(tmp_path: Path, capsys):
    recipe = tmp_path / "toy" / "recipe.toml"
    recipe.parent.mkdir()
    recipe.write_text(RECIPE)
    build(recipe, tmp_path / "out", PARTS)
    pair = load_pair(
        PairSpec("toy", *(str(tmp_path / "out" / r) for r in PARTS[:2])), Loading(device="cpu")
    )
    head = load_head(tmp_path / "out" / "heads" / "mini-headline", pair)
    weight = head(head.shift[None] + 1 / head.scale)
    assert 0 < weight.item() < 1
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("head mini-headline: step 1, reward") for line in lines)


@pytest.mark.parametrize(
    ("blocked", "parts", "told"),
    [(True, PARTS, "cannot write"), (False, ("heads",), "has no target")],
)
def test_impossible_builds_are_refused_at_once(tmp_path: Path, blocked, parts, told):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    folder = tmp_path / "out"
    if blocked:
        folder.write_text("a file")
    with pytest.raises(UsageError, match=told):
        build(recipe, folder, parts)

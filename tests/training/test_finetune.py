"""Fine-tuning a draft: which tokens have loss, what is saved, and cleanup after failures."""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from specbench.engine.loading import load_pair
from specbench.engine.pairs import Loading, get_pair, with_draft
from specbench.errors import RunError, UsageError
from specbench.tasks.example import Example
from specbench.tasks.mini import GENERATORS
from specbench.tasks.task import load_task
from specbench.training import finetune
from specbench.training.finetune import finetune_draft
from specbench.training.material import IGNORED, Material, answer_batch, read_material
from specbench.training.recipe import DraftRecipe

from ..engine.tiny import build, config, tokenizer

DRAFT = get_pair("mini").draft
TASK = load_task("mini-headline")
SHORT = DraftRecipe(steps=60, batch_size=8)
# User turns end with a full stop, answers with "Z": tokens of the tiny vocabulary.
TEMPLATE = (
    "{% for m in messages %}{{ 'u' if m.role == 'user' else 'a' }} {{ m.content }}"
    "{{ '.' if m.role == 'user' else 'Z ' }}{% endfor %}"
    "{% if add_generation_prompt %}a {% endif %}"
)


def tune(recipe: DraftRecipe, folder: Path) -> dict[str, Any]:
    return finetune_draft(DRAFT, TASK, recipe, folder, "cpu", lambda step, loss: None)


def read(tokenizer: Any, examples: list[Example]) -> Material:
    return read_material(tokenizer, TASK, examples, "train", 512)


@pytest.fixture
def chatty() -> PreTrainedTokenizerFast:
    """The tiny tokenizer as a chat model's, whose answers end in another token than EOS."""
    mine = deepcopy(tokenizer())
    mine.chat_template, mine.eos_token = TEMPLATE, "Y"
    return mine


def test_the_result_is_a_better_draft_in_an_ordinary_folder(tmp_path):
    folder, losses = tmp_path / "drafts" / "news", []
    stale = tmp_path / "drafts" / ".news.partial"  # from a killed process
    stale.mkdir(parents=True)
    (stale / "junk").touch()
    folder.mkdir()
    said = finetune_draft(DRAFT, TASK, SHORT, folder, "cpu", lambda *step: losses.append(step))

    assert [step for step, _ in losses] == list(range(1, 61))
    assert said["held_out_loss"]["after"] < said["held_out_loss"]["before"] - 0.02
    assert said == json.loads((folder / "finetune.json").read_text())
    assert said["recipe"] == SHORT.updated(learning_rate=0.003).model_dump()
    assert (said["task"], said["task_version"]) == (TASK.name, TASK.version)
    assert [path.name for path in folder.parent.iterdir()] == ["news"]
    assert not (folder / "junk").exists()

    before, after = (load_file(Path(f) / "model.safetensors") for f in (DRAFT, folder))
    assert {name: w.dtype for name, w in after.items()} == dict.fromkeys(before, torch.bfloat16)
    loading = Loading(device="cpu", dtype="float32")
    pair = load_pair(with_draft(get_pair("mini"), str(folder)), loading)
    base_pair = load_pair(get_pair("mini"), loading)
    assert said["base_fingerprint"] == base_pair.draft.fingerprint()
    assert pair.eos_ids == base_pair.eos_ids


def test_the_seed_decides_the_result(tmp_path):
    weights = []
    for number, seed in enumerate((0, 0, 1)):
        folder = tmp_path / str(number)
        tune(DraftRecipe(steps=2, batch_size=2, seed=seed), folder)
        weights.append((folder / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


def test_examples_are_fresh_and_held_out_ones_are_unseen_training_examples(tmp_path, monkeypatch):
    generate = Mock(side_effect=GENERATORS[TASK.name])
    monkeypatch.setitem(GENERATORS, TASK.name, generate)
    monkeypatch.setattr(finetune, "HELD_OUT", 3)
    tune(DraftRecipe(steps=2, batch_size=4, seed=5), tmp_path / "d")
    asked = [call.args for call in generate.mock_calls]
    assert len(asked) == len(set(asked)) == 2 * 4 + 3
    assert {split for split, _ in asked} == {"train"}


def test_the_loss_covers_only_the_answers_tokens(mini):
    """Compared with the loss of Transformers, one example at a time, without padding."""
    model, examples = mini.draft.model, TASK.examples("train", 5)
    end = mini.tokenizer.eos_token_id
    total, tokens = 0.0, 0
    for example in examples:
        prompt = mini.tokenizer(example.prompt)["input_ids"]
        answer = mini.tokenizer(example.reference, add_special_tokens=False)["input_ids"] + [end]
        labels = torch.tensor([[IGNORED] * len(prompt) + answer])
        with torch.no_grad():
            loss = model(torch.tensor([prompt + answer]), labels=labels).loss
        total, tokens = total + loss.item() * len(answer), tokens + len(answer)

    def batch(chosen):
        return answer_batch(mini.tokenizer, chosen, end, end)

    for size in (5, 2):
        held_out_loss = finetune._held_out_loss(model, batch, read(mini.tokenizer, examples), size)
        assert held_out_loss == pytest.approx(total / tokens, rel=1e-4)


def test_a_chat_model_learns_its_own_template(chatty):
    examples = [Example("1", "hi", "yes"), Example("2", "b", "no")]
    ids, labels = answer_batch(chatty, read(chatty, examples), 51, 51)
    assert ids.shape == labels.shape == (2, 16)
    assert [chatty.decode(row[row != IGNORED]) for row in labels] == ["yesZ", "noZ"]
    assert chatty.decode(ids[0]) == "u hi.a yes" + "Z" * 6


def test_the_template_determines_the_end_token(chatty):
    model: PreTrainedModel = build(config("llama"))
    letter = chatty.get_vocab()
    model.generation_config.eos_token_id = [letter[c] for c in ".YZ"]
    assert finetune._end_token(model, chatty) == letter["Z"]
    chatty.chat_template = None
    assert finetune._end_token(model, chatty) == letter["Y"]
    with pytest.raises(UsageError, match="no end token: choose a draft that has one"):
        finetune._end_token(model, tokenizer())


def test_a_nonfinite_loss_saves_nothing(tmp_path):
    recipe = DraftRecipe(steps=9, batch_size=2, learning_rate=1e30)
    with pytest.raises(RunError, match=r"is (nan|inf) at step \d: .* lower --learning-rate"):
        tune(recipe, tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


FULL = SafetensorError("I/O error: No space left on device")


@pytest.mark.parametrize(
    ("fault", "expected", "told"),
    [
        (KeyboardInterrupt, KeyboardInterrupt, None),
        (FULL, RunError, "cannot write .*No space left"),
    ],
)
def test_an_error_while_saving_leaves_nothing(tmp_path, monkeypatch, fault, expected, told):
    monkeypatch.setattr(PreTrainedModel, "save_pretrained", Mock(side_effect=fault))
    with pytest.raises(expected, match=told):
        tune(DraftRecipe(steps=1, batch_size=1), tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_long_prompts_are_skipped_and_counted(tmp_path, monkeypatch):
    generate = GENERATORS[TASK.name]

    def sometimes_long(split, index):
        example = generate(split, index)
        words = example.prompt + "word " * 600
        return replace(example, prompt=words, passage="") if index % 3 == 1 else example

    monkeypatch.setitem(GENERATORS, TASK.name, sometimes_long)
    monkeypatch.setattr(finetune, "HELD_OUT", 6)
    said = tune(DraftRecipe(steps=2, batch_size=3), tmp_path / "d")
    assert said["left_out"] == {"train": 2, "held-out": 2}
    assert said["held_out_loss"]["n"] == 4
    assert (said["data"], said["prompt_format"]) == ({"generator": TASK.name}, "chat")


def test_a_task_without_references_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(GENERATORS, TASK.name, lambda split, index: Example("1", "prompt"))
    with pytest.raises(UsageError, match="mini-headline has examples without a reference"):
        finetune_draft(DRAFT, TASK, SHORT, tmp_path / "d", "cpu", pytest.fail)

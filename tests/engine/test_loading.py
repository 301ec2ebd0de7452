"""Loading a pair from disk, and one sentence for each way in which that can fail."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specbench.config import Loading
from specbench.engine import sources
from specbench.engine.loading import load_pair
from specbench.errors import RunError, UsageError
from specbench.methods.rules import sd
from specbench.pairs.registry import PairSpec

from ..decoding.helpers import run
from .tiny import VOCABULARY, random_prompt


def test_a_pair_is_loaded_and_cut_to_its_shared_vocabulary(spec: PairSpec) -> None:
    pair = load_pair(spec, Loading(device="cpu", dtype="float32"))
    assert pair.name == "target+draft"
    assert pair.target.vocabulary == pair.draft.vocabulary == VOCABULARY
    assert pair.draft.output.weight.shape[0] == 72
    assert pair.eos_ids == {5, 7}
    assert pair.tokenizer.decode([0, 1, 62, 2]) == "ab c"
    assert not pair.target.model.training
    assert len(run(pair, random_prompt(5), sd, max_new_tokens=4).rounds) > 0


HERE = str(Path(__file__).parent)  # holds no model
REFUSED: list[tuple[dict[str, str], dict[str, str], str]] = [
    ({}, {"device": "gpu"}, "no device gpu here: use"),
    ({}, {"device": "cuda:99"}, "no device cuda:99 here: use"),
    ({}, {"device": ""}, "no device  here: use"),
    ({}, {"dtype": "float31"}, "unknown dtype float31: use"),
    ({}, {"dtype": "Tensor"}, "unknown dtype Tensor: use"),
    ({"target": "nothing"}, {}, "no model folder nothing: give a folder"),
    ({"draft": "/no/thing"}, {}, "no model folder /no/thing: give a folder"),
    ({"draft": "no/such/thing"}, {}, "no model folder no/such/thing: give a folder"),
    ({"draft": HERE}, {}, "cannot load .*engine .*: give a folder with a model"),
]


@pytest.mark.parametrize(("models", "loading", "told"), REFUSED)
def test_what_cannot_be_loaded_is_refused(
    spec: PairSpec, models: dict[str, str], loading: dict[str, str], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        load_pair(replace(spec, **models), Loading(**({"device": "cpu"} | loading)))


def test_a_truncated_model_is_refused(spec: PairSpec) -> None:
    weights = Path(spec.draft) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UsageError, match=r"cannot load .*draft") as caught:
        load_pair(spec, Loading(device="cpu", dtype="float32"))
    assert "\n" not in str(caught.value)


def test_the_pairs_number_format_holds_where_none_is_asked_for(spec: PairSpec) -> None:
    own = replace(spec, dtype="float64")
    assert load_pair(own, Loading(device="cpu")).target.dtype == torch.float64
    assert load_pair(own, Loading(device="cpu", dtype="bfloat16")).draft.dtype == torch.bfloat16


def test_missing_weights_are_refused_though_transformers_would_make_some_up(spec: PairSpec) -> None:
    file = Path(spec.target) / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"1 of its weights are missing, model\.layers\.1\.mlp"):
        load_pair(spec, Loading(device="cpu"))


def test_a_token_of_the_prompt_that_a_model_lacks_is_refused(spec: PairSpec) -> None:
    pair = load_pair(spec, Loading(device="cpu"))
    with pytest.raises(RunError, match=f"token {VOCABULARY}, which a model of {VOCABULARY} tokens"):
        run(pair, [1, VOCABULARY, 2], sd)


def test_facts_say_how_a_pair_was_loaded(spec: PairSpec) -> None:
    facts = load_pair(replace(spec, thinking=True), Loading(device="cpu")).facts
    assert (facts["load_format"], facts["thinking"]) == ("auto", True)
    assert facts["shared_vocabulary"] == VOCABULARY
    assert facts["target_commit"] is None  # a folder has none
    json.dumps(facts)


# Packages that only some ways of loading need.


@pytest.mark.parametrize(
    ("loading", "package"),
    [
        (Loading(device="cpu", quantization="8bit"), "--quantization 8bit needs .* bitsandbytes"),
        (Loading(device="cpu", quantization="4bit"), "--quantization 4bit needs .* bitsandbytes"),
        (Loading(device="cpu", device_map="auto"), "--device-map needs the package accelerate"),
    ],
)
def test_a_package_that_is_not_there_is_named(
    spec: PairSpec, loading: Loading, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=f"{package}, which is not here: install it"):
        load_pair(spec, loading)

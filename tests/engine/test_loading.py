"""Loading a pair from disk, and one sentence for each way in which that can fail."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specbench.engine import sources
from specbench.engine.loading import load_pair
from specbench.engine.settings import Loading
from specbench.errors import RunError, UsageError
from specbench.methods.rules import sd
from specbench.pairs.registry import PairSpec

from ..decoding.helpers import run
from .tiny import VOCABULARY, random_prompt


def test_a_pair_is_loaded_and_cut_to_its_shared_vocabulary(spec: PairSpec) -> None:
    pair = load_pair(spec, Loading("cpu", "float32"))
    assert pair.name == "target+draft"
    assert pair.target.vocabulary == pair.draft.vocabulary == VOCABULARY
    assert pair.draft.output.weight.shape[0] == 72
    assert pair.eos_ids == {5, 7}
    assert pair.tokenizer.decode([0, 1, 62, 2]) == "ab c"
    assert not pair.target.model.training
    assert len(run(pair, random_prompt(5), sd, max_new_tokens=4).rounds) > 0


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("auto", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)],
)
def test_number_formats(spec: PairSpec, name: str, dtype: torch.dtype) -> None:
    pair = load_pair(spec, Loading("cpu", name))
    assert {pair.target.model.dtype, pair.draft.model.dtype} == {dtype}


@pytest.mark.parametrize("device", ["gpu", "cuda:99", ""])
def test_an_unknown_device_is_refused(spec: PairSpec, device: str) -> None:
    with pytest.raises(UsageError, match=f"no device {device} here: use"):
        load_pair(spec, Loading(device, "float32"))


@pytest.mark.parametrize("dtype", ["float31", "int64", "Tensor", ""])
def test_an_unknown_dtype_is_refused(spec: PairSpec, dtype: str) -> None:
    with pytest.raises(UsageError, match=f"unknown dtype {dtype}: use"):
        load_pair(spec, Loading("cpu", dtype))


@pytest.mark.parametrize(
    "name", ["nothing", "./nothing", "/no/thing", "no/such/thing", "~/nothing"]
)
def test_a_missing_folder_is_refused(spec: PairSpec, name: str) -> None:
    for wrong in (replace(spec, target=name), replace(spec, draft=name)):
        with pytest.raises(UsageError, match=f"no model folder {name}: give a folder"):
            load_pair(wrong, Loading("cpu", "float32"))


def test_a_folder_without_a_model_is_refused(spec: PairSpec, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"cannot load .*empty .*: give a folder with a model"):
        load_pair(replace(spec, draft=str(tmp_path / "empty")), Loading("cpu", "float32"))


def test_a_truncated_model_is_refused(spec: PairSpec) -> None:
    weights = Path(spec.draft) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UsageError, match=r"cannot load .*draft") as caught:
        load_pair(spec, Loading("cpu", "float32"))
    assert "\n" not in str(caught.value)


def test_the_pairs_number_format_holds_where_none_is_asked_for(spec: PairSpec) -> None:
    own = replace(spec, dtype="float64")
    assert load_pair(own, Loading("cpu")).target.dtype == torch.float64
    assert load_pair(own, Loading("cpu", "bfloat16")).draft.dtype == torch.bfloat16


def test_missing_weights_are_refused_though_transformers_would_make_some_up(spec: PairSpec) -> None:
    file = Path(spec.target) / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"1 of its weights are missing, model\.layers\.1\.mlp"):
        load_pair(spec, Loading("cpu"))


def test_a_token_of_the_prompt_that_a_model_lacks_is_refused(spec: PairSpec) -> None:
    pair = load_pair(spec, Loading("cpu"))
    with pytest.raises(RunError, match=f"token {VOCABULARY}, which a model of {VOCABULARY} tokens"):
        run(pair, [1, VOCABULARY, 2], sd)


def test_facts_say_how_a_pair_was_loaded(spec: PairSpec) -> None:
    facts = load_pair(replace(spec, thinking=True), Loading("cpu")).facts
    assert (facts["load_format"], facts["thinking"]) == ("auto", True)
    assert facts["shared_vocabulary"] == VOCABULARY
    assert facts["target_commit"] is None  # a folder has none
    json.dumps(facts)


# Packages that only some ways of loading need.


@pytest.mark.parametrize(
    ("loading", "package"),
    [
        (Loading("cpu", quantization="8bit"), "--quantization 8bit needs the package bitsandbytes"),
        (Loading("cpu", quantization="4bit"), "--quantization 4bit needs the package bitsandbytes"),
        (Loading("cpu", device_map="auto"), "--device-map needs the package accelerate"),
    ],
)
def test_a_package_that_is_not_there_is_named(
    spec: PairSpec, loading: Loading, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=f"{package}, which is not here: install it"):
        load_pair(spec, loading)


@pytest.mark.parametrize(
    ("choices", "told"),
    [
        ({"load_format": "random"}, "--load-format cannot be 'random': choose auto or dummy"),
        ({"quantization": "2bit"}, "--quantization cannot be '2bit': choose 8bit or 4bit"),
        ({"load_format": "dummy", "device_map": "auto"}, "leave out --device-map"),
    ],
)
def test_choices_that_are_none_are_refused(choices: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Loading(**choices)  # type: ignore[arg-type]

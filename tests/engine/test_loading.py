"""Loading a pair from disk, and one sentence for each way in which that can fail."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specbench.engine.loading import load_pair
from specbench.errors import UsageError
from specbench.methods.rules import sd
from specbench.pairs.registry import PairSpec

from ..decoding.helpers import run
from .tiny import VOCABULARY, random_prompt


def test_a_pair_is_loaded_and_cut_to_its_shared_vocabulary(spec: PairSpec) -> None:
    pair = load_pair(spec, "cpu", "float32")
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
    pair = load_pair(spec, "cpu", name)
    assert {pair.target.model.dtype, pair.draft.model.dtype} == {dtype}


def test_other_tokens_are_refused_though_there_are_as_many(spec: PairSpec) -> None:
    file = Path(spec.draft) / "tokenizer.json"
    document = json.loads(file.read_text())
    vocabulary = document["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"do not share a vocabulary \(4 tokens differ\)"):
        load_pair(spec, "cpu", "float32")


@pytest.mark.parametrize("device", ["gpu", "cuda:99", ""])
def test_an_unknown_device_is_refused(spec: PairSpec, device: str) -> None:
    with pytest.raises(UsageError, match=f"no device {device} here: use"):
        load_pair(spec, device, "float32")


@pytest.mark.parametrize("dtype", ["float31", "int64", "Tensor", ""])
def test_an_unknown_dtype_is_refused(spec: PairSpec, dtype: str) -> None:
    with pytest.raises(UsageError, match=f"unknown dtype {dtype}: use"):
        load_pair(spec, "cpu", dtype)


@pytest.mark.parametrize(
    "name", ["nothing", "./nothing", "/no/thing", "no/such/thing", "~/nothing"]
)
def test_a_missing_folder_is_refused(spec: PairSpec, name: str) -> None:
    for wrong in (replace(spec, target=name), replace(spec, draft=name)):
        with pytest.raises(UsageError, match=f"no model folder {name}: give a folder"):
            load_pair(wrong, "cpu", "float32")


def test_a_folder_without_a_model_is_refused(spec: PairSpec, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"cannot load .*empty .*: give a folder with a model"):
        load_pair(replace(spec, draft=str(tmp_path / "empty")), "cpu", "float32")


def test_a_truncated_model_is_refused(spec: PairSpec) -> None:
    weights = Path(spec.draft) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UsageError, match=r"cannot load .*draft") as caught:
        load_pair(spec, "cpu", "float32")
    assert "\n" not in str(caught.value)

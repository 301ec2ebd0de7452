"""Heads: the layer, its files, and the pair they belong to."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specbench.engine.loading import LoadedPair
from specbench.errors import UsageError
from specbench.heads.files import fingerprints, load_head, save_head
from specbench.heads.head import Head
from specbench.heads.registry import DESCRIPTION, KINDS, WEIGHTS

from ..engine.tiny import build, config, pair_of


@cache
def pair() -> LoadedPair:
    """A target of width 32 and a draft of width 16."""
    return pair_of(build(config("llama")), build(config("llama", hidden_size=16), seed=1))


def description(pair: LoadedPair) -> dict[str, Any]:
    return {"pair": "tiny", "kind": "linear", "models": fingerprints(pair)}


def random_head(kind: str = "linear") -> Head:
    head = Head(kind, (32, 16))
    generator = torch.Generator().manual_seed(0)
    for weights in head.parameters():
        weights.data = torch.randn(weights.shape, generator=generator)
    return head


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_comes_back_from_disk(tmp_path: Path, kind: str) -> None:
    head, folder = random_head(kind), tmp_path / "heads" / "task"
    save_head(head, folder, description(pair()) | {"kind": kind})
    assert sorted(file.name for file in folder.iterdir()) == [DESCRIPTION, WEIGHTS]
    loaded = load_head(folder, pair())
    inputs = torch.randn(7, 10 if kind == "features" else 48)
    assert torch.equal(loaded(inputs), head(inputs))
    assert not any(weights.requires_grad for weights in loaded.parameters())


def test_the_file_has_the_layout_of_the_release(tmp_path: Path) -> None:
    save_head(random_head(), tmp_path, description(pair()))
    shapes = {name: tuple(t.shape) for name, t in load_file(tmp_path / WEIGHTS).items()}
    assert shapes == {"summary.weight": (2, 48), "summary.bias": (2,)}


def test_a_head_fits_its_pair_in_every_number_format(tmp_path: Path) -> None:
    save_head(random_head(), tmp_path, description(pair()))
    halves = pair_of(
        build(config("llama"), dtype=torch.float16),
        build(config("llama", hidden_size=16), seed=1, dtype=torch.float16),
    )
    assert load_head(tmp_path, halves).summary.weight.dtype == torch.float32


@pytest.mark.parametrize("seeds", [(0, 2), (2, 1)], ids=["other draft", "other target"])
def test_a_head_of_another_pair_is_refused(tmp_path: Path, seeds: tuple[int, int]) -> None:
    target, draft = seeds
    other = pair_of(
        build(config("llama"), seed=target), build(config("llama", hidden_size=16), seed=draft)
    )
    save_head(random_head(), tmp_path, description(pair()) | {"pair": "neighbour"})
    with pytest.raises(UsageError, match=r"other weights than .* names neighbour"):
        load_head(tmp_path, other)


@pytest.mark.parametrize("content", ["{}", "[]", "null", '{"models": 3}'])
def test_a_description_without_models_is_refused(tmp_path: Path, content: str) -> None:
    save_head(random_head(), tmp_path, description(pair()))
    (tmp_path / DESCRIPTION).write_text(content)
    with pytest.raises(UsageError, match="train one"):
        load_head(tmp_path, pair())


@pytest.mark.parametrize("name", [DESCRIPTION, WEIGHTS])
@pytest.mark.parametrize("fault", ["missing", "garbage", "truncated"])
def test_unreadable_files_are_refused(tmp_path: Path, name: str, fault: str) -> None:
    save_head(random_head(), tmp_path, description(pair()))
    file = tmp_path / name
    if fault == "missing":
        file.unlink()
    elif fault == "garbage":
        file.write_bytes(b"\xff\xfe garbage")
    else:
        file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(UsageError, match=r"cannot read the head in .*: train it again"):
        load_head(tmp_path, pair())


@pytest.mark.parametrize(
    "weights",
    [
        {"summary.weight": torch.zeros(2, 47), "summary.bias": torch.zeros(2)},
        {"summary.weight": torch.zeros(2, 48)},
        {"other": torch.zeros(1)},
    ],
    ids=["narrow", "no bias", "other names"],
)
def test_wrong_weights_are_refused(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    (tmp_path / DESCRIPTION).write_text(json.dumps(description(pair())))
    save_file(weights, tmp_path / WEIGHTS)
    with pytest.raises(UsageError, match=r"wrong shape for tiny .*: train one for this pair"):
        load_head(tmp_path, pair())


def test_what_reads_no_hidden_states_serves_any_pair(tmp_path: Path) -> None:
    other = pair_of(build(config("llama", hidden_size=48)), build(config("llama"), seed=1))
    head = random_head("features")
    save_head(head, tmp_path, description(pair()) | {"kind": "features"})
    inputs = torch.randn(5, 10)
    assert torch.equal(load_head(tmp_path, other)(inputs), head(inputs))


def released(path: Path, width: int = 48) -> dict[str, torch.Tensor]:
    """A file in the format of the authors' release."""
    generator = torch.Generator().manual_seed(0)
    weights = {
        "summary.weight": torch.randn(2, width, generator=generator).bfloat16(),
        "summary.bias": torch.zeros(2).bfloat16(),
    }
    torch.save(weights, path)
    return weights


def test_the_authors_file_loads(tmp_path: Path) -> None:
    path = tmp_path / "ensemble_head.bin"
    weights = released(path)
    head, inputs = load_head(path, pair()), torch.randn(5, 48)
    scores = inputs @ weights["summary.weight"].float().T
    torch.testing.assert_close(head(inputs), scores.softmax(-1)[:, 1])


def test_the_authors_file_for_other_sizes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ensemble_head.bin"
    released(path, width=6144)
    with pytest.raises(UsageError, match=r"summary.weight \[2, 6144\].* instead of .*\[2, 48\]"):
        load_head(path, pair())


class Bomb:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch exploded",)


def test_a_file_with_code_in_it_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"summary.weight": Bomb()}, tmp_path / "head.bin")
    with pytest.raises(UsageError, match="cannot read the head in"):
        load_head(tmp_path / "head.bin", pair())
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("content", [[1, 2], {"summary.weight": "text"}])
def test_a_file_without_weights_is_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "head.bin")
    with pytest.raises(UsageError, match="holds no weights by name"):
        load_head(tmp_path / "head.bin", pair())

"""Heads: the layer, its files, and the pair they belong to."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specbench.engine.heads import LinearHead, fingerprints, load_head, save_head
from specbench.engine.loading import LoadedPair
from specbench.errors import UsageError
from specbench.pairs.registry import HEAD_DESCRIPTION, HEAD_WEIGHTS

from .tiny import build, config, pair_of


@cache
def pair() -> LoadedPair:
    """A target of width 32 and a draft of width 16."""
    return pair_of(build(config("llama")), build(config("llama", hidden_size=16), seed=1))


def description(pair: LoadedPair) -> dict[str, Any]:
    return {"pair": "tiny", "models": fingerprints(pair)}


def random_head() -> LinearHead:
    head = LinearHead(32, 16)
    generator = torch.Generator().manual_seed(0)
    for weights in head.parameters():
        weights.data = torch.randn(weights.shape, generator=generator)
    return head


def test_an_untrained_head_weighs_both_models_alike() -> None:
    weights = LinearHead(32, 16)(torch.randn(5, 32), torch.randn(5, 16))
    assert weights.tolist() == [0.5] * 5


def test_the_weight_is_the_second_share_of_a_softmax_over_draft_and_target() -> None:
    head, h_p, h_q = random_head(), torch.randn(7, 32), torch.randn(7, 16)
    scores = torch.cat([h_q, h_p], -1) @ head.summary.weight.T + head.summary.bias
    torch.testing.assert_close(head(h_p, h_q), scores.softmax(-1)[:, 1])


def test_hidden_states_may_be_in_another_number_format() -> None:
    head, h_p, h_q = random_head(), torch.randn(7, 32), torch.randn(7, 16)
    weights = head(h_p.bfloat16(), h_q.bfloat16())
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights, head(h_p, h_q), atol=0.05, rtol=0)


def test_a_head_comes_back_from_disk(tmp_path: Path) -> None:
    head, h_p, h_q = random_head(), torch.randn(7, 32), torch.randn(7, 16)
    folder = tmp_path / "heads" / "task"
    save_head(head, folder, description(pair()))
    assert sorted(file.name for file in folder.iterdir()) == [HEAD_DESCRIPTION, HEAD_WEIGHTS]
    loaded = load_head(folder, pair())
    assert torch.equal(loaded(h_p, h_q), head(h_p, h_q))
    assert not any(weights.requires_grad for weights in loaded.parameters())


def test_the_file_has_the_layout_of_the_release(tmp_path: Path) -> None:
    save_head(random_head(), tmp_path, description(pair()))
    shapes = {name: tuple(t.shape) for name, t in load_file(tmp_path / HEAD_WEIGHTS).items()}
    assert shapes == {"summary.weight": (2, 48), "summary.bias": (2,)}


def test_a_head_fits_its_pair_in_every_number_format(tmp_path: Path) -> None:
    save_head(random_head(), tmp_path, description(pair()))
    halves = pair_of(
        build(config("llama"), dtype=torch.float16),
        build(config("llama", hidden_size=16), seed=1, dtype=torch.float16),
    )
    assert load_head(tmp_path, halves).sizes == (halves.target.hidden_size, 16)


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
    (tmp_path / HEAD_DESCRIPTION).write_text(content)
    with pytest.raises(UsageError, match="train one for this pair"):
        load_head(tmp_path, pair())


@pytest.mark.parametrize("name", [HEAD_DESCRIPTION, HEAD_WEIGHTS])
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
    (tmp_path / HEAD_DESCRIPTION).write_text(json.dumps(description(pair())))
    save_file(weights, tmp_path / HEAD_WEIGHTS)
    with pytest.raises(UsageError, match="wrong shape: train it again"):
        load_head(tmp_path, pair())

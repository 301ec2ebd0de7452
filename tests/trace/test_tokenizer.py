"""The tokenizer of a run, found without loading its models."""

import json
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import UsageError
from specbench.pairs.registry import get_pair
from specbench.trace.tokenizer import run_decoder

MINI = get_pair("mini").target


def folder(path: Path, config: Any) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    "config",
    [
        {"pair": {"name": "mini", "target": "/another/place/specbench/pairs/mini/target"}},
        {"pair": {"name": "mini+other", "target": "specbench/pairs/mini/target", "draft": "o"}},
        {"pair": {"name": "mine", "target": MINI, "draft": "o", "target_revision": None}},
        {"pair": {"name": "llama", "target": "a/b", "draft": "c/d"}, "loading": {}},
    ],
)
def test_where_a_pair_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    monkeypatch.chdir(tmp_path)
    if "loading" in config:
        config["loading"] = {"load_format": "dummy", "device": "cpu"}
    assert run_decoder(folder(tmp_path, config))([900, 897]) == " Step one"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "names no pair"),
        ([], "no configuration of a run"),
        ({"pair": {"target": "./nowhere", "draft": "d"}}, "no model folder ./nowhere"),
    ],
)
def test_a_run_without_a_pair(tmp_path: Path, config: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run_decoder(folder(tmp_path, config))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="not valid JSON"):
        run_decoder(tmp_path)
    with pytest.raises(UsageError, match="is no run"):
        run_decoder(tmp_path / "nowhere")

"""The paper's pairs from the command line, with architectures reduced to a few small layers."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from specbench.engine.pairs import PAIRS_FILE

from ..synthetic import rows
from .conftest import Cli

DATA = Path(__file__).parents[1] / "data"
SMALL = {
    **{"vocab_size": 2000, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 32, "query_pre_attn_scalar": 16},
    "num_hidden_layers": 6,  # a period of Gemma's sliding layers
}


def inline(value: Any) -> str:
    """Return a value in TOML; lists, strings, numbers and true are the same in JSON."""
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{" + ", ".join(f"{key} = {inline(each)}" for key, each in value.items()) + "}"


def shrunk(name: str, folder: Path) -> Path:
    pair = tomllib.loads(PAIRS_FILE.read_text())[name]
    for values in pair["architecture"].values():
        values.update({key: size for key, size in SMALL.items() if key in values})
    keys = ("target", "draft", "architecture")
    lines = [f"[{name}]", *(f"{key} = {inline(pair[key])}" for key in keys)]
    path = folder / "pairs.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def measure(cli: Cli, folder: Path, pair: str, *options: str, methods: str = "all"):
    cli(
        *("run", "--pair", pair, "--load-format", "dummy", "--task", "gsm8k", "--data", str(DATA)),
        *("--method", methods, "--head", "untrained", "--shots", "1", "-n", "1"),
        *("-o", "r", *options),
        code=0,
    )
    return rows(folder / "r")


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_all_methods_run_on_the_architecture_without_weights_or_hub(cli, tmp_path, name):
    pair = str(shrunk(name, tmp_path))
    methods = "autoregressive,sd,diversed"  # rules see no models
    small = ("--max-new-tokens", "4", "--device", "cpu")
    samples = measure(cli, tmp_path, pair, *small, methods=methods)
    assert [row["method"] for row in samples] == methods.split(",")
    assert {row["output_tokens"] for row in samples} == {"4"}
    assert {row["accuracy"] for row in samples} <= {"0.0", "1.0"}
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert config["loading"]["load_format"] == "dummy"
    data = config["tasks"][0]["data"]
    assert (data["dataset"], data["shots"]) == ("openai/gsm8k", 1)
    assert data["splits"]["test"]["sha256"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_all_methods_run_on_the_architecture_in_full_size(cli, tmp_path, name):
    samples = measure(cli, tmp_path, name, "--preset", "paper", "--device", "cuda")
    assert {row["output_tokens"] for row in samples} == {"128"}

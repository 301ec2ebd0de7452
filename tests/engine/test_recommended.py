"""The sampling that a model's authors recommend: read, told, taken and refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from specbench.cli.measurement import Measurement
from specbench.config import SamplingOptions
from specbench.engine.pairs import Loading, custom_pair
from specbench.engine.recommended import sampling_of, unlike_recommended
from specbench.engine.sources import load_recommended
from specbench.errors import UsageError

QWEN = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1}
NO_PENALTY = {n: v for n, v in QWEN.items() if n != "repetition_penalty"}


def folder(path: Path, **settings: Any) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (path / "generation_config.json").write_text(json.dumps(settings))
    return str(path)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (QWEN, {n: v for n, v in QWEN.items() if n != "do_sample"}),
        ({**QWEN, "do_sample": False}, {}),
        ({"temperature": 0.6, "eos_token_id": 3}, {}),
        ({"do_sample": True, "temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0}, {}),
        ({"do_sample": True, "min_p": 0.1, "min_length": 4}, {"min_p": 0.1, "min_length": 4}),
        ({"do_sample": True, "sequence_bias": [[[3], 2.0]]}, {"sequence_bias": [[[3], 2.0]]}),
    ],
)
def test_a_folder_recommends_what_changes_a_distribution(tmp_path, settings, expected):
    spec = custom_pair(folder(tmp_path, **settings), None)
    assert load_recommended(spec, Loading()) == expected
    assert load_recommended(spec, Loading(load_format="dummy")) == {}


def test_a_gguf_file_recommends_by_its_own_names(tmp_path):
    from export_pair import finish
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    values = {"temp": 0.7, "top_p": 0.8, "penalty_repeat": 1.1, "min_p": 0.0}
    for name, value in values.items():
        writer.add_float32(f"general.sampling.{name}", value)
    writer.add_int32("general.sampling.top_k", 20)
    finish(writer)
    recommended = load_recommended(custom_pair(str(tmp_path / "m.gguf"), None), Loading())
    assert recommended == {n: v for n, v in QWEN.items() if n != "do_sample"}


def test_a_run_that_decodes_otherwise_says_so(stored):
    qwen: dict[str, Any] = {"temperature": 0.7, "top_p": 0.8, "top_k": 20}
    runs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        *((QWEN, run) for run in ({}, qwen)),
        *((NO_PENALTY, run) for run in (qwen, {"temperature": 0.0})),
        *(({}, {"temperature": 0.3}), ({"min_length": 9}, {})),
    ]
    sentences = []
    for settings, run in runs:
        recommended = {name: value for name, value in settings.items() if name != "do_sample"}
        sentence = unlike_recommended(recommended, SamplingOptions(**run))
        sentences.append(f"{recommended} {run}: {sentence}")
    stored(*sentences)


@pytest.mark.parametrize("wrong", [{"top_p": 7.0}, {"temperature": "hot"}, {"top_k": 0.5}])
def test_values_of_a_folder_are_checked(wrong):
    with pytest.raises(UsageError, match="--" + next(iter(wrong)).replace("_", "-")):
        sampling_of(wrong, "m")
    with pytest.raises(UsageError, match="m recommends no temperature"):
        sampling_of({"repetition_penalty": 1.1}, "m")


def test_options_override_what_the_model_recommends(tmp_path):
    model = folder(tmp_path / "m", **QWEN)
    for more, top_k in (({}, 20), ({"top_k": 5}, 5)):
        measurement = Measurement(target=model, draft=model, sampling="model", **more)
        settings = measurement.plan([("autoregressive", {})]).settings
        assert (settings.temperature, settings.top_p, settings.top_k) == (0.7, 0.8, top_k)

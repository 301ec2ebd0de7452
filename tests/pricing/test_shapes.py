"""Shapes by name, configuration and GGUF header, and what passes read of them."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from specbench.engine.pairs import PAIRS_FILE, PairSpec, get_pair
from specbench.errors import UsageError
from specbench.pricing import shapes
from specbench.pricing.heads import drafting_of, kind_called, require_fits
from specbench.pricing.machines import (
    devices_in,
    engines,
    find_engine,
    find_machine,
    known_machine,
    machines,
)
from specbench.pricing.source import Place

from ..told import DATA

# The names of each known model or machine, of which the last key has none.
MODELS = (DATA / "pricing/models.txt").read_text(encoding="utf-8")
MACHINES = (DATA / "pricing/machines.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("lines", "look_up", "table"),
    [(MODELS, shapes.known_shape, shapes.known_shapes), (MACHINES, known_machine, machines)],
)
def test_models_and_machines_are_known_by_any_name(lines, look_up, table):
    for line in lines.strip().splitlines():
        key, names = line.split(": ", 1)
        for name in names.split(", "):
            assert look_up(name) == (table()[key] if key else None), name


def test_known_shapes_have_as_many_weights_as_their_names_say():
    for name, shape in shapes.known_shapes().items():
        sizes = re.findall(r"(?<![\dx])(\d+(?:\.\d+)?)b", name)
        if sizes and not name.startswith("mixtral"):
            rel = 0.35 if float(sizes[0]) < 5 else 0.16
            assert shape.stored == pytest.approx(1e9 * float(sizes[0]), rel=rel), name
        if len(sizes) == 2:  # of which a token uses some
            assert shape.multiplied == pytest.approx(1e9 * float(sizes[1]), rel=0.25), name


@pytest.mark.parametrize(
    ("name", "total", "active"),  # as published, in billions
    [
        ("gemma-4-12b", 11.9, 11.9),
        ("glm-5.3", 744, 40),
        ("laguna-s-2.1", 117.6, 8),
        ("qwen3.8-flash-next", 125, 6),
        ("step-3.7-flash", 196.8, 11),
    ],
)
def test_known_shapes_have_as_many_weights_as_published(name, total, active):
    shape = shapes.known_shapes()[name]
    assert shape.stored == pytest.approx(1e9 * total, rel=0.01)
    assert shape.multiplied == pytest.approx(1e9 * active, rel=0.12)


def test_layers_without_a_window_keep_fewer_numbers_in_gemma_4():
    shape = shapes.known_shapes()["gemma-4-12b"]
    near, far = 40 * 2 * 8 * 256, 8 * 2 * 1 * 512
    assert shape.values_cached(1000) == 1000 * (near + far)
    assert shape.values_cached(10_000) == 1024 * near + 10_000 * far


@pytest.mark.parametrize(
    "name",
    ["Arc Pro B580", "RTX 4070 Super", "RTX 5090 D", "Radeon RX 7900 XTX Turbo", "RTX 4060 Ti 8GB"],
)
def test_a_near_name_is_asked_back(name):
    with pytest.raises(UsageError, match=r"did you mean `[\w-]+` \("):
        find_machine(name)
    assert find_machine("Arc Pro B60").memory > find_machine("Arc B580").memory
    assert find_machine("NVIDIA H100 80GB HBM3") == machines()["h100"]
    assert find_machine("Apple M4 Max 48GB") == machines()["m4-max"]  # sold with other sizes


def test_names_may_count_devices_and_begin_with_an_engine():
    counts = {"2x RTX 3090": 2, "8xH100": 8, "RTX 3090 x2": 2, "RTX 3090": 1, "RX 7900 XTX": 1}
    assert {name: devices_in(name) for name in counts} == counts
    engine_in = partial(shapes.nearest, table=engines())
    new, old, other = map(engine_in, ("vLLM 0.24.0", "vLLM (Jul 2025)", "SGLang (Aug 2026)"))
    assert new and old and other
    assert new.round == other.round and new.description != other.description
    assert old.eagle3 > new.eagle3 == 0 and old.share == new.share
    assert engine_in("vllm-0.9.1") == old
    assert (mlx := engine_in("Rapid-MLX")) and not mlx.few_rows
    assert find_engine("vllm 0.24") == new
    for name in ("vllm-fork", "llama.cop"):
        with pytest.raises(UsageError, match="unknown engine"):
            find_engine(name)
    assert engine_in("Ollama") == engine_in("llama.cpp b1") != engine_in("vLLM")
    assert engine_in("my own loop") is None


def test_formats_have_bits():
    bits = {
        **{"bf16": (16, 16), "fp8": (8, 16), "AWQ-INT4": (4.25, 16), "w4a16": (4.25, 16)},
        **{"UD-Q4_K_XL": (4.9, 4.9), "q8_0": (8.5, 8.5), "IQ3_XS": (3.5, 3.5)},
        **{"NVFP4": (4.5, 16), "model-q6_k.gguf": (6.6, 6.6)},
        **{"7B-GPTQ-Int8": (8, 16), "7B-GPTQ-Int4": (4.25, 16), "7B-Int8-GPTQ": (8, 16)},
        **{"gptq-8bit-128g": (8, 16), "w4a16-gptq": (4.25, 16), "8B-6bit": (6, 16)},
        **{"exl2-4.65bpw": (4.65, 16), "32bit float32": (32, 32)},
    }
    assert {text: shapes.precision_of(text) for text in bits} == {
        text: (*layers_and_head, 16) for text, layers_and_head in bits.items()
    }
    assert shapes.precision_of("seven") is None and shapes.precision_of("12bit") is None
    for name, dtype, layers in (("14B-AWQ", "float16", 4.25), ("14B", "float32", 32)):
        pair = PairSpec("p", f"Qwen/Qwen3-{name}", None, dtype=dtype)
        for forms in ((), (None, dtype)):  # in which quantised weights are computed
            assert Place("h100", forms=forms).model("target", pair).precision.layers == layers
        assert Place("h100", forms=("8bit",)).model("target", pair).precision.layers == 8
        automatic = Place("h100", weights=("auto",)).model("target", pair)
        assert automatic.precision.layers == layers


def test_a_configuration_a_folder_and_a_description_give_the_same_shape(tmp_path):
    pair = get_pair("llama")
    described = shapes.find_model("x", pair.architecture["target"])
    assert described.shape.stored == shapes.known_shapes()["llama-3.1-8b"].stored
    config = {**pair.architecture["target"], "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert shapes.find_model(str(tmp_path)).shape == described.shape
    nested = {"model_type": "gemma3", "text_config": get_pair("gemma3").architecture["target"]}
    gemma, known = shapes.shape_of_config(nested, "g"), shapes.known_shapes()["gemma-3-12b"]
    assert gemma.tied and (gemma.windowed_layers, gemma.window) == (40, 1024)
    assert gemma.values_cached(10_000) == known.values_cached(10_000)
    for further, windowed in (
        *(({}, 32), ({"model_type": "gemma2"}, 16)),
        *(({"layer_types": ["x"]}, 0), ({"use_sliding_window": False}, 0)),
    ):
        cut = shapes.shape_of_config(config | {"sliding_window": 512} | further, "w")
        assert (cut.window, cut.windowed_layers) == (512, windowed)
    mixed = {"layer_types": ["mamba"] * 20 + ["conv"] * 4 + ["full_attention"] * 8}
    few_cached = shapes.shape_of_config(config | mixed, "m")
    assert few_cached.values_cached(9) == described.shape.values_cached(9) / 4
    hybrid = shapes.shape_of_config(config | {"full_attention_interval": 4}, "q")
    assert hybrid.values_cached(9) == described.shape.values_cached(9) / 4
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "awq", "bits": 4}})
    )
    assert shapes.find_model(str(tmp_path)).precision == (4, 16, 16)
    assert shapes.find_model(str(PAIRS_FILE.parent / "mini" / "target")).shape.layers == 8


IN_GROUPS = {"group_0": {"input_activations": {"num_bits": 8}, "weights": {"num_bits": 4}}}


@pytest.mark.parametrize(
    ("quantised", "bits"),
    [
        ({"quant_method": "compressed-tensors", "config_groups": IN_GROUPS}, 4),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}, 4.25),
        ({"quant_method": "other"}, 0),
    ],
)
def test_a_configuration_tells_the_bits_of_its_weights(quantised, bits, tmp_path):
    config = {**get_pair("llama").architecture["target"], "quantization_config": quantised}
    assert shapes.shape_of_config(config, "x").bits == bits
    (tmp_path / "config.json").write_text(json.dumps(config))
    pair = PairSpec("p", str(tmp_path), None)
    assert Place("h100", weights=("awq",)).model("target", pair).precision.layers == 4.25
    with nullcontext() if bits else pytest.raises(UsageError, match="does not tell the bits"):
        assert Place("h100").model("target", pair).precision.layers == bits


def test_llama_4_has_experts_in_every_second_layer_and_one_for_all_tokens():
    config = {
        **{"num_hidden_layers": 48, "hidden_size": 5120, "num_attention_heads": 40},
        **{"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 202048},
        **{"num_local_experts": 128, "num_experts_per_tok": 1, "intermediate_size": 8192},
        **{"intermediate_size_mlp": 16384, "interleave_moe_layer_step": 2},
    }
    shape = shapes.shape_of_config({"text_config": config}, "Llama-4-Maverick-17B-128E")
    assert shape.stored == pytest.approx(401e9, rel=0.01)
    assert shape.multiplied == pytest.approx(16.1e9, rel=0.01)  # 17 billion with the embedding


def test_a_deepseek_configuration_compresses_keys():
    config = {
        **{"num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18432},
        **{"num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280},
        **{"n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8},
        **{"moe_intermediate_size": 2048, "first_k_dense_replace": 3, "kv_lora_rank": 512},
        **{"q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
        **{"v_head_dim": 128, "head_dim": 128},
    }
    shape, known = shapes.shape_of_config(config, "d"), shapes.known_shapes()["deepseek-v3"]
    assert shape.stored == pytest.approx(known.stored, rel=1e-3)
    assert shape.values_cached(1) == known.values_cached(1) == 61 * 576


def test_a_gguf_file_has_the_bits_of_its_size(tmp_path):
    gguf = pytest.importorskip("gguf")
    import numpy as np
    from export_pair import finish

    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(16)
    writer.add_token_list([f"t{n}" for n in range(100)])
    shape = shapes.known_shapes()["llama-3-8b"].model_copy(
        update={
            **{"layers": 2, "width": 64, "feed_forward": 128, "heads": 4, "kv_heads": 2},
            **{"head_size": 16, "vocabulary": 100, "tied": True},
        }
    )
    writer.add_tensor("all", np.zeros(int(shape.stored), dtype=np.float16))
    finish(writer)
    model = shapes.find_model(str(tmp_path / "m.gguf"))
    assert (model.shape.layers, model.shape.heads, model.shape.tied) == (2, 4, True)
    assert 16 <= model.precision.layers <= 17  # and the header


def test_a_model_without_a_shape_is_refused_in_one_sentence(tmp_path):
    for content, told in (("{}", "no 'num_hid"), ("{", "cannot read"), ('{"hidden":1}', "no '")):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(UsageError, match=told):
            shapes.find_model(str(tmp_path))
    for name in ("nobody", "llama-9-9b", "no such model"):
        with pytest.raises(UsageError, match=f"no shape of `{name}`: name a folder"):
            shapes.find_model(name)


def test_a_model_of_the_hub_is_described_by_its_configuration(tmp_path, monkeypatch):
    config = get_pair("qwen3").architecture["target"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda _, name: str(tmp_path / name))
    model = shapes.find_model("someone/unheard-of-FP8")
    assert model.shape.width == 4096 and model.precision == (8, 16, 16)

    def absent(*_):
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", absent)
    with pytest.raises(UsageError, match="no shape of `someone/unheard-of`"):
        shapes.find_model("someone/unheard-of")


def test_a_batch_reads_the_experts_of_its_tokens_and_attention_stays_in_16_bits():
    shape = shapes.known_shapes()["qwen3-30b-a3b"]
    one, all_experts = shape.weights(8), shape.weights(128)
    assert shape.weights_read(1) == pytest.approx(one)
    assert one < shape.weights_read(8) < 0.5 * all_experts
    assert shape.weights_read(1000) == pytest.approx(all_experts)
    dense = shapes.known_shapes()["qwen3-32b"]
    assert dense.weights_read(1) == dense.weights_read(64)
    shape = shapes.known_shapes()["gpt-oss-120b"]
    served = shapes.ServedModel("m", shape, shapes.Precision(4.25))
    in_file = shapes.ServedModel("m", shape, shapes.Precision(4.25, 4.25))
    weights = shape.layers * shape.of_attention
    plain = (shape.weights_read(1) * 4.25 + shape.of_head * 16) / 8
    assert served.bytes_read(1) == pytest.approx(plain + weights * 11.75 / 8)
    assert served.bytes_stored == pytest.approx(65.3e9, rel=0.02)  # the published files
    assert in_file.bytes_stored == pytest.approx(shape.stored * 4.25 / 8)


def model(name: str, **change: Any) -> shapes.ServedModel:
    return shapes.ServedModel(name, shapes.known_shapes()[name].model_copy(update=change))


def test_heads_have_the_sizes_of_published_ones():
    target = model("llama-3.1-8b")
    eagle3 = drafting_of("eagle3", target)
    assert eagle3.model is not None and eagle3.once == 3 * 4096**2
    # yuhuili/EAGLE3-LLaMA3.1-Instruct-8B: 425 M weights, the embedding apart.
    ours = eagle3.model.shape.multiplied + eagle3.once
    assert ours == pytest.approx(425e6, rel=0.01)
    for kind, layers in (("eagle", 1), ("mtp", 1), ("block", 5)):
        drafting = drafting_of(kind, target)
        assert drafting.model is not None and drafting.model.shape.layers == layers
        assert drafting.model.shape.vocabulary == target.shape.vocabulary
        assert drafting.in_blocks == (kind == "block")
    assert drafting_of("mtp", model("deepseek-v3")).model.shape.experts == 256  # type: ignore[union-attr]
    fp8 = shapes.ServedModel("m", shapes.known_shapes()["deepseek-v3"], shapes.Precision(8))
    bits = {kind: drafting_of(kind, fp8).model.precision.layers for kind in ("mtp", "eagle3")}  # type: ignore[union-attr]
    assert bits == {"mtp": 8, "eagle3": 16}
    names = {"EAGLE-3": "eagle3", "nextn": "mtp", "DFlash": "block", "ngram": "copies", "x": ""}
    assert {name: kind_called(name) for name in names} == names


def test_a_head_or_a_draft_of_another_model_is_refused():
    target = model("qwen3-32b")
    require_fits(target, "RedHatAI/Qwen3-32B-speculator.eagle3")
    require_fits(target, "someone/a-head")
    for other in ("yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", "AngelSlim/Qwen3-8B_eagle3"):
        with pytest.raises(UsageError, match="is a head of another model"):
            require_fits(target, other)
    with pytest.raises(
        UsageError, match=r"mini/eagle3 is a head of another model \(width \d+, not"
    ):
        require_fits(target, str(PAIRS_FILE.parent / "mini" / "eagle3"))
    require_fits(target, "d", model("qwen3-0.6b"))
    with pytest.raises(UsageError, match="name a draft with the target's vocabulary"):
        require_fits(target, "d", model("llama-3.2-1b"))

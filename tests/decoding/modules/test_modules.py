"""Modules that draft from a target's states, their folders, and the bundled ones."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters.files import save_module
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, Qwen3Config

from specbench.decoding.drafters.registry import parse_kind
from specbench.decoding.loop import Request
from specbench.decoding.modules.files import build_module, load_module
from specbench.engine.loading import load_pair
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, get_pair
from specbench.engine.prompts import encode
from specbench.errors import UsageError
from specbench.methods.control import FixedLength
from specbench.methods.strict import sd
from specbench.tasks.task import load_task

from ...engine.tiny import FAMILIES, random_prompt, tiny_pair
from ...told import refusals
from ..helpers import GREEDY, module_drafter, random_module, run, run_all, said

REQUESTS = [Request(random_prompt(n), f"sample {n}") for n in (1, 2, 3, 9, 14)]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_texts_are_the_targets(family):
    pair = tiny_pair(family)
    expected = run_all(pair, None, REQUESTS, sampling=GREEDY)
    reduced = {"draft_vocabulary": 40, "own_output": True, "norm_output": True}
    for shape in ({}, reduced, {"kind": "mtp"}, {"kind": "block"}):
        drafter = module_drafter(pair, **shape)
        for n in (1, 5):
            how: dict[str, Any] = {"drafter": drafter, "draft_length": n, "batch_size": 2}
            generations = run_all(pair, sd, REQUESTS, sampling=GREEDY, **how)
            assert [t.token_ids for t in generations] == [t.token_ids for t in expected]


@pytest.mark.parametrize("kind", ["eagle3", "block"])
@pytest.mark.parametrize("control", [None, FixedLength(2)])
def test_a_text_does_not_depend_on_its_neighbours(control, kind):
    """Nor on the window of states, which has more positions than a short text."""
    pair = tiny_pair("llama")
    how: dict[str, Any] = {"drafter": module_drafter(pair, kind), "control": control}
    alone = [said(run_all(pair, sd, [request], **how)[0]) for request in REQUESTS]
    together = run_all(pair, sd, REQUESTS, batch_size=3, **how)
    assert [said(text) for text in together] == alone
    assert any(r.accepted for text in together for r in text.rounds)


VERIFIER = {"name_or_path": "target", "architectures": ["LlamaForCausalLM"]}


def saved(folder: Path, **shape: Any) -> Path:
    save_module(random_module(tiny_pair("llama"), **shape).bfloat16(), folder, VERIFIER, 3)
    return folder


@pytest.mark.parametrize(
    "shape",
    [{}, {"draft_vocabulary": 40, "own_output": True}, {"kind": "mtp"}, {"kind": "block"}],
)
def test_a_saved_module_drafts_as_before(tmp_path, shape):
    pair = tiny_pair("llama")
    before = module_drafter(pair, **shape)
    for weights in before.module.parameters():
        weights.data = weights.bfloat16().float()
    after = parse_kind(str(saved(tmp_path / "head", **shape))).load(pair)
    assert parse_kind(str(tmp_path / "head")).load(pair) == after
    ours, theirs = (run_all(pair, sd, REQUESTS, drafter=d) for d in (before, after))
    assert [said(text) for text in ours] == [said(text) for text in theirs]


def test_a_fingerprint_depends_on_weights_buffers_and_configuration():
    shape = {"draft_vocabulary": 40, "own_output": True}

    def fingerprint(**changes):
        drafter = module_drafter(tiny_pair("llama"), **shape)
        drafter.module.config = replace(drafter.module.config, **changes)
        return drafter.fingerprint()

    shifted = module_drafter(tiny_pair("llama"), **shape)
    shifted.module.get_buffer("d2t").add_(1)
    layer = module_drafter(tiny_pair("llama")).module.config.layer
    layer.rms_norm_eps = 0.5
    prints = [fingerprint(), fingerprint(layers=(1, 1, 1)), fingerprint(fc_norm=True)]
    prints += [fingerprint(layer=layer), shifted.fingerprint()]
    assert len({*prints}) == len(prints) and prints[0] == fingerprint()


def test_a_folder_that_cannot_draft_is_named(tmp_path, stored):
    target: Any = tiny_pair("llama").runners[0].config
    folder = saved(tmp_path / "head")
    config, weights = folder / "config.json", folder / "model.safetensors"
    values, tensors = json.loads(config.read_text()), load_file(weights)
    layer = values["transformer_layer_config"]
    layers = [[0, 1, 9], [-1, 1, 2], [2.5, 1, 2], [True, 1, 2]]
    messages = []
    for new in (
        {"target_hidden_size": 16},
        *({"eagle_aux_hidden_state_layer_ids": ids} for ids in layers),
        *(
            {"transformer_layer_config": layer | odd}
            for odd in ({"hidden_act": "gelu"}, {"head_dim": 3})
        ),
        *({"speculators_model_type": kind} for kind in ("dflash", "mtp", ["mtp"])),
    ):
        config.write_text(json.dumps(values | new))
        messages.append(refusals(lambda: load_module(folder, target)))
    wrong = {"head_dim": [3], "rms_norm_eps": "nan", "max_position_embeddings": None}
    for name, value in (wrong | {"rope_parameters": {"rope_type": "evil"}}).items():
        odd = {"transformer_layer_config": layer | {name: value}}
        config.write_text(json.dumps(values | odd))
        words = f"field '{name}'" if name in wrong else "its rope_type is 'evil'"
        with pytest.raises(UsageError, match=rf"--drafter .*head: .*{words}"):
            load_module(folder, target)
    config.write_text(json.dumps(values))
    save_file({name: tensors[name] for name in {*tensors} - {"fc.weight"}}, weights)
    messages.append(refusals(lambda: load_module(folder, target)))
    config.write_text("[" * 100_000)
    with pytest.raises(UsageError, match=r"head: .*name a folder with config.json and model"):
        load_module(folder, target)
    config.unlink()
    with pytest.raises(UsageError, match=r"name a folder with config.json and model"):
        load_module(folder, target)
    stored(*messages)


def test_tensors_that_cannot_draft_are_named(tmp_path, stored):
    folder = saved(tmp_path / "head", draft_vocabulary=40, own_output=True)
    tensors, target = load_file(folder / "model.safetensors"), tiny_pair("llama").runners[0].config
    offsets, refused = tensors["d2t"], ""
    for changed in (
        {"fc.weight": tensors["fc.weight"].int()},
        *({"d2t": wrong} for wrong in (offsets.float(), offsets + 60, -torch.arange(len(offsets)))),
    ):
        save_file(tensors | changed, folder / "model.safetensors")
        refused += refusals(lambda: load_module(folder, target))
    stored(refused)


OF_BOTH = {"hidden_size": 4096, "num_attention_heads": 32}
LLAMA = LlamaConfig(vocab_size=128_256, num_hidden_layers=32, **OF_BOTH)
QWEN = Qwen3Config(vocab_size=151_936, num_hidden_layers=36, **OF_BOTH)


def published(target: Any, intermediate: int, **layer: Any) -> dict[str, Any]:
    return {
        **{"model_type": "llama", "vocab_size": target.vocab_size, "hidden_size": 4096},
        **{"intermediate_size": intermediate, "num_attention_heads": 32, "num_key_value_heads": 8},
        **{"head_dim": 128, "num_hidden_layers": 1, "rms_norm_eps": 1e-5},
        **layer,
    }


def tensors(layer: str, intermediate: int, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """The names and shapes in a published file; ``layer`` is the prefix of its one layer."""
    width, keys = 4096, 8 * 128
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    return {
        **{"d2t": (32_000,), "t2d": (vocabulary,), "fc.weight": (width, 3 * width)},
        **{"norm.weight": (width,), "lm_head.weight": (32_000, width)},
        **{f"{layer}{name}.weight": (width,) for name in norms},
        f"{layer}self_attn.q_proj.weight": (width, 2 * width),
        f"{layer}self_attn.k_proj.weight": (keys, 2 * width),
        f"{layer}self_attn.v_proj.weight": (keys, 2 * width),
        f"{layer}self_attn.o_proj.weight": (width, width),
        f"{layer}mlp.gate_proj.weight": (intermediate, width),
        f"{layer}mlp.up_proj.weight": (intermediate, width),
        f"{layer}mlp.down_proj.weight": (width, intermediate),
    }


def test_published_modules_fit_their_targets():
    """The flat form for Llama 3.1 8B and speculators' form for Qwen3 8B, without values."""
    flat = published(
        LLAMA, 14_336, architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=32_000
    )
    module = build_module(flat, LLAMA, tensors("midlayer.", 14_336, 128_256))
    assert module.config.layers == (2, 16, 29)
    nested = {
        **{"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3"},
        **{"draft_vocab_size": 32_000, "norm_before_residual": True, "target_hidden_size": None},
        "eagle_aux_hidden_state_layer_ids": None,
        "transformer_layer_config": published(QWEN, 12_288, rope_theta=1e6, attention_bias=False),
    }
    stored = tensors("layers.0.", 12_288, 151_936) | {"embed_tokens.weight": (151_936, 4096)}
    module = build_module(nested, QWEN, stored)
    assert module.config.own_embedding and module.config.layers == (2, 18, 33)
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    with pytest.raises(UsageError, match=r"fc.weight has the shape \[4096, 4096\] instead of"):
        build_module(nested, QWEN, stored | {"fc.weight": (4096, 4096)})
    with pytest.raises(UsageError, match="a vocabulary of 151936, and the target has 128256"):
        build_module(nested, LLAMA, stored)


TASKS = {"mini": "mini-math", "python": "python-block"}
BUNDLED = [(pair, name) for pair in TASKS for name in get_pair(pair).drafters]
LIMIT = 24


@cache
def loaded(name: str) -> LoadedPair:
    return load_pair(get_pair(name), Loading(device="cpu"))


@pytest.mark.parametrize(("name", "module"), BUNDLED)
def test_greedy_texts_of_bundled_modules_are_those_of_the_target_they_belong_to(name, module):
    pair, emitted, rounds = loaded(name), 0, 0
    for example in load_task(TASKS[name]).examples("test", limit=2):
        prompt = encode(pair.tokenizer, example.prompt, prompt_format="plain").ids
        alone = run(pair, prompt, sampling=GREEDY, max_new_tokens=LIMIT)
        how = {"sampling": GREEDY, "max_new_tokens": LIMIT, "draft_length": 5}
        text = run(pair, prompt, sd, drafter=parse_kind(module, pair.drafters).load(pair), **how)
        assert text.token_ids == alone.token_ids
        emitted, rounds = emitted + len(text.token_ids), rounds + len(text.rounds)
    assert emitted > 1.5 * rounds
    description = json.loads((get_pair(name).drafters[module] / "training.json").read_text())
    assert description["target"] == loaded(name).runners[0].fingerprint()
    assert description["held_out"]["n"] >= 64
